//! With statuses as a kubelet writes them, where no node would produce them on demand.

use anyhow::{Context, Result, ensure};
use fairlead_testkit::{RegistryConfig, eventually};
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::OPERATOR;
use crate::route::rig::{Rig, SOON, annotation, image, replicas, route, shared};

/// A Pod that is bound to a node that nothing runs on.
pub(super) fn bound(image: &str, annotations: &Value) -> Value {
    json!({
        "metadata": {"generateName": "stuck-", "annotations": annotations},
        "spec": {
            "nodeName": "elsewhere",
            "containers": [{"name": "app", "image": image, "imagePullPolicy": "IfNotPresent"}],
        },
    })
}

pub(super) fn originals(image: &str) -> Value {
    json!({"harbor.rewrite/original-upstreams": json!({"app": image}).to_string()})
}

/// What a kubelet says of a Pod.
pub(super) async fn waits(pods: &Api<Pod>, pod: &Pod, reason: &str, message: &str) -> Result<()> {
    let status = json!({"status": {"phase": "Pending", "containerStatuses": [{
        "name": "app", "image": image(pod), "imageID": "", "ready": false, "restartCount": 0,
        "state": {"waiting": {"reason": reason, "message": message}},
    }]}});
    pods.patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Merge(status)).await?;
    Ok(())
}

async fn pods(rig: &Rig) -> Result<(String, Api<Pod>)> {
    let namespace = rig.namespace().await?;
    let pods = Api::namespaced(rig.client().await?, &namespace);
    Ok((namespace, pods))
}

/// Waits until a Pod has an image.
async fn gets(pods: &Api<Pod>, pod: &Pod, wanted: &str) -> Result<Pod> {
    eventually(SOON, || async {
        let pod = pods.get(&pod.name_any()).await?;
        ensure!(image(&pod) == wanted, "{}: {:?}", image(&pod), pod.annotations());
        Ok(pod)
    })
    .await
}

/// Waits for an event about a Pod.
async fn told(rig: &Rig, namespace: &str, pod: &Pod, reason: &str) -> Result<String> {
    let events: Api<Event> = Api::namespaced(rig.client().await?, namespace);
    eventually(SOON, || async {
        let events = events.list(&ListParams::default()).await?.items;
        let mut about = events.iter().filter(|event| event.involved_object.uid == pod.metadata.uid);
        let event = about.find(|event| event.reason.as_deref() == Some(reason)).context("no event yet")?;
        Ok(event.message.clone().unwrap_or_default())
    })
    .await
}

#[tokio::test]
async fn a_pod_goes_through_its_places_each_once_and_stays_a_user_of_what_it_asked_for() -> Result<()> {
    let rig = shared().await?;
    let (namespace, pods) = pods(rig).await?;
    let first = rig.registry(RegistryConfig::new(), "each once").await?;
    let second = rig.registry(RegistryConfig::new(), "each once").await?;
    rig.apply(&replicas(&first, &second)).await?;
    let (asked, other) = (format!("{}/team/app:1", first.host()), format!("{}/team/app:1", second.host()));
    let pod = rig.create(&namespace, &bound(&asked, &json!({}))).await?;
    ensure!(image(&pod) == asked, "{}", image(&pod));
    waits(&pods, &pod, "ErrImagePull", "connection refused").await?;
    let pod = gets(&pods, &pod, &other).await?;
    let found = route(&pod, "app");
    ensure!(found["asked"] == asked.as_str() && found["used"] == other.as_str(), "{found}");
    let originals = annotation(&pod, "kuik.enix.io/original-images");
    ensure!(originals == Some(json!({"app": asked})), "{originals:?}");
    // It fails there, too, and every place was tried.
    waits(&pods, &pod, "ErrImagePull", &format!("\"{other}\": connection refused")).await?;
    let said = told(rig, &namespace, &pod, "NotHealed").await?;
    ensure!(said.contains("every place was tried"), "{said}");
    ensure!(image(&pods.get(&pod.name_any()).await?) == other);
    Ok(())
}

#[tokio::test]
async fn what_another_image_cannot_cure_is_left_alone_and_said() -> Result<()> {
    let rig = shared().await?;
    let (namespace, pods) = pods(rig).await?;
    for (reason, message, said) in [
        ("SignatureValidationFailed", "", "signature"),
        ("ErrImagePull", "write /var/lib: no space left on device", "disk"),
        ("ErrImagePull", "no match for platform in manifest", "variant"),
        ("ErrImageNeverPull", "", "Never"),
        ("InvalidImageName", "", "name"),
    ] {
        let pod = rig
            .create(&namespace, &bound("gone.invalid/app:1", &originals("docker.io/library/app:1")))
            .await?;
        waits(&pods, &pod, reason, message).await?;
        let event = told(rig, &namespace, &pod, "NotHealed").await?;
        ensure!(event.contains(said), "{reason}: {event}");
        ensure!(image(&pods.get(&pod.name_any()).await?) == "gone.invalid/app:1", "{reason}");
    }
    Ok(())
}

