//! Whose share something counts against.
//!
//! What the operator can do at once is shared between tenants, not between objects or requests: a namespace with a
//! thousand objects gets what one with a single object gets. Cluster-scoped objects are made by administrators and
//! serve all namespaces, so each is a tenant of its own: a large one delays neither namespaces nor the other
//! cluster-scoped objects.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::ledger::Owner;
use crate::routing::PolicyId;

/// A namespace, or one cluster-scoped object.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Tenant {
    /// By its UID.
    Object(Arc<str>),
    Namespace(Arc<str>),
}

impl Tenant {
    fn new(namespace: Option<&Arc<str>>, uid: &Arc<str>) -> Self {
        match namespace {
            Some(namespace) => Self::Namespace(Arc::clone(namespace)),
            None => Self::Object(Arc::clone(uid)),
        }
    }
}

impl From<&PolicyId> for Tenant {
    fn from(id: &PolicyId) -> Self {
        Self::new(id.namespace.as_ref(), &id.uid)
    }
}

impl From<&Owner> for Tenant {
    fn from(owner: &Owner) -> Self {
        Self::new(owner.namespace.as_ref(), &owner.uid)
    }
}

/// At most so many of what waits: one of every tenant, then a second of every tenant, and so on. Of one tenant the
/// smallest come first, and so do the tenants whose first is smallest.
pub fn round_robin<T: Ord>(waiting: impl IntoIterator<Item = (Tenant, T)>, most: usize) -> Vec<T> {
    let mut tenants: BTreeMap<Tenant, Vec<T>> = BTreeMap::new();
    for (tenant, one) in waiting {
        tenants.entry(tenant).or_default().push(one);
    }
    let mut lines: Vec<_> = tenants
        .into_values()
        .map(|mut line| {
            line.sort_unstable();
            VecDeque::from(line)
        })
        .collect();
    lines.sort_by(|one, other| one.front().cmp(&other.front()));
    let mut lines = VecDeque::from(lines);
    let mut taken = Vec::new();
    while taken.len() < most
        && let Some(mut line) = lines.pop_front()
    {
        taken.extend(line.pop_front());
        if !line.is_empty() {
            lines.push_back(line);
        }
    }
    taken
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thousand_objects_get_one_share() {
        let namespace = |name: &str| Tenant::Namespace(name.into());
        let crowd = (0..1000).map(|number| (namespace("crowd"), number));
        let others = [(namespace("a"), 5000), (namespace("b"), 4000), (namespace("b"), 4001)];
        let cluster = [(Tenant::Object("one".into()), 6000), (Tenant::Object("two".into()), 7000)];
        let waiting: Vec<_> = crowd.chain(others).chain(cluster).collect();
        assert_eq!(round_robin(waiting.clone(), 8), [0, 4000, 5000, 6000, 7000, 1, 4001, 2]);
        assert_eq!(round_robin(waiting.clone(), 2), [0, 4000]);
        assert_eq!(round_robin(waiting.clone(), usize::MAX).len(), waiting.len());
        assert_eq!(round_robin(Vec::<(Tenant, u8)>::new(), 3), [0u8; 0]);
    }
}
