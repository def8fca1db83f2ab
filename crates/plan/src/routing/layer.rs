//! Policies that concern the same Pods as far as namespaces go, arranged so that none is looked at in vain.
//!
//! A cluster may hold a thousand policies, and every image of every new Pod is held against all of them while the API
//! server waits. So a Pod is matched against all matchers in one pass, an image against all filters in another, and
//! only policies that both passes leave are touched.

use std::collections::HashMap;
use std::sync::Arc;

use fairlead_domain::reference::{Forms, Location, PlaceKey, Reference};
use fairlead_domain::selector::{Bits, FilterSet, ImageFilter, PodFacts, PodMatcherSet};

use super::builder::Builder;
use super::policy::{Offer, Policy};

/// Policies by number, in their canonical order: the cluster-scoped ones, or those of one namespace.
#[derive(Debug, Default)]
pub(super) struct Layer {
    policies: Vec<Arc<Policy>>,
    pods: PodMatcherSet,
    /// The image filters of mirrors, numbered like the policies. A replicated set lets nothing pass here.
    mirrored: FilterSet,
    replicated: Upstreams,
}

impl Layer {
    pub(super) fn new(policies: Vec<Arc<Policy>>) -> Self {
        let pods = PodMatcherSet::new(policies.iter().map(|policy| &policy.pods));
        let nothing = ImageFilter::nothing();
        let mirrored = FilterSet::new(policies.iter().map(|policy| match &policy.offer {
            Offer::Mirrors { images, .. } => images,
            Offer::Upstreams(_) => &nothing,
        }));
        let replicated = Upstreams::new(&policies);
        Self { policies, pods, mirrored, replicated }
    }

    /// Numbers of the policies that concern a Pod.
    pub(super) fn concerning(&self, pod: &PodFacts<'_>) -> Bits {
        self.pods.matching(pod)
    }

    /// Every policy, whatever Pods it is about.
    pub(super) fn everyone(&self) -> Bits {
        let mut all = Bits::new(self.policies.len());
        for number in 0..self.policies.len() {
            all.insert(number);
        }
        all
    }

    /// Hands the builder the replicated sets that hold an image. In each, the first upstream that matches counts.
    pub(super) fn find_replicated<'p>(
        &'p self,
        concerned: &Bits,
        image: &Reference,
        forms: &Forms,
        builder: &mut Builder<'p>,
    ) {
        let found = self.replicated.find(concerned, image, forms);
        let mut done = None;
        for (number, position) in found {
            let Some(policy) = self.policies.get(number).filter(|_| done != Some(number)) else {
                continue;
            };
            let Offer::Upstreams(upstreams) = &policy.offer else {
                continue;
            };
            let Some(upstream) = upstreams.get(position) else {
                continue;
            };
            if upstream.place.contains(image) {
                done = Some(number);
                builder.replicated(policy, upstreams, upstream);
            } else {
                builder.outside(policy, upstream);
            }
        }
    }

    /// Hands the builder the mirrors that may hold copies of sources, which stand in the order of their rank.
    pub(super) fn find_mirrored<'p>(
        &'p self,
        concerned: &Bits,
        sources: &[Forms],
        builder: &mut Builder<'p>,
    ) {
        let passing = |forms: &Forms| {
            let mut passing = self.mirrored.matching(forms.iter());
            passing.keep(concerned);
            passing
        };
        let mut found = |number: usize, sources: u64| {
            if let Some(policy) = self.policies.get(number)
                && let Offer::Mirrors { mirrors, .. } = &policy.offer
            {
                builder.mirrored(policy, mirrors, sources);
            }
        };
        if let [only] = sources {
            passing(only).iter().for_each(|number| found(number, 1));
            return;
        }
        let mut ranks = vec![0u64; self.policies.len()];
        for (rank, forms) in sources.iter().enumerate() {
            for number in passing(forms).iter() {
                if let Some(ranks) = ranks.get_mut(number) {
                    *ranks |= 1 << rank;
                }
            }
        }
        for (number, ranks) in ranks.into_iter().enumerate().filter(|(_, ranks)| *ranks != 0) {
            found(number, ranks);
        }
    }
}

/// Upstreams that recognise images, by the registry that is cut off before their filters look.
#[derive(Debug, Default)]
struct Upstreams {
    by_registry: HashMap<PlaceKey<'static>, RegistryRules>,
    /// How many places of an image have to be looked up: one where registries are hosts, more where they carry a path.
    depth: usize,
}

#[derive(Debug)]
struct RegistryRules {
    place: Location,
    filters: FilterSet,
    /// For each filter the number of its policy, and its upstream's position there.
    members: Vec<(usize, usize)>,
}

impl Upstreams {
    fn new(policies: &[Arc<Policy>]) -> Self {
        type Collected<'p> = (&'p Location, Vec<&'p ImageFilter>, Vec<(usize, usize)>);
        let mut collected: HashMap<PlaceKey<'_>, Collected<'_>> = HashMap::new();
        for (number, policy) in policies.iter().enumerate() {
            let Offer::Upstreams(upstreams) = &policy.offer else {
                continue;
            };
            for (position, upstream) in upstreams.iter().enumerate() {
                // Without a filter an upstream is a target only.
                if upstream.images.is_open() || !upstream.images.include().is_empty() {
                    let registry = &upstream.registry;
                    let (_, filters, members) =
                        collected.entry(registry.key()).or_insert_with(|| (registry, Vec::new(), Vec::new()));
                    filters.push(&upstream.images);
                    members.push((number, position));
                }
            }
        }
        let depth = collected.keys().map(|place| place.as_str().split('/').count()).max().unwrap_or(0);
        let by_registry = collected.into_iter().map(|(key, (place, filters, members))| {
            let registry = RegistryRules { place: place.clone(), filters: FilterSet::new(filters), members };
            (key.into_owned(), registry)
        });
        Self { by_registry: by_registry.collect(), depth }
    }

    /// Policies and upstream positions whose filter lets the image pass, in their order.
    fn find(&self, concerned: &Bits, image: &Reference, forms: &Forms) -> Vec<(usize, usize)> {
        let mut found = Vec::new();
        for place in image.place().ancestors().take(self.depth) {
            let Some(registry) = self.by_registry.get(&place) else {
                continue;
            };
            let Some(texts) = forms.below(&registry.place) else {
                continue;
            };
            let passing = registry.filters.matching(texts);
            let members = passing.iter().filter_map(|filter| registry.members.get(filter));
            found.extend(members.filter(|(policy, _)| concerned.contains(*policy)));
        }
        found.sort_unstable();
        found
    }
}
