//! One connection: handshake, requests, and its end, each bounded in time.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Body;
use axum::http::header::CONNECTION;
use axum::http::{HeaderValue, Request, Response, Version};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::Watcher;
use tokio::net::TcpStream;
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::handle::handle;
use super::state::AdmissionState;

/// Requests at once on one HTTP/2 connection.
const STREAMS: u32 = 128;

/// How often an HTTP/2 peer is asked whether it is still there, and how long it may take to say so.
const PING_EVERY: Duration = Duration::from_secs(30);
const PING_ANSWER: Duration = Duration::from_secs(20);

/// Serves one connection to its end.
pub(super) async fn serve(
    stream: TcpStream,
    tls: TlsAcceptor,
    state: Arc<AdmissionState>,
    graceful: Watcher,
    stopping: CancellationToken,
) {
    // Answers are small and waited for.
    let _ = stream.set_nodelay(true);
    let stream = match tokio::time::timeout(state.limits.handshake, tls.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            state.metrics.handshake_failed();
            tracing::debug!(%error, "a TLS handshake failed");
            return;
        }
        Err(_) => {
            state.metrics.handshake_failed();
            tracing::debug!("a TLS handshake took too long");
            return;
        }
    };
    let _connected = state.metrics.connected();
    let activity = Arc::new(Activity::new());
    let idle = state.limits.idle;
    let service = hyper::service::service_fn({
        let activity = Arc::clone(&activity);
        move |request: Request<Incoming>| {
            let (state, activity, stopping) = (Arc::clone(&state), Arc::clone(&activity), stopping.clone());
            async move {
                let _busy = activity.begin();
                let version = request.version();
                let mut response = handle(&state, request.map(Body::new)).await;
                if stopping.is_cancelled() {
                    close_after(&mut response, version);
                }
                Ok::<_, Infallible>(response)
            }
        }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(idle);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_ANSWER);
    let connection = graceful.watch(builder.serve_connection(TokioIo::new(stream), service).into_owned());
    tokio::select! {
        result = connection => {
            if let Err(error) = result {
                tracing::debug!(error, "a connection broke");
            }
        }
        () = activity.idle_for(idle) => tracing::debug!("an idle connection was closed"),
    }
}

/// HTTP/1.1 clients that get this send nothing more on this connection, so nothing is lost when it closes. HTTP/2
/// has its own way to say it.
fn close_after(response: &mut Response<Body>, version: Version) {
    if version < Version::HTTP_2 {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
}

/// When a connection was last of use.
struct Activity {
    origin: Instant,
    requests: AtomicUsize,
    /// Milliseconds after `origin`.
    last: AtomicU64,
}

impl Activity {
    fn new() -> Self {
        Self { origin: Instant::now(), requests: AtomicUsize::new(0), last: AtomicU64::new(0) }
    }

    fn begin(self: &Arc<Self>) -> Busy {
        self.requests.fetch_add(1, Ordering::Relaxed);
        Busy(Arc::clone(self))
    }

    fn touch(&self) {
        let now = u64::try_from(self.origin.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last.store(now, Ordering::Relaxed);
    }

    /// Returns when there was no request for this long.
    async fn idle_for(&self, limit: Duration) {
        loop {
            let last = self.origin + Duration::from_millis(self.last.load(Ordering::Relaxed));
            let busy = self.requests.load(Ordering::Relaxed) > 0;
            let until = if busy { Instant::now() + limit } else { last + limit };
            if !busy && Instant::now() >= until {
                return;
            }
            tokio::time::sleep_until(until).await;
        }
    }
}

/// A request on a connection.
struct Busy(Arc<Activity>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.touch();
        self.0.requests.fetch_sub(1, Ordering::Relaxed);
    }
}
