//! What is copied, from where, and when again.

use anyhow::{Context, Result, ensure};
use fairlead_api::fairlead::ImageLedger;
use fairlead_testkit::{RegistryConfig, eventually};
use kube::Api;
use kube::api::ListParams;
use reqwest::Method;
use serde_json::json;

use super::rig::{
    SOON, change, digest_at, mirror_of, pod_of, push, ready, shared, wait_for_copy, wait_for_status,
};
use crate::route::rig::image;

#[tokio::test]
async fn every_image_of_a_pod_is_copied_as_it_is_and_progress_is_visible() -> Result<()> {
    let rig = shared().await?;
    let namespace = rig.namespace().await?;
    let [source, target] = rig.registries().await?;
    let app = push(&source, "team/app", "1").await?;
    let setup = push(&source, "team/setup", "latest").await?;
    let data = push(&source, "team/data", "2").await?;
    let pinned = push(&source, "team/pinned", "3").await?;
    let mirror = mirror_of(&source, &json!([{"registry": target.host(), "path": "copies"}]), &json!({}));
    rig.apply(&mirror).await?;

    // A Pod that comes after the mirror is noticed, too.
    let host = source.host();
    let asked = json!({
        "metadata": {"generateName": "all-"},
        "spec": {
            "containers": [
                {"name": "app", "image": format!("{host}/team/app:1")},
                {"name": "pinned", "image": format!("{host}/team/pinned@{pinned}")},
            ],
            "initContainers": [{"name": "setup", "image": format!("{host}/team/setup")}],
            "volumes": [{"name": "data", "image": {"reference": format!("{host}/team/data:2")}}],
        },
    });
    rig.create(&namespace, &asked).await?;
    wait_for_copy(&target, "copies/team/app", "1", &app).await?;
    wait_for_copy(&target, "copies/team/setup", "latest", &setup).await?;
    wait_for_copy(&target, "copies/team/data", "2", &data).await?;
    // A digest is held by a tag of ours, for registries that collect what has none.
    let held = format!("digest-{}", pinned.trim_start_matches("sha256:"));
    wait_for_copy(&target, "copies/team/pinned", &held, &pinned).await?;
    wait_for_copy(&target, "copies/team/pinned", &pinned, &pinned).await?;
    ensure!(digest_at(&target, "copies/team/pinned", "3").await?.is_none(), "nobody asked for that tag");

    let status = wait_for_status(rig, &mirror, |status| {
        status["mirroredCount"] == 4 && ready(status)["status"] == "True"
    })
    .await?;
    ensure!(status["imageCount"] == 4 && status["failedCount"] == 0, "{status}");
    let images: Vec<_> = status["matchingImages"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|one| one["image"].as_str())
        .collect();
    ensure!(images.contains(&&*format!("{host}/team/setup")), "{images:?}");
    let name = mirror["metadata"]["name"].as_str().context("a name")?;
    let columns = rig.cluster.kubectl(["get", "cism", name, "--no-headers"]).await?;
    let columns: Vec<_> = columns.split_whitespace().collect();
    ensure!(columns.get(1..6) == Some(&["0", "4", "4", "0", "True"]), "{columns:?}");

    let ledgers: Api<ImageLedger> = Api::namespaced(rig.client().await?, "fairlead-system");
    let uid = rig.policies(&mirror).await?.get(name).await?.metadata.uid.context("a UID")?;
    eventually(SOON, || async {
        let stored =
            ledgers.list(&ListParams::default().labels(&format!("fairlead.dev/owner-uid={uid}"))).await?;
        let entries: Vec<_> = stored.items.iter().flat_map(|ledger| &ledger.spec.entries).collect();
        let digests = entries.iter().filter(|entry| entry.source_digest.as_deref() == Some(&app)).count();
        ensure!(stored.items.len() == 1 && entries.len() == 4 && digests == 1, "{entries:#?}");
        Ok(())
    })
    .await?;
    let page = rig.operator.0.page().await?;
    for series in [
        "fairlead_mirror_copied_total{outcome=\"copied\"} ",
        "fairlead_mirror_bytes_total ",
        "fairlead_mirror_copies{state=\"Mirrored\"} ",
        "fairlead_mirror_oldest_waiting_seconds ",
    ] {
        ensure!(page.lines().any(|line| line.starts_with(series)), "no {series} in\n{page}");
    }
    Ok(())
}

