//! Which images a container may be given instead of the one that cannot be pulled.

use std::sync::Arc;

use fairlead_domain::cause::Cause;
use fairlead_domain::reference::Reference;
use fairlead_domain::verdict::Verdict;

use super::{FailingContainer, Tried};
use crate::pinning;
use crate::pod_record::{BY_ORIGINAL, Route};
use crate::routing::{Alternative, Alternatives, SecretName};

/// An image that may be written into a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// As it is written.
    pub image: String,
    pub reference: Reference,
    /// The policy that offers it, or `original`.
    pub by: String,
    /// On whose account its registry is asked.
    pub cause: Cause,
    pub is_original: bool,
}

/// What a container may be given.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Candidates {
    /// In order: the first that is available is taken.
    pub ask: Vec<Candidate>,
    /// Taken without asking if none of the others is available.
    pub last: Option<String>,
    /// Places that need pull secrets which the Pod lacks. A new Pod would be admitted with them.
    pub locked: usize,
    /// The Pod has no record, and the container was given another image already.
    pub patched: bool,
}

/// What is known about one container.
#[derive(Debug, Clone, Copy)]
pub struct Background<'a> {
    /// What was recorded at admission for the image that it has.
    pub route: Option<&'a Route>,
    /// What the policies of today offer for the image that was asked for, held to the digest that it is pinned to.
    pub planned: Option<&'a Alternatives>,
    /// The original by the annotation of harbor-reef.
    pub upstream: Option<&'a str>,
    /// What the policies of today offer for that original, where nothing was recorded: another program may have
    /// rewritten the image to a place that no policy knows.
    pub of_original: Option<&'a Alternatives>,
    pub tried: &'a Tried,
    /// harbor-reef's list says that the container was patched.
    pub patched: bool,
    pub namespace: &'a str,
    /// Names of the pull secrets that the Pod has.
    pub pull_secrets: &'a [Arc<str>],
}

/// The candidates for a container.
///
/// A Pod that was admitted here has the pull secrets of all its alternatives. One that was not gets only alternatives
/// that need no other secrets than its own, and the original without asking, because its author wants it used; and one
/// of all these once, whichever it was. A pinned image gets no other digest.
pub fn candidates(container: &FailingContainer<'_>, known: &Background<'_>) -> Candidates {
    let present = Reference::parse(container.image).ok();
    let is_new = |image: &str| {
        let same = Reference::parse(image)
            .ok()
            .zip(present.as_ref())
            .is_some_and(|(one, other)| one.is_same_image(other));
        image != &**container.image && !same && !known.tried.has(container.name(), image)
    };
    let offered = |reference: &Reference| {
        let list = known.planned.map(Alternatives::list).unwrap_or_default();
        list.iter().find(|place| place.reference.is_same_image(reference))
    };
    let Some(route) = known.route else {
        if known.patched {
            return Candidates { patched: true, ..Candidates::default() };
        }
        let (mut ask, mut locked) = (Vec::<Candidate>::new(), 0);
        for place in [known.planned, known.of_original].into_iter().flatten().flat_map(Alternatives::list) {
            let is_known = |one: &Candidate| one.reference.is_same_image(&place.reference);
            if place.is_original() || !is_new(place.reference.as_str()) || ask.iter().any(is_known) {
                continue;
            }
            if needs_no_other_secret(place, known) {
                ask.push(Candidate::offered(place));
            } else {
                locked += 1;
            }
        }
        let original = known.upstream.filter(|image| is_new(image)).map(str::to_owned);
        return Candidates { ask, last: original, locked, patched: false };
    };
    let mut ask: Vec<Candidate> = Vec::new();
    let pin = route.pin();
    let held =
        |image: &str| pin.map_or_else(|| image.to_owned(), |digest| pinning::hold_written(image, &digest));
    let original = held(&route.asked);
    let asked = Reference::parse(&original).ok();
    let is_asked = |reference: &Reference| asked.as_ref().is_some_and(|asked| asked.is_same_image(reference));
    let withheld = |reference: &Reference| known.planned.is_some_and(|planned| planned.withholds(reference));
    for image in &route.alternatives {
        let Ok(reference) = Reference::parse(image) else { continue };
        // The original comes last, wherever the record has it.
        if is_asked(&reference) || !is_new(image) || withheld(&reference) {
            continue;
        }
        ask.push(match offered(&reference) {
            Some(place) => Candidate::offered(place),
            // The policy has gone since; what a Pod says of itself is asked about on its tenant's account.
            None => Candidate {
                image: image.clone(),
                reference,
                by: route.by.clone(),
                cause: Cause::Tenant,
                is_original: false,
            },
        });
    }
    for image in [known.upstream, Some(route.asked.as_str())].into_iter().flatten() {
        let image = held(image);
        if let Ok(reference) = Reference::parse(&image)
            && is_new(&image)
            && ask.iter().all(|one| !one.reference.is_same_image(&reference))
        {
            // Asked as admission asks, so that both share the answer.
            let cause = offered(&reference).map_or(Cause::Tenant, Alternative::cause);
            ask.push(Candidate::original(&image, reference, cause));
        }
    }
    Candidates { ask, ..Candidates::default() }
}

impl Candidate {
    pub fn offered(place: &Alternative) -> Self {
        Self {
            image: place.reference.to_string(),
            reference: place.reference.clone(),
            by: place.origin.by(),
            cause: place.cause(),
            is_original: place.is_original(),
        }
    }

    fn original(image: &str, reference: Reference, cause: Cause) -> Self {
        Self { image: image.to_owned(), reference, by: BY_ORIGINAL.to_owned(), cause, is_original: true }
    }
}

/// Whether every Secret of a place is on the Pod.
fn needs_no_other_secret(place: &Alternative, known: &Background<'_>) -> bool {
    place.secrets.iter().all(|used| {
        let SecretName { namespace, name } = &used.secret;
        &**namespace == known.namespace && known.pull_secrets.contains(name)
    })
}

/// What becomes of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Choice {
    /// It is given this candidate; with what its registry said.
    Give { candidate: Candidate, verdict: Verdict },
    /// It is given the original, without its registry having been asked.
    GiveOriginal(String),
    /// Nothing can be pulled now; what was asked is asked again later. `locked` as in [`Candidates`].
    Wait { why: String, locked: usize },
    /// Everything was tried, or nothing may be. `locked` and `patched` as in [`Candidates`].
    GiveUp { locked: usize, patched: bool },
}

impl Choice {
    /// Whether places are left that only a new Pod could use.
    pub fn is_locked(&self) -> bool {
        matches!(self, Self::Wait { locked, .. } | Self::GiveUp { locked, .. } if *locked > 0)
    }
}

/// Chooses. `verdicts` are in the order of the candidates, judged already.
pub fn choose(candidates: Candidates, verdicts: &[Verdict]) -> Choice {
    let Candidates { ask, last, locked, patched } = candidates;
    let answers: Vec<String> =
        ask.iter().zip(verdicts).map(|(one, verdict)| format!("{} is {verdict}", one.image)).collect();
    let usable = ask.into_iter().zip(verdicts).find(|(_, verdict)| verdict.is_usable());
    if let Some((candidate, verdict)) = usable {
        return Choice::Give { candidate, verdict: verdict.clone() };
    }
    match last {
        Some(original) => Choice::GiveOriginal(original),
        None if answers.is_empty() => Choice::GiveUp { locked, patched },
        None => Choice::Wait { why: answers.join("; "), locked },
    }
}
