//! What the plan for copies depends on, gathered at the beginning of a pass.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use fairlead_api::kuik::{CredentialSecret, Mirror};
use fairlead_api::names::kuik::SECRET_CLEANUP;
use fairlead_plan::certificates::WallTime;
use fairlead_plan::pull_secrets::{CopyPlace, Owner, SourceSecret, copy_name, may_be_copy};
use fairlead_plan::routing::{PolicyId, PolicyKind, SecretName};
use kube::api::ObjectMeta;

use super::Copies;
use crate::cluster::watch::Resources;
use crate::registries::secrets::Read;

#[derive(Default)]
pub(super) struct Observed {
    pub(super) owners: Vec<Owner>,
    /// UIDs of policies that are there and cannot be read.
    pub(super) unreadable: BTreeSet<Arc<str>>,
    pub(super) used: BTreeSet<CopyPlace>,
    pub(super) sources: BTreeMap<SecretName, SourceSecret>,
    /// Policies by UID that cannot go before their finalizer is taken off.
    pub(super) held: HashMap<Arc<str>, HeldPolicy>,
    /// Names of copies, and the UIDs of the policies that they are for.
    names: HashMap<String, Arc<str>>,
}

/// The part of a policy's metadata that decides whether a finalizer holds it.
struct Holding<'a> {
    name: Option<&'a str>,
    uid: Option<&'a str>,
    resource_version: Option<&'a str>,
    finalizers: &'a [String],
    deleting: bool,
}

impl<'a> Holding<'a> {
    fn of(metadata: &'a ObjectMeta) -> Self {
        Self {
            name: metadata.name.as_deref(),
            uid: metadata.uid.as_deref(),
            resource_version: metadata.resource_version.as_deref(),
            finalizers: metadata.finalizers.as_deref().unwrap_or_default(),
            deleting: metadata.deletion_timestamp.is_some(),
        }
    }
}

pub(super) struct HeldPolicy {
    pub(super) resource_version: Option<String>,
    pub(super) finalizers: Vec<String>,
}

impl Observed {
    /// `deleting` remembers since when policies are known to be under deletion.
    pub(super) fn new(
        resources: &Resources,
        copies: &Copies,
        deleting: &mut HashMap<Arc<str>, WallTime>,
    ) -> Self {
        let mut observed = Self::default();
        let mirrors = resources.cluster_image_set_mirrors.snapshot();
        let sets = resources.cluster_replicated_image_sets.snapshot();
        let caches = resources.proxy_caches.snapshot();
        // Of an unreadable set under deletion only the finalizer is left to take care of; the mirror controller takes
        // the finalizers off unreadable mirrors.
        let (leaving, unreadable): (Vec<_>, Vec<_>) =
            sets.malformed.iter().partition(|(_, set)| set.deleting);
        let unreadable = mirrors.malformed.values().chain(unreadable.into_iter().map(|(_, set)| set));
        let unreadable = unreadable.chain(caches.malformed.values());
        observed.unreadable = unreadable.map(|policy| policy.uid.as_str().into()).collect();
        let now = copies.shared.now();
        let mut since = |uid: &Arc<str>| *deleting.entry(uid.clone()).or_insert(now);
        for mirror in mirrors.objects.values() {
            let secrets = mirror.spec.mirrors.iter().filter_map(Mirror::secret_for_pods);
            let kind = PolicyKind::ClusterImageSetMirror;
            observed.add_owner(kind, &Holding::of(&mirror.metadata), secrets, &mut since);
        }
        for set in sets.objects.values() {
            let secrets =
                set.spec.upstreams.iter().filter_map(|upstream| upstream.credential_secret.as_ref());
            let kind = PolicyKind::ClusterReplicatedImageSet;
            observed.add_owner(kind, &Holding::of(&set.metadata), secrets, &mut since);
        }
        for cache in caches.objects.values() {
            let secrets = cache.spec.routing.iter().filter_map(|routing| routing.credential_secret.as_ref());
            observed.add_owner(PolicyKind::ProxyCache, &Holding::of(&cache.metadata), secrets, &mut since);
        }
        for (key, set) in leaving {
            let holding = Holding {
                name: Some(&key.name),
                uid: Some(&set.uid),
                resource_version: Some(&set.resource_version),
                finalizers: &set.finalizers,
                deleting: true,
            };
            observed.add_owner(
                PolicyKind::ClusterReplicatedImageSet,
                &holding,
                std::iter::empty(),
                &mut since,
            );
        }
        deleting.retain(|uid, _| observed.owners.iter().any(|owner| owner.id.uid == *uid));
        if copies.enabled() {
            if !observed.owners.is_empty() {
                observed.add_uses(resources);
                observed.used.extend(copies.shared.kept.lock().iter().cloned());
            }
            observed.add_sources(copies);
        } else {
            // Without copying there is nothing to look for; policies are let go all the same.
            observed.owners.iter_mut().for_each(|owner| owner.secrets.clear());
        }
        observed
    }

