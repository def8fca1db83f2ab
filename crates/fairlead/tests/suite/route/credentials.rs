//! Whose credentials are used, and where pull secrets go.

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use fairlead_testkit::{Registry, RegistryConfig, eventually, unique};
use k8s_openapi::api::core::v1::{Pod, Secret, ServiceAccount};
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::rig::{Rig, SOON, image, mirror, pod, pull_secrets, route, shared};

/// A pull secret for one registry.
async fn secret(rig: &Rig, namespace: &str, name: &str, registry: &Registry, password: &str) -> Result<()> {
    let auth = BASE64_STANDARD.encode(format!("ann:{password}"));
    let config = json!({"auths": {(registry.host()): {"auth": auth}}}).to_string();
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/dockerconfigjson",
        "metadata": {"name": name, "namespace": namespace},
        "stringData": {".dockerconfigjson": config},
    });
    let api: Api<Secret> = Api::namespaced(rig.client().await?, namespace);
    api.patch(name, &PatchParams::apply("test").force(), &Patch::Apply(&secret)).await?;
    Ok(())
}

fn private() -> RegistryConfig {
    RegistryConfig::new().user("ann", "right")
}

struct Scene {
    policy: Value,
    asked: String,
    copy: String,
    _source: Registry,
    target: Registry,
}

/// A public source and a private mirror of it.
async fn scene(rig: &Rig, label: &str) -> Result<Scene> {
    let (source, target) = rig.copied(private(), label).await?;
    let policy = mirror(&source, &target);
    let (asked, copy) =
        (format!("{}/team/app:1", source.host()), format!("{}/copies/team/app:1", target.host()));
    Ok(Scene { policy, asked, copy, _source: source, target })
}

