//! Shows Pods and policies to the planner.

use std::collections::BTreeSet;

use fairlead_api::names;
use fairlead_domain::selector::PodFacts;
use fairlead_plan::admission::{self, Planned};
use fairlead_plan::exclusions::Exclusions;
use fairlead_plan::heal::{FailingContainer, FailingPod, FailingVolume, Written};
use fairlead_plan::owners::{ApiGroup, exemption};
use fairlead_plan::pod_record::Place;
use fairlead_plan::routing::{self, Alternatives, Withheld};

use crate::cluster::state::{PodEntry, Role};
use crate::cluster::usage::{AnnotationsOf, LabelsOf};
use crate::context::Context;
use crate::platform::config::Config;

/// What the configuration says about Pods and places.
#[derive(Debug)]
pub(super) struct Rules {
    /// Where Pods are healed; none: everywhere.
    namespaces: BTreeSet<String>,
    routing: routing::Rules,
    exclusions: Exclusions,
    skip_owners: Vec<ApiGroup>,
}

impl From<&Config> for Rules {
    fn from(config: &Config) -> Self {
        let routing = &config.routing;
        Self {
            namespaces: config.heal.namespaces.clone(),
            routing: routing.rules(),
            exclusions: config.exclusions(),
            skip_owners: routing.skip_owners.clone(),
        }
    }
}

impl Rules {
    /// Whether healing is for this Pod. Whether admission has seen it makes no difference.
    pub(super) fn covers(&self, pod: &PodEntry) -> bool {
        let (labels, annotations) = (LabelsOf(&pod.labels), AnnotationsOf(&pod.annotations));
        !pod.deleting
            && !pod.has_ended()
            && !pod.is_static()
            && (self.namespaces.is_empty() || self.namespaces.contains(&*pod.key.namespace))
            && self.exclusions.skipped(&labels, &annotations).is_none()
    }
}

/// A Pod as healing sees it.
pub(super) fn view(pod: &PodEntry) -> FailingPod<'_> {
    let mut containers = Vec::new();
    let (mut init, mut main, mut ephemeral) = (0, 0, 0);
    for container in &pod.containers {
        let count = match container.role {
            Role::Init => &mut init,
            Role::Container => &mut main,
            Role::Ephemeral => &mut ephemeral,
            Role::Volume => continue,
        };
        let position = *count;
        *count += 1;
        let Some((problem, waiting)) = container.pull_problem.as_ref().zip(container.waiting.as_deref())
        else {
            continue;
        };
        let volume = problem.volume.as_deref().and_then(|name| {
            let image = pod.volume(name)?;
            Some(FailingVolume { name, image })
        });
        containers.push(FailingContainer {
            place: container.place(),
            position,
            status_position: problem.status_position,
            image: &container.image,
            waiting,
            failure: problem.failure,
            message: &problem.message,
            volume,
        });
    }
    let text = |key: &str| pod.annotation(key).map(|text| &**text);
    let written = Written {
        any: pod.annotation_bytes > 0,
        bytes: pod.annotation_bytes,
        routes: text(names::fairlead::ROUTES),
        healed: text(names::fairlead::HEALED),
        originals: text(names::kuik::ORIGINAL_IMAGES),
        upstreams: text(names::reef::ORIGINAL_UPSTREAMS),
        patched_containers: text(names::reef::PATCHED_CONTAINERS),
    };
    FailingPod { uid: &pod.uid, containers, written }
}

/// What the policies of today offer for an image of a Pod. `recorded`: the Pod was admitted here with that image, so
/// what it had to prove is proven.
pub(super) fn plan(
    context: &Context,
    rules: &Rules,
    pod: &PodEntry,
    place: &Place<'_>,
    asked: &str,
    recorded: bool,
) -> Option<Alternatives> {
    let (labels, annotations) = (LabelsOf(&pod.labels), AnnotationsOf(&pod.annotations));
    if !recorded && is_exempt(context, rules, pod) {
        return None;
    }
    let index = context.policies.current();
    let facts = PodFacts { namespace: &pod.key.namespace, labels: &labels, annotations: &annotations };
    let policy = pod.containers.iter().find(|one| one.place() == *place)?.pull_policy.as_deref();
    let foreign = |source: &_, copy: &_| context.claims.refuses(source, copy, &index);
    let Planned { places, .. } =
        admission::plan(&index.for_pod(&facts), asked, None, policy, &rules.routing, foreign);
    let mut places = places.ok()?;
    if !recorded {
        places.withhold_unproven(&pod.key.namespace, |_| Some(Withheld::Unproven));
    }
    Some(places)
}

/// Whether admission would have left the Pod alone, had it been asked: the webhook may leave out its namespace.
fn is_exempt(context: &Context, rules: &Rules, pod: &PodEntry) -> bool {
    let (labels, annotations) = (LabelsOf(&pod.labels), AnnotationsOf(&pod.annotations));
    let facts = PodFacts { namespace: &pod.key.namespace, labels: &labels, annotations: &annotations };
    let controller = pod.owner.as_ref().map(|owner| owner.controller());
    rules.exclusions.left_alone(&facts, &context.namespace).is_some()
        || controller.is_some_and(|controller| {
            let paused = context.owners.paused_until(&pod.key.namespace, controller.uid);
            exemption(&controller, &rules.skip_owners, paused).is_some()
        })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::cluster::state::{PodListing, Pods};

    fn covers(config: &str, metadata: &Value, phase: &str) -> bool {
        let mut object = json!({
            "metadata": {"name": "web", "namespace": "shop", "uid": "1"}, "status": {"phase": phase},
        });
        for (key, value) in metadata.as_object().unwrap() {
            object["metadata"][key] = value.clone();
        }
        let pods = Pods::default();
        let mut listing = PodListing::new(pods.clone());
        listing.begin();
        listing.listed(&serde_json::from_value(object).unwrap());
        listing.finish();
        Rules::from(&Config::parse(config).unwrap().config).covers(&pods.all()[0])
    }

    #[test]
    fn pods_are_healed_unless_they_are_over_or_to_be_left_alone() {
        let skipping = "skipLabels: [quiet]\nskipAnnotations: ['example.com/quiet']";
        let originals = json!({"harbor.rewrite/original-upstreams": "{}"});
        for (config, metadata, phase, expected) in [
            ("", json!({}), "Pending", true),
            ("", json!({"annotations": originals}), "Pending", true),
            (skipping, json!({"annotations": originals, "labels": {"app": "web"}}), "Pending", true),
            (skipping, json!({"annotations": originals, "labels": {"quiet": ""}}), "Pending", false),
            (skipping, json!({"annotations": {"example.com/quiet": ""}}), "Pending", false),
            ("heal: {namespaces: [other]}", json!({}), "Pending", false),
            ("heal: {namespaces: [other, shop]}", json!({}), "Pending", true),
            ("", json!({"annotations": {"kubernetes.io/config.mirror": "1"}}), "Pending", false),
            ("", json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}), "Pending", false),
            ("", json!({}), "Failed", false),
            ("", json!({}), "Succeeded", false),
        ] {
            assert_eq!(covers(config, &metadata, phase), expected, "{config} {metadata} {phase}");
        }
    }
}
