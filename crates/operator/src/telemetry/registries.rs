//! Registries as labels of metrics. Their names come from Pods, so there is a bound to them.

use std::collections::HashSet;
use std::sync::Arc;

/// Registries with labels of their own. A cluster uses some dozen; more are somebody playing with names.
pub(crate) const MOST_REGISTRIES: usize = 200;
pub(crate) const OTHERS: &str = "other";

/// The registries that have labels of their own.
#[derive(Debug, Default)]
pub(crate) struct RegistryLabels(HashSet<Arc<str>>);

impl RegistryLabels {
    /// The host as a label, while there are not too many of them.
    pub(crate) fn of(&mut self, host: &str) -> Arc<str> {
        let host = host.to_ascii_lowercase();
        if let Some(known) = self.0.get(host.as_str()) {
            return known.clone();
        }
        if self.0.len() >= MOST_REGISTRIES {
            return OTHERS.into();
        }
        let host: Arc<str> = host.into();
        self.0.insert(host.clone());
        host
    }
}
