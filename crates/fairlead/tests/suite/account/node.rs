//! On a real node, with the feature gate of image volume digests on in API server and kubelet, and then in one of them
//! alone: what runs is what is expected, and no status of a Pod is refused.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fairlead_testkit::images::{Image, ImageBuilder, artifact, index, native_architecture};
use fairlead_testkit::{Cluster, Part, RegistryConfig, eventually};
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::person::Person;
use crate::pinning::{node::replicas_across_a_move_of_their_tag_run_the_same_bytes_only_if_pinned, owner};
use crate::route::rig::{Rig, annotation};

const SOON: Duration = Duration::from_mins(2);

const DIGESTS: &str = "fairlead.dev/volume-digests";

/// Registries of a cluster with a node are not on loopback, where plain HTTP is to be expected.
const CONFIG: &str = "registries:\n  default: {plainHttp: true}\naccount: {pinning: opt-in}\n";

/// A node takes long to start, so it serves all of them.
#[tokio::test]
#[ignore = "needs root; `make test` as root runs it"]
async fn what_runs_on_a_node_is_expected_pinned_and_reported() -> Result<()> {
    let builder = Cluster::builder().node(true).audit(true).feature_gate("ImageVolumeWithDigest", true);
    let rig = Rig::install_with(builder.start().await?, CONFIG).await?;
    replicas_across_a_move_of_their_tag_run_the_same_bytes_only_if_pinned(&rig).await?;
    let stage = Stage { namespace: rig.namespace().await?, person: Person::new()?, rig };
    let (image, first) = stage.replicas_across_a_move_of_their_tag_drift().await?;
    stage.what_the_kubelet_would_report_is_shown_beside_it(&first, &image).await?;
    stage.artifacts_and_images_without_a_secret_are_told().await?;
    stage.gates_of_api_server_and_kubelet_may_differ().await?;
    stage.no_status_was_refused()
}

/// A Pod that runs one image and mounts another.
fn pod(image: &str, volume: &str, owners: &Value) -> Value {
    json!({
        "metadata": {"generateName": "web-", "ownerReferences": owners},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [{
                "name": "app", "image": image, "imagePullPolicy": "Always",
                "volumeMounts": [{"name": "model", "mountPath": "/models"}],
            }],
            "volumes": [{"name": "model", "image": {"reference": volume, "pullPolicy": "Always"}}],
        },
    })
}

struct Stage {
    rig: Rig,
    namespace: String,
    person: Person,
}

impl Stage {
    async fn pods(&self) -> Result<Api<Pod>> {
        Ok(Api::namespaced(self.rig.client().await?, &self.namespace))
    }

    /// A Pod that runs one image and mounts another.
    async fn create(&self, image: &str, volume: &str, owners: &Value) -> Result<Pod> {
        self.rig.create(&self.namespace, &pod(image, volume, owners)).await
    }

    /// The same some time after the tag has moved: what admission notes is no older than two seconds.
    async fn create_noting(&self, image: &str, owners: &Value, noted: &Value) -> Result<Pod> {
        tokio::time::sleep(Duration::from_secs(2)).await;
        let pod = self.create(image, image, owners).await?;
        ensure!(annotation(&pod, DIGESTS).as_ref() == Some(noted), "{:?}", pod.metadata.annotations);
        Ok(pod)
    }

    async fn wait_until_running(&self, pod: &Pod) -> Result<PodStatus> {
        let pods = self.pods().await?;
        eventually(SOON, || async {
            let status = pods.get(&pod.name_any()).await?.status.context("a status")?;
            ensure!(status.phase.as_deref() == Some("Running"), "{status:?}");
            Ok(status)
        })
        .await
    }

    /// The rows of the inventory.
    fn inventory(&self, more: &[&str]) -> Result<Vec<Value>> {
        let kubeconfig = self.rig.cluster.kubeconfig().display().to_string();
        let mut all = vec!["inventory", "-n", &self.namespace, "-o", "json", "--kubeconfig", &kubeconfig];
        all.extend(more);
        let report: Value = serde_json::from_str(&self.person.run(&all, "")?.is(0).output)?;
        Ok(report["images"].as_array().context("images")?.clone())
    }

    /// The row of a Pod's image volume.
    fn mount(&self, pod: &Pod) -> Result<Value> {
        let rows = self.inventory(&[])?;
        let found = rows.iter().find(|row| row["pod"] == pod.name_any() && row["role"] != "container");
        found.cloned().with_context(|| format!("{} has no image volume: {rows:?}", pod.name_any()))
    }