#[tokio::test]
async fn pull_secrets_of_cluster_policies_come_along_as_copies() -> Result<()> {
    let rig = shared().await?;
    let (namespace, vault) = (rig.namespace().await?, rig.cluster.namespace("vault").await?);
    let mut scene = scene(rig, "copies").await?;
    secret(rig, &vault, "push", &scene.target, "right").await?;
    scene.policy["spec"]["mirrors"][0]["credentialSecret"] = json!({"name": "push", "namespace": vault});
    rig.apply(&scene.policy).await?;

    let secrets: Api<Secret> = Api::namespaced(rig.client().await?, &namespace);
    let pods: Api<Pod> = Api::namespaced(rig.client().await?, &namespace);
    let dry = PostParams { dry_run: true, ..PostParams::default() };
    let tried = pods.create(&dry, &serde_json::from_value(pod(&scene.asked))?).await?;
    ensure!(image(&tried) == scene.copy, "{}", image(&tried));
    ensure!(secrets.list(&ListParams::default()).await?.items.is_empty(), "a dry run writes nothing");

    let created = rig.create(&namespace, &pod(&scene.asked)).await?;
    ensure!(image(&created) == scene.copy, "{}", image(&created));
    let names = pull_secrets(&created);
    ensure!(names.len() == 1 && names[0].starts_with("kuik-push-"), "{names:?}");
    ensure!(pull_secrets(&tried) == names, "the name is known before the copy is made");
    let copy = secrets.get(names[0]).await?;
    ensure!(copy.type_.as_deref() == Some("kubernetes.io/dockerconfigjson"));
    ensure!(
        copy.metadata.owner_references.iter().flatten().any(|owner| owner.kind == "ClusterImageSetMirror")
    );

    // The source rotates: the copy follows, and so does what is asked with.
    secret(rig, &vault, "push", &scene.target, "wrong").await?;
    eventually(SOON * 3, || async {
        let copy = secrets.get(names[0]).await?;
        let data = copy.data.unwrap_or_default();
        let text = String::from_utf8_lossy(&data[".dockerconfigjson"].0).into_owned();
        ensure!(text.contains(&BASE64_STANDARD.encode("ann:wrong")), "the copy is still the old one");
        Ok(())
    })
    .await?;
    rig.create_until(&namespace, &pod(&scene.asked), |pod| image(pod) == scene.asked).await?;

    rig.delete(&scene.policy).await?;
    eventually(SOON, || async {
        ensure!(secrets.get_opt(names[0]).await?.is_none(), "the copy outlives its policy");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_verdict_serves_only_those_who_hold_the_credential() -> Result<()> {
    let rig = shared().await?;
    let (knows, does_not) = (rig.namespace().await?, rig.namespace().await?);
    let scene = scene(rig, "isolation").await?;
    // The same policy in two namespaces; only one of them has the Secret.
    let mut policies = Vec::new();
    for namespace in [&knows, &does_not] {
        let mut policy = scene.policy.clone();
        policy["kind"] = json!("ImageSetMirror");
        policy["metadata"]["namespace"] = json!(namespace);
        policy["spec"]["mirrors"][0]["credentialSecret"] = json!({"name": "own", "namespace": knows});
        policies.push(policy);
    }
    secret(rig, &knows, "own", &scene.target, "right").await?;
    for policy in &policies {
        rig.apply(policy).await?;
    }
    for _ in 0..3 {
        let with = rig.create(&knows, &pod(&scene.asked)).await?;
        ensure!(image(&with) == scene.copy && pull_secrets(&with) == ["own"], "{}", image(&with));
        let without = rig.create(&does_not, &pod(&scene.asked)).await?;
        ensure!(
            image(&without) == scene.asked,
            "a Secret of another namespace was used: {}",
            image(&without)
        );
    }
    Ok(())
}

#[tokio::test]
async fn a_missing_secret_costs_nobody_a_pod() -> Result<()> {
    let rig = shared().await?;
    let namespace = rig.namespace().await?;
    let mut scene = scene(rig, "missing").await?;
    scene.policy["spec"]["mirrors"][0]["credentialSecret"] =
        json!({"name": "nowhere", "namespace": namespace});
    rig.apply(&scene.policy).await?;
    let file = tempfile::Builder::new().suffix(".json").tempfile()?;
    let mut wanted = pod(&scene.asked);
    wanted["apiVersion"] = json!("v1");
    wanted["kind"] = json!("Pod");
    wanted["metadata"] = json!({"name": unique("warned")});
    wanted["spec"]["imagePullSecrets"] = json!([{"name": "not-there"}]);
    std::fs::write(file.path(), wanted.to_string())?;
    let path = file.path().display().to_string();
    let output = tokio::process::Command::new(rig.cluster.kubectl_path()?)
        .args(["--kubeconfig", &rig.cluster.kubeconfig().display().to_string(), "--namespace", &namespace])
        .args(["create", "--output=json", "--filename", &path])
        .output()
        .await?;
    let (told, made) =
        (String::from_utf8_lossy(&output.stderr), serde_json::from_slice::<Pod>(&output.stdout)?);
    ensure!(image(&made) == scene.asked, "{}", image(&made));
    ensure!(told.contains("Warning: fairlead: pull secret not-there does not exist"), "{told}");
    ensure!(told.contains("does not exist") && told.contains("ClusterImageSetMirror/"), "{told}");
    // The author of the policy finds it on the policy.
    let name = scene.policy["metadata"]["name"].as_str().context("a name")?;
    eventually(SOON, || async {
        let stored = rig.policies(&scene.policy).await?.get(name).await?;
        let conditions = stored.data["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let ready =
            conditions.iter().find(|condition| condition["type"] == "Ready").context("a condition")?;
        ensure!(ready["status"] == "False" && ready["reason"] == "SecretUnavailable", "{ready}");
        ensure!(ready["message"].as_str().is_some_and(|text| text.contains("nowhere")), "{ready}");
        Ok(())
    })
    .await?;
    Ok(())
}

#[tokio::test]
async fn an_account_that_limits_secrets_gets_no_others() -> Result<()> {
    let rig = shared().await?;
    let namespace = rig.namespace().await?;
    let mut scene = scene(rig, "account").await?;
    secret(rig, &namespace, "mirror", &scene.target, "right").await?;
    scene.policy["spec"]["mirrors"][0]["credentialSecret"] =
        json!({"name": "mirror", "namespace": namespace});
    rig.apply(&scene.policy).await?;
    let accounts: Api<ServiceAccount> = Api::namespaced(rig.client().await?, &namespace);
    for (name, listed) in [("strict", json!([])), ("listing", json!([{"name": "mirror"}]))] {
        let account = json!({
            "apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": {"name": name, "annotations": {"kubernetes.io/enforce-mountable-secrets": "true"}},
            "imagePullSecrets": listed,
        });
        accounts.patch(name, &PatchParams::apply("test"), &Patch::Apply(&account)).await?;
    }
    let under = |account: &str| {
        let mut pod = pod(&scene.asked);
        pod["spec"]["serviceAccountName"] = json!(account);
        pod
    };
    rig.create_until(&namespace, &under("listing"), |pod| image(pod) == scene.copy).await?;
    let strict = rig.create_until(&namespace, &under("strict"), |pod| image(pod) == scene.asked).await?;
    ensure!(pull_secrets(&strict).is_empty() && route(&strict, "app")["by"] == "original");
    Ok(())
}
