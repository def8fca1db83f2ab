//! On a real node: what is patched has to run.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fairlead_testkit::images::ImageBuilder;
use fairlead_testkit::{Cluster, Registry, eventually};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use super::OPERATOR;
use crate::person::Person;
use crate::route::rig::{Rig, annotation, image, push, replicas, route};

const SOON: Duration = Duration::from_mins(2);

/// Registries of a cluster with a node are not on loopback, where plain HTTP is to be expected.
const CONFIG: &str = "registries:\n  default: {plainHttp: true}\nheal: {evictUnpatchable: true}\n";

/// The cluster with a node that all tests share.
async fn shared() -> Result<&'static Rig> {
    static RIG: OnceCell<Rig> = OnceCell::const_new();
    RIG.get_or_try_init(|| async {
        let cluster = Cluster::builder().node(true).audit(true).start().await?;
        Rig::install_with(cluster, CONFIG).await
    })
    .await
}

/// A Pod that is not put onto a node before its gate is opened.
fn gated(image: &str) -> Value {
    json!({
        "metadata": {"generateName": "healed-"},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "schedulingGates": [{"name": "example.com/wait"}],
            "containers": [{"name": "app", "image": image, "imagePullPolicy": "IfNotPresent"}],
        },
    })
}

struct Patient {
    pods: Api<Pod>,
    name: String,
}

impl Patient {
    async fn create(rig: &Rig, namespace: &str, pod: &Value) -> Result<(Self, Pod)> {
        let created = rig.create(namespace, pod).await?;
        let pods = Api::namespaced(rig.client().await?, namespace);
        Ok((Self { pods, name: created.name_any() }, created))
    }

