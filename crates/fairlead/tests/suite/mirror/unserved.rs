//! Kinds that the API server does not serve for a while, although their objects are still stored.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use fairlead_api::fairlead::{ImageLedger, LedgerEntry};
use fairlead_api::kuik::ClusterImageSetAvailability;
use fairlead_testkit::{RegistryConfig, eventually};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::{ListParams, PostParams};
use serde_json::{Value, json};

use super::rig::{
    Rig, SOON, delete_pod, digest_at, fresh, mirror_of, pod_of, push, requests, wait_for_copy,
    wait_for_status,
};

async fn serve(rig: &Rig, name: &str, served: bool) -> Result<()> {
    let definitions: Api<CustomResourceDefinition> = Api::all(rig.client().await?);
    let mut definition = definitions.get(name).await?;
    definition.spec.versions.iter_mut().for_each(|version| version.served = served);
    definitions.replace(name, &PostParams::default(), &definition).await?;
    Ok(())
}

/// Every row of every ledger, by kind of its owner and source, once that can be asked.
async fn rows(rig: &Rig) -> Result<BTreeMap<String, LedgerEntry>> {
    let ledgers: Api<ImageLedger> = Api::all(rig.client().await?);
    let found = eventually(SOON, || async { Ok(ledgers.list(&ListParams::default()).await?) }).await?;
    let rows = found.items.into_iter().flat_map(|ledger| {
        let kind = ledger.spec.owner.kind;
        ledger.spec.entries.into_iter().map(move |entry| (format!("{kind} {}", entry.source), entry))
    });
    Ok(rows.collect())
}

#[tokio::test]
async fn a_kind_that_is_not_served_for_a_while_costs_no_row_and_no_copy() -> Result<()> {
    let rig = fresh().await?;
    let namespace = rig.namespace().await?;
    let [source] = rig.registries().await?;
    let target = rig.cluster.registry(RegistryConfig::new().delete()).await?;
    let cleanup = json!({"cleanup": {"enabled": true, "retention": "720h"}});
    let global = mirror_of(&source, &json!([{"registry": target.host(), "path": "global"}]), &cleanup);
    let mut team = mirror_of(&source, &json!([{"registry": target.host(), "path": "team"}]), &cleanup);
    team["kind"] = "ImageSetMirror".into();
    team["metadata"]["namespace"] = namespace.as_str().into();
    let mirrors: [&Value; 2] = [&global, &team];
    for mirror in mirrors {
        rig.apply(mirror).await?;
    }
    let watched = json!({
        "apiVersion": "kuik.enix.io/v1alpha1", "kind": "ClusterImageSetAvailability",
        "metadata": {"name": "all"},
        "spec": {"imageFilter": {"include": [format!("{}/.*", source.host())]}, "unusedImageExpiry": "720h"},
    });
    let availabilities: Api<ClusterImageSetAvailability> = Api::all(rig.client().await?);
    availabilities.create(&PostParams::default(), &serde_json::from_value(watched)?).await?;
    let mut pods = Vec::new();
    for number in 0..6 {
        push(&source, &format!("team/app-{number}"), "1").await?;
        pods.push(rig.create(&namespace, &pod_of(&source, &format!("team/app-{number}:1"))).await?);
    }
    for mirror in mirrors {
        wait_for_status(&rig, mirror, |status| status["mirroredCount"] == 6).await?;
    }
    // Half of them are not used any more, which only the ledgers know.
    for pod in &pods[..3] {
        delete_pod(&rig, pod).await?;
    }
    let before = eventually(SOON, || async {
        let rows = rows(&rig).await?;
        let unused = rows.values().filter(|entry| entry.unused_since.is_some()).count();
        ensure!(rows.len() == 18 && unused == 9, "{rows:#?}");
        Ok(rows)
    })
    .await?;

    for (number, (kind, plural)) in [
        ("ClusterImageSetMirror", "clusterimagesetmirrors.kuik.enix.io"),
        ("ImageSetMirror", "imagesetmirrors.kuik.enix.io"),
        ("ClusterReplicatedImageSet", "clusterreplicatedimagesets.kuik.enix.io"),
        ("ClusterImageSetAvailability", "clusterimagesetavailabilities.kuik.enix.io"),
        ("ImageLedger", "imageledgers.fairlead.dev"),
    ]
    .into_iter()
    .enumerate()
    {
        let known = format!("fairlead_watched_objects{{kind=\"{kind}\"}}");
        let count = rig.operator.0.metric(&known).await?.context("it is watched")?;
        serve(&rig, plural, false).await?;
        rig.operator.0.wait_for_metric(&known, None, SOON).await?;
        // What happens meanwhile is seen afterwards.
        let late = format!("team/late-{number}");
        let digest = push(&source, &late, "1").await?;
        let pod = rig.create(&namespace, &pod_of(&source, &format!("{late}:1"))).await?;
        serve(&rig, plural, true).await?;
        rig.operator.0.wait_for_metric(&known, Some(count), SOON).await?;
        for path in ["global", "team"] {
            wait_for_copy(&target, &format!("{path}/{late}"), "1", &digest).await?;
        }
        delete_pod(&rig, &pod).await?;
        let rows = rows(&rig).await?;
        for (row, entry) in &before {
            let found = rows.get(row).with_context(|| format!("{row} was forgotten without {kind}"))?;
            ensure!(found.unused_since == entry.unused_since, "{kind}: {entry:?} became {found:?}");
        }
    }
    for number in 0..6 {
        for path in ["global", "team"] {
            let found = digest_at(&target, &format!("{path}/team/app-{number}"), "1").await?;
            ensure!(found.is_some(), "{path}/team/app-{number} was removed");
        }
    }
    let removed = requests(&target)?.iter().filter(|one| one.method == "DELETE").count();
    ensure!(removed == 0, "{removed} removals were tried");
    Ok(())
}
