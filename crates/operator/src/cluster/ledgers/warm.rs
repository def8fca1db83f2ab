//! Ledgers of warmed nodes as they are watched: only which there are. The lease holder reads the rest once, when its
//! term begins, and knows from then on what it has written.

use fairlead_api::fairlead::WarmLedger;
use kube::api::ObjectMeta;
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::cluster::watch::{LeanMeta, stands_for};

#[derive(Debug, Clone, Deserialize)]
#[serde(from = "Wire")]
pub struct LeanWarmLedger {
    /// Name, namespace and version; nothing else is filled.
    pub metadata: ObjectMeta,
}

#[derive(Deserialize)]
struct Wire {
    metadata: LeanMeta<IgnoredAny>,
}

impl From<Wire> for LeanWarmLedger {
    fn from(wire: Wire) -> Self {
        Self { metadata: wire.metadata.into() }
    }
}

stands_for!(LeanWarmLedger, WarmLedger);
