//! Looks at images in their registries, on the lease holder, before an outage needs them.
//!
//! Three kinds of images are looked at, each at the pace that the configuration sets for its registry: those that
//! `ClusterImageSetAvailability` objects watch, the sources of mirrors, whose tags may move, and the copies in mirrors,
//! which may get lost. What is found goes into the ledgers of the objects, to the mirrors, and to admission, which then
//! knows without asking. Registries are independent of each other: each has at most one look under way, and every look
//! ends.

mod metrics;
mod news;
mod object;
mod prober;
mod status;
mod work;
mod write_schedule;

use std::fmt;
use std::sync::Arc;

use fairlead_domain::cause::Cause;
use fairlead_domain::reference::Reference;
use fairlead_domain::verdict::Verdict;
use fairlead_plan::credentials::Principal;
use fairlead_plan::routing::SecretName;
use fairlead_plan::usage::Holder;
use jiff::Timestamp;
use tokio::sync::{mpsc, watch};

pub use metrics::Metrics;
pub use work::AvailabilityWatch;

use prober::Prober;

use crate::cluster::usage::Ignored;
use crate::context::Context;

/// One image that a mirror wants looked at: a source or a copy.
#[derive(Debug, Clone)]
pub struct MirrorLook {
    pub reference: Reference,
    /// When it was last looked at, or copied.
    pub last: Timestamp,
    /// Whose pull secrets open it.
    pub holders: Arc<[Holder]>,
    /// Shared by all images that are looked at in the same way.
    pub access: Arc<LookAccess>,
}

/// Whose request a look is, and what it may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LookAccess {
    /// What the look finds is used for this principal only.
    pub principal: Principal,
    /// The mirror's own Secret, for its copies; it is tried first.
    pub secret: Option<SecretName>,
    /// Who chose the host.
    pub cause: Cause,
}

/// Everything that mirrors want looked at.
#[derive(Debug, Default)]
pub struct MirrorLooks {
    /// In order of references and principals, each once.
    list: Vec<MirrorLook>,
}

impl MirrorLooks {
    /// Of an image that is named twice on behalf of one principal the first counts, and what an administrator answers
    /// for before all.
    pub fn new(mut list: Vec<MirrorLook>) -> Self {
        list.sort_by(|one, other| {
            let [by, others] =
                [one, other].map(|look| (&look.reference, &look.access.principal, look.access.cause));
            by.cmp(&others)
        });
        list.dedup_by(|one, other| {
            one.reference == other.reference && one.access.principal == other.access.principal
        });
        Self { list }
    }

    pub fn iter(&self) -> impl Iterator<Item = &MirrorLook> {
        self.list.iter()
    }

    /// Those of one image.
    pub fn of(&self, reference: &Reference) -> impl Iterator<Item = &MirrorLook> {
        let first = self.list.partition_point(|look| look.reference < *reference);
        self.list.iter().skip(first).take_while(move |look| look.reference == *reference)
    }
}

/// What a look at an image of a mirror found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    pub reference: Reference,
    /// With whose credentials.
    pub principal: Principal,
    pub verdict: Verdict,
}

/// What the watch works with.
pub struct AvailabilitySetup {
    context: Arc<Context>,
    prober: Arc<Prober>,
    ignored: Arc<Ignored>,
    mirrors: watch::Receiver<Arc<MirrorLooks>>,
    metrics: Metrics,
}

impl fmt::Debug for AvailabilitySetup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AvailabilitySetup").field("prober", &self.prober).finish_non_exhaustive()
    }
}

impl AvailabilitySetup {
    /// `mirrors` says what mirrors want looked at, `seen` takes what was found of it.
    pub fn new(
        context: Arc<Context>,
        mirrors: watch::Receiver<Arc<MirrorLooks>>,
        seen: mpsc::Sender<Seen>,
        metrics: Metrics,
    ) -> Self {
        let prober = Arc::new(Prober::new(context.clone(), seen));
        let ignored = Arc::new(Ignored::from(&context.config));
        Self { context, prober, ignored, mirrors, metrics }
    }
}