    async fn open(&self) -> Result<()> {
        let patch = json!({"spec": {"schedulingGates": null}});
        self.pods.patch(&self.name, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }

    async fn get(&self) -> Result<Pod> {
        Ok(self.pods.get(&self.name).await?)
    }

    /// Waits until the Pod runs, and has never restarted a container.
    async fn runs(&self) -> Result<Pod> {
        let pod = eventually(SOON, || async {
            let pod = self.get().await?;
            let status = pod.status.clone().unwrap_or_default();
            ensure!(status.phase.as_deref() == Some("Running"), "{}: {status:?}", image(&pod));
            Ok(pod)
        })
        .await?;
        let status = pod.status.clone().unwrap_or_default();
        let all = status.container_statuses.iter().chain(&status.init_container_statuses).flatten();
        let restarts: i32 = all.map(|container| container.restart_count).sum();
        ensure!(restarts == 0, "{status:?}");
        Ok(pod)
    }

    /// Events about the Pod with a reason.
    async fn events(&self, rig: &Rig, reason: &str) -> Result<Vec<String>> {
        let namespace = self.get().await?.namespace().context("a namespace")?;
        let events: Api<Event> = Api::namespaced(rig.client().await?, &namespace);
        let events = events.list(&ListParams::default()).await?.items;
        let about =
            events.into_iter().filter(|event| event.involved_object.name.as_ref() == Some(&self.name));
        Ok(about
            .filter(|event| event.reason.as_deref() == Some(reason))
            .filter_map(|event| event.message)
            .collect())
    }

    /// How often the operator has patched it, by the API server's own log.
    fn patches(&self, rig: &Rig) -> Result<usize> {
        let events = rig.cluster.audit_events()?;
        let ours = events.iter().filter(|event| event.user == OPERATOR && event.verb == "patch");
        Ok(ours
            .filter(|event| event.resource == "pods" && event.name == self.name && event.code == 200)
            .count())
    }
}

#[tokio::test]
#[ignore = "needs root; `make test` as root runs it"]
async fn a_pod_whose_registry_dies_after_admission_runs_from_the_next_place() -> Result<()> {
    let rig = shared().await?;
    let namespace = rig.namespace().await?;
    let [first, second] = rig.registries().await?;
    for registry in [&first, &second] {
        push(registry, "team/app", "dies").await?;
    }
    rig.apply(&replicas(&first, &second)).await?;
    let (asked, other) = (format!("{}/team/app:1", first.host()), format!("{}/team/app:1", second.host()));
    let (patient, created) = Patient::create(rig, &namespace, &gated(&asked)).await?;
    ensure!(image(&created) == asked, "{}", image(&created));
    first.kill().await?;
    patient.open().await?;
    let pod = patient.runs().await?;
    ensure!(image(&pod) == other, "{}", image(&pod));
    let found = route(&pod, "app");
    ensure!(found["asked"] == asked.as_str() && found["used"] == other.as_str(), "{found}");
    ensure!(found["why"].as_str().is_some_and(|why| why.starts_with("healed: ")), "{found}");
    ensure!(
        annotation(&pod, "harbor-reef/patched-containers") == Some(json!(["app"])),
        "{:?}",
        pod.annotations()
    );
    ensure!(patient.patches(rig)? == 1, "{} patches", patient.patches(rig)?);
    let told = eventually(SOON, || async {
        let told = patient.events(rig, "Healed").await?;
        ensure!(!told.is_empty(), "no event");
        Ok(told)
    })
    .await?;
    ensure!(told.len() == 1 && told[0].contains(&other), "{told:?}");
    let page = rig.operator.0.page().await?;
    let series = format!(
        "pods_upstream_patched_total{{patched_kube_namespace=\"{namespace}\",patched_pod_name=\"{}\",\
         patched_container_name=\"app\",patched_image=\"{other}\"}} 1",
        patient.name
    );
    ensure!(page.contains(&series), "{page}");
    Ok(())
}

/// The annotation that Kyverno or a person writes, and no webhook of ours has a say.
#[tokio::test]
#[ignore = "needs root; `make test` as root runs it"]
async fn init_containers_are_healed_then_sidecars_and_main_containers_after_them() -> Result<()> {
    let rig = shared().await?;
    let namespace = rig.namespace().await?;
    let [gone, upstream] = rig.registries().await?;
    push(&upstream, "app", "init, then main").await?;
    let prepare = ImageBuilder::succeed()?.label("test", "init").build()?;
    upstream.endpoint().push("prepare", "1", &prepare).await?;
    gone.kill().await?;
    let at = |registry: &Registry, name: &str| format!("{}/{name}:1", registry.host());
    let originals = json!({
        "prepare": at(&upstream, "prepare"), "side": at(&upstream, "app"), "app": at(&upstream, "app"),
    });
    let originals = originals.to_string();
    let pod = json!({
        "metadata": {"generateName": "healed-", "annotations": {"harbor.rewrite/original-upstreams": originals}},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "initContainers": [
                {"name": "prepare", "image": at(&gone, "prepare"), "imagePullPolicy": "IfNotPresent"},
                {
                    "name": "side", "image": at(&gone, "app"), "imagePullPolicy": "IfNotPresent",
                    "restartPolicy": "Always",
                },
            ],
            "containers": [{"name": "app", "image": at(&gone, "app"), "imagePullPolicy": "IfNotPresent"}],
        },
    });
    let (patient, _) = Patient::create(rig, &namespace, &pod).await?;
    let pod = patient.runs().await?;
    ensure!(image(&pod) == at(&upstream, "app"), "{}", image(&pod));
    let patched = annotation(&pod, "harbor-reef/patched-containers");
    ensure!(patched == Some(json!(["prepare", "side", "app"])), "{patched:?}");
    let side = pod.spec.as_ref().and_then(|spec| spec.init_containers.as_ref()?.get(1)?.image.clone());
    ensure!(side == Some(at(&upstream, "app")), "{side:?}");
    ensure!(patient.patches(rig)? == 3, "{} patches", patient.patches(rig)?);
    Ok(())
}

