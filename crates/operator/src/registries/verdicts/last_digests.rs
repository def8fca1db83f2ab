//! The last digest that each tag was seen to have, for pins while a registry does not answer, and for the inventory. Verdicts end after a
//! minute and give way to bad news; this stays until the registry says that the tag is gone or refuses access, or
//! until there is no more room.

use std::collections::HashMap;

use fairlead_domain::digest::Digest;
use fairlead_domain::verdict::Verdict;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::cache::{Asked, Image};

const MOST: usize = 4096;
/// The part that makes room when there is none: more at once, so that the search is paid once in many insertions.
const EVICTED_SHARE: usize = 8;

/// By the hash of image, credentials and cause.
#[derive(Debug, Default)]
pub(super) struct LastDigests(Mutex<HashMap<u64, LastDigest>>);

#[derive(Debug)]
struct LastDigest {
    image: Image,
    digest: Digest,
    seen: Instant,
}

impl LastDigests {
    /// The digest, and when it was seen.
    pub(super) fn of(&self, asked: &Asked<'_>) -> Option<(Digest, Instant)> {
        let known = self.0.lock();
        known.get(&asked.hash()).filter(|last| asked.is(&last.image)).map(|last| (last.digest, last.seen))
    }

    pub(super) fn heed(&self, image: &Image, verdict: &Verdict, seen: Instant) {
        if image.reference().digest().is_some() {
            return;
        }
        match verdict {
            Verdict::Available { digest: Some(digest) } => {
                let mut known = self.0.lock();
                if known.len() >= MOST && !known.contains_key(&image.hash()) {
                    let mut times: Vec<Instant> = known.values().map(|last| last.seen).collect();
                    let (_, oldest, _) = times.select_nth_unstable(MOST / EVICTED_SHARE);
                    let oldest = *oldest;
                    known.retain(|_, last| last.seen > oldest);
                }
                known.insert(image.hash(), LastDigest { image: image.clone(), digest: *digest, seen });
            }
            Verdict::NotFound { .. } | Verdict::Unauthorised { .. } | Verdict::Forbidden { .. } => {
                self.0.lock().remove(&image.hash());
            }
            _ => {}
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
        for tag in 0..=MOST {
            let seen = now + second * u32::try_from(tag).expect("a small number");
            last.heed(&asked(tag).own(), &there, seen);
        }
        assert!(last.0.lock().len() < MOST, "the oldest make room");
        let of = |tag| last.of(&asked(tag)).map(|(digest, _)| digest);
        assert_eq!((of(0), of(MOST)), (None, there.digest()));
    }
}
