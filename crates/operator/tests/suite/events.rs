//! Events on a real API server: once for each image, whichever replica leads.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fairlead_operator::controller::events::SendOutcome;
use fairlead_plan::routing_events::EventKind;
use fairlead_testkit::{Cluster, eventually, install_crypto, shared};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Event, Namespace, Pod};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

use crate::leading::{Leading, SOON};

/// Every replica sees the Pods of the whole cluster, so who emitted an event can be told only in a cluster of one's
/// own.
enum Shared {
    Own(Box<Cluster>),
    WithOthers(&'static Cluster),
}

impl std::ops::Deref for Shared {
    type Target = Cluster;

    fn deref(&self) -> &Cluster {
        match self {
            Self::Own(cluster) => cluster,
            Self::WithOthers(cluster) => cluster,
        }
    }
}

struct Bench {
    cluster: Shared,
    client: Client,
    own_namespace: String,
    namespace: String,
}

impl Bench {
    async fn new() -> Result<Self> {
        install_crypto();
        Self::of(Shared::WithOthers(shared().await)).await
    }

    async fn alone() -> Result<Self> {
        install_crypto();
        Self::of(Shared::Own(Box::new(Cluster::builder().start().await?))).await
    }

    async fn of(cluster: Shared) -> Result<Self> {
        let client = cluster.client().await?;
        let own_namespace = cluster.namespace("operator").await?;
        let namespace = cluster.namespace("team").await?;
        Ok(Self { cluster, client, own_namespace, namespace })
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// A Pod as admission leaves it: one image rewritten, one that no registry has, one as it was.
    async fn create_pod(&self, name: &str) -> Result<Pod> {
        Ok(self.pods().create(&PostParams::default(), &pod(name)?).await?)
    }

    /// Events about a Pod, by reason.
    async fn events(&self, pod: &Pod) -> Result<Vec<Event>> {
        let events: Api<Event> = Api::namespaced(self.client.clone(), &self.namespace);
        let uid = pod.uid().context("a UID")?;
        let params = ListParams::default().fields(&format!("involvedObject.uid={uid},source=fairlead"));
        let mut found = events.list(&params).await?.items;
        found.sort_by(|one, other| one.reason.cmp(&other.reason));
        Ok(found)
    }

    async fn wait_for_events(&self, pod: &Pod, count: usize) -> Result<Vec<Event>> {
        eventually(SOON, || async {
            let found = self.events(pod).await?;
            ensure!(found.len() >= count, "{} events", found.len());
            Ok(found)
        })
        .await
    }
}

fn pod(name: &str) -> Result<Pod> {
    let record = json!({"v": 1, "images": {
        "web": {"asked": "nginx:1", "used": "mirror.example/nginx:1", "by": "ImageSetMirror/team/m", "why": "first of 2"},
        "side": {"asked": "redis:1", "used": "redis:1", "by": "original", "why": "not-found", "unavailable": true},
        "plain": {"asked": "busybox:1", "used": "busybox:1", "by": "original"},
        "forged": {"asked": "x:1", "used": "evil.example/x:1", "by": "ImageSetMirror/team/m"},
    }});
    let container = |name: &str, image: &str| json!({"name": name, "image": image});
    Ok(serde_json::from_value(json!({
        "metadata": {"name": name, "annotations": {"fairlead.dev/routes": record.to_string()}},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": [
            container("web", "mirror.example/nginx:1"), container("side", "redis:1"),
            container("plain", "busybox:1"), container("forged", "x:1"),
        ]},
    }))?)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_gets_each_event_once_whoever_leads() -> Result<()> {
    let bench = Bench::alone().await?;
    let before = bench.create_pod("before").await?;
    let first = Leading::start(&bench.cluster, &bench.own_namespace, "first").await?;
    let during = bench.create_pod("during").await?;
    for pod in [&before, &during] {
        let events = bench.wait_for_events(pod, 2).await?;
        let told: Vec<_> =
            events.iter().map(|one| (one.reason.as_deref(), one.type_.as_deref(), one.count)).collect();
        let wanted = [
            (Some("ImageRewritten"), Some("Normal"), Some(1)),
            (Some("NoAlternativeAvailable"), Some("Warning"), Some(1)),
        ];
        ensure!(told == wanted, "{told:?}");
        ensure!(events[0].involved_object.field_path.as_deref() == Some("spec.containers{web}"));
        ensure!(events[0].reporting_instance.as_deref() == Some("first"));
        let message = events[0].message.as_deref().unwrap_or_default();
        let text = "container web uses mirror.example/nginx:1 instead of nginx:1, by ImageSetMirror/team/m: first of 2";
        ensure!(message == text, "{message}");
    }
    // People find it where they look.
    let page = bench.cluster.kubectl(["describe", "pod", "during", "-n", &bench.namespace]).await?;
    ensure!(page.contains("ImageRewritten") && page.contains("NoAlternativeAvailable"), "{page}");

    // A second replica takes over, and a third after a restart. Nothing is said twice.
    let mut leader = first;
    for identity in ["second", "third"] {
        let next = Leading::start(&bench.cluster, &bench.own_namespace, identity).await?;
        next.wait_ready().await?;
        leader.stop().await?;
        let name = format!("under-{identity}");
        let later = bench.create_pod(&name).await?;
        let events = bench.wait_for_events(&later, 2).await?;
        ensure!(events[0].reporting_instance.as_deref() == Some(identity), "{events:?}");
        eventually(SOON, || async {
            let known = next.event_metrics.counted(EventKind::ImageRewritten.reason(), SendOutcome::Exists);
            ensure!(known >= 2, "{known} events were found to exist");
            Ok(())
        })
        .await?;
        leader = next;
    }
    for pod in [&before, &during] {
        let events = bench.events(pod).await?;
        ensure!(events.len() == 2 && events.iter().all(|one| one.count == Some(1)), "{events:?}");
    }
    leader.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_and_namespaces_that_go_before_their_events_hold_nothing_up() -> Result<()> {
    const COUNT: usize = 150;
    let bench = Bench::new().await?;
    let replica = Leading::start(&bench.cluster, &bench.own_namespace, "only").await?;
    replica.wait_ready().await?;
    let doomed = bench.cluster.namespace("doomed").await?;
    let pods: Api<Pod> = Api::namespaced(bench.client.clone(), &doomed);
    stream::iter(0..COUNT)
        .map(|number| {
            let pods = pods.clone();
            async move {
                pods.create(&PostParams::default(), &pod(&format!("pod-{number}"))?).await?;
                anyhow::Ok(())
            }
        })
        .buffer_unordered(16)
        .try_collect::<Vec<()>>()
        .await?;
    let namespaces: Api<Namespace> = Api::all(bench.client.clone());
    namespaces.delete(&doomed, &DeleteParams::default()).await?;

    let pod = bench.create_pod("survivor").await?;
    let events = bench.wait_for_events(&pod, 2).await?;
    ensure!(events.len() == 2);
    let count = |fate| replica.event_metrics.counted(EventKind::ImageRewritten.reason(), fate);
    ensure!(count(SendOutcome::Failed) == 0 && count(SendOutcome::Dropped) == 0);
    ensure!(
        count(SendOutcome::Late) > 0,
        "created {}, late {}",
        count(SendOutcome::Created),
        count(SendOutcome::Late)
    );
    replica.stop().await
}

/// On one thread, so that errors that are noted together become one event.
#[tokio::test]
async fn internal_errors_become_one_event_on_the_deployment() -> Result<()> {
    let bench = Bench::new().await?;
    let deployment: Deployment = serde_json::from_value(json!({
        "metadata": {"name": "fairlead"},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": {"app": "fairlead"}},
            "template": {
                "metadata": {"labels": {"app": "fairlead"}},
                "spec": {"containers": [{"name": "operator", "image": "fairlead"}]},
            },
        },
    }))?;
    let deployments: Api<Deployment> = Api::namespaced(bench.client.clone(), &bench.own_namespace);
    deployments.create(&PostParams::default(), &deployment).await?;
    let errors = ["the handler panicked", "the handler panicked", "no answer in time"];
    let found = || async {
        let events: Api<Event> = Api::namespaced(bench.client.clone(), &bench.own_namespace);
        let params = ListParams::default().fields("reason=InternalError");
        let mut found = events.list(&params).await?.items;
        ensure!(found.len() == 1, "{} events", found.len());
        found.pop().context("one")
    };
    // A second replica continues the count of the first.
    let mut leader: Option<Leading> = None;
    for (identity, total) in [("first", 3), ("second", 6)] {
        let next = Leading::start(&bench.cluster, &bench.own_namespace, identity).await?;
        if let Some(before) = leader.take() {
            before.stop().await?;
        }
        for error in errors {
            next.errors.note(error);
        }
        let event = eventually(SOON, || async {
            let event: Event = found().await?;
            ensure!(event.count == Some(total), "{:?}", event.count);
            Ok(event)
        })
        .await?;
        ensure!(event.type_.as_deref() == Some("Warning"));
        let message = event.message.unwrap_or_default();
        ensure!(message.contains("the handler panicked (2); no answer in time (1)"), "{message}");
        leader = Some(next);
    }
    let leader = leader.context("a leader")?;
    let page =
        bench.cluster.kubectl(["describe", "deployment", "fairlead", "-n", &bench.own_namespace]).await?;
    ensure!(page.contains("InternalError"), "{page}");

    // More errors wait for their minute, while events about Pods are written.
    for number in 0..5 {
        for _ in 0..200 {
            leader.errors.note("again");
        }
        let pod = bench.create_pod(&format!("meanwhile-{number}")).await?;
        bench.wait_for_events(&pod, 2).await?;
    }
    ensure!(found().await?.count == Some(6));
    leader.stop().await
}

/// The wire breaks while events are being sent. Each arrives, once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_event_is_lost_or_doubled_by_an_outage() -> Result<()> {
    const COUNT: usize = 70;
    let bench = Bench::alone().await?;
    let (replica, wire) = Leading::start_behind_wire(&bench.cluster, &bench.own_namespace, "only").await?;
    replica.wait_ready().await?;
    let mut pods = Vec::new();
    for number in 0..COUNT {
        pods.push(bench.create_pod(&format!("pod-{number}")).await?);
        if number == COUNT / 2 {
            wire.cut();
        }
    }
    wire.heal();
    let events: Api<Event> = Api::namespaced(bench.client.clone(), &bench.namespace);
    eventually(Duration::from_mins(1), || async {
        let found = events.list(&ListParams::default().fields("source=fairlead")).await?.items;
        ensure!(found.len() >= 2 * COUNT, "{} events", found.len());
        Ok(())
    })
    .await?;
    for pod in &pods {
        let found = bench.events(pod).await?;
        ensure!(found.len() == 2 && found.iter().all(|one| one.count == Some(1)), "{found:?}");
    }
    ensure!(replica.event_metrics.counted(EventKind::ImageRewritten.reason(), SendOutcome::Failed) == 0);
    replica.stop().await
}
