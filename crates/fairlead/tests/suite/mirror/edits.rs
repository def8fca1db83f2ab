//! What people change while copies are under way, ledgers included.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fairlead_api::fairlead::ImageLedger;
use fairlead_testkit::fake_registry::{Effect, FakeRegistry, Fault, Route};
use fairlead_testkit::images::holding;
use fairlead_testkit::{Registry, RegistryConfig, eventually};
use kube::Api;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use serde_json::{Value, json};

use super::rig::{
    Rig, SOON, change, create, digest_at, manifests_written, mirror_of, pod_of, push, ready, shared,
    wait_for_copy, wait_for_removal, wait_for_status, wait_until_gone,
};

/// Pushes images and makes Pods use them; their digests, by repository.
async fn in_use(
    rig: &Rig,
    namespace: &str,
    source: &Registry,
    name: &str,
    count: usize,
) -> Result<Vec<(String, String)>> {
    let mut images = Vec::new();
    for number in 0..count {
        let repository = format!("team/{name}-{number:02}");
        let digest = push(source, &repository, "1").await?;
        rig.create(namespace, &pod_of(source, &format!("{repository}:1"))).await?;
        images.push((repository, digest));
    }
    Ok(images)
}

/// Puts of manifests whose path contains a text.
fn puts(registry: &FakeRegistry, part: &str) -> usize {
    let put = |path: &str| path.contains("/manifests/") && path.contains(part);
    registry.requests().iter().filter(|request| request.method == "PUT" && put(&request.path)).count()
}

/// Makes a registry take its time for whatever it publishes.
fn slow_down(registry: &FakeRegistry) {
    let slow = Effect::Delay(Duration::from_millis(150));
    registry.inject(Fault::new(slow).method("PUT").on(Route::Manifests));
}

#[tokio::test]
async fn images_that_leave_the_filter_are_no_longer_copied() -> Result<()> {
    let rig = shared().await?;
    let namespace = rig.namespace().await?;
    let source = rig.cluster.registry(RegistryConfig::new()).await?;
    let target = FakeRegistry::start().await?;
    // Copies of what is to leave stop just before they are published.
    let stuck = Fault::new(Effect::Hang).method("PUT").on(Route::Manifests).path("/left-");
    target.inject(stuck);
    let kept = in_use(rig, &namespace, &source, "kept", 6).await?;
    let left = in_use(rig, &namespace, &source, "left", 6).await?;
    let mirror = mirror_of(&source, &json!([{"registry": target.host()}]), &json!({}));
    rig.apply(&mirror).await?;
    eventually(SOON, || async {
        ensure!(puts(&target, "/left-") > 0, "{}", rig.operator.0.process.log_tail());
        Ok(())
    })
    .await?;
    wait_for_status(rig, &mirror, |status| status["mirroredCount"] == kept.len()).await?;

    let filter = json!({"spec": {"imageFilter": {
        "include": [format!("{}/.*", source.host())], "exclude": [".*/left-.*"],
    }}});
    change(rig, &mirror, &filter).await?;
    wait_for_status(rig, &mirror, |status| ready(status)["status"] == "True").await?;
    target.heal();
    let before = puts(&target, "/left-");
    // Whatever would still be in line is in front of this one.
    let digest = push(&source, "team/late", "1").await?;
    rig.create(&namespace, &pod_of(&source, "team/late:1")).await?;
    eventually(SOON, || async {
        ensure!(target.digest_of("team/late", "1").as_ref() == Some(&digest), "not copied yet");
        Ok(())
    })
    .await?;
    for (repository, digest) in &kept {
        ensure!(target.digest_of(repository, "1").as_ref() == Some(digest), "{repository}");
    }
    for (repository, _) in &left {
        ensure!(target.digest_of(repository, "1").is_none(), "{repository} was copied");
    }
    ensure!(puts(&target, "/left-") == before, "copies went on");
    Ok(())
}

