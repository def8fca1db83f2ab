//! What has to be remembered between two looks at Pods: which container a kubelet reported a mount of, which digests
//! registries named for references, and when, and what was expected of volumes when it was first known.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use fairlead_domain::digest::Digest;
use fairlead_domain::reference::{ImageKey, Reference};
use fairlead_domain::verdict::Verdict;
use jiff::Timestamp;

use super::last_seen::LastSeen;
use super::{Expected, Proof, Resolved};
use crate::credentials::Principal;

/// Digests that are remembered of one reference, the latest ones.
const MOST_DIGESTS: usize = 4;

/// UID of a Pod, name of a container, path of a mount.
type MountKey = (Arc<str>, Arc<str>, Arc<str>);

/// What kubelets reported of mounts, and of which container.
#[derive(Debug, Clone, Default)]
pub struct MountMemory(HashMap<MountKey, MountReport>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct MountReport {
    container_id: u64,
    reported: Arc<str>,
    unconfirmed: bool,
}

impl MountMemory {
    /// Takes up what is reported of a mount, and tells whether it is unconfirmed: the container is another one than the
    /// one that the same was reported of first. A kubelet that reports nothing in between has nothing to repeat.
    pub fn look(
        &mut self,
        pod: &Arc<str>,
        container: &Arc<str>,
        path: &Arc<str>,
        container_id: u64,
        reported: Option<&Arc<str>>,
    ) -> bool {
        let key = (Arc::clone(pod), Arc::clone(container), Arc::clone(path));
        let Some(reported) = reported else {
            self.0.remove(&key);
            return false;
        };
        let fresh = MountReport { container_id, reported: Arc::clone(reported), unconfirmed: false };
        let report = self.0.entry(key).or_insert_with(|| fresh.clone());
        if report.reported != fresh.reported {
            *report = fresh;
        } else if report.container_id != container_id {
            // A container that is not there yet says nothing about the one that will be.
            report.unconfirmed |= report.container_id != 0;
            report.container_id = container_id;
        }
        report.unconfirmed
    }

    /// Forgets Pods that are gone.
    pub fn keep(&mut self, present: &HashSet<Arc<str>>) {
        self.0.retain(|(pod, ..), _| present.contains(pod));
    }
}

/// An image on behalf of a namespace.
pub type NamespaceImage = (Arc<str>, ImageKey);

/// What registries said of references, on behalf of namespaces: no namespace learns the answers of another one.
#[derive(Debug, Clone, Default)]
pub struct Resolutions {
    seen: BTreeMap<NamespaceImage, Vec<Resolution>>,
    failed: BTreeMap<NamespaceImage, FailedLook>,
    /// What any look found, wanted by anything here or not.
    last: LastSeen,
    /// Since when images are looked at, in seconds since 1970.
    begun: i64,
}

/// A digest that a reference was seen to have, and when that was last, in seconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeenDigest {
    pub digest: Digest,
    pub at: i64,
}

/// A digest, and from when until when it was seen.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Resolution {
    digest: Digest,
    first: Timestamp,
    last: Timestamp,
}

/// A look that found no digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct FailedLook {
    at: Timestamp,
    why: ReadFailure,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReadFailure {
    /// The registry says that there is no such image.
    Missing,
    /// It answered, and another look will hardly find more.
    Refused,
    /// It did not answer, or not this time.
    Silent,
}

impl Resolutions {
    /// Nothing was looked at before this time.
    pub fn beginning(at: Timestamp) -> Self {
        Self { begun: at.as_second(), ..Self::default() }
    }

    pub(super) fn begun(&self) -> i64 {
        self.begun
    }

    /// Takes up what a look of the watch found, and tells whether anything is to be gone through again for it.
    pub fn saw(
        &mut self,
        principal: &Principal,
        image: &Reference,
        verdict: &Verdict,
        at: Timestamp,
    ) -> bool {
        let is_news = self.last.heed(principal, image, verdict, at);
        match principal {
            Principal::Namespace(namespace) => {
                self.heed(namespace, image, verdict, at);
                true
            }
            Principal::Cluster => is_news,
        }
    }

    /// Takes up what a look found that was asked for here.
    pub fn heed(&mut self, namespace: &Arc<str>, image: &Reference, verdict: &Verdict, at: Timestamp) {
        let why = match verdict {
            Verdict::Available { digest: Some(digest) } => return self.learn(namespace, image, *digest, at),
            Verdict::NotFound { .. } => ReadFailure::Missing,
            Verdict::Available { digest: None }
            | Verdict::Unauthorised { .. }
            | Verdict::Forbidden { .. }
            | Verdict::OffLimits { .. } => ReadFailure::Refused,
            _ => ReadFailure::Silent,
        };
        self.failed.insert((Arc::clone(namespace), image.key()), FailedLook { at, why });
    }

