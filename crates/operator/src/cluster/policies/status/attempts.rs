//! What was tried already.
//!
//! A write that succeeded shows in the watch a little later; until then it must not be repeated. And one that changes
//! nothing, because it is refused or because somebody else writes the opposite, is repeated less and less often: nobody
//! wins an argument with the API server by speaking faster.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use fairlead_api::conditions::ConditionStatus;
use fairlead_plan::policy_status::Status;
use fairlead_plan::routing::PolicyKind;
use tokio::time::Instant;

use super::super::compiled::Name;
use crate::platform::api_error::{Class, Failure};

/// Time for a write to come back through the watch, also through one that has to be begun anew.
const SETTLES: Duration = Duration::from_secs(10);
const LONGEST: Duration = Duration::from_mins(5);

/// A right that is missing is missing for every object of the kind.
const DENIED_FOR: Duration = Duration::from_mins(1);

#[derive(Debug)]
struct Attempt {
    uid: String,
    essence: u64,
    times: u32,
    not_before: Instant,
}

#[derive(Debug, Default)]
pub(super) struct Attempts {
    open: BTreeMap<Name, Attempt>,
    denied: BTreeMap<PolicyKind, Instant>,
    /// What was refused and told already.
    told: HashSet<(Name, u64)>,
}

impl Attempts {
    /// Whether to write this now.
    pub(super) fn may(&self, name: &Name, uid: &str, status: &Status, now: Instant) -> bool {
        let denied = self.denied.get(&name.kind).is_some_and(|until| now < *until);
        let waits = self
            .open
            .get(name)
            .is_some_and(|one| one.uid == uid && one.essence == essence(status) && now < one.not_before);
        !denied && !waits
    }

    /// Takes note of an attempt and tells about its failure, once.
    pub(super) fn note(
        &mut self,
        name: &Name,
        uid: &str,
        status: &Status,
        failure: Option<&Failure>,
        now: Instant,
    ) {
        let essence = essence(status);
        match failure {
            Some(failure) if failure.class == Class::Denied => {
                if self.denied.insert(name.kind, now + DENIED_FOR).is_none() {
                    tracing::error!(
                        kind = name.kind.name(), error = %failure,
                        "not allowed to write what is wrong with objects of this kind; grant patch on its status"
                    );
                }
                return;
            }
            Some(failure) if failure.class == Class::Unavailable => {
                tracing::debug!(object = %name, error = %failure, "status could not be written; trying again");
                return;
            }
            // It is gone, or another one of the same name; the watch will say so.
            Some(failure) if matches!(failure.class, Class::Absent | Class::Conflict) => {
                tracing::debug!(object = %name, error = %failure, "status was not written");
            }
            Some(failure) => {
                if self.told.insert((name.clone(), essence)) {
                    tracing::warn!(object = %name, error = %failure, "status could not be written");
                }
            }
            None => drop(self.denied.remove(&name.kind)),
        }
        let before = self.open.get(name).filter(|one| one.uid == uid && one.essence == essence);
        let times = before.map_or(0, |one| one.times.saturating_add(1));
        let pause = SETTLES.saturating_mul(1 << times.min(10)).min(LONGEST);
        let attempt = Attempt { uid: uid.to_owned(), essence, times, not_before: now + pause };
        self.open.insert(name.clone(), attempt);
    }

    /// Forgets all objects but these: the others are as they should be.
    pub(super) fn keep(&mut self, wanted: &BTreeSet<&Name>) {
        self.open.retain(|name, _| wanted.contains(name));
        self.told.retain(|(name, _)| wanted.contains(name));
    }

    /// When something may be written that had to wait at `begun`, `latest` at the latest.
    pub(super) fn next_due(&self, begun: Instant, latest: Instant) -> Instant {
        let open = self.open.values().map(|one| one.not_before);
        let waiting = open.chain(self.denied.values().copied()).filter(|due| *due > begun);
        waiting.fold(latest, Instant::min)
    }
}

/// What a status says, without since when.
fn essence(status: &Status) -> u64 {
    let mut hasher = DefaultHasher::new();
    (status.observed_generation, status.upstream_count).hash(&mut hasher);
    for one in &status.conditions {
        let holds = one.status == ConditionStatus::True;
        (&one.type_, holds, &one.reason, &one.message, one.observed_generation).hash(&mut hasher);
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use fairlead_api::conditions::{Finding, merge};
    use jiff::Timestamp;

    use super::*;
    use crate::cluster::state::Key;

    fn name() -> Name {
        let key = Key { namespace: "shop".into(), name: "set".into() };
        Name { kind: PolicyKind::ReplicatedImageSet, key }
    }

    fn status(message: &str, second: i64) -> Status {
        let findings = [Finding::new("Ready", false, "InvalidSpec", message)];
        let now = Timestamp::from_second(second).unwrap();
        let conditions = merge(&[], &findings, Some(1), now);
        Status { observed_generation: Some(1), upstream_count: Some(0), conditions }
    }

    #[test]
    fn the_same_again_waits_longer_each_time_and_news_do_not() {
        let mut attempts = Attempts::default();
        let (name, mut now) = (name(), Instant::now());
        for seconds in [10, 20, 40, 80, 160, 300, 300] {
            assert!(attempts.may(&name, "u", &status("a", seconds), now), "after the pause");
            attempts.note(&name, "u", &status("a", seconds), None, now);
            let due = attempts.next_due(now, now + Duration::from_hours(1));
            assert_eq!((due - now).as_secs(), u64::try_from(seconds).unwrap());
            assert!(!attempts.may(&name, "u", &status("a", 0), due - Duration::from_millis(1)));
            now = due;
        }
        attempts.note(&name, "u", &status("a", 0), None, now);
        assert!(attempts.may(&name, "u", &status("b", 0), now), "it says something else");
        assert!(attempts.may(&name, "another", &status("a", 0), now), "it is another object");
        attempts.keep(&BTreeSet::new());
        assert!(attempts.may(&name, "u", &status("a", 0), now), "it was as it should be in between");
    }

    #[test]
    fn a_missing_right_stops_its_kind_only() {
        let mut attempts = Attempts::default();
        let (name, now) = (name(), Instant::now());
        let denied = Failure::from(&kube::core::Status::failure("no", "Forbidden").with_code(403));
        attempts.note(&name, "u", &status("a", 0), Some(&denied), now);
        assert!(!attempts.may(&name, "u", &status("b", 0), now + DENIED_FOR / 2));
        let (later, latest) = (now + DENIED_FOR, now + 2 * DENIED_FOR);
        assert!(attempts.may(&name, "u", &status("a", 0), later));
        assert_eq!(attempts.next_due(now, latest), later);
        assert_eq!(attempts.next_due(later, latest), latest, "what is over is not waited for");
        let other = Name { kind: PolicyKind::ImageSetMirror, ..name };
        assert!(attempts.may(&other, "u", &status("a", 0), now));
    }
}
