//! With statuses as a kubelet writes them, where no node would produce them on demand.

use anyhow::{Context, Result, ensure};
use fairlead_testkit::{RegistryConfig, eventually};
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::OPERATOR;
use crate::route::rig::{Rig, SOON, annotation, image, replicas, route, shared};

/// A Pod that is bound to a node that nothing runs on.
pub(crate) fn bound(image: &str, annotations: &Value) -> Value {
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

/// Pods on a node that does not exist are deleted after a while.
pub(super) async fn has_its_node(rig: &Rig) -> Result<()> {
    let nodes: Api<Node> = Api::all(rig.client().await?);
    let node = serde_json::from_value(json!({"metadata": {"name": "elsewhere"}}))?;
    nodes.create(&PostParams::default(), &node).await?;
    Ok(())
}

/// What a kubelet says of a Pod.
pub(crate) async fn waits(pods: &Api<Pod>, pod: &Pod, reason: &str, message: &str) -> Result<()> {
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
pub(crate) async fn gets(pods: &Api<Pod>, pod: &Pod, wanted: &str) -> Result<Pod> {
    eventually(SOON, || async {
        let pod = pods.get(&pod.name_any()).await?;
        ensure!(image(&pod) == wanted, "{}: {:?}", image(&pod), pod.annotations());
        Ok(pod)
    })
    .await
}

/// Waits for an event about a Pod.
pub(super) async fn told(rig: &Rig, namespace: &str, pod: &Pod, reason: &str) -> Result<String> {
    let events: Api<Event> = Api::namespaced(rig.client().await?, namespace);
    eventually(SOON, || async {
        let events = events.list(&ListParams::default()).await?.items;
        let mut about = events.iter().filter(|event| event.involved_object.uid == pod.metadata.uid);
        let event = about.find(|event| event.reason.as_deref() == Some(reason)).context("no event yet")?;
        Ok(event.message.clone().unwrap_or_default())
    })
    .await
}

/// Waits for a line of the operator's log about the containers of a Pod.
async fn logged(rig: &Rig, pod: &Pod, message: &str, words: &[&str]) -> Result<()> {
    let key = format!("{}/{}", pod.namespace().unwrap_or_default(), pod.name_any());
    eventually(SOON, || async {
        let said = rig.operator.0.said(message)?;
        let line =
            said.iter().find(|line| line["pod"] == key.as_str()).context("nothing is said of the Pod")?;
        let containers = line["containers"].as_str().unwrap_or_default();
        ensure!(words.iter().all(|word| containers.contains(word)), "{line}");
        Ok(())
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
    logged(rig, &pod, "images of a Pod cannot be pulled", &[&format!("app={asked}")]).await?;
    let given = format!("app: {other} instead of {asked}");
    logged(rig, &pod, "a Pod was given images that can be pulled", &[&given]).await?;
    let found = route(&pod, "app");
    ensure!(found["asked"] == asked.as_str() && found["used"] == other.as_str(), "{found}");
    let originals = annotation(&pod, "kuik.enix.io/original-images");
    ensure!(originals == Some(json!({"app": asked})), "{originals:?}");
    // The kubelet repeats what it said of the former image until it has tried this one. A Pod that failed later is
    // healed, so this one was looked at.
    waits(&pods, &pod, "ErrImagePull", "connection refused").await?;
    let original = "docker.io/library/app:1";
    let later = rig.create(&namespace, &bound("gone.invalid/app:1", &self::originals(original))).await?;
    waits(&pods, &later, "ErrImagePull", "no such host").await?;
    gets(&pods, &later, original).await?;
    let events: Api<Event> = Api::namespaced(rig.client().await?, &namespace);
    let events = events.list(&ListParams::default()).await?.items;
    let mut of_pod = events.iter().filter(|event| event.involved_object.uid == pod.metadata.uid);
    ensure!(of_pod.all(|event| event.reason.as_deref() != Some("NotHealed")), "{events:?}");
    // It fails there, too, and every place was tried.
    waits(&pods, &pod, "ErrImagePull", &format!("\"{other}\": connection refused")).await?;
    let said = told(rig, &namespace, &pod, "NotHealed").await?;
    ensure!(said.contains("every place was tried"), "{said}");
    ensure!(image(&pods.get(&pod.name_any()).await?) == other);
    Ok(())
}

#[tokio::test]
async fn a_pod_for_which_nothing_is_available_is_healed_once_a_place_is_back() -> Result<()> {
    let rig = shared().await?;
    let (namespace, pods) = pods(rig).await?;
    has_its_node(rig).await?;
    let first = rig.registry(RegistryConfig::new(), "back again").await?;
    let second = rig.registry(RegistryConfig::new(), "back again").await?;
    rig.apply(&replicas(&first, &second)).await?;
    let (asked, other) = (format!("{}/team/app:1", first.host()), format!("{}/team/app:1", second.host()));
    let pod = rig.create(&namespace, &bound(&asked, &json!({}))).await?;
    ensure!(image(&pod) == asked, "{}", image(&pod));
    second.kill().await?;
    // What it said a moment ago still counts, for a moment.
    rig.create_until(&namespace, &bound(&other, &json!({})), |pod| image(pod) == asked).await?;
    waits(&pods, &pod, "ErrImagePull", "connection refused").await?;
    let said = told(rig, &namespace, &pod, "NotHealed").await?;
    ensure!(said.contains(&other), "{said}");
    ensure!(image(&pods.get(&pod.name_any()).await?) == asked);
    second.start_again().await?;
    // It is looked at every thirty seconds.
    eventually(2 * SOON, || async {
        let pod = pods.get(&pod.name_any()).await?;
        ensure!(image(&pod) == other, "{}: {:?}", image(&pod), pod.annotations());
        Ok(())
    })
    .await
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

/// The API server lets no one change the image of a volume or of an ephemeral container.
#[tokio::test]
async fn what_no_patch_can_heal_is_left_alone_and_the_event_says_what_to_do() -> Result<()> {
    let rig = shared().await?;
    let (namespace, pods) = pods(rig).await?;
    let mut with_volume = bound("docker.io/library/app:1", &originals("docker.io/library/app:2"));
    with_volume["spec"]["volumes"] =
        json!([{"name": "model", "image": {"reference": "gone.invalid/model:1"}}]);
    with_volume["spec"]["containers"][0]["volumeMounts"] = json!([{"name": "model", "mountPath": "/model"}]);
    let pod = rig.create(&namespace, &with_volume).await?;
    let message = "Back-off pulling image \"gone.invalid/model:1\": ErrImagePull: no such host";
    waits(&pods, &pod, "ImagePullBackOff", message).await?;
    let said = told(rig, &namespace, &pod, "NotHealed").await?;
    ensure!(said.contains("image volume model") && said.contains("delete it and create it again"), "{said}");
    let now = pods.get(&pod.name_any()).await?;
    ensure!(image(&now) == "docker.io/library/app:1", "the image of the container is not at fault");
    ensure!(now.metadata.deletion_timestamp.is_none(), "a Pod without a controller is never evicted");

    let pod = rig.create(&namespace, &bound("docker.io/library/app:1", &json!({}))).await?;
    let debugger =
        json!({"spec": {"ephemeralContainers": [{"name": "debug", "image": "gone.invalid/debug:1"}]}});
    pods.patch_ephemeral_containers(&pod.name_any(), &PatchParams::default(), &Patch::Strategic(debugger))
        .await?;
    let status = json!({"status": {"ephemeralContainerStatuses": [{
        "name": "debug", "image": "gone.invalid/debug:1", "imageID": "", "ready": false, "restartCount": 0,
        "state": {"waiting": {"reason": "ErrImagePull", "message": "no such host"}},
    }]}});
    pods.patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Merge(status)).await?;
    let said = told(rig, &namespace, &pod, "NotHealed").await?;
    ensure!(said.contains("debug") && said.contains("add another one under a new name"), "{said}");
    Ok(())
}

/// What a kubelet leaves in the status of a Pod that is over, or about to be, is no reason to write it.
#[tokio::test]
async fn pods_that_have_ended_or_are_being_deleted_are_not_patched() -> Result<()> {
    let rig = shared().await?;
    let (namespace, pods) = pods(rig).await?;
    let (gone, good) = ("gone.invalid/app:1", "docker.io/library/app:1");
    let ended = rig.create(&namespace, &bound(gone, &originals(good))).await?;
    let over = json!({"status": {"phase": "Failed", "reason": "DeadlineExceeded"}});
    pods.patch_status(&ended.name_any(), &PatchParams::default(), &Patch::Merge(over)).await?;
    let mut leaving = bound(gone, &originals(good));
    leaving["metadata"]["finalizers"] = json!(["example.com/stays"]);
    let leaving = rig.create(&namespace, &leaving).await?;
    pods.delete(&leaving.name_any(), &DeleteParams::default().grace_period(0)).await?;
    let waiting = json!({"status": {"containerStatuses": [{
        "name": "app", "image": gone, "imageID": "", "ready": false, "restartCount": 0,
        "state": {"waiting": {"reason": "ErrImagePull", "message": "no such host"}},
    }]}});
    for pod in [&ended, &leaving] {
        let patch = Patch::Merge(waiting.clone());
        pods.patch_status(&pod.name_any(), &PatchParams::default(), &patch).await?;
    }
    // One that failed later is healed, so the others were looked at.
    let healed = rig.create(&namespace, &bound(gone, &originals(good))).await?;
    waits(&pods, &healed, "ErrImagePull", "no such host").await?;
    gets(&pods, &healed, good).await?;
    for pod in [&ended, &leaving] {
        ensure!(image(&pods.get(&pod.name_any()).await?) == gone, "{}", pod.name_any());
    }
    let freed = Patch::Merge(json!({"metadata": {"finalizers": null}}));
    pods.patch(&leaving.name_any(), &PatchParams::default(), &freed).await?;
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
    // It fails there, too: such a Pod is patched once, whatever else there is.
    waits(&pods, &healed, "ErrImagePull", &format!("\"{other}\": connection refused")).await?;
    let said = told(rig, &namespace, &healed, "NotHealed").await?;
    ensure!(said.contains("given another image already"), "{said}");
    ensure!(image(&pods.get(&pod.name_any()).await?) == other);

    // Where every other place needs a secret that the Pod lacks, only a new Pod can be routed.
    let third = rig.registry(RegistryConfig::new(), "bypassed").await?;
    let pod = rig.create(&namespace, &bound(&format!("{}/team/app:1", third.host()), &json!({}))).await?;
    let without = json!({"metadata": {"annotations": null}});
    pods.patch(&pod.name_any(), &PatchParams::default(), &Patch::Merge(without)).await?;
    let mut locked = replicas(&third, &second);
    locked["spec"]["upstreams"][1]["credentialSecret"] = json!({"namespace": "default", "name": "absent"});
    rig.apply(&locked).await?;
    waits(&pods, &pod, "ErrImagePull", "connection refused").await?;
    let said = told(rig, &namespace, &pod, "NotHealed").await?;
    ensure!(said.contains("pull secrets that the Pod lacks") && said.contains("create it again"), "{said}");
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
