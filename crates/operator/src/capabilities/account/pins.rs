//! Looks after `ImagePin`s: says in each whether the Pods of its revision run what is pinned, and removes those that
//! neither a Pod nor a revision needs. Owners take their pins along by themselves, unless they are deleted without
//! their dependents; and revisions of workloads that keep a history, as `StatefulSet`s do, come and go while their
//! owner stays.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use fairlead_api::conditions::{find, merge, types};
use fairlead_api::fairlead::{ImagePin, PinnedWorkload};
use fairlead_api::names;
use fairlead_plan::inventory::{DriftedRevision, RevisionDrift, currency};
use fairlead_plan::pinning::{self, Fate, GRACE_SECONDS, PodImage, PodImages};
use fairlead_plan::pod_record::{PodAnnotations, RecordedOriginals};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::ControllerRevision;
use kube::api::{DeleteParams, Preconditions};
use kube::{Api, ResourceExt};
use serde_json::json;
use tokio::time::Instant;

use super::inventory::DriftBoard;
use crate::cluster::state::{Changes, Key, PodEntry};
use crate::cluster::usage::LabelsOf;
use crate::context::Context;
use crate::controller::status::{Draft, Manner, ObjectId, StatusWriter};
use crate::controller::{Broken, Controller};
use crate::platform::api_error::{Class, Failure, LIMIT, within};
use crate::platform::leader::Term;

const FIELD_MANAGER: &str = "fairlead-pins";

/// A revision whose Pods are gone is looked for this often.
const LOOK_EVERY: Duration = Duration::from_mins(10);

/// Revisions that are looked for in one round. The next round follows soon.
const MOST_LOOKS: usize = 20;
const SOON: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub struct PinSetup {
    context: Arc<Context>,
    grace_seconds: i64,
    board: Arc<DriftBoard>,
}

impl PinSetup {
    pub fn new(context: Arc<Context>) -> Self {
        Self { context, grace_seconds: GRACE_SECONDS, board: Arc::default() }
    }

    /// The same with what the inventory finds.
    #[must_use]
    pub fn with_board(self, board: Arc<DriftBoard>) -> Self {
        Self { board, ..self }
    }

    /// The same with another age at which a pin without Pods may go.
    #[must_use]
    pub fn with_grace(self, grace_seconds: i64) -> Self {
        Self { grace_seconds, ..self }
    }
}

/// What one term knows.
#[derive(Debug)]
pub struct PinKeeper {
    setup: Arc<PinSetup>,
    statuses: StatusWriter,
    /// When the revision of a pin is looked for again, by UID of the pin.
    looks: HashMap<String, Instant>,
}

/// The Pods of revisions, by UID of the owner and revision.
type PodsByRevision = HashMap<(String, String), Vec<Arc<PodEntry>>>;

impl Controller for PinKeeper {
    const NAME: &'static str = "pins";
    /// Pods change all the time, and nothing here is urgent.
    const DEBOUNCE: Duration = Duration::from_secs(2);
    type Setup = PinSetup;

    fn waits_for(setup: &PinSetup) -> Option<String> {
        setup.context.board.awaits_pods_and(&["ImagePin"])
    }

    fn changes(setup: &PinSetup) -> Vec<Changes> {
        let resources = &setup.context.resources;
        vec![resources.image_pins.changes(), resources.pods.changes(), setup.board.changes()]
    }

    async fn begin(setup: &Arc<PinSetup>, _term: &Term) -> Result<Self, Broken> {
        let statuses = StatusWriter::new(setup.context.client.clone(), FIELD_MANAGER);
        Ok(Self { setup: setup.clone(), statuses, looks: HashMap::new() })
    }

    async fn round(&mut self, term: &Term) -> Result<Instant, Broken> {
        let begun = Instant::now();
        let resources = &self.setup.context.resources;
        let pins = resources.image_pins.snapshot();
        if pins.objects.is_empty() && pins.malformed.is_empty() {
            self.looks.clear();
            return Ok(begun + LOOK_EVERY);
        }
        let pods = pods_of(&self.setup.context, pins.objects.values().map(|pin| &pin.spec.workload));
        let mut drafts: Vec<_> = Draft::of_all_malformed(&pins).collect();
        let (mut looks, mut uids) = (0, HashSet::new());
        for (key, pin) in &pins.objects {
            let of_revision = pods.get(&(pin.spec.workload.uid.clone(), pin.spec.revision.clone()));
            let of_revision = of_revision.map(Vec::as_slice).unwrap_or_default();
            uids.extend(pin.uid());
            if looks < MOST_LOOKS && self.is_due(pin, of_revision.len(), begun) {
                looks += 1;
                if term.holds() && self.removed(key, pin).await {
                    continue;
                }
            }
            let revision = DriftedRevision {
                controller: pin.spec.workload.uid.clone(),
                revision: pin.spec.revision.clone(),
            };
            drafts.extend(draft(pin, of_revision, self.setup.board.of(&revision).as_deref()));
        }
        self.looks.retain(|uid, _| uids.contains(uid));
        self.statuses.write_all(drafts, term, begun).await;
        let next = if looks == MOST_LOOKS { SOON } else { LOOK_EVERY.min(self.grace()) };
        Ok(self.statuses.next_due(begun, begun + next))
    }
}

impl PinKeeper {
    fn grace(&self) -> Duration {
        Duration::from_secs(u64::try_from(self.setup.grace_seconds).unwrap_or_default()).max(SOON)
    }