    /// Returns the image, and the first of the Pods.
    async fn replicas_across_a_move_of_their_tag_drift(&self) -> Result<(Image, Pod)> {
        let registry = self.rig.cluster.registry(RegistryConfig::new()).await?;
        let other = if native_architecture() == "amd64" { "arm64" } else { "amd64" };
        let index_of = |label: &str| {
            let of = |architecture: &str| {
                ImageBuilder::pause()?.architecture(architecture).label("test", label).build()
            };
            index(vec![(native_architecture(), of(native_architecture())?), (other, of(other)?)])
        };
        let image = format!("{}/team/app:1", registry.host());
        let owner = owner(&self.rig.cluster, &self.namespace).await?;
        let mut created = Vec::new();
        for label in ["first", "second"] {
            let built = index_of(label)?;
            registry.endpoint().push("team/app", "1", &built).await?;
            let noted = json!({"model": format!("{}/team/app@{}", registry.host(), built.digest())});
            let pod = self.create_noting(&image, &json!([owner]), &noted).await?;
            self.wait_until_running(&pod).await?;
            created.push((built, pod));
        }
        let rows = self.inventory(&[])?;
        ensure!(rows.len() == 4, "{rows:?}");
        for row in &rows {
            if row["role"] == "container" {
                // No policy is about it and it is not pinned, so only the kubelet tells.
                ensure!(row["source"] == "kubelet" && row["reported"]["class"] == "manifest", "{row}");
            } else {
                // Kubelets up to 1.38 never fill the field, although its gate is on here. When this fails they do: say
                // so in docs/inventory.md, and have the rows match instead.
                ensure!(
                    row["source"] == "expected",
                    "the kubelet reports digests of image volumes now: {row}"
                );
                ensure!(row["expected"]["resolved"] == "admission", "{row}");
            }
        }
        let found = self.inventory(&["--digest", &created[1].0.digest()])?;
        ensure!(found.len() == 2, "{found:?}");
        // Two indexes differ in content only if their images do, which the operator finds out by reading both.
        let metrics = &self.rig.operator.0;
        eventually(SOON, || async {
            let drift = metrics.metric("fairlead_image_drift{kind=\"replicas\"}").await?;
            ensure!(drift == Some(2.0), "of the container and of the volume: {drift:?}");
            Ok(())
        })
        .await?;
        // What is held to the digest of an index runs, and the runtime names the index.
        let mut pinned = pod(&image, &image, &json!([]));
        pinned["metadata"]["annotations"] = json!({"fairlead.dev/pin": "true"});
        let pinned = self.rig.create(&self.namespace, &pinned).await?;
        self.wait_until_running(&pinned).await?;
        let rows = self.inventory(&[])?;
        let row = rows.iter().find(|row| row["pod"] == pinned.name_any() && row["role"] == "container");
        let row = row.context("the Pod is not listed")?;
        ensure!(row["state"] == "matching" && row["expected"]["resolved"] == "reference", "{row}");
        Ok(created.swap_remove(0))
    }

    /// What a kubelet would report, in each runtime's form, counts while it is there. The real kubelet, which knows
    /// nothing of it, takes it away with its next status, and the annotation comes back.
    async fn what_the_kubelet_would_report_is_shown_beside_it(&self, pod: &Pod, image: &Image) -> Result<()> {
        let manifest: Value = serde_json::from_slice(&image.manifests()[0].bytes)?;
        let id = manifest["config"]["digest"].as_str().context("a configuration")?;
        let (index, manifest) = (image.digest(), image.manifests()[0].digest());
        let repository = crate::route::rig::image(pod).trim_end_matches(":1");
        let forms = [
            ("containerd", id.to_owned(), id),
            ("CRI-O", id.trim_start_matches("sha256:").to_owned(), id),
            ("CRI-O, as proposed", format!("{repository}@{manifest}"), &manifest),
            ("docker", format!("docker-pullable://{repository}@{index}"), &index),
        ];
        let (pods, name) = (self.pods().await?, pod.name_any());
        let mounts = async || {
            let status = serde_json::to_value(pods.get(&name).await?.status)?;
            let mounts = &status["containerStatuses"][0]["volumeMounts"];
            anyhow::Ok(mounts.as_array().context("no mounts")?.clone())
        };
        for (runtime, text, digest) in &forms {
            eventually(SOON, || async {
                let place = mounts().await?.iter().position(|mount| mount["name"] == "model");
                let place = place.context("no such mount")?;
                let field = format!("/status/containerStatuses/0/volumeMounts/{place}/volumeStatus");
                let report = json!([{"op": "add", "path": field, "value": {"image": {"imageRef": text}}}]);
                let report = Patch::<Value>::Json(serde_json::from_value(report)?);
                pods.patch_status(&name, &PatchParams::default(), &report).await?;
                let row = self.mount(pod)?;
                let reported = &row["reported"];
                let is_told = row["source"] == "kubelet" && reported["text"] == **text;
                ensure!(is_told && reported["digest"] == **digest, "{runtime}: {row}");
                Ok(())
            })
            .await?;
        }
        eventually(SOON, || async {
            let mounts = mounts().await?;
            ensure!(mounts.iter().all(|mount| mount["volumeStatus"].is_null()), "{mounts:?}");
            let noted = annotation(&pods.get(&name).await?, DIGESTS);
            ensure!(noted == annotation(pod, DIGESTS), "{noted:?}");
            Ok(())
        })
        .await
    }

