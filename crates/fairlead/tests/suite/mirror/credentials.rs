//! Private sources and private mirrors.

use anyhow::{Context, Result, ensure};
use fairlead_testkit::{Registry, RegistryConfig};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::Api;
use kube::api::{ListParams, ObjectMeta, PostParams};
use serde_json::{Value, json};

use super::rig::{Rig, mirror_of, pod_of, push, ready, secret, shared, wait_for_status};
use crate::route::rig::{image, pull_secrets};

#[tokio::test]
async fn sources_are_read_as_their_pods_would_and_mirrors_written_with_their_own_secret() -> Result<()> {
    let rig = shared().await?;
    let namespace = rig.namespace().await?;
    let source = rig.cluster.registry(RegistryConfig::new().user("user", "reading")).await?;
    let target = rig.cluster.registry(RegistryConfig::new().user("user", "writing")).await?;
    push(&source, "team/app", "1").await?;
    secret(rig, &namespace, "pull", &source, "reading").await?;
    // At first the mirror's Secret is missing, then wrong, then right.
    let mut mirror = mirror_of(
        &source,
        &json!([{"registry": target.host(), "credentialSecret": {"name": "push"}}]),
        &json!({}),
    );
    mirror["kind"] = "ImageSetMirror".into();
    mirror["metadata"]["namespace"] = namespace.as_str().into();
    rig.apply(&mirror).await?;
    let mut user = pod_of(&source, "team/app:1");
    user["spec"]["imagePullSecrets"] = json!([{"name": "pull"}]);
    rig.create(&namespace, &user).await?;
    let status = wait_for_status(rig, &mirror, |status| status["failedCount"] == 1).await?;
    ensure!(ready(&status)["message"].as_str().is_some_and(|message| message.contains("push")), "{status}");

    secret(rig, &namespace, "push", &target, "wrong").await?;
    wait_for_status(rig, &mirror, |status| {
        let error = status["matchingImages"][0]["mirrors"][0]["lastError"].as_str().unwrap_or_default();
        error.contains("credentials")
    })
    .await?;
    secret(rig, &namespace, "push", &target, "writing").await?;
    let status = wait_for_status(rig, &mirror, |status| status["mirroredCount"] == 1).await?;
    ensure!(!status.to_string().contains("writing") && !status.to_string().contains("reading"), "{status}");
    let logs = rig.operator.0.process.logs()?;
    ensure!(!logs.contains("\"writing\"") && !logs.contains("\"reading\""), "a password is in the log");
    Ok(())
}

fn secret_of(name: &str, registry: &Registry, user: &str, password: &str) -> Secret {
    let config = json!({"auths": {registry.host(): {"username": user, "password": password}}});
    Secret {
        metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
        type_: Some("kubernetes.io/dockerconfigjson".to_owned()),
        data: Some([(".dockerconfigjson".to_owned(), ByteString(config.to_string().into_bytes()))].into()),
        ..Secret::default()
    }
}

/// The pull secrets of a Pod, each with what it contains.
async fn received(rig: &Rig, namespace: &str, pod: &Pod) -> Result<Vec<(String, String)>> {
    let secrets: Api<Secret> = Api::namespaced(rig.client().await?, namespace);
    let mut received = Vec::new();
    for name in pull_secrets(pod) {
        let data = secrets.get(name).await?.data.unwrap_or_default();
        let content = data.into_values().flat_map(|value| value.0).collect();
        received.push((name.to_owned(), String::from_utf8(content)?));
    }
    Ok(received)
}

fn condition<'a>(status: &'a Value, type_: &str) -> &'a Value {
    let conditions = status["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    conditions.iter().find(|condition| condition["type"] == type_).unwrap_or(&Value::Null)
}

#[tokio::test]
async fn pods_receive_the_secret_for_pulling_and_never_the_one_that_pushes() -> Result<()> {
    let rig = shared().await?;
    let (namespace, vault) = (rig.namespace().await?, rig.cluster.namespace("vault").await?);
    let source = rig.cluster.registry(RegistryConfig::new()).await?;
    let users = RegistryConfig::new().user("writer", "may-push").user("reader", "may-pull");
    let target = rig.cluster.registry(users).await?;
    push(&source, "team/app", "1").await?;
    let vaulted: Api<Secret> = Api::namespaced(rig.client().await?, &vault);
    vaulted.create(&PostParams::default(), &secret_of("push", &target, "writer", "may-push")).await?;
    vaulted.create(&PostParams::default(), &secret_of("pull", &target, "reader", "may-pull")).await?;
    let named = |name: &str| json!({"name": name, "namespace": vault});
    let entry =
        json!({"registry": target.host(), "credentialSecret": named("push"), "pullSecret": named("pull")});
    let mut mirror = mirror_of(&source, &json!([entry]), &json!({"priority": -1}));
    rig.apply(&mirror).await?;
    rig.create(&namespace, &pod_of(&source, "team/app:1")).await?;
    let status = wait_for_status(rig, &mirror, |status| status["mirroredCount"] == 1).await?;
    ensure!(condition(&status, "Isolated")["status"] == "True", "{status}");

    let pod = rig.create(&namespace, &pod_of(&source, "team/app:1")).await?;
    ensure!(image(&pod).starts_with(&target.host()), "{}", image(&pod));
    let secrets = received(rig, &namespace, &pod).await?;
    ensure!(secrets.len() == 1 && secrets[0].0.starts_with("kuik-pull-"), "{secrets:?}");
    let present: Api<Secret> = Api::namespaced(rig.client().await?, &namespace);
    let present = serde_json::to_string(&present.list(&ListParams::default()).await?.items)?;
    ensure!(secrets[0].1.contains("may-pull") && !secrets[0].1.contains("may-push"), "{secrets:?}");
    ensure!(!present.contains("kuik-push-"), "{present}");

    // Without a Secret for pulling Pods receive the one that pushes, as before, and the object says so.
    mirror["spec"]["mirrors"][0].as_object_mut().context("a mirror")?.remove("pullSecret");
    rig.apply(&mirror).await?;
    let status =
        wait_for_status(rig, &mirror, |status| condition(status, "Isolated")["status"] == "False").await?;
    let message = condition(&status, "Isolated")["message"].as_str().unwrap_or_default();
    ensure!(message.contains(&format!("spec.mirrors[0]: {vault}/push")), "{message}");
    ensure!(message.contains("pullSecret") && ready(&status)["status"] == "True", "{status}");
    let pod = rig.create(&namespace, &pod_of(&source, "team/app:1")).await?;
    let secrets = received(rig, &namespace, &pod).await?;
    ensure!(secrets.len() == 1 && secrets[0].1.contains("may-push"), "{:?}", pull_secrets(&pod));
    Ok(())
}
