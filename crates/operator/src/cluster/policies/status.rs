//! Writes what each policy object is told about itself, on the lease holder alone.
//!
//! `fairlead_plan::policy_status` decides; nothing is written that is stored already. Writes are paced, so that a thousand
//! new objects do not become a thousand requests at once; broken objects go first, since somebody waits for the reason.

mod attempts;
mod write;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use fairlead_api::conditions::{Condition, ConditionStatus};
use fairlead_plan::policy_status::{self, Outcome, Status, Stored};
use fairlead_plan::routing::{PolicyId, PolicyKind};
use jiff::Timestamp;
use kube::Client;
use tokio::sync::watch;
use tokio::time::Instant;

use self::attempts::Attempts;
use self::write::Writer;
use super::compiled::{Book, Name, State};
use super::kinds::{PolicyObject, Sources};
use super::{Metrics, Policies};
use crate::cluster::state::{Key, Store};
use crate::cluster::watch::Resources;
use crate::cluster::watch::backoff::Backoff;
use crate::controller::rate_limit::{Pace, Rate};
use crate::controller::status::Manner;
use crate::platform::api_error::Class;
use crate::platform::leader::{Leader, Term};

/// How fast statuses are written.
pub const RATE: Rate = Rate { per_second: 20, burst: 40 };

/// Nobody tells when a Secret appears or goes; this is how long its absence stays in a status at most.
const LOOK_AGAIN: Duration = Duration::from_secs(15);

/// The shortest time between two looks at all objects.
const SHORTEST_INTERVAL: Duration = Duration::from_millis(200);

/// Writes before all objects are looked at again, so that what broke meanwhile does not wait for everything before it.
const PART: usize = 100;

/// The Secrets of a policy that cannot be used: for each a text that names it, the reason and the remedy.
type SecretProblems = Arc<dyn Fn(&PolicyId) -> Vec<String> + Send + Sync>;

/// Places of one image that a policy offers and that hold different digests; none while that is not known.
type Differences = Arc<dyn Fn(&PolicyId) -> Option<Vec<String>> + Send + Sync>;

/// The writer of statuses.
pub struct Statuses {
    policies: Policies,
    sources: Sources,
    secrets: SecretProblems,
    differences: Differences,
    /// Tells when what `secrets` answers may have changed.
    word: Option<watch::Receiver<u64>>,
    writer: Writer,
    rate: Rate,
    metrics: Metrics,
}

impl std::fmt::Debug for Statuses {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Statuses").field("rate", &self.rate).finish_non_exhaustive()
    }
}

/// Waits for word; for ever where none comes.
async fn next(word: &mut Option<watch::Receiver<u64>>) {
    let heard = match word {
        Some(word) => word.changed().await.is_ok(),
        None => false,
    };
    if !heard {
        std::future::pending::<()>().await;
    }
}

/// One status that should be written.
struct Draft {
    name: Name,
    uid: String,
    manner: Manner,
    status: Status,
}

impl Draft {
    fn is_bad_news(&self) -> bool {
        self.status.conditions.iter().any(|one| one.status != ConditionStatus::True)
    }
}

/// How a round of writes ended.
enum Round {
    Done,
    /// There is more to write.
    Unfinished,
    /// The API server does not answer.
    Unavailable,
}

impl Statuses {
    pub fn new(
        client: Client,
        resources: &Resources,
        policies: Policies,
        secrets: impl Fn(&PolicyId) -> Vec<String> + Send + Sync + 'static,
        rate: Rate,
        metrics: Metrics,
    ) -> Self {
        Self {
            policies,
            sources: Sources::from(resources),
            secrets: Arc::new(secrets),
            differences: Arc::new(|_| None),
            word: None,
            writer: Writer::new(client),
            rate,
            metrics,
        }
    }

    /// Looks again at once when there is word that something changed about Secrets.
    #[must_use]
    pub fn heeding(self, word: watch::Receiver<u64>) -> Self {
        Self { word: Some(word), ..self }
    }

    /// Says in each policy which of its places hold different digests.
    #[must_use]
    pub fn comparing(
        self,
        differences: impl Fn(&PolicyId) -> Option<Vec<String>> + Send + Sync + 'static,
    ) -> Self {
        Self { differences: Arc::new(differences), ..self }
    }

    /// Writes whenever this replica leads, until the election is over.
    pub async fn run(self, leader: Leader) {
        let this = &self;
        leader.while_leading(|term| async move { this.lead(&term).await }).await;
    }

    async fn lead(&self, term: &Term) {
        // Boxed, because the task would otherwise carry a large future along while another replica leads.
        term.token().run_until_cancelled(Box::pin(self.keep_written(term))).await;
    }

