//! From where a copy is made: from the original, or from where else the same image is.

use fairlead_api::fairlead::CopyState;
use fairlead_domain::cause::Cause;
use fairlead_domain::reference::Reference;

use super::object::MirrorObject;
use super::tasks::Task;
use crate::routing::{Index, SecretName, SecretUse};

/// A place to copy from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CopySource {
    pub reference: Reference,
    pub kind: SourceKind,
    /// On whose account it is read.
    pub cause: Cause,
    /// The Secret of the mirror that it lies in.
    pub mirror: Option<SecretName>,
    /// Secrets that replicated sets name for it.
    pub upstreams: Vec<SecretUse>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourceKind {
    Original,
    /// A copy that was made before, named by digest.
    Copy,
    /// A place of a replicated set, named by digest.
    Upstream,
}

impl CopySource {
    /// The original, as an object of the namespace reads it.
    pub fn original(source: &Reference, namespace: Option<&str>, index: &Index) -> Self {
        Self {
            reference: source.clone(),
            kind: SourceKind::Original,
            cause: index.cause_of(source),
            mirror: None,
            upstreams: index.upstream_secrets(source, namespace),
        }
    }

    /// Whether platforms are chosen on the way to the destination. A Pod that asks for a digest must get exactly that,
    /// and a copy was chosen from when it was made.
    pub fn chooses_platforms(&self, destination: &Reference) -> bool {
        self.kind != SourceKind::Copy && destination.digest().is_none()
    }
}

/// Where a copy can be made from, in the order of attempts: the original, unless its registry is known to be down, then
/// other copies and the places of replicated sets, if it is known by digest which image it is. The next one is tried
/// only where the one before cannot be read.
pub fn copy_sources<'a>(
    task: &Task,
    object: &MirrorObject<'_>,
    objects: impl IntoIterator<Item = MirrorObject<'a>>,
    index: &Index,
    original_answers: bool,
) -> Vec<CopySource> {
    let Task { source, destination, .. } = task;
    let namespace = object.namespace().map(AsRef::as_ref);
    let mut sources: Vec<_> =
        original_answers.then(|| CopySource::original(source, namespace, index)).into_iter().collect();
    let recorded = || object.ledger.get(source)?.source_digest;
    let running = || object.use_of(source)?.running;
    let Some(digest) = source.digest().or_else(recorded).or_else(running) else { return sources };
    let principal = object.principal();
    for other in objects.into_iter().filter(|other| principal.may_read_copies_of(&other.principal())) {
        let Some((entry, policy)) = other.ledger.get(source).zip(other.policy) else { continue };
        let elsewhere = entry.copies.iter().filter(|copy| !copy.destination.is_same_image(destination));
        for copy in elsewhere.filter(|copy| copy.state == CopyState::Mirrored) {
            let Some(held) = copy.digest.filter(|_| policy.keeps(&copy.destination)) else { continue };
            sources.push(CopySource {
                reference: copy.destination.without_tag().with_digest(&held),
                kind: SourceKind::Copy,
                cause: other.principal().cause(),
                mirror: policy.push_secret(&copy.destination).cloned(),
                upstreams: Vec::new(),
            });
        }
    }
    let upstreams = index.upstreams_of(source, namespace);
    sources.extend(upstreams.into_iter().map(|(reference, upstreams)| CopySource {
        cause: index.cause_of(&reference),
        reference: reference.without_tag().with_digest(&digest),
        kind: SourceKind::Upstream,
        mirror: None,
        upstreams,
    }));
    sources
}