#[tokio::test]
async fn a_tag_that_moves_is_followed_and_a_copy_that_is_lost_is_made_again() -> Result<()> {
    let rig = shared().await?;
    let namespace = rig.namespace().await?;
    let source = rig.cluster.registry(RegistryConfig::new()).await?;
    let target = rig.cluster.registry(RegistryConfig::new().delete()).await?;
    let before = push(&source, "team/app", "1").await?;
    let mirror =
        mirror_of(&source, &json!([{"registry": target.host(), "path": "copies"}]), &json!({"priority": -1}));
    let asked = pod_of(&source, "team/app:1");
    rig.create(&namespace, &asked).await?;
    rig.apply(&mirror).await?;
    wait_for_copy(&target, "copies/team/app", "1", &before).await?;

    let after = push(&source, "team/app", "1").await?;
    ensure!(after != before);
    wait_for_copy(&target, "copies/team/app", "1", &after).await?;
    let drift = rig.operator.0.metric("fairlead_mirror_drift_total").await?;
    ensure!(drift.is_some_and(|drift| drift >= 1.0), "{drift:?}");

    let copy = format!("{}/copies/team/app:1", target.host());
    let served = rig.create_until(&namespace, &asked, |pod| image(pod) == copy).await?;
    ensure!(image(&served) == copy);
    let (endpoint, client) = (target.endpoint(), target.endpoint().http()?);
    let gone = endpoint.request(&client, Method::DELETE, "/v2/copies/team/app/manifests/1").send().await?;
    ensure!(gone.status().is_success(), "{gone:?}");
    wait_for_copy(&target, "copies/team/app", "1", &after).await
}

#[tokio::test]
async fn a_source_that_is_gone_is_replaced_by_another_place_with_the_same_digest() -> Result<()> {
    let rig = shared().await?;
    let namespace = rig.namespace().await?;
    let [source, first, second] = rig.registries().await?;
    let digest = push(&source, "team/app", "1").await?;
    let mirror = mirror_of(&source, &json!([{"registry": first.host()}]), &json!({}));
    rig.create(&namespace, &pod_of(&source, "team/app:1")).await?;
    rig.apply(&mirror).await?;
    wait_for_copy(&first, "team/app", "1", &digest).await?;

    source.kill().await?;
    let both = json!({"spec": {"mirrors": [{"registry": first.host()}, {"registry": second.host(), "path": "deep/er"}]}});
    change(rig, &mirror, &both).await?;
    wait_for_copy(&second, "deep/er/team/app", "1", &digest).await?;
    wait_for_status(rig, &mirror, |status| status["mirroredCount"] == 2).await?;
    Ok(())
}

#[tokio::test]
async fn a_dead_mirror_and_a_bad_image_hold_nothing_else_up() -> Result<()> {
    let rig = shared().await?;
    let namespace = rig.namespace().await?;
    let [source, target, dead] = rig.registries().await?;
    dead.kill().await?;
    let mirrors = json!([{"registry": dead.host()}, {"registry": target.host()}]);
    let mirror = mirror_of(&source, &mirrors, &json!({}));
    rig.apply(&mirror).await?;
    rig.create(&namespace, &pod_of(&source, "team/missing:1")).await?;
    let mut digests = Vec::new();
    for number in 0..20 {
        digests.push(push(&source, &format!("team/app-{number}"), "1").await?);
        rig.create(&namespace, &pod_of(&source, &format!("team/app-{number}:1"))).await?;
    }
    for (number, digest) in digests.iter().enumerate() {
        wait_for_copy(&target, &format!("team/app-{number}"), "1", digest).await?;
    }
    let status = wait_for_status(rig, &mirror, |status| {
        status["mirroredCount"] == 20 && status["failedCount"].as_u64().is_some_and(|failed| failed >= 1)
    })
    .await?;
    // Failing images come first, and the condition names one.
    let first = &status["matchingImages"][0];
    let errors: Vec<_> =
        first["mirrors"].as_array().into_iter().flatten().map(|copy| &copy["lastError"]).collect();
    ensure!(errors.iter().any(|error| error.as_str().is_some_and(|error| !error.is_empty())), "{first}");
    let ready = ready(&status);
    ensure!(ready["status"] == "False" && ready["reason"] == "Degraded", "{ready}");
    ensure!(ready["message"].as_str().is_some_and(|message| message.contains(&dead.host())), "{ready}");

    // Back again, it gets everything.
    dead.start_again().await?;
    for (number, digest) in digests.iter().enumerate() {
        wait_for_copy(&dead, &format!("team/app-{number}"), "1", digest).await?;
    }
    Ok(())
}
