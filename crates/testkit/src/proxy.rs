//! A wire between a client and a server that can be cut, stalled and healed: how a leader loses its API server while the API server is
//! well. It forwards bytes, so TLS and certificates for 127.0.0.1 hold through it.

use std::net::{Ipv4Addr, SocketAddr};

use anyhow::{Context, Result};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wire {
    Open,
    Stalled,
    Cut,
}

/// Lives on the runtime that started it; dropping it closes every connection.
#[derive(Debug)]
pub struct ApiProxy {
    address: SocketAddr,
    wire: watch::Sender<Wire>,
    accepting: JoinHandle<()>,
}

impl ApiProxy {
    pub async fn start(target: SocketAddr) -> Result<Self> {
        let listener =
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("cannot listen on loopback")?;
        let address = listener.local_addr()?;
        let (wire, state) = watch::channel(Wire::Open);
        let accepting = tokio::spawn(accept(listener, target, state));
        Ok(Self { address, wire, accepting })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Breaks every connection; new ones are closed as soon as they are made.
    pub fn cut(&self) {
        self.wire.send_replace(Wire::Cut);
    }

    /// Connections stay and new ones are accepted, but nothing gets through: a lost route rather than a dead server.
    pub fn stall(&self) {
        self.wire.send_replace(Wire::Stalled);
    }

    /// Bytes flow again, those held back by a stall first.
    pub fn heal(&self) {
        self.wire.send_replace(Wire::Open);
    }
}

impl Drop for ApiProxy {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, target: SocketAddr, wire: watch::Receiver<Wire>) {
    while let Ok((client, _)) = listener.accept().await {
        tokio::spawn(connect(client, target, wire.clone()));
    }
}

async fn connect(client: TcpStream, target: SocketAddr, mut wire: watch::Receiver<Wire>) {
    if !passes(&mut wire).await {
        return;
    }
    let Ok(server) = TcpStream::connect(target).await else {
        return;
    };
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    // Either direction's end is the end of both.
    tokio::select! {
        () = pump(from_client, to_server, wire.clone()) => {}
        () = pump(from_server, to_client, wire) => {}
    }
}

/// Waits until the wire is open. False: it was cut, or the proxy is gone.
async fn passes(wire: &mut watch::Receiver<Wire>) -> bool {
    match wire.wait_for(|state| *state != Wire::Stalled).await {
        Ok(state) => *state == Wire::Open,
        Err(_) => false,
    }
}

async fn pump(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut wire: watch::Receiver<Wire>,
) {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        if !passes(&mut wire).await {
            return;
        }
        let count = tokio::select! {
            changed = wire.changed() => match changed {
                Ok(()) => continue,
                Err(_) => return,
            },
            read = from.read(&mut buffer) => match read {
                Ok(count) if count > 0 => count,
                _ => return,
            },
        };
        // Bytes that arrived in the moment of a stall are held until it is over.
        if !passes(&mut wire).await {
            return;
        }
        let Some(bytes) = buffer.get(..count) else { return };
        if to.write_all(bytes).await.is_err() {
            return;
        }
    }
}
