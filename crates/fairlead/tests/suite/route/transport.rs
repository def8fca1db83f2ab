//! What crosses the wire at admission: API calls, and patches that leave the rest of the Pod alone.

use anyhow::{Context, Result, ensure};
use fairlead_testkit::RegistryConfig;
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

use super::rig::{image, mirror, pod, route, shared};

#[tokio::test]
async fn nothing_of_a_pod_is_lost_and_secrets_are_never_listed() -> Result<()> {
    let rig = shared().await?;
    let namespace = rig.namespace().await?;
    let (source, target) = rig.copied(RegistryConfig::new(), "whole").await?;
    rig.apply(&mirror(&source, &target)).await?;
    let mut wanted = pod(&format!("{}/team/app:1", source.host()));
    wanted["metadata"]["labels"] = json!({"app": "web"});
    wanted["metadata"]["annotations"] = json!({"mine": "stays"});
    wanted["spec"]["containers"][0]["env"] = json!([{"name": "A", "value": "b"}]);
    wanted["spec"]["containers"][0]["resources"] = json!({"requests": {"cpu": "10m"}});
    wanted["spec"]["tolerations"] = json!([{"key": "x", "operator": "Exists"}]);
    wanted["spec"]["imagePullSecrets"] = json!([]);
    let untouched = {
        let mut other = wanted.clone();
        other["spec"]["containers"][0]["image"] = json!("quay.io/somebody/else:1");
        rig.create(&namespace, &other).await?
    };
    let routed = rig.create(&namespace, &wanted).await?;
    ensure!(image(&routed).starts_with(&target.host()), "{}", image(&routed));
    ensure!(route(&routed, "app")["digest"].as_str().is_some_and(|digest| digest.starts_with("sha256:")));
    let stripped = |mut pod: Pod| -> Result<_> {
        let spec = pod.spec.as_mut().context("a specification")?;
        spec.containers[0].image = None;
        // Each Pod has a volume of its own name for its token.
        spec.volumes = None;
        spec.containers[0].volume_mounts = None;
        let annotations = pod.metadata.annotations.unwrap_or_default();
        let kept: Vec<_> = annotations.into_iter().filter(|(key, _)| key == "mine").collect();
        Ok((serde_json::to_value(&pod.spec)?, pod.metadata.labels, kept))
    };
    ensure!(stripped(routed)? == stripped(untouched)?, "routing touched more than images and records");

    let operator = format!("system:serviceaccount:{}:fairlead", rig.operator.0.namespace);
    let events = rig.cluster.audit_events()?;
    let mine = events.iter().filter(|event| event.user == operator && event.resource == "secrets");
    for event in mine {
        ensure!(!["list", "watch"].contains(&event.verb.as_str()), "the operator lists Secrets: {event:?}");
    }
    Ok(())
}
