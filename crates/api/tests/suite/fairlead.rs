//! The fairlead.dev kinds: the program alone writes them, and a program with a fault must not spoil them either.

use anyhow::{Context, Result, ensure};
use fairlead_api::fairlead::{ImageLedger, ImageLedgerStatus, ImagePin, MAX_WARMED_NODES, WarmLedger};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::refused::{assert_accepted, assert_refused, change, refusal, without};

const DIGEST: &str = "sha256:4f53cda18c2baa0c0354bb5f9a3ecbe5ed12ab4d8e11ba873c2f11161202b945";
const OTHER_DIGEST: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
const UID: &str = "6f8f9f2e-7f0b-4a57-9b6a-2f6b8c1d3e4f";

fn copy(number: usize) -> Value {
    json!({
        "destination": format!("registry.example.com/mirror/library/nginx:{number}"),
        "digest": DIGEST,
        "state": "Mirrored",
        "since": "2026-02-03T04:05:06Z",
    })
}

fn ledger() -> Value {
    json!({
        "apiVersion": "fairlead.dev/v1alpha1",
        "kind": "ImageLedger",
        "metadata": { "name": "good" },
        "spec": {
            "owner": { "kind": "ClusterImageSetMirror", "name": "private-mirror", "uid": UID },
            "entries": [{
                "source": "docker.io/library/nginx:1.29",
                "sourceDigest": DIGEST,
                "unusedSince": "0001-01-01T01:00:00Z",
                "mirrors": [copy(0), {
                    "destination": "[::1]:5000/library/nginx@sha256:4f53cda18c2baa0c0354bb5f9a3ecbe5ed12ab4d8e11ba873c2f11161202b945",
                    "state": "Failed", "since": "2026-02-03T04:05:06Z", "lastError": "denied",
                }],
            }],
        },
    })
}

fn pin() -> Value {
    json!({
        "apiVersion": "fairlead.dev/v1alpha1",
        "kind": "ImagePin",
        "metadata": { "name": "good" },
        "spec": {
            "workload": { "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-5d8f6c7b9", "uid": UID },
            "revision": "5d8f6c7b9",
            "images": [{
                "asked": "registry.example.com/models/speech:v3",
                "digest": DIGEST,
                "resolvedFrom": "mirror.example.com/models/speech:v3",
                "resolvedAt": "2026-02-03T04:05:06Z",
            }],
        },
    })
}

fn warmed(number: usize) -> Value {
    json!({
        "uid": format!("{UID}-{number}"), "name": format!("node-{number}.example.com"), "attempt": 2,
        "pulledAt": "2026-02-03T04:05:06Z", "failures": 1, "failedAt": "2026-02-03T04:05:07Z",
        "reason": "ErrImagePull", "message": "x".repeat(256), "digest": OTHER_DIGEST,
        "reference": "mirror.example.com/library/nginx:1.29",
    })
}

fn warm_ledger() -> Value {
    json!({
        "apiVersion": "fairlead.dev/v1alpha1",
        "kind": "WarmLedger",
        "metadata": { "name": "good" },
        "spec": {
            "owner": { "name": "web", "uid": UID },
            "reference": "docker.io/library/nginx:1.29",
            "digest": DIGEST,
            "lastStart": "2026-02-03T04:05:06Z",
            "nodes": [warmed(0)],
        },
    })
}

/// Entries with `total` copies among them.
fn entries(total: usize) -> Vec<Value> {
    let copies: Vec<_> = (0..total).map(copy).collect();
    let entry = |mirrors: &[Value]| json!({ "source": "docker.io/library/nginx:1.29", "mirrors": mirrors });
    copies.chunks(25).map(entry).collect()
}

