//! Whose images are copied, and whose are not.

use anyhow::{Result, ensure};
use fairlead_api::fairlead::ImageLedger;
use kube::Api;
use kube::api::ListParams;
use serde_json::{Value, json};

use super::rig::{digest_at, mirror_of, pod, push, shared, wait_for_copy, wait_for_status};

fn labelled(image: &str, labels: Value) -> Value {
    let mut pod = pod(image);
    pod["metadata"]["labels"] = labels;
    pod
}

#[tokio::test]
async fn a_namespaced_mirror_copies_for_pods_of_its_namespace_only() -> Result<()> {
    let rig = shared().await?;
    let (own, other) = (rig.namespace().await?, rig.namespace().await?);
    let [source, target] = rig.registries().await?;
    let mut mirror = mirror_of(&source, &json!([{"registry": target.host()}]), &json!({}));
    mirror["kind"] = "ImageSetMirror".into();
    mirror["metadata"]["namespace"] = own.as_str().into();
    let names = ["app", "elsewhere", "skipped", "warmed"];
    for name in names {
        push(&source, &format!("team/{name}"), "1").await?;
    }
    let image = |name: &str| format!("{}/team/{name}:1", source.host());
    rig.create(&other, &pod(&image("elsewhere"))).await?;
    rig.create(&own, &labelled(&image("skipped"), json!({"example.com/skip": "yes"}))).await?;
    let warming = json!({"app.kubernetes.io/managed-by": "drop", "drop.corewire.io/cachedimage": "x"});
    rig.create(&own, &labelled(&image("warmed"), warming)).await?;
    rig.apply(&mirror).await?;
    // A controller that would copy the others has seen them before this one.
    rig.create(&own, &labelled(&image("app"), json!({"app.kubernetes.io/managed-by": "drop"}))).await?;
    let digest = digest_at(&source, "team/app", "1").await?.unwrap_or_default();
    wait_for_copy(&target, "team/app", "1", &digest).await?;
    wait_for_status(rig, &mirror, |status| status["imageCount"] == 1 && status["mirroredCount"] == 1).await?;
    for name in &names[1..] {
        ensure!(digest_at(&target, &format!("team/{name}"), "1").await?.is_none(), "{name} was copied");
    }

    let ledgers: Api<ImageLedger> = Api::namespaced(rig.client().await?, &own);
    let beside = ledgers.list(&ListParams::default()).await?.items;
    ensure!(beside.len() == 1 && beside[0].spec.entries.len() == 1, "{beside:#?}");
    let owners = beside[0].metadata.owner_references.clone().unwrap_or_default();
    ensure!(owners.len() == 1 && owners[0].kind == "ImageSetMirror", "{owners:?}");
    let elsewhere: Api<ImageLedger> = Api::namespaced(rig.client().await?, &other);
    ensure!(elsewhere.list(&ListParams::default()).await?.items.is_empty());
    Ok(())
}
