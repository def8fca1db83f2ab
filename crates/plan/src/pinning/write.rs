//! What is written so that a revision has its digests: the pin, if there is none yet, or what a pin lacks.
//!
//! The API server decides between replicas. A create is refused if the name is taken, and an addition if the object has
//! changed since it was read; a writer that is refused reads again, and finds the digests of the other.

use std::collections::BTreeMap;

use fairlead_api::fairlead::{ImagePin, ImagePinSpec, PinnedImage, PinnedWorkload};
use fairlead_api::names::fairlead::{OWNER_KIND, OWNER_UID, REVISION};
use fairlead_domain::digest::Digest;
use fairlead_domain::reference::Reference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use serde_json::{Value, json};
use thiserror::Error;

use super::{Revision, is_of, pin_key};

/// What a pin can hold.
const MOST_IMAGES: usize = 256;

/// One request to the API server.
#[derive(Debug, Clone, PartialEq)]
pub enum PinWrite {
    /// The pin has all of them.
    Nothing,
    Create(Box<ImagePin>),
    /// A merge patch, which counts for the version that was read only.
    Add(Value),
}

/// Why a pin cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Unpinnable {
    #[error("ImagePin {0} is about another workload; delete it")]
    Foreign(String),
    #[error("ImagePin {0} holds {MOST_IMAGES} images, and no more fit")]
    Full(String),
}

/// What to write so that the pin of a revision holds these images. `found` is the pin as it is stored.
pub fn write(
    revision: &Revision,
    found: Option<&ImagePin>,
    images: &[PinnedImage],
) -> Result<PinWrite, Unpinnable> {
    let name = || revision.pin_name();
    let Some(found) = found else {
        return Ok(PinWrite::Create(Box::new(pin(revision, images.to_vec()))));
    };
    if !is_of(&found.spec, revision) {
        return Err(Unpinnable::Foreign(name()));
    }
    let held = &found.spec.images;
    let is_missing = |image: &&PinnedImage| held.iter().all(|held| held.asked != image.asked);
    let missing: Vec<_> = images.iter().filter(is_missing).cloned().collect();
    if missing.is_empty() {
        return Ok(PinWrite::Nothing);
    }
    if held.len() + missing.len() > MOST_IMAGES {
        return Err(Unpinnable::Full(name()));
    }
    let all = [held.as_slice(), &missing].concat();
    let version = json!({"resourceVersion": found.metadata.resource_version, "uid": found.metadata.uid});
    Ok(PinWrite::Add(json!({"metadata": version, "spec": {"images": all}})))
}

fn pin(revision: &Revision, images: Vec<PinnedImage>) -> ImagePin {
    let Revision { workload, revision: hash } = revision;
    let PinnedWorkload { api_version, kind, name, uid } = workload.clone();
    let labels = [(OWNER_KIND, &kind), (OWNER_UID, &uid), (REVISION, hash)]
        .map(|(key, value)| (key.to_owned(), value.clone()));
    let owner = OwnerReference { api_version, kind, name, uid, ..OwnerReference::default() };
    ImagePin {
        metadata: ObjectMeta {
            name: Some(revision.pin_name()),
            labels: Some(BTreeMap::from(labels)),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        spec: ImagePinSpec { workload: workload.clone(), revision: hash.clone(), images },
        status: None,
    }
}

/// The digest that other revisions of the workload hold the reference to, the newest of them; else that of any other
/// workload. `pins` are those of the namespace.
pub fn last_known<'p>(
    revision: Option<&Revision>,
    asked: &Reference,
    pins: impl IntoIterator<Item = &'p ImagePinSpec>,
) -> Option<Digest> {
    let key = pin_key(asked);
    let is_of_workload = |pin: &ImagePinSpec| {
        revision.is_some_and(|revision| {
            pin.workload.kind == revision.workload.kind
                && stem(&pin.workload.name, &pin.revision)
                    == stem(&revision.workload.name, &revision.revision)
        })
    };
    let images = pins.into_iter().flat_map(|pin| pin.images.iter().map(move |image| (pin, image)));
    let of_reference = images.filter(|(_, image)| image.asked == key.as_str());
    let newest = of_reference.max_by_key(|(pin, image)| (is_of_workload(pin), image.resolved_at.0));
    newest?.1.digest.parse().ok()
}

/// The name without the revision: a Deployment's of its `ReplicaSet`'s.
fn stem<'n>(name: &'n str, revision: &str) -> &'n str {
    name.strip_suffix(revision).and_then(|stem| stem.strip_suffix('-')).unwrap_or(name)
}
