//! Whether the loops that carry the operator still turn. Liveness asks here and nowhere else: whatever is wrong with
//! the cluster, a restart of this process would not mend it, but a loop that hangs is mended by one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

/// A loop beats every few seconds. After this long without a beat it hangs.
const STUCK_AFTER: Duration = Duration::from_secs(30);

/// One loop's sign of life.
#[derive(Debug, Clone)]
pub struct Pulse {
    name: &'static str,
    origin: Instant,
    last: Arc<AtomicU64>,
}

impl Pulse {
    pub fn beat(&self) {
        let now = u64::try_from(self.origin.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last.store(now, Ordering::Relaxed);
    }

    fn silent_for(&self) -> Duration {
        self.origin.elapsed().saturating_sub(Duration::from_millis(self.last.load(Ordering::Relaxed)))
    }
}

/// The signs of life of all loops.
#[derive(Debug, Clone)]
pub struct Pulses {
    origin: Instant,
    all: Vec<Pulse>,
}

impl Default for Pulses {
    fn default() -> Self {
        Self { origin: Instant::now(), all: Vec::new() }
    }
}

impl Pulses {
    /// A pulse that counts as beating now.
    pub fn add(&mut self, name: &'static str) -> Pulse {
        let pulse = Pulse { name, origin: self.origin, last: Arc::default() };
        pulse.beat();
        self.all.push(pulse.clone());
        pulse
    }

    /// Loops that hang, and for how long.
    pub fn stuck(&self) -> Vec<(&'static str, Duration)> {
        self.all
            .iter()
            .map(|pulse| (pulse.name, pulse.silent_for()))
            .filter(|(_, silent)| *silent > STUCK_AFTER)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_loop_without_a_beat_for_half_a_minute_is_stuck() {
        let mut pulses = Pulses::default();
        let steady = pulses.add("steady");
        let _silent = pulses.add("silent");
        for _ in 0..31 {
            tokio::time::advance(Duration::from_secs(1)).await;
            steady.beat();
        }
        assert_eq!(pulses.stuck(), [("silent", Duration::from_secs(31))]);
    }
}
