//! Discovery on a real API server: policies ask a real Prometheus, real registries and a double of Loki.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use fairlead_api::conditions::{ConditionStatus, find, types};
use fairlead_api::drop::{DiscoveryPolicy, DiscoveryPolicyStatus};
use fairlead_operator::capabilities::warm;
use fairlead_operator::capabilities::warm::discovery::{DiscoverySetup, DiscoverySync, Metrics};
use fairlead_operator::platform::config::Config;
use fairlead_testkit::images::{ImageBuilder, holding, index};
use fairlead_testkit::{Cluster, Loki, Prometheus, PrometheusConfig, Registry, RegistryConfig, eventually};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use prometheus_client::registry::Registry as Page;
use serde_json::{Value, json};

use crate::candidate::Candidate;
use crate::definitions::cluster_with_definitions;

const SOON: Duration = Duration::from_mins(1);

/// A replica that discovers, and the policies it finds.
struct Bench {
    _cluster: Cluster,
    client: Client,
    policies: Api<DiscoveryPolicy>,
    /// Where pull Pods would run.
    namespace: String,
    page: Page,
    replica: Candidate,
}

impl Bench {
    async fn start() -> Result<Self> {
        let (cluster, client) = cluster_with_definitions(Cluster::builder()).await?;
        let (own, namespace) = (cluster.namespace("operator").await?, cluster.namespace("pulls").await?);
        let mut replica = Candidate::start(&client, &own, "one");
        let config = Config::parse(&format!("warm: {{namespace: {namespace}}}"))?.config;
        let mut page = Page::default();
        let (context, _) = replica.context(config, &mut Page::default());
        let metrics = Metrics::register(&mut page);
        let warming = warm::Metrics::register(&mut page);
        replica.control::<DiscoverySync>(Arc::new(DiscoverySetup::new(Arc::new(context), metrics, warming)));
        let policies = Api::all(client.clone());
        Ok(Self { _cluster: cluster, client, policies, namespace, page, replica })
    }

    async fn secret(&self, name: &str, data: Value) -> Result<()> {
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let secret = json!({"metadata": {"name": name}, "stringData": data});
        secrets.create(&PostParams::default(), &serde_json::from_value(secret)?).await?;
        Ok(())
    }

    async fn create(&self, name: &str, spec: Value) -> Result<()> {
        let policy = json!({
            "apiVersion": "drop.corewire.io/v1alpha1", "kind": "DiscoveryPolicy", "metadata": {"name": name},
            "spec": spec,
        });
        self.policies.create(&PostParams::default(), &serde_json::from_value(policy)?).await?;
        Ok(())
    }

    async fn edit(&self, name: &str, spec: Value) -> Result<()> {
        let patch = Patch::Merge(json!({"spec": spec}));
        self.policies.patch(name, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// Waits until the policy was looked at as it is now, and its condition has this reason.
    async fn status(&self, name: &str, reason: &str) -> Result<DiscoveryPolicyStatus> {
        eventually(SOON, || async {
            let policy = self.policies.get(name).await?;
            let status = policy.status.context("no status yet")?;
            let ready = find(&status.conditions, types::READY).context("no condition yet")?;
            let current = ready.observed_generation == policy.metadata.generation;
            ensure!(current && ready.reason == reason, "{ready:?}");
            Ok(status)
        })
        .await
    }

    fn metrics(&self) -> Result<String> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.page)?;
        Ok(text)
    }
}

fn images(status: &DiscoveryPolicyStatus) -> Vec<&str> {
    status.discovered_images.iter().map(|one| one.image.as_str()).collect()
}

fn is_ready(status: &DiscoveryPolicyStatus) -> bool {
    find(&status.conditions, types::READY).is_some_and(|one| one.status == ConditionStatus::True)
}

/// Two hours of values, one a minute, up to now.
fn minutes(value: impl Fn(i64) -> f64) -> Vec<(i64, f64)> {
    let now = Timestamp::now().as_second();
    (0..120).rev().map(|ago| (now - 60 * ago, value(ago))).collect()
}

/// As samples of Drop have it: more than one answer may hold.
async fn a_week_by_the_minute(bench: &Bench, prometheus: &Prometheus) -> Result<()> {
    let week = json!({"endpoint": prometheus.url(), "query": "running", "queryType": "range", "lookback": "168h",
        "step": "1m", "aggregationMethod": "max"});
    let week = json!({"type": "prometheus", "secretRef": {"name": "access"}, "prometheus": week});
    bench.create("week", json!({"sources": [week]})).await?;
    let status = bench.status("week", "Synced").await?;
    let scores: Vec<_> = status.discovered_images.iter().map(|one| one.score).collect();
    assert_eq!(scores, [Some(9), Some(7), Some(3)]);
    Ok(())
}