/// The operator may speak plain HTTP with a registry, and the node may not: a probe finds nothing wrong with it.
#[tokio::test]
#[ignore = "needs root; `make test` as root runs it"]
async fn a_place_that_only_nodes_distrust_is_left_and_not_chosen_again() -> Result<()> {
    let rig = shared().await?;
    let namespace = rig.namespace().await?;
    let [distrusted, trusted] = rig.registries().await?;
    for registry in [&distrusted, &trusted] {
        push(registry, "team/app", "distrusted").await?;
    }
    let hosts = rig.cluster.directory().join("certs.d").join(distrusted.host()).join("hosts.toml");
    std::fs::write(&hosts, format!("server = \"https://{}\"\n", distrusted.host()))
        .with_context(|| hosts.display().to_string())?;
    rig.apply(&replicas(&distrusted, &trusted)).await?;
    let (asked, other) =
        (format!("{}/team/app:1", distrusted.host()), format!("{}/team/app:1", trusted.host()));
    let (patient, created) = Patient::create(rig, &namespace, &gated(&asked)).await?;
    ensure!(image(&created) == asked, "its registry answers: {}", image(&created));
    patient.open().await?;
    let pod = patient.runs().await?;
    ensure!(image(&pod) == other, "{}", image(&pod));
    let next = rig.create_until(&namespace, &gated(&asked), |pod| image(pod) == other).await?;
    let why = route(&next, "app")["why"].clone();
    ensure!(why.as_str().is_some_and(|why| why.contains("fails-on-nodes")), "{why}");
    Ok(())
}

#[tokio::test]
#[ignore = "needs root; `make test` as root runs it"]
async fn an_original_that_fails_as_well_is_tried_once() -> Result<()> {
    let rig = shared().await?;
    let namespace = rig.namespace().await?;
    let [gone, also_gone] = rig.registries().await?;
    gone.kill().await?;
    also_gone.kill().await?;
    let (from, to) = (format!("{}/app:1", gone.host()), format!("{}/app:1", also_gone.host()));
    let mut pod = gated(&from);
    pod["metadata"]["annotations"] =
        json!({"harbor.rewrite/original-upstreams": json!({"app": to}).to_string()});
    let (patient, _) = Patient::create(rig, &namespace, &pod).await?;
    patient.open().await?;
    // The kubelet has tried the original, and waits before it tries again.
    eventually(SOON, || async {
        let pod = patient.get().await?;
        let status = pod.status.clone().unwrap_or_default().container_statuses.unwrap_or_default();
        let status = status.first().context("no status yet")?;
        let waiting =
            status.state.as_ref().and_then(|state| state.waiting.as_ref()).context("it does not wait")?;
        let waits = waiting.reason.as_deref() == Some("ImagePullBackOff");
        ensure!(waits && status.image == to, "{status:?}");
        Ok(())
    })
    .await?;
    ensure!(image(&patient.get().await?) == to);
    ensure!(patient.patches(rig)? == 1, "{} patches", patient.patches(rig)?);
    Ok(())
}

#[tokio::test]
#[ignore = "needs root; `make test` as root runs it"]
async fn a_place_whose_blobs_are_missing_is_left_and_not_chosen_again() -> Result<()> {
    let rig = shared().await?;
    let (namespace, elsewhere) = (rig.namespace().await?, rig.namespace().await?);
    let [broken, whole] = rig.registries().await?;
    // The node has the layers of images that other tests pulled.
    let image_of_its_own = ImageBuilder::pause()?.file("/blobs", b"of this test", 0o644)?.build()?;
    for registry in [&broken, &whole] {
        registry.endpoint().push("team/app", "1", &image_of_its_own).await?;
    }
    lose_layers(&broken)?;
    rig.apply(&replicas(&broken, &whole)).await?;
    let (asked, other) = (format!("{}/team/app:1", broken.host()), format!("{}/team/app:1", whole.host()));
    let (patient, created) = Patient::create(rig, &namespace, &gated(&asked)).await?;
    ensure!(image(&created) == asked, "its manifest is there: {}", image(&created));
    patient.open().await?;
    let pod = patient.runs().await?;
    ensure!(image(&pod) == other, "{}", image(&pod));
    let next = rig.create(&namespace, &gated(&asked)).await?;
    let said = rig.operator.0.said("a node cannot pull what its registry has")?;
    ensure!(image(&next) == other, "{}: {} after {said:?}", image(&next), route(&next, "app"));
    let why = route(&next, "app")["why"].clone();
    ensure!(why.as_str().is_some_and(|why| why.contains("fails-on-nodes")), "{why}");
    let arguments = [asked.as_str(), "--namespace", &namespace, "-o", "json"];
    let explained = Person::new()?.explain_from(&rig.cluster.kubeconfig(), &arguments)?.json();
    let counts_as = &explained["images"][0]["alternatives"][0]["availability"]["countsAs"];
    ensure!(counts_as == "fails-on-nodes", "{explained}");
    let (_, stranger) = Patient::create(rig, &elsewhere, &gated(&asked)).await?;
    ensure!(image(&stranger) == asked, "one namespace does not decide for others: {}", image(&stranger));
    Ok(())
}

