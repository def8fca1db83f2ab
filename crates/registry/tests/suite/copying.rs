//! Copies between registries that fail, lie or get in the way.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use fairlead_domain::digest::Digest;
use fairlead_registry::copy::{BlobOutcome, Copier, CopyError, CopyOptions, Event, Observer};
use fairlead_registry::manifest::OCI_MANIFEST;
use fairlead_registry::{ErrorClass, fallback_tag};
use fairlead_testkit::eventually;
use fairlead_testkit::fake_registry::{Auth, Bearer, Effect, FakeRegistry, Fault, Route};
use fairlead_testkit::images::{self, Image};
use serde_json::json;

use crate::support::{bytes, client, copy, in_background, layered, place, reference};

async fn two_registries() -> Result<(FakeRegistry, FakeRegistry)> {
    Ok((FakeRegistry::start().await?, FakeRegistry::start().await?))
}

fn holds_all_of(registry: &FakeRegistry, repository: &str, image: &Image) -> Result<()> {
    for blob in image.blobs() {
        ensure!(registry.has_blob(repository, &blob.digest()), "{} is missing", blob.digest());
    }
    for manifest in image.manifests() {
        ensure!(
            registry.digest_of(repository, &manifest.digest()).is_some(),
            "{} is missing",
            manifest.digest()
        );
    }
    Ok(())
}

#[tokio::test]
async fn an_index_is_copied_verbatim_and_costs_nothing_the_second_time() -> Result<()> {
    let (from, to) = two_registries().await?;
    let image = images::multi_platform(&["amd64", "arm64", "s390x"])?;
    let digest = from.hold("team/app", "1", &image);
    let copier = Copier::new(&client());
    let (source, destination) = (reference(&from, "team/app:1")?, reference(&to, "mirror/app:1")?);
    let options = CopyOptions::default();
    let done = copy(&copier, &source, &destination, &options).await?;
    assert!(done.changed && done.digest.to_string() == digest);
    assert_eq!(to.digest_of("mirror/app", "1"), Some(digest));
    holds_all_of(&to, "mirror/app", &image)?;
    assert_eq!(done.manifests, 4);
    let last = to.requests().pop().map(|request| (request.method, request.path));
    assert_eq!(last, Some(("PUT".into(), "/v2/mirror/app/manifests/1".into())), "the index comes last");

    to.forget_requests();
    let again = copy(&copier, &source, &destination, &options).await?;
    assert!(!again.changed && again.blobs_sent == 0);
    assert_eq!(to.requests().len(), 1);
    Ok(())
}

#[tokio::test]
async fn chosen_platforms_are_copied_and_no_others() -> Result<()> {
    let (from, to) = two_registries().await?;
    let image = images::multi_platform(&["amd64", "arm64", "s390x"])?;
    from.hold("app", "1", &image);
    let copier = Copier::new(&client());
    let (source, destination) = (reference(&from, "app:1")?, reference(&to, "app:1")?);
    let options = CopyOptions { platforms: vec!["linux/arm64".parse()?], ..CopyOptions::default() };
    let done = copy(&copier, &source, &destination, &options).await?;
    assert_ne!(done.digest.to_string(), image.digest());
    assert_eq!(done.manifests, 2);
    assert!(to.digest_of("app", &image.manifests()[1].digest()).is_some());
    assert!(to.digest_of("app", &image.manifests()[0].digest()).is_none());

    let none = CopyOptions { platforms: vec!["windows/amd64".parse()?], ..CopyOptions::default() };
    let error = copy(&copier, &source, &destination, &none).await.unwrap_err();
    assert!(error.to_string().contains("linux/amd64, linux/arm64, linux/s390x"), "{error}");
    let single = images::ImageBuilder::new().architecture("arm64").build()?;
    from.hold("app", "single", &single);
    let source = reference(&from, "app:single")?;
    assert!(
        !copy(&copier, &source, &reference(&to, "app:2")?, &options).await?.digest.to_string().is_empty()
    );
    assert!(matches!(
        copy(&copier, &source, &reference(&to, "app:3")?, &none).await,
        Err(CopyError::NoPlatform { .. })
    ));
    Ok(())
}

#[tokio::test]
async fn a_destination_by_digest_is_checked() -> Result<()> {
    let (from, to) = two_registries().await?;
    let digest = from.hold("app", "1", &images::empty()?);
    let copier = Copier::new(&client());
    let source = reference(&from, "app:1")?;
    let options = CopyOptions::default();
    copy(&copier, &source, &reference(&to, &format!("app@{digest}"))?, &options).await?;
    assert!(to.digest_of("app", &digest).is_some());
    copy(&copier, &source, &reference(&to, &format!("app:tagged@{digest}"))?, &options).await?;
    assert_eq!(to.digest_of("app", "tagged"), Some(digest));
    let other = Digest::sha256(b"other");
    let error =
        copy(&copier, &source, &reference(&to, &format!("app@{other}"))?, &options).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Misconfigured);
    Ok(())
}