    pub fn learn(&mut self, namespace: &Arc<str>, image: &Reference, digest: Digest, at: Timestamp) {
        let key = (Arc::clone(namespace), image.key());
        self.failed.remove(&key);
        let known = self.seen.entry(key).or_default();
        match known.last_mut().filter(|last| last.digest == digest) {
            Some(last) => last.last = at,
            None => known.push(Resolution { digest, first: at, last: at }),
        }
        if known.len() > MOST_DIGESTS {
            known.remove(0);
        }
    }

    fn of(&self, namespace: &Arc<str>, image: &Reference) -> &[Resolution] {
        self.seen.get(&(Arc::clone(namespace), image.key())).map_or(&[], Vec::as_slice)
    }

    fn failure(&self, namespace: &Arc<str>, image: &Reference) -> Option<FailedLook> {
        self.failed.get(&(Arc::clone(namespace), image.key())).copied()
    }

    /// The digest that was seen first after a time, in seconds since 1970.
    pub fn since(&self, namespace: &Arc<str>, image: &Reference, created: i64) -> Option<Digest> {
        let after = |seen: &&Resolution| seen.last.as_second() >= created;
        self.of(namespace, image).iter().find(after).map(|seen| seen.digest)
    }

    /// The digest that was seen last.
    pub fn now(&self, namespace: &Arc<str>, image: &Reference) -> Option<SeenDigest> {
        let last = self.of(namespace, image).last()?;
        Some(SeenDigest { digest: last.digest, at: last.last.as_second() })
    }

    /// The digest that any look on behalf of the namespace saw last, also where nothing here wants to know of it.
    pub fn last_seen(&self, namespace: &Arc<str>, image: &Reference) -> Option<SeenDigest> {
        let last = self.last.for_namespace(&(Arc::clone(namespace), image.key()));
        last.into_iter().chain(self.now(namespace, image)).max_by_key(|seen| seen.at)
    }

    /// The digest that looks on behalf of cluster-scoped objects saw last, with whose Secrets ever. Namespaces do not
    /// learn it; it is a reason to look on behalf of one.
    pub(super) fn seen_for_cluster(&self, image: &Reference) -> Option<SeenDigest> {
        self.last.for_cluster(image)
    }

    /// When the image was last looked at, whatever was found.
    pub fn last_look(&self, namespace: &Arc<str>, image: &Reference) -> Option<Timestamp> {
        let seen = self.of(namespace, image).last().map(|seen| seen.last);
        seen.max(self.failure(namespace, image).map(|failed| failed.at))
    }

    /// Whether the registry has the image, as far as it said so; that it refuses access counts if it said so after a
    /// time, in seconds since 1970.
    pub fn has(&self, namespace: &Arc<str>, image: &Reference, created: i64) -> Option<Proof> {
        if self.now(namespace, image).is_some() {
            return Some(Proof::Holds);
        }
        let failed = self.failure(namespace, image)?;
        match failed.why {
            ReadFailure::Missing => Some(Proof::Lacks),
            ReadFailure::Refused if failed.at.as_second() >= created => Some(Proof::Refuses),
            ReadFailure::Refused | ReadFailure::Silent => None,
        }
    }

    /// Whether the last look found nothing because the registry did not answer.
    pub fn is_silent(&self, namespace: &Arc<str>, image: &Reference) -> bool {
        self.failure(namespace, image).is_some_and(|failed| failed.why == ReadFailure::Silent)
    }

    /// Forgets what is not wanted any more, but for the last digests.
    pub fn keep(&mut self, wanted: impl Fn(&NamespaceImage) -> bool) {
        self.seen.retain(|key, _| wanted(key));
        self.failed.retain(|key, _| wanted(key));
    }
}

/// What was expected of volumes when it was first known, by UID of the Pod and name of the volume. The image of a
/// volume never changes, and what a Pod says of it can be edited with the Pod.
#[derive(Debug, Clone, Default)]
pub struct Notes(HashMap<Arc<str>, Vec<(String, Expected)>>);

impl Notes {
    pub fn of(&self, pod: &str, volume: &str) -> Option<Expected> {
        let noted = self.0.get(pod)?.iter().find(|(name, _)| name == volume)?;
        Some(noted.1.clone())
    }

