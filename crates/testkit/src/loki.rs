//! A double of Loki: lines of one stream, given out as Loki's API does, and a record of what was asked.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use anyhow::Result;
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// Lives on the runtime that started it.
#[derive(Debug)]
pub struct Loki {
    address: SocketAddr,
    held: Arc<Held>,
    serving: JoinHandle<()>,
}

#[derive(Debug, Default)]
struct Held {
    /// Time in nanoseconds since 1970, and line.
    lines: Mutex<Vec<(i128, String)>>,
    /// Tenants of the requests, from the header that Loki tells them by.
    tenants: Mutex<Vec<String>>,
}

#[derive(Deserialize)]
struct Range {
    start: i64,
    end: i64,
    limit: usize,
    direction: String,
}

impl Loki {
    /// Serves on a free port of loopback, under `/loki`.
    pub async fn start() -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let held = Arc::new(Held::default());
        let routes = Router::new().route("/loki/api/v1/query_range", get(range)).with_state(held.clone());
        let serving = tokio::spawn(async move { drop(axum::serve(listener, routes).await) });
        Ok(Self { address, held, serving })
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Takes a line of a moment, in nanoseconds since 1970.
    pub fn push(&self, at: i128, line: impl Into<String>) {
        self.held.lines.lock().push((at, line.into()));
    }

    /// The tenant of every request so far.
    pub fn tenants(&self) -> Vec<String> {
        self.held.tenants.lock().clone()
    }
}

impl Drop for Loki {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn range(State(held): State<Arc<Held>>, headers: HeaderMap, Query(range): Query<Range>) -> Response {
    let tenant = headers.get("x-scope-orgid").and_then(|value| value.to_str().ok()).unwrap_or_default();
    held.tenants.lock().push(tenant.to_owned());
    if range.limit > 5000 {
        return (StatusCode::BAD_REQUEST, "max entries limit per query exceeded").into_response();
    }
    let mut lines = held.lines.lock().clone();
    lines.retain(|(at, _)| (range.start.into()..range.end.into()).contains(at));
    lines.sort();
    if range.direction == "backward" {
        lines.reverse();
    }
    let values: Vec<_> =
        lines.into_iter().take(range.limit).map(|(at, line)| json!([at.to_string(), line])).collect();
    let streams =
        if values.is_empty() { json!([]) } else { json!([{"stream": {"job": "events"}, "values": values}]) };
    Json(json!({"status": "success", "data": {"resultType": "streams", "result": streams}})).into_response()
}
