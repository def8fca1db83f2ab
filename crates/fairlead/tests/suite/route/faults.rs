//! What goes wrong, and stays small.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use fairlead_testkit::RegistryConfig;
use futures::{StreamExt, TryStreamExt, stream};

use super::rig::{image, mirror, pod, replicas, shared};

/// A registry that accepts connections and never answers holds up the first Pods for the time of a probe, and no others.
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

#[tokio::test]
async fn many_pods_at_once_cost_few_requests() -> Result<()> {
    let rig = shared().await?;
    let namespace = rig.namespace().await?;
    let (source, target) = rig.copied(RegistryConfig::new(), "many").await?;
    rig.apply(&mirror(&source, &target)).await?;
    let (asked, copy) =
        (format!("{}/team/app:1", source.host()), format!("{}/copies/team/app:1", target.host()));
    let before = (source.accesses()?.len(), target.accesses()?.len());
    let begun = Instant::now();
    let all: Vec<_> = stream::iter(0..200)
        .map(|_| async { rig.create(&namespace, &pod(&asked)).await })
        .buffer_unordered(16)
        .try_collect()
        .await?;
    for created in &all {
        ensure!(image(created) == copy, "{}", image(created));
    }
    let asked_for = (source.accesses()?.len() - before.0, target.accesses()?.len() - before.1);
    // Besides what the images cost, a registry in use is asked for a sign of life every two seconds.
    let most = 3 + begun.elapsed().as_secs() / 2;
    let few = |count: usize| u64::try_from(count).is_ok_and(|count| count <= most);
    ensure!(
        few(asked_for.0) && few(asked_for.1),
        "200 Pods cost {asked_for:?} requests in {:?}",
        begun.elapsed()
    );
    Ok(())
}
