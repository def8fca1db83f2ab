//! When copies go, and when they stay.

use anyhow::{Result, ensure};
use fairlead_testkit::registry::Release;
use fairlead_testkit::{RegistryConfig, eventually};
use k8s_openapi::api::core::v1::Event;
use kube::Api;
use kube::api::ListParams;
use serde_json::json;

use crate::heal::reported::{gets, waits};
use crate::route::rig::route;

use super::rig::{
    SOON, delete_pod, digest_at, mirror_of, pod_of, push, ready, shared, wait_for_copy, wait_for_removal,
    wait_for_status, wait_until_gone,
};

#[tokio::test]
async fn unused_copies_go_after_their_retention_and_each_mirror_has_its_own() -> Result<()> {
    let rig = shared().await?;
    let namespace = rig.namespace().await?;
    let source = rig.cluster.registry(RegistryConfig::new()).await?;
    let target = rig.cluster.registry(RegistryConfig::new().delete()).await?;
    let (app, other) = (push(&source, "team/app", "1").await?, push(&source, "team/other", "1").await?);
    // The same image under another tag of the same repository, which no object here knows of.
    let mirrors = json!([
        {"registry": target.host(), "path": "short"},
        {"registry": target.host(), "path": "kept", "cleanup": {"enabled": false}},
        {"registry": target.host(), "path": "long", "cleanup": {"enabled": true, "retention": "1h"}},
    ]);
    let cleanup = json!({"cleanup": {"enabled": true, "retention": "1s"}});
    let mirror = mirror_of(&source, &mirrors, &cleanup);
    rig.apply(&mirror).await?;
    let user = rig.create(&namespace, &pod_of(&source, "team/app:1")).await?;
    rig.create(&namespace, &pod_of(&source, "team/other:1")).await?;
    for path in ["short", "kept", "long"] {
        wait_for_copy(&target, &format!("{path}/team/app"), "1", &app).await?;
        wait_for_copy(&target, &format!("{path}/team/other"), "1", &other).await?;
    }
    wait_for_status(rig, &mirror, |status| status["mirroredCount"] == 6).await?;

    delete_pod(rig, &user).await?;
    wait_for_removal(&target, "short/team/app", "1").await?;
    let status = wait_for_status(rig, &mirror, |status| status["mirroredCount"] == 5).await?;
    let unused: Vec<_> = status["matchingImages"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|image| image["unusedSince"].is_string())
        .collect();
    ensure!(
        unused.len() == 1 && unused[0]["mirrors"].as_array().is_some_and(|left| left.len() == 2),
        "{unused:?}"
    );
    for path in ["kept", "long"] {
        ensure!(digest_at(&target, &format!("{path}/team/app"), "1").await?.is_some(), "{path}");
    }
    ensure!(digest_at(&target, "short/team/other", "1").await?.is_some(), "it is in use");

    // In use again, it is copied again.
    rig.create(&namespace, &pod_of(&source, "team/app:1")).await?;
    wait_for_copy(&target, "short/team/app", "1", &app).await
}

/// Healing writes the copy into the Pod; what the Pod asked for is in its record.
#[tokio::test]
async fn what_a_healed_pod_asked_for_is_in_use() -> Result<()> {
    let rig = shared().await?;
    let namespace = rig.namespace().await?;
    let source = rig.cluster.registry(RegistryConfig::new()).await?;
    let target = rig.cluster.registry(RegistryConfig::new().delete()).await?;
    let (app, other) = (push(&source, "team/app", "1").await?, push(&source, "team/other", "1").await?);
    let cleanup = json!({"cleanup": {"enabled": true, "retention": "1s"}});
    let mirror = mirror_of(&source, &json!([{"registry": target.host()}]), &cleanup);
    rig.apply(&mirror).await?;
    let user = rig.create(&namespace, &pod_of(&source, "team/app:1")).await?;
    let user_of_other = rig.create(&namespace, &pod_of(&source, "team/other:1")).await?;
    for (name, digest) in [("team/app", &app), ("team/other", &other)] {
        wait_for_copy(&target, name, "1", digest).await?;
    }
    wait_for_status(rig, &mirror, |status| status["mirroredCount"] == 2).await?;
    let pods = Api::namespaced(rig.client().await?, &namespace);
    waits(&pods, &user, "ErrImagePull", "connection refused").await?;
    let copy = format!("{}/team/app:1", target.host());
    let healed = gets(&pods, &user, &copy).await?;
    let asked = route(&healed, "app")["asked"].clone();
    ensure!(asked == format!("{}/team/app:1", source.host()).as_str(), "{asked}");

    delete_pod(rig, &user_of_other).await?;
    wait_for_removal(&target, "team/other", "1").await?;
    let status = wait_for_status(rig, &mirror, |status| status["mirroredCount"] == 1).await?;
    let images = status["matchingImages"].as_array().cloned().unwrap_or_default();
    let in_use = images.iter().filter(|image| image["unusedSince"].is_null()).count();
    ensure!(images.len() == 1 && in_use == 1, "{images:?}");
    ensure!(digest_at(&target, "team/app", "1").await?.as_ref() == Some(&app));
    Ok(())
}

