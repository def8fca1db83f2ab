//! The loop of both keepers: a look and at most one step, then a pause that a change of leadership ends.

use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Leads;
use crate::platform::telemetry::Heartbeat;

/// How often a waiting keeper notices that it has become the leader, or that a leaf has ended.
pub(super) const HEARTBEAT: Duration = Duration::from_millis(250);

/// What the loop does in turns.
pub(super) trait Turns: Send {
    /// One look and at most one step; returns how long to wait before the next.
    fn turn(&mut self, leads: bool) -> impl Future<Output = Duration> + Send;

    /// Called at every heartbeat of a wait.
    fn refresh(&self) {}
}

/// Keeps going until `shutdown`.
pub(super) async fn run(
    mut keeper: impl Turns,
    leads: Leads,
    heartbeat: Heartbeat,
    shutdown: CancellationToken,
) {
    while !shutdown.is_cancelled() {
        let led = leads();
        let turn = async {
            heartbeat.beat();
            let pause = keeper.turn(led).await;
            let end = Instant::now() + pause.mul_f64(1.0 + fastrand::f64() / 4.0);
            loop {
                heartbeat.beat();
                keeper.refresh();
                let left = end.saturating_duration_since(Instant::now());
                if left.is_zero() || leads() != led {
                    return;
                }
                tokio::time::sleep(left.min(HEARTBEAT)).await;
            }
        };
        // On the heap: what a turn keeps between requests would be carried by everything around it.
        if shutdown.run_until_cancelled(Box::pin(turn)).await.is_none() {
            return;
        }
    }
}
