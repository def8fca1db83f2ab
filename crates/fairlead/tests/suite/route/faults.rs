//! What goes wrong, and stays small.

use std::cell::Cell;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use fairlead_testkit::fake_registry::{Effect, FakeRegistry, Fault};
use fairlead_testkit::{Registry, RegistryConfig, eventually};
use futures::{StreamExt, TryStreamExt, stream};
use serde_json::json;

use super::rig::{image, mirror, pod, replicas, shared};

/// A registry that accepts connections and never answers holds up the first Pods for the time of a probe, and no
/// others.
#[tokio::test]
async fn a_silent_registry_costs_one_slow_pod() -> Result<()> {
    let rig = shared().await?;
    let namespace = rig.namespace().await?;
    let first = rig.registry(RegistryConfig::new(), "silent").await?;
    let second = rig.registry(RegistryConfig::new(), "silent").await?;
    rig.apply(&replicas(&first, &second)).await?;
    let (asked, other) = (format!("{}/team/app:1", first.host()), format!("{}/team/app:1", second.host()));
    first.pause().await?;
    rig.create_until(&namespace, &pod(&asked), |pod| image(pod) == other).await?;
    let mut slow = 0;
    for _ in 0..20 {
        let begun = Instant::now();
        let created = rig.create(&namespace, &pod(&asked)).await?;
        ensure!(image(&created) == other, "{}", image(&created));
        slow += usize::from(begun.elapsed() > Duration::from_millis(900));
    }
    ensure!(slow <= 2, "{slow} of 20 Pods waited for a registry that is known to be silent");
    first.resume().await?;
    rig.create_until(&namespace, &pod(&asked), |pod| image(pod) == asked).await?;
    Ok(())
}

/// A registry that stops while no Pod is created: the rollout after it gets the other one, every Pod of it.
#[tokio::test]
async fn a_registry_that_stops_while_the_cluster_is_quiet_gets_no_pod() -> Result<()> {
    let rig = shared().await?;
    let namespace = rig.namespace().await?;
    let first = rig.registry(RegistryConfig::new(), "quiet").await?;
    let second = rig.registry(RegistryConfig::new(), "quiet").await?;
    rig.apply(&replicas(&first, &second)).await?;
    let (asked, other) = (format!("{}/team/app:1", first.host()), format!("{}/team/app:1", second.host()));
    rig.create_until(&namespace, &pod(&asked), |pod| image(pod) == asked).await?;
    first.pause().await?;
    tokio::time::sleep(Duration::from_secs(8)).await;
    let rollout: Vec<_> = stream::iter(0..30)
        .map(|_| async { rig.create(&namespace, &pod(&asked)).await })
        .buffer_unordered(30)
        .try_collect()
        .await?;
    let missed = rollout.iter().filter(|created| image(created) != other).count();
    first.resume().await?;
    ensure!(missed == 0, "{missed} of 30 Pods got a registry that had stopped");
    rig.create_until(&namespace, &pod(&asked), |pod| image(pod) == asked).await?;
    Ok(())
}

#[tokio::test]
async fn many_pods_at_once_cost_few_requests() -> Result<()> {
    let rig = shared().await?;
    let namespace = rig.namespace().await?;
    let (source, target) = rig.copied(RegistryConfig::new(), "many").await?;
    rig.apply(&mirror(&source, &target)).await?;
    let (asked, copy) =
        (format!("{}/team/app:1", source.host()), format!("{}/copies/team/app:1", target.host()));
    // The list of what the cluster uses, which is kept in the mirror, costs requests of its own.
    let requests = |registry: &Registry| {
        let all = registry.accesses()?.into_iter();
        anyhow::Ok(all.filter(|one| !one.path.contains("fairlead-usage")).count())
    };
    let before = (requests(&source)?, requests(&target)?);
    let begun = Instant::now();
    let all: Vec<_> = stream::iter(0..200)
        .map(|_| async { rig.create(&namespace, &pod(&asked)).await })
        .buffer_unordered(16)
        .try_collect()
        .await?;
    for created in &all {
        ensure!(image(created) == copy, "{}", image(created));
    }
    let asked_for = (requests(&source)? - before.0, requests(&target)? - before.1);
    // Besides what the images cost, a registry in use is checked every two seconds.
    let most = 3 + begun.elapsed().as_secs() / 2;
    let few = |count: usize| u64::try_from(count).is_ok_and(|count| count <= most);
    ensure!(
        few(asked_for.0) && few(asked_for.1),
        "200 Pods cost {asked_for:?} requests in {:?}",
        begun.elapsed()
    );
    Ok(())
}

