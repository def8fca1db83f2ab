//! Requests that the router cannot connect with what came before them, and what they count as.

use std::time::Duration;

use anyhow::{Result, ensure};
use fairlead_testkit::fake_registry::{Effect, Fault, Route};
use fairlead_testkit::images;
use reqwest::StatusCode;

use crate::router::{Node, is_left_to_source, mirror};
use crate::{both, plan, tag_never};

/// As after the agent was replaced: the tag was resolved, and perhaps more was pulled, by the one before.
#[tokio::test]
async fn a_pull_by_tag_from_a_closed_source_goes_on_at_a_router_that_did_not_begin_it() -> Result<()> {
    let image = images::multi_platform(&["amd64"])?;
    let (_registry, place) = mirror(&image).await?;
    let node = Node::start(plan(vec![tag_never("hub.test/team", &[&place])], &[], &[])).await?;
    for manifest in image.manifests() {
        let content = node.get(&format!("team/app/manifests/{}", manifest.digest())).await?;
        ensure!(content.status() == StatusCode::OK, "{}", content.status());
    }
    let node = Node::start(plan(vec![tag_never("hub.test/team", &[&place])], &[], &[])).await?;
    for blob in image.blobs() {
        let content = node.get(&format!("team/app/blobs/{}", blob.digest())).await?;
        ensure!(content.status() == StatusCode::OK, "{}", content.status());
        ensure!(content.bytes().await? == blob.bytes, "the blob differs");
    }
    let begun = node.head(&format!("team/app/manifests/{}", image.digest())).await?;
    ensure!(begun.status() == StatusCode::FORBIDDEN, "no mirror is for digests: {}", begun.status());
    Ok(())
}

/// An alert goes off where all requests to a mirror fail, and a source is none.
#[tokio::test]
async fn a_source_that_a_list_names_and_that_fails_is_no_mirror_that_fails() -> Result<()> {
    let mirrors = ["hub.test/team", "m.invalid/copies"];
    let node = Node::start(plan(vec![both("hub.test/team", &mirrors)], &[], &[])).await?;
    ensure!(is_left_to_source(&node.head("team/app/manifests/1").await?));
    let page = node.metrics()?;
    let failed = |registry: &str| {
        page.contains(&format!(
            "fairlead_router_requests_total{{outcome=\"failed\",registry=\"{registry}\"}}"
        ))
    };
    ensure!(failed("m.invalid") && !failed("hub.test"), "{page}");
    Ok(())
}

/// As registries do that compress on the way, or make what they send.
#[tokio::test]
async fn a_mirror_that_does_not_say_how_long_a_layer_is_serves_it() -> Result<()> {
    let image = images::holding("of a length that nobody tells")?;
    let (registry, place) = mirror(&image).await?;
    let node = Node::start(plan(vec![both("hub.test/team", &[&place])], &[], &[])).await?;
    let blobs = |effect| Fault::new(effect).on(Route::Blobs).method("GET");
    // What comes piece by piece is sent without a length, unless a header says it.
    let without_length = || blobs(Effect::Drip(Duration::ZERO)).and(Effect::WithoutHeader("content-length"));
    registry.inject(without_length());
    for blob in image.blobs() {
        let content = node.get(&format!("team/app/blobs/{}", blob.digest())).await?;
        ensure!(content.status() == StatusCode::OK && content.content_length().is_none(), "{content:?}");
        ensure!(content.bytes().await? == blob.bytes, "the blob differs");
    }
    registry.heal();
    registry.inject(without_length().and(Effect::Corrupt));
    for blob in image.blobs() {
        let path = format!("team/app/blobs/{}", blob.digest());
        let answer = node.get(&path).await?;
        ensure!(
            answer.status() == StatusCode::OK && answer.bytes().await.is_err(),
            "its end has to be missing"
        );
        ensure!(is_left_to_source(&node.get(&path).await?), "it is not asked for it again");
    }
    Ok(())
}
