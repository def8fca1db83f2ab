//! All policies together, ready to be asked about Pods and images.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use fairlead_domain::cause::Cause;
use fairlead_domain::reference::{Forms, PlaceKey, Reference};
use fairlead_domain::selector::{Bits, PodFacts};

use super::alternatives::{Alternative, Alternatives, Origin, SecretUse};
use super::builder::Builder;
use super::identity::PolicyKind;
use super::layer::Layer;
use super::policy::Policy;
use super::pull::{PullPolicy, Rules};

use crate::ledger::{Owner, OwnerKind};

/// An immutable snapshot of all policies.
#[derive(Debug, Default)]
pub struct Index {
    policies: Vec<Arc<Policy>>,
    cluster: Layer,
    /// Where cluster-scoped replicated sets say that images are.
    cluster_places: HashSet<PlaceKey<'static>>,
    namespaces: HashMap<Arc<str>, Layer>,
}

impl Index {
    /// Any order gives the same results. Of two policies with the same kind, namespace and name the last one counts.
    pub fn new(policies: impl IntoIterator<Item = Arc<Policy>>) -> Self {
        let mut latest: Vec<Arc<Policy>> = policies.into_iter().collect();
        // Sorting keeps equal ones in the order given, so that of each run the last is the one to keep.
        latest.sort_by(|one, other| one.id.key().cmp(&other.id.key()));
        let mut policies: Vec<Arc<Policy>> = Vec::with_capacity(latest.len());
        for policy in latest {
            match policies.last_mut() {
                Some(last) if last.id.key() == policy.id.key() => *last = policy,
                _ => policies.push(policy),
            }
        }
        let mut cluster = Vec::new();
        let mut namespaces: BTreeMap<Arc<str>, Vec<Arc<Policy>>> = BTreeMap::new();
        for policy in &policies {
            match &policy.id.namespace {
                None => cluster.push(Arc::clone(policy)),
                Some(own) => namespaces.entry(Arc::clone(own)).or_default().push(Arc::clone(policy)),
            }
        }
        let namespaces = namespaces.into_iter().map(|(name, policies)| (name, Layer::new(policies)));
        let cluster_places = cluster.iter().flat_map(|policy| policy.upstream_places()).collect();
        Self { cluster: Layer::new(cluster), cluster_places, namespaces: namespaces.collect(), policies }
    }

    /// The policy that an owner of ledgers is, if that very object is among them.
    pub fn owner(&self, owner: &Owner) -> Option<&Policy> {
        let kind = match owner.kind {
            OwnerKind::ClusterImageSetMirror => PolicyKind::ClusterImageSetMirror,
            OwnerKind::ImageSetMirror => PolicyKind::ImageSetMirror,
            OwnerKind::ClusterImageSetAvailability => return None,
        };
        let key = (kind, owner.namespace.as_deref(), &*owner.name);
        let at = self.policies.binary_search_by(|policy| policy.id.key().cmp(&key)).ok()?;
        self.policies.get(at).map(|policy| &**policy).filter(|policy| policy.id.uid == owner.uid)
    }

    /// By kind, namespace and name.
    pub fn policies(&self) -> impl Iterator<Item = &Arc<Policy>> {
        self.policies.iter()
    }

    /// Whether a replicated set declares that two places hold the same image: a cluster-scoped one, or one of the
    /// namespace.
    pub fn are_replicas(&self, one: &Reference, other: &Reference, namespace: Option<&str>) -> bool {
        let policies = self.for_namespace(namespace);
        let declared =
            |from: &Reference, to: &Reference| policies.replicated(from, &from.forms()).is_replica(to);
        // An upstream without a filter recognises nothing, but is a place all the same.
        let (one, other) = (one.pulled(), other.pulled());
        one.is_same_image(&other) || declared(&one, &other) || declared(&other, &one)
    }