#[tokio::test]
async fn mirrors_come_and_go_while_copies_run() -> Result<()> {
    let rig = shared().await?;
    let namespace = rig.namespace().await?;
    let source = rig.cluster.registry(RegistryConfig::new()).await?;
    let (first, second) = (FakeRegistry::start().await?, FakeRegistry::start().await?);
    slow_down(&first);
    slow_down(&second);
    let images = in_use(rig, &namespace, &source, "app", 40).await?;
    let cleanup = json!({"cleanup": {"enabled": true, "retention": "1h"}});
    let mirror = mirror_of(&source, &json!([{"registry": first.host()}]), &cleanup);
    create(rig, &mirror).await?;
    let under_way = |registry: &FakeRegistry| {
        let published = puts(registry, "/app-");
        ensure!(published >= 5, "{published} copied: {}", rig.operator.0.process.log_tail());
        Ok(())
    };
    eventually(SOON, || async { under_way(&first) }).await?;
    let both = json!([{"registry": first.host()}, {"registry": second.host(), "path": "new"}]);
    change(rig, &mirror, &json!({"spec": {"mirrors": both}})).await?;
    eventually(SOON, || async { under_way(&second) }).await?;
    ensure!(puts(&second, "/app-") < images.len(), "everything was copied already, which proves nothing");
    let alone = json!([{"registry": second.host(), "path": "new"}]);
    change(rig, &mirror, &json!({"spec": {"mirrors": alone}})).await?;
    wait_for_status(rig, &mirror, |status| {
        status["observedGeneration"] == 3 && ready(status)["status"] == "True"
    })
    .await?;
    let before = puts(&first, "/app-");
    for (repository, digest) in &images {
        let found = second.digest_of(&format!("new/{repository}"), "1");
        ensure!(found.as_ref() == Some(digest), "{repository}: {found:?}");
    }
    let left = images.iter().filter(|(repository, _)| first.digest_of(repository, "1").is_some()).count();
    ensure!((5..=images.len()).contains(&left), "{left} copies are left in the mirror that was removed");
    ensure!(puts(&first, "/app-") == before, "copies to it went on");
    let removed = first.requests().iter().filter(|request| request.method == "DELETE").count();
    ensure!(removed == 0, "{removed} were deleted from it");
    Ok(())
}

#[tokio::test]
async fn an_object_that_is_deleted_in_mid_copy_leaves_nothing_behind() -> Result<()> {
    let rig = shared().await?;
    let namespace = rig.namespace().await?;
    let source = FakeRegistry::start().await?;
    let target = rig.cluster.registry(RegistryConfig::new().delete()).await?;
    let repositories: Vec<_> = (0..60).map(|number| format!("team/app-{number:02}")).collect();
    for images in repositories.chunks(10) {
        let containers: Vec<_> = images
            .iter()
            .enumerate()
            .map(|(at, image)| json!({"name": format!("c{at}"), "image": format!("{}/{image}:1", source.host())}))
            .collect();
        let pod = json!({"metadata": {"generateName": "many-"}, "spec": {"containers": containers}});
        rig.create(&namespace, &pod).await?;
    }
    for repository in &repositories {
        source.hold(repository, "1", &holding(repository)?);
    }
    source.inject(Fault::new(Effect::Delay(Duration::from_millis(100))).method("GET"));
    let more = json!({
        "cleanup": {"enabled": true, "retention": "1h"},
        "imageFilter": {"include": [format!("{}/.*", source.host())]},
    });
    let mirror = mirror_of(&target, &json!([{"registry": target.host()}]), &more);
    create(rig, &mirror).await?;
    eventually(SOON, || async {
        ensure!(manifests_written(&target)?.len() >= 3, "{}", rig.operator.0.process.log_tail());
        Ok(())
    })
    .await?;
    rig.delete(&mirror).await?;
    let before = manifests_written(&target)?.len();
    ensure!(before < repositories.len(), "everything was copied already, which proves nothing");
    wait_until_gone(rig, &mirror).await?;
    for repository in &repositories {
        let found = digest_at(&target, repository, "1").await?;
        ensure!(found.is_none(), "{repository} is still there");
    }
    Ok(())
}

#[tokio::test]
async fn an_object_goes_at_once_although_images_have_just_come_into_use() -> Result<()> {
    let rig = shared().await?;
    let namespace = rig.namespace().await?;
    let source = rig.cluster.registry(RegistryConfig::new()).await?;
    let target = rig.cluster.registry(RegistryConfig::new().delete()).await?;
    let cleanup = json!({"cleanup": {"enabled": true, "retention": "1h"}});
    let paths = ["one", "two", "three", "four"];
    let mut mirrors = Vec::new();
    for path in paths {
        let mirror = mirror_of(&source, &json!([{"registry": target.host(), "path": path}]), &cleanup);
        rig.apply(&mirror).await?;
        mirrors.push(mirror);
    }
    // One object after the other goes while new images keep coming.
    let mut images = Vec::new();
    for mirror in &mirrors {
        images.extend(in_use(rig, &namespace, &source, &format!("app-{}", images.len()), 8).await?);
        rig.delete(mirror).await?;
    }
    for mirror in &mirrors {
        wait_until_gone(rig, mirror).await?;
    }
    for path in paths {
        for (repository, _) in &images {
            wait_for_removal(&target, &format!("{path}/{repository}"), "1").await?;
        }
    }
    Ok(())
}

