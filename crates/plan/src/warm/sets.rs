//! The children of a `CachedImageSet`: which there should be, and what is said of them.
//!
//! Images are compared by what a runtime would pull, so an image that is listed and discovered, or written in two ways,
//! counts once. Children are known by their owner reference; an object that merely has the label is left alone. A
//! discovery that fails, or fails in part, does not tell which images are no longer wanted, so nothing is deleted
//! meanwhile.

use std::collections::{BTreeMap, HashMap, HashSet};

use fairlead_api::conditions::{self, ConditionStatus, Finding, types};
use fairlead_api::drop::{
    API_VERSION, CachedImage, CachedImagePhase, CachedImageSet, CachedImageSetPhase, CachedImageSetStatus,
    CachedImageSpec, DiscoveryPolicy, ImageEntry,
};
use fairlead_api::names;
use fairlead_domain::reference::{DEFAULT_TAG, ImageKey};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use super::discovery::SYNCED;
use super::snapshot::asked;

/// Characters of a child's name in front of its hash.
const NAME_CHARACTERS: usize = 246;

/// What to do with the children of one set.
#[derive(Debug, Default, PartialEq)]
pub struct SetPlan {
    pub create: Vec<CachedImage>,
    /// Children that differ from their set.
    pub update: Vec<ChildUpdate>,
    /// Name and UID.
    pub delete: Vec<(String, Option<String>)>,
    /// None: it is what it was.
    pub status: Option<CachedImageSetStatus>,
}

/// A child that gets another content.
#[derive(Debug, PartialEq)]
pub struct ChildUpdate {
    pub name: String,
    pub uid: Option<String>,
    /// Of the content that is replaced. It counts edits, and no writes of the status, of which there are many.
    pub generation: Option<i64>,
    pub spec: CachedImageSpec,
}

/// What is known of a set's discovery.
#[derive(Debug)]
enum Discovery<'a> {
    /// The set has none.
    None,
    Healthy(&'a DiscoveryPolicy),
    /// A part of it failed, for this reason: what it lists is wanted, and what it does not list may be.
    Partial(&'a DiscoveryPolicy, &'a str),
    /// It has not been run yet.
    Pending,
    /// With the reason and the message, and what was found last if anything ever was.
    Failing(String, String, Option<&'a DiscoveryPolicy>),
}

impl<'a> Discovery<'a> {
    fn of(set: &CachedImageSet, policy: Option<&'a DiscoveryPolicy>) -> Self {
        let Some(reference) = &set.spec.discovery_policy_ref else { return Self::None };
        let Some(policy) = policy else {
            let message = format!("DiscoveryPolicy {} does not exist or cannot be read", reference.name);
            return Self::Failing("DiscoveryPolicyNotFound".to_owned(), message, None);
        };
        let ready =
            policy.status.as_ref().and_then(|status| conditions::find(&status.conditions, types::READY));
        match ready {
            None => Self::Pending,
            Some(ready) if ready.status == ConditionStatus::False => {
                Self::Failing(ready.reason.clone(), ready.message.clone(), Some(policy))
            }
            Some(ready) if ready.reason != SYNCED => Self::Partial(policy, &ready.message),
            Some(_) => Self::Healthy(policy),
        }
    }

    fn images(&self) -> impl Iterator<Item = &'a str> {
        let policy = match self {
            Self::Healthy(policy) | Self::Partial(policy, _) | Self::Failing(_, _, Some(policy)) => {
                Some(*policy)
            }
            Self::None | Self::Pending | Self::Failing(_, _, None) => None,
        };
        let status = policy.and_then(|policy| policy.status.as_ref());
        status
            .into_iter()
            .flat_map(|status| status.discovered_images.iter().map(|found| found.image.as_str()))
    }

    /// Whether what is not found is not wanted.
    fn is_complete(&self) -> bool {
        matches!(self, Self::None | Self::Healthy(_))
    }
}

