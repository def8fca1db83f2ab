//! Takes connections, and ends them without losing a request.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::server::graceful::GracefulShutdown;
use rustls::ServerConfig;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::connection;
use super::state::AdmissionState;

/// Pause after a connection could not be taken; the usual cause, too many open files, needs time to pass.
const PAUSE: Duration = Duration::from_millis(100);

/// Serves admission over TLS until `shutdown`, then sees the requests at hand through.
///
/// Handshakes fail while there is no leaf, which is as good as not listening; readiness says so.
pub async fn serve(
    listener: TcpListener,
    tls: ServerConfig,
    state: Arc<AdmissionState>,
    shutdown: CancellationToken,
) -> io::Result<()> {
    let tls = TlsAcceptor::from(Arc::new(tls));
    let graceful = GracefulShutdown::new();
    let slots = Arc::new(Semaphore::new(state.limits.connections));
    let stopped = async {
        shutdown.cancelled().await;
        // Until all API servers know that this replica is going, some will still call it.
        tokio::time::sleep(state.limits.linger).await;
    };
    let accepting = async {
        loop {
            let Ok(slot) = Arc::clone(&slots).acquire_owned().await else {
                return;
            };
            match listener.accept().await {
                Ok((stream, _)) => {
                    let (tls, state, stopping) = (tls.clone(), Arc::clone(&state), shutdown.clone());
                    let watcher = graceful.watcher();
                    tokio::spawn(async move {
                        connection::serve(stream, tls, state, watcher, stopping).await;
                        drop(slot);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection to the webhook could not be taken");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    };
    tokio::select! {
        () = accepting => {}
        () = stopped => {}
    }
    drop(listener);
    let open = graceful.count();
    if tokio::time::timeout(state.limits.finish, graceful.shutdown()).await.is_err() {
        tracing::warn!(open, "some connections to the webhook did not finish in time");
    }
    Ok(())
}
