//! What is wrong with the Secrets of each policy, for the policy's own condition.
//!
//! Found in two places: where Secrets are read, and where they are copied.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use fairlead_plan::pull_secrets::CopyPlace;
use fairlead_plan::routing::PolicyId;
use parking_lot::{Mutex, MutexGuard};
use tokio::time::Instant;

use crate::cluster::state::{Bell, Changes};

/// A failure to copy that was not seen again for so long is over: no Pod needs the copy any more.
const COPYING_COUNTS: Duration = Duration::from_mins(10);

/// Failures to copy that a status lists for one policy; a broken policy may fail in every namespace.
const MOST_TOLD: usize = 5;

type Copying = BTreeMap<CopyPlace, (Instant, String)>;

#[derive(Debug, Default)]
struct FoundProblems {
    reading: HashMap<Arc<PolicyId>, Vec<String>>,
    copying: HashMap<Arc<PolicyId>, Copying>,
}

/// Shared by what finds problems and what reports them.
#[derive(Debug, Clone, Default)]
pub struct Problems {
    state: Arc<Mutex<FoundProblems>>,
    changes: Arc<Bell>,
}

impl Problems {
    /// Sentences about the policy's Secrets, the same for as long as nothing changes.
    pub fn of(&self, policy: &PolicyId) -> Vec<String> {
        let state = self.lock();
        let mut all = state.reading.get(policy).cloned().unwrap_or_default();
        if let Some(copying) = state.copying.get(policy) {
            all.extend(copying.values().take(MOST_TOLD).map(|(_, text)| text.clone()));
            let more = copying.len().saturating_sub(MOST_TOLD);
            if more > 0 {
                all.push(format!("copies in {more} more namespaces failed"));
            }
        }
        all
    }

    /// Changes whenever the answer of [`Problems::of`] may have changed for some policy.
    pub fn changes(&self) -> Changes {
        self.changes.listen()
    }

    pub(super) fn replace_reading(&self, told: impl IntoIterator<Item = (Arc<PolicyId>, String)>) {
        let mut reading: HashMap<_, Vec<String>> = HashMap::new();
        for (policy, text) in told {
            reading.entry(policy).or_default().push(text);
        }
        self.change(|state| {
            let changed = state.reading != reading;
            state.reading = reading;
            changed
        });
    }

    /// Drops failures to copy that are over, and those of policies that are not among these.
    pub(super) fn keep_copying<'p>(&self, policies: impl IntoIterator<Item = &'p Arc<PolicyId>>) {
        let policies: HashSet<_> = policies.into_iter().collect();
        let now = Instant::now();
        self.change(|state| {
            let count = |state: &FoundProblems| state.copying.values().map(BTreeMap::len).sum::<usize>();
            let before = count(state);
            state.copying.retain(|policy, copying| {
                copying.retain(|_, (at, _)| now.saturating_duration_since(*at) < COPYING_COUNTS);
                policies.contains(policy) && !copying.is_empty()
            });
            before != count(state)
        });
    }

    /// A copy failed, or works again.
    pub(super) fn copying(&self, policy: &Arc<PolicyId>, place: &CopyPlace, problem: Option<String>) {
        self.change(|state| match problem {
            None => {
                let Some(copying) = state.copying.get_mut(policy) else { return false };
                let changed = copying.remove(place).is_some();
                if copying.is_empty() {
                    state.copying.remove(policy);
                }
                changed
            }
            Some(text) => {
                let copying = state.copying.entry(policy.clone()).or_default();
                let before = copying.insert(place.clone(), (Instant::now(), text.clone()));
                before.is_none_or(|(_, before)| before != text)
            }
        });
    }

    fn change(&self, change: impl FnOnce(&mut FoundProblems) -> bool) {
        let changed = change(&mut self.lock());
        if changed {
            self.changes.ring();
        }
    }

    fn lock(&self) -> MutexGuard<'_, FoundProblems> {
        self.state.lock()
    }
}

#[cfg(test)]
mod tests {
    use fairlead_plan::routing::PolicyKind;
    use futures::FutureExt;

    use super::*;

    fn policy(name: &str) -> Arc<PolicyId> {
        let kind = PolicyKind::ClusterImageSetMirror;
        Arc::new(PolicyId { kind, namespace: None, name: name.into(), uid: name.into() })
    }

    fn place(namespace: &str) -> CopyPlace {
        CopyPlace { namespace: namespace.into(), name: "kuik-pull".into() }
    }

    #[tokio::test(start_paused = true)]
    async fn problems_are_told_until_they_are_over() {
        let problems = Problems::default();
        let (a, b) = (policy("a"), policy("b"));
        let mut word = problems.changes();
        let mut changed = move || word.next().now_or_never().is_some();
        problems.replace_reading([(a.clone(), "missing".to_owned())]);
        assert!(changed());
        problems.replace_reading([(a.clone(), "missing".to_owned())]);
        assert!(!changed(), "the same again");
        problems.copying(&a, &place("shop"), Some("refused".to_owned()));
        assert_eq!(
            (problems.of(&a), problems.of(&b)),
            (vec!["missing".to_owned(), "refused".to_owned()], vec![])
        );
        problems.copying(&a, &place("shop"), None);
        problems.replace_reading([]);
        assert!(problems.of(&a).is_empty() && changed());

        for number in 0..9 {
            problems.copying(&a, &place(&number.to_string()), Some("refused".to_owned()));
        }
        assert_eq!(problems.of(&a).len(), MOST_TOLD + 1);
        tokio::time::advance(COPYING_COUNTS).await;
        problems.keep_copying([&a]);
        assert!(problems.of(&a).is_empty());
        problems.copying(&a, &place("shop"), Some("refused".to_owned()));
        problems.keep_copying([&b]);
        assert!(problems.of(&a).is_empty(), "the policy is gone");
    }
}
