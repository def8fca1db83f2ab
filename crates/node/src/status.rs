//! The page with the agent's metrics, and whether it is ready.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What keeps the node from following its policies; `None` if nothing does.
pub type Readiness = watch::Receiver<Option<String>>;

/// Serves `/metrics`, `/healthz` and `/readyz` until `stop`.
pub async fn serve(
    listener: TcpListener,
    registry: Registry,
    readiness: Readiness,
    stop: CancellationToken,
) -> std::io::Result<()> {
    let routes = Router::new()
        .route("/metrics", get(metrics))
        .with_state(Arc::new(registry))
        .route("/healthz", get(|| async { "ok\n" }))
        .merge(Router::new().route("/readyz", get(ready)).with_state(readiness));
    axum::serve(listener, routes).with_graceful_shutdown(stop.cancelled_owned()).await
}

async fn metrics(State(registry): State<Arc<Registry>>) -> Response {
    let mut text = String::new();
    match encode(&mut text, &registry) {
        Ok(()) => ([(header::CONTENT_TYPE, OPEN_METRICS)], text).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

async fn ready(State(readiness): State<Readiness>) -> Response {
    match readiness.borrow().as_ref() {
        None => "ok\n".into_response(),
        Some(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("{reason}\n")).into_response(),
    }
}
