//! The page that Prometheus scrapes.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures::stream;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;

const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Bytes of a piece of the page.
const PIECE: usize = 64 * 1024;

/// A text of some megabytes in pieces. In one, it would be copied whenever it outgrows its room.
#[derive(Default)]
struct Pieces(Vec<String>);

impl fmt::Write for Pieces {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        match self.0.last_mut() {
            Some(last) if last.capacity() - last.len() >= text.len() => last.push_str(text),
            _ => {
                let mut piece = String::with_capacity(PIECE.max(text.len()));
                piece.push_str(text);
                self.0.push(piece);
            }
        }
        Ok(())
    }
}

pub fn routes(registry: Registry) -> Router {
    Router::new().route("/metrics", get(page)).with_state(Arc::new(registry))
}

/// What the page says now.
pub fn text(registry: &Registry) -> Result<String, fmt::Error> {
    Ok(pieces(registry)?.concat())
}

fn pieces(registry: &Registry) -> Result<Vec<String>, fmt::Error> {
    let mut pieces = Pieces::default();
    encode(&mut pieces, registry)?;
    Ok(pieces.0)
}

async fn page(State(registry): State<Arc<Registry>>) -> Response {
    match pieces(&registry) {
        Ok(pieces) => {
            let pieces = pieces.into_iter().map(|piece| Ok::<_, Infallible>(Bytes::from(piece)));
            ([(header::CONTENT_TYPE, OPEN_METRICS)], Body::from_stream(stream::iter(pieces))).into_response()
        }
        Err(_) => (StatusCode::INTERNAL_SERVER_ERROR, "metrics could not be written\n").into_response(),
    }
}
