//! Addresses of the agent. While one agent takes over from another, both are there, and one of them listens.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use fairlead_node::router::Router;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// How often the address is tried while another process has it.
const TRY_EVERY: Duration = Duration::from_millis(200);

/// Serves until `stop`, as soon as the address is free.
pub(super) async fn serve(router: Arc<Router>, address: SocketAddr, stop: CancellationToken) -> Result<()> {
    let Some(listener) = bind(address, "--router", &stop).await? else { return Ok(()) };
    tracing::info!(endpoint = "router", %address, "listening");
    router.serve(listener, stop).await;
    Ok(())
}

/// Takes the address as soon as it is free; `None` after `stop`.
pub(super) async fn bind(
    address: SocketAddr,
    flag: &str,
    stop: &CancellationToken,
) -> Result<Option<TcpListener>> {
    let mut is_reported = false;
    loop {
        match TcpListener::bind(address).await {
            Ok(listener) => return Ok(Some(listener)),
            Err(error) if error.kind() == ErrorKind::AddrInUse => {
                if !std::mem::replace(&mut is_reported, true) {
                    tracing::warn!(%address, "another process listens here, perhaps the agent before this one; waiting");
                }
            }
            Err(error) => {
                return Err(error).with_context(|| {
                    format!("cannot listen on {address}; choose another address with {flag}")
                });
            }
        }
        tokio::select! {
            () = tokio::time::sleep(TRY_EVERY) => {}
            () = stop.cancelled() => return Ok(None),
        }
    }
}
