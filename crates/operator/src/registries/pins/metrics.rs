//! What the metrics page says about pinning.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use crate::controller::metrics::{labels, metrics};

labels! {
    PinLabel { action }
}

/// What became of a pin at admission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Done {
    Created,
    Extended,
    Read,
    Failed,
}

impl Done {
    const ALL: [Self; 4] = [Self::Created, Self::Extended, Self::Read, Self::Failed];

    fn name(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Extended => "extended",
            Self::Read => "read",
            Self::Failed => "failed",
        }
    }
}

metrics! {
    pub struct Metrics {
        writes: Family<PinLabel, Counter> = "fairlead_image_pins",
            "ImagePins at admission: created, extended by an image, read after another replica was first, and failed";
    }
}

impl Metrics {
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::register_all(registry);
        for done in Done::ALL {
            drop(metrics.writes.get_or_create(&PinLabel { action: done.name() }));
        }
        metrics
    }

    pub(super) fn count(&self, done: Done) {
        self.writes.get_or_create(&PinLabel { action: done.name() }).inc();
    }
}
