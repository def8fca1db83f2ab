//! Proofs of access: which namespaces are offered copies of private images.
//!
//! A mirror that copies a private image would hand it to every namespace that may pull from the mirror. Where a policy
//! asks for proof, a copy is offered only to namespaces that could have pulled the original: their own credentials, or
//! none, opened it, or one of their Pods ran it. Proofs are kept in the ledger, so that they survive an outage of the
//! original.
//!
//! A registry can claim any digest for any name, and images with one digest share a copy. So what a namespace opened or
//! ran counts only if it is, byte for byte, what the ledger says was copied: a tenant's own registry proves nothing
//! about an image of which the tenant knows no more than the digest.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use fairlead_api::fairlead::{CopyState, MAX_PROOFS};
use fairlead_api::kuik::MirrorAccess;
use fairlead_domain::backoff::Backoff;
use fairlead_domain::digest::Digest;
use fairlead_domain::reference::Reference;
use jiff::{SignedDuration, Timestamp};

use crate::ledger::{Entry, Ledger, LedgerChange, whole_seconds};
use crate::routing::Withheld;
use crate::usage::Used;

/// A proof is renewed at this age, or when a quarter of its lifetime is over.
const RENEW_AFTER: SignedDuration = SignedDuration::from_hours(24);

/// Originals that did not open are tried again after this time, then after twice that each time.
const RETRY: Backoff = Backoff::new(Duration::from_mins(1), Duration::from_hours(1));

/// Longest name of a namespace.
const LONGEST_NAMESPACE: usize = 63;

/// When namespaces last proved that they have access to one image.
pub type Proofs = BTreeMap<Arc<str>, Timestamp>;

/// A namespace whose Pods use an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    pub namespace: Arc<str>,
    /// A Pod of the namespace runs the original as the ledger knows it.
    pub ran: bool,
}

/// What follows for one image.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reviewed {
    /// The proofs as they are to be remembered.
    pub proofs: Proofs,
    /// Namespaces whose own credentials are to be tried at the original.
    pub to_try: Vec<Arc<str>>,
}

/// Whether a proof of this time still counts.
pub fn counts(proven_at: Timestamp, lifetime: SignedDuration, now: Timestamp) -> bool {
    now.duration_since(proven_at) < lifetime
}

/// Whether a namespace is offered a copy of a mirror that asks for proof.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    Proven,
    /// `may_ask`: it is proof enough if the registry of the original says that the namespace may have it.
    Unproven {
        may_ask: bool,
    },
    /// The mirror has made no such copy.
    NotCopied,
}

impl Standing {
    /// Why the namespace is not offered the copy. `opened`: the registry of the original says that it may have it.
    pub fn withheld(self, opened: bool) -> Option<Withheld> {
        match self {
            Self::Proven => None,
            Self::NotCopied => Some(Withheld::NotCopied),
            Self::Unproven { may_ask } => (!may_ask || !opened).then_some(Withheld::Unproven),
        }
    }
}

/// Whose ledger has a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recorded {
    /// That of the mirror that offers the copy.
    ByMirror,
    ByAnother,
}

impl Recorded {
    pub fn by_mirror(own: bool) -> Self {
        if own { Self::ByMirror } else { Self::ByAnother }
    }
}

/// What a ledger says of the place of a copy.
#[derive(Debug, Clone, Copy)]
pub struct Made {
    pub by: Recorded,
    /// It is about the source in question.
    pub of_source: bool,
    pub state: CopyState,
    /// Another source's copy is there until this one is made.
    pub replaces: bool,
    /// We wrote what is there.
    pub written: bool,
}

/// Where a namespace stands with a copy. `rows` are those that ledgers have about its place, `is_proven` whether the
/// ledger of the mirror itself has proof of the namespace. Ledgers of other objects prove nothing: that of a namespaced
/// object is where its tenants are.
///
/// A registry's word without the content counts only where the copy is known to have been made of this source and of
/// nothing else.
pub fn standing(
    source: &Reference,
    rows: impl IntoIterator<Item = Made>,
    is_proven: impl FnOnce() -> bool,
) -> Standing {
    let (mut written, mut alone) = (None, true);
    for row in rows.into_iter().filter(|row| row.state != CopyState::Refused && !row.replaces) {
        if row.by == Recorded::ByMirror && row.of_source {
            written = Some(row.written);
        }
        alone &= row.of_source;
    }
    match written {
        None => Standing::NotCopied,
        Some(_) if is_proven() => Standing::Proven,
        Some(written) => Standing::Unproven { may_ask: written && alone && source.digest().is_none() },
    }
}

/// Brings the proofs of one image up to date with the namespaces that use it, each once.
///
/// [`MAX_PROOFS`] are remembered: those of users first, then the latest of others. Once they are all of users, further
/// namespaces are neither added nor tried, or they would take each other's place for ever. They prove their access at
/// admission.
pub fn review(known: &Proofs, users: &[User], lifetime: SignedDuration, now: Timestamp) -> Reviewed {
    let mut others = known.clone();
    others.retain(|_, at| counts(*at, lifetime, now));
    let mut proofs = Proofs::new();
    let (mut new, mut to_try) = (Vec::new(), Vec::new());
    let renew_after = RENEW_AFTER.min(lifetime / 4);
    for user in users {
        let Some(at) = others.remove(&user.namespace) else {
            new.push(user);
            continue;
        };
        let due = now.duration_since(at) >= renew_after;
        if due && !user.ran {
            to_try.push(Arc::clone(&user.namespace));
        }
        proofs.insert(Arc::clone(&user.namespace), if due && user.ran { now } else { at });
    }
    for user in new {
        if proofs.len() >= MAX_PROOFS {
            break;
        }
        if user.ran {
            proofs.insert(Arc::clone(&user.namespace), now);
        } else {
            to_try.push(Arc::clone(&user.namespace));
        }
    }
    let mut others: Vec<_> = others.into_iter().collect();
    others.sort_by_key(|(_, at)| std::cmp::Reverse(*at));
    let room = MAX_PROOFS.saturating_sub(proofs.len());
    proofs.extend(others.into_iter().take(room));
    Reviewed { proofs, to_try }
}

