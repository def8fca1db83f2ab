//! One image of one Pod: of a container, or of a mount of an image volume.

use std::borrow::Cow;

use fairlead_domain::digest::Digest;
use fairlead_domain::platform::Platform;
use fairlead_domain::reference::Reference;
use serde::Serialize;

use super::{Content, Contents, MountView, Reported, State};
use crate::pod_record::Difference;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    Init,
    Sidecar,
    Container,
    Ephemeral,
    Volume,
}

impl Role {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Init => "init",
            Self::Sidecar => "sidecar",
            Self::Container => "container",
            Self::Ephemeral => "ephemeral",
            Self::Volume => "volume",
        }
    }
}

/// When a registry said which digest is expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Resolved {
    /// The reference itself names it.
    Reference,
    /// At admission, before the pull.
    Admission,
    /// After the Pod was created: the tag may have moved in between.
    Later,
    /// An annotation of the Pod says so; every client with rights on the Pod could have written it.
    Annotation,
}

/// The digest that a reference is expected to stand for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expected {
    pub digest: Digest,
    pub resolved: Resolved,
}

/// Where the digest of an image volume is known from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Source {
    Kubelet,
    Expected,
    Unknown,
}

impl Source {
    pub const ALL: [Self; 3] = [Self::Kubelet, Self::Expected, Self::Unknown];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Kubelet => "kubelet",
            Self::Expected => "expected",
            Self::Unknown => "unknown",
        }
    }
}

/// One image of a Pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row<'a> {
    pub role: Role,
    /// Of the container, or of the volume.
    pub name: &'a str,
    /// Of a volume: where it is mounted. None: nowhere.
    pub mount: Option<MountView<'a>>,
    pub requested: Cow<'a, str>,
    pub routed: &'a str,
    pub expected: Option<Expected>,
    pub reported: Option<(&'a str, Reported)>,
    pub state: State,
    pub reason: Cow<'static, str>,
    pub source: Source,
    /// Digests whose content would tell more.
    pub reads: Vec<Digest>,
    /// What the tag names now would tell more.
    pub asks_tag: bool,
    /// Places of the image that held another digest when the Pod was admitted.
    pub differs: Vec<Difference>,
    /// What else the image may be taken from.
    pub alternatives: Vec<String>,
}

impl<'a> Row<'a> {
    /// The digest of the manifest or index that runs: the reported one, else the expected one unless something else is
    /// reported.
    pub fn digest(&self) -> Option<Digest> {
        match &self.reported {
            Some((_, Reported::Manifest { digest, .. })) => Some(*digest),
            Some((_, Reported::Id(_))) if self.state != State::Matching => None,
            _ => self.expected.as_ref().map(|expected| expected.digest),
        }
    }

    /// The image in the form of an `imageID`, `repository@digest`; the digest alone where only an image ID is reported
    /// that is not known to be the expected image's.
    pub fn image_id(&self) -> Option<Cow<'a, str>> {
        let repository = || Reference::parse(self.routed).ok().map(|image| image.repository());
        match &self.reported {
            Some((text, Reported::Manifest { repository: named, digest })) => {
                let Some(named) = named.clone().or_else(repository) else { return Some((*text).into()) };
                let is_it = |(name, of): (&str, &str)| name == named.as_str() && of == of.trim_end();
                if text.rsplit_once('@').is_some_and(is_it) {
                    return Some((*text).into());
                }
                Some(Cow::Owned(format!("{}@{digest}", named.as_str())))
            }
            Some((_, Reported::Id(id))) if self.state != State::Matching => Some(Cow::Owned(id.to_string())),
            _ => {
                let digest = self.expected.as_ref()?.digest;
                Some(Cow::Owned(format!("{}@{digest}", repository()?.as_str())))
            }
        }
    }

    /// Where the kubelet says that a digest is from.
    pub(super) fn reported_in(&self, wanted: &Digest) -> Option<Reference> {
        match &self.reported {
            Some((_, Reported::Manifest { repository: Some(repository), digest })) if digest == wanted => {
                Reference::parse(repository.as_str()).ok()
            }
            _ => None,
        }
    }

    /// The digests of manifests or indexes that the row is known by: the expected one and the reported one.
    fn roots(&self) -> impl Iterator<Item = Digest> {
        let reported = match &self.reported {
            Some((_, Reported::Manifest { digest, .. })) => Some(*digest),
            _ => None,
        };
        let expected = self.expected.as_ref().map(|expected| expected.digest);
        expected.into_iter().chain(reported.filter(|reported| Some(*reported) != expected))
    }

    /// Whether a digest is one that the row is known by: of an index, of the image of the node's platform in it, or of
    /// the configuration of that.
    pub fn has(&self, digest: &Digest, platform: Option<&Platform>, contents: &Contents) -> bool {
        let reported = self.reported.as_ref().and_then(|(_, reported)| reported.digest());
        let config = Content::Image { config: Some(*digest) };
        let is_config = |of: &Digest| contents.get(of) == Some(&config);
        let holds = |root: Digest| {
            let mut images = contents.get(&root).into_iter().flat_map(|index| index.on(platform));
            root == *digest
                || is_config(&root)
                || images.any(|one| one.digest == *digest || is_config(&one.digest))
        };
        reported.as_ref() == Some(digest) || self.roots().any(holds)
    }

    /// What has to be read in order to know all digests that the row is known by; without `configurations` to know
    /// which of them are of indexes.
    pub fn unread(
        &self,
        platform: Option<&Platform>,
        contents: &Contents,
        configurations: bool,
    ) -> Vec<Digest> {
        let mut unread = Vec::new();
        for root in self.roots() {
            match contents.get(&root) {
                None => unread.push(root),
                Some(index) if configurations => {
                    let images = index.on(platform).map(|one| one.digest);
                    unread.extend(images.filter(|image| contents.get(image).is_none()));
                }
                Some(_) => {}
            }
        }
        unread
    }

    /// `index` or `image`: what the expected digest is of, where that was read.
    pub fn expected_kind(&self, contents: &Contents) -> Option<&'static str> {
        let expected = self.expected.as_ref()?;
        contents.get(&expected.digest).map(|content| match content {
            Content::Index { .. } => "index",
            Content::Image { .. } => "image",
        })
    }

    /// The image that the expected index has for a platform, where there is one only.
    pub fn expected_on_platform(&self, platform: Option<&Platform>, contents: &Contents) -> Option<Digest> {
        let index = contents.get(&self.expected.as_ref()?.digest)?;
        let mut images = index.on(platform).map(|one| one.digest);
        images.next().filter(|_| platform.is_some() && images.next().is_none())
    }
}
