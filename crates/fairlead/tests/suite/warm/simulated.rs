//! Nodes that come, go, are replaced, start slowly or cannot pull, and a control plane that fails meanwhile: every node
//! gets every image, by one Pod.

use anyhow::Result;
use fairlead_api::drop::CachedImagePhase;
use fairlead_testkit::Part;
use k8s_openapi::api::core::v1::Taint;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::rig::{self, Pool};

#[tokio::test]
async fn nodes_that_join_get_the_image_and_those_that_leave_are_forgotten() -> Result<()> {
    let rig = rig::shared().await?;
    let _others = rig.whole.read().await;
    let pool = Pool::new(rig, "churn", 3).await?;
    let nodes = pool.join_all("churn", 6).await?;
    pool.want().await?;
    pool.until_created(2).await?;
    pool.join_all("churn", 4).await?;
    pool.until_ready("10/10").await?;
    for node in &nodes[..2] {
        pool.leave(node).await?;
    }
    pool.until_ready("8/8").await?;
    pool.had_exactly(10).await
}

#[tokio::test]
async fn a_node_that_is_replaced_under_its_name_gets_the_image_anew() -> Result<()> {
    let rig = rig::shared().await?;
    let _others = rig.whole.read().await;
    let pool = Pool::new(rig, "replaced", 3).await?;
    let nodes = pool.join_all("replaced", 3).await?;
    pool.want().await?;
    pool.until_ready("3/3").await?;
    pool.leave(&nodes[1]).await?;
    pool.join_as(&nodes[1], &[]).await?;
    pool.until_created(4).await?;
    pool.until_ready("3/3").await?;
    pool.had_exactly(4).await
}

#[tokio::test]
async fn a_node_gets_the_image_when_its_startup_taint_goes() -> Result<()> {
    let rig = rig::shared().await?;
    let _others = rig.whole.read().await;
    let pool = Pool::new(rig, "startup", 3).await?;
    pool.join_all("startup", 2).await?;
    let taint = Taint {
        key: "node.cilium.io/agent-not-ready".to_owned(),
        effect: "NoSchedule".to_owned(),
        ..Taint::default()
    };
    let late = pool.join("startup", &[taint]).await?;
    pool.want().await?;
    pool.until_ready("2/2").await?;
    pool.had_exactly(2).await?;
    let open = json!({"spec": {"taints": null}});
    pool.nodes.patch(&late, &PatchParams::default(), &Patch::Merge(&open)).await?;
    pool.until_ready("3/3").await?;
    pool.had_exactly(3).await
}

#[tokio::test]
async fn nodes_that_cannot_pull_do_not_hold_up_the_others() -> Result<()> {
    let rig = rig::shared().await?;
    let _others = rig.whole.read().await;
    // Fewer at once than bad nodes and one more, so that these must give their slots back.
    let pool = Pool::new(rig, "bad", 2).await?;
    pool.join_all("bad", 2).await?;
    pool.join_all("good", 18).await?;
    pool.want().await?;
    pool.until_ready("18/20").await?;
    pool.until(|status| status.phase == Some(CachedImagePhase::Degraded)).await?;
    pool.had_exactly(20).await
}

#[tokio::test]
async fn an_api_server_that_restarts_meanwhile_changes_nothing() -> Result<()> {
    let rig = rig::shared().await?;
    let _alone = rig.whole.write().await;
    let pool = Pool::new(rig, "restart", 2).await?;
    pool.join_all("restart", 12).await?;
    pool.want().await?;
    pool.until_created(3).await?;
    rig.cluster.restart(Part::ApiServer).await?;
    pool.until_ready("12/12").await?;
    pool.had_exactly(12).await
}

#[tokio::test]
async fn a_leader_that_is_killed_meanwhile_changes_nothing() -> Result<()> {
    let rig = rig::shared().await?;
    let _alone = rig.whole.write().await;
    let pool = Pool::new(rig, "takeover", 2).await?;
    pool.join_all("takeover", 12).await?;
    pool.want().await?;
    pool.until_created(3).await?;
    rig.kill_leader().await?;
    pool.until_ready("12/12").await?;
    pool.had_exactly(12).await
}
