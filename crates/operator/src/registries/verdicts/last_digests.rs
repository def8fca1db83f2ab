//! The last digest that each tag was seen to have, for pins while a registry does not answer, and for the inventory.
//! Verdicts end after a minute and give way to bad news; this stays until the registry says that the tag is gone or
//! refuses access, or until there is no more room.

use fairlead_domain::digest::Digest;
use fairlead_domain::reference::{HostKey, Reference};
use fairlead_domain::verdict::Verdict;
use fairlead_plan::verdict_ttl::{self, LastDigest};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::cache::{Asked, Image};
use crate::registries::cache::{BoundedMap, Capacity, Grouped};

const CAPACITY: Capacity = Capacity { entries: 4096, bytes: 4 << 20 };

/// Roughly what an image takes beside its name.
const IMAGE_BYTES: usize = 128;

#[derive(Debug)]
pub(super) struct LastDigests(Mutex<BoundedMap<DigestKey, SeenImage>>);

/// The hash of image, credentials and cause. A registry with many tags displaces its own.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct DigestKey {
    registry: HostKey,
    hash: u64,
}

impl DigestKey {
    fn new(reference: &Reference, hash: u64) -> Self {
        Self { registry: reference.host().key(), hash }
    }
}

impl Grouped for DigestKey {
    type Group = HostKey;

    fn group(&self) -> &HostKey {
        &self.registry
    }
}

#[derive(Debug)]
struct SeenImage {
    image: Image,
    digest: Digest,
    seen: Instant,
}

impl Default for LastDigests {
    fn default() -> Self {
        Self(Mutex::new(BoundedMap::new(CAPACITY)))
    }
}

impl LastDigests {
    /// The digest, and when it was seen.
    pub(super) fn of(&self, asked: &Asked<'_>) -> Option<(Digest, Instant)> {
        let mut known = self.0.lock();
        let last = known.get(&DigestKey::new(asked.reference(), asked.hash()))?;
        asked.is(&last.image).then_some((last.digest, last.seen))
    }

    pub(super) fn heed(&self, image: &Image, verdict: &Verdict, seen: Instant) {
        let found = verdict_ttl::last_digest(image.reference(), verdict);
        let key = || DigestKey::new(image.reference(), image.hash());
        match found {
            LastDigest::Is(digest) => {
                let bytes = image.reference().as_str().len() + IMAGE_BYTES;
                self.0.lock().insert(&key(), SeenImage { image: image.clone(), digest, seen }, bytes);
            }
            LastDigest::Forgotten => self.0.lock().remove(&key()),
            LastDigest::Unchanged => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use fairlead_domain::cause::Cause;
    use fairlead_domain::reference::Reference;

    use super::super::cache::Cache;
    use super::super::settings::VerdictSettings;
    use super::*;

    #[test]
    fn the_last_digest_outlives_silence_and_not_an_answer() {
        let settings = VerdictSettings {
            refresh: std::time::Duration::from_secs(30),
            timeout: None,
            resolve_digest: false,
            capacity: 16,
        };
        let (cache, last, now) = (Cache::new(16, settings.ages()), LastDigests::default(), Instant::now());
        let asked = |tag: usize| {
            let image: Reference = format!("r.example/app:{tag}").parse().expect("a reference");
            cache.asked(&image, &[], Cause::Administrator)
        };
        let there = Verdict::Available { digest: Some(Digest::sha256(b"there")) };
        let reason = || "".into();
        last.heed(&asked(1).own(), &there, now);
        for silence in [
            Verdict::Unreachable { reason: reason() },
            Verdict::RateLimited { until: None, reason: reason() },
            Verdict::Available { digest: None },
        ] {
            last.heed(&asked(1).own(), &silence, now);
            assert_eq!(last.of(&asked(1)), there.digest().map(|digest| (digest, now)), "{silence}");
        }
        assert_eq!(last.of(&asked(2)), None);
        for answer in [
            Verdict::NotFound { reason: reason() },
            Verdict::Unauthorised { reason: reason() },
            Verdict::Forbidden { reason: reason() },
        ] {
            last.heed(&asked(1).own(), &there, now);
            last.heed(&asked(1).own(), &answer, now);
            assert_eq!(last.of(&asked(1)), None, "{answer}");
        }
        let second = std::time::Duration::from_secs(1);
        let other: Reference = "other.example/app:1".parse().expect("a reference");
        let other = cache.asked(&other, &[], Cause::Administrator);
        last.heed(&other.own(), &there, now);
        for tag in 0..=CAPACITY.entries {
            let seen = now + second * u32::try_from(tag).expect("a small number");
            last.heed(&asked(tag).own(), &there, seen);
        }
        let of = |tag| last.of(&asked(tag)).map(|(digest, _)| digest);
        assert_eq!((of(0), of(CAPACITY.entries)), (None, there.digest()), "the oldest make room");
        assert!(last.of(&other).is_some(), "but not for another registry");
    }
}
