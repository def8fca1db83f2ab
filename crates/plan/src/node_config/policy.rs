//! The five kinds of mirror policies, read into one form.

use std::fmt;

use fairlead_api::openshift::{
    ImageContentSourcePolicy, ImageDigestMirrorSet, ImageSourceDigestPolicy, ImageSourceTagPolicy,
    ImageTagMirrorSet, MirrorSet, MirrorSourcePolicy, RepositoryMirrors, UncheckedMirrors,
};

use super::PullKind;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PolicyKind {
    ImageContentSourcePolicy,
    ImageDigestMirrorSet,
    ImageSourceDigestPolicy,
    ImageSourceTagPolicy,
    ImageTagMirrorSet,
}

impl PolicyKind {
    pub fn name(self) -> &'static str {
        match self {
            Self::ImageContentSourcePolicy => "ImageContentSourcePolicy",
            Self::ImageDigestMirrorSet => "ImageDigestMirrorSet",
            Self::ImageSourceDigestPolicy => "ImageSourceDigestPolicy",
            Self::ImageSourceTagPolicy => "ImageSourceTagPolicy",
            Self::ImageTagMirrorSet => "ImageTagMirrorSet",
        }
    }

    /// The pulls that its mirrors serve. The text of `ImageSourceTagPolicy` has no restriction to tags.
    pub(super) fn serves(self) -> &'static [PullKind] {
        match self {
            Self::ImageContentSourcePolicy | Self::ImageDigestMirrorSet | Self::ImageSourceDigestPolicy => {
                &[PullKind::Digest]
            }
            Self::ImageTagMirrorSet => &[PullKind::Tag],
            Self::ImageSourceTagPolicy => &[PullKind::Digest, PullKind::Tag],
        }
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// Which object; all of these kinds are cluster-scoped.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PolicyId {
    pub kind: PolicyKind,
    pub name: String,
}

impl fmt::Display for PolicyId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} {}", self.kind, self.name)
    }
}

/// One object, as written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MirrorPolicy {
    pub id: PolicyId,
    pub sets: Vec<Set>,
}

/// One source and its mirrors, as written.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Set {
    pub source: String,
    pub mirrors: Vec<String>,
    pub never_contact_source: bool,
}

impl From<RepositoryMirrors> for Set {
    fn from(RepositoryMirrors { source, mirrors }: RepositoryMirrors) -> Self {
        Self { source, mirrors, never_contact_source: false }
    }
}

impl From<UncheckedMirrors> for Set {
    fn from(UncheckedMirrors { source, mirrors }: UncheckedMirrors) -> Self {
        Self { source, mirrors, never_contact_source: false }
    }
}

impl From<MirrorSet> for Set {
    fn from(MirrorSet { source, mirrors, mirror_source_policy }: MirrorSet) -> Self {
        let never_contact_source = mirror_source_policy == Some(MirrorSourcePolicy::NeverContactSource);
        Self { source, mirrors, never_contact_source }
    }
}

macro_rules! read {
    ($($kind:ident: $list:ident),+ $(,)?) => {$(
        impl From<$kind> for MirrorPolicy {
            fn from(object: $kind) -> Self {
                let name = object.metadata.name.unwrap_or_default();
                let sets = object.spec.$list.into_iter().map(Set::from).collect();
                Self { id: PolicyId { kind: PolicyKind::$kind, name }, sets }
            }
        }
    )+};
}

read! {
    ImageContentSourcePolicy: repository_digest_mirrors,
    ImageDigestMirrorSet: image_digest_mirrors,
    ImageSourceDigestPolicy: repository_digest_mirrors,
    ImageSourceTagPolicy: repository_tag_mirrors,
    ImageTagMirrorSet: image_tag_mirrors,
}
