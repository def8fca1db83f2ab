//! Digests of image volumes, asked for at admission.

use std::time::Duration;

use anyhow::{Result, ensure};
use fairlead_testkit::images::{holding, multi_platform};
use serde_json::{Value, json};

use crate::route::rig::{annotation, mirror, push, route, shared};

const DIGESTS: &str = "fairlead.dev/volume-digests";

fn pod(volumes: &[(&str, &str)], annotations: &Value) -> Value {
    let volumes: Vec<_> =
        volumes.iter().map(|(name, image)| json!({"name": name, "image": {"reference": image}})).collect();
    json!({
        "metadata": {"generateName": "volumes-", "annotations": annotations},
        "spec": {"containers": [{"name": "app", "image": "app.invalid/app:1"}], "volumes": volumes},
    })
}

#[tokio::test]
async fn image_volumes_get_their_digests_with_a_policy_and_without() -> Result<()> {
    let rig = shared().await?;
    let namespace = rig.namespace().await?;
    let [plain, source, target, dead] = rig.registries().await?;
    let index = multi_platform(&["amd64", "arm64"])?;
    plain.endpoint().push("models", "1", &index).await?;
    push(&source, "team/app", "mirrored volume").await?;
    let copied = push(&target, "copies/team/app", "mirrored volume").await?;
    rig.apply(&mirror(&source, &target)).await?;
    let dead_host = dead.host().clone();
    dead.kill().await?;

    let pinned = format!("{}/models@{}", plain.host(), index.digest());
    let (tag, mirrored) = (format!("{}/models:1", plain.host()), format!("{}/team/app:1", source.host()));
    let volumes = [
        ("tag", tag.as_str()),
        ("digest", &pinned),
        ("mirrored", &mirrored),
        ("dead", &format!("{dead_host}/x:1")),
    ];
    // What an author writes is no proof.
    let forged = json!({DIGESTS: json!({"tag": format!("{}/models@{}", plain.host(), copied)}).to_string()});
    let created = rig.create(&namespace, &pod(&volumes, &forged)).await?;
    let noted = json!({
        "tag": pinned, "digest": pinned, "mirrored": format!("{}/copies/team/app@{copied}", target.host()),
    });
    ensure!(annotation(&created, DIGESTS).as_ref() == Some(&noted), "{:?}", created.metadata.annotations);
    ensure!(route(&created, "volume:tag")["digest"] == index.digest(), "{:?}", route(&created, "volume:tag"));
    ensure!(route(&created, "volume:dead")["digest"].is_null());

    // A copy of an annotation that nothing bears out goes; a Pod without image volumes is not about it.
    let only_dead = [("dead", format!("{dead_host}/x:1"))];
    let only_dead: Vec<_> = only_dead.iter().map(|(name, image)| (*name, image.as_str())).collect();
    let copied = json!({DIGESTS: json!({"dead": pinned}).to_string()});
    let created = rig.create(&namespace, &pod(&only_dead, &copied)).await?;
    ensure!(annotation(&created, DIGESTS).is_none(), "{:?}", created.metadata.annotations);
    let created = rig.create(&namespace, &pod(&[], &json!({}))).await?;
    ensure!(annotation(&created, DIGESTS).is_none());
    let large = json!({"example.com/large": "x".repeat(255 * 1024)});
    let created = rig.create(&namespace, &pod(&[("tag", &tag)], &large)).await?;
    ensure!(annotation(&created, DIGESTS).is_none(), "there is no room, and the Pod is not refused for it");

    // The tag moves. What is noted is no older than two seconds.
    let moved = holding("moved")?;
    plain.endpoint().push("models", "1", &moved).await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let created = rig.create(&namespace, &pod(&[("tag", &tag)], &json!({}))).await?;
    let noted = json!({"tag": format!("{}/models@{}", plain.host(), moved.digest())});
    ensure!(annotation(&created, DIGESTS).as_ref() == Some(&noted), "{:?}", created.metadata.annotations);
    Ok(())
}