/// Connections to a port of this machine that are open.
fn open_connections(port: u16) -> Result<usize> {
    let table = std::fs::read_to_string("/proc/net/tcp")?;
    let remote = format!(":{port:04X}");
    // The columns are a number, the local and the remote address, and the state, in which 01 is "established".
    let is_open = |line: &&str| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        columns.get(2).is_some_and(|address| address.ends_with(&remote)) && columns.get(3) == Some(&"01")
    };
    Ok(table.lines().filter(is_open).count())
}

/// A registry that a deleted policy named, dead or alive, leaves nothing behind: no connection, no trial, no series.
#[tokio::test]
async fn a_registry_that_only_a_deleted_policy_named_is_forgotten() -> Result<()> {
    let rig = shared().await?;
    let namespace = rig.namespace().await?;
    let dead = FakeRegistry::start().await?;
    let alive = rig.registry(RegistryConfig::new(), "forgotten").await?;
    dead.inject(Fault::new(Effect::Hang));
    let upstream =
        |host: &str| json!({"registry": host, "path": "/team", "imageFilter": {"include": ["/team/.*"]}});
    // The configuration names all registries by their address, and what it names is never forgotten.
    let unnamed = |host: String| host.replace("127.0.0.1", "localhost");
    let (dead_host, alive_host) = (unnamed(dead.host()), unnamed(alive.host()));
    let policy = json!({
        "apiVersion": "kuik.enix.io/v1alpha1", "kind": "ClusterReplicatedImageSet",
        "metadata": {"name": "forgotten"},
        "spec": {"upstreams": [upstream(&dead_host), upstream(&alive_host)]},
    });
    rig.apply(&policy).await?;
    let (asked, other) = (format!("{dead_host}/team/app:1"), format!("{alive_host}/team/app:1"));
    rig.create_until(&namespace, &pod(&asked), |pod| image(pod) == other).await?;
    let operator = &rig.operator.0;
    let down = format!("fairlead_registry_down{{registry=\"{dead_host}\"}} 1");
    let page = operator.page().await?;
    ensure!(page.contains(&down) && page.contains(&alive_host), "{page}");
    ensure!(open_connections(alive.endpoint().port())? > 0, "it was asked over a connection that is kept");

    rig.delete(&policy).await?;
    eventually(Duration::from_secs(30), || async {
        let page = operator.page().await?;
        let down = page.lines().filter(|line| line.starts_with("fairlead_registry_down"));
        let named = down.into_iter().find(|line| line.contains(&dead_host) || line.contains(&alive_host));
        ensure!(named.is_none(), "{named:?}");
        let ports = [dead.address().port(), alive.endpoint().port()];
        for port in ports {
            ensure!(open_connections(port)? == 0, "there are connections to {port}");
        }
        Ok(())
    })
    .await?;
    // A trial that was under way when the registry was forgotten may still arrive.
    let quiet_since = Cell::new((dead.requests().len(), Instant::now()));
    eventually(Duration::from_secs(30), || async {
        let requests = dead.requests().len();
        if requests > quiet_since.get().0 {
            quiet_since.set((requests, Instant::now()));
        }
        // Longer than the pause before the next trial.
        ensure!(quiet_since.get().1.elapsed() > Duration::from_secs(12), "it is still tried");
        Ok(())
    })
    .await?;
    Ok(())
}

/// A tenant that names hundreds of registries takes no label of a metric from others.
#[tokio::test]
async fn one_namespace_does_not_take_the_labels_of_others() -> Result<()> {
    let rig = shared().await?;
    let (greedy, modest) = (rig.namespace().await?, rig.namespace().await?);
    let policy = |namespace: &str, name: &str, hosts: Vec<String>| {
        let upstreams: Vec<_> = hosts.iter().map(|host| json!({"registry": host, "path": "/team"})).collect();
        json!({
            "apiVersion": "kuik.enix.io/v1alpha1", "kind": "ReplicatedImageSet",
            "metadata": {"name": name, "namespace": namespace}, "spec": {"upstreams": upstreams},
        })
    };
    for number in 0..10 {
        let hosts = (0..32).map(|host| format!("r{host}.n{number}.invalid")).collect();
        rig.apply(&policy(&greedy, &format!("many-{number}"), hosts)).await?;
    }
    let [first, second] = rig.registries().await?;
    for registry in [&first, &second] {
        super::rig::push(registry, "team/app", "labels").await?;
    }
    let mut own = policy(&modest, "own", vec![first.host(), second.host()]);
    for upstream in own["spec"]["upstreams"].as_array_mut().into_iter().flatten() {
        upstream["imageFilter"] = json!({"include": ["/team/.*"]});
    }
    rig.apply(&own).await?;
    let asked = format!("{}/team/app:1", first.host());
    rig.create(&modest, &pod(&asked)).await?;
    let page = rig.operator.0.page().await?;
    let series = format!("fairlead_registry_down{{registry=\"{}\"}} 0", first.host());
    ensure!(page.contains(&series), "{page}");
    Ok(())
}
