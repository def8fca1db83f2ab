//! Which digest of a tag the Pods of a workload run.

use std::collections::{BTreeMap, BTreeSet};

use fairlead_domain::digest::Digest;
use fairlead_domain::reference::{Reference, Repository};
use thiserror::Error;

use super::pin_key;
use crate::inventory::{Comparison, Content, Contents, Reported, State, compare};

/// One image of one Pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunningImage {
    pub pod: String,
    /// What was asked for, as the Pod's record says, or else its specification.
    pub asked: String,
    /// What the specification names now.
    pub image: String,
    /// What the kubelet says that it runs or mounts.
    pub reported: Option<String>,
    /// The digest that was recorded when the Pod was admitted.
    pub expected: Option<String>,
    /// Why that does not count.
    pub doubt: Option<String>,
}

/// Why it cannot be told which digest runs.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NotRunning {
    #[error("no Pod of it runs")]
    NoPod,
    #[error("its Pods were asked to run {0} instead")]
    Other(String),
    #[error("its Pods run different digests: {0}")]
    Differs(String),
    #[error("Pod {0} does not say which manifest it runs; use --from registry")]
    Untold(String),
    #[error("only the annotations of Pod {0} say which manifest it runs, and {1}; use --from registry")]
    Doubtful(String, String),
    #[error("Pod {pod} was to run {expected}, and {why}; use --from registry")]
    Unlike { pod: String, expected: Digest, why: String },
    #[error("what Pod {0} was to run is not recorded, and {1}; use --from registry")]
    Unrecorded(String, String),
}

/// What is behind digests, as far as that was read.
#[derive(Clone, Copy)]
pub struct ReadContents<'r> {
    pub contents: &'r Contents,
    /// Why a digest could not be read.
    pub unread: &'r dyn Fn(&Digest) -> Option<String>,
    /// Which digest a tag names now, or why that is not known; none while no registry was asked.
    pub now: &'r dyn Fn(&Reference) -> Option<Result<Digest, String>>,
}

impl std::fmt::Debug for ReadContents<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReadContents").field("contents", &self.contents.len()).finish_non_exhaustive()
    }
}

/// What one image of a Pod comes to.
enum Told {
    Digest(Digest),
    /// The Pod does not say.
    Nothing,
    /// It takes a look at what is behind this.
    Reads(Digest),
    /// It takes a look at which digest this tag names now.
    Asks(Reference),
    /// What was recorded is not what is reported, or that cannot be told.
    Unlike {
        expected: Digest,
        why: String,
    },
    /// Nothing was recorded, and what is reported may be the image of one platform.
    Unrecorded(String),
}

impl RunningImage {
    fn in_specification(&self) -> Option<Digest> {
        Reference::parse(&self.image).ok().and_then(|image| image.digest())
    }

    fn reported(&self) -> Option<Reported> {
        self.reported.as_deref().and_then(Reported::parse)
    }

    fn expected(&self) -> Option<Digest> {
        self.expected.as_deref()?.parse().ok()
    }

    /// The next digest whose content tells whether the kubelet reports what was recorded: it may name the image of its
    /// platform where an index was recorded, or the configuration of that image, and what is held to one of these does
    /// not run on other platforms, or nowhere. Registries count reads as pulls, so the images of an index are read one
    /// after the other, until it is known.
    pub fn to_read(&self, read: ReadContents<'_>) -> Option<Digest> {
        if let Told::Reads(digest) = self.told(read) { Some(digest) } else { None }
    }

    /// The tag whose digest of today tells whether a manifest of which nothing was recorded is the image of one
    /// platform.
    pub fn to_ask(&self, read: ReadContents<'_>) -> Option<Reference> {
        if let Told::Asks(tag) = self.told(read) { Some(tag) } else { None }
    }

    /// Where they may be read.
    pub fn repositories(&self) -> BTreeSet<Repository> {
        let reported = match self.reported() {
            Some(Reported::Manifest { repository, .. }) => repository,
            _ => None,
        };
        let image = Reference::parse(&self.image).ok().map(|image| image.repository());
        image.into_iter().chain(reported).collect()
    }

    /// The digest that only annotations name, which anybody could have written who may edit the Pod.
    pub fn unproven(&self) -> Option<Digest> {
        self.expected().filter(|_| self.in_specification().is_none() && self.reported().is_none())
    }

    /// A runtime pulls nothing else for a reference with a digest, so what the specification says counts first.
    fn told(&self, read: ReadContents<'_>) -> Told {
        if let Some(digest) = self.in_specification() {
            return Told::Digest(digest);
        }
        match (self.reported(), self.expected()) {
            (None, Some(expected)) if self.doubt.is_none() => Told::Digest(expected),
            // No registry knows an image by its configuration.
            (None, _) | (Some(Reported::Id(_) | Reported::Unreadable), None) => Told::Nothing,
            (Some(Reported::Manifest { digest, .. }), None) => self.by_tag(digest, read),
            (Some(Reported::Manifest { digest, .. }), Some(expected)) => by_manifest(expected, digest, read),
            (Some(reported), Some(expected)) => by_id(expected, &reported, read),
        }
    }