    /// Where else an image is declared to be, in order of trial, each place with the Secrets that are named for it.
    /// Which Pods the replicated sets are about makes no difference.
    pub fn upstreams_of(
        &self,
        image: &Reference,
        namespace: Option<&str>,
    ) -> Vec<(Reference, Vec<SecretUse>)> {
        let rules = Rules { rewrite_on_never: false, honor_priorities_on_always: true };
        let found = self
            .for_namespace(namespace)
            .replicated(image, &image.forms())
            .finish(PullPolicy::IfNotPresent, rules)
            .list;
        let is_upstream = |one: &Alternative| {
            let mut origins = std::iter::once(&one.origin).chain(&one.also);
            origins.any(|origin| matches!(origin, Origin::Upstream { .. }))
        };
        let others = found.into_iter().filter(|one| !one.reference.is_same_image(image) && is_upstream(one));
        others.map(|one| (one.reference, one.secrets)).collect()
    }

    /// On whose account the registry of an image is contacted that a Pod uses or an upstream is said to hold: a
    /// tenant's, unless an upstream of a cluster-scoped replicated set names the place.
    pub fn cause_of(&self, image: &Reference) -> Cause {
        let named = image.place().ancestors().any(|place| self.cluster_places.contains(&place));
        if named { Cause::Administrator } else { Cause::Tenant }
    }

    /// The Secrets that replicated sets name for the very place that an image is in.
    pub fn upstream_secrets(&self, image: &Reference, namespace: Option<&str>) -> Vec<SecretUse> {
        self.for_namespace(namespace).replicated(image, &image.forms()).own_secrets()
    }

    /// The policies that serve a namespace, or the cluster-scoped ones alone, whatever Pods they are about.
    fn for_namespace(&self, namespace: Option<&str>) -> PodPolicies<'_> {
        let own = namespace.and_then(|name| self.namespaces.get(name));
        PodPolicies {
            cluster: Some((&self.cluster, self.cluster.everyone())),
            own: own.map(|layer| (layer, layer.everyone())),
        }
    }

    /// The policies that concern a Pod, judged once for all its images.
    pub fn for_pod<'i>(&'i self, pod: &PodFacts<'_>) -> PodPolicies<'i> {
        let concerned = |layer: &'i Layer| {
            let concerned = layer.concerning(pod);
            (!concerned.is_empty()).then_some((layer, concerned))
        };
        PodPolicies {
            cluster: concerned(&self.cluster),
            own: self.namespaces.get(pod.namespace).and_then(concerned),
        }
    }
}

/// The policies that concern one Pod.
#[derive(Debug, Clone)]
pub struct PodPolicies<'i> {
    cluster: Option<(&'i Layer, Bits)>,
    own: Option<(&'i Layer, Bits)>,
}

impl<'i> PodPolicies<'i> {
    pub fn is_empty(&self) -> bool {
        self.layers().next().is_none()
    }

    fn layers(&self) -> impl Iterator<Item = &(&'i Layer, Bits)> {
        self.cluster.iter().chain(&self.own)
    }

    /// What replicated sets offer for an image.
    fn replicated<'b>(&self, image: &'b Reference, forms: &Forms) -> Builder<'b>
    where
        'i: 'b,
    {
        let mut builder = Builder::new(image);
        for (layer, concerned) in self.layers() {
            layer.find_replicated(concerned, image, forms, &mut builder);
        }
        builder
    }

    /// What an image of the Pod may be pulled from, in order of trial.
    pub fn alternatives(&self, image: &Reference, pull: PullPolicy, rules: &Rules) -> Alternatives {
        if pull == PullPolicy::Never && !rules.rewrite_on_never {
            return Alternatives::untouched(image);
        }
        if self.is_empty() {
            return Builder::new(image).finish(pull, *rules);
        }
        let forms = image.forms();
        let mut builder = self.replicated(image, &forms);
        let others: Vec<Forms> = builder.find_sources().skip(1).map(Reference::forms).collect();
        let sources: Vec<Forms> = std::iter::once(forms).chain(others).collect();
        for (layer, concerned) in self.layers() {
            layer.find_mirrored(concerned, &sources, &mut builder);
        }
        builder.finish(pull, *rules)
    }
}
