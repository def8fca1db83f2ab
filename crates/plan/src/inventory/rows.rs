//! The images of one Pod, a row each: of every container, and of every mount of an image volume.

use std::borrow::Cow;

use fairlead_domain::digest::Digest;
use fairlead_domain::platform::Platform;
use fairlead_domain::reference::Reference;
use serde::Serialize;

use super::compare::{Held, Judge};
use super::{
    Comparison, Contents, Expected, Noted, Reported, Resolved, Role, Row, Source, State, VolumeDigests,
    compare,
};
use crate::owners::Controller;
use crate::pinning::revision_label;
use crate::pod_record::{Difference, Place, Record, Route};

/// A Pod as the inventory sees it.
#[derive(Debug, Clone)]
pub struct PodView<'a> {
    pub namespace: &'a str,
    pub name: &'a str,
    pub uid: &'a str,
    pub node: Option<&'a str>,
    /// Of the node, where that is known.
    pub platform: Option<&'a Platform>,
    pub controller: Option<Controller<'a>>,
    /// Its label `pod-template-hash`.
    pub template_hash: Option<&'a str>,
    /// Its label `controller-revision-hash`.
    pub revision_hash: Option<&'a str>,
    /// In seconds since 1970.
    pub created: i64,
    /// Its annotations `fairlead.dev/routes` and `fairlead.dev/volume-digests`.
    pub routes: Option<&'a str>,
    pub volume_digests: Option<&'a str>,
    /// Bytes of all its annotations, keys and values.
    pub annotation_bytes: usize,
    pub images: Vec<UseView<'a>>,
    pub misplaced: Vec<Misplaced<'a>>,
}

impl<'a> PodView<'a> {
    /// Kind and name of what the Pod is a replica of: of a Deployment's Pod the Deployment. Without a controller it is
    /// the Pod itself.
    pub fn workload(&self) -> (&'a str, &'a str) {
        let Some(Controller { kind, name, .. }) = self.controller else { return ("Pod", self.name) };
        let stem = self.template_hash.and_then(|hash| name.strip_suffix(hash)?.strip_suffix('-'));
        match stem.filter(|_| kind == "ReplicaSet") {
            Some(deployment) => ("Deployment", deployment),
            None => (kind, name),
        }
    }

    /// UID of the Pod's controller, and which revision of it the Pod is of.
    pub(super) fn revision(&self) -> Option<(&'a str, &'a str)> {
        let uid = self.controller.filter(|controller| !controller.uid.is_empty())?.uid;
        Some((uid, revision_label(uid, self.template_hash, self.revision_hash)))
    }
}

/// One use of an image by a Pod.
#[derive(Debug, Clone)]
#[allow(clippy::struct_excessive_bools, reason = "independent facts, as a Pod states them")]
pub struct UseView<'a> {
    pub place: Place<'a>,
    pub sidecar: bool,
    /// As the specification has it.
    pub image: &'a str,
    /// What the kubelet says a container runs.
    pub image_id: Option<&'a str>,
    /// The runtime has made a container of it, and that has ended.
    pub created: bool,
    pub ended: bool,
    /// It mounts an image volume.
    pub mounts_images: bool,
    /// Of a volume: where it is mounted.
    pub mounts: Vec<MountView<'a>>,
}

/// A mount of an image volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MountView<'a> {
    pub container: &'a str,
    pub path: &'a str,
    /// What the kubelet says is mounted.
    pub reported: Option<&'a str>,
    /// The container was started again since the kubelet first said so. A kubelet that cannot find out what is mounted
    /// repeats what it said before.
    pub unconfirmed: bool,
}

/// An image that the kubelet reports of a volume that is none, or that the container does not mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Misplaced<'a> {
    pub container: &'a str,
    pub volume: &'a str,
    /// The container mounts it where the kubelet says so.
    pub specified: bool,
}

/// What a registry says to the claim that it has an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proof {
    Holds,
    Lacks,
    /// It does not say, since it refuses access.
    Refuses,
}

/// Says of a Pod and an image whether the registry has it.
type ProofOf<'k> = dyn Fn(&PodView<'_>, &str) -> Option<Proof> + 'k;

/// What is known besides the Pod.
#[derive(Clone, Copy)]
pub struct Knowledge<'k> {
    pub contents: &'k Contents,
    /// Digests that will not be read.
    pub given_up: &'k dyn Fn(&Digest) -> bool,
    /// What was first found out of a volume of the Pod: what the Pod says may be edited since.
    pub noted: &'k dyn Fn(&PodView<'_>, &str) -> Option<Noted>,
    /// Whether the Pod has been there for so long that a digest which a tag has now tells nothing of it.
    pub is_old: &'k dyn Fn(&PodView<'_>) -> bool,
    /// Which digest an image of the Pod had when a registry was first asked after the Pod was created.
    pub later: &'k dyn Fn(&PodView<'_>, &str) -> Option<Digest>,
    /// Which digest an image of the Pod has today.
    pub now: &'k dyn Fn(&PodView<'_>, &str) -> Option<Digest>,
    /// Whether a registry holds an annotated image, written as `repository@digest`, asked on behalf of the Pod; none
    /// while that is not known. Without it no registry is asked, and annotations are shown as such.
    pub proven: Option<&'k ProofOf<'k>>,
}

