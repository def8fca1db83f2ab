//! What a tenant may make the operator connect to.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, ensure};
use fairlead_testkit::{eventually, unique};
use serde_json::json;

use super::rig::{SOON, image, pod, route, shared};

/// Something on this machine that is no registry of the configuration, and how often it was connected to.
fn victim() -> Result<(String, Arc<AtomicUsize>)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let host = listener.local_addr()?.to_string();
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&connections);
    std::thread::spawn(move || {
        while listener.accept().is_ok() {
            counted.fetch_add(1, Ordering::Relaxed);
        }
    });
    Ok((host, connections))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn neither_a_pod_nor_a_namespaced_policy_makes_the_operator_connect_to_its_own_machine() -> Result<()> {
    let rig = shared().await?;
    let namespace = rig.namespace().await?;
    let (asked, asked_for) = victim()?;
    let (mirror, mirrored_to) = victim()?;
    let original = format!("{asked}/team/app:1");
    let policy = json!({
        "apiVersion": "kuik.enix.io/v1alpha1", "kind": "ImageSetMirror",
        "metadata": {"name": unique("inside"), "namespace": namespace},
        "spec": {
            "priority": -1,
            "imageFilter": {"include": [format!("{asked}/.*")]},
            "mirrors": [{"registry": mirror, "path": "/copies"}],
        },
    });
    rig.apply(&policy).await?;
    let created = rig.create(&namespace, &pod(&original)).await?;
    assert_eq!(image(&created), original, "an original that is not asked keeps its place");
    let why = route(&created, "app")["why"].to_string();
    assert!(why.contains("off-limits") && why.contains("usable"), "{why}");
    // The controller tries to copy it, and says why it cannot.
    let name = policy["metadata"]["name"].as_str().context("a name")?;
    let api = rig.policies(&policy).await?;
    eventually(SOON, || async {
        let status = api.get(name).await?.data["status"].to_string();
        ensure!(status.contains("is not contacted"), "{status}");
        Ok(())
    })
    .await?;
    let connections = [&asked_for, &mirrored_to].map(|count| count.load(Ordering::Relaxed));
    assert_eq!(connections, [0, 0]);
    rig.delete(&policy).await
}
