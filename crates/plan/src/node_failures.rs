//! What nodes could not pull although its registry says that it is there: blobs behind a good manifest are missing, or
//! only nodes distrust a certificate.
//!
//! Probes cannot see that, so it is learnt from the statuses of Pods, by every replica for itself, and remembered for
//! ten minutes. One tenant must not take an image away from others: a failure counts at once for Pods of the same
//! namespace with the same credentials, and for all only after failures in two namespaces and on two nodes.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use fairlead_domain::keyring::CredentialId;
use fairlead_domain::reference::Reference;
use fairlead_domain::verdict::Verdict;
use jiff::{SignedDuration, Timestamp};

use crate::pull_failure::PullFailure;

/// How long a failure is remembered.
pub const LIFETIME: SignedDuration = SignedDuration::from_mins(10);

/// Images with failures that are remembered. Further ones are not taken up before others have expired.
const MOST_IMAGES: usize = 4096;
/// Failures of one image that are remembered. Of more, the oldest of the namespace with the most gives way.
const MOST_FAILURES: usize = 16;
/// Nodes that are remembered for each namespace and credentials; no decision needs more.
const MOST_NODES: usize = 2;

/// What may have passed by itself, such as a registry that restarts, has to happen again after this time.
const AGAIN: SignedDuration = SignedDuration::from_secs(5);

/// Credentials in the order in which a kubelet tries them.
pub type Credentials = Arc<[CredentialId]>;

/// A pull that failed on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeFailure {
    pub namespace: Arc<str>,
    pub credentials: Credentials,
    pub node: Arc<str>,
    pub failure: PullFailure,
    pub at: Timestamp,
}

impl NodeFailure {
    fn counts(&self, now: Timestamp) -> bool {
        now.duration_since(self.at) < LIFETIME
    }

    fn is_same_source(&self, other: &Self) -> bool {
        self.is_of_same_tenant(other) && self.node == other.node
    }

    /// Whether a kubelet with these credentials would do nothing that was not tried. Without any it asks anonymously,
    /// which is another question.
    fn tried_all(&self, credentials: &[CredentialId]) -> bool {
        *self.credentials == *credentials
            || (!credentials.is_empty() && credentials.iter().all(|one| self.credentials.contains(one)))
    }

    fn is_of_same_tenant(&self, other: &Self) -> bool {
        (&self.namespace, &self.credentials) == (&other.namespace, &other.credentials)
    }
}

/// Makes room for a failure, so that no namespace can push out what others need.
fn make_room(failures: &mut Vec<NodeFailure>, new: &NodeFailure) {
    while failures.iter().filter(|known| known.is_of_same_tenant(new)).count() >= MOST_NODES {
        remove_oldest(failures, |known| known.is_of_same_tenant(new));
    }
    if failures.len() < MOST_FAILURES {
        return;
    }
    let mut taken = BTreeMap::<Arc<str>, usize>::new();
    for known in &*failures {
        *taken.entry(known.namespace.clone()).or_default() += 1;
    }
    let largest = taken.into_iter().max_by_key(|(_, count)| *count).map(|(namespace, _)| namespace);
    remove_oldest(failures, |known| Some(&known.namespace) == largest.as_ref());
}

fn remove_oldest(failures: &mut Vec<NodeFailure>, of: impl Fn(&NodeFailure) -> bool) {
    let all = failures.iter().enumerate().filter(|(_, known)| of(known));
    if let Some((oldest, _)) = all.min_by_key(|(_, known)| known.at) {
        failures.remove(oldest);
    }
}

/// Whether a failure is worth remembering: the location is to blame, and its registry says that the image is there.
pub fn teaches(failure: PullFailure, verdict: &Verdict) -> bool {
    failure.is_of_location() && verdict.is_available()
}

/// What is remembered.
#[derive(Debug, Clone, Default)]
pub struct NodeFailures {
    images: HashMap<Reference, Vec<NodeFailure>>,
    /// What happened once and may have passed, the first of each namespace and credentials. It counts for nothing yet.
    once: HashMap<Reference, Vec<NodeFailure>>,
}

