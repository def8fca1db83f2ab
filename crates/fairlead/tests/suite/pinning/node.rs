//! On a real node: with pinning two replicas across a move of their tag run and mount the same bytes, without it they
//! do not.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fairlead_testkit::{RegistryConfig, eventually, unique};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, ResourceExt};
use serde_json::json;

use super::{asked, is_ready, owned, owner, retag};
use crate::route::rig::{self, Rig};

const SOON: Duration = Duration::from_mins(2);

/// The reference of the first image volume.
fn volume(pod: &Pod) -> Option<&str> {
    let volumes = pod.spec.as_ref()?.volumes.as_ref()?;
    volumes.iter().find_map(|volume| volume.image.as_ref()?.reference.as_deref())
}

/// Needs a node, and pinning on request.
pub async fn replicas_across_a_move_of_their_tag_run_the_same_bytes_only_if_pinned(rig: &Rig) -> Result<()> {
    let (cluster, namespace) = (&rig.cluster, rig.namespace().await?);
    let pods: Api<Pod> = Api::namespaced(rig.client().await?, &namespace);
    for pinning in [true, false] {
        let registry = cluster.registry(RegistryConfig::new()).await?;
        let owner = owner(cluster, &namespace).await?;
        let (mut ran, mut mounted) = (BTreeSet::new(), BTreeSet::new());
        for content in ["first", "second"] {
            retag(&registry, &unique(content)).await?;
            let mut pod =
                owned(rig::pod(&asked(&registry)), &owner, &json!({"fairlead.dev/pin": pinning.to_string()}));
            pod["spec"]["terminationGracePeriodSeconds"] = json!(0);
            // Without pinning the node would otherwise keep what it has pulled before.
            pod["spec"]["containers"][0]["imagePullPolicy"] = json!("Always");
            pod["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "data", "mountPath": "/data"}]);
            pod["spec"]["volumes"] =
                json!([{"name": "data", "image": {"reference": asked(&registry), "pullPolicy": "Always"}}]);
            let name = rig.create(&namespace, &pod).await?.name_any();
            let (pod, id) = eventually(SOON, || async {
                let pod = pods.get(&name).await?;
                let status = pod.status.clone().context("a status")?;
                ensure!(status.phase.as_deref() == Some("Running"), "{status:?}");
                let container =
                    status.container_statuses.into_iter().flatten().next().context("a container")?;
                Ok((pod, container.image_id))
            })
            .await?;
            ran.insert(id.rsplit_once('@').context(id.clone())?.1.to_owned());
            mounted.insert(volume(&pod).context("an image volume")?.to_owned());
        }
        ensure!(ran.len() == if pinning { 1 } else { 2 }, "pinned: {pinning}, ran {ran:?}");
        // A runtime mounts nothing else for a reference with a digest.
        let held = ran.iter().map(|digest| format!("{}@{digest}", asked(&registry))).collect();
        let expected = if pinning { held } else { BTreeSet::from([asked(&registry)]) };
        ensure!(mounted == expected, "pinned: {pinning}, mounted {mounted:?}, not {expected:?}");
    }
    is_ready(cluster, &namespace).await?;
    cluster.kubectl(["delete", "pods", "--all", "--namespace", &namespace, "--wait=false"]).await.map(drop)
}