async fn ledgers(rig: &Rig, mirror: &Value) -> Result<(Api<ImageLedger>, ListParams)> {
    let name = mirror["metadata"]["name"].as_str().context("a name")?;
    let uid = rig.policies(mirror).await?.get(name).await?.metadata.uid.context("a UID")?;
    let api = Api::namespaced(rig.client().await?, "fairlead-system");
    Ok((api, ListParams::default().labels(&format!("fairlead.dev/owner-uid={uid}"))))
}

/// The one ledger of an object, once it has so many copies in place.
async fn wait_for_ledger(
    rig: &Rig,
    api: &Api<ImageLedger>,
    of: &ListParams,
    count: usize,
) -> Result<ImageLedger> {
    eventually(SOON, || async {
        let mut found = api.list(of).await?.items;
        let in_place = found.iter().flat_map(|ledger| &ledger.spec.entries).flat_map(|entry| &entry.mirrors);
        let in_place = in_place.filter(|copy| copy.digest.is_some()).count();
        ensure!(found.len() == 1 && in_place == count, "{found:#?}\n{}", rig.operator.0.process.log_tail());
        found.pop().context("a ledger")
    })
    .await
}

#[tokio::test]
async fn a_ledger_that_somebody_deletes_or_edits_is_written_again() -> Result<()> {
    let rig = shared().await?;
    let namespace = rig.namespace().await?;
    let [source, target] = rig.registries().await?;
    in_use(rig, &namespace, &source, "app", 3).await?;
    let mirror = mirror_of(&source, &json!([{"registry": target.host()}]), &json!({}));
    rig.apply(&mirror).await?;
    let (api, of) = ledgers(rig, &mirror).await?;
    let stored = wait_for_ledger(rig, &api, &of, 3).await?;
    let name = stored.metadata.name.clone().context("a name")?;

    api.delete(&name, &DeleteParams::default()).await?;
    let again = wait_for_ledger(rig, &api, &of, 3).await?;
    ensure!(again.metadata.uid != stored.metadata.uid && again.spec == stored.spec, "{again:#?}");

    let emptied = Patch::Merge(json!({"spec": {"entries": []}, "metadata": {"labels": {"mine": "yes"}}}));
    // A policy of the API server lets the operator alone write ledgers.
    let operator = rig.cluster.client_as("fairlead-system", "fairlead").await?;
    let writable: Api<ImageLedger> = Api::namespaced(operator, "fairlead-system");
    writable.patch(&name, &PatchParams::default(), &emptied).await?;
    let again = wait_for_ledger(rig, &api, &of, 3).await?;
    ensure!(again.spec == stored.spec, "{again:#?}");
    ensure!(manifests_written(&target)?.len() == 3, "nothing is copied again for it");
    Ok(())
}

#[tokio::test]
async fn a_ledger_that_is_deleted_as_soon_as_it_is_written_is_written_in_the_end() -> Result<()> {
    let rig = shared().await?;
    let namespace = rig.namespace().await?;
    let [source, target] = rig.registries().await?;
    let mirror = mirror_of(&source, &json!([{"registry": target.host()}]), &json!({}));
    rig.apply(&mirror).await?;
    let (api, of) = ledgers(rig, &mirror).await?;
    in_use(rig, &namespace, &source, "app", 2).await?;
    // Faster than any watch of it.
    eventually(SOON, || async {
        let ledger = api.list(&of).await?.items.pop();
        let name = ledger
            .and_then(|ledger| ledger.metadata.name)
            .with_context(|| format!("there is no ledger: {}", rig.operator.0.process.log_tail()))?;
        Ok(api.delete(&name, &DeleteParams::default()).await?)
    })
    .await?;
    in_use(rig, &namespace, &source, "later", 2).await?;
    wait_for_ledger(rig, &api, &of, 4).await?;
    for name in ["app-00", "app-01", "later-00", "later-01"] {
        let digest = digest_at(&source, &format!("team/{name}"), "1").await?.context("it is there")?;
        wait_for_copy(&target, &format!("team/{name}"), "1", &digest).await?;
    }
    Ok(())
}
