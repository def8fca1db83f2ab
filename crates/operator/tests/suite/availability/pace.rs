//! Registries are asked at their own pace, whatever the others do.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fairlead_api::kuik::Availability;
use fairlead_domain::cause::Cause;
use fairlead_domain::reference::Reference;
use fairlead_domain::verdict::Verdict;
use fairlead_plan::availability::{LookAccess, MirrorLook, MirrorLooks};
use fairlead_plan::credentials::Principal;
use fairlead_testkit::eventually;
use fairlead_testkit::fake_registry::{Effect, FakeRegistry, Fault, Route};
use fairlead_testkit::images::holding;
use jiff::Timestamp;
use serde_json::json;

use super::bench::{Bench, Replica, SOON};

const TICK: Duration = Duration::from_millis(500);

fn looks(registry: &FakeRegistry) -> usize {
    registry.requests().iter().filter(|one| one.path.contains("/manifests/")).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_registry_that_hangs_holds_up_no_other() -> Result<()> {
    let bench = Bench::new().await?;
    let (steady, stuck) = (FakeRegistry::start().await?, FakeRegistry::start().await?);
    let mut images = Vec::new();
    for number in 0..4 {
        let name = format!("app-{number}");
        steady.hold(&name, "1", &holding(&name)?);
        images.push(format!("{}/{name}:1", steady.host()));
        images.push(format!("{}/{name}:1", stuck.host()));
    }
    stuck.inject(Fault::new(Effect::Hang).on(Route::Manifests));
    let namespace = bench.namespace("team").await?;
    bench.pod(&namespace, "all", &images, &[]).await?;
    bench.watch("all", &json!({"filter": {"include": [{"namespace": namespace}]}})).await?;
    // The one that hangs has no limit of its own: 30 s are the watch's.
    let config = "monitoring: {registries: {default: {interval: 10s, maxPerInterval: 20}}}";
    let mut replica = Replica::start(&bench, "only", config).await?;

    for number in 0..4 {
        bench.wait_for("all", &format!("{}/app-{number}:1", steady.host()), Availability::Available).await?;
    }
    // From here on at the pace that was agreed on, while the other one still hangs.
    let (begun, before) = (Instant::now(), looks(&steady));
    eventually(SOON, || async {
        let made = looks(&steady) - before;
        ensure!(made >= 8, "{made} looks");
        Ok(())
    })
    .await?;
    let (made, elapsed) = (looks(&steady) - before, begun.elapsed());
    let allowed = elapsed.as_millis() / TICK.as_millis() + 1;
    ensure!(u128::try_from(made)? <= allowed, "{made} looks in {elapsed:?}");
    ensure!(stuck.peak_in_flight() <= 2, "one look, and perhaps one of the client's own trials");

    // A mirror's images are looked at between the others, and its controller gets the results.
    steady.hold("copy", "1", &holding("copy")?);
    let copy = Reference::parse(&format!("{}/copy:1", steady.host()))?;
    let lost = Reference::parse(&format!("{}/lost:1", steady.host()))?;
    let look = |reference: &Reference| MirrorLook {
        reference: reference.clone(),
        last: Timestamp::UNIX_EPOCH,
        holders: Arc::default(),
        access: Arc::new(LookAccess {
            principal: Principal::Cluster,
            secret: None,
            cause: Cause::Administrator,
        }),
    };
    replica.mirrors.send_replace(Arc::new(MirrorLooks::new(vec![look(&copy), look(&lost)])));
    let mut seen = Vec::new();
    while seen.len() < 2 {
        seen.push(tokio::time::timeout(SOON, replica.seen.recv()).await?.context("the watch ended")?);
    }
    seen.sort_by(|one, other| one.reference.cmp(&other.reference));
    ensure!(seen[0].reference == copy && matches!(seen[0].verdict, Verdict::Available { .. }), "{seen:?}");
    ensure!(seen[1].reference == lost && matches!(seen[1].verdict, Verdict::NotFound { .. }), "{seen:?}");
    let status = bench.status("all").await?;
    ensure!(status.image_count == Some(8), "images of mirrors are not the object's: {status:?}");

    // The one that hangs is found out in the end, although no limit is configured.
    let late = format!("{}/app-0:1", stuck.host());
    let found = bench.wait_for("all", &late, Availability::Unreachable).await?;
    ensure!(!found.last_error.is_empty(), "{found:?}");
    ensure!(bench.events().await?.is_empty(), "what cannot be asked for has not disappeared");
    replica.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_registry_that_wants_to_be_left_alone_is_left_alone() -> Result<()> {
    let bench = Bench::new().await?;
    let (steady, limited) = (FakeRegistry::start().await?, FakeRegistry::start().await?);
    let mut images = Vec::new();
    for number in 0..3 {
        let name = format!("app-{number}");
        steady.hold(&name, "1", &holding(&name)?);
        images.push(format!("{}/{name}:1", steady.host()));
        images.push(format!("{}/{name}:1", limited.host()));
    }
    let refusal = Fault::status(429).and(Effect::Header("retry-after", "3600".to_owned()));
    limited.inject(refusal.on(Route::Manifests));
    let namespace = bench.namespace("team").await?;
    bench.pod(&namespace, "all", &images, &[]).await?;
    bench.watch("all", &json!({"filter": {"include": [{"namespace": namespace}]}})).await?;
    let config = "monitoring: {registries: {default: {interval: 5s, maxPerInterval: 50}}}";
    let replica = Replica::start(&bench, "only", config).await?;
    let first = format!("{}/app-0:1", limited.host());
    let found = bench.wait_for("all", &first, Availability::QuotaExceeded).await?;
    ensure!(!found.last_error.is_empty(), "{found:?}");
    let (asked, before) = (looks(&limited), looks(&steady));
    eventually(SOON, || async {
        let made = looks(&steady) - before;
        ensure!(made >= 20, "{made} looks");
        Ok(())
    })
    .await?;
    ensure!(looks(&limited) == asked, "asked {} times more", looks(&limited) - asked);
    for number in 1..3 {
        bench.wait_for("all", &format!("{}/app-{number}:1", limited.host()), Availability::Scheduled).await?;
    }
    ensure!(bench.events().await?.is_empty(), "what may not be asked for has not disappeared");
    replica.stop().await
}