#[tokio::test]
async fn images_side_by_side_share_what_they_have_in_common() -> Result<()> {
    let (from, to) = two_registries().await?;
    let base = bytes(1, 50_000);
    for number in 0..20 {
        from.hold("app", &number.to_string(), &layered(&[&base, &bytes(100 + number, 1000)])?);
    }
    let client = client();
    let copier = Copier::new(&client);
    let options = CopyOptions::default();
    let mut images = Vec::new();
    for number in 0..20 {
        images
            .push((reference(&from, &format!("app:{number}"))?, reference(&to, &format!("app{number}:1"))?));
    }
    let running = images.iter().map(|(source, destination)| copy(&copier, source, destination, &options));
    for done in futures::future::join_all(running).await {
        done?;
    }
    let base_digest = layered(&[&base])?.blobs()[0].digest();
    assert_eq!(from.count("GET", &base_digest), 1, "a shared layer is read once");
    let mounts = to
        .requests()
        .iter()
        .filter(|request| request.query.contains(&base_digest.replace(':', "%3A")))
        .count();
    assert!(mounts >= 19, "and mounted everywhere else: {mounts}");
    for number in 0..20 {
        assert!(to.has_blob(&format!("app{number}"), &base_digest));
    }
    Ok(())
}

#[tokio::test]
async fn a_registry_that_mounts_nothing_gets_every_blob_sent() -> Result<()> {
    let (from, to) = two_registries().await?;
    to.behave(|behaviour| behaviour.mount = false);
    let image = layered(&[&bytes(1, 5000)])?;
    from.hold("app", "1", &image);
    let copier = Copier::new(&client());
    for name in ["one", "two"] {
        let destination = reference(&to, &format!("{name}:1"))?;
        copy(&copier, &reference(&from, "app:1")?, &destination, &CopyOptions::default()).await?;
        holds_all_of(&to, name, &image)?;
    }
    assert_eq!(to.open_uploads(), 0);
    Ok(())
}

#[tokio::test]
async fn a_mount_that_is_forbidden_is_done_without() -> Result<()> {
    let registry = FakeRegistry::start().await?;
    let image = layered(&[&bytes(1, 5000)])?;
    registry.hold("one", "1", &image);
    for status in [401, 403, 405] {
        registry.heal();
        registry.inject(Fault::status(status).method("POST").times(2));
        let destination = reference(&registry, &format!("two-{status}:1"))?;
        let done = copy(
            &Copier::new(&client()),
            &reference(&registry, "one:1")?,
            &destination,
            &CopyOptions::default(),
        )
        .await?;
        assert_eq!(done.blobs_sent, 2, "{status}");
    }
    Ok(())
}

#[tokio::test]
async fn content_that_is_there_is_not_sent_again() -> Result<()> {
    let (from, to) = two_registries().await?;
    let image = layered(&[&bytes(1, 3_000_000), &bytes(2, 1000)])?;
    from.hold("app", "1", &image);
    for blob in image.blobs() {
        to.hold_blob("app", &blob.digest(), blob.bytes.clone());
    }
    let copier = Copier::new(&client());
    let done = copy(&copier, &reference(&from, "app:1")?, &reference(&to, "app:1")?, &CopyOptions::default())
        .await?;
    assert_eq!((done.blobs_sent, done.blobs_present), (0, 3));
    assert_eq!(from.count("GET", "/blobs/"), 0);
    Ok(())
}

#[tokio::test]
async fn a_destination_that_was_cleaned_up_meanwhile_is_filled_again() -> Result<()> {
    let (from, to) = two_registries().await?;
    let (base, first) = (bytes(1, 5000), bytes(2, 1000));
    let one = layered(&[&base, &first])?;
    let two = layered(&[&base, &bytes(3, 1000)])?;
    from.hold("app", "1", &one);
    from.hold("app", "2", &two);
    let copier = Copier::new(&client());
    let options = CopyOptions::default();
    copy(&copier, &reference(&from, "app:1")?, &reference(&to, "app:1")?, &options).await?;
    to.lose_blob("app", &one.blobs()[0].digest());
    copy(&copier, &reference(&from, "app:2")?, &reference(&to, "app:2")?, &options).await?;
    holds_all_of(&to, "app", &two)
}

