//! Proxy caches on a real API server, with a double of Harbor.

mod deletion;
mod outages;
mod routing;
mod sharing;
mod steady;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use fairlead_api::conditions::{Condition, ConditionStatus, find, types};
use fairlead_api::names::reef::PROXY_CACHE_FINALIZER;
use fairlead_api::reef::{
    HEALTHY, OFFERED, OWNED, ProxyCache, ProxyCacheHealth, ProxyCachePhase, ProxyCacheStatus, SYNCED,
};
use fairlead_operator::capabilities::cache::{CacheController, CacheSetup, Metrics};
use fairlead_operator::context::Context;
use fairlead_operator::controller::events::{EventWriter, Events};
use fairlead_operator::platform::config::Config;
use fairlead_testkit::harbor::{PASSWORD, Upstream};
use fairlead_testkit::{Cluster, ClusterBuilder, FakeHarbor, eventually};
use k8s_openapi::api::core::v1::{Event, Secret};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use prometheus_client::registry::Registry as Page;
use serde_json::{Value, json};

use crate::candidate::Candidate;
use crate::definitions::cluster_with_definitions;

const SOON: Duration = Duration::from_mins(1);
const MINUTES: Duration = Duration::from_mins(6);
const QUAY: &str = "https://quay.example";
const PRIVATE: &str = "https://private.example";
const ADMIN: &str = "harbor-admin-password";

/// A replica that keeps caches, and its Harbor.
struct Bench {
    cluster: Cluster,
    client: Client,
    harbor: FakeHarbor,
    own: String,
    page: Page,
    setup: Arc<CacheSetup>,
    context: Arc<Context>,
    replica: Candidate,
}

impl Bench {
    async fn start(config: &str) -> Result<Self> {
        let harbor = FakeHarbor::start().await?;
        let config = config.replace("HARBOR", &harbor.url());
        Self::start_with(&config, harbor).await
    }

    async fn start_with(config: &str, harbor: FakeHarbor) -> Result<Self> {
        Self::start_on(Cluster::builder(), config, harbor).await
    }

    async fn start_on(cluster: ClusterBuilder, config: &str, harbor: FakeHarbor) -> Result<Self> {
        let (cluster, client) = cluster_with_definitions(cluster).await?;
        let own = cluster.namespace("operator").await?;
        harbor.upstream(QUAY, Upstream::Open);
        harbor.upstream(PRIVATE, Upstream::login("robot", "one"));
        let Replica { candidate, setup, context, page } = replica(&client, &own, "one", config)?;
        let bench = Self { cluster, client, harbor, own, page, setup, context, replica: candidate };
        bench.secret(ADMIN, json!({"HARBOR_ADMIN_PASSWORD": format!("{PASSWORD}\n")})).await?;
        Ok(bench)
    }

    /// The usual one.
    async fn with_harbor() -> Result<Self> {
        Self::start("harbor: {url: HARBOR}").await
    }

    fn caches(&self) -> Api<ProxyCache> {
        Api::all(self.client.clone())
    }

    fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.client.clone(), &self.own)
    }

    async fn secret(&self, name: &str, data: Value) -> Result<()> {
        let secret =
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": data});
        let params = PatchParams::apply("test").force();
        self.secrets().patch(name, &params, &Patch::Apply(secret)).await?;
        Ok(())
    }

    async fn create(&self, name: &str, spec: Value) -> Result<()> {
        self.caches().create(&PostParams::default(), &cache(name, &spec)?).await?;
        Ok(())
    }

    async fn edit(&self, name: &str, spec: Value) -> Result<()> {
        self.caches().patch(name, &PatchParams::default(), &Patch::Merge(json!({"spec": spec}))).await?;
        Ok(())
    }

    async fn delete(&self, name: &str) -> Result<()> {
        self.caches().delete(name, &DeleteParams::default()).await?;
        Ok(())
    }

    async fn is_gone(&self, name: &str) -> Result<()> {
        eventually(SOON, || async {
            let left = self.caches().get_opt(name).await?;
            ensure!(left.is_none(), "{:?}", left.and_then(|one| one.status));
            Ok(())
        })
        .await
    }

    /// Waits until the object was looked at as it is now, and its status is as wanted.
    async fn status(&self, name: &str, is: impl Fn(&ProxyCacheStatus) -> bool) -> Result<ProxyCacheStatus> {
        eventually(SOON, || async {
            let cache = self.caches().get(name).await?;
            let status = cache.status.context("no status yet")?;
            ensure!(status.observed_generation == cache.metadata.generation && is(&status), "{status:?}");
            Ok(status)
        })
        .await
    }

    async fn ready(&self, name: &str) -> Result<ProxyCacheStatus> {
        self.status(name, |status| status.phase == Some(ProxyCachePhase::Ready) && status.message.is_none())
            .await
    }

    /// Waits for phase Error with these words.
    async fn fails(&self, name: &str, words: &str) -> Result<ProxyCacheStatus> {
        self.status(name, |status| {
            let said = status.message.as_deref().is_some_and(|message| message.contains(words));
            status.phase == Some(ProxyCachePhase::Error) && said
        })
        .await
    }

    fn gauge(&self, name: &str, kind: &str) -> Result<Option<String>> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.page)?;
        let series = format!("proxycache_healthy{{proxycache=\"{name}\",registry_type=\"{kind}\"}} ");
        Ok(text.lines().find_map(|line| line.strip_prefix(&series)).map(str::to_owned))
    }
}

