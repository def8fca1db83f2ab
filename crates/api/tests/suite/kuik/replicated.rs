//! `ClusterReplicatedImageSet` and `ReplicatedImageSet`.

use anyhow::Result;
use serde_json::{Value, json};

use super::{bad_filters, bad_registries, good_entries, good_filters, only_on_cluster_wide_kinds};
use crate::refused::{Refusal, assert_accepted, assert_refused, change, refusal, without};

fn replicas(kind: &str) -> Value {
    json!({
        "apiVersion": "kuik.enix.io/v1alpha1",
        "kind": kind,
        "metadata": { "name": "good" },
        "spec": {
            "filter": { "include": [{ "label": "app in (a, b)" }] },
            "upstreams": [
                { "registry": "docker.io", "path": "/library", "imageFilter": { "include": ["/library/.+"] }, "discardAlternative": true },
                { "registry": "quay.io", "path": "", "priority": 3, "credentialSecret": { "name": "s", "namespace": "n" } },
            ],
        },
    })
}

fn bad_upstreams() -> Vec<Refusal> {
    let mut refusals =
        bad_registries("/spec/upstreams/0/registry", "spec.upstreams[0].registry", "spec.upstreams[0].path");
    refusals.extend(bad_filters());
    refusals.extend([
        refusal(
            change("/spec/filter/include/0", json!({ "image": ".*" })),
            "spec.filter.include[0].image",
            "spec.upstreams[].imageFilter",
        ),
        refusal(without("/spec/upstreams/0/registry"), "spec.upstreams[0].registry", "Required value"),
        refusal(without("/spec/upstreams/0/path"), "spec.upstreams[0].path", "Required value"),
        refusal(
            change("/spec/upstreams/0/priority", -5),
            "spec.upstreams[0].priority",
            "greater than or equal to 0",
        ),
        refusal(
            change("/spec/upstreams/0/imageFilter/include/0", "/a(b"),
            "spec.upstreams[0].imageFilter.include[0]",
            "check brackets",
        ),
        refusal(
            change("/spec/upstreams/0/discardAlternative", "true"),
            "spec.upstreams[0].discardAlternative",
            "boolean",
        ),
        refusal(
            without("/spec/upstreams/1/credentialSecret/name"),
            "spec.upstreams[1].credentialSecret.name",
            "Required value",
        ),
        refusal(change("/spec/imageFilter", json!({})), "spec.imageFilter", "unknown field"),
        refusal(
            change("/spec/upstreams", vec![json!({ "registry": "quay.io", "path": "" }); 33]),
            "spec.upstreams",
            "must have at most 32 items",
        ),
    ]);
    refusals
}

#[tokio::test]
async fn cluster_replicated_image_set() -> Result<()> {
    let good = replicas("ClusterReplicatedImageSet");
    let mut refusals = bad_upstreams();
    refusals.extend(only_on_cluster_wide_kinds(
        "spec.upstreams[1].credentialSecret.namespace",
        "/spec/upstreams/1/credentialSecret/namespace",
    ));
    assert_refused(&good, refusals).await?;
    let mut accepted = good_entries("/spec/upstreams/0/registry", "/spec/upstreams/0/path");
    accepted.extend(good_filters());
    accepted.extend([change("/spec/filter/include/0", json!({ "namespace": ".*" })), without("/spec")]);
    assert_accepted(&good, accepted).await
}

#[tokio::test]
async fn replicated_image_set() -> Result<()> {
    let good = replicas("ReplicatedImageSet");
    let mut refusals = bad_upstreams();
    refusals.push(refusal(
        change("/spec/filter/include/0", json!({ "namespace": "prod" })),
        "spec.filter.include[0].namespace",
        "unknown field",
    ));
    assert_refused(&good, refusals).await?;
    let mut accepted = good_entries("/spec/upstreams/0/registry", "/spec/upstreams/0/path");
    accepted.extend(good_filters());
    accepted.extend([without("/spec/upstreams/1/credentialSecret/namespace"), without("/spec")]);
    assert_accepted(&good, accepted).await
}
