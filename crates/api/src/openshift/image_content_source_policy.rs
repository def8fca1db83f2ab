//! `ImageContentSourcePolicy`: the oldest way to name mirrors, for images that are asked for by digest.
//!
//! The API server never checked this kind, and clusters hold objects that it could not refuse any more. It stays as
//! loose as it was: what cannot be used is said in the conditions.

use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use super::mirrors::MirrorPolicyStatus;

/// Mirrors that are used for digests only.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[kube(
    group = "operator.openshift.io",
    version = "v1alpha1",
    kind = "ImageContentSourcePolicy",
    plural = "imagecontentsourcepolicies",
    shortname = "icsp",
    status = "MirrorPolicyStatus",
    derive = "PartialEq",
    doc = "Mirrors from which nodes pull images that are asked for by digest. ImageSourceDigestPolicy and ImageDigestMirrorSet say the same and are checked when they are applied.",
    printcolumn = r#"{"name": "Accepted", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Accepted\")].status"}"#,
    printcolumn = r#"{"name": "Applied", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Applied\")].status"}"#,
    printcolumn = r#"{"name": "Exact", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Exact\")].status"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct ImageContentSourcePolicySpec {
    /// Sources and their mirrors. Mirrors of one source from several objects are merged; their order is kept where the
    /// objects do not contradict each other.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub repository_digest_mirrors: Vec<UncheckedMirrors>,
}

/// One source and its mirrors, as written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct UncheckedMirrors {
    /// Where images are asked from: `host[:port]`, `host[:port]/path`, or `*.host` for every host below a domain.
    pub source: String,
    /// Where the images can be had instead, best first: `host[:port]` or `host[:port]/path`. The source itself is tried
    /// last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mirrors: Vec<String>,
}
