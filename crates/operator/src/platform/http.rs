//! Listening and serving over plain HTTP, for probes and metrics.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use axum::Router;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// An endpoint could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen for {endpoint} on {address}: {source}; choose another address or port with {flags}")]
pub struct BindError {
    endpoint: &'static str,
    address: SocketAddr,
    flags: &'static str,
    source: io::Error,
}

/// What a listener is for, and the flags that move it.
#[derive(Debug, Clone, Copy)]
pub struct Endpoint {
    pub name: &'static str,
    pub flags: &'static str,
}

/// Listens on `address`, or without one on all addresses of the machine: IPv6 and IPv4 where there is IPv6, else IPv4.
/// Port 0 takes any free port; the log line names it.
pub async fn listen(
    endpoint: Endpoint,
    address: Option<IpAddr>,
    port: u16,
) -> Result<TcpListener, BindError> {
    let wanted = SocketAddr::new(address.unwrap_or(IpAddr::V6(Ipv6Addr::UNSPECIFIED)), port);
    let mut result = TcpListener::bind(wanted).await;
    if address.is_none() && result.as_ref().is_err_and(|error| error.kind() != io::ErrorKind::AddrInUse) {
        result = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await;
    }
    let opened = result.and_then(|listener| Ok((listener.local_addr()?, listener)));
    let (address, listener) = opened.map_err(|source| BindError {
        endpoint: endpoint.name,
        address: wanted,
        flags: endpoint.flags,
        source,
    })?;
    tracing::info!(endpoint = endpoint.name, %address, "listening");
    Ok(listener)
}

/// Serves until `stop`, then finishes the requests at hand.
pub async fn serve(listener: TcpListener, routes: Router, stop: CancellationToken) -> io::Result<()> {
    axum::serve(listener, routes).with_graceful_shutdown(stop.cancelled_owned()).await
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEST: Endpoint = Endpoint { name: "test", flags: "--listen" };

    #[tokio::test]
    async fn a_taken_port_is_an_error_that_names_the_way_out() {
        let local = Some(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let first = listen(TEST, local, 0).await.expect("a free port");
        let port = first.local_addr().expect("it listens").port();
        let error = listen(TEST, local, port).await.expect_err("the port is taken").to_string();
        assert!(error.starts_with(&format!("cannot listen for test on 127.0.0.1:{port}: ")), "{error}");
        assert!(error.ends_with("choose another address or port with --listen"), "{error}");
    }
}