#[tokio::test]
async fn a_broken_upload_goes_on_where_the_registry_stands() -> Result<()> {
    let (from, to) = two_registries().await?;
    let image = layered(&[&bytes(1, 4_000_000)])?;
    let digest = from.hold("app", "1", &image);
    // The upload breaks before, during and after the registry has stored what came.
    to.inject(Fault::status(502).on(Route::Uploads).method("PUT").times(1));
    to.inject(Fault::new(Effect::Drop).on(Route::Uploads).method("PATCH").times(1));
    let copier = Copier::new(&client());
    let done = copy(&copier, &reference(&from, "app:1")?, &reference(&to, "app:1")?, &CopyOptions::default())
        .await?;
    assert_eq!(done.digest.to_string(), digest);
    holds_all_of(&to, "app", &image)?;
    assert_eq!(to.open_uploads(), 0);
    Ok(())
}

#[tokio::test]
async fn a_destination_that_takes_only_little_at_once_gets_chunks() -> Result<()> {
    let (from, to) = two_registries().await?;
    let image = layered(&[&bytes(1, 5_000_000)])?;
    from.hold("app", "1", &image);
    to.inject(Fault::status(413).on(Route::Uploads).larger_than(4 << 20));
    let copier = Copier::new(&client());
    copy(&copier, &reference(&from, "app:1")?, &reference(&to, "app:1")?, &CopyOptions::default()).await?;
    holds_all_of(&to, "app", &image)?;
    let chunks: Vec<u64> = to
        .requests()
        .iter()
        .filter(|request| request.method == "PATCH")
        .filter_map(|request| request.header("content-length").parse::<u64>().ok())
        .collect();
    assert_eq!(chunks.iter().filter(|length| **length == 4 << 20).count(), 1, "{chunks:?}");
    Ok(())
}

#[tokio::test]
async fn a_source_that_breaks_is_read_on_and_one_that_lies_is_refused() -> Result<()> {
    let (from, to) = two_registries().await?;
    let image = layered(&[&bytes(1, 2_000_000)])?;
    from.hold("app", "1", &image);
    let (source, destination) = (reference(&from, "app:1")?, reference(&to, "app:1")?);
    let layer = image.blobs()[0].digest();
    from.inject(Fault::new(Effect::Truncate(700_000)).path(&layer).times(2));
    let options = CopyOptions::default();
    copy(&Copier::new(&client()), &source, &destination, &options).await?;
    holds_all_of(&to, "app", &image)?;

    for effect in [Effect::Corrupt, Effect::Shorten(1_000_000)] {
        let empty = FakeRegistry::start().await?;
        from.heal();
        from.inject(Fault::new(effect.clone()).path(&layer));
        let destination = reference(&empty, "app:1")?;
        let error = copy(&Copier::new(&client()), &source, &destination, &options).await.unwrap_err();
        assert!(matches!(error, CopyError::Source(_)), "{effect:?}: {error}");
        assert!(error.to_string().contains("digest"), "{effect:?}: {error}");
        assert!(empty.digest_of("app", "1").is_none() && !empty.has_blob("app", &layer), "{effect:?}");
        eventually(Duration::from_secs(5), || async {
            ensure!(empty.open_uploads() == 0, "an upload was left open");
            Ok(())
        })
        .await?;
    }
    Ok(())
}

#[tokio::test]
async fn an_interrupted_copy_publishes_nothing_and_leaves_no_upload_open() -> Result<()> {
    let (from, to) = two_registries().await?;
    let image = layered(&[&bytes(1, 1_000_000), &bytes(2, 1000)])?;
    from.hold("app", "1", &image);
    from.inject(Fault::new(Effect::Stall(500_000)).path(&image.blobs()[0].digest()));
    let copier = Copier::new(&client());
    let (source, destination) = (reference(&from, "app:1")?, reference(&to, "app:1")?);
    let options = CopyOptions::default();
    let copying = tokio::spawn(async move { copy(&copier, &source, &destination, &options).await });
    eventually(Duration::from_secs(10), || async {
        ensure!(
            to.open_uploads() == 1 && to.has_blob("app", &image.blobs()[1].digest()),
            "not under way yet"
        );
        Ok(())
    })
    .await?;
    copying.abort();
    eventually(Duration::from_secs(10), || async {
        ensure!(to.open_uploads() == 0, "an upload was left open");
        Ok(())
    })
    .await?;
    assert!(to.digest_of("app", "1").is_none());
    Ok(())
}

