//! Two sources that map to one place.

use anyhow::{Result, ensure};
use fairlead_testkit::{RegistryConfig, images};
use serde_json::json;

use super::rig::{digest_at, mirror_of, pod, push, ready, shared, wait_for_copy, wait_for_status};
use crate::route::rig::image;

#[tokio::test]
async fn the_second_source_is_refused_and_never_served_the_copy_of_the_first() -> Result<()> {
    let rig = shared().await?;
    let namespace = rig.namespace().await?;
    let first = rig.cluster.registry(RegistryConfig::new()).await?;
    let second = rig.cluster.registry(RegistryConfig::new()).await?;
    let target = rig.cluster.registry(RegistryConfig::new()).await?;
    let app = push(&first, "team/app", "1").await?;
    push(&second, "team/app", "1").await?;
    // The same image in both places is no conflict.
    let shared_image = images::pause()?;
    for registry in [&first, &second] {
        registry.endpoint().push("team/same", "1", &shared_image).await?;
    }
    let one = mirror_of(&first, &json!([{"registry": target.host()}]), &json!({"priority": -1}));
    let other = mirror_of(&second, &json!([{"registry": target.host()}]), &json!({"priority": -1}));
    rig.apply(&one).await?;
    rig.create(&namespace, &pod(&format!("{}/team/app:1", first.host()))).await?;
    rig.create(&namespace, &pod(&format!("{}/team/same:1", first.host()))).await?;
    wait_for_status(rig, &one, |status| status["mirroredCount"] == 2).await?;

    rig.apply(&other).await?;
    let asked = format!("{}/team/app:1", second.host());
    // Before and after the ledger knows of the second source.
    let pod_of_second = rig.create(&namespace, &pod(&asked)).await?;
    ensure!(image(&pod_of_second) == asked, "{}", image(&pod_of_second));
    rig.create(&namespace, &pod(&format!("{}/team/same:1", second.host()))).await?;
    let status = wait_for_status(rig, &other, |status| {
        ready(status)["reason"] == "Conflict" && status["mirroredCount"] == 1 && status["failedCount"] == 1
    })
    .await?;
    let message = ready(&status)["message"].to_string();
    ensure!(message.contains(&asked) && message.contains(&first.host()), "{message}");
    let pod_of_second = rig.create(&namespace, &pod(&asked)).await?;
    ensure!(image(&pod_of_second) == asked, "{}", image(&pod_of_second));
    ensure!(digest_at(&target, "team/app", "1").await?.as_deref() == Some(&*app), "the first keeps its copy");
    // The owner is served.
    let copy = format!("{}/team/app:1", target.host());
    rig.create_until(&namespace, &pod(&format!("{}/team/app:1", first.host())), |pod| image(pod) == copy)
        .await?;
    Ok(())
}

#[tokio::test]
async fn places_that_an_object_declares_to_be_replicas_do_not_conflict() -> Result<()> {
    let rig = shared().await?;
    let namespace = rig.namespace().await?;
    let first = rig.cluster.registry(RegistryConfig::new()).await?;
    let second = rig.cluster.registry(RegistryConfig::new()).await?;
    let target = rig.cluster.registry(RegistryConfig::new()).await?;
    let app = push(&first, "team/app", "1").await?;
    push(&second, "team/app", "1").await?;
    rig.apply(&crate::route::rig::replicas(&first, &second)).await?;
    let mirror = mirror_of(
        &first,
        &json!([{"registry": target.host()}]),
        &json!({
            "imageFilter": {"include": [format!("({}|{})/.*", first.host(), second.host())]},
        }),
    );
    rig.apply(&mirror).await?;
    rig.create(&namespace, &pod(&format!("{}/team/app:1", first.host()))).await?;
    wait_for_copy(&target, "team/app", "1", &app).await?;
    rig.create(&namespace, &pod(&format!("{}/team/app:1", second.host()))).await?;
    let status =
        wait_for_status(rig, &mirror, |status| status["imageCount"] == 2 && status["mirroredCount"] == 2)
            .await?;
    ensure!(status["failedCount"] == 0, "{status}");
    Ok(())
}
