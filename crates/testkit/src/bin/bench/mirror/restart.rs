//! An operator that starts when everything is copied already: it must find that out from its ledgers, copy nothing, and
//! ask registries for each image once at most.
//!
//! The registries are doubles in this process: all images are one, under as many tags as wanted.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use fairlead_testkit::fake_registry::{FakeRegistry, Logged};
use fairlead_testkit::images::ImageBuilder;
use fairlead_testkit::measure::{Bar, mebibytes};
use futures::{StreamExt, TryStreamExt, stream};
use kube::Api;
use kube::api::PostParams;
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use serde_json::{Value, json};

use super::stage::{ACCOUNT, HOME, Stage};
use crate::copies::{count, in_mebibytes};

const REPOSITORY: &str = "team/app";
const NAME: &str = "bench";
/// Repository of usage lists in a mirror.
const USAGE_LISTS: &str = "fairlead-usage";
/// Images of one Pod, so that there are fewer Pods than images, as in clusters.
const PER_POD: usize = 10;
const PER_LEDGER: usize = 500;
const AT_ONCE: usize = 4;
const DEADLINE: Duration = Duration::from_mins(5);
/// An operator that has asked nothing for so long has nothing more to ask now.
const QUIET: Duration = Duration::from_secs(5);
/// Peak memory of the operator, in MiB.
const MOST_MEMORY: f64 = 64.0;

pub(crate) async fn restart(images: usize) -> Result<Vec<Bar>> {
    let stage = Stage::set_up().await?;
    let (source, destination) = (FakeRegistry::start().await?, FakeRegistry::start().await?);
    let digest = fill(&[&source, &destination], images)?;
    let all: Vec<String> = (0..images).map(|number| reference(&source.host(), number)).collect();
    let pods: Vec<Vec<String>> = all.chunks(PER_POD).map(<[String]>::to_vec).collect();
    stage.pods(&pods).await?;
    let uid = stage.mirror(NAME, &source.host(), &destination.host()).await?;
    write_ledgers(&stage, &uid, &destination.host(), &digest, &all).await?;
    let before = stage.writes()?;

    let begun = Instant::now();
    let operator = stage.operator(pods.len()).await?;
    let told = stage.until_mirrored(NAME, images, DEADLINE).await;
    told.with_context(|| operator.process.log_tail())?;
    let told = begun.elapsed();
    let writes = stage.settled_writes(before, DEADLINE).await?;
    until_quiet(&[&source, &destination]).await?;
    let peak = operator.process.peak_memory()?;
    operator.stop().await?;

    let (from, to) = (source.requests(), destination.requests());
    // The usage list of the cluster is not a copy.
    let is_write = |request: &&Logged| {
        !matches!(request.method.as_str(), "HEAD" | "GET") && !request.path.contains(USAGE_LISTS)
    };
    let copies = from.iter().chain(&to).filter(is_write).count();
    // Whether a registry is alive is asked of the registry, not for each image.
    let is_look = |request: &&Logged| request.path.contains("/manifests/");
    let (at_source, at_destination) =
        (from.iter().filter(is_look).count(), to.iter().filter(is_look).count());
    println!(
        "\nRestart with {images} images copied already: the status is right after {:.1} s; {at_source} looks at the \
         source, {at_destination} at the destination; {} ledger and {} status writes; peak memory {}",
        told.as_secs_f64(),
        writes.ledgers,
        writes.statuses,
        mebibytes(peak)
    );
    Ok(vec![
        Bar::at_most("restart: requests that write to a registry", count(copies), 0.0),
        Bar::at_most(
            "restart: looks at the destination, for each copy",
            count(at_destination) / count(images),
            1.0,
        ),
        Bar::at_most("restart: looks at the source, for each image", count(at_source) / count(images), 1.0),
        Bar::at_most(
            "restart: ledgers that are written although nothing has changed",
            count(writes.ledgers),
            0.0,
        ),
        Bar::at_most("restart: peak memory in MiB", in_mebibytes(peak), MOST_MEMORY),
    ])
}

