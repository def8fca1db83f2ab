//! Private sources and private mirrors.

use anyhow::{Result, ensure};
use fairlead_testkit::RegistryConfig;
use serde_json::json;

use super::rig::{mirror_of, pod_of, push, ready, secret, shared, wait_for_status};

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
