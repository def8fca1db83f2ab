//! One replica leads, whatever happens to it, and never two.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use fairlead_testkit::{Cluster, Ending, Signal, eventually};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;

use crate::replica::{self, Replica, SOON};

const AFTER_KILL: Duration = Duration::from_secs(15);
const AFTER_TERM: Duration = Duration::from_secs(3);
/// A leader that cannot renew stops this long after its last renewal began, and renews every two seconds.
const SELF_DEMOTION: Duration = Duration::from_secs(8);

/// A leader and a standby that knows it.
async fn pair(cluster: &Cluster, namespace: &str) -> Result<(Replica, Replica)> {
    let first = replica::start(&cluster.kubeconfig(), namespace, "first").await?;
    first.wait_to_lead(SOON).await?;
    let second = standby(cluster, namespace).await?;
    Ok((first, second))
}

async fn standby(cluster: &Cluster, namespace: &str) -> Result<Replica> {
    let second = replica::start(&cluster.kubeconfig(), namespace, "second").await?;
    let line = second.wait_to_say("standing by", SOON).await?;
    ensure!(line["holder"] == "first", "{line}");
    Ok(second)
}

/// Watches two replicas and counts the moments at which both say that they lead.
struct Judge {
    over: Arc<AtomicBool>,
    looks: Arc<AtomicUsize>,
    watching: tokio::task::JoinHandle<Vec<String>>,
}

impl Judge {
    fn watch(first: Arc<Replica>, second: Arc<Replica>) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let looks = Arc::new(AtomicUsize::new(0));
        let watching = tokio::spawn({
            let (over, looks) = (over.clone(), looks.clone());
            async move {
                let mut both = Vec::new();
                while !over.load(Ordering::Relaxed) {
                    // The one that may be late is asked first: leadership that moves on between the two questions is
                    // no fault.
                    let later = second.metric("fairlead_leader").await.ok().flatten();
                    let sooner = first.metric("fairlead_leader").await.ok().flatten();
                    if later == Some(1.0) && sooner == Some(1.0) {
                        both.push(format!("{:?}", Instant::now()));
                    }
                    looks.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                both
            }
        });
        Self { over, looks, watching }
    }

    async fn verdict(self) -> Result<()> {
        self.over.store(true, Ordering::Relaxed);
        let both = self.watching.await?;
        ensure!(self.looks.load(Ordering::Relaxed) > 10, "the judge hardly looked");
        ensure!(both.is_empty(), "two led at once, seen {} times", both.len());
        Ok(())
    }
}

async fn holder(cluster: &Cluster, namespace: &str) -> Result<Option<String>> {
    let leases: Api<Lease> = Api::namespaced(cluster.client().await?, namespace);
    Ok(leases.get("fairlead-operator").await?.spec.and_then(|spec| spec.holder_identity))
}

#[tokio::test]
async fn a_standby_takes_over_from_a_leader_that_was_killed() -> Result<()> {
    let cluster = fairlead_testkit::shared().await;
    let namespace = cluster.namespace("leader-killed").await?;
    let (first, second) = pair(cluster, &namespace).await?;
    let killed = Instant::now();
    first.process.kill().await?;
    second.wait_to_lead(AFTER_KILL).await?;
    ensure!(killed.elapsed() < AFTER_KILL, "took {:?}", killed.elapsed());
    ensure!(holder(cluster, &namespace).await?.as_deref() == Some("second"));
    // The killed one comes back under its old name and finds its place taken.
    first.process.start_again().await?;
    first.wait_to_say("standing by", SOON).await?;
    ensure!(second.metric("fairlead_leader").await? == Some(1.0));
    Ok(())
}

#[tokio::test]
async fn a_leader_that_is_stopped_hands_over_at_once() -> Result<()> {
    let cluster = fairlead_testkit::shared().await;
    let namespace = cluster.namespace("leader-stopped").await?;
    let (first, second) = pair(cluster, &namespace).await?;
    ensure!(first.metric("kube_image_keeper_manager_is_leader").await? == Some(1.0));
    ensure!(second.metric("kube_image_keeper_manager_is_leader").await? == Some(0.0));
    let stopped = Instant::now();
    first.process.signal(Signal::Terminate).await?;
    second.wait_to_lead(AFTER_TERM).await?;
    ensure!(stopped.elapsed() < AFTER_TERM, "took {:?}", stopped.elapsed());
    let ending = first.process.wait(Duration::from_secs(5)).await?;
    ensure!(stopped.elapsed() < Duration::from_secs(5), "ended after {:?}", stopped.elapsed());
    ensure!(ending == Ending { code: Some(0), signal: None }, "{ending:?}");
    ensure!(first.said("leadership released")?.len() == 1);

    // The last one clears the Lease as well.
    second.process.signal(Signal::Interrupt).await?;
    let ending = second.process.wait(Duration::from_secs(5)).await?;
    ensure!(ending == Ending { code: Some(0), signal: None }, "{ending:?}");
    ensure!(holder(cluster, &namespace).await?.is_none_or(|holder| holder.is_empty()));
    Ok(())
}