#[tokio::test]
async fn image_ledger() -> Result<()> {
    let refusals = vec![
        refusal(without("/spec"), "spec", "Required value"),
        refusal(without("/spec/owner"), "spec.owner", "Required value"),
        refusal(change("/spec/owner/kind", "Deployment"), "spec.owner.kind", "ClusterImageSetMirror"),
        refusal(change("/spec/owner/name", "Private_Mirror"), "spec.owner.name", "lower-case letters"),
        refusal(change("/spec/owner/uid", ""), "spec.owner.uid", "at least 1"),
        refusal(without("/spec/entries/0/source"), "spec.entries[0].source", "Required value"),
        refusal(
            change("/spec/entries/0/source", "nginx"),
            "spec.entries[0].source",
            "docker.io/library/nginx:1.29",
        ),
        refusal(
            change("/spec/entries/0/source", "https://docker.io/a:1"),
            "spec.entries[0].source",
            "not a full image reference",
        ),
        refusal(
            change("/spec/entries/0/sourceDigest", "sha256:4f53"),
            "spec.entries[0].sourceDigest",
            "64 hexadecimal digits",
        ),
        refusal(
            change("/spec/entries/0/sourceDigest", "latest"),
            "spec.entries[0].sourceDigest",
            "not a digest",
        ),
        refusal(
            change("/spec/entries/0/unusedSince", "yesterday"),
            "spec.entries[0].unusedSince",
            "date-time",
        ),
        refusal(
            change("/spec/entries/0/mirrors/0/destination", "library/nginx:1"),
            "spec.entries[0].mirrors[0].destination",
            "should match",
        ),
        refusal(
            change("/spec/entries/0/mirrors/0/state", "Done"),
            "spec.entries[0].mirrors[0].state",
            "\"Mirrored\"",
        ),
        refusal(
            without("/spec/entries/0/mirrors/0/since"),
            "spec.entries[0].mirrors[0].since",
            "Required value",
        ),
        refusal(
            without("/spec/entries/0/mirrors/0/digest"),
            "spec.entries[0].mirrors[0].digest",
            "must be set where state is Mirrored",
        ),
        refusal(
            without("/spec/entries/0/mirrors/1/lastError"),
            "spec.entries[0].mirrors[1].lastError",
            "must say why",
        ),
        refusal(
            change("/spec/entries/0/mirrors/1/lastError", "x".repeat(1025)),
            "spec.entries[0].mirrors[1].lastError",
            "1024",
        ),
        refusal(
            change("/spec/entries/0/watch", json!({ "status": "Gone", "original": true })),
            "spec.entries[0].watch.status",
            "\"NotFound\"",
        ),
        refusal(
            change("/spec/entries/0/watch", json!({ "lastError": "x".repeat(1025) })),
            "spec.entries[0].watch.lastError",
            "1024",
        ),
        refusal(change("/spec/entries", entries(501)), "spec.entries", "continue in another ImageLedger"),
        refusal(change("/spec/entries/0/mirror", json!([])), "spec.entries[0].mirror", "unknown field"),
    ];
    assert_refused(&ledger(), refusals).await?;
    assert_accepted(
        &ledger(),
        vec![
            change("/spec/entries", entries(500)),
            change("/spec/entries", json!([])),
            without("/spec/entries"),
            change("/spec/owner/kind", "ClusterImageSetAvailability"),
            change(
                "/spec/entries/0/watch",
                json!({ "status": "NotFound", "lastMonitor": "2026-02-03T04:05:06Z", "lastError": "gone", "original": true }),
            ),
        ],
    )
    .await
}

#[tokio::test]
async fn image_pin() -> Result<()> {
    let again = json!({ "asked": "registry.example.com/models/speech:v3", "digest": OTHER_DIGEST, "resolvedAt": "2026-02-03T04:05:06Z" });
    let refusals = vec![
        refusal(without("/spec"), "spec", "Required value"),
        refusal(without("/spec/workload"), "spec.workload", "Required value"),
        refusal(without("/spec/workload/kind"), "spec.workload.kind", "Required value"),
        refusal(change("/spec/workload/name", "Web"), "spec.workload.name", "lower-case letters"),
        refusal(change("/spec/workload/uid", ""), "spec.workload.uid", "at least 1"),
        refusal(without("/spec/revision"), "spec.revision", "Required value"),
        refusal(change("/spec/revision", ""), "spec.revision", "at least 1"),
        refusal(change("/spec/images", json!([])), "spec.images", "at least 1"),
        refusal(without("/spec/images/0/asked"), "spec.images[0].asked", "Required value"),
        refusal(
            change("/spec/images/0/asked", "speech"),
            "spec.images[0].asked",
            "write registry, repository and tag",
        ),
        refusal(without("/spec/images/0/digest"), "spec.images[0].digest", "Required value"),
        refusal(change("/spec/images/0/digest", "v3"), "spec.images[0].digest", "write sha256:"),
        refusal(
            change("/spec/images/0/digest", DIGEST.to_uppercase()),
            "spec.images[0].digest",
            "in lower case",
        ),
        refusal(
            change("/spec/images/0/resolvedFrom", "mirror"),
            "spec.images[0].resolvedFrom",
            "not a full image reference",
        ),
        refusal(change("/spec/images/0/resolvedAt", "now"), "spec.images[0].resolvedAt", "date-time"),
        refusal(change("/spec/images/1", again), "spec.images[1]", "Duplicate value"),
        refusal(change("/spec/image", "x"), "spec.image", "unknown field"),
    ];
    assert_refused(&pin(), refusals).await?;
    assert_accepted(&pin(), vec![without("/spec/images/0/resolvedFrom")]).await
}

