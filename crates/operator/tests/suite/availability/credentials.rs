//! With whose credentials registries are asked.

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use fairlead_api::kuik::Availability;
use fairlead_domain::reference::Reference;
use fairlead_domain::verdict::Verdict;
use fairlead_plan::availability::{LookAccess, MirrorLook, MirrorLooks};
use fairlead_plan::credentials::Principal;
use fairlead_testkit::fake_registry::{Auth, FakeRegistry};
use fairlead_testkit::images::holding;
use fairlead_testkit::{Registry, RegistryConfig};
use jiff::Timestamp;
use serde_json::json;

use super::bench::{Bench, Replica, SOON};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_secrets_of_pods_come_first_and_the_fallback_last() -> Result<()> {
    let bench = Bench::new().await?;
    let registry = Registry::start(RegistryConfig::new().user("pod", "pa55")).await?;
    let host = registry.host();
    for name in ["mine", "shared", "late", "nobodys"] {
        registry.endpoint().push(name, "1", &holding(name)?).await?;
    }
    // One that shows who asked, and lets two in.
    let open = FakeRegistry::start().await?;
    open.require(Auth::Basic([("pod".into(), "pa55".into()), ("fallback".into(), "pa55".into())].into()));
    let guarded = open.host();
    for name in ["own", "lent", "refused"] {
        open.hold(name, "1", &holding(name)?);
    }

    let namespace = bench.namespace("team").await?;
    let other = bench.namespace("other").await?;
    bench.secret(&namespace, "good", &host, "pod", "pa55").await?;
    bench.secret(&namespace, "bad", &host, "pod", "wrong").await?;
    bench.secret(&namespace, "elsewhere", "registry.example", "pod", "pa55").await?;
    bench.secret(&namespace, "guarded", &guarded, "pod", "pa55").await?;
    bench.secret(&namespace, "stale", &guarded, "pod", "wrong").await?;
    bench.secret(&other, "good", &host, "pod", "pa55").await?;
    bench.secret(&bench.own_namespace, "reader", &guarded, "fallback", "pa55").await?;

    let at = |host: &str, name: &str| vec![format!("{host}/{name}:1")];
    bench.pod(&namespace, "mine", &at(&host, "mine"), &["elsewhere", "good"]).await?;
    // The first Pod's secret is refused, the second one's is not.
    bench.pod(&namespace, "shared", &at(&host, "shared"), &["bad"]).await?;
    bench.pod(&other, "shared", &at(&host, "shared"), &["good"]).await?;
    bench.pod(&namespace, "late", &at(&host, "late"), &["not-there-yet"]).await?;
    bench.pod(&namespace, "nobodys", &at(&host, "nobodys"), &[]).await?;
    bench.pod(&namespace, "own", &at(&guarded, "own"), &["guarded"]).await?;
    // A secret for another registry does not stand in the way of the fallback, and neither does one that is refused.
    bench.pod(&namespace, "lent", &at(&guarded, "lent"), &["elsewhere"]).await?;
    bench.pod(&namespace, "refused", &at(&guarded, "refused"), &["stale"]).await?;
    bench
        .watch("all", &json!({"filter": {"include": [{"namespace": format!("{namespace}|{other}")}]}}))
        .await?;
    let config = format!(
        "monitoring:
  registries:
    default: {{interval: 10s, maxPerInterval: 20}}
    items:
      '{guarded}': {{fallbackCredentialSecret: {{namespace: {}, name: reader}}}}",
        bench.own_namespace
    );
    let replica = Replica::start(&bench, "only", &config).await?;

    for name in ["mine", "shared"] {
        bench.wait_for("all", &format!("{host}/{name}:1"), Availability::Available).await?;
    }
    for name in ["own", "lent", "refused"] {
        bench.wait_for("all", &format!("{guarded}/{name}:1"), Availability::Available).await?;
    }
    bench.wait_for("all", &format!("{host}/nobodys:1"), Availability::InvalidAuth).await?;
    let late = format!("{host}/late:1");
    let found = bench.wait_for("all", &late, Availability::UnavailableSecret).await?;
    ensure!(found.last_error.contains(&format!("{namespace}/not-there-yet does not exist")), "{found:?}");
    bench.secret(&namespace, "not-there-yet", &host, "pod", "pa55").await?;
    let found = bench.wait_for("all", &late, Availability::Available).await?;
    ensure!(found.last_error.is_empty(), "{found:?}");

    let asked_as = |user: &str, password: &str, name: &str| {
        let header = format!("Basic {}", BASE64_STANDARD.encode(format!("{user}:{password}")));
        let path = format!("/v2/{name}/manifests/1");
        open.requests().iter().any(|one| one.path == path && one.header("authorization") == header)
    };
    ensure!(asked_as("pod", "pa55", "own") && !asked_as("fallback", "pa55", "own"));
    ensure!(asked_as("fallback", "pa55", "lent"));
    ensure!(asked_as("pod", "wrong", "refused") && asked_as("fallback", "pa55", "refused"));
    ensure!(bench.events().await?.is_empty(), "nothing disappeared");
    replica.stop().await
}

