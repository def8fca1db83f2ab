//! How fast images are pulled: the limits of policies and of the cluster, and who gets the next free slot.
//!
//! One engine for all images, so that limits hold whatever is due. Slots go to the lowest priority number first, and
//! round robin between images of equal priority. A policy's delay is counted from the latest start of an image, also
//! where that pull is over already, and a start fills all free slots.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use fairlead_api::drop::{FailureBackoff, PullPolicySpec};
use fairlead_domain::backoff::Backoff;
use fairlead_domain::duration::Duration as Text;
use jiff::Timestamp;

use super::time::after;

/// Used where a policy says zero.
const DEFAULT_DELAY: Duration = Duration::from_secs(10);

/// From this many failures in a row on that have to do with the image and not with a node, it is tried on one node at a
/// time: all others would meet the same. Where a node holds the image, half of those that pull at once must have failed
/// if that is more: bad nodes fail at once, and all together before a good one is done.
const SUSPICIOUS_FAILURES: u32 = 5;

/// The pace of one image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pace {
    pub nodes: usize,
    /// For all images of the policy together.
    pub pulls: Option<usize>,
    pub delay: Duration,
    backoff: FailureBackoff,
    pub repull: Option<Duration>,
}

impl Pace {
    /// Without a policy the defaults of one hold.
    pub fn new(policy: Option<&PullPolicySpec>) -> Self {
        let defaults = PullPolicySpec::default();
        let policy = policy.unwrap_or(&defaults);
        let count = |number: i32| usize::try_from(number).unwrap_or(1).max(1);
        let delay = policy.min_delay_between_pulls.as_std();
        Self {
            nodes: count(policy.max_concurrent_nodes),
            pulls: policy.max_concurrent_pulls.map(count),
            delay: if delay.is_zero() { DEFAULT_DELAY } else { delay },
            backoff: policy.failure_backoff.clone().unwrap_or_default(),
            repull: policy.repull_interval.as_ref().map(Text::as_std).filter(|span| !span.is_zero()),
        }
    }

    /// The pause after so many failures in a row: the first one, doubled with every further failure up to the longest.
    pub fn backoff(&self, failures: u32) -> Duration {
        let (initial, max) = (self.backoff.initial.as_std(), self.backoff.max.as_std());
        match failures {
            0 | 1 => initial,
            _ => Backoff::new(initial, max).plain(failures - 1),
        }
    }

    /// From when on a node is tried again after so many failures in a row, the last of them at this time.
    pub fn retry_at(&self, failed_at: Timestamp, failures: u32) -> Timestamp {
        after(failed_at, self.backoff(failures))
    }
}

/// Why no pull of an image starts now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Until a pull of this image ends.
    Nodes,
    /// Until this time.
    Delay(Timestamp),
}

/// What is under way of one image.
#[derive(Debug, Clone, Copy, Default)]
pub struct Progress {
    /// Pods that are pulling it.
    pub active: usize,
    pub last_start: Option<Timestamp>,
    /// Failures in a row, on whatever nodes, that have to do with the image itself.
    pub image_failures: u32,
    pub last_failure: Option<Timestamp>,
    /// A node holds it.
    pub is_held: bool,
    /// A node waits for it that lacks it, and on which it has not failed yet.
    pub fresh: bool,
}

/// Pulls of an image that may start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slots {
    pub count: usize,
    /// Only onto nodes that lack the image, and on which it has not failed yet.
    pub fresh_only: bool,
}

