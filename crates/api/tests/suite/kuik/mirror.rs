//! `ClusterImageSetMirror` and `ImageSetMirror`.

use anyhow::{Context, Result, ensure};
use fairlead_api::kuik;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::{
    bad_filters, bad_image_filters, bad_registries, good_entries, good_filters, only_on_cluster_wide_kinds,
};
use crate::refused::{Refusal, assert_accepted, assert_refused, change, refusal, without};

fn mirror(kind: &str) -> Value {
    json!({
        "apiVersion": "kuik.enix.io/v1alpha1",
        "kind": kind,
        "metadata": { "name": "good" },
        "spec": {
            "priority": -1,
            "filter": { "include": [{ "image": "docker.io/library/.+" }, { "label": "app=web" }], "exclude": [{ "annotation": "keep" }] },
            "cleanup": { "enabled": true, "retention": "168h" },
            "mirrors": [
                { "registry": "registry.example.com", "path": "/mirror", "priority": 5, "credentialSecret": { "name": "s", "namespace": "n" } },
                { "registry": "harbor:5000" },
            ],
        },
    })
}

fn bad_retentions() -> Vec<Refusal> {
    vec![
        refusal(change("/spec/cleanup/retention", "7d"), "spec.cleanup.retention", "7 days are 168h"),
        refusal(change("/spec/cleanup/retention", "-1h"), "spec.cleanup.retention", "not a duration"),
        refusal(change("/spec/cleanup/retention", "1h-30m"), "spec.cleanup.retention", "not a duration"),
        refusal(
            change("/spec/cleanup/retention", ""),
            "spec.cleanup.retention",
            "write numbers with the units",
        ),
        refusal(change("/spec/cleanup/retention", 3600), "spec.cleanup.retention", "string"),
        refusal(change("/spec/cleanup/retention", "9999999999h"), "spec.cleanup.retention", "not a duration"),
        refusal(change("/spec/cleanup/retention", "1h".repeat(33)), "spec.cleanup.retention", "64"),
        refusal(
            change("/spec/mirrors/1/cleanup/retention", "2w"),
            "spec.mirrors[1].cleanup.retention",
            "168h",
        ),
    ]
}

fn bad_mirrors() -> Vec<Refusal> {
    let mut refusals =
        bad_registries("/spec/mirrors/0/registry", "spec.mirrors[0].registry", "spec.mirrors[0].path");
    refusals.extend(bad_filters());
    refusals.extend(bad_image_filters());
    refusals.extend(bad_retentions());
    refusals.extend([
        refusal(without("/spec/mirrors/0/registry"), "spec.mirrors[0].registry", "Required value"),
        refusal(
            change("/spec/mirrors/0/priority", -1),
            "spec.mirrors[0].priority",
            "greater than or equal to 0",
        ),
        refusal(change("/spec/mirrors/0/priority", "high"), "spec.mirrors[0].priority", "integer"),
        refusal(change("/spec/priority", 0.5), "spec.priority", "integer"),
        refusal(change("/spec/priority", 1e30), "spec.priority", "less than or equal to"),
        refusal(change("/spec/cleanup/enabled", "yes"), "spec.cleanup.enabled", "boolean"),
        refusal(
            without("/spec/mirrors/0/credentialSecret/name"),
            "spec.mirrors[0].credentialSecret.name",
            "Required value",
        ),
        refusal(
            change("/spec/mirrors/0/credentialSecret/name", ""),
            "spec.mirrors[0].credentialSecret.name",
            "lower-case letters",
        ),
        refusal(
            change("/spec/mirrors/0/credentialsSecret", json!({})),
            "spec.mirrors[0].credentialsSecret",
            "unknown field",
        ),
        refusal(
            change(
                "/spec/mirrors",
                (0..33).map(|n| json!({ "registry": format!("r{n}.example.com") })).collect::<Vec<_>>(),
            ),
            "spec.mirrors",
            "must have at most 32 items",
        ),
    ]);
    refusals
}

#[tokio::test]
async fn cluster_image_set_mirror() -> Result<()> {
    let good = mirror("ClusterImageSetMirror");
    let mut refusals = bad_mirrors();
    refusals.extend(only_on_cluster_wide_kinds(
        "spec.mirrors[0].credentialSecret.namespace",
        "/spec/mirrors/0/credentialSecret/namespace",
    ));
    refusals.push(refusal(
        change("/spec/filter/include/1", json!({ "namespace": "prod-(" })),
        "spec.filter.include[1].namespace",
        "check brackets",
    ));
    assert_refused(&good, refusals).await?;
    let mut accepted = good_entries("/spec/mirrors/0/registry", "/spec/mirrors/0/path");
    accepted.extend(good_filters());
    accepted.extend([
        change("/spec/filter/include/1", json!({ "namespace": "prod-.+" })),
        change("/spec/filter", json!({ "include": [{ "image": "" }] })),
        change("/spec/cleanup/retention", "0"),
        change("/spec/cleanup/retention", "+1.5h"),
        change("/spec/priority", i64::from(i32::MIN)),
        change("/spec/mirrors/0/priority", 4_000_000_000_u32),
        without("/spec"),
    ]);
    assert_accepted(&good, accepted).await
}

#[tokio::test]
async fn image_set_mirror() -> Result<()> {
    let good = mirror("ImageSetMirror");
    let mut refusals = bad_mirrors();
    refusals.push(refusal(
        change("/spec/filter/include/0", json!({ "namespace": "prod" })),
        "spec.filter.include[0].namespace",
        "unknown field",
    ));
    assert_refused(&good, refusals).await?;
    let mut accepted = good_entries("/spec/mirrors/0/registry", "/spec/mirrors/0/path");
    accepted.extend(good_filters());
    accepted.extend([
        without("/spec/mirrors/0/credentialSecret/namespace"),
        change("/spec/mirrors/0/credentialSecret/namespace", "elsewhere"),
        change("/spec/mirrors/0/credentialSecret/namespace", ""),
        without("/spec"),
    ]);
    assert_accepted(&good, accepted).await
}

#[tokio::test]
async fn state_that_kuik_left_behind_is_kept_by_the_server_and_read_back() -> Result<()> {
    let client = crate::definitions::client().await?;
    let namespace = fairlead_testkit::shared().await.namespace("adopted").await?;
    let mirrors: Api<kuik::ImageSetMirror> = Api::namespaced(client, &namespace);
    let object: kuik::ImageSetMirror = serde_json::from_value(mirror("ImageSetMirror"))?;
    mirrors.create(&PostParams::default(), &object).await?;
    let status = json!({ "status": { "matchingImages": [{
        "image": "docker.io/library/nginx:1.29",
        "unusedSince": kuik::NO_LONGER_MATCHING,
        "mirrors": [
            { "image": "registry.example.com/mirror/library/nginx:1.29", "mirroredAt": "2026-02-03T04:05:06Z" },
            { "image": "harbor:5000/library/nginx:1.29", "lastError": "denied" },
        ],
    }] } });
    mirrors.patch_status("good", &PatchParams::default(), &Patch::Merge(&status)).await?;
    let read = mirrors.get("good").await?;
    let kept = serde_json::to_value(read.status.context("no status")?)?;
    ensure!(kept == status["status"], "{kept}");
    mirrors.delete("good", &DeleteParams::default()).await?;
    Ok(())
}
