//! The digest that each image was last seen to have, on behalf of whom it was looked at. A newer look replaces it;
//! there is room for a number of images, of which those that were seen longest ago give way.

use std::collections::HashMap;
use std::hash::Hash;

use fairlead_domain::reference::{ImageKey, Reference};
use fairlead_domain::verdict::Verdict;
use jiff::Timestamp;

use super::{NamespaceImage, SeenDigest};
use crate::credentials::Principal;
use crate::verdict_ttl::{LastDigest, last_digest};

/// Images and principals that are remembered.
const MOST: usize = 8192;
/// The part that makes room when there is none: more at once, so that the search is paid once in many insertions.
const EVICTED_SHARE: usize = 8;

#[derive(Debug, Clone, Default)]
pub(super) struct LastSeen {
    /// By image, on behalf of cluster-scoped objects.
    cluster: HashMap<ImageKey, SeenDigest>,
    namespaces: HashMap<NamespaceImage, SeenDigest>,
}

impl LastSeen {
    /// Takes up what a look found, and tells whether another digest is known by it.
    pub(super) fn heed(
        &mut self,
        principal: &Principal,
        image: &Reference,
        verdict: &Verdict,
        at: Timestamp,
    ) -> bool {
        let found = match last_digest(image, verdict) {
            LastDigest::Is(digest) => Some(SeenDigest { digest, at: at.as_second() }),
            LastDigest::Forgotten => None,
            LastDigest::Unchanged => return false,
        };
        match principal {
            Principal::Cluster => replace(&mut self.cluster, image.key(), found),
            Principal::Namespace(namespace) => {
                replace(&mut self.namespaces, (namespace.clone(), image.key()), found)
            }
        }
    }

    pub(super) fn for_cluster(&self, image: &Reference) -> Option<SeenDigest> {
        // Without such objects, no key is made.
        if self.cluster.is_empty() { None } else { self.cluster.get(&image.key()).copied() }
    }

    pub(super) fn for_namespace(&self, key: &NamespaceImage) -> Option<SeenDigest> {
        self.namespaces.get(key).copied()
    }
}

fn replace<K: Eq + Hash>(known: &mut HashMap<K, SeenDigest>, key: K, found: Option<SeenDigest>) -> bool {
    let Some(found) = found else { return known.remove(&key).is_some() };
    if known.len() >= MOST && !known.contains_key(&key) {
        let mut times: Vec<i64> = known.values().map(|seen| seen.at).collect();
        let (_, oldest, _) = times.select_nth_unstable(MOST / EVICTED_SHARE);
        let oldest = *oldest;
        // All may be of one second.
        let (mut room, evicted) = (0, MOST / EVICTED_SHARE);
        known.retain(|_, seen| {
            let stays = seen.at > oldest || room >= evicted;
            room += usize::from(!stays);
            stays
        });
    }
    known.insert(key, found).is_none_or(|before| before.digest != found.digest)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use fairlead_domain::digest::Digest;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a time")
    }

    fn available(of: &str) -> Verdict {
        Verdict::Available { digest: Some(Digest::sha256(of.as_bytes())) }
    }

    #[test]
    fn a_digest_stays_until_another_look_replaces_it() {
        let image: Reference = "registry.example/app:1".parse().expect("a reference");
        let (cluster, shop) = (Principal::Cluster, Principal::Namespace("shop".into()));
        let key = (Arc::from("shop"), image.key());
        let mut seen = LastSeen::default();
        assert!(seen.heed(&shop, &image, &available("old"), at(1)));
        assert_eq!(seen.for_cluster(&image), None, "no principal learns what another one is told");
        assert!(!seen.heed(&shop, &image, &available("old"), at(2)), "it is no news");
        for silence in [Verdict::Unreachable { reason: "".into() }, Verdict::Available { digest: None }] {
            assert!(!seen.heed(&shop, &image, &silence, at(3)));
        }
        let old = SeenDigest { digest: Digest::sha256(b"old"), at: 2 };
        assert_eq!(seen.for_namespace(&key), Some(old));
        assert!(seen.heed(&cluster, &image, &available("new"), at(4)));
        assert_eq!(seen.for_cluster(&image).map(|seen| seen.at), Some(4));
        assert_eq!(seen.for_namespace(&key), Some(old));
        assert!(seen.heed(&shop, &image, &Verdict::NotFound { reason: "".into() }, at(5)));
        assert_eq!(seen.for_namespace(&key), None);
        let pinned = image.with_digest(&Digest::sha256(b"old"));
        assert!(!seen.heed(&shop, &pinned, &available("old"), at(6)), "a digest cannot move");
    }

    #[test]
    fn what_was_seen_longest_ago_makes_room() {
        let image = |number: usize| -> Reference {
            format!("registry.example/app:{number}").parse().expect("a reference")
        };
        for second in [|number: i64| number, |_| 7] {
            let mut seen = LastSeen::default();
            for number in 0..=MOST {
                let time = at(second(i64::try_from(number).expect("a small number")));
                seen.heed(&Principal::Cluster, &image(number), &available("app"), time);
            }
            assert!(seen.cluster.len() <= MOST && seen.cluster.len() > MOST / 2, "{}", seen.cluster.len());
            assert!(seen.for_cluster(&image(MOST)).is_some());
        }
    }
}
