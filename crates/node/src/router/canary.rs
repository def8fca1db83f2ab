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

/// A router that is about to listen does so within this time, and one that is about to end is gone.
const PATIENCE: Duration = Duration::from_secs(3);
const TRY_EVERY: Duration = Duration::from_millis(50);
/// For one answer.
const GLANCE: Duration = Duration::from_secs(1);
/// An answer of a router is much shorter.
const LONGEST: u64 = 4096;

#[derive(Debug, Error)]
pub enum CanaryError {
    #[error("nothing answers on {0}, to which the files lead containerd")]
    Silent(SocketAddr),
    #[error(
        "what listens on {0}, to which the files lead containerd, is not an agent: end it, or choose another address \
         with --router"
    )]
    Stranger(SocketAddr),
}

/// What became of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Heard {
    Router,
    Stranger,
    /// A program listens and says nothing: a stranger, or a router that begins or ends.
    Silence,
    /// No program listens.
    Nothing,
}

/// Whether a router answers, or nothing at all: before files lead to the address.
pub async fn is_free_for_router(address: SocketAddr) -> Result<(), CanaryError> {
    let asking = async {
        loop {
            match ask(address).await {
                Heard::Router | Heard::Nothing => return true,
                Heard::Stranger => return false,
                Heard::Silence => sleep(TRY_EVERY).await,
            }
        }
    };
    let is_free = timeout(PATIENCE, asking).await.unwrap_or(false);
    if is_free { Ok(()) } else { Err(CanaryError::Stranger(address)) }
}

/// Asks until a router answers, for a moment.
pub async fn canary(address: SocketAddr) -> Result<(), CanaryError> {
    let mut last = Heard::Nothing;
    let asking = async {
        loop {
            last = ask(address).await;
            if last == Heard::Router {
                return;
            }
            sleep(TRY_EVERY).await;
        }
    };
    let answered = timeout(PATIENCE, asking).await.is_ok();
    match last {
        _ if answered => Ok(()),
        Heard::Nothing => Err(CanaryError::Silent(address)),
        _ => Err(CanaryError::Stranger(address)),
    }
}

async fn ask(address: SocketAddr) -> Heard {
    let asked = async {
        let Ok(stream) = TcpStream::connect(address).await else { return Heard::Nothing };
        match exchange(stream, address).await {
            Ok(answer) if names_router(&answer) => Heard::Router,
            Ok(answer) if !answer.is_empty() => Heard::Stranger,
            Ok(_) | Err(_) => Heard::Silence,
        }
    };
    timeout(GLANCE, asked).await.unwrap_or(Heard::Silence)
}

async fn exchange(mut stream: TcpStream, address: SocketAddr) -> std::io::Result<Vec<u8>> {
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