fn reference(host: &str, number: usize) -> String {
    format!("{host}/{REPOSITORY}:v{number:05}")
}

/// One image under many tags in each registry. Returns its digest.
fn fill(registries: &[&FakeRegistry], images: usize) -> Result<String> {
    let image = ImageBuilder::new().label("bench", "restart").build()?;
    let root = image.root();
    for registry in registries {
        registry.hold(REPOSITORY, "first", &image);
        for number in 0..images {
            registry.hold_manifest(
                REPOSITORY,
                &format!("v{number:05}"),
                &root.media_type,
                root.bytes.clone(),
            );
        }
    }
    Ok(root.digest())
}

/// Ledgers as an operator leaves them.
async fn write_ledgers(
    stage: &Stage,
    uid: &str,
    destination: &str,
    digest: &str,
    images: &[String],
) -> Result<()> {
    let kind = GroupVersionKind::gvk("fairlead.dev", "v1alpha1", "ImageLedger");
    let resource = ApiResource::from_gvk_with_plural(&kind, "imageledgers");
    // The API server lets no other account write ledgers.
    let client = stage.cluster.client_as(HOME, ACCOUNT).await?;
    let api: Api<DynamicObject> = Api::namespaced_with(client, HOME, &resource);
    let api = &api;
    stream::iter(images.chunks(PER_LEDGER).enumerate())
        .map(|(number, images)| async move {
            let entries: Vec<Value> =
                images.iter().map(|image| entry(image, destination, digest)).collect::<Result<_>>()?;
            let ledger = ledger(uid, number, &entries);
            api.create(&PostParams::default(), &serde_json::from_value(ledger)?)
                .await
                .with_context(|| format!("ledger {number}"))?;
            anyhow::Ok(())
        })
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await
}

fn entry(image: &str, destination: &str, digest: &str) -> Result<Value> {
    let (_, path) = image.split_once('/').context("an image without a registry")?;
    Ok(json!({
        "source": image,
        "sourceDigest": digest,
        "mirrors": [{
            "destination": format!("{destination}/{path}"), "digest": digest, "state": "Mirrored",
            "since": "2026-01-01T00:00:00Z",
        }],
    }))
}

fn ledger(uid: &str, number: usize, entries: &[Value]) -> Value {
    let kind = "ClusterImageSetMirror";
    let short = uid.get(..8).unwrap_or(uid);
    json!({
        "apiVersion": "fairlead.dev/v1alpha1",
        "kind": "ImageLedger",
        "metadata": {
            "name": format!("cism-{NAME}-{short}-{number}"),
            "namespace": HOME,
            "labels": {
                "app.kubernetes.io/managed-by": "fairlead",
                "fairlead.dev/owner-kind": kind,
                "fairlead.dev/owner-uid": uid,
            },
            "ownerReferences": [{
                "apiVersion": "kuik.enix.io/v1alpha1", "kind": kind, "name": NAME, "uid": uid, "controller": true,
                "blockOwnerDeletion": false,
            }],
        },
        "spec": {"owner": {"kind": kind, "name": NAME, "uid": uid}, "entries": entries},
        "status": {
            "imageCount": entries.len(), "mirroredCount": entries.len(), "failedCount": 0,
        },
    })
}

async fn until_quiet(registries: &[&FakeRegistry]) -> Result<()> {
    let end = Instant::now() + DEADLINE;
    let asked = || registries.iter().map(|registry| registry.requests().len()).sum::<usize>();
    let (mut last, mut since) = (asked(), Instant::now());
    while since.elapsed() < QUIET {
        anyhow::ensure!(Instant::now() < end, "registries are asked on and on: {last} requests so far");
        tokio::time::sleep(Duration::from_millis(500)).await;
        let now = asked();
        if now != last {
            (last, since) = (now, Instant::now());
        }
    }
    Ok(())
}
