//! What the metrics page says about Secrets and their copies.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use super::Read;
use crate::controller::metrics::{labels, metrics};

labels! {
    ReadLabel { result }
    CopyLabel { action }
}

/// What became of a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Done {
    Applied,
    Deleted,
    Refused,
    Failed,
}

impl Done {
    const ALL: [Self; 4] = [Self::Applied, Self::Deleted, Self::Refused, Self::Failed];

    fn name(self) -> &'static str {
        match self {
            Self::Applied => "applied",
            Self::Deleted => "deleted",
            Self::Refused => "refused",
            Self::Failed => "failed",
        }
    }
}

metrics! {
    pub struct Metrics {
        reads: Family<ReadLabel, Counter> = "fairlead_secret_reads",
            "Secrets read from the API server, by what was found";
        copies: Family<CopyLabel, Counter> = "fairlead_pull_secret_copies",
            "Copies of pull secrets, by what was done: applied, deleted, refused because the name is taken, failed";
    }
}

impl Metrics {
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::register_all(registry);
        for result in ["keys", "missing", "unusable", "failed"] {
            drop(metrics.reads.get_or_create(&ReadLabel { result }));
        }
        for action in Done::ALL {
            drop(metrics.copies.get_or_create(&CopyLabel { action: action.name() }));
        }
        metrics
    }

    pub(super) fn read(&self, read: &Read) {
        let result = match read {
            Read::Keys(_) => "keys",
            Read::Missing => "missing",
            Read::Unusable(_) => "unusable",
            Read::Failed(_) => "failed",
        };
        self.reads.get_or_create(&ReadLabel { result }).inc();
    }

    pub(super) fn copy(&self, done: Done) {
        self.copies.get_or_create(&CopyLabel { action: done.name() }).inc();
    }
}
