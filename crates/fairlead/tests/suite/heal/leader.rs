//! The leader is killed while many Pods are healed, and healing is limited to some namespaces.

use anyhow::{Result, ensure};
use fairlead_testkit::{Cluster, eventually};
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::ListParams;
use kube::{Api, ResourceExt};

use super::OPERATOR;
use super::reported::{bound, has_its_node, originals, waits};
use crate::route::rig::{Rig, SOON, image};

const PODS: usize = 60;
/// Slow enough to be killed in the middle.
const CONFIG: &str = "heal: {patchesPerSecond: 5, evictUnpatchable: true, evictJobs: true}\n";

#[tokio::test]
async fn a_killed_leader_leaves_no_pod_out_and_no_pod_is_patched_twice() -> Result<()> {
    let mut rig = Rig::install_with(Cluster::builder().audit(true).start().await?, CONFIG).await?;
    let (healed, other) = (rig.namespace().await?, rig.namespace().await?);
    // Healing needs neither a Harbor nor the kind of proxy caches.
    rig.cluster.kubectl(["delete", "crd", "proxycaches.harbor-reef.nvidia.com"]).await?;
    let scope = [("WATCH_NAMESPACE".to_owned(), format!("absent,{healed}"))];
    // The first operator has no such limit, and leads until it has gone.
    let limited = rig.start_operator_with(&scope).await?;
    let first = std::mem::replace(&mut rig.operator, limited);
    first.0.process.kill().await?;
    rig.operator.0.wait_to_lead(SOON).await?;
    let standby = rig.start_operator_with(&scope).await?;
    standby.0.wait_to_say("standing by", SOON).await?;

    has_its_node(&rig).await?;
    let good = "docker.io/library/app:1";
    let outside = rig.create(&other, &bound("gone.invalid/app:1", &originals(good))).await?;
    let elsewhere: Api<Pod> = Api::namespaced(rig.client().await?, &other);
    waits(&elsewhere, &outside, "ErrImagePull", "no such host").await?;
    let pods: Api<Pod> = Api::namespaced(rig.client().await?, &healed);
    let count = async || {
        let all = pods.list(&ListParams::default()).await?.items;
        anyhow::Ok(all.iter().filter(|pod| image(pod) == good).count())
    };
    let fail = async {
        for _ in 0..PODS {
            let pod = rig.create(&healed, &bound("gone.invalid/app:1", &originals(good))).await?;
            waits(&pods, &pod, "ErrImagePull", "no such host").await?;
        }
        Ok(())
    };
    // On a busy machine Pods come more slowly than they are healed, so the leader does not live to see the last ones.
    let kill = async {
        eventually(SOON, || async {
            let count = count().await?;
            ensure!(count >= 5, "{count} healed: {}", rig.operator.0.process.log_tail());
            Ok(())
        })
        .await?;
        rig.operator.0.process.kill().await?;
        let before = count().await?;
        ensure!(before < PODS, "everything was healed before the crash, which proves nothing");
        Ok(())
    };
    tokio::try_join!(fail, kill)?;
    rig.operator = standby;
    eventually(SOON * 2, || async {
        let count = count().await?;
        ensure!(count == PODS, "{count} healed: {}", rig.operator.0.process.log_tail());
        Ok(())
    })
    .await?;

    // Also of the repairs that the killed leader did not live to report.
    let written: Api<Event> = Api::namespaced(rig.client().await?, &healed);
    eventually(SOON, || async {
        let all = written.list(&ListParams::default()).await?.items;
        let told = all.iter().filter(|event| event.reason.as_deref() == Some("Healed"));
        let told: std::collections::HashSet<_> =
            told.filter_map(|event| event.involved_object.uid.clone()).collect();
        ensure!(told.len() == PODS, "{} Pods with an event", told.len());
        Ok(())
    })
    .await?;

    let events = rig.cluster.audit_events()?;
    let reads = |verb: &str| {
        let all = events.iter().filter(|event| event.user == OPERATOR && event.resource == "pods");
        all.filter(|event| event.verb == verb).count()
    };
    // Three processes have listed Pods once each, if their API server does not begin watches with a list, and a watch
    // that broke may have begun anew.
    ensure!(reads("get") == 0 && reads("list") <= 6, "{} reads, {} lists", reads("get"), reads("list"));
    // That all were patched is seen on the Pods. Of the one whose answer the killed leader did not live to hear, the
    // audit log may tell no success.
    let patches: Vec<_> = (events.iter())
        .filter(|event| event.user == OPERATOR && event.verb == "patch" && event.resource == "pods")
        .filter(|event| event.code == 200)
        .map(|event| event.name.as_str())
        .collect();
    let distinct: std::collections::HashSet<_> = patches.iter().collect();
    ensure!(patches.len() == distinct.len(), "{} patches of {} Pods", patches.len(), distinct.len());
    ensure!(distinct.len() > PODS / 2, "the audit log tells of {} patches only", distinct.len());
    ensure!(
        image(&elsewhere.get(&outside.name_any()).await?) == "gone.invalid/app:1",
        "outside of the scope"
    );
    super::evicted::pods_of_jobs_and_pods_with_a_budget(&rig, &healed).await
}
