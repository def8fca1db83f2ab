//! `ImageSourceTagPolicy`: mirrors for images that are asked for by tag or by digest.

use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

use super::mirrors::{MAX_SOURCES, MirrorPolicyStatus, RepositoryMirrors};

/// Mirrors that are used for tags as well as for digests.
#[derive(CustomResource, KubeSchema, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[kube(
    group = "config.openshift.io",
    version = "v1",
    kind = "ImageSourceTagPolicy",
    plural = "imagesourcetagpolicies",
    status = "MirrorPolicyStatus",
    derive = "PartialEq",
    doc = "Mirrors from which nodes pull images that are asked for by tag or by digest.",
    printcolumn = r#"{"name": "Accepted", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Accepted\")].status"}"#,
    printcolumn = r#"{"name": "Applied", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Applied\")].status"}"#,
    printcolumn = r#"{"name": "Exact", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Exact\")].status"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct ImageSourceTagPolicySpec {
    /// Sources and their mirrors. Mirrors of one source from several objects are merged; their order is kept where the
    /// objects do not contradict each other.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = MAX_SOURCES))]
    #[x_kube(merge_strategy = ListMerge::Atomic)]
    pub repository_tag_mirrors: Vec<RepositoryMirrors>,
}