impl NodeFailures {
    pub fn is_empty(&self) -> bool {
        self.images.is_empty() && self.once.is_empty()
    }

    /// Takes up a failure that was just seen, and tells whether it counts. A registry or a network that fails may be
    /// back in the next moment, so that counts if the registry was `well` for others when the node failed and a while
    /// later, or when it has happened before, to whichever Pod.
    pub fn observe(&mut self, image: &Reference, failure: NodeFailure, well: bool) -> bool {
        if failure.failure.is_of_registry() && !well {
            self.forget(failure.at);
            let key = image.pulled();
            if self.once.len() >= MOST_IMAGES && !self.once.contains_key(&key) {
                return false;
            }
            let before = self.once.entry(key).or_default();
            match before.iter().find(|known| known.is_of_same_tenant(&failure)) {
                Some(first) if failure.at.duration_since(first.at) >= AGAIN => {}
                Some(_) => return false,
                None => {
                    make_room(before, &failure);
                    before.push(failure);
                    return false;
                }
            }
        }
        self.learn(image, failure);
        true
    }

    /// The node has pulled the image after all, for a Pod of this namespace.
    pub fn pulled(&mut self, image: &Reference, namespace: &str, node: &str) {
        let image = image.pulled();
        for known in [&mut self.images, &mut self.once] {
            if let Some(failures) = known.get_mut(&image) {
                failures.retain(|failure| (&*failure.namespace, &*failure.node) != (namespace, node));
                if failures.is_empty() {
                    known.remove(&image);
                }
            }
        }
    }

    /// Takes up a failure; a later one of the same source takes the place of an earlier one.
    pub fn learn(&mut self, image: &Reference, failure: NodeFailure) {
        self.forget(failure.at);
        let image = image.pulled();
        if self.images.len() >= MOST_IMAGES && !self.images.contains_key(&image) {
            return;
        }
        let failures = self.images.entry(image).or_default();
        failures.retain(|known| !known.is_same_source(&failure));
        make_room(failures, &failure);
        failures.push(failure);
    }

    /// Drops what is too old.
    pub fn forget(&mut self, now: Timestamp) {
        for known in [&mut self.images, &mut self.once] {
            known.retain(|_, failures| {
                failures.retain(|failure| failure.counts(now));
                !failures.is_empty()
            });
        }
    }

    /// Why Pods of a namespace with these credentials should not be given an image.
    pub fn against(
        &self,
        image: &Reference,
        namespace: &str,
        credentials: &[CredentialId],
        now: Timestamp,
    ) -> Option<String> {
        if self.images.is_empty() {
            return None;
        }
        let failures = self.images.get(&image.pulled())?;
        let failures: Vec<_> = failures.iter().filter(|failure| failure.counts(now)).collect();
        let own = failures
            .iter()
            .find(|failure| &*failure.namespace == namespace && failure.tried_all(credentials));
        if let Some(NodeFailure { node, failure, .. }) = own {
            return Some(format!("node {node} could not pull it: {failure}"));
        }
        let namespaces: BTreeSet<_> = failures.iter().map(|failure| &failure.namespace).collect();
        let nodes: BTreeSet<_> = failures.iter().map(|failure| &failure.node).collect();
        // Names of other namespaces and of their nodes are not passed on.
        let first = failures.first().filter(|_| namespaces.len() > 1 && nodes.len() > 1)?;
        Some(format!("{} nodes could not pull it: {}", nodes.len(), first.failure))
    }

    /// A verdict about an image in the light of what is remembered.
    pub fn judge(
        &self,
        image: &Reference,
        namespace: &str,
        credentials: &[CredentialId],
        now: Timestamp,
        verdict: Verdict,
    ) -> Verdict {
        if self.images.is_empty() || !verdict.is_usable() {
            return verdict;
        }
        match self.against(image, namespace, credentials, now) {
            Some(reason) => Verdict::FailsOnNodes { reason: reason.into() },
            None => verdict,
        }
    }
}

#[cfg(test)]
mod tests {
    use fairlead_domain::keyring::{Credential, IdentityKey, Keyring};

    use super::*;

