//! What the Pods of a workload run, as the cluster says, with the rights of the person who asks.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use anyhow::{Result, anyhow, ensure};
use fairlead_api::names;
use fairlead_domain::reference::Reference;
use fairlead_operator::cluster::state::{Phase, PodEntry, Role};
use fairlead_plan::inventory::VolumeDigests;
use fairlead_plan::pinning::RunningImage;
use fairlead_plan::pod_record::{Place, PodAnnotations, Record, RecordedOriginals};
use kube::Client;
use kube::api::ListParams;
use kube::core::Selector;

use super::places::Workload;
use crate::api_server::{self, told};
use crate::inventory::sources::{PAGE, entries};

/// Labels that Jobs give their Pods, the present name first.
const JOB_NAMES: [&str; 2] = ["batch.kubernetes.io/job-name", "job-name"];

/// The images of the workload's Pods, by name of the container or `volume:` and the name of the volume.
pub(super) async fn images(
    client: &Client,
    workload: &Workload,
) -> Result<HashMap<String, Vec<RunningImage>>> {
    ensure!(workload.tells_pods(), "its manifest does not tell which Pods are its own; use --from registry");
    let namespace = workload.namespace.as_deref().unwrap_or_else(|| client.default_namespace());
    let pods = pods(client, namespace, workload)
        .await
        .map_err(|error| anyhow!("its Pods in namespace {namespace} cannot be read: {}", told(&error)))?;
    let mut images: HashMap<String, Vec<RunningImage>> = HashMap::new();
    for pod in pods.iter().filter(|pod| counts(pod, workload)) {
        for (key, image) in images_of(pod) {
            images.entry(key).or_default().push(image);
        }
    }
    Ok(images)
}

/// Whether the Pod runs, or ended well where Pods do so. One that failed, by eviction for instance, may stay for days.
fn counts(pod: &PodEntry, workload: &Workload) -> bool {
    let ends = matches!(workload.kind.as_str(), "Pod" | "Job" | "CronJob");
    !pod.deleting
        && match pod.phase {
            Phase::Failed => false,
            Phase::Succeeded => ends,
            _ => true,
        }
}

async fn pods(client: &Client, namespace: &str, workload: &Workload) -> kube::Result<Vec<Arc<PodEntry>>> {
    let list = async |page: ListParams| {
        let found = api_server::pods(client, Some(namespace), page.limit(PAGE)).await?;
        Ok::<_, kube::Error>(entries(found))
    };
    match (workload.kind.as_str(), &workload.selector) {
        ("Pod", _) => list(ListParams::default().fields(&format!("metadata.name={}", workload.name))).await,
        ("Job" | "CronJob", _) => {
            let is_of = |pod: &Arc<PodEntry>| {
                let label = |key: &str| pod.labels.iter().find(|(found, _)| &**found == key);
                let job = JOB_NAMES.iter().find_map(|key| label(key));
                job.is_some_and(|(_, job)| is_job_of(job, workload))
            };
            let all = list(ListParams::default()).await?;
            Ok(all.into_iter().filter(is_of).collect())
        }
        (_, Some(selector)) => match Selector::try_from(selector.clone()) {
            Ok(selector) if !selector.selects_all() => {
                list(ListParams::default().labels_from(&selector)).await
            }
            _ => Ok(Vec::new()),
        },
        _ => Ok(Vec::new()),
    }
}

/// A `CronJob` names its Jobs after itself and the minute they are for.
fn is_job_of(job: &str, workload: &Workload) -> bool {
    let number = job.strip_prefix(&workload.name);
    match workload.kind.as_str() {
        "Job" => number == Some(""),
        _ => number
            .and_then(|rest| rest.strip_prefix('-'))
            .is_some_and(|rest| !rest.is_empty() && rest.chars().all(|one| one.is_ascii_digit())),
    }
}