fn cache(name: &str, spec: &Value) -> Result<ProxyCache> {
    Ok(serde_json::from_value(json!({
        "apiVersion": "harbor-reef.nvidia.com/v1alpha1", "kind": "ProxyCache", "metadata": {"name": name}, "spec": spec,
    }))?)
}

struct Replica {
    candidate: Candidate,
    setup: Arc<CacheSetup>,
    context: Arc<Context>,
    page: Page,
}

/// A replica of an operator with this configuration.
fn replica(client: &Client, own: &str, identity: &str, config: &str) -> Result<Replica> {
    let mut candidate = Candidate::start(client, own, identity);
    let mut page = Page::default();
    let (context, queues) = candidate.context(Config::parse(config)?.config, &mut Page::default());
    let context = Arc::new(context);
    candidate.spawn(context.policies.clone().run(candidate.stopping()));
    let setup = Arc::new(CacheSetup::new(context.clone(), Metrics::register(&mut page)));
    candidate.control::<CacheController>(setup.clone());
    candidate.control::<EventWriter>(Arc::new(Events::new(context.clone(), queues.events)));
    Ok(Replica { candidate, setup, context, page })
}

fn public(name: &str) -> Value {
    json!({"type": "public", "name": name, "url": QUAY})
}

fn private(name: &str) -> Value {
    json!({"type": "private", "name": name, "url": PRIVATE, "credentials": {"secretName": "robot"}})
}

fn condition<'a>(status: &'a ProxyCacheStatus, type_: &str) -> Result<&'a Condition> {
    find(&status.conditions, type_).with_context(|| format!("no condition {type_}: {status:?}"))
}

