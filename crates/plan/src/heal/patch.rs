//! The one patch that heals a Pod.
//!
//! It is refused by the API server unless every container that it touches is still stored as waiting for the image that
//! failed: a container that runs would be restarted by a change of its image.

use fairlead_api::names;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::Value;

use super::{Candidate, Choice, FailingContainer, FailingPod};
use crate::pod_record::{Annotations, Entry, Place, Route, amended};
use crate::pull_failure::PullFailure;
use crate::routing::clip;

/// Longest explanation in a record.
const LONGEST_WHY: usize = 280;

/// One operation of a JSON patch. `add` replaces what is there.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "op", rename_all = "lowercase")]
pub enum Operation {
    Test { path: String, value: Value },
    Replace { path: String, value: Value },
    Add { path: String, value: Value },
    Remove { path: String },
}

/// What is done to a Pod, and how it is reported.
#[derive(Debug, Clone, PartialEq)]
pub struct Repair {
    pub operations: Vec<Operation>,
    /// Name of each container that is patched, with the image that it gets.
    pub moves: Vec<Move>,
    /// What `harbor-reef/patched` is set to.
    pub at: String,
}

/// One container that is given another image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Move {
    pub container: String,
    pub from: String,
    pub to: String,
    pub why: String,
}

/// Builds the patch for those containers of a Pod that are given another image; none if no container is.
pub fn repair(pod: &FailingPod<'_>, choices: &[(usize, Choice)], now: Timestamp) -> Option<Repair> {
    let record = pod.written.record();
    let (mut tried, mut patched) = (pod.tried(), pod.written.patched_containers());
    let mut moves: Vec<(&FailingContainer<'_>, Move)> = Vec::new();
    let mut entries = Vec::new();
    for (position, choice) in choices {
        let Some(container) = pod.containers.get(*position) else { continue };
        let route = pod.route(record.as_ref(), &container.place, container.image);
        let (image, why) = match choice {
            Choice::Give { candidate, verdict } => {
                let why = format!("{}; {} is {}", container.failure, candidate.image, verdict.kind());
                entries.push(entry(container, route, candidate, verdict.digest(), &why));
                let failed = (&**container.image, container.failure);
                tried.moved(container.name(), failed, &candidate.image, whole_seconds(now));
                (candidate.image.clone(), why)
            }
            Choice::GiveOriginal(image) => {
                let annotation = names::reef::ORIGINAL_UPSTREAMS;
                (
                    image.clone(),
                    format!("{}; the annotation {annotation} names the original", container.failure),
                )
            }
            Choice::Wait { .. } | Choice::GiveUp { .. } => continue,
        };
        let from = container.image.to_string();
        moves.push((container, Move { container: container.name().to_owned(), from, to: image, why }));
    }
    if moves.is_empty() {
        return None;
    }
    // Containers before init containers, each in the order of the specification.
    moves.sort_by_key(|(container, _)| (matches!(container.place, Place::Init(_)), container.position));
    for (container, _) in &moves {
        if !patched.iter().any(|name| name == container.name()) {
            patched.push(container.name().to_owned());
        }
    }
    let mut operations = vec![test("/metadata/uid", pod.uid)];
    for (container, _) in &moves {
        let (spec, status) = lists(container.place)?;
        let (at, status_at) = (container.position, container.status_position);
        operations.extend([
            test(format!("/spec/{spec}/{at}/name"), container.name()),
            test(format!("/spec/{spec}/{at}/image"), container.image),
            test(format!("/status/{status}/{status_at}/name"), container.name()),
            test(format!("/status/{status}/{status_at}/state/waiting/reason"), container.waiting),
        ]);
    }
    for (container, to) in &moves {
        let (spec, _) = lists(container.place)?;
        let path = format!("/spec/{spec}/{}/image", container.position);
        operations.push(Operation::Replace { path, value: to.to.as_str().into() });
    }
    let (patched, healed) = (serde_json::to_string(&patched).ok()?, tried.text()?);
    let changes = if entries.is_empty() {
        Annotations::default()
    } else {
        amended(&pod.written.found(&healed, &patched), entries)
    };
    let upstreams = pod.written.upstreams();
    let used = moves.iter().any(|(container, _)| upstreams.contains_key(container.name()));
    // Times are whole seconds, as harbor-reef writes them.
    let at = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    annotate(&mut operations, pod, &changes, used, (&patched, &at));
    // Without a record, for which there was no room, what was tried means nothing.
    if changes.changes.iter().any(|(name, text)| *name == names::fairlead::ROUTES && text.is_some()) {
        operations.push(Operation::Add { path: annotation(names::fairlead::HEALED), value: healed.into() });
    }
    Some(Repair { operations, moves: moves.into_iter().map(|(_, to)| to).collect(), at })
}

/// A Pod as it is now, and the choices that were made for it as it was; none if they do not hold any more. Kubelets
/// change reasons and messages of a container that goes on failing, and other annotations are no concern of ours.
pub fn carried_over<'n>(
    before: &FailingPod<'_>,
    mut now: FailingPod<'n>,
    choices: &[(usize, Choice)],
) -> Option<(FailingPod<'n>, Vec<(usize, Choice)>)> {
    if before.uid != now.uid || !before.written.says_the_same(&now.written) {
        return None;
    }
    let mut carried = Vec::with_capacity(choices.len());
    for (position, choice) in choices {
        let old = before.containers.get(*position)?;
        let same = |new: &FailingContainer<'_>| new.place == old.place && new.image == old.image;
        let (position, new) = now.containers.iter_mut().enumerate().find(|(_, new)| same(new))?;
        // What the kubelet repeats while it waits may lack the cause that it told before.
        if new.failure == PullFailure::Unknown {
            new.failure = old.failure;
        }
        if new.unpatchable().is_some() {
            return None;
        }
        carried.push((position, choice.clone()));
    }
    Some((now, carried))
}

fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

/// Writes harbor-reef's annotations and the record, and makes sure that what they were made from is still there.
/// `originals`: so are the images that containers are given.
fn annotate(
    operations: &mut Vec<Operation>,
    pod: &FailingPod<'_>,
    record: &Annotations,
    originals: bool,
    (patched, at): (&str, &str),
) {
    let written = &pod.written;
    if !written.any {
        operations.push(Operation::Test { path: "/metadata/annotations".to_owned(), value: Value::Null });
        let value = Value::Object(serde_json::Map::new());
        operations.push(Operation::Add { path: "/metadata/annotations".to_owned(), value });
    }
    let rewrites = |name: &str| record.changes.iter().any(|(changed, _)| *changed == name);
    for (name, text, counts) in [
        (names::fairlead::ROUTES, written.routes, true),
        (names::fairlead::HEALED, written.healed, true),
        (names::reef::PATCHED_CONTAINERS, written.patched_containers, true),
        (names::kuik::ORIGINAL_IMAGES, written.originals, rewrites(names::kuik::ORIGINAL_IMAGES)),
        (
            names::reef::ORIGINAL_UPSTREAMS,
            written.upstreams,
            originals || rewrites(names::reef::ORIGINAL_UPSTREAMS),
        ),
    ] {
        if let Some(text) = text.filter(|_| counts) {
            operations.push(test(annotation(name), text));
        }
    }
    for (name, text) in [(names::reef::PATCHED_CONTAINERS, patched), (names::reef::PATCHED, at)] {
        operations.push(Operation::Add { path: annotation(name), value: text.into() });
    }
    for (name, text) in &record.changes {
        let path = annotation(name);
        operations.push(match text {
            Some(text) => Operation::Add { path, value: text.as_str().into() },
            None => Operation::Remove { path },
        });
    }
}

/// The record of a container that is given a candidate. What it was given before stays among the alternatives, so that
/// mirrors go on counting it as wanted.
fn entry<'a>(
    container: &FailingContainer<'a>,
    route: Option<&Route>,
    candidate: &Candidate,
    digest: Option<fairlead_domain::digest::Digest>,
    why: &str,
) -> Entry<'a> {
    let asked = route.map_or_else(|| container.image.to_string(), |route| route.asked.clone());
    let mut alternatives: Vec<_> = route.map(|route| route.alternatives.clone()).unwrap_or_default();
    alternatives.retain(|image| *image != candidate.image && *image != candidate.reference.as_str());
    if route.is_some_and(Route::is_rewritten) {
        alternatives.push(container.image.to_string());
    }
    let route = Route {
        asked,
        bypassed: route.is_none(),
        used: candidate.image.clone(),
        by: candidate.by.clone(),
        digest: digest.map(|digest| digest.to_string()).unwrap_or_default(),
        alternatives,
        ..Route::default()
    };
    Entry { place: container.place, route: route.healed(&clip(why, LONGEST_WHY)) }
}

/// The lists of specification and status that a container is in; none where it cannot be patched.
fn lists(place: Place<'_>) -> Option<(&'static str, &'static str)> {
    match place {
        Place::Container(_) => Some(("containers", "containerStatuses")),
        Place::Init(_) => Some(("initContainers", "initContainerStatuses")),
        Place::Ephemeral(_) | Place::Volume(_) => None,
    }
}

fn test(path: impl Into<String>, value: &str) -> Operation {
    Operation::Test { path: path.into(), value: value.into() }
}

fn annotation(name: &str) -> String {
    format!("/metadata/annotations/{}", name.replace('~', "~0").replace('/', "~1"))
}
