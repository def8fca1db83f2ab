//! Compares the places of images that Pods ask for, on the lease holder alone, so that a policy can say which of its
//! places hold different digests, and the inventory which workloads are concerned.
//!
//! Admission sees only the places that it has to ask. The records on Pods tell which images have several; these are
//! asked for here, a few at a time, with the pull secrets of the Pod. `fairlead_plan::consistency` decides what to look
//! at and what differs.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use fairlead_api::names;
use fairlead_domain::selector::PodFacts;
use fairlead_domain::verdict::Verdict;
use fairlead_plan::admission;
use fairlead_plan::consistency::{Checks, ImageKey, Look, compare};
use fairlead_plan::pod_record::Record;
use fairlead_plan::routing::{PolicyId, Rules};
use futures::{StreamExt, future::join_all, stream};
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::cluster::state::{Changes, PodEntry};
use crate::cluster::usage::{AnnotationsOf, LabelsOf};
use crate::context::Context;
use crate::controller::{Broken, Controller};
use crate::platform::leader::Term;

/// How often new Pods are looked for.
const INTERVAL: Duration = Duration::from_secs(2);

/// Images that are looked at in one interval, and at once.
const MOST: usize = 32;
const AT_ONCE: usize = 4;

/// Time for all places of one image.
const PATIENCE: Duration = Duration::from_secs(10);

/// Pull policies change the order of places, which does not matter here.
const PULL_POLICY: &str = "IfNotPresent";

/// What is known of places that differ, for the statuses of policies.
pub struct Consistency {
    context: Arc<Context>,
    checks: Mutex<Checks<Arc<PodEntry>>>,
}

impl fmt::Debug for Consistency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Consistency").finish_non_exhaustive()
    }
}

/// The controller.
#[derive(Debug)]
pub struct ConsistencyChecks {
    setup: Arc<Consistency>,
    /// UIDs of Pods whose record was read, with the images in it that have several places.
    read: HashMap<Arc<str>, Vec<ImageKey>>,
}

impl Controller for ConsistencyChecks {
    const NAME: &'static str = "comparison of places";
    type Setup = Consistency;

    /// What is not known yet must not be taken for something that agrees.
    fn waits_for(setup: &Consistency) -> Option<String> {
        setup.context.awaits_routing()
    }

    fn changes(_setup: &Consistency) -> Vec<Changes> {
        Vec::new()
    }

    async fn begin(setup: &Arc<Consistency>, _term: &Term) -> Result<Self, Broken> {
        Ok(Self { setup: setup.clone(), read: HashMap::new() })
    }

    async fn round(&mut self, _term: &Term) -> Result<Instant, Broken> {
        let Self { setup, read } = self;
        setup.observe(read);
        let due = setup.checks.lock().due(MOST, now());
        if due.is_empty() {
            setup.checks.lock().idle();
        }
        let looks = due.into_iter().map(|(key, pod)| {
            let setup = setup.clone();
            async move {
                let look = setup.look(&key, &pod).await;
                setup.checks.lock().looked(&key, look, now());
            }
        });
        stream::iter(looks).buffer_unordered(AT_ONCE).collect::<()>().await;
        Ok(Instant::now() + INTERVAL)
    }

    /// What was learnt is forgotten: while another replica leads, nothing is looked at.
    fn end(setup: &Consistency) {
        *setup.checks.lock() = Checks::default();
    }
}

impl Consistency {
    pub fn new(context: Arc<Context>) -> Self {
        Self { context, checks: Mutex::default() }
    }

    /// What is known against a policy; nothing before this replica has looked at everything.
    pub fn of(&self, policy: &PolicyId) -> Option<Vec<String>> {
        self.checks.lock().of(policy)
    }

    /// What differs of each image that was looked at, by namespace.
    pub fn compared(&self) -> BTreeMap<Arc<str>, BTreeMap<Arc<str>, Vec<String>>> {
        self.checks.lock().compared()
    }

    /// Takes up the images of Pods whose record was not read yet.
    fn observe(&self, read: &mut HashMap<Arc<str>, Vec<ImageKey>>) {
        let is_asked = |pod: &PodEntry| !pod.deleting && pod.annotation(names::fairlead::ROUTES).is_some();
        let recorded = self.context.resources.pods.select(is_asked);
        let present: HashSet<&Arc<str>> = recorded.iter().map(|pod| &pod.uid).collect();
        let before = read.len();
        read.retain(|uid, _| present.contains(uid));
        let some_went = read.len() < before;
        let mut checks = self.checks.lock();
        for pod in &recorded {
            if read.contains_key(&pod.uid) {
                continue;
            }
            let images = several_places(pod);
            for key in &images {
                checks.asked(key.clone(), pod.clone(), pod.created);
            }
            read.insert(pod.uid.clone(), images);
        }
        if some_went {
            let asked: BTreeSet<&ImageKey> = read.values().flatten().collect();
            checks.keep(|key| asked.contains(key));
        }
    }

    /// Asks all places of an image.
    async fn look(&self, key: &ImageKey, pod: &PodEntry) -> Look {
        let index = self.context.policies.current();
        let planned = {
            let (labels, annotations) = (LabelsOf(&pod.labels), AnnotationsOf(&pod.annotations));
            let facts = PodFacts { namespace: &key.namespace, labels: &labels, annotations: &annotations };
            let foreign = |source: &_, copy: &_| self.context.claims.refuses(source, copy, &index);
            let (policies, rules) = (index.for_pod(&facts), Rules::default());
            admission::plan(&policies, &key.image, None, Some(PULL_POLICY), &rules, foreign)
        };
        let Ok(places) = planned.places else { return Look::default() };
        if places.original().digest().is_some() || !places.needs_probe() {
            return Look::default();
        }
        let deadline = Instant::now() + PATIENCE;
        let keys = self.context.secrets.of_pod(pod, deadline).await;
        let asked = places.list().iter().map(|place| {
            let credentials = keys.credentials(&place.reference);
            async move {
                let verdicts = self.context.verdicts.caused_by(place.cause());
                verdicts.recall(&place.reference, &credentials, &key.namespace, deadline).await
            }
        });
        let verdicts = join_all(asked).await;
        let digests: Vec<_> = verdicts.iter().map(Verdict::digest).collect();
        compare(&places, &digests, |pair| self.context.claims.has_pair(pair, &index))
    }
}

/// The images of a Pod that have several places.
fn several_places(pod: &PodEntry) -> Vec<ImageKey> {
    let record = pod.annotation(names::fairlead::ROUTES).and_then(|record| Record::parse(record));
    let Some(record) = record else { return Vec::new() };
    let asked = pod.places().filter_map(|(place, image)| {
        let route = record.images.get(&place.key())?;
        let several = route.used == image && !route.alternatives.is_empty();
        several.then(|| ImageKey { namespace: pod.key.namespace.clone(), image: route.asked.as_str().into() })
    });
    asked.collect()
}

fn now() -> i64 {
    Timestamp::now().as_second()
}
