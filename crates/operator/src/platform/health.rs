//! The answers to the kubelet's probes, and the same in words for people.
//!
//! Live means that the loops of this process turn; nothing outside can make it fail. Ready means that an answer given
//! now would be a good one: what is in the cluster is known and admission can be served.

use std::fmt::{self, Write as _};
use std::sync::Arc;

use axum::Router;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::routing::get;
use serde::Deserialize;
use tokio_util::sync::CancellationToken;

use crate::cluster::watch::{Board, Presence, WatchRow};
use crate::platform::telemetry::Heartbeats;

/// One thing that readiness asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    pub name: String,
    pub passed: bool,
    pub detail: String,
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = if self.passed { '+' } else { '-' };
        write!(f, "[{mark}] {}: {}", self.name, self.detail)
    }
}

impl From<WatchRow> for Check {
    fn from(row: WatchRow) -> Self {
        let mut detail = match (row.presence, row.synced) {
            (Presence::Unknown, _) => "asking whether the cluster serves it".to_owned(),
            (Presence::Absent, _) => "not served by the cluster".to_owned(),
            (Presence::Unneeded, _) => "not needed".to_owned(),
            (Presence::Served, false) => "listing".to_owned(),
            (Presence::Served, true) => format!("{} objects", row.objects),
        };
        if row.malformed > 0 {
            let _ = write!(detail, ", {} malformed and ignored", row.malformed);
        }
        if let Some(trouble) = &row.trouble {
            let _ = write!(detail, "; {trouble}");
        }
        Self { name: format!("watch {}", row.kind), passed: row.ready(), detail }
    }
}

/// A source of checks beside the watches.
pub type Probe = Box<dyn Fn() -> Check + Send + Sync>;

/// Everything that probes look at.
pub struct Health {
    pub heartbeats: Heartbeats,
    pub board: Arc<Board>,
    pub probes: Vec<Probe>,
    /// Cancelled when the process begins to shut down.
    pub shutdown: CancellationToken,
}

impl fmt::Debug for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Health").field("heartbeats", &self.heartbeats).finish_non_exhaustive()
    }
}

#[derive(Deserialize)]
struct Options {
    verbose: Option<String>,
}

impl Health {
    pub fn routes(self) -> Router {
        Router::new().route("/healthz", get(live)).route("/readyz", get(ready)).with_state(Arc::new(self))
    }

    fn checks(&self) -> Vec<Check> {
        let mut checks: Vec<Check> = self.board.rows().into_iter().map(Check::from).collect();
        checks.extend(self.probes.iter().map(|probe| probe()));
        if self.shutdown.is_cancelled() {
            let (name, detail) = ("shutdown".to_owned(), "under way".to_owned());
            checks.push(Check { name, passed: false, detail });
        }
        checks
    }
}

async fn live(State(health): State<Arc<Health>>) -> (StatusCode, String) {
    let stuck = health.heartbeats.stuck();
    if stuck.is_empty() {
        return (StatusCode::OK, "ok\n".to_owned());
    }
    let lines = stuck.into_iter().fold(String::new(), |mut lines, (name, silent)| {
        let _ = writeln!(lines, "[-] {name}: no heartbeat for {} s", silent.as_secs());
        lines
    });
    (StatusCode::INTERNAL_SERVER_ERROR, lines)
}

async fn ready(State(health): State<Arc<Health>>, Query(options): Query<Options>) -> (StatusCode, String) {
    let checks = health.checks();
    let ready = checks.iter().all(|check| check.passed);
    let verbose = options.verbose.is_some_and(|verbose| !matches!(verbose.as_str(), "false" | "0"));
    let mut page = String::new();
    for check in checks.iter().filter(|check| verbose || !check.passed) {
        let _ = writeln!(page, "{check}");
    }
    if verbose {
        for (capability, standing) in health.board.capabilities() {
            let _ = writeln!(page, "[ ] capability {capability}: {standing}");
        }
    }
    page.push_str(if ready { "ready\n" } else { "not ready\n" });
    (if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, page)
}
