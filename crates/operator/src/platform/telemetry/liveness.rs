//! Whether the loops that carry the operator still turn. Liveness asks here and nowhere else: whatever is wrong with
//! the cluster, a restart of this process would not mend it, but a loop that hangs is mended by one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// A loop beats every few seconds. After this long without a beat it hangs.
const STUCK_AFTER: Duration = Duration::from_secs(30);

/// The heartbeat of one loop.
#[derive(Debug, Clone)]
pub struct Heartbeat {
    name: &'static str,
    origin: Instant,
    last: Arc<AtomicU64>,
}

impl Heartbeat {
    pub fn beat(&self) {
        let now = u64::try_from(self.origin.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last.store(now, Ordering::Relaxed);
    }

    fn silent_for(&self) -> Duration {
        self.origin.elapsed().saturating_sub(Duration::from_millis(self.last.load(Ordering::Relaxed)))
    }
}

/// The heartbeats of all loops.
#[derive(Debug, Clone)]
pub struct Heartbeats {
    origin: Instant,
    all: Vec<Heartbeat>,
}

impl Default for Heartbeats {
    fn default() -> Self {
        Self { origin: Instant::now(), all: Vec::new() }
    }
}

impl Heartbeats {
    /// A heartbeat that has just been given.
    pub fn add(&mut self, name: &'static str) -> Heartbeat {
        let heartbeat = Heartbeat { name, origin: self.origin, last: Arc::default() };
        heartbeat.beat();
        self.all.push(heartbeat.clone());
        heartbeat
    }

    /// Loops that hang, and for how long.
    pub fn stuck(&self) -> Vec<(&'static str, Duration)> {
        self.all
            .iter()
            .map(|heartbeat| (heartbeat.name, heartbeat.silent_for()))
            .filter(|(_, silent)| *silent > STUCK_AFTER)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_loop_without_a_beat_for_half_a_minute_is_stuck() {
        let mut heartbeats = Heartbeats::default();
        let steady = heartbeats.add("steady");
        let _silent = heartbeats.add("silent");
        for _ in 0..31 {
            tokio::time::advance(Duration::from_secs(1)).await;
            steady.beat();
        }
        assert_eq!(heartbeats.stuck(), [("silent", Duration::from_secs(31))]);
    }
}
