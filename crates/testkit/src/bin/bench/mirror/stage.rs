//! What the measurements of mirroring share: a control plane that writes down every request, an operator with the
//! rights it is installed with, Pods that name images, and a mirror object.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fairlead_testkit::{Cluster, Operator, Part, eventually, load};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, PostParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use super::writes::{self, Writes};

/// The operator's own namespace.
pub(crate) const HOME: &str = "fairlead-system";
/// The operator's service account.
pub(crate) const ACCOUNT: &str = "fairlead";
const AT_ONCE: usize = 8;
const SOON: Duration = Duration::from_mins(1);
/// Nothing was written for so long: nothing more will be.
const QUIET: Duration = Duration::from_secs(4);

/// Budgets protect registries from us; with them it would be our own patience that is measured. All else is as
/// installed.
const CONFIG: &str = "registries:\n  default:\n    requestsPerSecond: 100000\n    burst: 100000\n";

pub(crate) struct Stage {
    pub(crate) cluster: Cluster,
    pub(crate) client: Client,
    namespace: String,
    program: PathBuf,
    config: PathBuf,
}

impl Stage {
    pub(crate) async fn set_up() -> Result<Self> {
        let program = std::env::current_exe()?.with_file_name("fairlead");
        ensure!(program.exists(), "{} is not there: use `make bench`", program.display());
        let cluster = Cluster::builder().audit(true).start().await?;
        install(&cluster, &program).await?;
        let namespace = cluster.namespace("bench").await?;
        // No node runs the Pods, and looking for one again and again takes time of the processor.
        cluster.kill(Part::Scheduler).await?;
        let config = cluster.directory().join("config.yaml");
        std::fs::write(&config, CONFIG)?;
        let client = cluster.client().await?;
        Ok(Self { cluster, client, namespace, program, config })
    }

    /// Creates Pods, each with these images of its own.
    pub(crate) async fn pods(&self, images: &[Vec<String>]) -> Result<()> {
        let pod = |number: usize| {
            let images = images.get(number).map(Vec::as_slice).unwrap_or_default();
            pod(&format!("pod-{number:05}"), images)
        };
        load::create_pods(self.client.clone(), &self.namespace, images.len(), AT_ONCE, pod).await
    }

    /// An operator that leads and knows so many Pods.
    pub(crate) async fn operator(&self, pods: usize) -> Result<Operator> {
        let operator = Operator::of(&self.program)
            .namespace(HOME)
            .config(&self.config)
            .start_installed(&self.cluster)
            .await?;
        operator.wait_until_ready(SOON).await?;
        operator.wait_to_lead(SOON).await?;
        eventually(SOON, || async {
            let known = operator.metric("fairlead_watched_objects{kind=\"Pod\"}").await?.unwrap_or_default();
            ensure!(known >= f64::from(u32::try_from(pods)?), "the operator knows {known} of {pods} Pods");
            Ok(())
        })
        .await?;
        Ok(operator)
    }

    fn mirrors(&self) -> Api<DynamicObject> {
        let kind = GroupVersionKind::gvk("kuik.enix.io", "v1alpha1", "ClusterImageSetMirror");
        Api::all_with(
            self.client.clone(),
            &ApiResource::from_gvk_with_plural(&kind, "clusterimagesetmirrors"),
        )
    }

    /// Creates the object that mirrors everything of one registry to another, and returns its UID.
    pub(crate) async fn mirror(&self, name: &str, source: &str, destination: &str) -> Result<String> {
        let object = json!({
            "apiVersion": "kuik.enix.io/v1alpha1", "kind": "ClusterImageSetMirror", "metadata": {"name": name},
            "spec": {
                "filter": {"include": [{"image": format!("{}/.+", source.replace('.', r"\."))}]},
                "mirrors": [{"registry": destination}],
            },
        });
        let created = self.mirrors().create(&PostParams::default(), &serde_json::from_value(object)?).await?;
        created.uid().context("an object without a UID")
    }

    /// Waits until the status says that so many copies are in place and the object is ready.
    pub(crate) async fn until_mirrored(&self, name: &str, count: usize, deadline: Duration) -> Result<()> {
        eventually(deadline, || async {
            let object = self.mirrors().get(name).await?;
            let status = object.data.get("status").unwrap_or(&Value::Null);
            let mirrored = status.get("mirroredCount").and_then(Value::as_u64);
            let told = status.get("conditions").map(ToString::to_string).unwrap_or_default();
            ensure!(
                mirrored == Some(u64::try_from(count)?),
                "{mirrored:?} of {count} copies are in place: {told}"
            );
            let ready = json!({"type": "Ready", "status": "True"});
            let conditions = status.get("conditions").and_then(Value::as_array);
            let is_ready = conditions.into_iter().flatten().any(|condition| {
                ["type", "status"].iter().all(|field| condition.get(field) == ready.get(field))
            });
            ensure!(is_ready, "not ready: {told}");
            Ok(())
        })
        .await
    }

    /// Removes the object. Its copies stay, since it does not clean up.
    pub(crate) async fn remove(&self, name: &str) -> Result<()> {
        self.mirrors().delete(name, &DeleteParams::default()).await?;
        eventually(SOON, || async {
            ensure!(self.mirrors().get_opt(name).await?.is_none(), "{name} is still there");
            Ok(())
        })
        .await
    }

    /// What the operator has written since `from`, when it has written nothing for a while.
    pub(crate) async fn settled_writes(&self, from: Writes, deadline: Duration) -> Result<Writes> {
        let end = Instant::now() + deadline;
        let (mut last, mut since) = (self.writes()?, Instant::now());
        while since.elapsed() < QUIET {
            ensure!(Instant::now() < end, "the operator goes on writing: {last:?}");
            tokio::time::sleep(Duration::from_millis(250)).await;
            let now = self.writes()?;
            if now != last {
                (last, since) = (now, Instant::now());
            }
        }
        Ok(last.less(from))
    }

    /// What the operator has written so far about mirrors.
    pub(crate) fn writes(&self) -> Result<Writes> {
        Ok(writes::count(&self.cluster.audit_events()?, &format!("system:serviceaccount:{HOME}:{ACCOUNT}")))
    }
}

/// Installs everything but the operator itself.
pub(crate) async fn install(cluster: &Cluster, program: &Path) -> Result<()> {
    let output = tokio::process::Command::new(program).arg("manifests").output().await?;
    ensure!(output.status.success(), "fairlead manifests: {}", String::from_utf8_lossy(&output.stderr));
    let file = cluster.directory().join("manifests.yaml");
    std::fs::write(&file, output.stdout)?;
    cluster.kubectl(["apply", "--server-side", "-f", &file.display().to_string()]).await?;
    // Pods are to keep the images they name, and not to wait for an operator that is not there.
    cluster.kubectl(["delete", "mutatingwebhookconfiguration", "fairlead"]).await?;
    Ok(())
}

fn pod(name: &str, images: &[String]) -> Pod {
    let containers: Vec<Value> = images
        .iter()
        .enumerate()
        .map(|(number, image)| json!({"name": format!("c-{number}"), "image": image}))
        .collect();
    let pod = json!({
        "metadata": {"name": name},
        "spec": {"schedulerName": "nobody", "automountServiceAccountToken": false, "containers": containers},
    });
    serde_json::from_value(pod).unwrap_or_default()
}
