//! Patches that the API server does not take, for whatever reason it may have.

use anyhow::{Context, Result, ensure};
use fairlead_testkit::eventually;
use fairlead_testkit::webhook::{Answer, Webhook};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::OPERATOR;
use super::reported::{bound, gets, originals, told, waits};
use crate::kubectl;
use crate::route::rig::{Rig, SOON, image, shared};

const GONE: &str = "gone.invalid/app:1";
const GOOD: &str = "docker.io/library/app:1";

/// A namespace in which a webhook is asked about whatever the operator writes of Pods.
struct Guarded {
    rig: &'static Rig,
    webhook: Webhook,
    namespace: String,
    pods: Api<Pod>,
}

impl Guarded {
    async fn start() -> Result<Self> {
        let rig = shared().await?;
        let webhook = Webhook::start(rig.cluster.host_address()).await?;
        let namespace = rig.namespace().await?;
        let pods = Api::namespaced(rig.client().await?, &namespace);
        let guarded = Self { rig, webhook, namespace, pods };
        kubectl::apply(&rig.cluster, &[guarded.configuration()], &[]).await?;
        // It takes a moment to be in force.
        guarded.webhook.set(|_| Answer::Refuse(400));
        guarded.pod("probe").await?;
        eventually(SOON, || async {
            let note = Patch::Merge(json!({"metadata": {"annotations": {"example.com/probe": "1"}}}));
            let params = PatchParams { dry_run: true, ..PatchParams::default() };
            let patched = guarded.pods.patch("probe", &params, &note).await;
            ensure!(patched.is_err(), "it is not asked yet");
            Ok(())
        })
        .await?;
        Ok(guarded)
    }

    fn configuration(&self) -> Value {
        let label = json!({"kubernetes.io/metadata.name": self.namespace});
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": self.namespace},
            "webhooks": [{
                "name": "test.example.com", "clientConfig": self.webhook.client_config(),
                "admissionReviewVersions": ["v1"], "sideEffects": "None", "failurePolicy": "Fail",
                "timeoutSeconds": 30, "namespaceSelector": {"matchLabels": label},
                "rules": [{
                    "apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["pods"],
                }],
                "matchConditions": [{
                    "name": "operator",
                    "expression": format!(
                        "request.userInfo.username == '{OPERATOR}' || (has(request.dryRun) && request.dryRun)"
                    ),
                }],
            }],
        })
    }

    /// A Pod that is stuck, as it is before the kubelet has said so.
    async fn pod(&self, name: &str) -> Result<Pod> {
        let mut pod = bound(GONE, &originals(GOOD));
        pod["metadata"] = json!({"name": name, "annotations": pod["metadata"]["annotations"]});
        self.rig.create(&self.namespace, &pod).await
    }

    /// Statuses of the answers to the operator's patches of a Pod.
    fn answers(&self, pod: &Pod) -> Result<Vec<u16>> {
        let events = self.rig.cluster.audit_events()?;
        let ours = events.iter().filter(|event| event.user == OPERATOR && event.verb == "patch");
        let ours = ours.filter(|event| event.resource == "pods" && event.namespace == self.namespace);
        Ok(ours.filter(|event| event.name == pod.name_any()).map(|event| event.code).collect())
    }

    async fn end(self) -> Result<()> {
        kubectl::delete(&self.rig.cluster, &[self.configuration()]).await
    }
}

/// Invalid, forbidden and in conflict: each is tried again after a while, and never in a hot loop.
#[tokio::test]
async fn refusals_of_every_kind_are_got_over() -> Result<()> {
    let guarded = Guarded::start().await?;
    guarded.webhook.set(|request| {
        let code = request["name"].as_str().and_then(|name| name.strip_prefix("refused-")?.parse().ok());
        code.map_or(Answer::Allow, Answer::Refuse)
    });
    let codes = [422, 403, 409];
    let mut pods = Vec::new();
    for code in codes {
        let pod = guarded.pod(&format!("refused-{code}")).await?;
        waits(&guarded.pods, &pod, "ErrImagePull", "no such host").await?;
        pods.push(pod);
    }
    for (code, pod) in codes.iter().zip(&pods) {
        eventually(SOON, || async {
            let answers = guarded.answers(pod)?;
            ensure!(answers.first() == Some(code), "{code}: {answers:?}");
            Ok(())
        })
        .await?;
        ensure!(image(&guarded.pods.get(&pod.name_any()).await?) == GONE);
        let said = told(guarded.rig, &guarded.namespace, pod, "NotHealed").await?;
        ensure!(said.contains("the API server refuses") && said.contains(GOOD), "{code}: {said}");
    }
    guarded.webhook.set(|_| Answer::Allow);
    for (code, pod) in codes.iter().zip(&pods) {
        gets(&guarded.pods, pod, GOOD).await?;
        let answers = guarded.answers(pod)?;
        ensure!(answers.len() <= 3 && answers.last() == Some(&200), "{code}: {answers:?}");
        let series = format!(
            "reconcile_errors_total{{patched_kube_namespace=\"{}\",patched_pod_name=\"{}\",error_type=\"patch_error\"}}",
            guarded.namespace,
            pod.name_any()
        );
        let errors = guarded.rig.operator.0.metric(&series).await?;
        ensure!(errors.is_some_and(|errors| errors >= 1.0), "{series}: {errors:?}");
    }
    guarded.end().await
}

/// The container starts by itself while the patch is on its way: a change of its image would restart it.
#[tokio::test]
async fn a_patch_that_races_the_start_of_its_container_is_not_applied() -> Result<()> {
    let guarded = Guarded::start().await?;
    guarded.webhook.set(|_| Answer::Hold);
    let before = guarded.webhook.asked();
    let pod = guarded.pod("races").await?;
    waits(&guarded.pods, &pod, "ErrImagePull", "no such host").await?;
    eventually(SOON, || async {
        ensure!(guarded.webhook.asked() > before, "no patch is on its way");
        Ok(())
    })
    .await?;
    let runs = json!({"status": {"phase": "Running", "containerStatuses": [{
        "name": "app", "image": GONE, "imageID": "sha256:1", "ready": true, "restartCount": 0,
        "state": {"waiting": null, "running": {"startedAt": "2026-01-01T00:00:00Z"}},
    }]}});
    guarded.pods.patch_status("races", &PatchParams::default(), &Patch::Merge(runs)).await?;
    guarded.webhook.set(|_| Answer::Allow);
    let answers = eventually(SOON, || async {
        let answers = guarded.answers(&pod)?;
        ensure!(!answers.is_empty(), "the patch is not answered yet");
        Ok(answers)
    })
    .await?;
    ensure!(answers == [422], "{answers:?}");
    let now = guarded.pods.get("races").await?;
    ensure!(image(&now) == GONE, "{}", image(&now));
    let patched = now.annotations().get("harbor-reef/patched-containers");
    ensure!(patched.is_none(), "{patched:?}");
    guarded.end().await.context("the webhook")
}
