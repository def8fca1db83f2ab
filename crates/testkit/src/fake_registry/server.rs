//! Accepting connections, so that single ones can be broken on purpose.

use std::convert::Infallible;
use std::io::ErrorKind;
use std::net::Ipv4Addr;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use parking_lot::Mutex;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::handler::{Connection, handle};
use super::{FakeRegistry, Shared, State};
use crate::pki::Identity;

const ATTEMPTS: usize = 10;

pub(super) async fn start(identity: Option<&Identity>) -> Result<FakeRegistry> {
    let acceptor = identity.map(acceptor).transpose()?;
    let listener = listen().await?;
    let address = listener.local_addr()?;
    let shared = Arc::new(Shared { tls: acceptor.is_some(), state: Mutex::new(State::default()) });
    let serving = tokio::spawn(accept(listener, acceptor, Arc::clone(&shared)));
    Ok(FakeRegistry { address, shared, serving })
}

/// Listens on a port of registries. One that was found free a moment ago may be held by a process that is just being
/// started and has inherited it until it runs its program.
async fn listen() -> Result<TcpListener> {
    for _ in 0..ATTEMPTS {
        match TcpListener::bind((Ipv4Addr::LOCALHOST, crate::ports::registry()?)).await {
            Err(error) if error.kind() == ErrorKind::AddrInUse => {}
            listening => return listening.context("cannot listen on loopback"),
        }
    }
    bail!("no port to listen on after {ATTEMPTS} attempts")
}

fn acceptor(identity: &Identity) -> Result<TlsAcceptor> {
    let certificates =
        CertificateDer::pem_slice_iter(identity.certificate.as_bytes()).collect::<Result<Vec<_>, _>>()?;
    let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes())?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(certificates, key)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

async fn accept(listener: TcpListener, acceptor: Option<TlsAcceptor>, shared: Arc<Shared>) {
    // Connections end with this task: a registry that was dropped answers no more requests.
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        while connections.try_join_next().is_some() {}
        let number = {
            let mut state = shared.lock();
            state.log.connections += 1;
            state.log.connections
        };
        connections.spawn(open(stream, acceptor.clone(), Arc::clone(&shared), number));
    }
}

async fn open(stream: TcpStream, acceptor: Option<TlsAcceptor>, shared: Arc<Shared>, number: usize) {
    drop(stream.set_nodelay(true));
    let url = match stream.local_addr() {
        Ok(address) => format!("{}://{address}", if acceptor.is_some() { "https" } else { "http" }),
        Err(_) => return,
    };
    let connection = Arc::new(Connection { number, url, cut: Notify::new() });
    match acceptor {
        None => serve(stream, shared, connection).await,
        Some(acceptor) => {
            if let Ok(stream) = acceptor.accept(stream).await {
                serve(stream, shared, connection).await;
            }
        }
    }
}

async fn serve(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    shared: Arc<Shared>,
    connection: Arc<Connection>,
) {
    let service = service_fn(|request| {
        let (shared, connection) = (Arc::clone(&shared), Arc::clone(&connection));
        async move { Ok::<_, Infallible>(handle(shared, connection, request).await) }
    });
    let builder = Builder::new(TokioExecutor::new());
    let serving = builder.serve_connection(TokioIo::new(stream), service);
    tokio::select! {
        // How a client ends its connection is its own affair.
        _ = serving => {}
        () = connection.cut.notified() => {}
    }
}
