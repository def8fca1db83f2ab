//! Tags of images in use that the watch looks at, on mirrors and on sources.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fairlead_domain::cause::Cause;
use fairlead_domain::reference::Reference;
use fairlead_domain::verdict::Verdict;
use fairlead_plan::availability::{LookAccess, MirrorLook, MirrorLooks};
use fairlead_plan::credentials::Principal;
use fairlead_plan::node_config::comparison::{Comparison, TagDigests};
use fairlead_plan::node_config::{NodeConfig, PolicyId};
use fairlead_plan::usage::Holder;
use jiff::Timestamp;
use tokio::time::Instant;

use super::NodesSetup;
use crate::cluster::state::PodEntry;

/// Shortest time between two passes over all Pods.
const GATHER: Duration = Duration::from_secs(15);
/// Images that are compared.
const MOST: usize = 500;
/// Pods with other pull secrets that one image is looked at with.
const MOST_HOLDERS: usize = 4;

/// What is compared, and what is known of it.
#[derive(Debug, Default)]
pub(super) struct Compared {
    digests: TagDigests,
    comparisons: Vec<Comparison>,
    /// When images were last gathered, and for which policies.
    gathered: Option<(Instant, String)>,
}

impl Compared {
    /// Takes note of what the watch has found. Tells whether that is news here.
    pub(super) fn learn(&mut self, place: &Reference, verdict: &Verdict) -> bool {
        let mut places = self.comparisons.iter().flat_map(Comparison::places);
        places.any(|one| one == place) && self.digests.learn(place, verdict)
    }

    pub(super) fn differences(&self) -> BTreeMap<PolicyId, Option<Vec<String>>> {
        self.digests.differences(&self.comparisons)
    }

    /// Has the watch look at what Pods use now, at once after policies have changed.
    pub(super) fn observe(&mut self, setup: &NodesSetup, config: &NodeConfig, hash: &str, now: Instant) {
        if self.gathered.as_ref().is_some_and(|(at, of)| of == hash && now < *at + GATHER) {
            return;
        }
        self.gathered = Some((now, hash.to_owned()));
        let images = if config.entries.values().any(|entry| !entry.tag.list.is_empty()) {
            images(setup.context.resources.pods.select(|pod| !pod.deleting && !pod.has_ended()))
        } else {
            BTreeMap::new()
        };
        let compared = images.into_iter().filter_map(|(image, holders)| {
            let comparison = config.comparison(&Reference::parse(&image).ok()?)?;
            Some((comparison, Arc::from(holders)))
        });
        let compared: Vec<(Comparison, Arc<[Holder]>)> = compared.take(MOST).collect();
        let policies = setup.context.policies.current();
        let access = |cause| Arc::new(LookAccess { principal: Principal::Cluster, secret: None, cause });
        // Mirrors are chosen by cluster-scoped objects, sources by Pods.
        let chosen = access(Cause::Administrator);
        let looks = compared.iter().flat_map(|(comparison, holders)| {
            let source = access(policies.cause_of(&comparison.source));
            let mirrors = comparison.mirrors.iter().map(|mirror| (&mirror.place, &chosen));
            let all =
                std::iter::once((&comparison.source, source)).chain(mirrors.map(|(at, by)| (at, by.clone())));
            let look = |(place, access): (&Reference, Arc<LookAccess>)| MirrorLook {
                reference: place.clone(),
                last: Timestamp::UNIX_EPOCH,
                holders: holders.clone(),
                access,
            };
            all.map(look).collect::<Vec<_>>()
        });
        let wishes = MirrorLooks::new(looks.collect());
        self.comparisons = compared.into_iter().map(|(comparison, _)| comparison).collect();
        self.digests.keep(&self.comparisons);
        setup.wishes.send_if_modified(|published| {
            let is_new = **published != wishes;
            if is_new {
                *published = Arc::new(wishes);
            }
            is_new
        });
    }
}

/// The images of Pods, with the first by name of the Pods that use each.
fn images(mut pods: Vec<Arc<PodEntry>>) -> BTreeMap<Arc<str>, Vec<Holder>> {
    pods.sort_by(|one, other| one.key.cmp(&other.key));
    let mut images: BTreeMap<Arc<str>, Vec<Holder>> = BTreeMap::new();
    for pod in &pods {
        for image in pod.images() {
            let holders = images.entry(Arc::clone(image)).or_default();
            let is_alike = |known: &Holder| {
                known.namespace == pod.key.namespace && known.pull_secrets == pod.pull_secrets
            };
            if holders.len() < MOST_HOLDERS && !holders.iter().any(is_alike) {
                holders.push(Holder {
                    namespace: Arc::clone(&pod.key.namespace),
                    pull_secrets: Arc::clone(&pod.pull_secrets),
                    pod: Arc::clone(&pod.key.name),
                });
            }
        }
    }
    images
}