/// Pods of many namespaces use an image: most have no pull secret, one for another registry, or a wrong one; the last
/// has the right one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_login_is_found_however_many_namespaces_have_none() -> Result<()> {
    let bench = Bench::new().await?;
    let registry = Registry::start(RegistryConfig::new().user("pod", "pa55")).await?;
    let host = registry.host();
    registry.endpoint().push("shared", "1", &holding("shared")?).await?;
    let image = vec![format!("{host}/shared:1")];
    let mut namespaces = Vec::new();
    for _ in 0..19 {
        namespaces.push(bench.namespace("many").await?);
    }
    namespaces.sort();
    for (number, namespace) in namespaces.iter().enumerate() {
        match number {
            0..9 => {}
            9..14 => bench.secret(namespace, "pull", "registry.example", "pod", "pa55").await?,
            14..18 => bench.secret(namespace, "pull", &host, "pod", "wrong").await?,
            _ => bench.secret(namespace, "pull", &host, "pod", "pa55").await?,
        }
        let secrets: &[&str] = if number < 9 { &[] } else { &["pull"] };
        bench.pod(namespace, "user", &image, secrets).await?;
    }
    bench.watch("all", &json!({"filter": {"include": [{"image": format!("{host}/.*")}]}})).await?;
    let config = "monitoring: {registries: {default: {interval: 10s, maxPerInterval: 20}}}";
    let replica = Replica::start(&bench, "only", config).await?;
    bench.wait_for("all", &image[0], Availability::Available).await?;
    replica.stop().await
}

/// A namespaced mirror and a cluster-scoped one want the same private image looked at. The configuration's login opens
/// it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_fallback_opens_is_told_to_cluster_scoped_mirrors_only() -> Result<()> {
    let bench = Bench::new().await?;
    let registry = FakeRegistry::start().await?;
    registry.require(Auth::basic("fallback", "pa55"));
    let image = Reference::parse(&format!("{}/private:1", registry.host()))?;
    registry.hold("private", "1", &holding("private")?);
    bench.secret(&bench.own_namespace, "reader", &registry.host(), "fallback", "pa55").await?;
    let config = format!(
        "monitoring: {{registries: {{default: {{interval: 1s, maxPerInterval: 10,
          fallbackCredentialSecret: {{namespace: {}, name: reader}}}}}}}}",
        bench.own_namespace
    );
    let mut replica = Replica::start(&bench, "only", &config).await?;
    let tenant = Principal::Namespace("team".into());
    let look = |principal: &Principal| MirrorLook {
        reference: image.clone(),
        last: Timestamp::UNIX_EPOCH,
        holders: Arc::default(),
        access: Arc::new(LookAccess { principal: principal.clone(), secret: None, cause: principal.cause() }),
    };
    let looks = [&tenant, &Principal::Cluster].map(look).to_vec();
    replica.mirrors.send_replace(Arc::new(MirrorLooks::new(looks)));
    for expected in [(Principal::Cluster, true), (tenant, false)] {
        let seen = tokio::time::timeout(SOON, replica.seen.recv()).await?.context("the channel is open")?;
        let available = matches!(seen.verdict, Verdict::Available { .. });
        ensure!((seen.principal.clone(), available) == expected, "{seen:?}");
    }
    replica.stop().await
}