/// Plans one set. `all` are all `CachedImages` of the cluster, of whatever owner. `refused` is why the last plan could
/// not be carried out.
pub fn plan<'a>(
    set: &CachedImageSet,
    policy: Option<&DiscoveryPolicy>,
    all: impl IntoIterator<Item = &'a CachedImage>,
    refused: Option<&str>,
    now: Timestamp,
) -> SetPlan {
    let uid = set.metadata.uid.as_deref().unwrap_or_default();
    if set.metadata.deletion_timestamp.is_some() || uid.is_empty() {
        return SetPlan::default();
    }
    let discovery = Discovery::of(set, policy);
    let (desired, unreadable) = desired(set, &discovery);
    let (mut children, mut foreign) = (BTreeMap::new(), HashSet::new());
    for image in all {
        let name = image.metadata.name.as_deref().unwrap_or_default();
        if image.metadata.owner_references.iter().flatten().any(|owner| owner.uid == uid) {
            children.insert(name, image);
        } else {
            foreign.insert(name);
        }
    }
    let wanted: HashMap<&ImageKey, &ImageEntry> = desired.iter().map(|(key, entry)| (key, entry)).collect();
    let mut plan = SetPlan::default();
    let mut kept = HashMap::<ImageKey, &CachedImage>::new();
    for (name, child) in &children {
        if child.metadata.deletion_timestamp.is_some() {
            continue;
        }
        let key = key_of(&child.spec);
        let entry = key.as_ref().and_then(|key| wanted.get(key));
        match (entry, key) {
            (Some(entry), Some(key)) if !kept.contains_key(&key) => {
                let spec = child_spec(set, entry, Some(&child.spec));
                if spec != child.spec {
                    let (uid, generation) = (child.metadata.uid.clone(), child.metadata.generation);
                    plan.update.push(ChildUpdate { name: (*name).to_owned(), uid, generation, spec });
                }
                kept.insert(key, child);
            }
            _ if discovery.is_complete() => {
                plan.delete.push(((*name).to_owned(), child.metadata.uid.clone()));
            }
            (_, Some(key)) => _ = kept.entry(key).or_insert(child),
            (_, None) => {}
        }
    }
    let mut taken = None;
    for (_, entry) in desired.iter().filter(|(key, _)| !kept.contains_key(key)) {
        let child = new_child(set, entry);
        let name = child.metadata.name.as_deref().unwrap_or_default();
        // A child that is being deleted has its name until it is gone.
        if foreign.contains(name) {
            taken.get_or_insert_with(|| name.to_owned());
        } else if !children.contains_key(name) {
            plan.create.push(child);
        }
    }
    let problem = unreadable.or_else(|| {
        taken.map(|name| format!("CachedImage {name} exists and does not belong to the set: rename it"))
    });
    let problem = problem.or_else(|| refused.map(str::to_owned));
    let status = set_status(set, &discovery, &kept, desired.len(), problem, now);
    plan.status = Some(status).filter(|status| set.status.as_ref() != Some(status));
    plan
}

/// What an image of a set with a gate will say that is not there yet, or not with the gate: nodes wait for it, too.
pub fn coming_gate<'a>(
    set: &CachedImageSet,
    policy: Option<&DiscoveryPolicy>,
    all: impl IntoIterator<Item = &'a CachedImage>,
    now: Timestamp,
) -> Option<CachedImageSpec> {
    if !set.spec.gate {
        return None;
    }
    let SetPlan { create, update, .. } = plan(set, policy, all, None, now);
    let created = create.into_iter().map(|child| child.spec);
    let first = created.chain(update.into_iter().map(|update| update.spec)).next();
    // What is discovered first is not known, but where it belongs is.
    let pending = matches!(Discovery::of(set, policy), Discovery::Pending);
    first.or_else(|| pending.then(|| child_spec(set, &split(""), None)))
}

/// Every image once, and what cannot be read.
fn desired(set: &CachedImageSet, discovery: &Discovery<'_>) -> (Vec<(ImageKey, ImageEntry)>, Option<String>) {
    let (mut images, mut seen, mut problem) = (Vec::new(), HashSet::new(), None);
    let discovered = discovery.images().map(split);
    for entry in set.spec.images.iter().cloned().chain(discovered) {
        match asked(&entry.image, entry.tag.as_deref(), entry.digest.as_deref()) {
            Ok(reference) if seen.insert(reference.key()) => images.push((reference.key(), entry)),
            Ok(_) => {}
            Err(error) => _ = problem.get_or_insert_with(|| error.to_string()),
        }
    }
    (images, problem)
}

/// A discovered reference as the fields of an entry.
fn split(reference: &str) -> ImageEntry {
    let entry = |image: &str, tag: Option<&str>, digest: Option<&str>| ImageEntry {
        image: image.to_owned(),
        tag: tag.map(str::to_owned),
        digest: digest.map(str::to_owned),
    };
    let (name, digest) =
        reference.split_once('@').map_or((reference, None), |(name, digest)| (name, Some(digest)));
    match name.rsplit_once(':').filter(|(_, tag)| !tag.contains('/')) {
        Some((image, tag)) => entry(image, Some(tag).filter(|_| digest.is_none()), digest),
        None => entry(name, None, digest),
    }
}

fn key_of(spec: &CachedImageSpec) -> Option<ImageKey> {
    asked(&spec.image, spec.tag.as_deref(), spec.digest.as_deref()).ok().map(|reference| reference.key())
}

/// What a child should say. Its own spelling of the image and its priority stay: the set says nothing about them.
fn child_spec(
    set: &CachedImageSet,
    entry: &ImageEntry,
    current: Option<&CachedImageSpec>,
) -> CachedImageSpec {
    let own = current.map(|spec| (spec.image.clone(), spec.tag.clone(), spec.digest.clone()));
    let (image, tag, digest) =
        own.unwrap_or_else(|| (entry.image.clone(), entry.tag.clone(), entry.digest.clone()));
    CachedImageSpec {
        image,
        tag,
        digest,
        image_pull_policy: set.spec.image_pull_policy,
        image_pull_secrets: set.spec.image_pull_secrets.clone(),
        node_selector: set.spec.node_selector.clone(),
        tolerations: set.spec.tolerations.clone(),
        priority: current.and_then(|spec| spec.priority),
        policy_ref: set.spec.policy_ref.clone(),
        gate: set.spec.gate,
    }
}