    fn image() -> Reference {
        Reference::parse("r.io/app:1").expect("a reference")
    }

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).expect("a time")
    }

    fn failure(namespace: &str, node: &str, seconds: i64) -> NodeFailure {
        NodeFailure {
            namespace: namespace.into(),
            credentials: [].into(),
            node: node.into(),
            failure: PullFailure::NotFound,
            at: at(seconds),
        }
    }

    fn after(failures: &[(&str, &str)]) -> NodeFailures {
        let mut known = NodeFailures::default();
        for (namespace, node) in failures {
            known.learn(&image(), failure(namespace, node, 0));
        }
        known
    }

    #[test]
    fn a_failure_counts_for_its_namespace_and_its_credentials() {
        let known = after(&[("team", "n1")]);
        let mut keyring = Keyring::new(IdentityKey::new([7; 32]));
        assert!(keyring.add_login("r.io", b"ann", b"secret"));
        let other: Vec<_> = keyring.lookup(&image().repository()).iter().map(Credential::id).collect();
        let told = known.against(&image(), "team", &[], at(1));
        assert_eq!(told.as_deref(), Some("node n1 could not pull it: image not found"));
        assert_eq!(known.against(&image(), "team", &other, at(1)), None);
        assert_eq!(known.against(&image(), "shop", &[], at(1)), None);
        let elsewhere = Reference::parse("r.io/app:2").expect("a reference");
        assert_eq!(known.against(&elsewhere, "team", &[], at(1)), None);
    }

    #[test]
    fn a_pull_that_failed_with_several_credentials_fails_with_each_of_them() {
        let mut keyring = Keyring::new(IdentityKey::new([7; 32]));
        for user in ["ann", "bob"] {
            assert!(keyring.add_login("r.io", user.as_bytes(), b"secret"));
        }
        let both: Vec<_> = keyring.lookup(&image().repository()).iter().map(Credential::id).collect();
        let [ann, bob] = both[..] else { panic!("{both:?}") };
        let mut known = NodeFailures::default();
        known.learn(&image(), NodeFailure { credentials: [ann].into(), ..failure("team", "n1", 0) });
        let told = |known: &NodeFailures, with: &[CredentialId]| {
            known.against(&image(), "team", with, at(1)).is_some()
        };
        assert!(told(&known, &[ann]) && !told(&known, &[ann, bob]), "the other one may be let in");
        known.learn(&image(), NodeFailure { credentials: both.clone().into(), ..failure("team", "n1", 0) });
        for with in [&[ann, bob][..], &[bob, ann], &[bob]] {
            assert!(told(&known, with), "{with:?}");
        }
        assert!(!told(&known, &[]), "nobody has asked without");
    }

    #[test]
    fn two_namespaces_on_two_nodes_are_needed_for_all() {
        for (failures, told) in [
            (&[("a", "n1"), ("a", "n2"), ("a", "n3")][..], false),
            (&[("a", "n1"), ("b", "n1")], false),
            (&[("a", "n1"), ("b", "n2")], true),
        ] {
            let against = after(failures).against(&image(), "shop", &[], at(1));
            assert_eq!(against.is_some(), told, "{failures:?}: {against:?}");
            assert!(!against.unwrap_or_default().contains("n1"), "a name of another tenant's node");
        }
    }

    #[test]
    fn after_ten_minutes_it_is_forgotten() {
        let mut known = after(&[("a", "n1"), ("b", "n2")]);
        known.learn(&image(), failure("a", "n1", 300));
        assert!(known.against(&image(), "b", &[], at(599)).is_some());
        assert_eq!(known.against(&image(), "b", &[], at(600)), None);
        assert!(known.against(&image(), "a", &[], at(899)).is_some(), "it failed again");
        known.forget(at(900));
        assert!(known.is_empty());
    }

    #[test]
    fn what_may_pass_counts_when_it_has_happened_again() {
        let mut known = NodeFailures::default();
        let cut = |namespace: &str, node: &str, seconds| NodeFailure {
            failure: PullFailure::Network,
            ..failure(namespace, node, seconds)
        };
        assert!(!known.observe(&image(), cut("team", "n1", 0), false));
        assert!(!known.observe(&image(), cut("team", "n2", 4), false), "it is the same outage");
        assert!(
            !known.observe(&image(), cut("shop", "n2", 9), false),
            "another tenant's count for themselves"
        );
        assert_eq!(known.against(&image(), "team", &[], at(9)), None);
        assert!(known.observe(&image(), cut("team", "n2", 10), false));
        assert!(known.against(&image(), "team", &[], at(10)).is_some_and(|why| why.contains("node n2")));
        assert!(!known.observe(&image(), cut("team", "n1", 700), false), "the first one was long ago");
        let mut known = NodeFailures::default();
        assert!(
            known.observe(&image(), failure("team", "n1", 0), false),
            "a missing blob does not come back by itself"
        );
        let mut known = NodeFailures::default();
        assert!(known.observe(&image(), cut("team", "n1", 0), true), "the registry was well for others");
        assert!(known.against(&image(), "team", &[], at(1)).is_some());
    }

    #[test]
    fn a_node_that_has_pulled_the_image_after_all_says_so() {
        let mut known = after(&[("team", "n1"), ("shop", "n2")]);
        known.pulled(&image(), "team", "n1");
        assert_eq!(known.against(&image(), "team", &[], at(1)), None);
        assert!(known.against(&image(), "shop", &[], at(1)).is_some(), "it speaks for its own namespace");
        known.pulled(&image(), "shop", "n2");
        assert!(known.is_empty());
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut known = NodeFailures::default();
        for number in 0..5000 {
            let image = Reference::parse(&format!("r.io/app:{number}")).expect("a reference");
            known.learn(&image, failure("a", "n1", 0));
        }
        assert_eq!(known.images.len(), MOST_IMAGES);
        for number in 0..100 {
            known
                .learn(&Reference::parse("r.io/app:1").expect("one"), failure("a", &format!("n{number}"), 0));
        }
        assert!(known.images.values().all(|failures| failures.len() <= MOST_FAILURES));
    }

    #[test]
    fn no_namespace_takes_the_room_of_others() {
        let nodes: Vec<_> = (0..40).map(|node| format!("n{node}")).collect();
        let greedy: Vec<_> = nodes.iter().map(|node| ("greedy", &**node)).collect();
        let mut known = after(&greedy);
        assert!(known.against(&image(), "shop", &[], at(1)).is_none(), "one namespace alone");
        known.learn(&image(), failure("modest", "n0", 1));
        assert!(known.against(&image(), "modest", &[], at(2)).is_some(), "its own failure counts");
        assert!(known.against(&image(), "shop", &[], at(2)).is_some(), "two namespaces on two nodes");

        for number in 0..40 {
            known.learn(&image(), failure(&format!("t{number}"), "n1", 2));
            known.learn(&image(), failure(&format!("t{number}"), "n2", 2));
        }
        assert!(known.images.values().all(|failures| failures.len() <= MOST_FAILURES));
        let newest = known.against(&image(), "t39", &[], at(3));
        assert!(newest.is_some_and(|why| why.starts_with("node ")), "it is taken up although all is full");
        let mut first = NodeFailures::default();
        let cut = |namespace: &str, seconds| NodeFailure {
            failure: PullFailure::Network,
            ..failure(namespace, "n1", seconds)
        };
        for number in 0..40 {
            first.observe(&image(), cut(&format!("t{number}"), 0), false);
        }
        assert!(first.observe(&image(), cut("t39", 9), false), "the same holds of what happened once");
    }

    #[test]
    fn only_what_the_location_is_to_blame_for_teaches_and_only_if_the_registry_has_it() {
        let available = Verdict::Available { digest: None };
        for (failure, expected) in [
            (PullFailure::NotFound, true),
            (PullFailure::Certificate, true),
            (PullFailure::Corrupt, true),
            (PullFailure::Denied, false),
            (PullFailure::NoSuchHost, false),
            (PullFailure::DiskFull, false),
            (PullFailure::Platform, false),
            (PullFailure::Unknown, false),
        ] {
            assert_eq!(teaches(failure, &available), expected, "{failure}");
        }
        assert!(!teaches(PullFailure::NotFound, &Verdict::NotFound { reason: "gone".into() }));
    }
}
