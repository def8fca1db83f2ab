//! Images that lie in mirrors already. Copying those again would make mirrors of mirrors, without end where two mirrors
//! copy each other.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use fairlead_domain::reference::{PlaceKey, Reference};

use crate::routing::{Index, PolicyId};

/// The places of all mirrors, by who has to keep out of them.
#[derive(Debug, Default)]
pub struct Loops {
    /// Places of cluster-scoped policies, which serve all namespaces.
    cluster: HashSet<PlaceKey<'static>>,
    /// Places of namespaced policies: for the policies of the same namespace.
    namespaces: HashMap<Arc<str>, HashSet<PlaceKey<'static>>>,
    /// And for cluster-scoped policies, which see the Pods of all namespaces.
    namespaced: HashSet<PlaceKey<'static>>,
}

impl Loops {
    pub fn of(index: &Index) -> Self {
        let mut loops = Self::default();
        for policy in index.policies() {
            for target in policy.targets() {
                let place = target.place.key().into_owned();
                if let Some(namespace) = &policy.id().namespace {
                    loops.namespaced.insert(place.clone());
                    loops.namespaces.entry(Arc::clone(namespace)).or_default().insert(place);
                } else {
                    loops.cluster.insert(place);
                }
            }
        }
        loops
    }

    /// Whether a source lies in a mirror, compared by whole path segments, so that the policy must not copy it.
    pub fn excludes(&self, policy: &PolicyId, source: &Reference) -> bool {
        let own = match &policy.namespace {
            Some(namespace) => self.namespaces.get(namespace),
            None => Some(&self.namespaced),
        };
        source
            .place()
            .ancestors()
            .any(|place| self.cluster.contains(&place) || own.is_some_and(|own| own.contains(&place)))
    }
}