fn new_child(set: &CachedImageSet, entry: &ImageEntry) -> CachedImage {
    let name = set.metadata.name.as_deref().unwrap_or_default();
    let mut child = CachedImage::new(&child_name(name, entry), child_spec(set, entry, None));
    let label = super::record::label_value(name).into_owned();
    // A label has room for short names only.
    let whole = (label != name).then(|| [(names::drop::IMAGE_SET.to_owned(), name.to_owned())].into());
    child.metadata = ObjectMeta {
        labels: Some([(names::drop::IMAGE_SET.to_owned(), label)].into()),
        annotations: whole,
        owner_references: Some(vec![OwnerReference {
            api_version: API_VERSION.to_owned(),
            kind: "CachedImageSet".to_owned(),
            name: name.to_owned(),
            uid: set.metadata.uid.clone().unwrap_or_default(),
            controller: Some(true),
            // It would need the right to set finalizers on sets.
            block_owner_deletion: Some(false),
        }]),
        ..child.metadata
    };
    child
}

/// `<set>-<last path segment>-<tag or digest>-<hash>`, as Drop names children, so that its children are found again.
pub fn child_name(set: &str, entry: &ImageEntry) -> String {
    let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    let tag = given(&entry.tag).unwrap_or_else(|| DEFAULT_TAG.to_owned());
    let (suffix, reference) = match given(&entry.digest) {
        Some(digest) => ("digest".to_owned(), format!("{}@{digest}", entry.image)),
        None => (tag.clone(), format!("{}:{tag}", entry.image)),
    };
    let segment = entry.image.rsplit('/').next().unwrap_or_default();
    let name = format!("{set}-{segment}-{suffix}").to_lowercase();
    let name: String = name.chars().map(|one| if "/:._@".contains(one) { '-' } else { one }).collect();
    let name: String = name.chars().take(NAME_CHARACTERS).collect();
    format!("{name}-{:06x}", fnv1a(reference.as_bytes()) & 0x00ff_ffff)
}

fn fnv1a(bytes: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

fn set_status(
    set: &CachedImageSet,
    discovery: &Discovery<'_>,
    children: &HashMap<ImageKey, &CachedImage>,
    desired: usize,
    problem: Option<String>,
    now: Timestamp,
) -> CachedImageSetStatus {
    let phase_of = |child: &&&CachedImage| child.status.as_ref().and_then(|status| status.phase);
    let is_current = |child: &&&CachedImage| {
        let observed = child.status.as_ref().and_then(|status| status.observed_generation);
        observed == child.metadata.generation
    };
    let ready = children
        .values()
        .filter(|child| is_current(child) && phase_of(child) == Some(CachedImagePhase::Ready));
    let (ready, managed) = (ready.count(), children.len());
    let degraded = children.values().filter(|child| phase_of(child) == Some(CachedImagePhase::Degraded));
    let degraded = degraded.min_by_key(|child| child.metadata.name.as_deref());
    // Children that nothing lists any more stay while discovery fails.
    let all = desired.max(managed);
    let counts = format!("{ready} of {all} images are on all their nodes");
    let counts = match discovery {
        Discovery::Partial(_, message) => format!("{counts}; the DiscoveryPolicy found a part: {message}"),
        _ => counts,
    };
    let (phase, reason, message) = if let Discovery::Failing(reason, message, _) = discovery {
        (CachedImageSetPhase::Degraded, reason.as_str(), message.clone())
    } else if let Some(problem) = problem {
        (CachedImageSetPhase::Degraded, "Degraded", problem)
    } else if let Some(child) = degraded {
        let conditions = child.status.as_ref().map_or(&[][..], |status| &status.conditions);
        let said = conditions::find(conditions, types::READY).map_or("", |ready| &ready.message);
        let name = child.metadata.name.as_deref().unwrap_or_default();
        (CachedImageSetPhase::Degraded, "Degraded", format!("{counts}; {name}: {said}"))
    } else if matches!(discovery, Discovery::Pending) {
        let message = format!("{counts}; the DiscoveryPolicy has not found images yet");
        (CachedImageSetPhase::Pending, "Progressing", message)
    } else if all > 0 && ready == all && managed == all {
        (CachedImageSetPhase::Ready, "Ready", counts)
    } else {
        (CachedImageSetPhase::Pending, "Progressing", counts)
    };
    let current = set.status.as_ref().map_or(&[][..], |status| &status.conditions);
    let generation = set.metadata.generation;
    let finding = Finding::new(types::READY, phase == CachedImageSetPhase::Ready, reason, message);
    let count = |number: usize| (number > 0).then(|| i32::try_from(number).unwrap_or(i32::MAX));
    CachedImageSetStatus {
        observed_generation: generation,
        phase: Some(phase),
        images_managed: count(managed),
        images_ready: count(ready),
        conditions: conditions::merge(current, &[finding], generation, now),
    }
}

#[cfg(test)]
mod tests;
