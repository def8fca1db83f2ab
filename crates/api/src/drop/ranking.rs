//! Ranking of a `DiscoveryPolicy`: how signals give the order of the images.

use k8s_openapi::api::core::v1::NodeSelector;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::KubeSchema;
use kube::core::Rule;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::queries::MAX_NAME_LENGTH;

/// How images are ordered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = block_fits_strategy())]
pub struct Ranking {
    /// How the number that orders the images is made: from one `signal`, as a `weightedSum` of several, or by
    /// `modelExposure`, the waiting time that a warm image is expected to save.
    pub strategy: RankingStrategy,
    /// Name of the signal, for strategy `signal`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = MAX_NAME_LENGTH))]
    pub signal: Option<String>,
    /// Signals and weights, for strategy `weightedSum`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weighted_sum: Option<WeightedSum>,
    /// Signals and nodes, for strategy `modelExposure`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model_exposure: Option<ModelExposure>,
}

/// Ways to order images.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum RankingStrategy {
    Signal,
    WeightedSum,
    ModelExposure,
}

/// A sum of signals, each brought to the same scale and multiplied by a weight.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct WeightedSum {
    /// How a signal is brought to the scale from 0 to 1: `minMax`, by its smallest and its largest value.
    #[serde(default)]
    pub normalize: Normalization,
    /// What happens to an image that a signal says nothing about: `zero` counts as nothing, `drop` leaves it out.
    #[serde(default)]
    pub missing_signal: MissingSignal,
    /// Signals to add.
    #[schemars(length(min = 1, max = 64))]
    pub terms: Vec<WeightedTerm>,
}

/// How a signal is brought to scale.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum Normalization {
    #[default]
    MinMax,
}

/// What happens to an image without a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum MissingSignal {
    #[default]
    Zero,
    Drop,
}

/// One signal of a sum.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct WeightedTerm {
    /// Name of the signal.
    #[schemars(length(min = 1, max = MAX_NAME_LENGTH))]
    pub signal: String,
    /// Number that the signal is multiplied by.
    #[serde(deserialize_with = "super::signals::number")]
    #[schemars(schema_with = "super::signals::quantity")]
    pub weight: Quantity,
}

/// Waiting time that a warm image is expected to save: uses in the time that matters, times the chance that a node does
/// not hold the image yet, times the length of a pull.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ModelExposure {
    /// Nodes that the work is spread over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<ExposedNodes>,
    /// Name of the signal with the uses before the time that matters.
    #[schemars(length(min = 1, max = MAX_NAME_LENGTH))]
    pub pre_window_usage_signal: String,
    /// Name of the signal with the uses in the time that matters.
    #[schemars(length(min = 1, max = MAX_NAME_LENGTH))]
    pub target_window_usage_signal: String,
    /// Name of the signal with the length of a pull.
    #[schemars(length(min = 1, max = MAX_NAME_LENGTH))]
    pub pull_time_signal: String,
}

/// Number of nodes, given or counted.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExposedNodes {
    /// Number of nodes. Used where there is no selector, and while nodes cannot be counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub count: Option<i32>,
    /// Nodes to count, of those that are ready.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::node_selector")]
    pub selector: Option<NodeSelector>,
}

fn block_fits_strategy() -> Rule {
    Rule::new(
        "(has(self.signal) && self.signal != '') == (self.strategy == 'signal') \
         && has(self.weightedSum) == (self.strategy == 'weightedSum') \
         && has(self.modelExposure) == (self.strategy == 'modelExposure')",
    )
    .message("strategy and field do not fit: give the field that strategy names and no other (signal, weightedSum, modelExposure)")
}
