//! `drop.corewire.io`: images pulled onto nodes before a Pod asks for them.
//!
//! A [`CachedImage`] is one image on a set of nodes, a [`CachedImageSet`] makes many of them from a list or from a
//! [`DiscoveryPolicy`], and a [`PullPolicy`] paces the pulls.

mod cached_image;
mod cached_image_set;
mod discovery_policy;
mod pull_policy;
mod queries;
mod ranking;
mod reference;
mod signals;
mod sources;

pub use cached_image::{
    CachedImage, CachedImagePhase, CachedImageSpec, CachedImageStatus, MAX_CACHED_NODES, PULL_PROGRESS,
};
pub use cached_image_set::{
    CachedImageSet, CachedImageSetPhase, CachedImageSetSpec, CachedImageSetStatus, ImageEntry,
};
pub use discovery_policy::{
    DiscoveredImage, DiscoveryPolicy, DiscoveryPolicySpec, DiscoveryPolicyStatus, QueryResult, QueryStatus,
    SOURCE_HEALTHY,
};
pub use pull_policy::{FailureBackoff, MAX_USERS, PullPolicy, PullPolicySpec, PullPolicyStatus};
pub use queries::{
    LokiParser, LokiParserType, LokiQuery, LokiQueryType, PrometheusQuery, PrometheusQueryType, Query,
    QueryType, RegistryQuery,
};
pub use ranking::{
    ExposedNodes, MissingSignal, ModelExposure, Normalization, Ranking, RankingStrategy, WeightedSum,
    WeightedTerm,
};
pub use reference::{ImagePullPolicy, NameRef, SecretRef};
pub use signals::{
    Aggregate, AggregateMethod, ClockWindow, EventMetric, EventPullTime, EventStatistic, HourWindow, Signal,
    SignalType, TimeWeightedAggregate, WindowAggregate,
};
pub use sources::{PrometheusSource, RegistrySource, ScoreMethod, Source, SourceType};

/// `apiVersion` of the kinds of this group.
pub const API_VERSION: &str = "drop.corewire.io/v1alpha1";