    async fn artifacts_and_images_without_a_secret_are_told(&self) -> Result<()> {
        let registry = self.rig.cluster.registry(RegistryConfig::new()).await?;
        let pause = ImageBuilder::pause()?.build()?;
        registry.endpoint().push("team/app", "1", &pause).await?;
        let weights = artifact("application/vnd.example.model", b"weights")?;
        registry.endpoint().push("team/model", "1", &weights).await?;
        let image = format!("{}/team/app:1", registry.host());
        // containerd mounts an artifact whose layers are no file systems as an empty directory.
        let pod = self.create(&image, &format!("{}/team/model:1", registry.host()), &json!([])).await?;
        self.wait_until_running(&pod).await?;
        let row = self.mount(&pod)?;
        ensure!(row["expected"]["digest"] == weights.digest(), "{row}");
        ensure!(row["source"] == "expected", "{row}");

        let private = self.rig.cluster.registry(RegistryConfig::new().user("user", "password")).await?;
        private.endpoint().push("team/secret", "1", &pause).await?;
        let pod = self.create(&image, &format!("{}/team/secret:1", private.host()), &json!([])).await?;
        ensure!(annotation(&pod, DIGESTS).is_none(), "{:?}", pod.metadata.annotations);
        let pods = self.pods().await?;
        eventually(SOON, || async {
            let status = serde_json::to_value(pods.get(&pod.name_any()).await?.status)?;
            let reason = &status["containerStatuses"][0]["state"]["waiting"]["reason"];
            ensure!(reason == "ErrImagePull" || reason == "ImagePullBackOff", "{status}");
            Ok(())
        })
        .await?;
        let row = self.mount(&pod)?;
        ensure!(row["state"] == "unknown" && row["source"] == "unknown", "{row}");
        let metrics = &self.rig.operator.0;
        eventually(SOON, || async {
            let unknown = metrics.metric("fairlead_image_volumes{source=\"unknown\"}").await?;
            ensure!(unknown == Some(1.0), "{unknown:?}");
            Ok(())
        })
        .await
    }

    async fn gates_of_api_server_and_kubelet_may_differ(&self) -> Result<()> {
        const OFF: &[&str] = &["--feature-gates=ImageVolumeWithDigest=false"];
        let registry = self.rig.cluster.registry(RegistryConfig::new()).await?;
        let digest = crate::route::rig::push(&registry, "team/app", "gates").await?;
        let image = format!("{}/team/app:1", registry.host());
        let cluster = &self.rig.cluster;
        let mut before: Vec<Pod> = Vec::new();
        for (api_server, kubelet) in [(OFF, None), (&[] as &[&str], Some(OFF)), (&[], Some(&[] as &[&str]))] {
            cluster.restart_with(Part::ApiServer, api_server).await?;
            if let Some(flags) = kubelet {
                cluster.restart_with(Part::Kubelet, flags).await?;
            }
            let create = || async { self.create(&image, &image, &json!([])).await };
            let pod = eventually(SOON, create).await?;
            self.wait_until_running(&pod).await?;
            let row = self.mount(&pod)?;
            ensure!(row["source"] == "expected" && row["expected"]["digest"] == digest, "{row}");
            for earlier in &before {
                let status = self.wait_until_running(earlier).await?;
                let restarts = status.container_statuses.iter().flatten().map(|one| one.restart_count);
                ensure!(restarts.sum::<i32>() == 0, "{} was restarted: {status:?}", earlier.name_any());
            }
            before.push(pod);
        }
        Ok(())
    }

    /// Conflicts, and Pods that are gone, are part of normal operation.
    fn no_status_was_refused(&self) -> Result<()> {
        let events = self.rig.cluster.audit_events()?;
        let writes = events.iter().filter(|event| {
            event.resource == "pods"
                && event.subresource == "status"
                && event.user == "system:node:node"
                && event.stage == "ResponseComplete"
        });
        let (mut count, mut refused) = (0, Vec::new());
        for write in writes {
            count += 1;
            if write.code >= 400 && ![404, 409].contains(&write.code) {
                refused.push(write);
            }
        }
        ensure!(count > 0 && refused.is_empty(), "{count} writes, refused: {refused:?}");
        Ok(())
    }
}
