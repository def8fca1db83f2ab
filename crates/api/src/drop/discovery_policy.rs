//! `DiscoveryPolicy`: where the images of a set are found.
//!
//! There are two forms, and a policy uses one of them. `queries` collect raw data, `signals` turn it into one number
//! per image, and `ranking` orders the images by them. `sources`, the older form, gives every image a score directly.

use fairlead_domain::duration::Duration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::core::Rule;
use kube::{CustomResource, KubeSchema};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::queries::{Query, QueryType};
use super::ranking::Ranking;
use super::signals::Signal;
use super::sources::Source;
use crate::conditions::Condition;

/// Condition that says whether every one of the `sources` answered.
pub const SOURCE_HEALTHY: &str = "SourceHealthy";

const HAS_QUERIES: &str = "(has(self.queries) && self.queries.size() > 0)";
const HAS_SOURCES: &str = "(has(self.sources) && self.sources.size() > 0)";

/// What to ask, how to rank the answers, and how many of them to keep.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "drop.corewire.io",
    version = "v1alpha1",
    kind = "DiscoveryPolicy",
    plural = "discoverypolicies",
    category = "drop",
    status = "DiscoveryPolicyStatus",
    derive = "PartialEq",
    doc = "Finds images worth warming in Prometheus, Loki or a registry, and ranks them.",
    printcolumn = r#"{"name": "Status", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].reason"}"#,
    printcolumn = r#"{"name": "Images", "type": "integer", "jsonPath": ".status.imageCount"}"#,
    printcolumn = r#"{"name": "LastSync", "type": "date", "jsonPath": ".status.lastSyncTime"}"#,
    printcolumn = r#"{"name": "Message", "type": "string", "jsonPath": ".status.conditions[?(@.type==\"Ready\")].message", "priority": 1}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = one_form(),
    validation = signals_need_queries(),
    validation = ranking_needs_queries(),
    validation = signals_name_queries(),
    validation = signals_fit_queries(),
    validation = ranking_names_signals()
)]
pub struct DiscoveryPolicySpec {
    /// Raw data to collect. Signals refer to a query by its name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 20))]
    #[x_kube(validation = unique_names("queries"))]
    pub queries: Vec<Query>,
    /// Numbers per image, computed from the queries. The ranking refers to a signal by its name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64))]
    #[x_kube(validation = unique_names("signals"))]
    pub signals: Vec<Signal>,
    /// How the signals give the order of the images. Left out: by the largest value that a query returned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ranking: Option<Ranking>,
    /// Backends that give every image a score, in place of queries, signals and ranking.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(min = 1, max = 20))]
    pub sources: Vec<Source>,
    /// Regular expression. Only images that it matches somewhere are kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::queries::pattern")]
    pub image_filter: Option<String>,
    /// Time between two rounds of discovery. Zero means the default.
    #[serde(default = "half_an_hour")]
    pub sync_interval: Duration,
    /// Number of images to keep, best first.
    #[serde(default = "fifty")]
    #[schemars(range(min = 1))]
    pub max_images: i32,
}

/// What was found. Conditions: `Ready`, and `SourceHealthy` where the policy uses `sources`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct DiscoveryPolicyStatus {
    /// Generation of the object that this status was found for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// When discovery last ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::timestamp")]
    pub last_sync_time: Option<Time>,
    /// How every query went.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub query_results: Vec<QueryResult>,
    /// Images found, best first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub discovered_images: Vec<DiscoveredImage>,
    /// Number of images found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_count: Option<i32>,
    /// Number of sources asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source_count: Option<i32>,
    /// What holds of this object, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::conditions::list")]
    pub conditions: Vec<Condition>,
}

/// How one query went.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct QueryResult {
    /// Name of the query.
    pub name: String,
    /// Kind of backend that was asked.
    #[serde(rename = "type")]
    pub type_: QueryType,
    /// Whether it answered.
    pub status: QueryStatus,
    /// What went wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// Whether a query answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum QueryStatus {
    Success,
    Failed,
}

/// One image that was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct DiscoveredImage {
    /// Reference of the image.
    pub image: String,
    /// Place in the list, from 1. Set where the policy uses `queries`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rank: Option<i32>,
    /// Number that gave the place, as a decimal. Set where the policy uses `queries`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub final_score: Option<String>,
    /// Number that gave the place. Set where the policy uses `sources`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub score: Option<i64>,
    /// Source with that number: its type and its place in the list. Set where the policy uses `sources`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
}

fn half_an_hour() -> Duration {
    std::time::Duration::from_mins(30).into()
}

fn fifty() -> i32 {
    50
}

fn one_form() -> Rule {
    Rule::new(format!("{HAS_QUERIES} != {HAS_SOURCES}"))
        .message("a policy has either queries or sources: give one of the two lists, and only one")
}

fn signals_need_queries() -> Rule {
    Rule::new(format!("{HAS_QUERIES} || !has(self.signals) || self.signals.size() == 0"))
        .field_path(".signals")
        .message("signals are computed from queries: remove signals, or replace sources by queries")
}

fn ranking_needs_queries() -> Rule {
    Rule::new(format!("{HAS_QUERIES} || !has(self.ranking)"))
        .field_path(".ranking")
        .message("ranking orders images by signals of queries; sources carry their own score: remove ranking, or replace sources by queries")
}

fn unique_names(list: &str) -> Rule {
    Rule::new("self.all(a, self.exists_one(b, b.name == a.name))")
        .message(format!("two {list} have the same name: give each of the {list} a name of its own").as_str())
}

fn signals_name_queries() -> Rule {
    Rule::new("!has(self.signals) || !has(self.queries) || self.signals.all(s, self.queries.exists(q, q.name == s.query))")
        .field_path(".signals")
        .message("query of a signal names no query: write the name of one of spec.queries")
}

fn signals_fit_queries() -> Rule {
    Rule::new(
        "!has(self.signals) || !has(self.queries) || self.signals.all(s, self.queries.all(q, q.name != s.query || \
         (s.type == 'eventPullTime' ? q.type == 'loki' : s.type == 'aggregate' || q.type != 'registry')))",
    )
    .field_path(".signals")
    .message("type of a signal does not fit its query: eventPullTime needs a query of type loki, timeWeightedAggregate and windowAggregate need prometheus or loki, aggregate takes any")
}

/// Names of signals in a block that does not fit the strategy are left to the rule about the block.
fn ranking_names_signals() -> Rule {
    let known = |name: &str| format!("(has(self.signals) && self.signals.exists(s, s.name == {name}))");
    let strategies = [
        format!(
            "(!has(self.ranking.signal) || self.ranking.signal == '' || {})",
            known("self.ranking.signal")
        ),
        format!(
            "(!has(self.ranking.weightedSum) || self.ranking.weightedSum.terms.all(t, {}))",
            known("t.signal")
        ),
        format!(
            "(!has(self.ranking.modelExposure) || ({} && {} && {}))",
            known("self.ranking.modelExposure.preWindowUsageSignal"),
            known("self.ranking.modelExposure.targetWindowUsageSignal"),
            known("self.ranking.modelExposure.pullTimeSignal"),
        ),
    ];
    Rule::new(format!("!has(self.ranking) || ({})", strategies.join(" && ")))
        .field_path(".ranking")
        .message("ranking names a signal that does not exist: write the name of one of spec.signals")
}