fn images_of(pod: &PodEntry) -> Vec<(String, RunningImage)> {
    let annotations = pod.annotations.iter().filter_map(|(key, value)| Some((&**key, &**value.as_ref()?)));
    let found = PodAnnotations::of(annotations);
    let (claims, record) = (RecordedOriginals::read(&found), found.routes.and_then(Record::parse));
    let published = pod.annotation(names::fairlead::VOLUME_DIGESTS);
    let published = published.map(|text| VolumeDigests::read(text)).unwrap_or_default();
    let of = |place: Place<'_>, image: &str, reported: Option<&str>| {
        let key = place.key();
        let route =
            record.as_ref().and_then(|record| record.images.get(&key)).filter(|route| route.used == image);
        let published = match place {
            Place::Volume(name) => Reference::parse(image).ok().and_then(|image| published.of(name, &image)),
            _ => None,
        };
        let expected = route.map(|route| route.digest.clone()).filter(|digest| !digest.is_empty());
        let expected = expected.or_else(|| published.map(|digest| digest.to_string()));
        let running = RunningImage {
            pod: pod.key.name.to_string(),
            asked: claims.asked(&place, image).unwrap_or(image).to_owned(),
            image: image.to_owned(),
            reported: reported.map(str::to_owned),
            expected,
            doubt: None,
        };
        (key, running)
    };
    let mut images = Vec::new();
    for container in &pod.containers {
        let (place, image) = (container.place(), &*container.image);
        if container.role != Role::Volume {
            images.push(of(place, image, container.image_id.as_deref()));
            continue;
        }
        // A container that was restarted may have mounted other content.
        let mounted: BTreeSet<&str> =
            pod.mounts_of(&container.name).filter_map(|mount| mount.reported.as_deref()).collect();
        let untold = mounted.is_empty().then_some(None);
        images.extend(mounted.into_iter().map(Some).chain(untold).map(|told| of(place, image, told)));
    }
    images
}

#[cfg(test)]
mod tests {
    use fairlead_operator::cluster::watch::pod::LeanPod;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_pod_says_what_it_runs_and_mounts() {
        let (asked, digest) = ("nginx:1", "sha256:0123");
        let routes = json!({"v": 1, "images": {
            "web": {"asked": asked, "used": "m.example/nginx:1", "by": "x", "digest": digest},
            "volume:model": {"asked": "llm:1", "used": "old.example/llm:1", "by": "x", "digest": digest},
        }});
        let mount = |path: &str| json!({"name": "model", "mountPath": path});
        let status = |path: &str, told: &str| {
            let mut mount = mount(path);
            mount["volumeStatus"] = json!({"image": {"imageRef": told}});
            mount
        };
        let pod = json!({
            "metadata": {"name": "p", "annotations": {"fairlead.dev/routes": routes.to_string()}},
            "spec": {
                "initContainers": [{"name": "init", "image": "busybox"}],
                "containers": [
                    {"name": "web", "image": "m.example/nginx:1", "volumeMounts": [mount("/a"), mount("/b")]},
                ],
                "volumes": [
                    {"name": "model", "image": {"reference": "llm:1"}}, {"name": "data", "image": {"reference": "data:1"}},
                ],
            },
            "status": {"phase": "Running", "containerStatuses": [{
                "name": "web", "imageID": "m.example/nginx@sha256:45",
                "volumeMounts": [status("/a", "llm@sha256:67"), status("/b", "llm@sha256:89")],
            }]},
        });
        let pod: LeanPod = serde_json::from_value(pod).expect("a Pod");
        let found = entries([pod]);
        let told: Vec<_> = images_of(&found[0])
            .into_iter()
            .map(|(key, image)| (key, image.asked, image.reported.unwrap_or_default(), image.expected))
            .collect();
        let row = |key: &str, asked: &str, reported: &str, expected: Option<&str>| {
            (key.to_owned(), asked.to_owned(), reported.to_owned(), expected.map(str::to_owned))
        };
        assert_eq!(
            told,
            [
                row("init", "busybox", "", None),
                row("web", asked, "m.example/nginx@sha256:45", Some(digest)),
                // The record is of another image.
                row("volume:model", "llm:1", "llm@sha256:67", None),
                row("volume:model", "llm:1", "llm@sha256:89", None),
                row("volume:data", "data:1", "", None),
            ]
        );
    }
}