/// How many pulls of an image may start now, as far as the image itself is concerned.
pub fn slots(pace: &Pace, progress: Progress, now: Timestamp) -> Result<Slots, Wait> {
    let half = u32::try_from(pace.nodes / 2).unwrap_or(u32::MAX);
    let suspicious = if progress.is_held { SUSPICIOUS_FAILURES.max(half) } else { SUSPICIOUS_FAILURES };
    let further_failures = progress.image_failures.checked_sub(suspicious);
    let nodes = if further_failures.is_some() { 1 } else { pace.nodes };
    let free = nodes.saturating_sub(progress.active);
    if free == 0 {
        return Err(Wait::Nodes);
    }
    let spaced = progress.last_start.map(|start| after(start, pace.delay));
    let paused = further_failures.and_then(|further| {
        let pause = pace.backoff(further.saturating_add(1));
        progress.last_failure.map(|failure| after(failure, pause))
    });
    // Once all good nodes hold the image, only bad ones fail, in any number. A node that joins does not wait for them.
    let fresh_only = paused > Some(now) && progress.is_held && progress.fresh;
    let earliest = if fresh_only { spaced } else { spaced.max(paused) };
    match earliest {
        Some(earliest) if earliest > now => Err(Wait::Delay(earliest)),
        _ => Ok(Slots { count: free, fresh_only }),
    }
}

/// The limits that images share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caps {
    /// Pods at once on one node.
    pub per_node: usize,
    /// Pods at once in the cluster.
    pub total: Option<usize>,
}

/// Pods that are pulling now, counted in the ways in which they are limited.
#[derive(Debug, Default)]
pub struct Load {
    total: usize,
    by_policy: HashMap<Arc<str>, usize>,
    by_node: HashMap<Arc<str>, usize>,
}

impl Load {
    /// One more Pod, on the node with this UID.
    pub fn add(&mut self, policy: Option<&Arc<str>>, node: &Arc<str>) {
        self.total += 1;
        if let Some(policy) = policy {
            *self.by_policy.entry(Arc::clone(policy)).or_default() += 1;
        }
        self.add_to_node(node);
    }

    /// One more Pod that counts for its node only.
    pub fn add_to_node(&mut self, node: &Arc<str>) {
        *self.by_node.entry(Arc::clone(node)).or_default() += 1;
    }

    /// Whether the cluster and the policy let one more Pod start.
    pub fn has_room(&self, caps: &Caps, policy: Option<(&Arc<str>, usize)>) -> bool {
        let of_policy =
            policy.is_none_or(|(name, most)| self.by_policy.get(name).is_none_or(|now| *now < most));
        caps.total.is_none_or(|most| self.total < most) && of_policy
    }

