//! Sources of a `DiscoveryPolicy`: backends that give every image a score, without signals and ranking.

use fairlead_domain::duration::Duration;
use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::queries::{self, PrometheusQueryType, block_fits_type};
use super::reference::SecretRef;

/// One backend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = block_fits_type(&["prometheus", "registry"]))]
pub struct Source {
    /// Kind of backend. The block of the same name says what to ask.
    #[serde(rename = "type")]
    pub type_: SourceType,
    /// What to ask Prometheus, or whatever speaks its protocol.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prometheus: Option<PrometheusSource>,
    /// What to ask a registry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registry: Option<RegistrySource>,
    /// Secret with what the backend wants to see. Keys: `token`, `username` and `password`, `ca.crt`, `tls.crt` and
    /// `tls.key`, `headers.<name>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretRef>,
}

/// Kinds of backend that can be a source.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum SourceType {
    Prometheus,
    Registry,
}

/// A `PromQL` expression whose values are the scores.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = Rule::new("self.queryType != 'range' || has(self.lookback)")
        .field_path(".lookback")
        .message("lookback is missing: a range query needs the time it covers, such as 168h (or set queryType to instant)")
        .reason(Reason::FieldValueRequired)
)]
pub struct PrometheusSource {
    /// Address of the server, with the path in front of `/api/v1` if there is one.
    #[schemars(schema_with = "queries::endpoint", length(min = 1))]
    pub endpoint: String,
    /// Expression whose result carries the label `image`.
    #[schemars(length(min = 1))]
    pub query: String,
    /// `range` for all values of a time, `instant` for the present value.
    #[serde(default)]
    pub query_type: PrometheusQueryType,
    /// Time that a range query covers, up to now. Required for a range query.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lookback: Option<Duration>,
    /// How the values of a range query become the score. Left out: the last value is the score.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aggregation_method: Option<ScoreMethod>,
    /// Distance between two values of a range query.
    #[serde(default = "five_minutes")]
    #[x_kube(validation = queries::is_a_step())]
    pub step: Duration,
}

/// How values become a score.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum ScoreMethod {
    Sum,
    Count,
    Avg,
    Max,
}

/// Repositories whose tags are listed. The newest tag has the highest score.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct RegistrySource {
    /// Address of the registry, without a repository: `https://registry.example.com`.
    #[schemars(schema_with = "queries::endpoint", length(min = 1))]
    pub url: String,
    /// Repositories to list: `team/app`.
    #[schemars(schema_with = "queries::repositories")]
    pub repositories: Vec<String>,
    /// Regular expression. Only tags that it matches somewhere are kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "queries::pattern")]
    pub tag_filter: Option<String>,
    /// Tags to keep per repository, newest first. Left out: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub top_x: Option<i32>,
    /// Template of the references to warm, over `.Registry`, `.Repository` and `.Tag`. Left out:
    /// `{{.Registry}}/{{.Repository}}:{{.Tag}}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "queries::image_template")]
    pub image_template: Option<String>,
}

fn five_minutes() -> Duration {
    std::time::Duration::from_mins(5).into()
}
