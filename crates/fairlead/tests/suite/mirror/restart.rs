//! A new lease holder goes on where the last one was.

use anyhow::{Result, ensure};
use fairlead_testkit::{Signal, eventually, images};
use serde_json::json;

use super::rig::{
    CONFIG, SOON, configured, digest_at, manifests_written, mirror_of, pod_of, push, requests, slow,
    wait_for_copy, wait_for_status,
};

#[tokio::test]
async fn after_a_crash_in_mid_copy_nothing_is_lost_and_nothing_copied_again() -> Result<()> {
    let mut rig = slow().await?;
    let namespace = rig.namespace().await?;
    let [source, target] = rig.registries().await?;
    let mut digests = Vec::new();
    for number in 0..60 {
        digests.push(push(&source, &format!("team/app-{number:02}"), "1").await?);
        rig.create(&namespace, &pod_of(&source, &format!("team/app-{number:02}:1"))).await?;
    }
    let mirror = mirror_of(&source, &json!([{"registry": target.host()}]), &json!({}));
    rig.apply(&mirror).await?;
    eventually(SOON, || async {
        ensure!(
            manifests_written(&target)?.len() >= 10,
            "nothing is copied: {}",
            rig.operator.0.process.log_tail()
        );
        Ok(())
    })
    .await?;
    rig.operator.0.process.signal(Signal::Kill).await?;
    let before = manifests_written(&target)?.len();
    ensure!(before < 60, "everything was copied before the crash, which proves nothing");

    rig.operator = rig.start_operator().await?;
    for (number, digest) in digests.iter().enumerate() {
        wait_for_copy(&target, &format!("team/app-{number:02}"), "1", digest).await?;
    }
    wait_for_status(&rig, &mirror, |status| status["mirroredCount"] == 60).await?;
    // Copies that were under way when it was killed may have been published and not heard of; none of the others is
    // sent twice.
    let published = manifests_written(&target)?.len();
    ensure!((60..=64).contains(&published), "{published} manifests were written, {before} before the crash");

    // Another one, with nothing left to do, writes nothing at all.
    rig.operator.0.stop().await?;
    let written = requests(&target)?.iter().filter(|one| one.method != "HEAD" && one.method != "GET").count();
    rig.operator = rig.start_operator().await?;
    rig.operator.0.wait_for_metric("fairlead_mirror_copies{state=\"Mirrored\"}", Some(60.0), SOON).await?;
    rig.operator.0.wait_for_metric("fairlead_mirror_waiting", Some(0.0), SOON).await?;
    let after = requests(&target)?.iter().filter(|one| one.method != "HEAD" && one.method != "GET").count();
    ensure!(written == after, "{} writes", after - written);
    Ok(())
}

#[tokio::test]
async fn copies_are_made_again_when_other_platforms_are_wanted() -> Result<()> {
    let mut rig = configured("mirroring: {platforms: [{architecture: amd64}]}").await?;
    let namespace = rig.namespace().await?;
    let [source, target] = rig.registries().await?;
    let whole = source.endpoint().push("several", "1", &images::multi_platform(&["amd64", "arm64"])?).await?;
    let single = push(&source, "single", "1").await?;
    for name in ["several:1", "single:1"] {
        rig.create(&namespace, &pod_of(&source, name)).await?;
    }
    let mirror = mirror_of(&source, &json!([{"registry": target.host()}]), &json!({}));
    rig.apply(&mirror).await?;
    wait_for_status(&rig, &mirror, |status| status["mirroredCount"] == 2).await?;
    let chosen = digest_at(&target, "several", "1").await?;
    ensure!(chosen.is_some() && chosen.as_ref() != Some(&whole), "it is as it was: {chosen:?}");

    rig.operator.0.stop().await?;
    rig.configure(CONFIG)?;
    rig.operator = rig.start_operator().await?;
    wait_for_copy(&target, "several", "1", &whole).await?;
    wait_for_status(&rig, &mirror, |status| status["mirroredCount"] == 2).await?;
    ensure!(digest_at(&target, "single", "1").await?.as_ref() == Some(&single));
    let written = manifests_written(&target)?;
    let of_single = written.iter().filter(|path| path.contains("/single/")).count();
    ensure!(of_single == 1, "what is right already is left alone: {written:?}");
    Ok(())
}