    /// Whether the revision of a pin is to be looked for now.
    fn is_due(&self, pin: &ImagePin, pods: usize, now: Instant) -> bool {
        let looked = pin.uid().and_then(|uid| self.looks.get(&uid).copied());
        self.fate(pin, pods) != Fate::Stays && looked.is_none_or(|next| next <= now)
    }

    fn fate(&self, pin: &ImagePin, pods: usize) -> Fate {
        let created = pin.metadata.creation_timestamp.as_ref().map_or(i64::MAX, |time| time.0.as_second());
        let now = Timestamp::now().as_second();
        let is_owned = !pin.owner_references().is_empty();
        pinning::fate(&pin.spec, is_owned, created, pods, self.setup.grace_seconds, now)
    }

    /// Removes a pin whose revision is gone; and tells whether it did.
    async fn removed(&mut self, key: &Key, pin: &ImagePin) -> bool {
        let names = match self.fate(pin, 0) {
            Fate::GoesWithout(names) => Vec::from(names),
            Fate::Goes => Vec::new(),
            Fate::Stays => return false,
        };
        let uid = pin.uid().unwrap_or_default();
        self.looks.insert(uid.clone(), Instant::now() + LOOK_EVERY.min(self.grace()));
        let client = &self.setup.context.client;
        let revisions: Api<ControllerRevision> = Api::namespaced(client.clone(), &key.namespace);
        for name in names {
            match within(LIMIT, revisions.get_metadata_opt(&name)).await {
                Ok(None) => {}
                Ok(Some(revision)) => {
                    if revision.owner_references().iter().any(|owner| owner.uid == pin.spec.workload.uid) {
                        return false;
                    }
                }
                Err(failure) => {
                    tracing::warn!(pin = %key, revision = name, %failure, "a revision could not be looked for; its ImagePin stays");
                    return false;
                }
            }
        }
        let preconditions =
            Preconditions { uid: Some(uid), resource_version: pin.metadata.resource_version.clone() };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        let pins: Api<ImagePin> = Api::namespaced(client.clone(), &key.namespace);
        match within(LIMIT, pins.delete(&key.name, &params)).await {
            Ok(_) => {
                tracing::info!(pin = %key, "removed an ImagePin that neither a Pod nor a revision needs");
                true
            }
            Err(Failure { class: Class::Absent | Class::Conflict, .. }) => false,
            Err(failure) => {
                tracing::warn!(pin = %key, %failure, "an ImagePin that is not needed any more could not be removed");
                false
            }
        }
    }
}

fn pods_of<'p>(context: &Context, workloads: impl Iterator<Item = &'p PinnedWorkload>) -> PodsByRevision {
    let owners: HashSet<&str> = workloads.map(|workload| workload.uid.as_str()).collect();
    let is_owned = |pod: &PodEntry| pod.owner.as_ref().is_some_and(|owner| owners.contains(&*owner.uid));
    let mut by_revision = PodsByRevision::new();
    for pod in context.resources.pods.select(is_owned) {
        let controller = pod.owner.as_ref().map(|owner| owner.controller());
        if let Some(found) = pinning::revision(controller, &LabelsOf(&pod.labels)) {
            by_revision.entry((found.workload.uid, found.revision)).or_default().push(pod);
        }
    }
    by_revision
}

/// The status of a pin, unless it says so already. Without `drifts` nothing is known of them.
fn draft(pin: &ImagePin, pods: &[Arc<PodEntry>], drifts: Option<&[RevisionDrift]>) -> Option<Draft> {
    let annotation = |pod: &'_ PodEntry, key| pod.annotation(key).map(Arc::clone);
    let recorded: Vec<_> = pods
        .iter()
        .map(|pod| {
            let (routes, originals) =
                (annotation(pod, names::fairlead::ROUTES), annotation(pod, names::kuik::ORIGINAL_IMAGES));
            RecordedOriginals::read(&PodAnnotations {
                routes: routes.as_deref(),
                originals: originals.as_deref(),
                ..PodAnnotations::default()
            })
        })
        .collect();
    let views: Vec<_> = pods
        .iter()
        .zip(&recorded)
        .map(|(pod, claims)| PodImages {
            name: &pod.key.name,
            images: pod
                .containers
                .iter()
                .map(|container| PodImage {
                    asked: claims.asked(&container.place(), &container.image).unwrap_or(&container.image),
                    used: &container.image,
                    pull_policy: container.pull_policy.as_deref(),
                })
                .collect(),
        })
        .collect();
    let mut findings = vec![pinning::report(&pin.spec, &views)];
    let (count, generation) = (u32::try_from(pin.spec.images.len()).ok(), pin.metadata.generation);
    let stored = pin.status.as_ref();
    let before = stored.map(|status| &*status.conditions).unwrap_or_default();
    // Pods of a revision without one are of another.
    if let Some(drifts) = drifts.filter(|_| !pods.is_empty()) {
        let carries = find(before, types::CURRENT).is_some();
        findings.extend(currency(&pin.spec.images, drifts, carries));
    }
    let conditions = merge(before, &findings, generation, Timestamp::now());
    let status = json!({"observedGeneration": generation, "imageCount": count});
    Draft::new(ObjectId::of(pin), Manner::Apply, status, &conditions, &[]).unless_stored(&stored)
}
