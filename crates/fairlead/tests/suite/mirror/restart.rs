//! A new lease holder goes on where the last one was.

use anyhow::{Result, ensure};
use fairlead_operator::install::DEFAULT_NAMESPACE;
use fairlead_testkit::{RegistryConfig, Signal};
use serde_json::json;

use super::rig::{SOON, mirror_of, pod, push, slow, wait_for_copy, wait_for_status};
use crate::installed::Operator;

#[tokio::test]
async fn after_a_crash_in_mid_copy_nothing_is_lost_and_nothing_copied_again() -> Result<()> {
    let mut rig = slow().await?;
    let namespace = rig.namespace().await?;
    let source = rig.cluster.registry(RegistryConfig::new()).await?;
    let target = rig.cluster.registry(RegistryConfig::new()).await?;
    let mut digests = Vec::new();
    for number in 0..60 {
        digests.push(push(&source, &format!("team/app-{number:02}"), "1").await?);
        rig.create(&namespace, &pod(&format!("{}/team/app-{number:02}:1", source.host()))).await?;
    }
    let mirror = mirror_of(&source, &json!([{"registry": target.host()}]), &json!({}));
    rig.apply(&mirror).await?;
    let published = |registry: &fairlead_testkit::Registry| -> Result<usize> {
        let accesses = registry.accesses()?;
        Ok(accesses.iter().filter(|one| one.method == "PUT" && one.path.contains("/manifests/")).count())
    };
    fairlead_testkit::eventually(SOON, || async {
        ensure!(published(&target)? >= 10, "nothing is copied: {}", rig.operator.0.process.log_tail());
        Ok(())
    })
    .await?;
    rig.operator.0.process.signal(Signal::Kill).await?;
    let before = published(&target)?;
    ensure!(before < 60, "everything was copied before the crash, which proves nothing");

    let file = rig.cluster.directory().join("config.yaml");
    rig.operator = Operator::start_with_config(&rig.cluster, DEFAULT_NAMESPACE, &file).await?;
    for (number, digest) in digests.iter().enumerate() {
        wait_for_copy(&target, &format!("team/app-{number:02}"), "1", digest).await?;
    }
    wait_for_status(&rig, &mirror, |status| status["mirroredCount"] == 60).await?;
    // Copies that were under way when it was killed may have been published and not heard of; none of the others is sent twice.
    let published = published(&target)?;
    ensure!((60..=64).contains(&published), "{published} manifests were written, {before} before the crash");

    // Another one, with nothing left to do, writes nothing at all.
    rig.operator.0.stop().await?;
    let written = target.accesses()?.iter().filter(|one| one.method != "HEAD" && one.method != "GET").count();
    rig.operator = Operator::start_with_config(&rig.cluster, DEFAULT_NAMESPACE, &file).await?;
    rig.operator.0.wait_for_metric("fairlead_mirror_copies{state=\"Mirrored\"}", Some(60.0), SOON).await?;
    rig.operator.0.wait_for_metric("fairlead_mirror_waiting", Some(0.0), SOON).await?;
    let after = target.accesses()?.iter().filter(|one| one.method != "HEAD" && one.method != "GET").count();
    ensure!(written == after, "{} writes", after - written);
    Ok(())
}
