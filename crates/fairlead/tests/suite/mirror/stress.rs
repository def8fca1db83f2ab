//! Many images and three mirrors, of which one hangs and one has no quota left, while the lease holder dies in the
//! middle.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fairlead_operator::platform::install::DEFAULT_NAMESPACE;
use fairlead_testkit::fake_registry::{Effect, FakeRegistry, Fault, Route};
use fairlead_testkit::images::holding;
use fairlead_testkit::{Cluster, Registry, RegistryConfig, eventually};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::PostParams;
use serde_json::json;

use super::rig::{Rig, SOON, create, digest_asked_by, mirror_of, ready, requests, shared, wait_for_status};

const IMAGES: usize = 150;
/// Images of one Pod.
const TOGETHER: usize = 5;
/// Copies that may be under way at one registry.
const UNDER_WAY: usize = 4;
const AT_ONCE: usize = 8;
/// Time for the copies to a mirror that is well, whatever becomes of others.
const AT_MOST: Duration = Duration::from_secs(30);

/// Registries are asked at a pace that lets a copy of everything take some seconds.
const CONFIG: &str = "registries:\n  default: {requestsPerSecond: 150, burst: 50}\n";

fn repository(number: usize) -> String {
    format!("team/app-{number:03}")
}

/// Images that share nothing, and their digests.
async fn fill(registry: &Registry, count: usize) -> Result<Vec<String>> {
    stream::iter(0..count)
        .map(|number| async move {
            let image = holding(&format!("this is number {number}"))?;
            registry.endpoint().push(&repository(number), "1", &image).await
        })
        .buffered(AT_ONCE)
        .try_collect()
        .await
}

async fn use_all(rig: &Rig, host: &str, count: usize) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(rig.client().await?, &rig.namespace().await?);
    stream::iter((0..count).step_by(TOGETHER))
        .map(|first| {
            let containers: Vec<_> = (first..first + TOGETHER)
                .map(|number| json!({"name": format!("c{number}"), "image": format!("{host}/{}:1", repository(number))}))
                .collect();
            let pod = json!({"metadata": {"generateName": "many-"}, "spec": {"containers": containers}});
            let pods = &pods;
            async move { Ok(pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?) }
        })
        .buffer_unordered(AT_ONCE)
        .try_for_each(|_| async { Ok(()) })
        .await
}

/// How often each manifest was written to a registry.
fn published(registry: &Registry) -> Result<BTreeMap<String, usize>> {
    let mut published = BTreeMap::new();
    for access in requests(registry)? {
        if access.method == "PUT" && access.path.contains("/manifests/") && access.status == 201 {
            *published.entry(access.path).or_default() += 1;
        }
    }
    Ok(published)
}

/// Writes about mirrors that the API server has taken from the operator.
fn api_writes(cluster: &Cluster) -> Result<usize> {
    let user = format!("system:serviceaccount:{DEFAULT_NAMESPACE}:fairlead");
    let writes = cluster.audit_events()?.into_iter().filter(|event| {
        event.user == user
            && ["create", "update", "patch", "delete"].contains(&&*event.verb)
            && (event.resource == "imageledgers"
                || (event.resource == "clusterimagesetmirrors" && event.subresource == "status"))
    });
    Ok(writes.count())
}

/// Copies everything to a mirror that is well beside one that is not.
async fn beside(troubled: &str) -> Result<()> {
    const FEW: usize = 30;
    let rig = shared().await?;
    let [source, healthy] = rig.registries().await?;
    fill(&source, FEW).await?;
    use_all(rig, &source.host(), FEW).await?;
    let mirrors = json!([{"registry": troubled}, {"registry": healthy.host()}]);
    let begun = Instant::now();
    create(rig, &mirror_of(&source, &mirrors, &json!({}))).await?;
    eventually(SOON, || async {
        let published = published(&healthy)?.len();
        ensure!(published == FEW, "{published} copied: {}", rig.operator.0.process.log_tail());
        Ok(())
    })
    .await?;
    let took = begun.elapsed();
    ensure!(took < AT_MOST, "the healthy mirror was held up for {took:?}");
    Ok(())
}

#[tokio::test]
async fn a_mirror_that_never_answers_holds_no_other_up() -> Result<()> {
    let hanging = Registry::start(RegistryConfig::new()).await?;
    hanging.pause().await?;
    beside(&hanging.host()).await
}

#[tokio::test]
async fn a_mirror_without_quota_holds_no_other_up() -> Result<()> {
    let limited = FakeRegistry::start().await?;
    let no_quota = Fault::status(429).and(Effect::Header("retry-after", "3600".to_owned()));
    // In the middle of copies: what they have sent so far was taken.
    limited.inject(no_quota.on(Route::Uploads).after(4));
    beside(&limited.host()).await
}

