//! Pods that only a new Pod can heal, where the configuration allows evictions.

use anyhow::{Context, Result, ensure};
use fairlead_testkit::{RegistryConfig, eventually};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::OPERATOR;
use crate::kubectl;
use crate::route::rig::{Rig, SOON, image, pod, push, replicas};

/// Answers to the operator's evictions of a Pod.
fn answers(rig: &Rig, pod: &Pod) -> Result<Vec<u16>> {
    let events = rig.cluster.audit_events()?.into_iter();
    let ours = events.filter(|event| event.user == OPERATOR && event.subresource == "eviction");
    Ok(ours.filter(|event| event.name == pod.name_any()).map(|event| event.code).collect())
}

/// The Pod of a controller whose image volume cannot be pulled, as a kubelet says.
async fn stuck(rig: &Rig, namespace: &str, app: &str, phase: &str) -> Result<Pod> {
    let pods: Api<Pod> = Api::namespaced(rig.client().await?, namespace);
    let pod = eventually(SOON, || async {
        let listed = pods.list(&ListParams::default().labels(&format!("app={app}"))).await?;
        listed.items.into_iter().next().context("no Pod yet")
    })
    .await?;
    let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.clone()).unwrap_or_default();
    let volume = volumes.into_iter().find_map(|volume| volume.image?.reference).context("a volume")?;
    let message = format!("Back-off pulling image \"{volume}\": ErrImagePull: connection refused");
    let status = json!({"status": {"phase": phase, "containerStatuses": [{
        "name": "app", "image": image(&pod), "imageID": "", "ready": false, "restartCount": 0,
        "state": {"waiting": {"reason": "ImagePullBackOff", "message": message}},
    }]}});
    pods.patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Merge(status)).await?;
    Ok(pod)
}

/// With `heal.evictUnpatchable` and `heal.evictJobs`.
pub(super) async fn pods_of_jobs_and_pods_with_a_budget(rig: &Rig, namespace: &str) -> Result<()> {
    let first = rig.registry(RegistryConfig::new(), "evicted").await?;
    let second = rig.registry(RegistryConfig::new(), "evicted").await?;
    for registry in [&first, &second] {
        push(registry, "team/model", "evicted").await?;
    }
    rig.apply(&replicas(&first, &second)).await?;
    let template = |app: &str, restart: &str| -> Value {
        json!({
            "metadata": {"labels": {"app": app}},
            "spec": {
                "nodeName": "elsewhere", "restartPolicy": restart,
                "containers": [{
                    "name": "app", "image": "docker.io/library/app:1",
                    "volumeMounts": [{"name": "model", "mountPath": "/model"}],
                }],
                "volumes": [{"name": "model", "image": {"reference": format!("{}/team/model:1", first.host())}}],
            },
        })
    };
    let job = json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "work", "namespace": namespace},
        "spec": {"template": template("work", "Never")},
    });
    let guarded = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "guarded", "namespace": namespace},
        "spec": {
            "replicas": 1, "selector": {"matchLabels": {"app": "guarded"}}, "template": template("guarded", "Always"),
        },
    });
    let budget = json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
        "metadata": {"name": "guarded", "namespace": namespace},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "guarded"}}},
    });
    kubectl::apply(&rig.cluster, &[budget.clone(), job, guarded], &[]).await?;
    let pods: Api<Pod> = Api::namespaced(rig.client().await?, namespace);
    for app in ["work", "guarded"] {
        eventually(SOON, || async {
            let listed = pods.list(&ListParams::default().labels(&format!("app={app}"))).await?;
            ensure!(!listed.items.is_empty(), "the Pod of {app} was not created yet");
            Ok(())
        })
        .await?;
    }
    first.kill().await?;
    let other = format!("{}/team/app:1", second.host());
    let asked = pod(&format!("{}/team/app:1", first.host()));
    rig.create_until(namespace, &asked, |pod| image(pod) == other).await?;

    let of_job = stuck(rig, namespace, "work", "Pending").await?;
    // Of a Pod that has begun to run, as far as its phase says, a budget counts.
    let of_deployment = stuck(rig, namespace, "guarded", "Running").await?;
    eventually(SOON, || async {
        let (job, guarded) = (answers(rig, &of_job)?, answers(rig, &of_deployment)?);
        ensure!(job.last() == Some(&201), "{job:?}: {}", rig.operator.0.process.log_tail());
        ensure!(guarded.first() == Some(&429), "{guarded:?}: {}", rig.operator.0.process.log_tail());
        Ok(())
    })
    .await?;
    kubectl::delete(&rig.cluster, &[budget]).await?;
    eventually(SOON, || async {
        let guarded = answers(rig, &of_deployment)?;
        ensure!(guarded.last() == Some(&201), "{guarded:?}");
        ensure!(guarded.len() <= 5, "a hot loop: {guarded:?}");
        Ok(())
    })
    .await
}