/// What an end of the connection is called depends on who is faster.
async fn is_refused_without_a_certificate(bench: &Bench) -> Result<()> {
    eventually(SOON, || async {
        let policy = bench.policies.get("usage").await?;
        let status = policy.status.context("no status yet")?;
        let ready = find(&status.conditions, types::READY).context("no condition yet")?;
        let of_edit = ready.observed_generation == policy.metadata.generation;
        ensure!(of_edit && ready.status == ConditionStatus::False, "{ready:?}");
        ensure!(["TLSError", "SyncFailed"].contains(&ready.reason.as_str()), "{ready:?}");
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_real_prometheus_is_asked_with_password_and_certificate() -> Result<()> {
    let bench = Bench::start().await?;
    let samples = PrometheusConfig::new()
        .series(r#"running{image="r.example/often:1",node="a"}"#, minutes(|_| 2.0))
        .series(r#"running{image="r.example/often:1",node="b"}"#, minutes(|_| 3.0))
        .series(
            r#"running{image="r.example/lately:1",node="a"}"#,
            minutes(|ago| if ago < 30 { 9.0 } else { 0.0 }),
        )
        .series(
            r#"running{image="r.example/before:1",node="a"}"#,
            minutes(|ago| if ago > 60 { 7.0 } else { 0.0 }),
        )
        .series(r#"running{pod="no-image"}"#, minutes(|_| 99.0));
    let samples = samples.client_certificates().user("reader", "pa55").prefix("/base");
    let prometheus = Prometheus::start(samples).await?;
    let ca = prometheus.authority().context("it speaks TLS")?;
    let client = prometheus.client().context("it wants certificates")?;
    let access = json!({
        "username": "reader", "password": "pa55", "ca.crt": ca, "tls.crt": client.certificate, "tls.key": client.key,
    });
    bench.secret("access", access.clone()).await?;
    let query = json!({
        "name": "running", "type": "prometheus", "secretRef": {"name": "access"},
        "prometheus": {
            "endpoint": format!("{}?source=discovery", prometheus.url()), "query": "running", "lookback": "2h", "step": "1m",
        },
    });
    let window = |name: &str, method: &str| {
        json!({"name": name, "query": "running", "type": "windowAggregate", "windowAggregate": {
            "method": method, "relativeWindow": "20m",
        }})
    };
    bench
        .create(
            "usage",
            json!({
                "queries": [query], "signals": [window("recent", "avg")],
                "ranking": {"strategy": "signal", "signal": "recent"},
            }),
        )
        .await?;
    let status = bench.status("usage", "Synced").await?;
    assert_eq!(images(&status), ["r.example/lately:1", "r.example/often:1", "r.example/before:1"]);
    let scores: Vec<_> = status.discovered_images.iter().map(|one| one.final_score.as_deref()).collect();
    assert_eq!(scores, [Some("9"), Some("5"), Some("0")], "the series of one image add up");
    let message = status.query_results[0].message.as_deref().unwrap_or_default();
    assert!(message.contains("1 series without the name of an image"), "{message}");
    let page = bench.metrics()?;
    for line in [
        r#"drop_discovery_source_health{policy="usage",source_type="prometheus",endpoint="running"} 1"#,
        r#"drop_discovery_images_found{policy="usage",source_type="prometheus"} 3"#,
        r#"drop_discovery_source_latency_seconds_count{policy="usage",source_type="prometheus"} 1"#,
    ] {
        assert!(page.contains(line), "{line} is not in\n{page}");
    }

    // An edit acts at once, although the interval is half an hour.
    bench.edit("usage", json!({"maxImages": 1, "imageFilter": "often|before"})).await?;
    assert_eq!(images(&bench.status("usage", "Synced").await?), ["r.example/often:1"]);

    a_week_by_the_minute(&bench, &prometheus).await?;
    let secrets: [(&str, &[&str]); 3] =
        [("wrong", &["password"]), ("blind", &["ca.crt"]), ("nameless", &["tls.crt", "tls.key"])];
    for (secret, left_out) in secrets {
        let mut less = access.as_object().context("keys")?.clone();
        less.retain(|key, _| !left_out.contains(&key.as_str()));
        less.entry("password").or_insert("guess".into());
        bench.secret(secret, less.into()).await?;
    }
    let mut queries = json!([query]);
    for (secret, reason) in
        [("wrong", "Unauthorized"), ("blind", "TLSError"), ("missing", "SecretUnavailable")]
    {
        queries[0]["secretRef"]["name"] = secret.into();
        bench.edit("usage", json!({"queries": queries})).await?;
        let status = bench.status("usage", reason).await?;
        assert_eq!(
            (images(&status), is_ready(&status)),
            (vec!["r.example/often:1"], false),
            "the list stays"
        );
    }
    queries[0]["secretRef"]["name"] = "nameless".into();
    bench.edit("usage", json!({"queries": queries})).await?;
    is_refused_without_a_certificate(&bench).await?;
    prometheus.kill().await?;
    queries[0]["secretRef"]["name"] = "access".into();
    bench.edit("usage", json!({"queries": queries})).await?;
    let status = bench.status("usage", "ConnectionRefused").await?;
    assert_eq!(images(&status), ["r.example/often:1"]);
    let health =
        r#"drop_discovery_source_health{policy="usage",source_type="prometheus",endpoint="running"} 0"#;
    assert!(bench.metrics()?.contains(health));

    // It is asked again without an edit, and then the list is that of the whole specification.
    prometheus.start_again().await?;
    assert_eq!(images(&bench.status("usage", "Synced").await?), ["r.example/often:1"]);
    bench.policies.delete("usage", &DeleteParams::default()).await?;
    eventually(SOON, || async {
        ensure!(!bench.metrics()?.contains("policy=\"usage\""), "a policy that is gone has no metrics");
        Ok(())
    })
    .await?;
    bench.replica.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sources_are_merged_and_one_that_fails_keeps_its_images() -> Result<()> {
    let bench = Bench::start().await?;
    let registry = Registry::start(RegistryConfig::new().user("reader", "pa55").tls()).await?;
    for tag in ["v1.9.0", "v1.10.0", "v1.2.0", "latest"] {
        registry.endpoint().push("team/app", tag, &holding(tag)?).await?;
    }
    let ca = registry.endpoint().authority.clone().context("it speaks TLS")?;
    bench.secret("registry", json!({"username": "reader", "password": "pa55", "ca.crt": ca})).await?;
    let samples = PrometheusConfig::new().series(r#"uses{image="r.example/used:1"}"#, minutes(|_| 40.0));
    let prometheus = Prometheus::start(samples).await?;
    let host = registry.host();
    let tags = json!({"type": "registry", "secretRef": {"name": "registry"}, "registry": {
        "url": registry.endpoint().url(), "repositories": ["team/app", "team/gone"], "topX": 2,
    }});
    let uses = json!({"type": "prometheus", "prometheus": {
        "endpoint": prometheus.url(), "query": "uses", "queryType": "instant",
    }});
    bench.create("all", json!({"sources": [tags, uses]})).await?;
    let status = bench.status("all", "PartiallyFailed").await?;
    let (newest, next) = (format!("{host}/team/app:v1.10.0"), format!("{host}/team/app:v1.9.0"));
    assert_eq!(images(&status), ["r.example/used:1", &newest, &next]);
    let found: Vec<_> =
        status.discovered_images.iter().map(|one| (one.score, one.source.as_deref())).collect();
    let registry_source = Some("registry[0]");
    assert_eq!(
        found,
        [(Some(40), Some("prometheus[1]")), (Some(2), registry_source), (Some(1), registry_source)]
    );
    let failure = find(&status.conditions, "SourceHealthy").context("sources have that condition")?;
    assert!(failure.message.contains("1 of 2 repositories cannot be listed: team/gone"), "{failure:?}");

    let mut sources = json!([tags, uses]);
    sources[0]["registry"]["repositories"] = json!(["team/app"]);
    bench.edit("all", json!({"sources": sources})).await?;
    let status = bench.status("all", "Synced").await?;
    assert_eq!((images(&status).len(), status.source_count), (3, Some(2)));

    registry.kill().await?;
    bench.edit("all", json!({"maxImages": 2})).await?;
    let status = bench.status("all", "PartiallyFailed").await?;
    assert_eq!((images(&status), is_ready(&status)), (vec!["r.example/used:1", &*newest], true));

    // A policy that turns to queries has no condition of sources any more.
    let query = json!({"name": "uses", "type": "prometheus", "prometheus": {
        "endpoint": prometheus.url(), "query": "uses", "queryType": "instant",
    }});
    bench.edit("all", json!({"sources": null, "queries": [query]})).await?;
    let status = bench.status("all", "Synced").await?;
    assert_eq!(
        (images(&status), find(&status.conditions, "SourceHealthy")),
        (vec!["r.example/used:1"], None)
    );
    bench.replica.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tags_without_a_version_are_ordered_by_the_age_of_their_images() -> Result<()> {
    let bench = Bench::start().await?;
    let registry = Registry::start(RegistryConfig::new()).await?;
    let made = |tag: &str, day: u8| {
        ImageBuilder::new().label("tag", tag).created(&format!("2026-01-0{day}T00:00:00Z")).build()
    };
    for (tag, day) in [("aaa", 3), ("bbb", 1), ("ccc", 2)] {
        registry.endpoint().push("team/app", tag, &made(tag, day)?).await?;
    }
    let index = index(vec![("amd64", made("bcd", 4)?)])?;
    registry.endpoint().push("team/app", "bcd", &index).await?;
    let source = |top: usize| {
        json!({"sources": [{"type": "registry", "registry": {
            "url": registry.endpoint().url(), "repositories": ["team/app"], "topX": top,
        }}]})
    };
    bench.create("newest", source(3)).await?;
    let image = |tag: &str| format!("{}/team/app:{tag}", registry.host());
    let status = bench.status("newest", "Synced").await?;
    assert_eq!(images(&status), [image("bcd"), image("aaa"), image("ccc")]);
    let reads = || {
        let accesses = registry.accesses()?;
        let reads = accesses.iter().filter(|one| one.method == "GET" && one.path.contains("/manifests/"));
        anyhow::Ok(reads.count())
    };
    let before = reads()?;
    bench.edit("newest", source(2)).await?;
    eventually(SOON, || async {
        let status = bench.status("newest", "Synced").await?;
        ensure!(images(&status).len() == 2, "{status:?}");
        Ok(())
    })
    .await?;
    assert_eq!(reads()?, before, "registries count what is read");
    bench.replica.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pull_times_are_read_from_events_of_every_page() -> Result<()> {
    let bench = Bench::start().await?;
    let loki = Loki::start().await?;
    let now = Timestamp::now().as_nanosecond();
    let pulled = |image: &str, time: &str| {
        json!({"reason": "Pulled", "message": format!("Successfully pulled image \"{image}\" in {time}")})
            .to_string()
    };
    for ago in 1..=6000_i128 {
        loki.push(now - ago * 1_000_000_000, pulled("r.example/small:1", "2s"));
    }
    // The slowest pull is older than the first page.
    loki.push(now - 7000 * 1_000_000_000, pulled("r.example/large:1", "1m4.5s"));
    bench.secret("tenant", json!({"headers.X-Scope-OrgID": "ci"})).await?;
    let query = json!({
        "name": "events", "type": "loki", "secretRef": {"name": "tenant"},
        "loki": {"endpoint": loki.url(), "query": "{job=\"events\"}", "lookback": "3h", "parser": {"type": "kubernetesEvents"}},
    });
    let signal = json!({"name": "slow", "query": "events", "type": "eventPullTime", "eventPullTime": {"statistic": "p95"}});
    let spec = json!({
        "queries": [query], "signals": [signal], "ranking": {"strategy": "signal", "signal": "slow"},
    });
    bench.create("slow", spec.clone()).await?;
    let status = bench.status("slow", "Synced").await?;
    let found: Vec<_> =
        status.discovered_images.iter().map(|one| (&*one.image, one.final_score.as_deref())).collect();
    assert_eq!(found, [("r.example/large:1", Some("64.5")), ("r.example/small:1", Some("2"))]);
    assert_eq!(loki.tenants(), ["ci", "ci"], "two pages");

    // What the API server cannot know is refused here, and said; the others go on.
    let mut odd = spec;
    odd["signals"] = json!([{"name": "slow", "query": "events", "type": "timeWeightedAggregate", "timeWeightedAggregate": {
        "method": "sum", "timezone": "Mars/Olympus", "defaultWeight": 1,
        "windows": [{"startHour": 8, "endHour": 18, "weight": "0.5"}],
    }}]);
    bench.create("odd", odd).await?;
    let status = bench.status("odd", "InvalidSpec").await?;
    let ready = find(&status.conditions, types::READY).context("it has the condition")?;
    assert!(ready.message.contains("\"Mars/Olympus\" is not the name of a time zone"), "{ready:?}");
    assert_eq!(images(&bench.status("slow", "Synced").await?).len(), 2);
    bench.replica.stop().await
}