#[tokio::test]
async fn a_quota_in_mid_copy_is_waited_for() -> Result<()> {
    let (from, to) = two_registries().await?;
    from.hold("app", "1", &layered(&[&bytes(1, 1000)])?);
    let quota = || Fault::status(429).and(Effect::Header("retry-after", "1".into())).times(1);
    to.inject(quota().on(Route::Uploads).method("PUT"));
    let copier = Copier::new(&client());
    let done = copy(&copier, &reference(&from, "app:1")?, &reference(&to, "app:1")?, &CopyOptions::default())
        .await?;
    assert!(done.changed);
    Ok(())
}

#[tokio::test]
async fn one_token_serves_a_whole_copy() -> Result<()> {
    let (from, to) = two_registries().await?;
    from.hold("app", "1", &layered(&[&bytes(1, 1000), &bytes(2, 2_000_000)])?);
    from.require(Auth::bearer(Bearer::new()));
    to.require(Auth::bearer(Bearer::new()));
    let copier = Copier::new(&client());
    copy(&copier, &reference(&from, "app:1")?, &reference(&to, "app:1")?, &CopyOptions::default()).await?;
    assert_eq!(from.count("GET", "/token"), 1);
    assert!(to.count("GET", "/token") <= 2, "one for the copy, at most one more for mounts");
    Ok(())
}

#[tokio::test]
async fn within_one_registry_blobs_are_mounted_from_the_source() -> Result<()> {
    let registry = FakeRegistry::start().await?;
    let image = layered(&[&bytes(1, 3_000_000), &bytes(2, 10)])?;
    registry.hold("one", "1", &image);
    let copier = Copier::new(&client());
    let (source, destination) = (reference(&registry, "one:1")?, reference(&registry, "two:1")?);
    let done = copy(&copier, &source, &destination, &CopyOptions::default()).await?;
    assert_eq!((done.blobs_mounted, done.blobs_sent), (3, 0));

    registry.behave(|behaviour| behaviour.mount = false);
    let destination = reference(&registry, "three:1")?;
    let done = copy(&Copier::new(&client()), &source, &destination, &CopyOptions::default()).await?;
    assert_eq!((done.blobs_mounted, done.blobs_sent), (0, 3), "and sent where it mounts nothing");
    Ok(())
}

#[tokio::test]
async fn many_copies_within_one_registry_do_not_wait_for_each_other() -> Result<()> {
    let registry = FakeRegistry::start().await?;
    registry.behave(|behaviour| behaviour.mount = false);
    for number in 0..30 {
        registry.hold("one", &number.to_string(), &layered(&[&bytes(number, 100_000)])?);
    }
    let copier = Copier::new(&client());
    let options = CopyOptions::default();
    let mut images = Vec::new();
    for number in 0..30 {
        images.push((
            reference(&registry, &format!("one:{number}"))?,
            reference(&registry, &format!("two:{number}"))?,
        ));
    }
    let running = images.iter().map(|(source, destination)| copy(&copier, source, destination, &options));
    for done in futures::future::join_all(running).await {
        done?;
    }
    Ok(())
}

#[tokio::test]
async fn signatures_and_attestations_come_along_on_request() -> Result<()> {
    let (from, to) = two_registries().await?;
    let image = images::empty()?;
    let subject = from.hold("app", "1", &image);
    from.hold_blob("app", &Digest::sha256(b"{}").to_string(), "{}");
    let signature = json!({
        "schemaVersion": 2, "mediaType": OCI_MANIFEST, "artifactType": "application/vnd.example.signature",
        "config": {"mediaType": "application/vnd.oci.empty.v1+json", "digest": Digest::sha256(b"{}"), "size": 2},
        "layers": [], "subject": {"mediaType": OCI_MANIFEST, "digest": subject, "size": image.root().bytes.len()},
    });
    let signature = from.hold_manifest("app", "sha256:", OCI_MANIFEST, signature.to_string());
    let Some(tag) = fallback_tag(&subject.parse()?) else { bail!("a digest has a tag") };
    from.hold("app", &format!("{tag}.sig"), &images::artifact("cosign/signature", b"signed")?);
    let copier = Copier::new(&client());
    let (source, destination) = (reference(&from, "app:1")?, reference(&to, "app:1")?);
    copy(&copier, &source, &destination, &CopyOptions::default()).await?;
    assert!(to.digest_of("app", &signature).is_none(), "only on request");

    let options = CopyOptions { referrers: true, ..CopyOptions::default() };
    copy(&copier, &source, &destination, &options).await?;
    assert!(to.digest_of("app", &signature).is_some());
    assert!(to.digest_of("app", &format!("{tag}.sig")).is_some());
    assert!(to.digest_of("app", tag.as_str()).is_none(), "a registry that lists referrers needs no index");

    let old = FakeRegistry::start().await?;
    old.behave(|behaviour| behaviour.referrers = false);
    let destination = reference(&old, "app:1")?;
    for _ in 0..2 {
        copy(&copier, &source, &destination, &options).await?;
    }
    assert!(old.digest_of("app", tag.as_str()).is_some(), "one that does not gets the index");
    assert_eq!(old.count("PUT", &format!("/manifests/{tag}")), 2, "the index once, the signature once");
    Ok(())
}

