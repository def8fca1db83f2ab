//! What warming may do is what it does.

use anyhow::{Result, ensure};
use fairlead_api::drop::ImagePullPolicy;
use fairlead_api::fairlead::WarmLedger;
use fairlead_api::names::fairlead::WARMING;
use fairlead_operator::platform::install::DEFAULT_NAMESPACE;
use fairlead_testkit::eventually;
use k8s_openapi::api::core::v1::Taint;
use kube::Api;
use kube::api::{ListParams, Patch, PatchParams};
use serde_json::json;

use super::rig::{self, Pool};
use crate::replica::SOON;
use crate::rights;

/// When the rights of warming are not used, in the words of the roles.
const CASES: &[&str] =
    &["there is no image to be warmed", "there is no CachedImageSet", "no node joined with that taint"];

#[tokio::test]
async fn warming_uses_each_of_its_rights() -> Result<()> {
    let rig = rig::shared().await?;
    let _others = rig.whole.read().await;
    let pool = Pool::new(rig, "rights", 3).await?;
    let sets = pool.gate().await?;
    let taint = Taint { key: WARMING.to_owned(), effect: "NoSchedule".to_owned(), ..Taint::default() };
    let node = pool.join("rights", &[taint]).await?;
    eventually(SOON * 2, || async {
        let taints = pool.nodes.get(&node).await?.spec.and_then(|spec| spec.taints).unwrap_or_default();
        ensure!(taints.is_empty(), "{taints:?}");
        Ok(())
    })
    .await?;

    let edit = async |spec| {
        let patch = Patch::Merge(json!({ "spec": spec }));
        sets.patch(&pool.name, &PatchParams::default(), &patch).await
    };
    edit(json!({"imagePullPolicy": "IfNotPresent"})).await?;
    eventually(SOON, || async {
        let children = pool.children().await?;
        let follows =
            children.iter().all(|child| child.spec.image_pull_policy == ImagePullPolicy::IfNotPresent);
        ensure!(children.len() == 1 && follows, "{children:?}");
        Ok(())
    })
    .await?;

    // A row is stored anew for another node, and a record without rows goes.
    let second = pool.join("rights", &[]).await?;
    pool.until_created(2).await?;
    let child = pool.children().await?.remove(0).metadata.uid;
    let ledgers: Api<WarmLedger> = Api::namespaced(rig.cluster.client().await?, DEFAULT_NAMESPACE);
    let rows = async || {
        let all = ledgers.list(&ListParams::default()).await?.items;
        let own = all.into_iter().filter(|ledger| Some(&ledger.spec.owner.uid) == child.as_ref());
        anyhow::Ok(own.map(|ledger| ledger.spec.nodes.len()).collect::<Vec<_>>())
    };
    for (left, node) in [(vec![2], None), (vec![1], Some(&node)), (vec![], Some(&second))] {
        if let Some(node) = node {
            pool.leave(node).await?;
        }
        eventually(SOON, || async {
            let rows = rows().await?;
            ensure!(rows == left, "{rows:?} instead of {left:?}");
            Ok(())
        })
        .await?;
    }
    edit(json!({"images": []})).await?;
    eventually(SOON, || async {
        let children = pool.children().await?.len();
        ensure!(children == 0, "{children} children are left");
        Ok(())
    })
    .await?;
    rights::check_cases(&rig.cluster, DEFAULT_NAMESPACE, CASES).await
}