/// Removes the content of everything but manifests and configurations.
fn lose_layers(registry: &Registry) -> Result<()> {
    let mut directories = vec![registry.directory().to_path_buf()];
    let mut lost = 0;
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(&directory)? {
            let path = entry?.path();
            if path.is_dir() {
                directories.push(path);
            } else if path.file_name().is_some_and(|name| name == "data")
                && std::fs::read(&path)?.first() != Some(&b'{')
            {
                std::fs::remove_file(&path)?;
                lost += 1;
            }
        }
    }
    ensure!(lost > 0, "no layer was found");
    Ok(())
}

#[tokio::test]
#[ignore = "needs root; `make test` as root runs it"]
async fn a_pod_whose_image_volume_cannot_be_pulled_is_evicted_and_its_replacement_runs() -> Result<()> {
    let rig = shared().await?;
    let namespace = rig.namespace().await?;
    let [first, second] = rig.registries().await?;
    for registry in [&first, &second] {
        push(registry, "team/model", "volume").await?;
    }
    let [main] = rig.registries().await?;
    push(&main, "app", "with a volume").await?;
    rig.apply(&replicas(&first, &second)).await?;
    let (asked, other) =
        (format!("{}/team/model:1", first.host()), format!("{}/team/model:1", second.host()));
    let deployment: Deployment = serde_json::from_value(json!({
        "metadata": {"name": "with-volume"},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": {"app": "with-volume"}},
            "template": {
                "metadata": {"labels": {"app": "with-volume"}},
                "spec": {
                    "terminationGracePeriodSeconds": 0,
                    "nodeSelector": {"example.com/open": "yes"},
                    "containers": [{
                        "name": "app", "image": format!("{}/app:1", main.host()), "imagePullPolicy": "IfNotPresent",
                        "volumeMounts": [{"name": "model", "mountPath": "/model"}],
                    }],
                    "volumes": [{"name": "model", "image": {"reference": asked, "pullPolicy": "IfNotPresent"}}],
                },
            },
        },
    }))?;
    let client = rig.client().await?;
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), &namespace);
    deployments.create(&PostParams::default(), &deployment).await?;
    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    let volume = |pod: &Pod| {
        let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.clone()).unwrap_or_default();
        volumes.into_iter().find_map(|volume| volume.image?.reference).unwrap_or_default()
    };
    let before = eventually(SOON, || async {
        let all = pods.list(&ListParams::default()).await?.items;
        let pod = all.into_iter().next().context("no Pod yet")?;
        ensure!(volume(&pod) == asked, "{}", volume(&pod));
        Ok(pod)
    })
    .await?;
    first.kill().await?;
    // No node has the label yet, so the Pod was admitted before its registry died.
    let nodes: Api<k8s_openapi::api::core::v1::Node> = Api::all(client);
    for node in nodes.list(&ListParams::default()).await? {
        let label = json!({"metadata": {"labels": {"example.com/open": "yes"}}});
        nodes.patch(&node.name_any(), &PatchParams::default(), &Patch::Merge(label)).await?;
    }
    eventually(SOON, || async {
        let all = pods.list(&ListParams::default()).await?.items;
        let running = all.iter().find(|pod| {
            let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
            pod.metadata.uid != before.metadata.uid && phase == Some("Running")
        });
        let states: Vec<_> =
            all.iter().map(|pod| (pod.name_any(), volume(pod), pod.status.clone())).collect();
        ensure!(running.is_some_and(|pod| volume(pod) == other), "{states:?}");
        Ok(())
    })
    .await
}
