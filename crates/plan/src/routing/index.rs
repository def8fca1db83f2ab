//! All policies together, ready to be asked about Pods and images.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use fairlead_domain::{
    reference::Reference,
    selector::{Bits, PodFacts},
};

use super::{
    alternatives::{Alternatives, Builder},
    layer::Layer,
    policy::Policy,
    pull::{PullPolicy, Rules},
};

/// An immutable snapshot of all policies.
#[derive(Debug, Default)]
pub struct Index {
    policies: Vec<Arc<Policy>>,
    cluster: Layer,
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
        Self { cluster: Layer::new(cluster), namespaces: namespaces.collect(), policies }
    }

    /// By kind, namespace and name.
    pub fn policies(&self) -> impl Iterator<Item = &Arc<Policy>> {
        self.policies.iter()
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

impl PodPolicies<'_> {
    pub fn is_empty(&self) -> bool {
        self.layers().next().is_none()
    }

    fn layers(&self) -> impl Iterator<Item = &(&Layer, Bits)> {
        self.cluster.iter().chain(&self.own)
    }

    /// What an image of the Pod may be pulled from, in order of trial.
    pub fn alternatives(&self, image: &Reference, pull: PullPolicy, rules: &Rules) -> Alternatives {
        if pull == PullPolicy::Never && !rules.rewrite_on_never {
            return Alternatives::untouched(image);
        }
        let mut builder = Builder::new(image);
        if self.is_empty() {
            return builder.finish(pull, *rules);
        }
        let forms = image.forms();
        for (layer, concerned) in self.layers() {
            layer.find_replicated(concerned, image, &forms, &mut builder);
        }
        for (layer, concerned) in self.layers() {
            layer.find_mirrored(concerned, image, &forms, 0, &mut builder);
        }
        for (rank, upstream) in (1..).zip(builder.take_upstreams()) {
            let forms = upstream.forms();
            for (layer, concerned) in self.layers() {
                layer.find_mirrored(concerned, &upstream, &forms, rank, &mut builder);
            }
        }
        builder.finish(pull, *rules)
    }
}
