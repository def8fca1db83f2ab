//! Compares the places of images that new Pods ask for, on the lease holder alone, so that a policy can say which of
//! its places hold different digests.
//!
//! Admission sees only the places that it has to ask. The records on Pods tell which images have several; these are
//! asked for here, a few at a time, with the pull secrets of the Pod. `fairlead_plan::consistency` decides what to look
//! at and what differs.

use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fairlead_api::names;
use fairlead_domain::selector::PodFacts;
use fairlead_domain::verdict::Verdict;
use fairlead_plan::admission;
use fairlead_plan::consistency::{Checks, ImageKey, Look, compare, is_recent};
use fairlead_plan::pod_record::Record;
use fairlead_plan::routing::{PolicyId, Rules, SecretName};
use futures::{StreamExt, future::join_all, stream};
use jiff::Timestamp;
use tokio::time::{Instant, MissedTickBehavior};

use crate::admission::Surroundings;
use crate::cluster::state::{PodEntry, Pods};
use crate::cluster::usage::{AnnotationsOf, LabelsOf};
use crate::cluster::watch::Board;
use crate::platform::leader::Term;
use crate::registries::secrets::Keys;

/// How often new Pods are looked for.
const INTERVAL: Duration = Duration::from_secs(2);

/// Images that are looked at in one interval, and at once.
const MOST: usize = 32;
const AT_ONCE: usize = 4;

/// Time for all places of one image.
const PATIENCE: Duration = Duration::from_secs(10);

/// Pull policies change the order of places, which does not matter here.
const PULL_POLICY: &str = "IfNotPresent";

/// What must be known before anything is compared.
const KINDS: [&str; 5] = [
    "ClusterImageSetMirror",
    "ImageSetMirror",
    "ClusterReplicatedImageSet",
    "ReplicatedImageSet",
    "ImageLedger",
];

/// Cheap to clone.
#[derive(Clone)]
pub struct Consistency {
    around: Surroundings,
    pods: Pods,
    board: Arc<Board>,
    checks: Arc<Mutex<Checks<Arc<PodEntry>>>>,
}

impl fmt::Debug for Consistency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consistency").finish_non_exhaustive()
    }
}

impl Consistency {
    pub fn new(around: Surroundings, pods: Pods, board: Arc<Board>) -> Self {
        Self { around, pods, board, checks: Arc::default() }
    }

    /// What is known against a policy; nothing before this replica has looked at everything.
    pub fn of(&self, policy: &PolicyId) -> Option<Vec<String>> {
        self.lock().of(policy)
    }

    /// Works until the term ends. What was learnt is forgotten with it: while another replica leads, nothing is looked
    /// at.
    pub async fn run(self, term: Term) {
        *self.lock() = Checks::default();
        let ended = term.token().clone();
        // On the heap: what a pass keeps between requests would be carried by everything around it.
        ended.run_until_cancelled(Box::pin(self.work())).await;
        *self.lock() = Checks::default();
    }

    async fn work(&self) {
        let mut ticks = tokio::time::interval(INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut read = HashSet::new();
        loop {
            ticks.tick().await;
            // What is not known yet must not be taken for something that agrees.
            if !self.board.knows_pods_and(&KINDS) || !self.around.policies.is_up_to_date() {
                continue;
            }
            self.observe(&mut read);
            let due = self.lock().due(MOST, now());
            if due.is_empty() {
                self.lock().idle();
            }
            let looks = due.into_iter().map(|(key, pod)| async move {
                let look = self.look(&key, &pod).await;
                self.lock().looked(&key, look, now());
            });
            stream::iter(looks).buffer_unordered(AT_ONCE).collect::<()>().await;
        }
    }

    /// Takes up the images of Pods whose record was not read yet.
    fn observe(&self, read: &mut HashSet<Arc<str>>) {
        let now = now();
        let recent = self.pods.select(|pod| {
            is_recent(pod.created, now) && !pod.deleting && pod.annotation(names::fairlead::ROUTES).is_some()
        });
        let present: HashSet<&Arc<str>> = recent.iter().map(|pod| &pod.uid).collect();
        read.retain(|uid| present.contains(uid));
        for pod in &recent {
            if !read.insert(pod.uid.clone()) {
                continue;
            }
            let record = pod.annotation(names::fairlead::ROUTES).and_then(|record| Record::parse(record));
            let Some(record) = record else { continue };
            for (place, image) in pod.places() {
                let route = record.images.get(&place.key());
                let Some(route) = route.filter(|route| route.used == image && !route.alternatives.is_empty())
                else {
                    continue;
                };
                let key =
                    ImageKey { namespace: pod.key.namespace.clone(), image: route.asked.as_str().into() };
                self.lock().asked(key, pod.clone(), pod.created);
            }
        }
    }

    /// Asks all places of an image.
    async fn look(&self, key: &ImageKey, pod: &PodEntry) -> Look {
        let index = self.around.policies.current();
        let planned = {
            let (labels, annotations) = (LabelsOf(&pod.labels), AnnotationsOf(&pod.annotations));
            let facts = PodFacts { namespace: &key.namespace, labels: &labels, annotations: &annotations };
            admission::plan(&index.for_pod(&facts), &key.image, None, Some(PULL_POLICY), &Rules::default())
        };
        let Ok(mut places) = planned.places else { return Look::default() };
        places.withhold(|source, copy| self.around.claims.refuses(source, copy, &index));
        if places.original().digest().is_some() || !places.needs_probe() {
            return Look::default();
        }
        let deadline = Instant::now() + PATIENCE;
        let names = pod
            .pull_secrets
            .iter()
            .map(|name| SecretName { namespace: pod.key.namespace.clone(), name: name.clone() });
        let names: Vec<_> = names.collect();
        let reads = join_all(names.iter().map(|name| self.around.secrets.read(name, deadline))).await;
        let keys: Vec<_> = reads.iter().filter_map(|read| read.keys()).map(Arc::as_ref).collect();
        let asked = places.list().iter().map(|place| {
            let credentials = Keys::lookup(keys.iter().copied(), &place.reference.repository());
            async move {
                let verdicts = self.around.verdicts.caused_by(place.cause());
                verdicts.recall(&place.reference, &credentials, &key.namespace, deadline).await
            }
        });
        let verdicts = join_all(asked).await;
        let digests: Vec<_> = verdicts.iter().map(Verdict::digest).collect();
        compare(&places, &digests, |pair| self.around.claims.has_pair(pair, &index))
    }

    fn lock(&self) -> MutexGuard<'_, Checks<Arc<PodEntry>>> {
        self.checks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn now() -> i64 {
    Timestamp::now().as_second()
}
