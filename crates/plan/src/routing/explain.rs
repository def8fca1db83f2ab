//! Why a policy has no part in the list of alternatives of an image. Admission never asks; people do.

use fairlead_domain::reference::Reference;
use fairlead_domain::selector::PodFacts;

use super::alternatives::Alternatives;
use super::identity::PolicyKind;
use super::policy::{Offer, Policy};

/// Why a policy is passed over, in words for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PassedOver {
    /// The reason is the Pod, so it holds for every image of it.
    Pod(String),
    Image(String),
}

impl PassedOver {
    pub fn reason(&self) -> &str {
        match self {
            Self::Pod(reason) | Self::Image(reason) => reason,
        }
    }
}

impl Policy {
    /// Why the policy is not about the Pod; none if it is.
    pub fn passes_over_pod(&self, pod: &PodFacts<'_>) -> Option<PassedOver> {
        if let Some(own) = self.id.namespace.as_deref().filter(|own| *own != pod.namespace) {
            return Some(PassedOver::Pod(format!("it serves Pods of namespace {own} only")));
        }
        let what = self.pods.refused_for(pod)?;
        Some(PassedOver::Pod(format!("its spec.filter does not let the Pod's {what} pass")))
    }

    /// Why the policy offers nothing for an image of the Pod; none if it does, or says so in the notes of the list.
    pub fn passes_over(&self, pod: &PodFacts<'_>, alternatives: &Alternatives) -> Option<PassedOver> {
        let offers = alternatives
            .list()
            .iter()
            .flat_map(|one| std::iter::once(&one.origin).chain(&one.also))
            .any(|origin| origin.policy().is_some_and(|policy| *policy == self.id));
        if offers || alternatives.discarded_by() == Some(&self.id) {
            return None;
        }
        if let Some(reason) = self.passes_over_pod(pod) {
            return Some(reason);
        }
        // What it would have offered, and why that was left out, stands with its entry.
        let entry = format!("{}, ", self.id);
        if alternatives.notes().iter().any(|note| note.contains(&entry)) {
            return None;
        }
        if alternatives.dropped() > 0 && self.recognises(alternatives.original()) {
            let kept = alternatives.list().len();
            return Some(PassedOver::Image(format!(
                "what it offers comes after the {kept} places that are tried"
            )));
        }
        let reason = match &self.offer {
            Offer::Mirrors { mirrors, .. } if mirrors.is_empty() => "it has no mirror that works".to_owned(),
            Offer::Mirrors { .. } => "its filter does not let the image pass".to_owned(),
            Offer::Upstreams(_) if self.id.kind == PolicyKind::ProxyCache => {
                "the image does not come from its upstream".to_owned()
            }
            Offer::Upstreams(upstreams) if upstreams.is_empty() => "it has no upstream that works".to_owned(),
            Offer::Upstreams(upstreams) => {
                let near = upstreams.iter().find(|one| one.place.contains(alternatives.original()));
                match near {
                    Some(upstream) => {
                        format!(
                            "the imageFilter of its upstreams[{}] does not let the image pass",
                            upstream.entry
                        )
                    }
                    None => "none of its upstreams is where the image comes from".to_owned(),
                }
            }
        };
        Some(PassedOver::Image(reason))
    }

