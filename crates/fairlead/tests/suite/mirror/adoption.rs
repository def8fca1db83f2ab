//! Objects as kuik left them: their copies are there, and everything that is known of them is in the status.

use anyhow::{Context, Result, ensure};
use fairlead_testkit::images::holding;
use fairlead_testkit::{Cluster, Registry, RegistryConfig};
use jiff::{SignedDuration, Timestamp};
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::rig::{
    Rig, create, digest_at, manifests_written, mirror_of, pod_of, ready, wait_for_removal, wait_for_status,
    wait_until_gone,
};
use crate::kuik::FINALIZERS;

const CONFIG: &str = "registries:\n  default: {requestsPerSecond: 1000, burst: 1000}\n";
/// How long the unused copy stays after the takeover.
const LEFT: SignedDuration = SignedDuration::from_secs(10);
const RETENTION: SignedDuration = SignedDuration::from_hours(1);

/// An image in the source, and as kuik copies it in the mirror.
async fn copied(source: &Registry, target: &Registry, name: &str) -> Result<()> {
    let image = holding(name)?;
    source.endpoint().push(&format!("team/{name}"), "1", &image).await?;
    target.endpoint().push(&format!("copies/team/{name}"), "1", &image).await?;
    Ok(())
}

fn listed<'s>(status: &'s Value, name: &str) -> Option<&'s Value> {
    let images = status["matchingImages"].as_array().into_iter().flatten();
    let mut found = images.filter(|image| image["image"].as_str().is_some_and(|image| image.contains(name)));
    found.next()
}

#[tokio::test]
async fn what_kuik_copied_is_taken_over_and_not_copied_again() -> Result<()> {
    let mut rig = Rig::install_with(Cluster::builder().audit(true).start().await?, CONFIG).await?;
    rig.operator.0.stop().await?;
    let namespace = rig.namespace().await?;
    let source = rig.cluster.registry(RegistryConfig::new()).await?;
    let target = rig.cluster.registry(RegistryConfig::new().delete()).await?;
    let used: Vec<_> = (0..5).map(|number| format!("used-{number}")).collect();
    for name in used.iter().map(String::as_str).chain(["unused", "returned"]) {
        copied(&source, &target, name).await?;
    }
    let late = holding("late")?;
    source.endpoint().push("team/late", "1", &late).await?;

    let cleanup = json!({"cleanup": {"enabled": true, "retention": "1h"}});
    let mut mirror = mirror_of(&source, &json!([{"registry": target.host(), "path": "copies"}]), &cleanup);
    mirror["metadata"]["finalizers"] = json!(FINALIZERS);
    let api = rig.policies(&mirror).await?;
    let name = mirror["metadata"]["name"].as_str().context("a name")?;
    create(&rig, &mirror).await?;
    let now = Timestamp::from_second(Timestamp::now().as_second())?;
    let unused_since = now.checked_sub(RETENTION)?.checked_add(LEFT)?;
    let entry = |name: &str| {
        let copy = format!("{}/copies/team/{name}:1", target.host());
        json!({
            "image": format!("{}/team/{name}:1", source.host()),
            "mirrors": [{"image": copy, "mirroredAt": "2026-05-04T03:02:01Z"}],
        })
    };
    let mut entries: Vec<Value> = used.iter().map(|name| entry(name)).collect();
    for name in ["unused", "returned"] {
        let mut entry = entry(name);
        entry["unusedSince"] = unused_since.to_string().into();
        entries.push(entry);
    }
    let mut failing = entry("late");
    let copy = failing["mirrors"][0]["image"].clone();
    failing["mirrors"] = json!([{"image": copy, "lastError": "unexpected status code 503"}]);
    entries.push(failing);
    let params = PatchParams { field_manager: Some("manager".to_owned()), ..PatchParams::default() };
    api.patch_status(name, &params, &Patch::Merge(json!({"status": {"matchingImages": entries}}))).await?;
    for name in used.iter().map(String::as_str).chain(["returned", "late"]) {
        rig.create(&namespace, &pod_of(&source, &format!("team/{name}:1"))).await?;
    }
    let before = manifests_written(&target)?.len();

    rig.operator = rig.start_operator().await?;
    let status = wait_for_status(&rig, &mirror, |status| {
        // What the operator sees first may be a moment old, and Pods that were just created are not among it.
        let returned = listed(status, "returned").is_some_and(|image| image["unusedSince"].is_null());
        let late = listed(status, "late").is_some_and(|image| image["mirrors"][0]["mirroredAt"].is_string());
        returned && late && status["mirroredCount"].as_u64() >= Some(7) && ready(status)["status"] == "True"
    })
    .await?;
    let still_there = digest_at(&target, "copies/team/unused", "1").await?.is_some();
    let its_time_has_come = Timestamp::now() >= unused_since.checked_add(RETENTION)?;
    ensure!(still_there || its_time_has_come, "the unused copy went before its retention was over");
    ensure!(status["imageCount"] == 8 || its_time_has_come, "{status:#}");
    for name in &used {
        let listed = listed(&status, name).with_context(|| format!("{name} in {status:#}"))?;
        ensure!(
            listed["mirrors"][0]["mirroredAt"].is_string() && listed["unusedSince"].is_null(),
            "{listed}"
        );
    }
    let returned = listed(&status, "returned").context("the image that is in use again")?;
    ensure!(returned["unusedSince"].is_null(), "{returned}");
    let late = listed(&status, "late").context("the image that kuik could not copy")?;
    ensure!(late["mirrors"][0]["lastError"].as_str().is_none_or(str::is_empty), "{late}");

    wait_for_removal(&target, "copies/team/unused", "1").await?;
    ensure!(Timestamp::now() >= unused_since.checked_add(RETENTION)?, "the unused copy went too early");
    let status = wait_for_status(&rig, &mirror, |status| {
        status["imageCount"] == 7 && status["mirroredCount"] == 7 && listed(status, "unused").is_none()
    })
    .await?;
    ensure!(ready(&status)["status"] == "True", "{status:#}");
    let written = manifests_written(&target)?.split_off(before);
    ensure!(written == ["/v2/copies/team/late/manifests/1"], "{written:?}");

    rig.delete(&mirror).await?;
    wait_until_gone(&rig, &mirror).await?;
    for name in used.iter().map(String::as_str).chain(["returned", "late"]) {
        let found = digest_at(&target, &format!("copies/team/{name}"), "1").await?;
        ensure!(found.is_none(), "{name} is still there, and clean-up was on");
    }
    Ok(())
}
