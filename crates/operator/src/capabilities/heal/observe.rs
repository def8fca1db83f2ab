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
        !pod.deleting && !pod.has_ended() && self.is_in_scope(pod)
    }

    /// The same, were the Pod not over.
    pub(super) fn is_in_scope(&self, pod: &PodEntry) -> bool {
        let (labels, annotations) = (LabelsOf(&pod.labels), AnnotationsOf(&pod.annotations));
        !pod.is_static()
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
            names_image: problem.names_image,
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
        patched: text(names::reef::PATCHED),
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
    use std::collections::HashSet;

    use fairlead_plan::heal::Incidents;
    use jiff::Timestamp;
    use serde_json::{Value, json};

    use super::*;
    use crate::cluster::state::{Key, PodListing, Pods};
    use crate::registries::node_failures::is_old_news;

    const OLD: &str = "old.io/app:1";
    const NEW: &str = "new.io/app:1";
    /// CRI-O passes this on without the name of the image.
    const DENIED: &str = "unable to retrieve auth token: invalid username/password";

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

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).expect("a time")
    }

    /// A Pod as the watch shows it; `patched`: healing has written it.
    fn pod(image: &str, status_image: &str, (reason, message): (&str, &str), patched: bool) -> Value {
        let route =
            json!({"asked": OLD, "used": image, "by": "original", "alternatives": ["next.io/app:1", OLD]});
        let mut annotations = json!({
            "fairlead.dev/routes": json!({"v": 1, "images": {"main": route}}).to_string(),
        });
        if patched {
            annotations["harbor-reef/patched"] = at(0).to_string().into();
            annotations["harbor-reef/patched-containers"] = json!(["main"]).to_string().into();
        }
        json!({
            "metadata": {"namespace": "shop", "name": "web", "uid": "u", "annotations": annotations},
            "spec": {"nodeName": "n", "containers": [{"name": "main", "image": image}]},
            "status": {"containerStatuses": [{
                "name": "main", "image": status_image,
                "state": {"waiting": {"reason": reason, "message": message}},
            }]},
        })
    }

    /// The kubelet publishes the new image before it has tried it, beside the reason of the last attempt.
    #[test]
    fn what_is_said_of_the_former_image_is_no_failure_of_the_new_one() {
        let pods = Pods::default();
        let (mut listing, mut incidents) = (PodListing::new(pods.clone()), Incidents::default());
        let mut due = |pod: Value, seconds| {
            listing.applied(&serde_json::from_str(&pod.to_string()).expect("a Pod"));
            let failing = pods.failing();
            incidents.retain(&failing.iter().map(|pod| &pod.uid).collect::<HashSet<_>>());
            failing.iter().any(|pod| !incidents.look(&view(pod), at(seconds)).due.is_empty())
        };
        let denied = ("ErrImagePull", DENIED);
        let waits = format!("Back-off pulling image \"{OLD}\": ErrImagePull: {DENIED}");
        assert!(due(pod(OLD, OLD, ("ImagePullBackOff", &*waits), false), -1));
        assert!(!due(pod(NEW, OLD, denied, true), 0), "the kubelet does not know of the patch yet");
        for (seconds, (reason, message)) in (1..).zip([
            denied,
            ("ErrImagePull", "reading manifest 1 in old.io/app: manifest unknown"),
            ("ErrImagePull", "initializing source docker://old.io/app:1: no such host"),
            ("RegistryUnavailable", "image pull failed for old.io/app:1 because the registry is unavailable"),
            ("ImagePullBackOff", &*waits),
        ]) {
            assert!(!due(pod(NEW, NEW, (reason, message), true), seconds), "{reason}: {message}");
            let entry = pods.get(&Key { namespace: "shop".into(), name: "web".into() });
            let entry = entry.expect("it is known");
            let main = entry.containers.iter().find(|one| one.pull_problem.is_some());
            assert!(
                main.is_none_or(|main| is_old_news(&entry, main, at(seconds))),
                "nothing is learnt of it"
            );
        }
        let named =
            "initializing source docker://new.io/app:1: reading manifest 1 in new.io/app: manifest unknown";
        assert!(due(pod(NEW, NEW, ("ErrImagePull", named), true), 10), "that is about the new one");
        let waits = waits.replace(OLD, NEW);
        assert!(due(pod(NEW, NEW, ("ImagePullBackOff", &*waits), true), 20), "and so is what quotes it");
    }
}
