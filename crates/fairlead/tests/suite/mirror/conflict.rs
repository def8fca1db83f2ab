//! Two sources that map to one place.

use anyhow::{Context, Result, ensure};
use fairlead_testkit::images;
use serde_json::json;

use super::rig::{
    delete_pod, digest_at, mirror_of, pod, pod_of, push, ready, shared, wait_for_copy, wait_for_status,
};
use crate::person::Person;
use crate::route::rig::image;

#[tokio::test]
async fn the_second_source_is_refused_and_never_served_the_copy_of_the_first() -> Result<()> {
    let rig = shared().await?;
    let namespace = rig.namespace().await?;
    let [first, second, target] = rig.registries().await?;
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
    rig.create(&namespace, &pod_of(&first, "team/app:1")).await?;
    rig.create(&namespace, &pod_of(&first, "team/same:1")).await?;
    wait_for_status(rig, &one, |status| status["mirroredCount"] == 2).await?;

    rig.apply(&other).await?;
    let asked = format!("{}/team/app:1", second.host());
    // Before and after the ledger knows of the second source.
    let pod_of_second = rig.create(&namespace, &pod(&asked)).await?;
    ensure!(image(&pod_of_second) == asked, "{}", image(&pod_of_second));
    rig.create(&namespace, &pod_of(&second, "team/same:1")).await?;
    let status = wait_for_status(rig, &other, |status| {
        ready(status)["reason"] == "Conflict" && status["mirroredCount"] == 1 && status["failedCount"] == 1
    })
    .await?;
    let message = ready(&status)["message"].to_string();
    ensure!(message.contains(&asked) && message.contains(&first.host()), "{message}");
    let pod_of_second = rig.create(&namespace, &pod(&asked)).await?;
    ensure!(image(&pod_of_second) == asked, "{}", image(&pod_of_second));
    ensure!(digest_at(&target, "team/app", "1").await?.as_deref() == Some(&*app), "the first keeps its copy");
    let kubeconfig = rig.cluster.kubeconfig();
    let kubeconfig = kubeconfig.to_str().context("a path in plain text")?;
    let explained =
        Person::new()?.run(&["explain", &asked, "-n", &namespace, "--kubeconfig", kubeconfig], "")?;
    let copy = format!("{}/team/app:1", target.host());
    let why = format!("{copy} is not tried: what is there was copied from another image");
    ensure!(explained.is(0).output.contains(&why), "{}", explained.output);
    // The owner is served.
    rig.create_until(&namespace, &pod_of(&first, "team/app:1"), |pod| image(pod) == copy).await?;
    Ok(())
}

#[tokio::test]
async fn an_image_that_does_not_exist_blocks_no_destination() -> Result<()> {
    let rig = shared().await?;
    let (tenant, namespace) = (rig.namespace().await?, rig.namespace().await?);
    let [first, second, target] = rig.registries().await?;
    let mut own = mirror_of(&first, &json!([{"registry": target.host()}]), &json!({}));
    own["kind"] = "ImageSetMirror".into();
    own["metadata"]["namespace"] = tenant.as_str().into();
    rig.apply(&own).await?;
    rig.create(&tenant, &pod_of(&first, "team/app:1")).await?;
    wait_for_status(rig, &own, |status| status["failedCount"] == 1).await?;

    let app = push(&second, "team/app", "1").await?;
    let cluster = mirror_of(&second, &json!([{"registry": target.host()}]), &json!({"priority": -1}));
    rig.apply(&cluster).await?;
    rig.create(&namespace, &pod_of(&second, "team/app:1")).await?;
    wait_for_copy(&target, "team/app", "1", &app).await?;
    wait_for_status(rig, &cluster, |status| ready(status)["status"] == "True").await?;
    let status = wait_for_status(rig, &own, |status| ready(status)["reason"] == "Conflict").await?;
    ensure!(ready(&status)["message"].to_string().contains(&second.host()), "{status:#}");
    let copy = format!("{}/team/app:1", target.host());
    rig.create_until(&namespace, &pod_of(&second, "team/app:1"), |pod| image(pod) == copy).await?;
    // The tenant's image appears: its place is taken, and its Pods are never given the other image.
    push(&first, "team/app", "1").await?;
    let asked = format!("{}/team/app:1", first.host());
    let pod_of_tenant = rig.create(&tenant, &pod(&asked)).await?;
    ensure!(image(&pod_of_tenant) == asked, "{}", image(&pod_of_tenant));
    ensure!(digest_at(&target, "team/app", "1").await?.as_deref() == Some(&*app));
    Ok(())
}

#[tokio::test]
async fn a_cluster_scoped_object_takes_a_place_over() -> Result<()> {
    let rig = shared().await?;
    let (tenant, namespace) = (rig.namespace().await?, rig.namespace().await?);
    let [first, second, target] = rig.registries().await?;
    let (theirs, app) = (push(&first, "team/app", "1").await?, push(&second, "team/app", "1").await?);
    let mut own = mirror_of(&first, &json!([{"registry": target.host()}]), &json!({"priority": -1}));
    own["kind"] = "ImageSetMirror".into();
    own["metadata"]["namespace"] = tenant.as_str().into();
    rig.apply(&own).await?;
    let asked = format!("{}/team/app:1", first.host());
    rig.create(&tenant, &pod(&asked)).await?;
    wait_for_copy(&target, "team/app", "1", &theirs).await?;
    let copy = format!("{}/team/app:1", target.host());
    let given = rig.create_until(&tenant, &pod(&asked), |pod| image(pod) == copy).await?;

    let cluster = mirror_of(&second, &json!([{"registry": target.host()}]), &json!({"priority": -1}));
    rig.apply(&cluster).await?;
    rig.create(&namespace, &pod_of(&second, "team/app:1")).await?;
    // While a Pod runs the tenant's copy, nothing else may stand under its name; no new Pod is given it.
    let status = wait_for_status(rig, &cluster, |status| ready(status)["reason"] == "Conflict").await?;
    ensure!(
        ready(&status)["message"].to_string().contains("it is replaced when no Pod names it"),
        "{status:#}"
    );
    ensure!(digest_at(&target, "team/app", "1").await?.as_ref() == Some(&theirs));
    rig.create_until(&tenant, &pod(&asked), |pod| image(pod) == asked).await?;
    delete_pod(rig, &given).await?;
    wait_for_copy(&target, "team/app", "1", &app).await?;
    rig.create_until(&namespace, &pod_of(&second, "team/app:1"), |pod| image(pod) == copy).await?;
    Ok(())
}

#[tokio::test]
async fn places_that_an_object_declares_to_be_replicas_do_not_conflict() -> Result<()> {
    let rig = shared().await?;
    let namespace = rig.namespace().await?;
    let [first, second, target] = rig.registries().await?;
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
    rig.create(&namespace, &pod_of(&first, "team/app:1")).await?;
    wait_for_copy(&target, "team/app", "1", &app).await?;
    rig.create(&namespace, &pod_of(&second, "team/app:1")).await?;
    let status =
        wait_for_status(rig, &mirror, |status| status["imageCount"] == 2 && status["mirroredCount"] == 2)
            .await?;
    ensure!(status["failedCount"] == 0, "{status}");
    Ok(())
}