impl std::fmt::Debug for Knowledge<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Knowledge").field("contents", &self.contents.len()).finish_non_exhaustive()
    }
}

impl<'k> Knowledge<'k> {
    /// What the Pods say themselves, and what is behind digests.
    pub fn of_pods(contents: &'k Contents, given_up: &'k dyn Fn(&Digest) -> bool) -> Self {
        Self {
            contents,
            given_up,
            noted: &|_, _| None,
            is_old: &|_| false,
            later: &|_, _| None,
            now: &|_, _| None,
            proven: None,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FindingKind {
    /// Containers of one Pod mount different content of one volume.
    Divergence,
    /// The kubelet reports an image of a volume that is none, or that the container does not mount.
    Misplaced,
}

/// Something odd about a Pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub kind: FindingKind,
    pub text: String,
}

/// All that is known of a Pod's images.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodRows<'a> {
    pub rows: Vec<Row<'a>>,
    pub findings: Vec<Finding>,
    /// Volumes of an old Pod whose annotation no registry bears out, now or when it was there.
    pub unproven: Vec<&'a str>,
}

/// The rows of a Pod.
pub fn rows<'a>(pod: &PodView<'a>, known: &Knowledge<'_>) -> PodRows<'a> {
    let mut record = pod.routes.and_then(Record::parse).map(|record| record.images).unwrap_or_default();
    let annotated = pod.volume_digests.map(VolumeDigests::read).unwrap_or_default();
    let mut all = PodRows::default();
    for used in &pod.images {
        // A record of another image says nothing about this one.
        let route = record.remove(&used.place.key()).filter(|route| route.used == used.image);
        let expected = match (expected(pod, used, route.as_ref(), &annotated, known), used.place) {
            (Some(Noted::Expected(expected)), _) => Some(expected),
            (Some(Noted::Unproven), Place::Volume(name)) => {
                all.unproven.push(name);
                None
            }
            _ => None,
        };
        let Route { asked, differs, alternatives, .. } = route.unwrap_or_default();
        let is_as_asked = asked.is_empty() || asked == used.image;
        let requested = if is_as_asked { Cow::Borrowed(used.image) } else { Cow::Owned(asked) };
        let subject = Subject { pod, used, requested, expected, differs, alternatives, known };
        match used.place {
            Place::Volume(_) if used.mounts.is_empty() => all.rows.push(subject.row(None)),
            Place::Volume(name) => {
                let mut rows: Vec<_> = used.mounts.iter().map(|mount| subject.row(Some(*mount))).collect();
                let (finding, reads) = divergence(name, &rows, pod.platform, known);
                all.findings.extend(finding);
                if let Some(first) = rows.first_mut() {
                    first.reads.extend(reads);
                }
                all.rows.append(&mut rows);
            }
            _ => all.rows.push(subject.row(None)),
        }
    }
    all.findings.extend(pod.misplaced.iter().map(|Misplaced { container, volume, specified }| {
        let why = if *specified { "which is not an image volume" } else { "which does not mount it there" };
        let text = format!("the kubelet reports an image of volume {volume} in container {container}, {why}");
        Finding { kind: FindingKind::Misplaced, text }
    }));
    all
}

fn expected(
    pod: &PodView<'_>,
    used: &UseView<'_>,
    route: Option<&Route>,
    annotated: &VolumeDigests,
    known: &Knowledge<'_>,
) -> Option<Noted> {
    let image = Reference::parse(used.image).ok()?;
    let found = |digest, resolved| Some(Noted::Expected(Expected { digest, resolved }));
    if let Some(digest) = image.digest() {
        return found(digest, Resolved::Reference);
    }
    let volume = if let Place::Volume(name) = used.place { Some(name) } else { None };
    let noted = volume.and_then(|name| (known.noted)(pod, name));
    if matches!(noted, Some(Noted::Expected(_))) {
        return noted;
    }
    if let Some(digest) = route.and_then(|route| route.digest.parse().ok()) {
        return found(digest, Resolved::Admission);
    }
    if let Some(digest) = volume.and_then(|name| annotated.of(name, &image)) {
        let text = format!("{}@{digest}", image.repository().as_str());
        match known.proven.map(|proven| proven(pod, &text)) {
            None => return found(digest, Resolved::Annotation),
            Some(None) => return None,
            Some(Some(Proof::Holds)) => return found(digest, Resolved::Later),
            Some(Some(Proof::Lacks | Proof::Refuses)) if (known.is_old)(pod) => {
                return Some(Noted::Unproven);
            }
            Some(Some(Proof::Lacks | Proof::Refuses)) => {}
        }
    }
    // An annotation that was not borne out is gone, and what the tag names now does not take its place.
    noted.or_else(|| found((known.later)(pod, used.image)?, Resolved::Later))
}

/// What the rows of one use have in common.
struct Subject<'a, 's> {
    pod: &'s PodView<'a>,
    used: &'s UseView<'a>,
    requested: Cow<'a, str>,
    expected: Option<Expected>,
    differs: Vec<Difference>,
    alternatives: Vec<String>,
    known: &'s Knowledge<'s>,
}

impl<'a> Subject<'a, '_> {
    fn row(&self, mount: Option<MountView<'a>>) -> Row<'a> {
        let Self { used, requested, expected, differs, alternatives, .. } = self;
        let (role, name) = match used.place {
            Place::Container(name) => (Role::Container, name),
            Place::Init(name) if used.sidecar => (Role::Sidecar, name),
            Place::Init(name) => (Role::Init, name),
            Place::Ephemeral(name) => (Role::Ephemeral, name),
            Place::Volume(name) => (Role::Volume, name),
        };
        let text = if role == Role::Volume { mount.and_then(|mount| mount.reported) } else { used.image_id };
        let reported = text.and_then(|text| Some((text, Reported::parse(text)?)));
        let mut asks_tag = false;
        let compared = match (expected, &reported) {
            (_, None) if role == Role::Volume && mount.is_none() => {
                Comparison::unknown("no container mounts the volume, so nothing is reported of it")
            }
            (_, None) if role == Role::Volume => Comparison::unknown(
                "the kubelet does not report it; the feature gate ImageVolumeWithDigest is off by default",
            ),
            (_, None) => Comparison::unknown("no container was made of it yet"),
            (_, Some((_, Reported::Unreadable))) => {
                Comparison::unknown("what the kubelet reports is no digest")
            }
            (_, Some(_)) if mount.is_some_and(|mount| mount.unconfirmed) => Comparison::unknown(
                "the container was started again since the kubelet reported this, and it may repeat what it said before",
            ),
            (None, Some(_)) => Comparison::unknown(
                "no digest is expected: no registry was asked about the image, or none said which digest it has",
            ),
            (Some(expected), Some((_, reported))) => {
                let compared;
                (compared, asks_tag) = self.compare(expected, reported);
                compared
            }
        };
        let told = reported.as_ref().is_some_and(|(_, reported)| *reported != Reported::Unreadable);
        let source = match expected {
            _ if told => Source::Kubelet,
            Some(_) => Source::Expected,
            None => Source::Unknown,
        };
        Row {
            role,
            name,
            mount,
            requested: requested.clone(),
            routed: used.image,
            expected: expected.clone(),
            reported,
            state: compared.state,
            reason: compared.reason,
            source,
            reads: compared.reads,
            asks_tag,
            differs: differs.clone(),
            alternatives: alternatives.clone(),
        }
    }

    /// Compares what is reported with what is expected; and tells whether it matters what the tag names now. A tag may
    /// move after it was looked at and before the pull, or a container be started again after that.
    fn compare(&self, expected: &Expected, reported: &Reported) -> (Comparison, bool) {
        let Self { pod, used, known, .. } = self;
        let with = |digest: &Digest| compare(digest, reported, pod.platform, known.contents);
        let mut compared = with(&expected.digest);
        if compared.state != State::Differing || expected.resolved == Resolved::Reference {
            return (compared, false);
        }
        if let Some(now) = (known.now)(pod, used.image).filter(|now| *now != expected.digest) {
            let today = with(&now);
            compared.reads.extend(today.reads);
            if today.state == State::Matching {
                let reason = "the node holds what the tag names now: it moved after it was looked at for the Pod, and \
                              before the pull";
                compared = Comparison { reads: compared.reads, ..Comparison::unknown(reason) };
            }
        }
        (compared, true)
    }
}

/// Containers may differ rightly: each resolves the reference when it is started. Also the digests that have to be read
/// in order to know.
fn divergence(
    volume: &str,
    rows: &[Row<'_>],
    platform: Option<&Platform>,
    known: &Knowledge<'_>,
) -> (Option<Finding>, Vec<Digest>) {
    let judge = Judge { contents: known.contents, given_up: known.given_up };
    let is_read = |(_, reported): &&(&str, Reported)| *reported != Reported::Unreadable;
    let mut told = rows.iter().filter_map(|row| Some((row.mount?, row.reported.as_ref().filter(is_read)?)));
    let Some((first, (here, one))) = told.next() else { return (None, Vec::new()) };
    let mut reads = Vec::new();
    for (mount, (there, other)) in told {
        // A repository may be another one that holds the same content.
        let [one, of] = [one, other].map(|reported| Held { reported, platform });
        let (differs, unread) = judge.beside(one, of);
        reads.extend(unread);
        if differs == Some(true) {
            let text = format!(
                "volume {volume} is {here} in container {} and {there} in container {}; a container that was started \
                 again may mount newer content",
                first.container, mount.container
            );
            return (Some(Finding { kind: FindingKind::Divergence, text }), reads);
        }
    }
    (None, reads)
}