#[tokio::test]
async fn two_mirrors_in_trouble_and_a_killed_leader_cost_nothing_but_time() -> Result<()> {
    let mut rig = Rig::install_with(Cluster::builder().audit(true).start().await?, CONFIG).await?;
    let [source, healthy, hanging] = rig.registries().await?;
    let limited = FakeRegistry::start().await?;
    let digests = fill(&source, IMAGES).await?;
    use_all(&rig, &source.host(), IMAGES).await?;
    let standby = rig.start_operator().await?;
    standby.0.wait_to_say("standing by", SOON).await?;

    // The first copies to the limited one get through; those after them meet its quota wherever they are.
    hanging.pause().await?;
    let no_quota = Fault::status(429).and(Effect::Header("retry-after", "5".to_owned())).after(40);
    limited.inject(no_quota);
    let mirrors = json!([
        {"registry": hanging.host()}, {"registry": limited.host()}, {"registry": healthy.host()},
    ]);
    let mirror = mirror_of(&source, &mirrors, &json!({}));
    let begun = Instant::now();
    create(&rig, &mirror).await?;
    eventually(SOON, || async {
        let published = published(&healthy)?.len();
        ensure!(published >= 10, "{published} copied: {}", rig.operator.0.process.log_tail());
        Ok(())
    })
    .await?;
    let killed = std::mem::replace(&mut rig.operator, standby);
    killed.0.process.kill().await?;
    let before = published(&healthy)?.len();
    ensure!(before < IMAGES, "everything was copied before the crash, which proves nothing");

    // What is well is complete soon, whatever the others do.
    rig.operator.0.wait_to_lead(SOON).await?;
    let leading = Instant::now();
    eventually(SOON, || async {
        let published = published(&healthy)?.len();
        ensure!(published == IMAGES, "{published} copied: {}", rig.operator.0.process.log_tail());
        Ok(())
    })
    .await?;
    let took = leading.elapsed();
    println!("{before} copies before the crash, the rest within {took:?} of the new term");
    ensure!(took < AT_MOST, "the healthy mirror was held up for {took:?}");
    let status =
        wait_for_status(&rig, &mirror, |status| status["mirroredCount"].as_u64() >= Some(IMAGES as u64))
            .await?;
    let ready_now = ready(&status);
    ensure!(ready_now["status"] == "False" && ready_now["reason"] == "Degraded", "{ready_now}");

    // Back again, both get everything.
    limited.heal();
    hanging.resume().await?;
    let status = wait_for_status(&rig, &mirror, |status| {
        status["mirroredCount"] == 3 * IMAGES && status["failedCount"] == 0
    })
    .await?;
    println!("everything is in place {:?} after the creation of the object", begun.elapsed());
    ensure!(status["imageCount"] == IMAGES && ready(&status)["status"] == "True", "{}", ready(&status));
    let client = source.endpoint().http()?;
    for (number, digest) in digests.iter().enumerate() {
        let repository = repository(number);
        for registry in [&healthy, &hanging] {
            let found = digest_asked_by(&client, registry, &repository, "1").await?;
            ensure!(found.as_ref() == Some(digest), "{repository} at {}: {found:?}", registry.host());
        }
        let found = limited.digest_of(&repository, "1");
        ensure!(found.as_ref() == Some(digest), "{repository} at the limited one: {found:?}");
    }

    // Copies under way at the crash may have been published without a record of it; nothing else is sent twice.
    for registry in [&healthy, &hanging] {
        let published = published(registry)?;
        let times: usize = published.values().sum();
        ensure!(published.len() == IMAGES, "{} manifests", published.len());
        ensure!(times <= IMAGES + UNDER_WAY, "{times} writes of {IMAGES} manifests at {}", registry.host());
    }
    let accepted = limited.count("PUT", "/manifests/");
    ensure!(accepted <= IMAGES + 3 * UNDER_WAY, "{accepted} writes of {IMAGES} manifests at the limited one");
    let (writes, seconds) = (api_writes(&rig.cluster)?, begun.elapsed().as_secs());
    println!("{writes} writes of ledgers and statuses within {seconds} s");
    let allowed = usize::try_from(seconds)? + 4;
    ensure!(writes <= allowed, "{writes} writes of ledgers and statuses within {seconds} s");
    let requests = healthy.accesses()?.len();
    println!("{requests} requests at the healthy mirror for {IMAGES} images");
    ensure!(requests <= 12 * IMAGES, "{requests} requests for {IMAGES} images");
    killed.0.process.ending().context("the killed one is gone")?;
    Ok(())
}