    fn add_owner<'s>(
        &mut self,
        kind: PolicyKind,
        policy: &Holding<'_>,
        secrets: impl Iterator<Item = &'s CredentialSecret>,
        since: &mut impl FnMut(&Arc<str>) -> WallTime,
    ) {
        let uid: Arc<str> = policy.uid.unwrap_or_default().into();
        let name = policy.name.unwrap_or_default().into();
        let deleting_since = policy.deleting.then(|| since(&uid));
        let finalizers = policy.finalizers;
        if deleting_since.is_some() && finalizers.iter().any(|finalizer| finalizer == SECRET_CLEANUP) {
            let held = HeldPolicy {
                resource_version: policy.resource_version.map(str::to_owned),
                finalizers: finalizers.to_vec(),
            };
            self.held.insert(uid.clone(), held);
        }
        let secrets: BTreeSet<SecretName> = secrets
            .filter_map(|secret| {
                let namespace = secret.namespace.as_deref().filter(|namespace| !namespace.is_empty())?;
                let named = !secret.name.is_empty();
                named.then(|| SecretName { namespace: namespace.into(), name: secret.name.as_str().into() })
            })
            .collect();
        self.names.extend(secrets.iter().map(|secret| (copy_name(secret, &uid), uid.clone())));
        let id = Arc::new(PolicyId { kind, namespace: None, name, uid });
        self.owners.push(Owner { id, secrets, deleting_since });
    }

    fn add_uses(&mut self, resources: &Resources) {
        for pod in resources.pods.all() {
            if pod.has_ended() {
                continue;
            }
            let copies = pod.pull_secrets.iter().filter(|name| may_be_copy(name));
            let place =
                |name: &Arc<str>| CopyPlace { namespace: pod.key.namespace.clone(), name: name.clone() };
            self.used.extend(copies.map(place));
        }
    }

    fn add_sources(&mut self, copies: &Copies) {
        for secret in self.owners.iter().flat_map(|owner| &owner.secrets) {
            let source = match copies.shared.secrets.cached(secret) {
                Some(Read::Keys(keys)) => SourceSecret::Has(keys.content()),
                _ => SourceSecret::Unusable,
            };
            self.sources.insert(secret.clone(), source);
        }
    }

    /// The UID of the policy that a copy at this place is expected to be for.
    pub(super) fn owner_of(&self, place: &CopyPlace) -> Option<&str> {
        self.names.get(&*place.name).map(|uid| &**uid)
    }
}

#[cfg(test)]
mod tests {
    use kube::Client;

    use super::*;
    use crate::cluster::namespaces::Namespaces;
    use crate::cluster::state::{Key, Malformed, Snapshot};
    use crate::platform::certificates::system_clock;
    use crate::registries::secrets::{Metrics, Secrets};

    /// A client for an API server that is not there.
    fn copies() -> Copies {
        fairlead_testkit::install_crypto();
        let client = Client::try_from(kube::Config::new("http://127.0.0.1:9".parse().unwrap())).unwrap();
        let secrets = Secrets::new(client.clone(), Metrics::default());
        Copies::new(client, secrets, true, Namespaces::default(), system_clock(), Metrics::default())
    }

    #[tokio::test]
    async fn a_policy_that_cannot_be_read_is_there_all_the_same() {
        let malformed = |uid: &str| Malformed {
            uid: uid.to_owned(),
            generation: Some(1),
            resource_version: "7".to_owned(),
            error: "spec.type: unknown variant".to_owned(),
            conditions: Vec::new(),
            finalizers: Vec::new(),
            deleting: false,
        };
        let key = Key { namespace: "".into(), name: "broken".into() };
        let resources = Resources::default();
        let mirrors = BTreeMap::from([(key.clone(), Arc::new(malformed("u-mirror")))]);
        let snapshot = Snapshot { malformed: mirrors, ..Snapshot::default() };
        resources.cluster_image_set_mirrors.replace(snapshot);
        let sets = BTreeMap::from([(key.clone(), Arc::new(malformed("u-set")))]);
        resources.cluster_replicated_image_sets.replace(Snapshot { malformed: sets, ..Snapshot::default() });
        let caches = BTreeMap::from([(key, Arc::new(malformed("u-cache")))]);
        resources.proxy_caches.replace(Snapshot { malformed: caches, ..Snapshot::default() });
        let observed = Observed::new(&resources, &copies(), &mut HashMap::new());
        let unreadable: Vec<_> = observed.unreadable.iter().map(|uid| &**uid).collect();
        assert_eq!(unreadable, ["u-cache", "u-mirror", "u-set"]);
    }
}