/// What changes in a ledger once the credentials of namespaces have opened an original. None: nothing, for instance
/// because the ledger does not have the image any more.
pub fn proven(
    ledger: &Ledger,
    source: &Reference,
    namespaces: &[Arc<str>],
    now: Timestamp,
) -> Option<LedgerChange> {
    let entry = ledger.get(source)?;
    let proofs = adding(&entry.access, namespaces, whole_seconds(now));
    (proofs != entry.access).then(|| access_change(source, entry, proofs))
}

/// The same proofs, and new ones of these namespaces.
fn adding(known: &Proofs, namespaces: &[Arc<str>], now: Timestamp) -> Proofs {
    let mut proofs = known.clone();
    proofs.extend(namespaces.iter().map(|namespace| (Arc::clone(namespace), now)));
    bound(&mut proofs);
    proofs
}

fn access_change(source: &Reference, entry: &Entry, access: Proofs) -> LedgerChange {
    LedgerChange::set(source, Entry { access, ..entry.clone() })
}

/// How long it is waited after so many failures in a row.
pub fn retry_after(failures: u32) -> SignedDuration {
    SignedDuration::try_from(RETRY.plain(failures)).unwrap_or(SignedDuration::MAX)
}

/// The namespaces on whose behalf an original is opened in one round. Where there are many, others have their turn in
/// the next.
pub fn turn_of(namespaces: &[Arc<str>], round: u32) -> &[Arc<str>] {
    let turns = namespaces.chunks(MAX_PROOFS);
    let turn = usize::try_from(round).unwrap_or_default() % turns.len().max(1);
    namespaces.chunks(MAX_PROOFS).nth(turn).unwrap_or_default()
}

/// An original that has to be opened on behalf of namespaces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    pub source: Reference,
    /// What opening it must lead to.
    pub digest: Digest,
    pub namespaces: Vec<Arc<str>>,
}

/// What follows for a whole ledger.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct LedgerReview {
    /// Proofs are added, renewed and forgotten.
    pub changes: Vec<LedgerChange>,
    pub to_try: Vec<Attempt>,
}

/// Reviews every image of a ledger. `used` is in order of images.
///
/// While access is shared no proof is gathered. Those that are there last for their lifetime, so that an edit back and
/// forth loses nothing.
pub fn review_ledger(
    ledger: &Ledger,
    used: &[Used],
    access: MirrorAccess,
    lifetime: SignedDuration,
    now: Timestamp,
) -> LedgerReview {
    let mut review_of = LedgerReview::default();
    let now = whole_seconds(now);
    for (source, entry) in ledger.iter() {
        let users = match access {
            MirrorAccess::Proven => users_of(source, entry, used),
            MirrorAccess::Shared if entry.access.is_empty() => continue,
            MirrorAccess::Shared => Vec::new(),
        };
        let Reviewed { proofs, to_try: namespaces } = review(&entry.access, &users, lifetime, now);
        if proofs != entry.access {
            review_of.changes.push(access_change(source, entry, proofs));
        }
        if let Some(digest) = entry.source_digest.filter(|_| !namespaces.is_empty()) {
            review_of.to_try.push(Attempt { source: source.clone(), digest, namespaces });
        }
    }
    review_of
}

/// The namespaces that use an image, in order.
fn users_of(source: &Reference, entry: &Entry, used: &[Used]) -> Vec<User> {
    let at = used.binary_search_by(|used| used.image.cmp(source));
    let Some(used) = at.ok().and_then(|at| used.get(at)) else { return Vec::new() };
    let mut users: Vec<User> = Vec::new();
    for holder in &*used.holders {
        if users.last().is_some_and(|last| last.namespace == holder.namespace) {
            continue;
        }
        let namespace = Arc::clone(&holder.namespace);
        let ran =
            entry.source_digest.is_some_and(|digest| used.ran.binary_search(&(namespace, digest)).is_ok());
        users.push(User { namespace: Arc::clone(&holder.namespace), ran });
    }
    users
}

/// Brings proofs into the form in which they are stored.
pub(crate) fn tidy(proofs: &mut Proofs) {
    proofs.retain(|namespace, at| {
        *at = whole_seconds(*at);
        (1..=LONGEST_NAMESPACE).contains(&namespace.len())
    });
    bound(proofs);
}

/// Keeps the latest.
fn bound(proofs: &mut Proofs) {
    while proofs.len() > MAX_PROOFS {
        let oldest = proofs.iter().min_by_key(|(_, at)| **at).map(|(namespace, _)| Arc::clone(namespace));
        let Some(oldest) = oldest else { return };
        proofs.remove(&oldest);
    }
}
