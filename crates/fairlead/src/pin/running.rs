//! What the Pods of a workload run, as the cluster says, with the rights of the person who asks.

use std::collections::{BTreeSet, HashMap};

use anyhow::{Result, anyhow};
use fairlead_api::names;
use fairlead_domain::reference::Reference;
use fairlead_plan::inventory::VolumeDigests;
use fairlead_plan::pinning::RunningImage;
use fairlead_plan::pod_record::{Place, PodAnnotations, Record, RecordedOriginals};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::api::ListParams;
use kube::core::Selector;
use kube::{Api, Client, ResourceExt};

use super::places::Workload;
use crate::api_server::{NOT_FOUND, code, patiently, told};

/// Labels that Jobs give their Pods, the present name first.
const JOB_NAMES: [&str; 2] = ["batch.kubernetes.io/job-name", "job-name"];

/// The images of the workload's Pods, by name of the container or `volume:` and the name of the volume.
pub(super) async fn images(
    client: &Client,
    workload: &Workload,
) -> Result<HashMap<String, Vec<RunningImage>>> {
    let namespace = workload.namespace.as_deref().unwrap_or_else(|| client.default_namespace());
    let pods = pods(Api::namespaced(client.clone(), namespace), workload)
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
fn counts(pod: &Pod, workload: &Workload) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let ends = matches!(workload.kind.as_str(), "Pod" | "Job" | "CronJob");
    pod.metadata.deletion_timestamp.is_none()
        && match phase {
            Some("Failed") => false,
            Some("Succeeded") => ends,
            _ => true,
        }
}

async fn pods(pods: Api<Pod>, workload: &Workload) -> kube::Result<Vec<Pod>> {
    let list = async |params: ListParams| Ok::<_, kube::Error>(patiently(|| pods.list(&params)).await?.items);
    match (workload.kind.as_str(), &workload.selector) {
        ("Pod", _) => match patiently(|| pods.get(&workload.name)).await {
            Ok(pod) => Ok(vec![pod]),
            Err(error) if code(&error) == NOT_FOUND => Ok(Vec::new()),
            Err(error) => Err(error),
        },
        ("Job" | "CronJob", _) => {
            let is_of = |pod: &Pod| {
                let job = JOB_NAMES.iter().find_map(|label| pod.labels().get(*label));
                job.is_some_and(|job| is_job_of(job, workload))
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

type PlaceOf<'p> = fn(&'p str) -> Place<'p>;

fn images_of(pod: &Pod) -> Vec<(String, RunningImage)> {
    let annotations = pod.annotations();
    let found = PodAnnotations::of(annotations.iter().map(|(key, value)| (key.as_str(), value.as_str())));
    let (claims, record) = (RecordedOriginals::read(&found), found.routes.and_then(Record::parse));
    let (Some(spec), status) = (&pod.spec, pod.status.clone().unwrap_or_default()) else { return Vec::new() };
    let published = annotations.get(names::fairlead::VOLUME_DIGESTS);
    let published = published.map(|text| VolumeDigests::read(text)).unwrap_or_default();
    let of = |place: Place<'_>, image: &str, reported: Option<String>| {
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
            pod: pod.name_any(),
            asked: claims.asked(&place, image).unwrap_or(image).to_owned(),
            image: image.to_owned(),
            reported,
            expected,
            doubt: None,
        };
        (key, running)
    };
    let mut images = Vec::new();
    let lists: [(PlaceOf<'_>, _, _); 2] = [
        (Place::Init, spec.init_containers.as_deref().unwrap_or_default(), &status.init_container_statuses),
        (Place::Container, spec.containers.as_slice(), &status.container_statuses),
    ];
    for (place, containers, statuses) in lists {
        for container in containers {
            let Some(image) = &container.image else { continue };
            let id = statuses
                .iter()
                .flatten()
                .find(|one| one.name == container.name)
                .map(|one| one.image_id.clone());
            let id = id.filter(|id| !id.is_empty());
            images.push(of(place(&container.name), image, id));
        }
    }
    let statuses =
        [&status.container_statuses, &status.init_container_statuses, &status.ephemeral_container_statuses];
    let statuses: Vec<_> = statuses.into_iter().flat_map(|all| all.iter().flatten()).collect();
    for volume in spec.volumes.iter().flatten() {
        let Some(image) = volume.image.as_ref().and_then(|source| source.reference.as_deref()) else {
            continue;
        };
        let mounted = mounted(&statuses, &volume.name);
        let told = mounted.iter().map(|one| Some(one.clone()));
        let untold = mounted.is_empty().then_some(None);
        images.extend(told.chain(untold).map(|one| of(Place::Volume(&volume.name), image, one)));
    }
    images
}

/// What the kubelet says is mounted of a volume. A container that was restarted may have mounted other content.
fn mounted(statuses: &[&ContainerStatus], volume: &str) -> BTreeSet<String> {
    let mounts = statuses.iter().flat_map(|status| status.volume_mounts.iter().flatten());
    let of_volume = mounts.filter(|mount| mount.name == volume);
    let told =
        of_volume.filter_map(|mount| Some(mount.volume_status.as_ref()?.image.as_ref()?.image_ref.clone()));
    told.filter(|text| !text.is_empty()).collect()
}