    /// Whether it would offer something for an image, if there were room.
    fn recognises(&self, image: &Reference) -> bool {
        let forms = image.forms();
        match &self.offer {
            Offer::Mirrors { mirrors, images, .. } => !mirrors.is_empty() && images.matches(forms.iter()),
            Offer::Upstreams(upstreams) => upstreams.iter().any(|one| {
                one.place.contains(image)
                    && forms.below(&one.registry).is_some_and(|texts| one.images.matches(texts))
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;
    use crate::routing::{Index, PullPolicy, Rules};

    fn mirror(namespace: Option<&str>, spec: &Value) -> Policy {
        let metadata = json!({"name": "m", "namespace": namespace});
        let object = |kind| json!({"apiVersion": "kuik.enix.io/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec});
        match namespace {
            Some(_) => Policy::mirror(&serde_json::from_value(object("ImageSetMirror")).unwrap()).unwrap(),
            None => Policy::cluster_mirror(&serde_json::from_value(object("ClusterImageSetMirror")).unwrap())
                .unwrap(),
        }
    }

    fn replicated(upstreams: &Value) -> Policy {
        let object = json!({
            "apiVersion": "kuik.enix.io/v1alpha1", "kind": "ClusterReplicatedImageSet",
            "metadata": {"name": "r"}, "spec": {"upstreams": upstreams},
        });
        Policy::cluster_replicated(&serde_json::from_value(object).unwrap()).unwrap()
    }

    /// Why a policy that stands alone has no part in `docker.io/library/nginx:1` of a Pod in `team`, labelled
    /// `app=web`.
    fn why(policy: Policy) -> Option<PassedOver> {
        let policy = Arc::new(policy);
        let index = Index::new([Arc::clone(&policy)]);
        let labels = BTreeMap::from([("app".to_owned(), "web".to_owned())]);
        let pod =
            PodFacts { namespace: "team", labels: &labels, annotations: &BTreeMap::<String, String>::new() };
        let image = Reference::parse("nginx:1").unwrap();
        let alternatives =
            index.for_pod(&pod).alternatives(&image, PullPolicy::IfNotPresent, &Rules::default());
        policy.passes_over(&pod, &alternatives)
    }

    fn mirrors() -> Value {
        json!([{"registry": "m.example.com"}])
    }

    #[test]
    fn a_policy_that_offers_something_is_not_passed_over() {
        assert_eq!(
            why(mirror(None, &json!({"imageFilter": {"include": [".*"]}, "mirrors": mirrors()}))),
            None
        );
        let upstreams = json!([
            {"registry": "docker.io", "path": "/library", "imageFilter": {"include": [".*"]}, "discardAlternative": true},
        ]);
        assert_eq!(why(replicated(&upstreams)), None, "it discards, which the list says");
        let inside = json!([{"registry": "docker.io", "path": "/library"}]);
        assert_eq!(
            why(mirror(None, &json!({"imageFilter": {"include": [".*"]}, "mirrors": inside}))),
            None,
            "the image lies in the mirror, which the notes say"
        );
        let beside = json!([{"registry": "docker.io", "path": "/libra", "imageFilter": {"include": [".*"]}}]);
        assert_eq!(why(replicated(&beside)), None, "half a segment is no path, which the notes say");
    }

    #[test]
    fn the_pod_is_the_reason() {
        let spec =
            |key: &str, value: &str| json!({"filter": {"include": [{key: value}]}, "mirrors": mirrors()});
        for (policy, reason) in [
            (mirror(Some("other"), &json!({})), "it serves Pods of namespace other only"),
            (
                mirror(None, &spec("namespace", "prod")),
                "its spec.filter does not let the Pod's namespace pass",
            ),
            (mirror(None, &spec("label", "app=api")), "its spec.filter does not let the Pod's labels pass"),
            (
                mirror(Some("team"), &spec("annotation", "x")),
                "its spec.filter does not let the Pod's annotations pass",
            ),
        ] {
            assert_eq!(why(policy), Some(PassedOver::Pod(reason.to_owned())));
        }
    }

    #[test]
    fn the_image_is_the_reason() {
        let upstream = |registry: &str, path: &str, filter: &str| json!([{"registry": registry, "path": path, "imageFilter": {"include": [filter]}}]);
        for (policy, reason) in [
            (
                mirror(None, &json!({"imageFilter": {"include": ["quay.io/.*"]}, "mirrors": mirrors()})),
                "its filter does not let the image pass",
            ),
            (mirror(None, &json!({"mirrors": mirrors()})), "its filter does not let the image pass"),
            (mirror(None, &json!({"imageFilter": {"include": [".*"]}})), "it has no mirror that works"),
            (replicated(&json!([])), "it has no upstream that works"),
            (
                replicated(&upstream("quay.io", "/library", ".*")),
                "none of its upstreams is where the image comes from",
            ),
            (
                replicated(&upstream("docker.io", "/library", "/library/redis:.+")),
                "the imageFilter of its upstreams[0] does not let the image pass",
            ),
        ] {
            assert_eq!(why(policy), Some(PassedOver::Image(reason.to_owned())));
        }
    }
}