#[tokio::test]
async fn what_is_pinned_stays_pinned() -> Result<()> {
    let client = crate::definitions::client().await?;
    let namespace = fairlead_testkit::shared().await.namespace("pinned").await?;
    let pins: Api<ImagePin> = Api::namespaced(client, &namespace);
    let object: ImagePin = serde_json::from_value(pin())?;
    pins.create(&PostParams::default(), &object).await?;

    let mut more = object.spec.images.clone();
    more.push(serde_json::from_value(json!({
        "asked": "registry.example.com/tools/reader:1.4", "digest": OTHER_DIGEST, "resolvedAt": "2026-02-03T04:05:07Z",
    }))?);
    let patch = |spec: Value| Patch::Merge(json!({ "spec": spec }));
    pins.patch("good", &PatchParams::default(), &patch(json!({ "images": more })))
        .await
        .context("another image")?;

    more[0].digest = OTHER_DIGEST.to_owned();
    for (spec, field, remedy) in [
        (json!({ "images": more }), "spec.images[0].digest", "delete the ImagePin"),
        (json!({ "revision": "other" }), "spec.revision", "make another ImagePin"),
        (json!({ "workload": { "name": "other" } }), "spec.workload", "make another ImagePin"),
    ] {
        let message = match pins.patch("good", &PatchParams::default(), &patch(spec)).await {
            Ok(_) => String::from("accepted"),
            Err(error) => error.to_string(),
        };
        ensure!(message.contains(field) && message.contains(remedy), "{field}: {message}");
    }
    pins.delete("good", &DeleteParams::default()).await?;
    Ok(())
}

#[tokio::test]
async fn a_full_ledger_fits_into_one_object_and_is_written_in_one_piece() -> Result<()> {
    let client = crate::definitions::client().await?;
    let namespace = fairlead_testkit::shared().await.namespace("ledger").await?;
    let ledgers: Api<ImageLedger> = Api::namespaced(client, &namespace);
    let mut object: ImageLedger = serde_json::from_value(ledger())?;
    object.spec.entries = entries(500).into_iter().map(serde_json::from_value).collect::<Result<_, _>>()?;
    let params = PatchParams::apply("fairlead-mirror");
    let applied = ledgers.patch("good", &params, &Patch::Apply(&object)).await?;
    ensure!(applied.spec == object.spec, "what was applied is not what was sent");
    let size = serde_json::to_vec(&applied)?.len();
    ensure!(size < 512 * 1024, "{} has {size} bytes", applied.name_any());
    let managed = serde_json::to_vec(&applied.metadata.managed_fields)?.len();
    ensure!(managed < 4 * 1024, "the record of who owns which field has {managed} bytes");

    let mut watched = applied;
    watched.spec.entries.clear();
    watched.status = Some(ImageLedgerStatus { image_count: Some(0), ..ImageLedgerStatus::default() });
    let replaced = ledgers.replace("good", &PostParams::default(), &watched).await?;
    ensure!(replaced.spec.entries.is_empty() && replaced.status == watched.status, "one write carries both");
    ledgers.delete("good", &DeleteParams::default()).await?;
    Ok(())
}

#[tokio::test]
async fn warm_ledger_rows() -> Result<()> {
    let many = |count: usize| (0..count).map(warmed).collect::<Vec<_>>();
    let refusals = vec![
        refusal(without("/spec/owner"), "spec.owner", "Required value"),
        refusal(change("/spec/owner/name", "Web"), "spec.owner.name", "lower-case letters"),
        refusal(change("/spec/reference", "nginx"), "spec.reference", "not a full image reference"),
        refusal(change("/spec/digest", "latest"), "spec.digest", "not a digest"),
        refusal(without("/spec/nodes/0/uid"), "spec.nodes[0].uid", "Required value"),
        refusal(change("/spec/nodes/0/attempt", 0), "spec.nodes[0].attempt", "greater than or equal to 1"),
        refusal(change("/spec/nodes/0/message", "x".repeat(257)), "spec.nodes[0].message", "256"),
        refusal(change("/spec/nodes/0/pulledAt", "now"), "spec.nodes[0].pulledAt", "date-time"),
        refusal(change("/spec/nodes", many(MAX_WARMED_NODES + 1)), "spec.nodes", "at most 250"),
    ];
    assert_refused(&warm_ledger(), refusals).await?;
    assert_accepted(&warm_ledger(), vec![without("/spec/nodes"), without("/spec/nodes/0/pulledAt")]).await
}

#[tokio::test]
async fn a_full_warm_ledger_fits_into_one_object() -> Result<()> {
    let client = crate::definitions::client().await?;
    let namespace = fairlead_testkit::shared().await.namespace("warm").await?;
    let ledgers: Api<WarmLedger> = Api::namespaced(client, &namespace);
    let mut object: WarmLedger = serde_json::from_value(warm_ledger())?;
    let nodes = (0..MAX_WARMED_NODES).map(warmed).map(serde_json::from_value);
    object.spec.nodes = nodes.collect::<Result<_, _>>()?;
    let stored = ledgers.create(&PostParams::default(), &object).await?;
    ensure!(stored.spec == object.spec, "what was stored is not what was sent");
    let size = serde_json::to_vec(&stored)?.len();
    ensure!(size < 512 * 1024, "{size} bytes");
    ledgers.delete("good", &DeleteParams::default()).await?;
    Ok(())
}
