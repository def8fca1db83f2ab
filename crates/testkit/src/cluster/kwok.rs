//! Simulated nodes: thousands of them against the real API server, where what a kubelet does is not the question.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::PostParams;
use serde_json::json;

use super::health::Health;
use super::{Cluster, Part, READY_DEADLINE, controlplane};
use crate::assets::{Assets, Group};
use crate::process::Program;
use crate::{ports, workdir};

/// Nodes with this label are simulated; a real one beside them is left alone.
const SIMULATED: (&str, &str) = ("kwok.x-k8s.io/node", "fake");
const NODE_STAGE: &str = include_str!("stages/node.yaml");
const POD_STAGES: &str = include_str!("stages/pod.yaml");
const PULL_STAGES: &str = include_str!("stages/pull.yaml");
/// The defaults, but for the changes of Pods that are sent to the API server at once: with four of them it is kwok that
/// is waited for. What is left out here is zero.
const OPTIONS: &str = "apiVersion: config.kwok.x-k8s.io/v1alpha1
kind: KwokConfiguration
options:
  cidr: 10.0.0.0/24
  podPlayStageParallelism: 16
  nodePlayStageParallelism: 4
  nodeLeaseParallelism: 4
  podsOnNodeSyncParallelism: 1
  enablePodsOnNodeSyncListPager: true
---
";
const PARALLEL: usize = 8;

/// Stages of Pods that warm nodes. A pull takes `each`, for every image of the Pod; on nodes whose names begin with
/// `bad-` it fails for ever.
pub fn pull_stages(each: Duration) -> String {
    PULL_STAGES.replace("MILLISECONDS", &each.as_millis().to_string())
}

impl Cluster {
    /// Starts kwok, which keeps simulated nodes ready and runs their Pods at once. `pod_stages` are `Stage` objects as
    /// YAML that say otherwise: a pull that takes a while, fails, succeeds with an `imageID`. Tests that share a
    /// cluster may all call this, if they agree on the stages.
    pub async fn start_kwok(&self, pod_stages: Option<&str>) -> Result<()> {
        let own = self.own()?;
        let stages = format!("{NODE_STAGE}---\n{}", pod_stages.unwrap_or(POD_STAGES));
        let mut started_with = own.kwok.lock().await;
        match started_with.as_ref() {
            Some(before) if *before == stages => return Ok(()),
            Some(_) => bail!("kwok runs already, with other stages: take a cluster of your own"),
            None => {}
        }
        let assets = Assets::ensure(&[Group::Kwok]).await?;
        let port = ports::free()?;
        let home = self.directory().join("kwok");
        let config = home.join("stages.yaml");
        workdir::write(&config, format!("{OPTIONS}{stages}"))?;
        let kubeconfig = controlplane::kubeconfig_of(self.directory(), controlplane::KWOK);
        let program = Program::new(assets.program(Part::Kwok.name())?).env("HOME", path(&home)).args([
            format!("--kubeconfig={}", path(&kubeconfig)),
            format!("--config={}", path(&config)),
            format!("--manage-nodes-with-label-selector={}={}", SIMULATED.0, SIMULATED.1),
            format!("--server-address={}:{port}", own.network.cluster),
            format!("--node-lease-duration-seconds={}", own.lease_seconds),
        ]);
        let url = format!("http://{}:{port}/healthz", own.network.cluster);
        let health = Health::Http { url, authority: own.authority.clone() };
        own.start(Part::Kwok, program, health).await?.wait_ready(Part::Kwok, READY_DEADLINE).await?;
        *started_with = Some(stages);
        Ok(())
    }

    /// Makes `count` simulated nodes, named `PREFIX-0` and so on, and returns their names.
    pub async fn simulated_nodes(&self, prefix: &str, count: usize) -> Result<Vec<String>> {
        let nodes: Api<Node> = Api::all(self.client().await?);
        let names: Vec<String> = (0..count).map(|number| format!("{prefix}-{number}")).collect();
        let create = |name: String| {
            let nodes = nodes.clone();
            async move {
                let node = simulated_node(&name)?;
                nodes.create(&PostParams::default(), &node).await.map_err(anyhow::Error::from)
            }
        };
        let created = stream::iter(names.clone()).map(create).buffer_unordered(PARALLEL);
        created.try_for_each(|_| async { Ok(()) }).await?;
        Ok(names)
    }
}

fn path(path: &Path) -> String {
    path.display().to_string()
}

/// A node that kwok takes care of, as a cloud would make it.
pub fn simulated_node(name: &str) -> Result<Node> {
    let architecture = crate::images::native_architecture();
    let resources = json!({"cpu": "64", "memory": "256Gi", "pods": "1000"});
    let zone = name.bytes().fold(0, u8::wrapping_add) % 3;
    Ok(serde_json::from_value(json!({
        "metadata": {
            "name": name,
            "labels": {
                SIMULATED.0: SIMULATED.1,
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": architecture,
                "node.kubernetes.io/instance-type": "standard-64",
                "topology.kubernetes.io/region": "eu-1",
                "topology.kubernetes.io/zone": format!("eu-1{}", char::from(b'a' + zone)),
            },
        },
        "status": {
            "allocatable": resources,
            "capacity": resources,
            "nodeInfo": {
                "operatingSystem": "linux", "architecture": architecture, "osImage": "simulated",
                "containerRuntimeVersion": "containerd://2.2.0", "kernelVersion": "6.12.0",
                "kubeletVersion": "v1.36.0", "kubeProxyVersion": "", "machineID": "", "systemUUID": "", "bootID": "",
            },
        },
    }))?)
}
