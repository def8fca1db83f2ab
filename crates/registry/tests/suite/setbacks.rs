//! Copies that meet with something in the middle and lose nothing by it.

use std::time::Duration;

use anyhow::{Context as _, Result};
use fairlead_registry::copy::{Copier, CopyOptions};
use fairlead_registry::manifest::{Descriptor, OCI_MANIFEST};
use fairlead_registry::{Client, Right};
use fairlead_testkit::fake_registry::{Effect, FakeRegistry, Fault, Route};
use fairlead_testkit::images;

use crate::support::{bytes, client, copy, layered, patiently, reference, remote, settings};

#[tokio::test]
async fn a_quota_in_the_middle_of_an_upload_does_not_begin_it_anew() -> Result<()> {
    let (from, to) = (FakeRegistry::start().await?, FakeRegistry::start().await?);
    let image = layered(&[&bytes(1, 2_000_000)])?;
    from.hold("app", "1", &image);
    // Refused are the blob and then the question how much of it arrived.
    let quota =
        || Fault::status(429).and(Effect::Header("retry-after", "0".into())).on(Route::Uploads).times(1);
    to.inject(quota().method("PUT").larger_than(1_000_000));
    to.inject(quota().method("GET"));
    let copier = Copier::new(&client());
    copy(&copier, &reference(&from, "app:1")?, &reference(&to, "app:1")?, &CopyOptions::default()).await?;
    assert_eq!(to.count("GET", "/blobs/uploads/"), 2);
    assert_eq!(to.count("POST", "/blobs/uploads/"), image.blobs().len());
    Ok(())
}

#[tokio::test]
async fn an_index_whose_parts_were_cleaned_up_meanwhile_is_completed() -> Result<()> {
    let (from, to) = (FakeRegistry::start().await?, FakeRegistry::start().await?);
    let image = images::multi_platform(&["amd64", "arm64"])?;
    let digest = from.hold("app", "1", &image);
    // Seen for the last time.
    let lost = image.manifests().first().context("an index has parts")?;
    to.inject(
        Fault::new(Effect::Answer(200, OCI_MANIFEST, lost.bytes.clone()))
            .and(Effect::Header("docker-content-digest", lost.digest()))
            .method("HEAD")
            .path(&lost.digest())
            .times(1),
    );
    let copier = Copier::new(&client());
    copy(&copier, &reference(&from, "app:1")?, &reference(&to, "app:1")?, &CopyOptions::default()).await?;
    assert_eq!(to.digest_of("app", "1"), Some(digest));
    assert!(to.digest_of("app", &lost.digest()).is_some());
    Ok(())
}

#[tokio::test]
async fn after_a_broken_chunk_little_is_read_again() -> Result<()> {
    const CHUNK: u64 = 4 << 20;
    let (from, to) = (FakeRegistry::start().await?, FakeRegistry::start().await?);
    from.hold("app", "1", &layered(&[&bytes(1, 9_000_000)])?);
    to.inject(Fault::status(413).on(Route::Uploads).larger_than(CHUNK));
    to.inject(Fault::new(Effect::Drop).on(Route::Uploads).method("PATCH").after(1).times(1));
    let copier = Copier::new(&client());
    copy(&copier, &reference(&from, "app:1")?, &reference(&to, "app:1")?, &CopyOptions::default()).await?;
    let last = from.requests().pop().context("the source was asked")?;
    let range = last.header("range").to_owned();
    let start: u64 = range.trim_start_matches("bytes=").trim_end_matches('-').parse().context(range)?;
    assert!((CHUNK - (2 << 20)..=CHUNK).contains(&start), "the second chunk is read from {start} on");
    Ok(())
}

#[tokio::test]
async fn a_blob_is_read_on_when_the_registry_is_back_after_a_moment() -> Result<()> {
    let registry = FakeRegistry::start().await?;
    let image = layered(&[&bytes(1, 300_000)])?;
    registry.hold("app", "1", &image);
    let layer = image.blobs().first().context("an image has a layer")?;
    let blob: Descriptor = serde_json::from_value(layer.descriptor())?;
    registry.inject(Fault::new(Effect::Truncate(100_000)).on(Route::Blobs).times(1));
    // After so much the registry is left alone, for longer than a single request is repeated.
    registry.inject(Fault::new(Effect::Drop).on(Route::Blobs).times(2));
    let mut settings = settings();
    settings.patience.first_pause = Duration::from_millis(700);
    let remote = remote(&Client::new(settings), &reference(&registry, "app")?, Right::Pull)?;
    let (mut reader, mut whole) = (remote.blob(&blob), Vec::new());
    let begun = tokio::time::Instant::now();
    while let Some(piece) = reader.next(&patiently()).await? {
        whole.extend_from_slice(&piece);
    }
    assert!(whole == layer.bytes);
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    Ok(())
}
