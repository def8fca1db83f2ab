//! Copies that meet with something in the middle and lose nothing by it.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use fairlead_registry::copy::{Copier, CopyError, CopyOptions, Event, Observer};
use fairlead_registry::manifest::{Descriptor, OCI_MANIFEST};
use fairlead_registry::{Class, Client, Context, ErrorClass, Right};
use fairlead_testkit::fake_registry::{Effect, FakeRegistry, Fault, Route};
use fairlead_testkit::images;

use crate::support::{
    bytes, client, copy, image, layered, leaping, patiently, place, reference, remote, settings,
};

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
async fn after_a_broken_chunk_the_upload_continues() -> Result<()> {
    const CHUNK: u64 = 4 << 20;
    let (from, to) = (FakeRegistry::start().await?, FakeRegistry::start().await?);
    from.hold("app", "1", &layered(&[&bytes(1, 9_000_000)])?);
    to.inject(Fault::status(413).on(Route::Uploads).larger_than(CHUNK));
    to.inject(Fault::new(Effect::Drop).on(Route::Uploads).method("PATCH").after(1).times(1));
    let copier = Copier::new(&client());
    copy(&copier, &reference(&from, "app:1")?, &reference(&to, "app:1")?, &CopyOptions::default()).await?;
    assert!(to.digest_of("app", "1").is_some());
    assert_eq!(
        to.count("POST", "/blobs/uploads/"),
        4,
        "one for the configuration, one for each size of chunks"
    );
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

#[tokio::test]
async fn an_upload_goes_on_when_the_destination_said() -> Result<()> {
    let (from, to) = (FakeRegistry::start().await?, FakeRegistry::start().await?);
    from.hold("app", "1", &layered(&[&bytes(1, 2_000_000)])?);
    let away = Fault::status(503).and(Effect::Header("retry-after", "1".into()));
    to.inject(away.on(Route::Uploads).method("PUT").larger_than(1_000_000).times(1));
    let begun = tokio::time::Instant::now();
    let copier = Copier::new(&client());
    copy(&copier, &reference(&from, "app:1")?, &reference(&to, "app:1")?, &CopyOptions::default()).await?;
    assert!(begun.elapsed() >= Duration::from_secs(1), "{:?}", begun.elapsed());
    Ok(())
}

#[tokio::test]
async fn an_image_that_was_published_is_no_failure_where_tags_are_written_once() -> Result<()> {
    let from = FakeRegistry::start().await?;
    let digest = from.hold("app", "1", &image("a")?);
    for status in [400, 403, 409, 412] {
        for (held, is_same) in [(image("a")?, true), (image("b")?, false)] {
            let to = FakeRegistry::start().await?;
            to.hold("app", "1", &held);
            // It was not there when it was looked for.
            to.inject(Fault::status(404).on(Route::Manifests).method("HEAD").times(1));
            to.inject(Fault::status(status).on(Route::Manifests).method("PUT"));
            let (source, destination) = (reference(&from, "app:1")?, reference(&to, "app:1")?);
            let outcome = copy(&Copier::new(&client()), &source, &destination, &CopyOptions::default()).await;
            let found = outcome.as_ref().ok().map(|copied| copied.digest.to_string());
            assert_eq!(found, is_same.then(|| digest.clone()), "{status}: {outcome:?}");
            assert_eq!(to.count("HEAD", "/manifests/"), 2, "{status}: one look more");
        }
    }
    Ok(())
}

/// Copies `app:1` within this time.
async fn copy_within(
    copier: &Copier,
    from: &FakeRegistry,
    to: &FakeRegistry,
    time: Duration,
) -> Result<CopyError> {
    let nobody: Arc<dyn Observer> = Arc::new(|_: &Event| {});
    let context = Context::new(Class::Background, tokio::time::Instant::now() + time);
    let (source, destination) = (place(&reference(from, "app:1")?), place(&reference(to, "app:1")?));
    let outcome = copier.copy(&source, &destination, &CopyOptions::default(), &nobody, &context).await;
    outcome.err().context("there was not enough time")
}

#[tokio::test]
async fn a_copy_that_was_moving_until_its_deadline_says_so() -> Result<()> {
    let (from, to) = (FakeRegistry::start().await?, FakeRegistry::start().await?);
    from.hold("app", "1", &layered(&[&bytes(1, 300_000)])?);
    from.inject(Fault::new(Effect::Drip(Duration::from_millis(10))).on(Route::Blobs));
    let copier = Copier::new(&client());
    // All blobs: the second copy finds each of them under way.
    let under_way = || from.count("GET", "/blobs/") >= 2;
    let second = async {
        while !under_way() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        copy_within(&copier, &from, &to, Duration::from_secs(20)).await
    };
    let first = copy_within(&copier, &from, &to, Duration::from_mins(1));
    let copying = Box::pin(async { tokio::try_join!(first, second) });
    let (moving, waiting) = leaping(under_way, copying).await??;
    // The deadline is the same on both sides, and either may notice it first.
    assert!(matches!(moving, CopyError::Source(_) | CopyError::Destination(_)), "{moving}");
    assert!(moving.class() == ErrorClass::Retry, "{moving}");
    assert!(moving.to_string().contains("before the deadline: the blob was still on its way"), "{moving}");
    assert!(waiting.to_string().contains("another copy was still sending it"), "{waiting}");

    let from = FakeRegistry::start().await?;
    from.hold("app", "1", &layered(&[&bytes(1, 9_000_000)])?);
    to.inject(Fault::new(Effect::Hang).on(Route::Uploads).method("PUT").larger_than(1_000_000));
    to.forget_requests();
    let time = Duration::from_secs(20);
    let begun = tokio::time::Instant::now();
    let copying = copy_within(&copier, &from, &to, time);
    let slow = leaping(|| to.count("PUT", "/blobs/uploads/") > 0, copying).await??;
    assert!(begun.elapsed() < time + Duration::from_secs(3), "it does not wait for what it gave up");
    assert!(matches!(slow, CopyError::Destination(_)), "{slow}");
    assert!(slow.to_string().contains("before the deadline: the blob was still on its way"), "{slow}");
    Ok(())
}
