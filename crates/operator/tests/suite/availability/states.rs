//! What is found, where it is reported, and that it is reported once.

use anyhow::{Context, Result, bail, ensure};
use fairlead_api::{conditions::ConditionStatus, kuik::Availability};
use fairlead_domain::{cause::Cause, reference::Reference, verdict::Verdict};
use fairlead_operator::registries::verdicts::KnownVerdict;
use fairlead_testkit::{Registry, RegistryConfig, eventually, images::holding};
use kube::ResourceExt;
use reqwest::Method;
use serde_json::json;

use super::bench::{Bench, Replica, SOON};

/// Fast enough for a test.
const CONFIG: &str = "monitoring: {registries: {default: {interval: 10s, maxPerInterval: 50}}}";

async fn delete(registry: &Registry, repository: &str, digest: &str) -> Result<()> {
    let endpoint = registry.endpoint();
    let path = format!("/v2/{repository}/manifests/{digest}");
    let answer = endpoint.request(&endpoint.http()?, Method::DELETE, &path).send().await?;
    ensure!(answer.status().is_success(), "{}", answer.status());
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_image_that_disappears_is_told_once_where_people_look() -> Result<()> {
    let bench = Bench::new().await?;
    let registry = Registry::start(RegistryConfig::new().delete()).await?;
    let host = registry.host();
    let named = |name: &str| format!("{host}/{name}:1");
    let web = registry.endpoint().push("web", "1", &holding("web")?).await?;
    registry.endpoint().push("side", "1", &holding("side")?).await?;
    let (one, two) = (bench.namespace("one").await?, bench.namespace("two").await?);
    bench.pod(&one, "web-0", &[named("web")], &[]).await?;
    bench.pod(&one, "web-1", &[named("web")], &[]).await?;
    // An image volume is an image like any other.
    bench.mounting_pod(&two, "web", &named("side"), &named("web")).await?;
    bench.watch("all", &json!({"filter": {"include": [{"image": format!("{host}/.*")}]}})).await?;
    let first = Replica::start(&bench, "first", CONFIG).await?;

    for name in ["web", "side"] {
        let found = bench.wait_for("all", &named(name), Availability::Available).await?;
        ensure!(found.original && found.unused_since.is_none() && found.last_monitor.is_some(), "{found:?}");
    }
    let status = eventually(SOON, || async {
        let status = bench.status("all").await?;
        let ready = status.conditions.iter().find(|one| one.type_ == "Ready").context("no condition")?;
        ensure!(ready.status == ConditionStatus::True, "{ready:?}");
        Ok(status)
    })
    .await?;
    ensure!(
        (status.image_count, status.available_count, status.unavailable_count) == (Some(2), Some(2), Some(0))
    );
    ensure!(status.observed_generation == Some(1), "{status:?}");
    ensure!(bench.events().await?.is_empty(), "nothing happened yet");
    // Admission knows without asking for the image.
    let known = first.verdicts.caused_by(Cause::Tenant).known(&Reference::parse(&named("web"))?, &[]);
    let (KnownVerdict::Verdict(verdict) | KnownVerdict::Unproven(verdict)) = &known else {
        bail!("nothing is known")
    };
    ensure!(matches!(verdict, Verdict::Available { digest: Some(_) }), "{verdict:?}");

    delete(&registry, "web", &web).await?;
    bench.wait_for("all", &named("web"), Availability::NotFound).await?;
    let status = bench.status("all").await?;
    ensure!(status.images[0].image == named("web"), "what is missing comes first: {status:?}");
    let disappeared = || "ImageDisappeared".to_owned();
    let object = || "ClusterImageSetAvailability/all".to_owned();
    let mut told = vec![
        ("default".to_owned(), object(), disappeared()),
        (one.clone(), "Pod/web-0".to_owned(), disappeared()),
        (two.clone(), "Pod/web".to_owned(), disappeared()),
    ];
    told.sort();
    eventually(SOON, || async {
        let events = bench.events().await?;
        ensure!(events == told, "{events:?}");
        Ok(())
    })
    .await?;
    // However suddenly the first ends, the next leader goes on where it stopped: it looks, and repeats nothing.
    first.kill();
    let second = Replica::start(&bench, "second", CONFIG).await?;
    eventually(SOON, || async {
        let looks = second.metric("fairlead_watch_looks_total")?;
        ensure!(looks >= 6.0, "{looks} looks");
        Ok(())
    })
    .await?;
    let events = bench.events().await?;
    ensure!(events == told, "{events:?}");
    ensure!(bench.ledgers().await?.len() == 1, "one ledger is enough for two images");
    let line = format!(
        "kube_image_keeper_monitoring_images{{name=\"all\",registry=\"{host}\",status=\"NotFound\",used=\"true\",original=\"true\"}} 1"
    );
    eventually(SOON, || async {
        let page = second.page()?;
        ensure!(page.contains(&line), "{page}");
        ensure!(page.contains("fairlead_watch_disappeared_images{name=\"all\"} 1"), "{page}");
        let ages = format!(
            "kube_image_keeper_monitoring_image_last_monitor_age_minutes_count{{name=\"all\",registry=\"{host}\"}} 2"
        );
        ensure!(page.contains(&ages), "{page}");
        ensure!(page.contains(&format!("fairlead_watch_lap_seconds{{registry=\"{host}\"}} 0.4")), "{page}");
        Ok(())
    })
    .await?;

    registry.endpoint().push("web", "1", &holding("web")?).await?;
    bench.wait_for("all", &named("web"), Availability::Available).await?;
    eventually(SOON, || async {
        let returned = bench.events().await?.into_iter().filter(|(_, _, reason)| reason == "ImageReturned");
        let count = returned.count();
        ensure!(count == 3, "{count} events");
        Ok(())
    })
    .await?;
    second.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_filter_that_makes_no_sense_changes_nothing_but_the_condition() -> Result<()> {
    let bench = Bench::new().await?;
    let registry = Registry::start(RegistryConfig::new()).await?;
    let named = format!("{}/web:1", registry.host());
    registry.endpoint().push("web", "1", &holding("web")?).await?;
    let namespace = bench.namespace("one").await?;
    bench.pod(&namespace, "web", std::slice::from_ref(&named), &[]).await?;
    let filter = |pattern: &str| json!({"filter": {"include": [{"image": pattern}]}});
    let broken = json!({"filter": {"include": [{"image": ".*/web:.*"}, {"label": "tier in (a"}]}});
    bench.watch("all", &filter(".*/web:.*")).await?;
    let replica = Replica::start(&bench, "only", CONFIG).await?;
    bench.wait_for("all", &named, Availability::Available).await?;

    // Stored before there were rules.
    bench.define(true).await?;
    bench.change_raw("all", &broken).await?;
    bench.define(false).await?;
    let wait_for_reason = async |reason: &str| {
        eventually(SOON, || async {
            let object = bench.raw("all").await?;
            let conditions = object["status"]["conditions"].as_array().context("no conditions")?;
            let ready = conditions.iter().find(|one| one["type"] == "Ready").context("no condition")?;
            ensure!(ready["reason"] == reason, "{ready}");
            ensure!(ready["observedGeneration"] == object["metadata"]["generation"], "{ready}");
            let listed = &object["status"]["images"];
            ensure!(listed.as_array().is_some_and(|all| all.len() == 1), "{listed}");
            ensure!(listed[0]["image"] == named.as_str() && listed[0]["status"] == "Available", "{listed}");
            Ok(())
        })
        .await
    };
    wait_for_reason("InvalidFilter").await?;
    ensure!(bench.ledger_entries().await?.len() == 1);

    // So does one that cannot even be read.
    bench.define(true).await?;
    bench
        .change_raw("all", &json!({"unusedImageExpiry": "a week", "filter": filter(".*/web:.*")["filter"]}))
        .await?;
    bench.define(false).await?;
    wait_for_reason("InvalidSpec").await?;
    ensure!(bench.ledger_entries().await?.len() == 1);

    // Out of the filter is out of sight, without an expiry, too.
    bench
        .change_raw("all", &json!({"unusedImageExpiry": null, "filter": filter(".*/other:.*")["filter"]}))
        .await?;
    eventually(SOON, || async {
        let status = bench.status("all").await?;
        ensure!(status.image_count == Some(0) && status.images.is_empty(), "{status:?}");
        ensure!(bench.ledgers().await?.is_empty(), "the ledger is empty and not deleted");
        Ok(())
    })
    .await?;
    let object = bench.objects().get("all").await?;
    ensure!(object.managed_fields().iter().any(|one| one.manager.as_deref() == Some("fairlead-watch")));
    replica.stop().await
}
