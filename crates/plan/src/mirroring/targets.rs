//! The mirrors of one policy as copies see them: where a source is to be copied to, and how long a copy stays.

use fairlead_api::kuik::MAX_MIRRORS;
use fairlead_domain::reference::{Location, LocationError, PlaceKey, Reference};
use jiff::Timestamp;

use super::NO_LONGER_MATCHING;
use super::destination_key::{fingerprint, fingerprint_below, suffix};
use super::join::Joined;
use super::loops::Loops;
use crate::ledger::{Copy, Named};
use crate::routing::Policy;

#[derive(Debug)]
pub(super) struct Aims<'p> {
    pub(super) policy: &'p Policy,
    list: Vec<Aim<'p>>,
}

#[derive(Debug)]
pub(super) struct Aim<'p> {
    place: &'p Location,
    key: PlaceKey<'p>,
    retention: Option<std::time::Duration>,
    /// Whether a copy is named by putting the source's path behind the place. On Docker Hub itself a path of one
    /// segment gains another.
    plain: bool,
}

impl<'p> Aims<'p> {
    pub(super) fn of(policy: &'p Policy) -> Self {
        let mut list: Vec<Aim<'p>> = Vec::new();
        for target in policy.targets() {
            let key = target.place.key();
            if list.len() < MAX_MIRRORS && list.iter().all(|known| known.key != key) {
                list.push(Aim {
                    place: target.place,
                    key,
                    retention: target.cleanup.map(|retention| retention.as_std()),
                    plain: !target.place.path().is_empty() || !target.place.host().is_docker_hub(),
                });
            }
        }
        Self { policy, list }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Aim<'p>> {
        self.list.iter()
    }

    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    /// The number of the mirror that a copy of the source at this destination belongs to.
    pub(super) fn position(&self, source: &Reference, destination: &Reference) -> Option<usize> {
        self.list.iter().position(|aim| aim.leads_to(source, destination))
    }

    pub(super) fn get(&self, position: usize) -> Option<&Aim<'p>> {
        self.list.get(position)
    }

    /// Whether an image is to be copied: a Pod asked for it, and it does not lie in a mirror.
    pub(super) fn wants(&self, image: &Joined<'_>, loops: &Loops) -> bool {
        image.used.is_some_and(|used| used.original) && !loops.excludes(self.policy.id(), image.source)
    }

    /// Since when an image that no Pod uses counts as unused: an edit of the filter starts the retention like the end
    /// of the last Pod does.
    pub(super) fn unused_since(image: &Joined<'_>, now: Timestamp) -> Timestamp {
        let known = image.entry.and_then(|entry| entry.unused_since);
        // What kube-image-keeper has for images that the filter leaves out is no time.
        known.filter(|since| *since != NO_LONGER_MATCHING).unwrap_or(now)
    }
}

impl<'p> Aim<'p> {
    pub(super) fn place(&self) -> &'p Location {
        self.place
    }

    /// Where the copy of a source is.
    pub(super) fn destination(&self, source: &Reference) -> Result<Reference, LocationError> {
        self.place.copy_of(source)
    }

    /// The same as comparing with [`Self::destination`], the host in whatever spelling, without making it where that
    /// can be helped: every round asks this of every copy.
    fn leads_to(&self, source: &Reference, destination: &Reference) -> bool {
        if suffix(source) != suffix(destination) {
            return false;
        }
        if !self.plain {
            return self.destination(source).is_ok_and(|own| own.place() == destination.place());
        }
        let place = destination.place();
        let below = place.as_str().strip_prefix(self.key.as_str());
        below.and_then(|rest| rest.strip_prefix('/')) == Some(source.path())
    }

    pub(super) fn fingerprint(&self, source: &Reference) -> u64 {
        if self.plain {
            fingerprint_below(&self.key, source)
        } else {
            self.destination(source).map_or(0, |destination| fingerprint(&destination))
        }
    }

    /// When a copy goes whose image has been unused since then. `None`: it stays.
    pub(super) fn gone_at(&self, unused_since: Timestamp, copy: &Copy) -> Option<Timestamp> {
        let named_until = match copy.named {
            Some(Named::Until(time)) => Some(time),
            Some(Named::Now) | None => None,
        };
        self.retention.map(|retention| retention_end(unused_since, named_until, retention))
    }

    pub(super) fn cleans_up(&self) -> bool {
        self.retention.is_some()
    }
}

/// When the retention of a copy is over whose image has been unused since then, and which Pods named themselves until
/// then.
pub(super) fn retention_end(
    unused_since: Timestamp,
    named_until: Option<Timestamp>,
    retention: std::time::Duration,
) -> Timestamp {
    let since = named_until.map_or(unused_since, |until| unused_since.max(until));
    since.checked_add(retention).unwrap_or(Timestamp::MAX)
}
