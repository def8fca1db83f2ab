//! Clean-up removes what Fairlead wrote, while it is there and no Pod uses it, and nothing else.

use anyhow::{Context, Result, ensure};
use fairlead_api::fairlead::{ImageLedger, LedgerCopy};
use fairlead_testkit::fake_registry::{Effect, FakeRegistry, Fault, Route};
use fairlead_testkit::images::{ImageBuilder, holding};
use fairlead_testkit::{Registry, RegistryConfig, Signal, eventually, unique};
use kube::Api;
use kube::api::ListParams;
use serde_json::{Value, json};

use super::rig::{
    CONFIG, Rig, SOON, change, configured, delete_pod, digest_at, mirror_of, pod, pod_of, push, shared,
    wait_for_copy, wait_for_removal, wait_for_status,
};
use crate::person::Person;
use crate::route::rig::image;

/// The row of a copy, once a ledger has one that is as wanted.
async fn row(rig: &Rig, destination: &str, wanted: impl Fn(&LedgerCopy) -> bool) -> Result<LedgerCopy> {
    let api: Api<ImageLedger> = Api::all(rig.client().await?);
    eventually(SOON, || async {
        let ledgers = api.list(&ListParams::default()).await?.items;
        let rows = ledgers.iter().flat_map(|ledger| &ledger.spec.entries).flat_map(|entry| &entry.mirrors);
        let found: Vec<_> = rows.filter(|row| row.destination == destination).collect();
        let found_one = found.iter().find(|row| wanted(row)).copied().cloned();
        found_one.with_context(|| format!("{found:#?}\n{}", rig.operator.0.process.log_tail()))
    })
    .await
}

fn copy_of(target: &Registry, name: &str) -> String {
    format!("{}/{name}", target.host())
}

#[tokio::test]
async fn what_others_wrote_is_kept_and_listed() -> Result<()> {
    let rig = shared().await?;
    let namespace = rig.namespace().await?;
    let source = rig.cluster.registry(RegistryConfig::new()).await?;
    let target = rig.cluster.registry(RegistryConfig::new().delete()).await?;
    // There before Fairlead came.
    let present = ImageBuilder::pause()?.label("unique", &unique("present")).build()?;
    for registry in [&source, &target] {
        registry.endpoint().push("team/present", "1", &present).await?;
    }
    // Cannot be copied, and another image has that name in the mirror.
    let ghost = push(&target, "team/ghost", "1").await?;
    let lone = push(&source, "team/lone", "1").await?;
    let moved = push(&source, "team/moved", "1").await?;
    let cleanup = json!({"cleanup": {"enabled": true, "retention": "15s"}});
    let mirror = mirror_of(&source, &json!([{"registry": target.host()}]), &cleanup);
    rig.apply(&mirror).await?;
    let mut users = Vec::new();
    for name in ["present", "ghost", "lone", "moved"] {
        users.push(rig.create(&namespace, &pod_of(&source, &format!("team/{name}:1"))).await?);
    }
    wait_for_copy(&target, "team/lone", "1", &lone).await?;
    wait_for_copy(&target, "team/moved", "1", &moved).await?;
    row(rig, &copy_of(&target, "team/moved:1"), |row| row.written == [moved.clone()]).await?;
    row(rig, &copy_of(&target, "team/ghost:1"), |row| row.last_error.is_some()).await?;
    let found = row(rig, &copy_of(&target, "team/present:1"), |row| row.digest.is_some()).await?;
    ensure!(found.written.is_empty(), "{found:?}");

    for user in &users {
        delete_pod(rig, user).await?;
    }
    // While it was in use, it would be copied again.
    wait_for_status(rig, &mirror, |status| {
        let images = status["matchingImages"].as_array().into_iter().flatten();
        images.filter(|image| image["unusedSince"].is_string()).count() == 3
    })
    .await?;
    let theirs = push(&target, "team/moved", "1").await?;
    wait_for_removal(&target, "team/lone", "1").await?;
    let kept = row(rig, &copy_of(&target, "team/moved:1"), |row| row.kept.is_some()).await?;
    ensure!(kept.kept.is_some_and(|why| why.contains(&theirs)));
    row(rig, &copy_of(&target, "team/present:1"), |row| row.kept.is_some()).await?;
    for (name, digest) in [("present", present.digest()), ("ghost", ghost), ("moved", theirs)] {
        let found = digest_at(&target, &format!("team/{name}"), "1").await?;
        ensure!(found.as_ref() == Some(&digest), "{name} is {found:?}");
    }
    let kubeconfig = rig.cluster.kubeconfig();
    let kubeconfig = kubeconfig.to_str().context("a path in plain text")?;
    let name = mirror["metadata"]["name"].as_str().context("a name")?;
    let said = Person::new()?
        .run(&["mirror", "status", name, "-o", "json", "--once", "--kubeconfig", kubeconfig], "")?;
    let report: Value = serde_json::from_str(&said.output)?;
    let listed = report["objects"][0]["kept"].to_string();
    ensure!(listed.contains("team/present:1") && listed.contains("team/moved:1"), "{report:#}");
    ensure!(!listed.contains("team/lone:1"), "{report:#}");
    Ok(())
}

