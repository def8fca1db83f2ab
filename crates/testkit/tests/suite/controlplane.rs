//! A control plane comes up, serves, honours what it was asked for, and survives the death of its parts.

use std::time::Duration;

use anyhow::{Context, Result};
use fairlead_testkit::{Cluster, Part, eventually, shared};
use k8s_openapi::api::core::v1::{ConfigMap, Pod, ServiceAccount};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

#[tokio::test]
async fn the_shared_cluster_serves_each_test_its_own_namespace() -> Result<()> {
    let cluster = shared().await;
    let (first, second) = (cluster.namespace("one").await?, cluster.namespace("one").await?);
    assert_ne!(first, second);
    let version: Value = serde_json::from_str(&cluster.kubectl(["version", "-o", "json"]).await?)?;
    assert_eq!(version["serverVersion"]["gitVersion"], "v1.36.4");
    assert_eq!(version["clientVersion"]["gitVersion"], "v1.36.4");
    let error = cluster.kubectl(["get", "nonsense"]).await.unwrap_err();
    assert!(format!("{error:#}").contains("nonsense"), "{error:#}");
    Ok(())
}

#[tokio::test]
async fn helm_talks_to_the_cluster() -> Result<()> {
    let cluster = shared().await;
    let namespace = cluster.namespace("helm").await?;
    assert_eq!(cluster.helm(["list", "--namespace", &namespace, "--output", "json"]).await?.trim(), "[]");
    Ok(())
}

#[tokio::test]
async fn data_survives_killed_parts() -> Result<()> {
    let cluster = Cluster::builder().start().await?;
    let namespace = cluster.namespace("kill").await?;
    let maps: Api<ConfigMap> = Api::namespaced(cluster.client().await?, &namespace);
    let map: ConfigMap = serde_json::from_value(json!({"metadata": {"name": "kept"}, "data": {"a": "b"}}))?;
    maps.create(&PostParams::default(), &map).await?;
    cluster.kill(Part::ApiServer).await?;
    assert!(!cluster.is_running(Part::ApiServer)?);
    assert!(maps.get("kept").await.is_err());
    cluster.restart(Part::Etcd).await?;
    cluster.restart(Part::ApiServer).await?;
    let found = eventually(Duration::from_secs(10), || async { Ok(maps.get("kept").await?) }).await?;
    assert_eq!(found.data, map.data);
    cluster.restart(Part::ControllerManager).await?;
    cluster.restart(Part::Scheduler).await?;
    cluster.namespace("after").await?;
    Ok(())
}

/// Writes a digest of an image volume into a Pod's status, as a new kubelet would, and reads back what the API server
/// kept.
async fn image_volume_digest(client: Client, namespace: &str) -> Result<Option<String>> {
    let pods: Api<Pod> = Api::namespaced(client, namespace);
    let pod = serde_json::from_value(json!({
        "metadata": {"name": "volumes"},
        "spec": {
            "containers": [{"name": "main", "image": "a:1", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}],
            "volumes": [{"name": "data", "image": {"reference": "b:1"}}],
        },
    }))?;
    pods.create(&PostParams::default(), &pod).await?;
    let mount =
        json!({"name": "data", "mountPath": "/data", "volumeStatus": {"image": {"imageRef": "b@sha256:1"}}});
    let container = json!({
        "name": "main", "image": "a:1", "imageID": "", "ready": false, "restartCount": 0, "volumeMounts": [mount],
    });
    let patch = Patch::Merge(json!({"status": {"containerStatuses": [container]}}));
    pods.patch_status("volumes", &PatchParams::default(), &patch).await?;
    let kept = serde_json::to_value(pods.get("volumes").await?)?;
    let digest = "/status/containerStatuses/0/volumeMounts/0/volumeStatus/image/imageRef";
    Ok(kept.pointer(digest).and_then(Value::as_str).map(str::to_owned))
}

#[tokio::test]
async fn feature_gates_and_the_audit_log_are_honoured() -> Result<()> {
    let without = shared().await;
    let namespace = without.namespace("gate").await?;
    assert_eq!(image_volume_digest(without.client().await?, &namespace).await?, None);

    let cluster = Cluster::builder().feature_gate("ImageVolumeWithDigest", true).audit(true).start().await?;
    let namespace = cluster.namespace("gate").await?;
    let kept = image_volume_digest(cluster.client().await?, &namespace).await?;
    assert_eq!(kept.as_deref(), Some("b@sha256:1"));

    let accounts: Api<ServiceAccount> = Api::namespaced(cluster.client().await?, &namespace);
    let account = serde_json::from_value(json!({"metadata": {"name": "nobody"}}))?;
    accounts.create(&PostParams::default(), &account).await?;
    let pods: Api<Pod> = Api::namespaced(cluster.client_as(&namespace, "nobody").await?, &namespace);
    let refused = pods.list(&ListParams::default()).await.unwrap_err();
    assert!(matches!(&refused, kube::Error::Api(status) if status.code == 403), "{refused}");

    let user = format!("system:serviceaccount:{namespace}:nobody");
    let events = cluster.audit_events()?;
    let event = events.iter().find(|event| event.user == user).context("not in the audit log")?;
    assert_eq!((event.verb.as_str(), event.resource.as_str(), event.code), ("list", "pods", 403));
    assert_eq!(event.namespace, namespace);
    Ok(())
}