#[tokio::test]
async fn where_tags_cannot_be_deleted_a_digest_that_another_tag_needs_stays() -> Result<()> {
    let rig = shared().await?;
    let namespace = rig.namespace().await?;
    let source = rig.cluster.registry(RegistryConfig::new()).await?;
    let old = rig.cluster.registry(RegistryConfig::new().release(Release::V2).delete()).await?;
    let image = fairlead_testkit::images::pause()?;
    for tag in ["1", "2"] {
        source.endpoint().push("team/app", tag, &image).await?;
    }
    push(&source, "team/lone", "1").await?;
    let cleanup = json!({"cleanup": {"enabled": true}});
    let mirror = mirror_of(&source, &json!([{"registry": old.host()}]), &cleanup);
    rig.apply(&mirror).await?;
    let first = rig.create(&namespace, &pod_of(&source, "team/app:1")).await?;
    rig.create(&namespace, &pod_of(&source, "team/app:2")).await?;
    let lone = rig.create(&namespace, &pod_of(&source, "team/lone:1")).await?;
    wait_for_status(rig, &mirror, |status| status["mirroredCount"] == 3).await?;

    delete_pod(rig, &first).await?;
    delete_pod(rig, &lone).await?;
    wait_for_removal(&old, "team/lone", "1").await?;
    wait_for_status(rig, &mirror, |status| status["imageCount"] == 2).await?;
    for tag in ["1", "2"] {
        ensure!(digest_at(&old, "team/app", tag).await?.is_some(), "both tags name the same image");
    }
    let events: Api<Event> = Api::all(rig.client().await?);
    let name = mirror["metadata"]["name"].as_str();
    eventually(SOON, || async {
        let kept = events.list(&ListParams::default()).await?.items.into_iter().find(|event| {
            event.involved_object.name.as_deref() == name && event.reason.as_deref() == Some("CopyKept")
        });
        let said = kept.and_then(|event| event.message).unwrap_or_default();
        ensure!(said.contains("cannot delete a tag alone"), "{said}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn with_its_object_copies_go_only_where_clean_up_is_on() -> Result<()> {
    let rig = shared().await?;
    let namespace = rig.namespace().await?;
    let source = rig.cluster.registry(RegistryConfig::new()).await?;
    let target = rig.cluster.registry(RegistryConfig::new().delete()).await?;
    let app = push(&source, "team/app", "1").await?;
    rig.create(&namespace, &pod_of(&source, "team/app:1")).await?;
    let clean = mirror_of(
        &source,
        &json!([{"registry": target.host(), "path": "clean"}]),
        &json!({"cleanup": {"enabled": true, "retention": "168h"}}),
    );
    let keep = mirror_of(&source, &json!([{"registry": target.host(), "path": "keep"}]), &json!({}));
    for (mirror, path) in [(&clean, "clean"), (&keep, "keep")] {
        rig.apply(mirror).await?;
        wait_for_copy(&target, &format!("{path}/team/app"), "1", &app).await?;
        wait_for_status(rig, mirror, |status| status["mirroredCount"] == 1).await?;
    }
    for mirror in [&clean, &keep] {
        rig.delete(mirror).await?;
        wait_until_gone(rig, mirror).await?;
    }
    ensure!(digest_at(&target, "clean/team/app", "1").await?.is_none(), "clean-up was on");
    ensure!(digest_at(&target, "keep/team/app", "1").await?.is_some(), "clean-up was off");
    Ok(())
}

#[tokio::test]
async fn an_object_whose_copies_cannot_be_removed_says_why() -> Result<()> {
    let rig = shared().await?;
    let namespace = rig.namespace().await?;
    let source = rig.cluster.registry(RegistryConfig::new()).await?;
    let target = rig.cluster.registry(RegistryConfig::new().delete()).await?;
    let app = push(&source, "team/app", "1").await?;
    rig.create(&namespace, &pod_of(&source, "team/app:1")).await?;
    let mirror =
        mirror_of(&source, &json!([{"registry": target.host()}]), &json!({"cleanup": {"enabled": true}}));
    rig.apply(&mirror).await?;
    wait_for_copy(&target, "team/app", "1", &app).await?;
    wait_for_status(rig, &mirror, |status| status["mirroredCount"] == 1).await?;
    target.kill().await?;
    rig.delete(&mirror).await?;
    let status = wait_for_status(rig, &mirror, |status| {
        ready(status)["message"].as_str().is_some_and(|message| message.contains("left where they are after"))
    })
    .await?;
    ensure!(ready(&status)["status"] == "False", "{status}");
    // Once the registry is back, it may go.
    target.start_again().await?;
    wait_until_gone(rig, &mirror).await?;
    ensure!(digest_at(&target, "team/app", "1").await?.is_none());
    Ok(())
}
