//! `config.openshift.io` and `operator.openshift.io`: mirror policies that become runtime configuration on the nodes.
//!
//! [`ImageSourceDigestPolicy`] and [`ImageSourceTagPolicy`] are the kinds as they were designed,
//! [`ImageDigestMirrorSet`] and [`ImageTagMirrorSet`] as they were shipped, and [`ImageContentSourcePolicy`] came
//! before both. All of them say the same thing in different words: images of this source can also be had from these
//! mirrors.

mod image_content_source_policy;
mod image_digest_mirror_set;
mod image_source_digest_policy;
mod image_source_tag_policy;
mod image_tag_mirror_set;
mod mirrors;

pub use image_content_source_policy::{
    ImageContentSourcePolicy, ImageContentSourcePolicySpec, UncheckedMirrors,
};
pub use image_digest_mirror_set::{ImageDigestMirrorSet, ImageDigestMirrorSetSpec};
pub use image_source_digest_policy::{ImageSourceDigestPolicy, ImageSourceDigestPolicySpec};
pub use image_source_tag_policy::{ImageSourceTagPolicy, ImageSourceTagPolicySpec};
pub use image_tag_mirror_set::{ImageTagMirrorSet, ImageTagMirrorSetSpec};
pub use mirrors::{
    MAX_LOCATION_LENGTH, MAX_MIRRORS, MAX_SOURCES, MIRROR_PATTERN, MirrorPolicyStatus, MirrorSet,
    MirrorSourcePolicy, RepositoryMirrors, SOURCE_PATTERN,
};
