//! A wire between a client and a server that can be cut, stalled and healed: how a leader loses its API server while
//! the API server is well, and how a registry stops accepting connections while established ones work. It forwards
//! bytes, so TLS and certificates for 127.0.0.1 hold through it.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use anyhow::{Context, Result};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wire {
    Open,
    Stalled,
    Cut,
    /// As a server that was killed: connections are broken and new ones are refused.
    Killed,
    /// Established connections work, new ones are refused.
    Refusing,
    /// Established connections work, new ones are reset.
    Resetting,
}

/// Lives on the runtime that started it; dropping it closes every connection.
#[derive(Debug)]
pub struct ApiProxy {
    address: SocketAddr,
    wire: Arc<watch::Sender<Wire>>,
    accepted: Arc<AtomicUsize>,
    allowance: Arc<AtomicU64>,
    accepting: JoinHandle<()>,
}

impl ApiProxy {
    pub async fn start(target: SocketAddr) -> Result<Self> {
        Self::start_at(Ipv4Addr::LOCALHOST.into(), target).await
    }

    /// Listens where a cluster with a network of its own can reach it.
    pub async fn start_at(address: IpAddr, target: SocketAddr) -> Result<Self> {
        let port = reserve_port(address).with_context(|| format!("cannot get a port of {address}"))?;
        let address = port.local_addr()?;
        let listener =
            TcpListener::bind(address).await.with_context(|| format!("cannot listen on {address}"))?;
        let (wire, state) = watch::channel(Wire::Open);
        let wire = Arc::new(wire);
        let accepted = Arc::<AtomicUsize>::default();
        let allowance = Arc::new(AtomicU64::new(u64::MAX));
        let meter = Meter { allowance: Arc::clone(&allowance), wire: Arc::clone(&wire) };
        let accepting = tokio::spawn(accept((port, listener), target, state, Arc::clone(&accepted), meter));
        Ok(Self { address, wire, accepted, allowance, accepting })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Connections that were accepted.
    pub fn connections(&self) -> usize {
        self.accepted.load(Ordering::Relaxed)
    }

    /// Breaks every connection; new ones are closed as soon as they are made.
    pub fn cut(&self) {
        self.wire.send_replace(Wire::Cut);
    }

    /// Connections stay and new ones are accepted, but nothing gets through: a lost route rather than a dead server.
    pub fn stall(&self) {
        self.wire.send_replace(Wire::Stalled);
    }

    /// Stalls as soon as the server has sent this many more bytes, and waits for that.
    pub async fn stall_after(&self, bytes: u64) -> Result<()> {
        self.allowance.store(bytes, Ordering::Relaxed);
        self.wire.subscribe().wait_for(|state| *state == Wire::Stalled).await.context("the proxy ended")?;
        self.allowance.store(u64::MAX, Ordering::Relaxed);
        Ok(())
    }

    /// Breaks every connection; nothing listens any more.
    pub fn kill(&self) {
        self.wire.send_replace(Wire::Killed);
    }

    /// Stops listening; established connections go on.
    pub fn refuse_new(&self) {
        self.wire.send_replace(Wire::Refusing);
    }

    /// Accepts new connections and resets them at once; established ones go on.
    pub fn reset_new(&self) {
        self.wire.send_replace(Wire::Resetting);
    }

    /// Bytes flow again, those held back by a stall first.
    pub fn heal(&self) {
        self.wire.send_replace(Wire::Open);
    }
}

impl Drop for ApiProxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.cut();
    }
}

/// Counts what servers send against [`ApiProxy::stall_after`].
#[derive(Clone, Debug)]
struct Meter {
    allowance: Arc<AtomicU64>,
    wire: Arc<watch::Sender<Wire>>,
}

impl Meter {
    fn count(&self, bytes: usize) {
        let bytes = bytes as u64;
        let left = |left: u64| (left != u64::MAX).then(|| left.saturating_sub(bytes));
        let before = self.allowance.fetch_update(Ordering::Relaxed, Ordering::Relaxed, left);
        if before.is_ok_and(|before| before <= bytes) {
            // The test may have killed it meanwhile.
            self.wire.send_if_modified(|state| {
                let open = *state == Wire::Open;
                if open {
                    *state = Wire::Stalled;
                }
                open
            });
        }
    }
}

/// A socket that is bound and does not listen: connections are refused, and no other process gets the port while the
/// proxy does not listen itself.
fn reserve_port(address: IpAddr) -> Result<TcpSocket> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind((address, 0).into())?;
    Ok(socket)
}

async fn accept(
    (port, listener): (TcpSocket, TcpListener),
    target: SocketAddr,
    mut wire: watch::Receiver<Wire>,
    count: Arc<AtomicUsize>,
    meter: Meter,
) {
    let Ok(address) = port.local_addr() else { return };
    let mut listener = Some(listener);
    loop {
        let listens = !matches!(*wire.borrow_and_update(), Wire::Killed | Wire::Refusing);
        if !listens {
            listener = None;
        } else if listener.is_none() {
            listener = TcpListener::bind(address).await.ok();
        }
        let accepted = async {
            match &listener {
                Some(listener) => listener.accept().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = wire.changed() => if changed.is_err() {
                return;
            },
            Ok((client, _)) = accepted => {
                count.fetch_add(1, Ordering::Relaxed);
                tokio::spawn(connect(client, target, wire.clone(), meter.clone()));
            }
        }
    }
}

async fn connect(client: TcpStream, target: SocketAddr, mut wire: watch::Receiver<Wire>, meter: Meter) {
    if *wire.borrow() == Wire::Resetting {
        // Closing it then sends a reset.
        drop(client.set_zero_linger());
        return;
    }
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
        () = pump(from_client, to_server, wire.clone(), |_| ()) => {}
        () = pump(from_server, to_client, wire, |bytes| meter.count(bytes)) => {}
    }
}

/// Waits until bytes pass. False: the wire was cut, or the proxy is gone.
async fn passes(wire: &mut watch::Receiver<Wire>) -> bool {
    match wire.wait_for(|state| *state != Wire::Stalled).await {
        Ok(state) => !matches!(*state, Wire::Cut | Wire::Killed),
        Err(_) => false,
    }
}

async fn pump(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut wire: watch::Receiver<Wire>,
    read: impl Fn(usize),
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
        read(count);
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
