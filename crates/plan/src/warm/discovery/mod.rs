//! Discovery of the images that are worth warming.
//!
//! A policy is compiled into a [`Discovery`]: what to ask ([`Query`]), and how the answers become a list. The operator
//! sends what [`Query::read`] and [`TagQuery`] name and hands the answers to [`Discovery::report`], which says what the
//! status becomes. A query that fails never empties the list: images that were found before stay.

mod compile;
mod endpoint;
mod evaluate;
mod events;
mod failure;
mod loki;
mod nodes;
mod prometheus;
mod quantity;
mod ranking;
mod reading;
mod report;
mod sample;
mod schedule;
mod signals;
mod tags;
mod template;
#[cfg(test)]
mod tests;
mod version;

use fairlead_api::drop::{QueryType, ScoreMethod};
use fairlead_domain::selector::Search;
use k8s_openapi::api::core::v1::NodeSelector;

pub use self::{
    compile::SpecError,
    events::EventFields,
    failure::{Failure, FailureReason},
    loki::LokiQuery,
    nodes::NodeFacts,
    prometheus::{PrometheusQuery, Range},
    reading::{LARGEST_BODY, Reading},
    report::{Report, Round, SYNCED, refused},
    sample::{Answer, Sample, Series},
    schedule::{first_due, interval, next_due},
    tags::{TagList, TagQuery, TagReading},
};
use self::{ranking::Ranking, signals::Signal};

/// A policy, ready to be carried out.
#[derive(Clone, Debug)]
pub struct Discovery {
    /// In the order of the policy. Sources of the older form are queries, too.
    pub queries: Vec<Query>,
    form: Form,
    filter: Option<Search>,
    /// Images to keep.
    most: usize,
}

/// One question to one backend.
#[derive(Clone, Debug)]
pub struct Query {
    pub name: String,
    pub kind: QueryType,
    /// Secret in the namespace of pull Pods.
    pub secret: Option<String>,
    pub question: Question,
}

#[derive(Clone, Debug)]
pub enum Question {
    Prometheus(PrometheusQuery),
    Loki(LokiQuery),
    Registry(TagQuery),
}

/// How answers become scores.
#[derive(Clone, Debug)]
enum Form {
    Queries {
        signals: Vec<Signal>,
        ranking: Ranking,
        nodes: ExposedNodes,
    },
    /// With the method of each source, in their order.
    Sources {
        scores: Vec<Option<ScoreMethod>>,
    },
}

/// Which nodes an exposure counts: those of a selector, else a number, else all.
#[derive(Clone, Debug, Default)]
struct ExposedNodes {
    count: Option<u32>,
    selector: Option<NodeSelector>,
}

impl Query {
    /// The kind as labels and names spell it.
    pub fn kind_name(&self) -> &'static str {
        match self.kind {
            QueryType::Prometheus => "prometheus",
            QueryType::Loki => "loki",
            QueryType::Registry => "registry",
        }
    }
}

impl Discovery {
    /// Whether the ranking depends on the nodes of the cluster.
    pub fn counts_nodes(&self) -> bool {
        match &self.form {
            Form::Queries { ranking: Ranking::Exposure { .. }, nodes, .. } => {
                nodes.selector.is_some() || nodes.count.is_none()
            }
            Form::Queries { .. } | Form::Sources { .. } => false,
        }
    }

    /// Number of nodes that the ranking spreads work over, of those that are ready.
    pub fn exposed_nodes<N: NodeFacts>(&self, ready: impl Iterator<Item = N>) -> u32 {
        let Form::Queries { ranking: Ranking::Exposure { .. }, nodes, .. } = &self.form else { return 0 };
        let counted = match nodes {
            ExposedNodes { selector: Some(selector), .. } => {
                ready.filter(|node| nodes::selects(selector, node)).count()
            }
            ExposedNodes { count: Some(count), .. } => return *count,
            ExposedNodes { .. } => ready.count(),
        };
        match u32::try_from(counted).unwrap_or(u32::MAX) {
            0 => nodes.count.unwrap_or_default(),
            counted => counted,
        }
    }
}