#[tokio::test]
async fn a_leader_whose_connections_break_stops_before_another_starts() -> Result<()> {
    cut_off("leader-cut", fairlead_testkit::ApiProxy::cut).await
}

#[tokio::test]
async fn a_leader_whose_requests_hang_stops_before_another_starts() -> Result<()> {
    cut_off("leader-stalled", fairlead_testkit::ApiProxy::stall).await
}

async fn cut_off(name: &str, fault: fn(&fairlead_testkit::ApiProxy)) -> Result<()> {
    let cluster = fairlead_testkit::shared().await;
    let namespace = cluster.namespace(name).await?;
    let proxy = cluster.proxy().await?;
    let through = cluster.kubeconfig_through(&proxy, &cluster.kubeconfig())?;
    let first = Arc::new(replica::start(&through, &namespace, "first").await?);
    first.wait_to_lead(SOON).await?;
    let second = Arc::new(standby(cluster, &namespace).await?);
    let judge = Judge::watch(first.clone(), second.clone());

    let cut = Instant::now();
    fault(&proxy);
    first.wait_for_metric("fairlead_leader", Some(0.0), SELF_DEMOTION + Duration::from_secs(1)).await?;
    let stopped = cut.elapsed();
    ensure!(stopped < SELF_DEMOTION + Duration::from_secs(1), "stopped after {stopped:?}");
    second.wait_to_lead(AFTER_KILL).await?;

    // Both wrote their logs on one machine, so the times can be compared.
    let lost = first.wait_to_say("leadership lost", SOON).await?;
    let acquired = second.wait_to_say("leadership acquired", SOON).await?;
    let time = |line: &serde_json::Value| line["timestamp"].as_str().unwrap_or_default().to_owned();
    ensure!(time(&lost) < time(&acquired), "lost at {}, acquired at {}", time(&lost), time(&acquired));
    ensure!(first.process.is_running(), "being cut off is no reason to die");
    ensure!(first.liveness().await?.0 == 200);

    proxy.heal();
    eventually(SOON, || async {
        let found = first.said("standing by")?;
        ensure!(found.iter().any(|line| line["holder"] == "second"), "the first does not know who leads");
        Ok(())
    })
    .await?;
    ensure!(second.metric("fairlead_leader").await? == Some(1.0));
    judge.verdict().await
}

#[tokio::test]
async fn a_leader_that_was_frozen_does_not_go_on_as_one() -> Result<()> {
    let cluster = fairlead_testkit::shared().await;
    let namespace = cluster.namespace("leader-frozen").await?;
    let (first, second) = pair(cluster, &namespace).await?;
    first.process.signal(Signal::Stop).await?;
    second.wait_to_lead(AFTER_KILL).await?;
    first.process.signal(Signal::Continue).await?;
    first.wait_to_say("leadership lost", SOON).await?;
    first.wait_for_metric("fairlead_leader", Some(0.0), SOON).await?;
    ensure!(second.metric("fairlead_leader").await? == Some(1.0));
    Ok(())
}

#[tokio::test]
async fn a_lease_that_is_deleted_stays_with_its_leader() -> Result<()> {
    let cluster = fairlead_testkit::shared().await;
    let namespace = cluster.namespace("leader-deleted").await?;
    let (first, second) = pair(cluster, &namespace).await?;
    let leases: Api<Lease> = Api::namespaced(cluster.client().await?, &namespace);
    leases.delete("fairlead-operator", &kube::api::DeleteParams::default()).await?;
    eventually(SOON, || async {
        ensure!(holder(cluster, &namespace).await?.as_deref() == Some("first"), "not taken again");
        Ok(())
    })
    .await?;
    ensure!(second.said("leadership acquired")?.is_empty());
    first.wait_to_lead(SOON).await
}
