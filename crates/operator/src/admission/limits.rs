//! How much the webhook takes on at once. Each bound is far above what an API server sends and far below what would
//! bring this process down.

use std::thread::available_parallelism;
use std::time::Duration;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Connections at once; more wait in the kernel's queue.
    pub connections: usize,
    /// Time for a TLS handshake.
    pub handshake: Duration,
    /// A connection without a request for this long is closed. API servers close theirs after 90 seconds, and must be
    /// the ones to do so: a request sent into a connection that is being closed is lost.
    pub idle: Duration,
    /// Requests being decided at once; more wait until their deadline.
    pub deciding: usize,
    /// The same for one namespace, which leaves room for the others.
    pub deciding_per_namespace: usize,
    /// Processors that namespaces share.
    pub processors: u32,
    /// Places that one namespace has asked about at once; more wait until the deadline of their request.
    pub probes_per_namespace: usize,
    /// Secrets that are read at once for Pods of one namespace; more wait likewise.
    pub reads_per_namespace: usize,
    /// Largest request. The API server accepts objects up to 3 MiB and sends the old one along with the new one.
    pub body: usize,
    /// Bytes of requests held in memory at once.
    pub bodies: usize,
    /// The same for one namespace. A request beyond it is answered at once: waiting would hold its memory.
    pub bodies_per_namespace: usize,
    /// Deadline of a request whose URL names none; the API server's own is 10 seconds unless configured.
    pub unnamed_timeout: Duration,
    /// After shutdown is requested, connections are accepted for this long, and closed after their next response.
    pub linger: Duration,
    /// Requests in flight then have this long to finish.
    pub finish: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 1024,
            handshake: Duration::from_secs(5),
            idle: Duration::from_mins(3),
            deciding: 256,
            deciding_per_namespace: 64,
            processors: available_parallelism()
                .ok()
                .and_then(|count| u32::try_from(count.get()).ok())
                .unwrap_or(1),
            probes_per_namespace: 64,
            reads_per_namespace: 16,
            body: 8 * 1024 * 1024,
            bodies: 96 * 1024 * 1024,
            bodies_per_namespace: 24 * 1024 * 1024,
            unnamed_timeout: Duration::from_secs(5),
            linger: Duration::from_secs(1),
            finish: Duration::from_secs(3),
        }
    }
}

impl Limits {
    /// The time within which a request must be answered. The API server waits for the time that it names; a second of
    /// it belongs to the way here and back.
    pub(super) fn deadline(&self, query: Option<&str>) -> Duration {
        let named = query
            .unwrap_or_default()
            .split('&')
            .find_map(|pair| pair.strip_prefix("timeout="))
            .and_then(|text| text.parse::<fairlead_domain::duration::Duration>().ok())
            .map(|duration| duration.as_std())
            .filter(|duration| !duration.is_zero());
        let whole = named.unwrap_or(self.unnamed_timeout);
        whole.saturating_sub(Duration::from_secs(1)).max(whole / 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deadline_is_the_callers_less_a_second() {
        let limits = Limits::default();
        for (query, milliseconds) in [
            (None, 4_000),
            (Some(""), 4_000),
            (Some("timeout=10s"), 9_000),
            (Some("x=1&timeout=5s"), 4_000),
            (Some("timeout=1s"), 500),
            (Some("timeout=0s"), 4_000),
            (Some("timeout=soon"), 4_000),
            (Some("timeout=-5s"), 4_000),
        ] {
            assert_eq!(limits.deadline(query), Duration::from_millis(milliseconds), "{query:?}");
        }
    }
}