    /// Nothing was recorded, so what the tag names now stands for it. An index is what runs, whatever the tag names.
    fn by_tag(&self, reported: Digest, read: ReadContents<'_>) -> Told {
        let Ok(tag) = Reference::parse(&self.image) else { return Told::Nothing };
        match (read.now)(&tag) {
            None => Told::Asks(tag),
            Some(Ok(now)) => match by_manifest(now, reported, read) {
                Told::Unlike { why, .. } => Told::Unrecorded(format!("{tag} names {now} now: {why}")),
                told => told,
            },
            Some(Err(why)) => match (read.contents.get(&reported), (read.unread)(&reported)) {
                (Some(Content::Index { .. }), _) => Told::Digest(reported),
                (None, None) => Told::Reads(reported),
                _ => Told::Unrecorded(format!(
                    "{reported}, which its node runs, may be the image of one platform: {tag}: {why}"
                )),
            },
        }
    }
}

/// A manifest or an index is reported. It is one that a registry serves, so it is what runs, unless it is the image of
/// one platform alone.
fn by_manifest(expected: Digest, reported: Digest, read: ReadContents<'_>) -> Told {
    let ReadContents { contents, unread, .. } = read;
    let known = |digest: &Digest| (contents.get(digest), unread(digest));
    let is_open = |digest: &Digest| matches!(known(digest), (None, None));
    let unlike = |why: String| Told::Unlike { expected, why };
    if expected == reported {
        return Told::Digest(expected);
    }
    if is_open(&expected) {
        return Told::Reads(expected);
    }
    if contents.get(&expected).is_some_and(|index| index.holds(&reported)) {
        return Told::Digest(expected);
    }
    match (known(&expected), known(&reported)) {
        (_, (None, None)) => Told::Reads(reported),
        // If neither is for several platforms, the tag was moved before the pull.
        (_, (Some(Content::Index { .. }), _))
        | ((Some(Content::Image { .. }), _), (Some(Content::Image { .. }), _)) => Told::Digest(reported),
        ((Some(_), _), (Some(_), _)) => unlike(format!(
            "its node runs the image {reported} of one platform, which is not part of that index"
        )),
        ((None, Some(why)), _) => {
            unlike(format!("whether {reported}, which its node runs, is a part of that is not known: {why}"))
        }
        (_, (_, why)) => unlike(format!(
            "its node runs {reported}, which cannot be read: {}",
            why.unwrap_or_else(|| "nothing is behind it".to_owned())
        )),
    }
}

/// A runtime's own name of an image is reported, or something else.
fn by_id(expected: Digest, reported: &Reported, read: ReadContents<'_>) -> Told {
    let Comparison { state, reason, reads } = compare(&expected, reported, None, read.contents);
    let open = reads.iter().find(|digest| (read.unread)(digest).is_none());
    let unread = reads.iter().find_map(|digest| Some((digest, (read.unread)(digest)?)));
    let why = match (state, open, unread) {
        (State::Matching, ..) => return Told::Digest(expected),
        (State::Unknown, Some(open), _) => return Told::Reads(*open),
        (State::Unknown, None, Some((digest, why))) => {
            format!("its node reports {reported}; {digest} cannot be read: {why}")
        }
        (State::Differing | State::Unknown, ..) => reason.into_owned(),
    };
    Told::Unlike { expected, why }
}

/// The one digest that all Pods run which were asked to run the tag. `read` is what registries said to
/// [`RunningImage::to_read`] and [`RunningImage::to_ask`].
pub fn running(
    tag: &Reference,
    images: &[RunningImage],
    read: ReadContents<'_>,
) -> Result<Digest, NotRunning> {
    let is_same = |image: &&RunningImage| {
        Reference::parse(&image.asked).is_ok_and(|asked| pin_key(&asked).is_same_image(&pin_key(tag)))
    };
    let of_tag: Vec<_> = images.iter().filter(is_same).collect();
    let Some(first) = of_tag.first() else {
        return Err(images.first().map_or(NotRunning::NoPod, |other| NotRunning::Other(other.asked.clone())));
    };
    let mut digests: BTreeMap<String, (Digest, &str)> = BTreeMap::new();
    for image in &of_tag {
        match image.told(read) {
            Told::Digest(digest) => {
                digests.entry(digest.to_string()).or_insert((digest, &image.pod));
            }
            Told::Unlike { expected, why } => {
                return Err(NotRunning::Unlike { pod: image.pod.clone(), expected, why });
            }
            Told::Unrecorded(why) => return Err(NotRunning::Unrecorded(image.pod.clone(), why)),
            Told::Nothing | Told::Reads(_) | Told::Asks(_) => {}
        }
    }
    let mut found = digests.values();
    match (found.next(), found.next()) {
        (Some((digest, _)), None) => Ok(*digest),
        (None, _) => {
            let doubt = of_tag.iter().find_map(|image| Some((image.pod.clone(), image.doubt.clone()?)));
            Err(doubt.map_or_else(
                || NotRunning::Untold(first.pod.clone()),
                |(pod, why)| NotRunning::Doubtful(pod, why),
            ))
        }
        _ => {
            let told = digests.iter().map(|(digest, (_, pod))| format!("{digest} in Pod {pod}"));
            Err(NotRunning::Differs(told.collect::<Vec<_>>().join(", ")))
        }
    }
}