fn holds(status: &ProxyCacheStatus, type_: &str) -> Option<ConditionStatus> {
    find(&status.conditions, type_).map(|one| one.status)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_type_becomes_ready_and_follows_edits_secrets_and_drift() -> Result<()> {
    let bench = Bench::with_harbor().await?;
    let harbor = &bench.harbor;
    let ecr = "https://123456789012.dkr.ecr.us-west-2.amazonaws.com";
    harbor.upstream(ecr, Upstream::login("AKIA", "key"));
    bench.create("hub", public("quay")).await?;
    bench.create("private", private("team")).await?;
    let aws = json!({"accountId": "123456789012", "staticCredentialsSecretName": "aws"});
    bench.create("aws", json!({"type": "aws-ecr-private", "name": "ecr", "ecr": aws})).await?;

    let status = bench.ready("hub").await?;
    assert_eq!(
        (status.health, status.project_created, status.registry_id),
        (Some(ProxyCacheHealth::Healthy), Some(true), harbor.endpoint("quay").map(|one| one.id))
    );
    assert!(status.last_reconciled.is_some());
    for (type_, reason) in
        [(types::READY, "Reconciled"), (HEALTHY, "RegistryHealthy"), (OWNED, "Owned"), (SYNCED, "Synced")]
    {
        let one = condition(&status, type_)?;
        assert_eq!((one.status, &*one.reason), (ConditionStatus::True, reason));
    }
    let object = bench.caches().get("hub").await?;
    assert_eq!(object.finalizers(), [PROXY_CACHE_FINALIZER]);
    assert_eq!(
        harbor.project("quay").map(|one| (one.public, one.registry)),
        Some((true, status.registry_id))
    );
    assert_eq!(bench.gauge("hub", "public")?.as_deref(), Some("1"));

    // Secrets that come later are noticed at once.
    let status = bench.fails("private", "not found").await?;
    assert_eq!(
        (holds(&status, types::READY), status.health),
        (Some(ConditionStatus::False), Some(ProxyCacheHealth::Unknown))
    );
    assert_eq!(bench.gauge("private", "private")?, None, "nothing definite is known");
    bench.secret("robot", json!({"username": "robot"})).await?;
    bench.fails("private", "key password not found").await?;
    bench.secret("robot", json!({"username": "robot", "password": "one\n"})).await?;
    bench.secret("aws", json!({"access_key_id": "AKIA", "secret_access_key": "key"})).await?;
    bench.ready("private").await?;
    let held = harbor.endpoint("team").context("it was made")?;
    let credential = held.credential.context("with a login")?;
    assert_eq!((&*credential.kind, &*credential.key, &*credential.secret), ("basic", "robot", "one"));
    assert_eq!(harbor.project("team").map(|one| one.public), Some(false));
    bench.ready("aws").await?;
    let held = harbor.endpoint("ecr").context("it was made")?;
    assert_eq!((&*held.kind, &*held.url), ("aws-ecr", ecr));

    // A password that changes while everything is healthy reaches Harbor at once.
    harbor.upstream(PRIVATE, Upstream::login("robot", "two"));
    bench.secret("robot", json!({"username": "robot", "password": "two"})).await?;
    let secret = || harbor.endpoint("team").and_then(|one| one.credential).map(|one| one.secret);
    eventually(SOON, || async {
        ensure!(secret().as_deref() == Some("two"), "{:?}", secret());
        Ok(())
    })
    .await?;
    bench.ready("private").await?;

    // One that does not work stays outside, and the status says so.
    bench.secret("robot", json!({"username": "robot", "password": "wrong"})).await?;
    let status =
        bench.status("private", |status| holds(status, SYNCED) == Some(ConditionStatus::False)).await?;
    assert_eq!(status.phase, Some(ProxyCachePhase::Ready));
    assert_eq!(condition(&status, SYNCED)?.reason, "UpdateRefused");
    assert_eq!((status.health, secret().as_deref()), (Some(ProxyCacheHealth::Healthy), Some("two")));
    // Each that does not work is told.
    refusals_are_told(&bench, "private", 1).await?;
    bench.secret("robot", json!({"username": "robot", "password": "wrong, too"})).await?;
    refusals_are_told(&bench, "private", 2).await?;
    harbor.upstream(PRIVATE, Upstream::login("robot", "three"));
    harbor.check_health();
    bench.setup.skip(MINUTES);
    let status = bench.status("private", |status| status.health == Some(ProxyCacheHealth::Unhealthy)).await?;
    assert_eq!(
        (status.phase, bench.gauge("private", "private")?.as_deref()),
        (Some(ProxyCachePhase::Ready), Some("0"))
    );
    assert_eq!(condition(&status, HEALTHY)?.reason, "RegistryUnhealthy");
    bench.secret("robot", json!({"username": "robot", "password": "three"})).await?;
    bench.ready("private").await?;
    assert_eq!(bench.gauge("private", "private")?.as_deref(), Some("1"));

    // What people change in Harbor is changed back, and what they write beside the mark stays.
    harbor.edit_endpoint("quay", |one| {
        one.url = "https://elsewhere.example".to_owned();
        one.description = format!("Ask the platform team.\n{}", one.description);
    });
    harbor.edit_project("quay", |one| one.public = false);
    bench.setup.skip(MINUTES);
    eventually(SOON, || async {
        let url = harbor.endpoint("quay").map(|one| one.url);
        let public = harbor.project("quay").map(|one| one.public);
        ensure!((url.as_deref(), public) == (Some(QUAY), Some(true)), "{url:?} {public:?}");
        Ok(())
    })
    .await?;
    let description = harbor.endpoint("quay").map(|one| one.description).unwrap_or_default();
    assert!(
        description.starts_with("Ask the platform team.\nManaged by Fairlead: cluster "),
        "{description}"
    );

    follow_edits(&bench).await?;
    assert!(harbor.requests().iter().all(|request| request.names && !request.cookie));
    bench.replica.stop().await
}

/// Waits for so many events about what Harbor does not take.
async fn refusals_are_told(bench: &Bench, name: &str, times: usize) -> Result<()> {
    let events: Api<Event> = Api::namespaced(bench.client.clone(), "default");
    eventually(SOON, || async {
        let all = events.list(&ListParams::default()).await?.items;
        let told = all.iter().filter(|one| one.involved_object.name.as_deref() == Some(name));
        let count = told.filter(|one| one.reason.as_deref() == Some("UpdateRefused")).count();
        ensure!(count == times, "{count} events");
        Ok(())
    })
    .await
}

/// Of the public cache `hub`, whose pair is named `quay`.
async fn follow_edits(bench: &Bench) -> Result<()> {
    let harbor = &bench.harbor;
    // An edit acts at once, also one of the name: the former pair goes.
    harbor.upstream("http://other.example", Upstream::Open);
    bench.edit("hub", json!({"url": "other.example/"})).await?;
    bench.ready("hub").await?;
    assert_eq!(harbor.endpoint("quay").map(|one| one.url).as_deref(), Some("http://other.example"));
    harbor.hold_repository("quay", "team/app");
    bench.edit("hub", json!({"name": "renamed"})).await?;
    let status = bench.status("hub", |status| {
        status.registry_id == harbor.endpoint("renamed").map(|one| one.id) && status.registry_id.is_some()
    });
    status.await?;
    assert_eq!((harbor.endpoint("quay"), harbor.project("quay")), (None, None));
    assert_eq!(harbor.project("renamed").map(|one| one.public), Some(true));

    // Another type has another series.
    bench.secret("robot2", json!({"username": "u", "password": "p"})).await?;
    bench.edit("hub", json!({"type": "private", "credentials": {"secretName": "robot2"}})).await?;
    bench.ready("hub").await?;
    assert_eq!((bench.gauge("hub", "public")?, bench.gauge("hub", "private")?.as_deref()), (None, Some("1")));
    assert_eq!(harbor.project("renamed").map(|one| one.public), Some(false));
    Ok(())
}