#[tokio::test]
async fn a_pod_that_names_a_copy_keeps_it() -> Result<()> {
    let rig = shared().await?;
    let namespace = rig.namespace().await?;
    let source = rig.cluster.registry(RegistryConfig::new()).await?;
    let target = rig.cluster.registry(RegistryConfig::new().delete()).await?;
    let app = push(&source, "team/app", "1").await?;
    push(&source, "team/lone", "1").await?;
    let cleanup = json!({"cleanup": {"enabled": true}});
    let mirror = mirror_of(&source, &json!([{"registry": target.host()}]), &cleanup);
    rig.apply(&mirror).await?;
    let user = rig.create(&namespace, &pod_of(&source, "team/app:1")).await?;
    let lone = rig.create(&namespace, &pod_of(&source, "team/lone:1")).await?;
    wait_for_status(rig, &mirror, |status| status["mirroredCount"] == 2).await?;
    // Another namespace, and no policy has to do with this Pod.
    let elsewhere = rig.namespace().await?;
    let direct = rig.create(&elsewhere, &pod(&copy_of(&target, "team/app:1"))).await?;
    delete_pod(rig, &user).await?;
    delete_pod(rig, &lone).await?;
    wait_for_removal(&target, "team/lone", "1").await?;
    row(rig, &copy_of(&target, "team/app:1"), |row| row.named).await?;
    ensure!(digest_at(&target, "team/app", "1").await?.as_ref() == Some(&app));
    delete_pod(rig, &direct).await?;
    wait_for_removal(&target, "team/app", "1").await
}

#[tokio::test]
async fn no_edit_removes_a_copy_that_a_pod_uses() -> Result<()> {
    let rig = shared().await?;
    let namespace = rig.namespace().await?;
    let source = rig.cluster.registry(RegistryConfig::new()).await?;
    let target = rig.cluster.registry(RegistryConfig::new().delete()).await?;
    let digest = push(&source, "team/app", "1").await?;
    let copy = copy_of(&target, "team/app:1");
    let more = json!({"cleanup": {"enabled": true}, "priority": -1});
    let mirror = mirror_of(&source, &json!([{"registry": target.host()}]), &more);
    rig.apply(&mirror).await?;
    let first = rig.create(&namespace, &pod_of(&source, "team/app:1")).await?;
    wait_for_copy(&target, "team/app", "1", &digest).await?;
    let given =
        rig.create_until(&namespace, &pod_of(&source, "team/app:1"), |pod| image(pod) == copy).await?;
    delete_pod(rig, &first).await?;
    let nothing = json!({"spec": {"imageFilter": {"include": ["nothing.example/.*"]}}});
    change(rig, &mirror, &nothing).await?;
    row(rig, &copy, |row| row.named).await?;
    // The mirror goes, too: its copies stay and are listed.
    change(rig, &mirror, &json!({"spec": {"mirrors": []}})).await?;
    row(rig, &copy, |row| row.kept.is_some()).await?;
    delete_pod(rig, &given).await?;
    ensure!(digest_at(&target, "team/app", "1").await?.as_ref() == Some(&digest));
    // Named again, it is cleaned up.
    change(rig, &mirror, &json!({"spec": {"mirrors": [{"registry": target.host()}]}})).await?;
    wait_for_removal(&target, "team/app", "1").await
}

#[tokio::test]
async fn a_copy_whose_end_was_never_heard_of_is_still_ours() -> Result<()> {
    let mut rig = configured("").await?;
    let namespace = rig.namespace().await?;
    let source = rig.cluster.registry(RegistryConfig::new()).await?;
    let target = FakeRegistry::start().await?;
    let app = holding(&unique("app"))?;
    source.endpoint().push("team/app", "1", &app).await?;
    // The registry stores the manifest and never says so.
    target.inject(Fault::new(Effect::Hang).method("PUT").on(Route::Manifests));
    let cleanup = json!({"cleanup": {"enabled": true}});
    let mirror = mirror_of(&source, &json!([{"registry": target.host()}]), &cleanup);
    rig.apply(&mirror).await?;
    let user = rig.create(&namespace, &pod_of(&source, "team/app:1")).await?;
    let copy = format!("{}/team/app:1", target.host());
    row(&rig, &copy, |row| !row.written.is_empty()).await?;
    target.hold("team/app", "1", &app);
    rig.operator.0.process.signal(Signal::Kill).await?;
    target.heal();
    rig.configure(CONFIG)?;
    rig.operator = rig.start_operator().await?;
    row(&rig, &copy, |row| row.digest.is_some() && row.written == [app.digest()]).await?;
    delete_pod(&rig, &user).await?;
    eventually(SOON, || async {
        ensure!(target.digest_of("team/app", "1").is_none(), "{}", rig.operator.0.process.log_tail());
        Ok(())
    })
    .await
}
