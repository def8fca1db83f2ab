//! Registries as labels of metrics. Their names come from Pods and tenants, so there is a bound to them, and a smaller
//! one for each namespace: no tenant can take the labels of others.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use fairlead_domain::reference::HostKey;

/// Registries with labels of their own, beside those that administrators name. A cluster uses some dozen.
pub(crate) const MOST_REGISTRIES: usize = 200;
/// How many of them one namespace brings in.
pub(crate) const MOST_OF_A_NAMESPACE: usize = 20;
pub(crate) const OTHERS: &str = "other";

/// The registries that have labels of their own.
#[derive(Debug, Default)]
pub(crate) struct RegistryLabels {
    /// With the namespace that brought each in.
    labels: HashMap<Arc<str>, Arc<str>>,
    /// Those that administrators name have labels in any case.
    reserved: HashSet<Arc<str>>,
}

impl RegistryLabels {
    /// The registry as a label, on account of a namespace.
    pub(crate) fn of(&mut self, host: &str, namespace: &str) -> Arc<str> {
        if let Some(known) = self.known(host) {
            return known;
        }
        let own = self.labels.values().filter(|brought_by| ***brought_by == *namespace);
        if self.labels.len() >= MOST_REGISTRIES || own.count() >= MOST_OF_A_NAMESPACE {
            return OTHERS.into();
        }
        let host = HostKey::of(host).to_shared();
        self.labels.insert(Arc::clone(&host), namespace.into());
        host
    }

    /// The registry as a label, if it has one.
    pub(crate) fn get(&self, host: &str) -> Arc<str> {
        self.known(host).unwrap_or_else(|| OTHERS.into())
    }

    fn known(&self, host: &str) -> Option<Arc<str>> {
        let host = HostKey::of(host);
        let label =
            self.reserved.get(host.as_str()).or_else(|| Some(self.labels.get_key_value(host.as_str())?.0));
        label.cloned()
    }

    /// Gives labels to the registries that administrators name, on no namespace's account.
    pub(crate) fn reserve(&mut self, named: impl Iterator<Item = Arc<str>>) {
        self.reserved = named.collect();
        let Self { labels, reserved } = self;
        labels.retain(|host, _| !reserved.contains(host));
    }

    /// Frees the label of a registry that is forgotten.
    pub(crate) fn free(&mut self, host: &str) {
        self.labels.remove(host);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(labels: &mut RegistryLabels, namespace: &str, count: usize) -> usize {
        let names: HashSet<_> =
            (0..count).map(|number| labels.of(&format!("R{number}.{namespace}"), namespace)).collect();
        names.iter().filter(|name| ***name != *OTHERS).count()
    }

    #[test]
    fn one_namespace_cannot_take_the_labels_of_others() {
        let mut labels = RegistryLabels::default();
        assert_eq!(names(&mut labels, "greedy", 1000), MOST_OF_A_NAMESPACE);
        assert_eq!(names(&mut labels, "modest", 3), 3);
        assert_eq!(*labels.of("R0.greedy", "greedy"), *"r0.greedy", "what has a label keeps it");
        assert_eq!(*labels.get("R0.greedy:443"), *"r0.greedy", "in every spelling");
        assert_eq!(*labels.get("r999.greedy"), *OTHERS);
    }

    #[test]
    fn all_namespaces_together_are_bounded_and_administrators_are_not_affected() {
        let mut labels = RegistryLabels::default();
        let taken: usize = (0..100).map(|number| names(&mut labels, &format!("n{number}"), 5)).sum();
        assert_eq!(taken, MOST_REGISTRIES);
        labels.reserve(["named.example".into(), "r0.n0".into()].into_iter());
        assert_eq!(*labels.get("NAMED.example"), *"named.example");
        assert_eq!(names(&mut labels, "late", 2), 1, "a name that an administrator took over made room");
        labels.free("r0.late");
        assert_eq!(names(&mut labels, "later", 2), 1, "and so does one that is forgotten");
    }
}
