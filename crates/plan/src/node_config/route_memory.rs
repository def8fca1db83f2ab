//! What a router remembers between the requests of a pull.
//!
//! A runtime asks for a tag once and from then on for digests only. Mirrors for tags and mirrors for digests differ, so
//! the router remembers which digests belong to the pull of a tag, and which place served it. It also remembers
//! which registries fail, so that a dead mirror does not delay every layer, and which places sent wrong content.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use fairlead_domain::backoff::Backoff;
use fairlead_domain::digest::Digest;

use super::PullKind;
use super::route::{Object, Wanted};

/// What is remembered is forgotten after this time at the earliest, and after twice this time at the latest. Runtimes
/// ask for the last layers of a large image long after they asked for its tag.
const LIFETIME: Duration = Duration::from_mins(30);
/// Each kind of knowledge keeps at most twice this many items.
const MOST: usize = 4096;
/// A registry that failed is not asked for this long; doubled with each failure in a row.
const PAUSES: Backoff = Backoff::new(Duration::from_secs(10), Duration::from_mins(2)).with_jitter(0.25);

/// The pull that a request belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pull {
    pub kind: PullKind,
    pub origin: Origin,
    /// The request is in the middle of a pull whose beginning is not known, as after another router began to serve it.
    /// The kind is then no more than a guess.
    pub is_guessed: bool,
}

impl Pull {
    fn beginning(kind: PullKind) -> Self {
        Self { kind, origin: Origin::Unknown, is_guessed: false }
    }
}

/// What served a pull so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    Unknown,
    /// This repository of a mirror.
    Mirror(Arc<str>),
    Source,
}

impl Origin {
    pub(super) fn is(&self, place: &str) -> bool {
        matches!(self, Self::Mirror(name) if **name == *place)
    }
}

#[derive(Debug, Default)]
pub struct RouteMemory {
    /// Objects by the name of their repository.
    objects: Recent<(Arc<str>, Digest), Pull>,
    /// Repositories of which a tag was left to the source.
    left_to_source: Recent<Arc<str>, ()>,
    /// Objects that a place sent wrongly.
    spoiled: Recent<(Arc<str>, Digest), ()>,
    failing: HashMap<Arc<str>, Failing>,
}

#[derive(Clone, Copy, Debug)]
struct Failing {
    in_a_row: u32,
    until: Duration,
}

impl RouteMemory {
    /// The pull that a request belongs to.
    pub fn pull(&mut self, wanted: &Wanted<'_>, now: Duration) -> Pull {
        let Some(digest) = wanted.object.digest() else {
            return Pull::beginning(PullKind::Tag);
        };
        let key = (Arc::from(wanted.name), digest);
        let known = self.objects.get(&key, now);
        let begins = wanted.head && matches!(wanted.object, Object::Manifest(_));
        let pull = match known {
            Some(pull) if !begins || pull.kind == PullKind::Digest => pull,
            None if !begins && self.left_to_source.get(&key.0, now).is_some() => {
                return Pull { origin: Origin::Source, ..Pull::beginning(PullKind::Tag) };
            }
            _ => Pull { is_guessed: !begins, ..Pull::beginning(PullKind::Digest) },
        };
        if begins {
            self.objects.insert(key, pull.clone(), now);
        }
        pull
    }

    /// Objects of a repository are part of a pull that a mirror serves.
    pub fn served(
        &mut self,
        name: &str,
        digests: impl IntoIterator<Item = Digest>,
        kind: PullKind,
        place: &str,
        now: Duration,
    ) {
        let name: Arc<str> = name.into();
        let pull = Pull { origin: Origin::Mirror(place.into()), ..Pull::beginning(kind) };
        for digest in digests {
            self.objects.insert((Arc::clone(&name), digest), pull.clone(), now);
        }
    }

    /// The source says which digest a tag of the repository has; it does not reach the router.
    pub fn left_to_source(&mut self, name: &str, now: Duration) {
        self.left_to_source.insert(name.into(), (), now);
    }

    /// A place sent content that does not have the digest.
    pub fn spoiled(&mut self, place: &str, digest: Digest, now: Duration) {
        self.spoiled.insert((place.into(), digest), (), now);
    }

    pub(super) fn is_spoiled(&self, place: &str, digest: Digest, now: Duration) -> bool {
        self.spoiled.contains(&(Arc::from(place), digest), now)
    }

    /// A registry does not answer. `jitter` in 0..1 keeps nodes apart that failed together.
    pub fn failed(&mut self, host: &str, now: Duration, jitter: f64) {
        let before = self.failing.get(host).map_or(0, |failing| failing.in_a_row);
        let (in_a_row, until) = (before.saturating_add(1), now + PAUSES.pause(before, jitter));
        if self.failing.len() >= MOST {
            self.failing.retain(|_, failing| failing.until > now);
        }
        if self.failing.len() < MOST || self.failing.contains_key(host) {
            self.failing.insert(host.into(), Failing { in_a_row, until });
        }
    }

    pub fn answered(&mut self, host: &str) {
        self.failing.remove(host);
    }

    pub(super) fn is_failing(&self, host: &str, now: Duration) -> bool {
        self.failing.get(host).is_some_and(|failing| failing.until > now)
    }
}

/// A bounded map that forgets what was not used for a while. Two generations take turns, so that nothing is searched.
#[derive(Debug)]
struct Recent<K, V> {
    new: HashMap<K, V>,
    old: HashMap<K, V>,
    since: Duration,
}

impl<K, V> Default for Recent<K, V> {
    fn default() -> Self {
        Self { new: HashMap::new(), old: HashMap::new(), since: Duration::ZERO }
    }
}

impl<K: Eq + Hash + Clone, V: Clone> Recent<K, V> {
    fn insert(&mut self, key: K, value: V, now: Duration) {
        self.turn(now);
        if self.new.len() >= MOST {
            self.old = std::mem::take(&mut self.new);
            self.since = now;
        }
        self.new.insert(key, value);
    }

    /// What is used stays.
    fn get(&mut self, key: &K, now: Duration) -> Option<V> {
        self.turn(now);
        if let Some(value) = self.new.get(key) {
            return Some(value.clone());
        }
        let value = self.old.get(key)?.clone();
        self.insert(key.clone(), value.clone(), now);
        Some(value)
    }

    /// A look alone keeps nothing.
    fn contains(&self, key: &K, now: Duration) -> bool {
        let age = now.saturating_sub(self.since);
        let is_in_old = || age < LIFETIME && self.old.contains_key(key);
        age < LIFETIME * 2 && self.new.contains_key(key) || is_in_old()
    }

    fn turn(&mut self, now: Duration) {
        if now.saturating_sub(self.since) < LIFETIME {
            return;
        }
        let new = std::mem::take(&mut self.new);
        // After a long silence both generations are over.
        let is_recent = now.saturating_sub(self.since) < LIFETIME * 2;
        self.old = if is_recent { new } else { HashMap::new() };
        self.since = now;
    }
}
