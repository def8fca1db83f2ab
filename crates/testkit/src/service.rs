//! What a Service does, for replicas that run beside a cluster: one address in front of several, of which those that
//! accept connections are used. A webhook takes only one URL.

use std::net::SocketAddr;

use anyhow::{Context, Result};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// Lives on the runtime that started it. It forwards bytes, so TLS and certificates for its address hold through it.
#[derive(Debug)]
pub struct Service {
    address: SocketAddr,
    accepting: JoinHandle<()>,
}

impl Service {
    /// Listens beside the first replica. Connections go round all of them; one that refuses is passed over.
    pub async fn start(replicas: Vec<SocketAddr>) -> Result<Self> {
        let address = replicas.first().context("a Service needs a replica")?.ip();
        let listener =
            TcpListener::bind((address, 0)).await.with_context(|| format!("cannot listen on {address}"))?;
        let address = listener.local_addr()?;
        Ok(Self { address, accepting: tokio::spawn(accept(listener, replicas)) })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, mut replicas: Vec<SocketAddr>) {
    while let Ok((client, _)) = listener.accept().await {
        if !replicas.is_empty() {
            replicas.rotate_left(1);
        }
        tokio::spawn(forward(client, replicas.clone()));
    }
}

async fn forward(mut client: TcpStream, replicas: Vec<SocketAddr>) {
    for replica in replicas {
        if let Ok(mut server) = TcpStream::connect(replica).await {
            // Either side may hang up at any time, which is no error.
            drop(tokio::io::copy_bidirectional(&mut client, &mut server).await);
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// A replica that answers every connection with its name.
    async fn replica(name: &'static str) -> (SocketAddr, JoinHandle<()>) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let task = tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                drop(client.write_all(name.as_bytes()).await);
            }
        });
        (address, task)
    }

    async fn ask(service: &Service) -> String {
        let mut answer = String::new();
        TcpStream::connect(service.address()).await.unwrap().read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn uses_all_replicas_and_passes_over_a_dead_one() {
        let ((first, first_task), (second, _second_task)) = (replica("first").await, replica("second").await);
        let service = Service::start(vec![first, second]).await.unwrap();
        let mut answers = [ask(&service).await, ask(&service).await];
        answers.sort();
        assert_eq!(answers, ["first", "second"]);
        first_task.abort();
        assert!(first_task.await.is_err());
        assert_eq!([ask(&service).await, ask(&service).await], ["second", "second"]);
    }
}
