//! Which registries there is a reason to know.
//!
//! The names of registries come from administrators (the configuration, cluster-scoped policies), from tenants
//! (policies of a namespace) and from images of Pods. What the operator keeps about a registry (connections, trials
//! while it is down, metrics) lasts no longer than the reason for it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use fairlead_domain::reference::Host;

use crate::routing::Index;

/// Idle time after which a registry is forgotten that policies named and none does any more. Short enough that nothing
/// of it is left half a minute after the last policy, long enough for requests under way.
const UNNAMED: Duration = Duration::from_secs(10);
/// The same for a registry that nothing ever named but images of Pods.
const UNUSED: Duration = Duration::from_mins(10);

/// The registries that configuration or policies name, by the keys of their hosts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Named {
    by_administrators: BTreeSet<Arc<str>>,
    by_tenants: BTreeMap<Arc<str>, BTreeSet<Arc<str>>>,
}

impl Named {
    /// `configured` are the hosts that the configuration has settings for.
    pub fn new<'c>(index: &Index, configured: impl IntoIterator<Item = &'c Host>) -> Self {
        let mut named = Self::default();
        named.by_administrators.extend(configured.into_iter().map(key));
        for policy in index.policies() {
            let hosts = policy.registries().map(|host| key(&host));
            match &policy.id().namespace {
                None => named.by_administrators.extend(hosts),
                Some(namespace) => {
                    named.by_tenants.entry(Arc::clone(namespace)).or_default().extend(hosts);
                }
            }
        }
        named
    }

    pub fn by_administrators(&self) -> impl Iterator<Item = &Arc<str>> {
        self.by_administrators.iter()
    }

    /// Each with the namespace of a policy that names it.
    pub fn by_tenants(&self) -> impl Iterator<Item = (&Arc<str>, &Arc<str>)> {
        self.by_tenants.iter().flat_map(|(namespace, hosts)| hosts.iter().map(move |host| (host, namespace)))
    }

    pub fn contains(&self, host: &str) -> bool {
        self.by_administrators.contains(host) || self.by_tenants.values().any(|hosts| hosts.contains(host))
    }
}

fn key(host: &Host) -> Arc<str> {
    host.key().to_shared()
}

/// Whether a registry is forgotten that nothing asked for anything for this time.
pub fn is_forgotten(is_named: bool, was_named: bool, idle: Duration) -> bool {
    let longest = if was_named { UNNAMED } else { UNUSED };
    !is_named && idle >= longest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registry_is_forgotten_soon_after_its_last_name_and_late_if_only_pods_named_it() {
        let seconds = Duration::from_secs;
        for (is_named, was_named, idle, expected) in [
            (true, true, 86_400, false),
            (true, false, 86_400, false),
            (false, true, 9, false),
            (false, true, 10, true),
            (false, false, 599, false),
            (false, false, 600, true),
        ] {
            assert_eq!(is_forgotten(is_named, was_named, seconds(idle)), expected, "{idle} s");
        }
    }
}