    pub fn is_full(&self, caps: &Caps, node: &str) -> bool {
        self.by_node.get(node).is_some_and(|now| *now >= caps.per_node)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    fn count(pace: &Pace, progress: Progress, now: Timestamp) -> Result<usize, Wait> {
        slots(pace, progress, now).map(|slots| slots.count)
    }

    #[test]
    fn pauses_double_up_to_the_longest() {
        let pace = Pace::new(None);
        let pauses: Vec<u64> = (0..7).map(|failures| pace.backoff(failures).as_secs()).collect();
        assert_eq!(pauses, [30, 30, 60, 120, 240, 300, 300]);
        assert_eq!(pace.backoff(u32::MAX).as_secs(), 300);
        assert_eq!(pace.retry_at(at(0), 3), at(120));

        let text = |text: &str| text.parse::<Text>().unwrap();
        let backoff = FailureBackoff { initial: text("10m"), max: text("1m") };
        let policy = PullPolicySpec { failure_backoff: Some(backoff), ..PullPolicySpec::default() };
        let pauses: Vec<u64> =
            (0..4).map(|failures| Pace::new(Some(&policy)).backoff(failures).as_secs()).collect();
        assert_eq!(pauses, [600, 600, 60, 60], "an initial pause above the longest is used once");
    }

    #[test]
    fn zero_and_nothing_mean_the_defaults() {
        let policy = PullPolicySpec {
            min_delay_between_pulls: Text::ZERO,
            repull_interval: Some(Text::ZERO),
            max_concurrent_nodes: 0,
            ..PullPolicySpec::default()
        };
        assert_eq!(Pace::new(Some(&policy)), Pace::new(None));
        let pace = Pace::new(None);
        assert_eq!((pace.nodes, pace.pulls, pace.repull), (1, None, None));
        assert_eq!(pace.delay, Duration::from_secs(10));
    }

    #[test]
    fn free_slots_start_together_and_the_delay_counts_from_the_latest_start() {
        let policy = PullPolicySpec { max_concurrent_nodes: 3, ..PullPolicySpec::default() };
        let pace = Pace::new(Some(&policy));
        let progress = |active, last_start: Option<i64>| Progress {
            active,
            last_start: last_start.map(at),
            ..Progress::default()
        };
        for (active, last_start, expected) in [
            (0, None, Ok(3)),
            (1, None, Ok(2)),
            (3, None, Err(Wait::Nodes)),
            (9, None, Err(Wait::Nodes)),
            (0, Some(0), Err(Wait::Delay(at(10)))),
            (2, Some(-3), Err(Wait::Delay(at(7)))),
            (2, Some(-10), Ok(1)),
        ] {
            assert_eq!(
                count(&pace, progress(active, last_start), at(0)),
                expected,
                "{active} {last_start:?}"
            );
        }
        let single = Pace::new(None);
        assert_eq!(
            count(&single, progress(0, Some(-9)), at(0)),
            Err(Wait::Delay(at(1))),
            "also with one node"
        );
    }

    #[test]
    fn an_image_that_fails_everywhere_is_tried_on_one_node_at_a_time() {
        let policy = PullPolicySpec { max_concurrent_nodes: 50, ..PullPolicySpec::default() };
        let pace = Pace::new(Some(&policy));
        let progress = |image_failures, active| Progress {
            active,
            image_failures,
            last_failure: Some(at(0)),
            ..Progress::default()
        };
        assert_eq!(count(&pace, progress(4, 0), at(1)), Ok(50));
        assert_eq!(count(&pace, progress(5, 0), at(1)), Err(Wait::Delay(at(30))));
        assert_eq!(count(&pace, progress(6, 0), at(31)), Err(Wait::Delay(at(60))));
        assert_eq!(count(&pace, progress(6, 0), at(60)), Ok(1));
        assert_eq!(count(&pace, progress(6, 1), at(60)), Err(Wait::Nodes));
        let held = |image_failures| Progress { is_held: true, ..progress(image_failures, 0) };
        assert_eq!(count(&pace, held(24), at(1)), Ok(50), "other nodes got it");
        assert_eq!(count(&pace, held(25), at(1)), Err(Wait::Delay(at(30))));
        assert_eq!(count(&Pace::new(None), held(5), at(1)), Err(Wait::Delay(at(30))));
        let joined = |active| Progress { fresh: true, active, ..held(25) };
        let one = Slots { count: 1, fresh_only: true };
        assert_eq!(slots(&pace, joined(0), at(1)), Ok(one), "a node that joins is tried");
        assert_eq!(slots(&pace, joined(1), at(1)), Err(Wait::Nodes), "one at a time");
        assert_eq!(slots(&pace, joined(0), at(30)), Ok(Slots { fresh_only: false, ..one }));
        let without = Progress { fresh: true, ..progress(5, 0) };
        assert_eq!(slots(&pace, without, at(1)), Err(Wait::Delay(at(30))), "no node has it");
    }

    #[test]
    fn shared_limits_hold_for_node_policy_and_cluster() {
        let caps = Caps { per_node: 2, total: Some(3) };
        let [policy, one, other]: [Arc<str>; 3] = ["p", "n1", "n2"].map(Into::into);
        let mut load = Load::default();
        load.add(Some(&policy), &one);
        assert!(!load.is_full(&caps, "n1") && load.has_room(&caps, Some((&policy, 2))));
        load.add(Some(&policy), &one);
        assert!(load.is_full(&caps, "n1") && !load.is_full(&caps, "n2"));
        assert!(!load.has_room(&caps, Some((&policy, 2))), "the policy has two");
        assert!(load.has_room(&caps, None), "images without a policy have no cap of one");
        load.add(None, &other);
        assert!(!load.has_room(&caps, None), "the cluster has three");
    }
}