    /// Takes up what is expected, unless something was before.
    pub fn note(&mut self, pod: &Arc<str>, volume: &str, expected: &Expected) {
        if !matches!(expected.resolved, Resolved::Admission | Resolved::Later) {
            return;
        }
        let noted = self.0.entry(Arc::clone(pod)).or_default();
        if noted.iter().all(|(name, _)| name != volume) {
            noted.push((volume.to_owned(), expected.clone()));
        }
    }

    /// Forgets Pods that are gone.
    pub fn keep(&mut self, present: &HashSet<Arc<str>>) {
        self.0.retain(|pod, _| present.contains(pod));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_value_of_another_container_is_unconfirmed_until_another_value_comes() {
        let [pod, container, path, one, other] =
            ["u", "web", "/models", "sha256:1", "sha256:2"].map(Arc::from);
        let mut memory = MountMemory::default();
        let mut look = |container_id, reported| memory.look(&pod, &container, &path, container_id, reported);
        let (one, other) = (Some(&one), Some(&other));
        assert!(!look(1, one) && !look(1, one));
        assert!(look(2, one), "the container was started again");
        assert!(look(2, one), "and nothing was said since");
        assert!(!look(2, other));
        assert!(!look(0, one) && !look(3, one), "the container was not there yet");
        assert!(!look(0, None) && !look(4, one), "nothing was reported in between, so this is no repetition");
        memory.keep(&HashSet::new());
        assert!(memory.0.is_empty());
    }

    #[test]
    fn a_pod_expects_what_was_seen_first_after_it_came() {
        let (shop, image) =
            (Arc::<str>::from("shop"), "registry.example/app:1".parse().expect("a reference"));
        let at = |second| Timestamp::from_second(second).expect("a time");
        let [old, new] = ["old", "new"].map(|of| Digest::sha256(of.as_bytes()));
        let mut known = Resolutions::default();
        assert_eq!(known.since(&shop, &image, 0), None);
        known.learn(&shop, &image, old, at(10));
        known.learn(&shop, &image, old, at(20));
        known.learn(&shop, &image, new, at(30));
        for (created, expected) in [(0, Some(old)), (20, Some(old)), (21, Some(new)), (31, None)] {
            assert_eq!(known.since(&shop, &image, created), expected, "{created}");
        }
        let now = Some(SeenDigest { digest: new, at: 30 });
        assert_eq!((known.now(&shop, &image), known.last_look(&shop, &image)), (now, Some(at(30))));
        assert_eq!(known.now(&"other".into(), &image), None, "no namespace learns what another is told");
        known.keep(|_| false);
        assert_eq!(known.now(&shop, &image), None);
    }

    #[test]
    fn a_look_that_finds_nothing_counts_as_a_look() {
        let (shop, image) =
            (Arc::<str>::from("shop"), "registry.example/app:1".parse().expect("a reference"));
        let at = |second| Timestamp::from_second(second).expect("a time");
        let mut known = Resolutions::default();
        assert_eq!(known.has(&shop, &image, 0), None);
        known.heed(&shop, &image, &Verdict::Unreachable { reason: "".into() }, at(10));
        assert_eq!((known.last_look(&shop, &image), known.has(&shop, &image, 0)), (Some(at(10)), None));
        assert!(known.is_silent(&shop, &image), "it may answer the next time");
        known.heed(&shop, &image, &Verdict::NotFound { reason: "".into() }, at(20));
        assert!(known.has(&shop, &image, 0) == Some(Proof::Lacks) && !known.is_silent(&shop, &image));
        known.heed(&shop, &image, &Verdict::Forbidden { reason: "".into() }, at(25));
        assert_eq!([25, 26].map(|created| known.has(&shop, &image, created)), [Some(Proof::Refuses), None]);
        let found = Digest::sha256(b"found");
        known.heed(&shop, &image, &Verdict::Available { digest: Some(found) }, at(30));
        let seen = known.now(&shop, &image).map(|seen| seen.digest);
        assert_eq!((known.has(&shop, &image, 40), seen), (Some(Proof::Holds), Some(found)));
    }

    #[test]
    fn the_first_word_about_a_volume_is_kept() {
        let pod: Arc<str> = "u".into();
        let expected = |of: &str, resolved| Expected { digest: Digest::sha256(of.as_bytes()), resolved };
        let mut notes = Notes::default();
        notes.note(&pod, "model", &expected("unproven", Resolved::Annotation));
        assert_eq!(notes.of("u", "model"), None);
        notes.note(&pod, "model", &expected("first", Resolved::Later));
        notes.note(&pod, "model", &expected("forged", Resolved::Admission));
        assert_eq!(notes.of("u", "model"), Some(expected("first", Resolved::Later)));
        notes.keep(&HashSet::new());
        assert_eq!(notes.of("u", "model"), None);
    }
}
