//! Warming: images are pulled onto nodes before a Pod asks for them. [`images`] carries out what `plan::warm` decides
//! about `CachedImage` objects, [`sets`] keeps the children of `CachedImageSet` objects, [`discovery`] finds images.

pub mod discovery;
pub mod images;
mod metrics;
pub mod sets;

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

pub use metrics::Metrics;

use crate::cluster::nodes::Watched;
use crate::context::Context;

/// Who wrote it, as the API server records it: the controller of images.
const FIELD_MANAGER: &str = "fairlead-warm";
/// The controller of sets and policies.
const SETS_FIELD_MANAGER: &str = "fairlead-warm-sets";

/// What warming works with.
pub struct WarmSetup {
    context: Arc<Context>,
    metrics: Metrics,
    /// Set while this replica warms nodes.
    nodes: Mutex<Option<Watched>>,
}

impl WarmSetup {
    pub fn new(context: Arc<Context>, metrics: Metrics) -> Self {
        Self { context, metrics, nodes: Mutex::default() }
    }
}

impl fmt::Debug for WarmSetup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WarmSetup").finish_non_exhaustive()
    }
}
