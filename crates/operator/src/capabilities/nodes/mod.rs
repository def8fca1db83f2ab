//! Mirror policies on nodes: merges them as agents do, and says in each object what has become of it.
//!
//! Agents follow policies by themselves and report what is in force. `fairlead_plan::node_config::status` turns
//! policies, nodes and reports into conditions; `migration` says what becomes of `ImageContentSourcePolicy` objects;
//! `comparison` says which tags the watch of images should compare on mirrors and sources.

mod compare;
mod controller;
mod metrics;
mod migrate;
mod observe;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use fairlead_plan::availability::MirrorLooks;
use fairlead_plan::node_config::Scope;
use fairlead_plan::node_config::migration::Request;
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};

pub use controller::PolicyReporter;
pub use metrics::Metrics;

use crate::capabilities::availability::Seen;
use crate::cluster::nodes::Watched;
use crate::context::Context;
use crate::platform::config::MigrateIcsp;

/// What reporting works with.
pub struct NodesSetup {
    context: Arc<Context>,
    metrics: Metrics,
    insecure: BTreeSet<Scope>,
    blocked: BTreeSet<Scope>,
    migration: Request,
    /// Set while there is something to report about.
    nodes: Mutex<Option<Watched>>,
    wishes: watch::Sender<Arc<MirrorLooks>>,
    seen: Arc<tokio::sync::Mutex<mpsc::Receiver<Seen>>>,
}

impl NodesSetup {
    /// `wishes` says which tags are to be looked at within the watch's budget, `seen` brings what was found.
    pub fn new(
        context: Arc<Context>,
        metrics: Metrics,
        wishes: watch::Sender<Arc<MirrorLooks>>,
        seen: mpsc::Receiver<Seen>,
    ) -> Self {
        let config = &context.config.nodes;
        // The configuration was checked when it was read.
        let scopes = |texts: &[String]| texts.iter().filter_map(|text| Scope::parse(text).ok()).collect();
        let (insecure, blocked) = (scopes(&config.insecure_registries), scopes(&config.blocked_registries));
        let to = match config.migrate_icsp {
            MigrateIcsp::Off => None,
            MigrateIcsp::ToImageSourceDigestPolicy => Some(migrate::SOURCE_DIGEST_POLICY),
            MigrateIcsp::ToImageDigestMirrorSet => Some(migrate::DIGEST_MIRROR_SET),
        };
        let migration = Request { to, deletes: config.delete_migrated_icsp };
        Self {
            context,
            metrics,
            insecure,
            blocked,
            migration,
            nodes: Mutex::default(),
            wishes,
            seen: Arc::new(tokio::sync::Mutex::new(seen)),
        }
    }
}

impl fmt::Debug for NodesSetup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodesSetup").finish_non_exhaustive()
    }
}
