//! Upgrade and downgrade of the kubelet's field: the feature gate of the API server turned on, off and on again under
//! a running operator, and the operator's own switches, each alone.

use anyhow::{Result, ensure};
use fairlead_domain::digest::Digest;
use fairlead_operator::platform::telemetry::page;
use fairlead_testkit::{Part, eventually};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::{Bench, CONFIG, Replica, SOON};

const FIELD: &str = "/status/containerStatuses/0/volumeMounts/0/volumeStatus/image/imageRef";

impl Bench {
    /// Restarts the API server with the gate on or off.
    async fn gate(&self, on: bool) -> Result<()> {
        let flag = format!("--feature-gates=ImageVolumeWithDigest={on}");
        self.cluster.restart_with(Part::ApiServer, &[&flag]).await
    }

    /// What is stored after a kubelet reported this of a Pod's image volume, or a kubelet without the field nothing.
    async fn stored(&self, pod: &str, image_ref: Option<&str>) -> Result<Option<String>> {
        let stored: Pod = if let Some(image_ref) = image_ref {
            self.report(pod, "web", "model", "/models", image_ref).await?
        } else {
            let status = json!({"status": {"containerStatuses": [{
                "name": "web", "image": "app.example/app:1", "imageID": "", "ready": true, "restartCount": 1,
                "containerID": "containerd://2", "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
                "volumeMounts": [{"name": "model", "mountPath": "/models"}],
            }]}});
            self.pods().patch_status(pod, &PatchParams::default(), &Patch::Merge(status)).await?
        };
        Ok(serde_json::to_value(stored)?.pointer(FIELD).and_then(Value::as_str).map(str::to_owned))
    }
}

impl Replica {
    fn info(&self) -> Result<Vec<String>> {
        let page = page::text(&self.registry.lock().expect("no test panics with it"))?;
        Ok(page.lines().filter(|line| line.starts_with("fairlead_image_info{")).map(str::to_owned).collect())
    }
}

/// `named` is an artifact without a configuration, and `noted` what is noted of it.
pub(super) async fn turns_on_off_and_on(bench: &Bench, named: &str, noted: &str) -> Result<()> {
    let replica = Replica::start(bench, "gate", CONFIG)?;
    bench.gate(true).await?;
    bench.pod("early", named, None, json!({})).await?;
    bench.wait_for_annotation("early", Some(noted)).await?;
    ensure!(bench.stored("early", Some(noted)).await?.as_deref() == Some(noted), "the gate is on");
    bench.wait_for_annotation("early", None).await?;
    replica.wait_for("fairlead_inventory_images{state=\"matching\"}", 1.0).await?;
    // All artifacts without a configuration share this image ID, so it says nothing; CRI-O names them by manifest.
    let empty = Digest::sha256(b"{}").to_string();
    ensure!(bench.stored("early", Some(&empty)).await?.as_deref() == Some(&*empty));
    replica.wait_for("fairlead_inventory_images{state=\"matching\"}", 0.0).await?;
    let manifest = noted.rsplit(':').next().unwrap_or_default();
    ensure!(bench.stored("early", Some(manifest)).await?.as_deref() == Some(manifest));
    replica.wait_for("fairlead_inventory_images{state=\"matching\"}", 1.0).await?;
    replica.wait_for("fairlead_inventory_images{state=\"differing\"}", 0.0).await?;

    // Off: a Pod that has the field keeps it, also when its kubelet writes again; others do not get it.
    bench.gate(false).await?;
    ensure!(bench.stored("early", Some(noted)).await?.as_deref() == Some(noted), "it was stored before");
    bench.pod("late", named, None, json!({})).await?;
    bench.wait_for_annotation("late", Some(noted)).await?;
    ensure!(bench.stored("late", Some(noted)).await?.is_none(), "the gate is off");
    replica.wait_for("fairlead_image_volumes{source=\"kubelet\"}", 1.0).await?;
    ensure!(bench.annotation("early").await?.is_none() && bench.annotation("late").await?.is_some());
    // A kubelet that has been downgraded starts the container again: the annotation takes over, and stays.
    ensure!(bench.stored("early", None).await?.is_none());
    bench.wait_for_annotation("early", Some(noted)).await?;
    ensure!(bench.stored("early", Some(noted)).await?.is_none(), "there is none left to keep");
    replica.wait_for("fairlead_image_volumes{source=\"kubelet\"}", 0.0).await?;

    // On again: the kubelet's word counts, for old Pods and new ones.
    bench.gate(true).await?;
    for (pod, patches) in [("early", 4), ("late", 2)] {
        ensure!(bench.stored(pod, Some(noted)).await?.as_deref() == Some(noted), "the gate is on again");
        bench.wait_for_annotation(pod, None).await?;
        ensure!(bench.patches(pod)? == patches, "{pod} was patched {} times", bench.patches(pod)?);
    }
    replica.wait_for("fairlead_image_volumes{source=\"kubelet\"}", 2.0).await?;
    replica.candidate.stop().await
}

/// Each switch of `account` turned off without the others.
pub(super) async fn switches_act_alone(bench: &Bench, named: &str, noted: &str) -> Result<()> {
    let with =
        |name: &str, switch: &str| Replica::start(bench, name, &format!("{CONFIG}\naccount: {{{switch}}}"));
    let shown = async |replica: &Replica, wanted: &dyn Fn(&[String]) -> bool| {
        eventually(SOON, || async {
            let info = replica.info()?;
            ensure!(wanted(&info), "{info:?}");
            Ok(())
        })
        .await
    };
    bench.pod("unnoted", named, None, json!({})).await?;
    let replica = with("unnoted", "annotate: false")?;
    let of_pod = |info: &[String]| {
        info.iter().any(|line| line.contains("workload=\"unnoted\"") && line.contains(noted))
    };
    shown(&replica, &of_pod).await?;
    ensure!(bench.patches("unnoted")? == 0, "nothing is written");
    replica.candidate.stop().await?;

    let replica = with("by-namespace", "metrics: namespace")?;
    bench.wait_for_annotation("unnoted", Some(noted)).await?;
    let by_namespace =
        |info: &[String]| !info.is_empty() && info.iter().all(|line| line.contains("workload=\"\""));
    shown(&replica, &by_namespace).await?;
    replica.candidate.stop().await?;

    bench.pod("unmeasured", named, None, json!({})).await?;
    let replica = with("unmeasured", "metrics: off")?;
    bench.wait_for_annotation("unmeasured", Some(noted)).await?;
    ensure!(replica.info()?.is_empty(), "no series is shown: {:?}", replica.info()?);
    replica.candidate.stop().await
}
