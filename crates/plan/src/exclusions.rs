//! Which Pods are left alone: one answer for admission, `fairlead explain`, healing and accounting, and for what counts
//! Pods as users of images.

use std::fmt;

use fairlead_api::names;
use fairlead_domain::selector::{Labels, PodFacts, Selector};

use crate::usage::is_warming;

/// Which Pods the configuration leaves alone. The empty one names none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Exclusions {
    /// `skipLabels`.
    pub labels: Vec<Selector>,
    /// `skipAnnotations`.
    pub annotations: Vec<Selector>,
}

/// Why a Pod is left alone, in words for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeftAlone<'a> {
    /// It is in the namespace of the operator.
    OwnNamespace(&'a str),
    Static,
    Warming,
    SkipLabels(&'a Selector),
    SkipAnnotations(&'a Selector),
}

impl Exclusions {
    /// Why a Pod stays as it was written. `own`: the namespace of the operator.
    ///
    /// A namespace that the webhook's selector leaves out is no reason here: admission is not asked about its Pods, and
    /// healing is for Pods that no webhook has seen, too. Accounting, which annotates none of them, asks for itself.
    pub fn left_alone<'a>(&'a self, pod: &PodFacts<'_>, own: &'a str) -> Option<LeftAlone<'a>> {
        if pod.namespace == own {
            return Some(LeftAlone::OwnNamespace(own));
        }
        if pod.annotations.value(names::kubernetes::CONFIG_MIRROR).is_some() {
            return Some(LeftAlone::Static);
        }
        self.skipped(pod.labels, pod.annotations)
    }

    /// Why a Pod does not even count as a user of its images: because of its labels or annotations.
    pub fn skipped(&self, labels: &dyn Labels, annotations: &dyn Labels) -> Option<LeftAlone<'_>> {
        if is_warming(labels) {
            return Some(LeftAlone::Warming);
        }
        let by_label = self.labels.iter().find(|selector| selector.matches(labels));
        let by_annotation = || self.annotations.iter().find(|selector| selector.matches(annotations));
        by_label.map(LeftAlone::SkipLabels).or_else(|| by_annotation().map(LeftAlone::SkipAnnotations))
    }
}

impl fmt::Display for LeftAlone<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (key, selector) = match self {
            Self::OwnNamespace(own) => {
                return write!(f, "Pods of the operator's own namespace, {own}, are never routed");
            }
            Self::Static => {
                return f
                    .write_str("it mirrors a static Pod: the kubelet runs what the file on its node says");
            }
            Self::Warming => {
                return f.write_str(
                    "this Pod pulls images onto a node, under the names that were planned for it",
                );
            }
            Self::SkipLabels(selector) => ("skipLabels", selector),
            Self::SkipAnnotations(selector) => ("skipAnnotations", selector),
        };
        write!(f, "the operator's configuration leaves this Pod alone: {key} has {selector}")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    type Pairs = BTreeMap<String, String>;

    fn pairs(text: &str) -> Pairs {
        let pairs = text.split(',').filter_map(|pair| pair.split_once('='));
        pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect()
    }

    fn selectors(texts: &[&str]) -> Vec<Selector> {
        texts.iter().map(|text| Selector::parse(text).unwrap()).collect()
    }

    fn exclusions() -> Exclusions {
        Exclusions {
            labels: selectors(&["app=web", "tier in (a,b)"]),
            annotations: selectors(&["example.com/skip", "x!=y,z"]),
        }
    }

    const WARMING: &str = "app.kubernetes.io/managed-by=drop,drop.corewire.io/cachedimage=a";

    #[test]
    fn any_selector_is_enough() {
        let exclusions = exclusions();
        let [web, tier] = &*exclusions.labels else { panic!("two selectors") };
        let [skip, both] = &*exclusions.annotations else { panic!("two selectors") };
        for (labels, annotations, expected) in [
            ("app=web", "", Some(LeftAlone::SkipLabels(web))),
            ("tier=b,app=api", "", Some(LeftAlone::SkipLabels(tier))),
            ("", "example.com/skip=any value", Some(LeftAlone::SkipAnnotations(skip))),
            ("", "z=1", Some(LeftAlone::SkipAnnotations(both))),
            ("", "z=1,x=y", None),
            ("app=api", "app=web", None),
            (WARMING, "", Some(LeftAlone::Warming)),
            ("", "", None),
        ] {
            let (labels, annotations) = (pairs(labels), pairs(annotations));
            let reason = exclusions.skipped(&labels, &annotations);
            assert_eq!(reason, expected, "{labels:?} {annotations:?}");
            let facts = PodFacts { namespace: "shop", labels: &labels, annotations: &annotations };
            assert_eq!(exclusions.left_alone(&facts, "fairlead"), expected, "{labels:?} {annotations:?}");
            let unconfigured = Exclusions::default();
            let expected = expected.filter(|reason| *reason == LeftAlone::Warming);
            assert_eq!(unconfigured.left_alone(&facts, "fairlead"), expected, "{labels:?} {annotations:?}");
        }
    }

    #[test]
    fn pods_of_the_operator_and_static_pods_stay_as_they_are_and_use_their_images() {
        let (exclusions, none) = (exclusions(), Pairs::new());
        let mirror = pairs("kubernetes.io/config.mirror=0123");
        for (namespace, annotations, expected) in [
            ("fairlead", &none, Some(LeftAlone::OwnNamespace("fairlead"))),
            ("shop", &mirror, Some(LeftAlone::Static)),
            ("shop", &none, None),
        ] {
            let facts = PodFacts { namespace, labels: &none, annotations };
            assert_eq!(exclusions.left_alone(&facts, "fairlead"), expected, "{namespace} {annotations:?}");
            assert_eq!(exclusions.skipped(&none, annotations), None, "{namespace} {annotations:?}");
        }
    }

    #[test]
    fn a_reason_names_the_key_and_the_selector() {
        let exclusions = exclusions();
        let said = |labels: &str, annotations: &str| {
            let (labels, annotations) = (pairs(labels), pairs(annotations));
            exclusions.skipped(&labels, &annotations).unwrap().to_string()
        };
        assert!(said("app=web", "").ends_with("skipLabels has app in (web)"), "{}", said("app=web", ""));
        let by_annotation = said("", "example.com/skip=");
        assert!(by_annotation.ends_with("skipAnnotations has example.com/skip"), "{by_annotation}");
    }
}