    async fn keep_written(&self, term: &Term) {
        let mut objects = self.sources.changes();
        let mut compiled = self.policies.changes();
        let mut word = self.word.clone();
        let mut pace = Pace::new(self.rate);
        let mut attempts = Attempts::default();
        let mut backoff = Backoff::default();
        loop {
            let begun = Instant::now();
            match self.round(term, &mut pace, &mut attempts).await {
                Round::Unavailable => tokio::time::sleep(backoff.next(fastrand::f64())).await,
                Round::Unfinished => backoff.reset(),
                Round::Done => {
                    backoff.reset();
                    let again = attempts.next_due(begun, begun + LOOK_AGAIN);
                    tokio::select! {
                        () = objects.next() => {}
                        () = compiled.next() => {}
                        () = next(&mut word) => {}
                        () = tokio::time::sleep_until(again) => {}
                    }
                    tokio::time::sleep_until(begun + SHORTEST_INTERVAL).await;
                }
            }
        }
    }

    async fn round(&self, term: &Term, pace: &mut Pace, attempts: &mut Attempts) -> Round {
        let mut drafts = self.drafts(attempts);
        // The sort is stable, and keeps the order of kinds and names.
        drafts.sort_by_key(|draft| !draft.is_bad_news());
        let unfinished = drafts.len() > PART;
        for draft in drafts.into_iter().take(PART) {
            pace.turn().await;
            // The object may have changed while others were written.
            let Some(draft) = self.draft(&self.policies.book(), &draft.name) else {
                continue;
            };
            if !attempts.may(&draft.name, &draft.uid, &draft.status, Instant::now()) {
                continue;
            }
            if !term.holds() {
                return Round::Done;
            }
            let result = self.writer.write(&draft).await;
            self.metrics.wrote(result.is_ok());
            let failure = result.err();
            attempts.note(&draft.name, &draft.uid, &draft.status, failure.as_ref(), Instant::now());
            if failure.is_some_and(|failure| failure.class == Class::Unavailable) {
                return Round::Unavailable;
            }
        }
        if unfinished { Round::Unfinished } else { Round::Done }
    }

    /// Everything that should be written now.
    fn drafts(&self, attempts: &mut Attempts) -> Vec<Draft> {
        let book = self.policies.book();
        let now = Instant::now();
        let wanted: Vec<_> = book.entries.keys().filter_map(|name| self.draft(&book, name)).collect();
        let open: BTreeSet<_> = wanted.iter().map(|draft| &draft.name).collect();
        attempts.keep(&open);
        wanted.into_iter().filter(|draft| attempts.may(&draft.name, &draft.uid, &draft.status, now)).collect()
    }

    /// What should be written about one object, if it is other than what is stored.
    fn draft(&self, book: &Book, name: &Name) -> Option<Draft> {
        match name.kind {
            PolicyKind::ClusterImageSetMirror => self.draft_in(book, name, &self.sources.cluster_mirrors),
            PolicyKind::ImageSetMirror => self.draft_in(book, name, &self.sources.mirrors),
            PolicyKind::ClusterReplicatedImageSet => self.draft_in(book, name, &self.sources.cluster_sets),
            PolicyKind::ReplicatedImageSet => self.draft_in(book, name, &self.sources.sets),
        }
    }

    fn draft_in<K: PolicyObject>(&self, book: &Book, name: &Name, store: &Store<K>) -> Option<Draft> {
        let snapshot = store.snapshot();
        let key: &Key = &name.key;
        let now = Timestamp::now();
        let entry = book.entries.get(name)?;
        if let Some(malformed) = snapshot.malformed.get(key) {
            if !entry.is_of(&malformed.uid, malformed.generation) {
                return None;
            }
            let conditions = &malformed.conditions;
            let stored = Stored { generation: malformed.generation, conditions, ..Stored::default() };
            let outcome = Outcome::Unreadable { error: &malformed.error };
            let status = policy_status::wanted(name.kind, &outcome, None, &stored, now)?;
            let manner = Manner::Replace {
                version: malformed.resource_version.clone(),
                others: others(conditions, &status),
            };
            return Some(Draft { name: name.clone(), uid: malformed.uid.clone(), manner, status });
        }
        let object = snapshot.objects.get(key)?;
        let metadata = object.meta();
        let uid = metadata.uid.clone().unwrap_or_default();
        // One that is not compiled yet has its turn when it is.
        if !entry.is_of(&uid, metadata.generation) {
            return None;
        }
        let (mut secrets, differences) = match &entry.state {
            State::Compiled(policy) => ((self.secrets)(policy.id()), (self.differences)(policy.id())),
            State::Refused(_) | State::Crashed => (Vec::new(), None),
            State::Unreadable(_) => return None,
        };
        secrets.sort();
        let outcome = entry.state.outcome(&secrets);
        let status =
            policy_status::wanted(name.kind, &outcome, differences.as_deref(), &object.stored(), now)?;
        Some(Draft { name: name.clone(), uid, manner: Manner::Apply, status })
    }
}

/// Conditions that are not ours.
fn others(conditions: &[Condition], status: &Status) -> Vec<Condition> {
    let ours = |type_: &str| status.conditions.iter().any(|own| own.type_ == type_);
    conditions.iter().filter(|condition| !ours(&condition.type_)).cloned().collect()
}