#[tokio::test]
async fn whoever_watches_sees_every_blob_arrive() -> Result<()> {
    let (from, to) = two_registries().await?;
    let image = layered(&[&bytes(1, 2_000_000), &bytes(2, 10)])?;
    from.hold("app", "1", &image);
    let seen: Arc<Mutex<Vec<Event>>> = Arc::default();
    let observer: Arc<dyn Observer> = {
        let seen = Arc::clone(&seen);
        Arc::new(move |event: &Event| seen.lock().unwrap_or_else(PoisonError::into_inner).push(*event))
    };
    let copier = Copier::new(&client());
    let (source, destination) = (place(&reference(&from, "app:1")?), place(&reference(&to, "app:1")?));
    copier.copy(&source, &destination, &CopyOptions::default(), &observer, &in_background()).await?;
    let events = seen.lock().unwrap_or_else(PoisonError::into_inner);
    let sent: HashSet<String> = events
        .iter()
        .filter_map(|event| match event {
            Event::BlobDone { digest, outcome: BlobOutcome::Sent, .. } => Some(digest.to_string()),
            _ => None,
        })
        .collect();
    assert_eq!(sent.len(), 3);
    let moved = events.iter().filter_map(|event| match event {
        Event::BlobMoved { done, size, .. } if *size > 1_000_000 => Some(*done),
        _ => None,
    });
    assert_eq!(moved.max(), Some(image.blobs()[0].bytes.len() as u64));
    assert!(matches!(events.last(), Some(Event::Published { changed: true, .. })));
    Ok(())
}

#[tokio::test]
async fn errors_say_which_side_failed() -> Result<()> {
    let (from, to) = two_registries().await?;
    let copier = Copier::new(&client());
    let (source, destination) = (reference(&from, "app:1")?, reference(&to, "app:1")?);
    let options = CopyOptions::default();
    let error = copy(&copier, &source, &destination, &options).await.unwrap_err();
    assert!(matches!(&error, CopyError::Source(_)) && error.class() == ErrorClass::Absent, "{error}");
    assert!(error.to_string().contains("app:1"), "{error}");
    from.hold("app", "1", &images::empty()?);
    to.require(Auth::basic("ada", "secret"));
    let error = copy(&copier, &source, &destination, &options).await.unwrap_err();
    assert!(matches!(&error, CopyError::Destination(_)) && error.class() == ErrorClass::Denied, "{error}");
    Ok(())
}

#[tokio::test]
async fn a_registry_that_is_away_for_a_moment_is_waited_for_at_every_step() -> Result<()> {
    let image = layered(&[&bytes(1, 2_000_000), &bytes(2, 1000)])?;
    for (at_source, route, method) in [
        (true, Route::Manifests, "GET"),
        (true, Route::Referrers, "GET"),
        (true, Route::Blobs, "GET"),
        (false, Route::Manifests, "HEAD"),
        (false, Route::Blobs, "HEAD"),
        (false, Route::Uploads, "POST"),
        (false, Route::Uploads, "PUT"),
        (false, Route::Manifests, "PUT"),
    ] {
        let (from, to) = two_registries().await?;
        let digest = from.hold("app", "1", &image);
        let away = if at_source { &from } else { &to };
        // More often than one request is repeated, so that the registry counts as down in between.
        away.inject(Fault::new(Effect::Drop).on(route).method(method).times(4));
        let (source, destination) = (reference(&from, "app:1")?, reference(&to, "app:1")?);
        let options = CopyOptions { referrers: true, ..CopyOptions::default() };
        let copied = copy(&Copier::new(&client()), &source, &destination, &options).await;
        let copied = copied.map_err(|error| anyhow::anyhow!("{method} {route:?}: {error}"))?;
        assert_eq!(copied.digest.to_string(), digest, "{method} {route:?}");
        eventually(Duration::from_secs(5), || async {
            ensure!(to.open_uploads() == 0, "{method} {route:?}: {} uploads are open", to.open_uploads());
            Ok(())
        })
        .await?;
    }
    Ok(())
}