#[tokio::test]
async fn a_malformed_annotation_is_reported_on_the_pod() -> Result<()> {
    let rig = shared().await?;
    let (namespace, pods) = pods(rig).await?;
    let annotations = json!({"harbor.rewrite/original-upstreams": r#"{"app": 5}"#});
    let pod = rig.create(&namespace, &bound("gone.invalid/app:1", &annotations)).await?;
    waits(&pods, &pod, "ErrImagePull", "no such host").await?;
    let said = told(rig, &namespace, &pod, "MalformedAnnotation").await?;
    ensure!(said.contains("harbor.rewrite/original-upstreams") && said.contains("JSON object"), "{said}");
    Ok(())
}

/// A policy that came after the Pod, or a webhook that was away: the Pod has no record.
#[tokio::test]
async fn a_pod_that_was_not_admitted_here_gets_what_needs_no_secret() -> Result<()> {
    let rig = shared().await?;
    let (namespace, pods) = pods(rig).await?;
    let first = rig.registry(RegistryConfig::new(), "bypassed").await?;
    let second = rig.registry(RegistryConfig::new(), "bypassed").await?;
    let (asked, other) = (format!("{}/team/app:1", first.host()), format!("{}/team/app:1", second.host()));
    let pod = rig.create(&namespace, &bound(&asked, &json!({}))).await?;
    let without = json!({"metadata": {"annotations": null}});
    pods.patch(&pod.name_any(), &PatchParams::default(), &Patch::Merge(without)).await?;
    rig.apply(&replicas(&first, &second)).await?;
    waits(&pods, &pod, "ImagePullBackOff", "Back-off pulling image").await?;
    let healed = gets(&pods, &pod, &other).await?;
    let found = route(&healed, "app");
    ensure!(found["asked"] == asked.as_str() && found["used"] == other.as_str(), "{found}");
    Ok(())
}

/// A patch that is refused is tried again, and not at once.
#[tokio::test]
async fn a_refused_patch_is_tried_again_after_a_while() -> Result<()> {
    let rig = shared().await?;
    let (namespace, pods) = pods(rig).await?;
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": namespace},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [{
                "apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["pods"],
            }]},
            "validations": [{"expression": "object.spec.containers[0].image == oldObject.spec.containers[0].image"}],
        },
    });
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": namespace},
        "spec": {
            "policyName": namespace, "validationActions": ["Deny"],
            "matchResources": {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}},
        },
    });
    crate::kubectl::apply(&rig.cluster, &[policy, binding.clone()], &[]).await?;
    let pod =
        rig.create(&namespace, &bound("gone.invalid/app:1", &originals("docker.io/library/app:1"))).await?;
    // The policy takes a moment to be in force.
    eventually(SOON, || async {
        let patch = json!({"spec": {"containers": [{"name": "app", "image": "gone.invalid/app:2"}]}});
        let params = PatchParams { dry_run: true, ..PatchParams::default() };
        let refused = pods.patch(&pod.name_any(), &params, &Patch::Strategic(patch)).await.is_err();
        ensure!(refused, "it is not refused yet");
        Ok(())
    })
    .await?;
    waits(&pods, &pod, "ErrImagePull", "no such host").await?;
    let attempts = || -> Result<usize> {
        let events = rig.cluster.audit_events()?;
        let ours = events.iter().filter(|event| event.user == OPERATOR && event.verb == "patch");
        Ok(ours.filter(|event| event.resource == "pods" && event.name == pod.name_any()).count())
    };
    eventually(SOON, || async {
        ensure!(attempts()? > 0, "no attempt yet");
        Ok(())
    })
    .await?;
    crate::kubectl::delete(&rig.cluster, &[binding]).await?;
    gets(&pods, &pod, "docker.io/library/app:1").await?;
    ensure!(attempts()? <= 3, "{} attempts", attempts()?);
    let page = rig.operator.0.page().await?;
    let series = format!("reconcile_errors_total{{patched_kube_namespace=\"{namespace}\"");
    ensure!(page.lines().any(|line| line.starts_with(&series)), "{page}");
    Ok(())
}
