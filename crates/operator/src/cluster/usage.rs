//! Images in use, from the Pod cache.

use std::sync::Arc;

use fairlead_domain::selector::{Labels, PodFacts};
use fairlead_plan::exclusions::Exclusions;
use fairlead_plan::usage::{self, DirectUses, ImageUse, PodUse, Selection, Used};

use crate::cluster::state::{Annotation, Container, Label, PodEntry, Role};

/// Stands for the value of an annotation that was too long to keep. No selector can name it.
const TOO_LONG: &str = "\0";

/// For each selection the images that its Pods use. Pods that only warm a node, and those that the configuration leaves
/// alone, do not count.
pub fn gather(
    pods: &[Arc<PodEntry>],
    exclusions: &Exclusions,
    selections: &[Selection<'_>],
) -> Vec<Vec<Used>> {
    let views: Vec<_> =
        pods.iter().map(|pod| (pod, LabelsOf(&pod.labels), AnnotationsOf(&pod.annotations))).collect();
    let uses = views.iter().filter_map(|(pod, labels, annotations)| {
        let facts = PodFacts { namespace: &pod.key.namespace, labels, annotations };
        exclusions.skipped(facts.labels, facts.annotations).is_none().then(|| PodUse {
            facts,
            namespace: &pod.key.namespace,
            name: &pod.key.name,
            pull_secrets: &pod.pull_secrets,
            images: pod.containers.iter().map(|container| image_use(pod, container)).collect(),
        })
    });
    usage::gather(selections, uses)
}

/// What Pods name as their images; those that only warm a node do not count.
pub fn direct(pods: &[Arc<PodEntry>]) -> DirectUses {
    let counting = pods.iter().filter(|pod| !usage::is_warming(&LabelsOf(&pod.labels)));
    DirectUses::of(counting.flat_map(|pod| {
        let (namespace, name) = (&*pod.key.namespace, &*pod.key.name);
        pod.containers.iter().map(move |container| (namespace, name, &*container.image))
    }))
}

fn image_use<'p>(pod: &'p PodEntry, container: &'p Container) -> ImageUse<'p> {
    let mounted = || pod.mounts_of(&container.name).find_map(|mount| mount.reported.as_deref());
    let running = match container.role {
        Role::Volume => mounted(),
        Role::Init | Role::Container | Role::Ephemeral => container.image_id.as_deref(),
    };
    ImageUse { place: container.place(), image: &container.image, running }
}

pub(crate) struct LabelsOf<'a>(pub(crate) &'a [Label]);

impl Labels for LabelsOf<'_> {
    fn value(&self, key: &str) -> Option<&str> {
        self.0.iter().find(|(found, _)| &**found == key).map(|(_, value)| &**value)
    }

    fn each(&self, visit: &mut dyn FnMut(&str, &str)) {
        for (key, value) in self.0 {
            visit(key, value);
        }
    }
}

pub(crate) struct AnnotationsOf<'a>(pub(crate) &'a [Annotation]);

impl Labels for AnnotationsOf<'_> {
    fn value(&self, key: &str) -> Option<&str> {
        let (_, value) = self.0.iter().find(|(found, _)| &**found == key)?;
        Some(value.as_deref().unwrap_or(TOO_LONG))
    }

    fn each(&self, visit: &mut dyn FnMut(&str, &str)) {
        for (key, value) in self.0 {
            visit(key, value.as_deref().unwrap_or(TOO_LONG));
        }
    }
}

#[cfg(test)]
mod tests {
    use fairlead_domain::selector::{ImageFilter, PodMatcher, Rules};
    use serde_json::{Value, json};

    use super::*;
    use crate::cluster::state::{Key, PodListing, Pods};
    use crate::platform::config::Config;

    fn pods(objects: &[Value]) -> Vec<Arc<PodEntry>> {
        let pods = Pods::default();
        let mut listing = PodListing::new(pods.clone());
        listing.begin();
        for object in objects {
            listing.listed(&serde_json::from_value(object.clone()).unwrap());
        }
        listing.finish();
        let mut all = pods.all();
        all.sort_by(|one, other| one.key.cmp(&other.key));
        all
    }

    fn images(pods: &[Arc<PodEntry>], config: &str) -> Vec<String> {
        let exclusions = Config::parse(config).unwrap().config.exclusions();
        let everything = (
            ImageFilter::legacy(&[".*"], &[] as &[&str]).unwrap(),
            PodMatcher::compile(Rules::default()).unwrap(),
        );
        let selection =
            Selection { namespace: None, pods: &everything.1, images: &everything.0, proofs: false };
        let used = gather(pods, &exclusions, &[selection]).remove(0);
        used.iter()
            .map(|used| format!("{}{}", used.image, if used.original { "" } else { " (given)" }))
            .collect()
    }

    #[test]
    fn what_was_asked_for_counts_wherever_it_stands_in_the_pod() {
        let routes = json!({"v": 1, "images": {
            "web": {"asked": "nginx:1", "used": "mirror.example/library/nginx:1", "by": "ClusterImageSetMirror//m"},
            "volume:data": {"asked": "quay.io/a/data:2", "used": "mirror.example/a/data:2", "by": "ClusterImageSetMirror//m"},
        }});
        let pod = json!({
            "metadata": {"name": "a", "namespace": "shop", "uid": "a", "annotations": {"fairlead.dev/routes": routes.to_string()}},
            "spec": {
                "containers": [{"name": "web", "image": "mirror.example/library/nginx:1"}],
                "initContainers": [{"name": "setup", "image": "busybox"}],
                "ephemeralContainers": [{"name": "debug", "image": "alpine:3"}],
                "volumes": [{"name": "data", "image": {"reference": "mirror.example/a/data:2"}}],
            },
        });
        assert_eq!(
            images(&pods(&[pod]), ""),
            [
                "docker.io/library/alpine:3",
                "docker.io/library/busybox",
                "docker.io/library/nginx:1",
                "mirror.example/a/data:2 (given)",
                "mirror.example/library/nginx:1 (given)",
                "quay.io/a/data:2",
            ]
        );
    }

    #[test]
    fn pods_that_warm_nodes_or_are_to_be_left_alone_do_not_count() {
        let pod = |name: &str, metadata: Value| {
            let mut metadata = metadata;
            metadata["name"] = name.into();
            metadata["uid"] = name.into();
            metadata["namespace"] = "shop".into();
            json!({"metadata": metadata, "spec": {"containers": [{"name": "c", "image": format!("r.example/{name}:1")}]}})
        };
        let pods = pods(&[
            pod("used", json!({})),
            pod(
                "warming",
                json!({"labels": {"app.kubernetes.io/managed-by": "drop", "drop.corewire.io/cachedimage": "x"}}),
            ),
            pod("skipped", json!({"labels": {"skip": "yes"}})),
            pod("noted", json!({"annotations": {"example.com/long": "x".repeat(100)}})),
        ]);
        assert_eq!(
            images(&pods, "skipLabels: ['skip=yes']\nskipAnnotations: ['example.com/long']"),
            ["r.example/used:1"]
        );
        assert_eq!(images(&pods, "").len(), 3);
        assert!(pods.iter().any(|pod| pod.key == Key { namespace: "shop".into(), name: "warming".into() }));
    }
}
