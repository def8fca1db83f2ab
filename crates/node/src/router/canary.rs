//! A request as containerd would send it: whether the address that its files name is answered by a router.
//!
//! Another program may have taken the address, and containerd would take what that says for an answer of a registry.

use std::net::SocketAddr;
use std::time::Duration;

use thiserror::Error;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use super::answer::ROUTER_HEADER;

/// A router that is about to listen does so within this time.
const PATIENCE: Duration = Duration::from_secs(3);
const TRY_EVERY: Duration = Duration::from_millis(50);
/// An answer of a router is much shorter.
const LONGEST: u64 = 4096;

#[derive(Debug, Error)]
pub enum CanaryError {
    #[error("nothing answers on {0}, to which the files lead containerd")]
    Silent(SocketAddr),
    #[error(
        "what answers on {0}, to which the files lead containerd, is not an agent: end it, or choose another address \
         with --router"
    )]
    Stranger(SocketAddr),
}

/// A program that takes longer to answer is none that containerd could take for a registry.
const GLANCE: Duration = Duration::from_secs(1);

/// Whether a router answers, or nothing at all: before files lead to the address.
pub async fn is_free_for_router(address: SocketAddr) -> Result<(), CanaryError> {
    match timeout(GLANCE, ask(address)).await {
        Ok(Ok(answer)) if !answer.is_empty() && !names_router(&answer) => Err(CanaryError::Stranger(address)),
        _ => Ok(()),
    }
}

/// Asks until a router answers, for a moment.
pub async fn canary(address: SocketAddr) -> Result<(), CanaryError> {
    let mut last = CanaryError::Silent(address);
    let asking = async {
        loop {
            last = match ask(address).await {
                Ok(answer) if names_router(&answer) => return,
                Ok(answer) if answer.is_empty() => CanaryError::Silent(address),
                Ok(_) => CanaryError::Stranger(address),
                Err(_) => CanaryError::Silent(address),
            };
            sleep(TRY_EVERY).await;
        }
    };
    let answered = timeout(PATIENCE, asking).await.is_ok();
    if answered { Ok(()) } else { Err(last) }
}

async fn ask(address: SocketAddr) -> std::io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(address).await?;
    stream
        .write_all(format!("GET /v2/ HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").as_bytes())
        .await?;
    let mut answer = Vec::new();
    stream.take(LONGEST).read_to_end(&mut answer).await?;
    Ok(answer)
}

fn names_router(answer: &[u8]) -> bool {
    let text = String::from_utf8_lossy(answer).to_ascii_lowercase();
    text.lines().any(|line| line.starts_with(ROUTER_HEADER.as_str()))
}
