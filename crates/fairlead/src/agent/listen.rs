//! The router's address. While one agent takes over from another, both are there, and one of them listens.

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
    let mut is_reported = false;
    let listener = loop {
        match TcpListener::bind(address).await {
            Ok(listener) => break listener,
            Err(error) if error.kind() == ErrorKind::AddrInUse => {
                if !std::mem::replace(&mut is_reported, true) {
                    tracing::warn!(%address, "another process listens here, perhaps the agent before this one; waiting");
                }
            }
            Err(error) => {
                return Err(error).with_context(|| {
                    format!("cannot listen on {address}; choose another address with --router")
                });
            }
        }
        tokio::select! {
            () = tokio::time::sleep(TRY_EVERY) => {}
            () = stop.cancelled() => return Ok(()),
        }
    };
    tracing::info!(endpoint = "router", %address, "listening");
    router.serve(listener, stop).await.context("the router cannot accept connections")
}
