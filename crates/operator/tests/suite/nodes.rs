//! Nodes are watched while a capability needs them, and not before or after.

use std::time::Duration;

use anyhow::{Result, ensure};
use fairlead_domain::reference::Reference;
use fairlead_operator::cluster::watch::{self, Presence, Resources, Watches};
use fairlead_testkit::{Cluster, eventually, install_crypto};
use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::json;

const SOON: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nodes_are_watched_while_they_are_needed() -> Result<()> {
    install_crypto();
    let cluster = Cluster::builder().audit(true).start().await?;
    let client = cluster.client().await?;
    let resources = Resources::default();
    let Watches { board, all } =
        Watches::new(client.clone(), "fairlead-system", &resources, None, watch::Metrics::default());
    let mut watching = tokio::task::JoinSet::new();
    for (_, watch) in all.into_iter().filter(|(kind, _)| ["Node", "Pod"].contains(kind)) {
        watching.spawn(watch);
    }
    let presence =
        || board.rows().into_iter().find(|row| row.kind == "Node").map(|row| (row.presence, row.ready()));

    let nodes: Api<Node> = Api::all(client);
    let node = serde_json::from_value(json!({"metadata": {"name": "worker", "labels": {"pool": "a"}}}))?;
    nodes.create(&PostParams::default(), &node).await?;
    let status = json!({"status": {
        "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-02T00:00:00Z"}],
        "images": [{"names": ["docker.io/library/nginx:1.29"], "sizeBytes": 1}],
    }});
    nodes.patch_status("worker", &PatchParams::default(), &Patch::Merge(status)).await?;
    eventually(SOON, || async {
        ensure!(board.rows().iter().any(|row| row.kind == "Pod" && row.synced), "Pods are not listed");
        Ok(())
    })
    .await?;
    ensure!(resources.nodes.all().is_empty() && presence() == Some((Presence::Unneeded, true)));
    let asked = || -> Result<usize> {
        let events = cluster.audit_events()?;
        Ok(events.iter().filter(|event| event.resource == "nodes" && event.verb == "watch").count())
    };
    let before = asked()?;

    let needed = resources.nodes.keep_watched();
    let image = Reference::parse("nginx:1.29")?;
    eventually(SOON, || async {
        let worker = resources.nodes.get("worker");
        ensure!(worker.is_some_and(|node| node.ready && node.lists_image(&image)), "not known yet");
        Ok(())
    })
    .await?;
    ensure!(asked()? > before, "the audit log has no watch of Nodes");

    drop(needed);
    eventually(SOON, || async {
        ensure!(resources.nodes.all().is_empty(), "still known");
        ensure!(presence() == Some((Presence::Unneeded, true)), "{:?}", presence());
        Ok(())
    })
    .await?;

    // None is taken for gone before Nodes are listed anew.
    let _needed = resources.nodes.keep_watched();
    ensure!(board.awaits_served(&["Node"]).is_some(), "what was forgotten counts as listed");
    eventually(SOON, || async {
        ensure!(board.awaits_served(&["Node"]).is_none(), "not listed yet");
        Ok(())
    })
    .await?;
    ensure!(resources.nodes.get("worker").is_some(), "listed, and the Node is not known");
    Ok(())
}
