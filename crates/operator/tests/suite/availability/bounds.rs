//! Many images, images that no Pod uses any more, and what kube-image-keeper left behind.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use fairlead_api::kuik::Availability;
use fairlead_testkit::eventually;
use fairlead_testkit::fake_registry::FakeRegistry;
use fairlead_testkit::images::holding;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::bench::{Bench, Replica, SOON};

const IMAGES: usize = 150;
const CONFIG: &str = "
monitoring: {registries: {default: {interval: 10s, maxPerInterval: 1000}}}
registries:
  default: {requestsPerSecond: 1000}
";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_status_stays_short_and_the_ledger_has_the_rest() -> Result<()> {
    let bench = Bench::new().await?;
    let registry = FakeRegistry::start().await?;
    let host = registry.host();
    let there = holding("there")?;
    let mut images = Vec::new();
    for number in 0..IMAGES {
        // The last in order of names is missing.
        if number + 1 < IMAGES {
            registry.hold(&format!("app-{number:03}"), "1", &there);
        }
        images.push(format!("{host}/app-{number:03}:1"));
    }
    let missing = images.last().cloned().unwrap_or_default();
    let namespace = bench.namespace("team").await?;
    bench.pod(&namespace, "all", &images, &[]).await?;
    let spec = |expiry: &str| json!({"unusedImageExpiry": expiry, "filter": {"include": [{"image": format!("{host}/.*")}]}});
    bench.watch("all", &spec("1h")).await?;
    // What kube-image-keeper wrote: one image that is used still, one that no Pod uses, one out of the filter.
    let old = json!({"status": {"imageCount": 3, "images": [
        {"image": missing, "status": "Available", "original": true, "lastMonitor": "2026-01-01T00:00:00Z"},
        {"image": format!("{host}/old:1"), "status": "Available", "original": true,
         "lastMonitor": "2026-01-01T00:00:00Z", "unusedSince": jiff::Timestamp::now()},
        {"image": "registry.example/other:1", "status": "NotFound", "unusedSince": "2026-01-01T00:00:00Z"},
    ]}});
    let params = PatchParams { field_manager: Some("manager".to_owned()), ..PatchParams::default() };
    bench.objects().patch_status("all", &params, &Patch::Merge(old)).await?;
    let (begun, before) = (Instant::now(), bench.writes()?);
    let replica = Replica::start(&bench, "only", CONFIG).await?;

    let status = eventually(SOON, || async {
        let status = bench.status("all").await?;
        let counts = (status.image_count, status.available_count, status.unavailable_count);
        ensure!(counts == (Some(151), Some(149), Some(2)), "{counts:?}");
        Ok(status)
    })
    .await?;
    ensure!(status.images.len() == 100, "{} images are listed", status.images.len());
    ensure!(status.images[0].image == missing && status.images[0].status == Availability::NotFound);
    ensure!(
        !status.images.iter().any(|one| one.image.contains("registry.example")),
        "it is out of the filter"
    );
    eventually(SOON, || async {
        let entries = bench.ledger_entries().await?;
        ensure!(entries.len() == 151, "{} entries", entries.len());
        let looked =
            entries.iter().filter(|one| one.watch.as_ref().is_some_and(|watch| watch.last_monitor.is_some()));
        ensure!(looked.count() == 151, "not all were looked at");
        let old = entries.iter().find(|one| one.source.ends_with("/old:1"));
        ensure!(old.is_some_and(|one| one.unused_since.is_some()), "{old:?}");
        Ok(())
    })
    .await?;
    // A hundred looks a second are written down once a second, and once nothing else happens less often than that.
    let (writes, seconds) = (bench.writes()? - before, begun.elapsed().as_secs() + 1);
    ensure!(u64::try_from(writes)? <= seconds, "{writes} writes in {seconds} s");
    let (quiet, before) = (Instant::now(), bench.writes()?);
    eventually(SOON, || async {
        let writes = bench.writes()? - before;
        ensure!(writes >= 4, "{writes} writes");
        Ok(())
    })
    .await?;
    ensure!(quiet.elapsed() >= Duration::from_secs(10), "4 writes in {:?}", quiet.elapsed());
    let ledger = bench.ledgers().await?.remove(0);
    let owner = ledger.metadata.owner_references.unwrap_or_default();
    ensure!(
        owner.iter().any(|one| one.kind == "ClusterImageSetAvailability" && one.name == "all"),
        "{owner:?}"
    );
    // It was there for kube-image-keeper, and is not any more.
    let events = bench.events().await?;
    let gone = |event: &&(String, String, String)| event.1.ends_with("/all") && event.2 == "ImageDisappeared";
    ensure!(events.iter().filter(gone).count() >= 1, "{events:?}");

    // No Pod uses them any more: they are watched for as long as the object says, and no longer.
    bench.delete_pod(&namespace, "all").await?;
    eventually(SOON, || async {
        let entries = bench.ledger_entries().await?;
        ensure!(entries.iter().all(|one| one.unused_since.is_some()), "some are in use");
        ensure!(entries.len() == 151, "{} entries", entries.len());
        Ok(())
    })
    .await?;
    eventually(SOON, || async {
        let disappeared = replica.metric("fairlead_watch_disappeared_images")?;
        ensure!(disappeared.abs() < 0.5, "nobody misses what nobody uses: {disappeared}");
        Ok(())
    })
    .await?;
    bench.change("all", &spec("2s")).await?;
    eventually(SOON, || async {
        let status = bench.status("all").await?;
        ensure!(status.image_count == Some(0) && status.images.is_empty(), "{:?}", status.image_count);
        ensure!(bench.ledgers().await?.is_empty(), "a ledger without entries");
        Ok(())
    })
    .await?;
    replica.stop().await
}
