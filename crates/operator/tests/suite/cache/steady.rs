//! Nothing is written while everything is as it should be.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::time::Instant;

use super::*;

const CACHES: usize = 100;
/// Events are sent at ten per second.
const QUIET: Duration = Duration::from_secs(3);
/// As whom the replica and the test speak to the API server.
const TESTER: &str = "fairlead-test-admin";

/// Writes of whatever kind, by the API server's log, but for the Lease: who sent them, and what.
fn writes(cluster: &Cluster) -> Result<Vec<String>> {
    let events = cluster.audit_events()?.into_iter();
    let is_write = |verb: &str| !["get", "list", "watch"].contains(&verb);
    let writes = events.filter(|one| is_write(&one.verb) && one.resource != "leases" && one.user == TESTER);
    Ok(writes.map(|one| format!("{} {}: {}", one.verb, one.uri, one.code)).collect())
}

/// Versions of all objects.
async fn versions(bench: &Bench) -> Result<Vec<(String, Option<String>)>> {
    let listed = bench.caches().list(&kube::api::ListParams::default()).await?;
    Ok(listed.items.iter().map(|one| (one.name_any(), one.resource_version())).collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_caches_write_nothing_for_an_hour() -> Result<()> {
    let harbor = FakeHarbor::start().await?;
    let config = format!("harbor: {{url: '{}'}}", harbor.url());
    let bench = Bench::start_on(Cluster::builder().audit(true), &config, harbor).await?;
    bench.secret("robot", json!({"username": "robot", "password": "one"})).await?;
    for number in 0..CACHES {
        let name = format!("cache-{number}");
        let spec = if number % 2 == 0 { public(&name) } else { private(&name) };
        bench.create(&name, spec).await?;
    }
    for number in 0..CACHES {
        bench.ready(&format!("cache-{number}")).await?;
    }
    // Events about what was made are still on their way.
    let (known, since) = (Cell::new(0), Cell::new(Instant::now()));
    let written = eventually(2 * SOON, || async {
        let written = writes(&bench.cluster)?;
        if known.replace(written.len()) != written.len() {
            since.set(Instant::now());
        }
        ensure!(since.get().elapsed() > QUIET, "{} writes, and more follow", written.len());
        Ok(written)
    })
    .await?;
    assert!(written.len() >= 2 * CACHES, "what was written to get here is in the log: {}", written.len());
    let before = versions(&bench).await?;
    bench.harbor.forget_requests();
    let reads = |path: String| bench.harbor.requests().iter().filter(|one| one.path == path).count();
    for look in 1..=12 {
        bench.setup.skip(Duration::from_mins(5));
        let (before, quiet) = (Cell::new(0), Cell::new(0));
        eventually(SOON, || async {
            let requests = bench.harbor.requests();
            let mut reads = BTreeMap::<&str, usize>::new();
            for request in &requests {
                *reads.entry(&request.path).or_default() += 1;
            }
            for number in 0..CACHES {
                let reads = reads.get(&*format!("/api/v2.0/projects/cache-{number}")).copied();
                let times = reads.unwrap_or_default();
                ensure!(times >= look, "cache-{number} was looked at {times} times and not {look}");
            }
            // A look that ends after the clock was moved would count from there.
            quiet.set(if before.replace(requests.len()) == requests.len() { quiet.get() + 1 } else { 0 });
            ensure!(quiet.get() >= 2, "some looks have not ended yet");
            Ok(())
        })
        .await?;
    }
    assert_eq!(bench.harbor.writes(), [], "Harbor");
    assert_eq!(versions(&bench).await?, before, "the API server");
    let since = writes(&bench.cluster)?;
    assert_eq!(
        since.get(written.len()..).unwrap_or_default(),
        [""; 0],
        "a write that changes nothing is one, too"
    );
    let requests = bench.harbor.requests().len();
    assert!(requests <= CACHES * 2 * 14, "{requests} reads: there is a busy loop");

    // A Secret that is touched and not changed is no reason to write either.
    let note = Patch::Merge(json!({"metadata": {"annotations": {"touched": "now"}}}));
    bench.secrets().patch("robot", &PatchParams::default(), &note).await?;
    eventually(SOON, || async {
        let path = "/api/v2.0/projects/cache-1".to_owned();
        ensure!(reads(path) > 12, "not looked at again");
        Ok(())
    })
    .await?;
    assert_eq!(bench.harbor.writes(), []);

    // A new lease holder trusts what is stored. It is another process, so the first one ends.
    bench.harbor.forget_requests();
    let settled = versions(&bench).await?;
    let Bench { cluster, client, harbor, own, replica: first, .. } = bench;
    first.stop().await?;
    let config = format!("harbor: {{url: '{}'}}", harbor.url());
    let second = replica(&client, &own, "two", &config)?;
    eventually(SOON, || async {
        let path = format!("/api/v2.0/projects/cache-{}", CACHES - 2);
        ensure!(harbor.requests().iter().any(|one| one.path == path), "not looked at yet");
        Ok(())
    })
    .await?;
    let written: Vec<_> = harbor.writes();
    assert!(written.len() <= CACHES / 2, "a touched Secret may be given to Harbor once: {}", written.len());
    let listed = Api::<ProxyCache>::all(client.clone()).list(&kube::api::ListParams::default()).await?;
    assert_eq!(listed.items.len(), settled.len());
    second.candidate.stop().await?;
    drop(cluster);
    Ok(())
}
