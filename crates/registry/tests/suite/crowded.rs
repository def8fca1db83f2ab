//! Many copies to one place: what one found out saves the next its requests. Tags that are absent are listed once, those
//! that are there are looked at; blobs that are probably missing are read ahead.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use fairlead_registry::copy::{Copied, Copier, CopyOptions, Event, Observer};
use fairlead_testkit::fake_registry::{Effect, FakeRegistry, Fault, Route};
use fairlead_testkit::images::Image;

use crate::support::{bytes, client, copy, image, in_background, layered, logins, place, reference};

const COUNT: usize = 20;

async fn sources() -> Result<FakeRegistry> {
    let from = FakeRegistry::start().await?;
    for number in 0..COUNT {
        from.hold("app", &number.to_string(), &image(&number.to_string())?);
    }
    Ok(from)
}

/// Copies these tags side by side.
async fn copy_all(
    copier: &Copier,
    from: &FakeRegistry,
    to: &FakeRegistry,
    tags: impl IntoIterator<Item = usize>,
) -> Result<Vec<Copied>> {
    let options = CopyOptions::default();
    let mut pairs = Vec::new();
    for tag in tags {
        let name = format!("app:{tag}");
        pairs.push((reference(from, &name)?, reference(to, &name)?));
    }
    let running = pairs.iter().map(|(source, destination)| copy(copier, source, destination, &options));
    Ok(futures::future::join_all(running).await.into_iter().collect::<Result<_, _>>()?)
}

/// Looks at tags, and lists of them.
fn looks(registry: &FakeRegistry) -> (usize, usize) {
    let counts = (registry.count("HEAD", "/manifests/"), registry.count("GET", "/tags/list"));
    registry.forget_requests();
    counts
}

#[tokio::test]
async fn tags_that_are_absent_are_found_out_by_one_list() -> Result<()> {
    let (from, to) = (sources().await?, FakeRegistry::start().await?);
    let copier = Copier::new(&client());
    let done = copy_all(&copier, &from, &to, 0..COUNT).await?;
    assert!(done.iter().all(|copy| copy.changed));
    assert_eq!(looks(&to), (1, 1), "the first is looked at, all others are in no list");

    let again = copy_all(&copier, &from, &to, 0..COUNT).await?;
    assert!(again.iter().all(|copied| !copied.changed), "what was published since is known");
    assert_eq!(looks(&to), (COUNT, 0));
    Ok(())
}

/// Blobs that a registry was asked for.
fn asked_for(registry: &FakeRegistry) -> usize {
    registry.requests().iter().filter(|request| request.query.contains("mount=")).count()
}

#[tokio::test]
async fn an_empty_repository_is_not_asked_for_blobs() -> Result<()> {
    let (from, to) = (sources().await?, FakeRegistry::start().await?);
    let done = copy_all(&Copier::new(&client()), &from, &to, 0..COUNT).await?;
    let sent = usize::try_from(done.iter().map(|copied| copied.blobs_sent).sum::<u64>())?;
    assert!(asked_for(&to) <= sent / COUNT, "only while it was not known to be empty: {}", asked_for(&to));

    // One that holds something may hold these, too.
    let to = FakeRegistry::start().await?;
    for number in 0..COUNT {
        to.hold("app", &format!("former-{number}"), &image(&number.to_string())?);
    }
    let done = copy_all(&Copier::new(&client()), &from, &to, 0..COUNT).await?;
    assert!(done.iter().all(|copied| copied.changed && copied.blobs_sent == 0), "{done:?}");
    assert_eq!(asked_for(&to), sent, "each is asked for and found");
    Ok(())
}

#[tokio::test]
async fn tags_that_are_there_are_looked_at_and_not_listed() -> Result<()> {
    let (from, to) = (sources().await?, FakeRegistry::start().await?);
    for number in 0..COUNT {
        to.hold("app", &number.to_string(), &image(&number.to_string())?);
    }
    let done = copy_all(&Copier::new(&client()), &from, &to, 0..COUNT).await?;
    assert!(done.iter().all(|copy| !copy.changed));
    assert_eq!(looks(&to), (COUNT, 0), "a list would save nothing");
    Ok(())
}

#[tokio::test]
async fn a_list_is_believed_only_about_what_is_absent() -> Result<()> {
    let (from, to) = (sources().await?, FakeRegistry::start().await?);
    to.hold("app", "5", &image("another")?);
    to.hold("app", "6", &image("6")?);
    let done = copy_all(&Copier::new(&client()), &from, &to, 0..COUNT).await?;
    let unchanged: Vec<bool> = done.iter().map(|copy| !copy.changed).collect();
    assert_eq!(unchanged.iter().filter(|unchanged| **unchanged).count(), 1);
    assert_eq!(looks(&to), (3, 1), "the first, and the two that are in the list");
    assert_eq!(to.digest_of("app", "5"), from.digest_of("app", "5"));
    Ok(())
}

#[tokio::test]
async fn without_a_list_every_tag_is_looked_at() -> Result<()> {
    let unlisted = [
        Fault::status(404).on(Route::Tags),
        Fault::status(403).on(Route::Tags),
        Fault::status(500).on(Route::Tags),
        Fault::new(Effect::Answer(200, "application/json", b"{".to_vec())).on(Route::Tags),
        Fault::new(Effect::Header("link", "</v2/app/tags/list?last=1>; rel=next".into())).on(Route::Tags),
    ];
    for (number, fault) in unlisted.into_iter().enumerate() {
        let (from, to) = (sources().await?, FakeRegistry::start().await?);
        to.hold("app", "other", &image("other")?);
        to.inject(fault);
        let done = copy_all(&Copier::new(&client()), &from, &to, 0..4).await?;
        assert!(done.iter().all(|copy| copy.changed), "{number}");
        let (heads, lists) = looks(&to);
        assert_eq!(heads, 4, "{number}");
        assert!(lists >= 1, "{number}: it was tried");
        copy_all(&Copier::new(&client()), &from, &to, 4..6).await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_repository_with_more_tags_than_one_request_tells_is_not_listed_to_its_end() -> Result<()> {
    let (from, to) = (sources().await?, FakeRegistry::start().await?);
    let other = image("other")?;
    for number in 0..1500 {
        to.hold("app", &format!("other-{number}"), &other);
    }
    copy_all(&Copier::new(&client()), &from, &to, 0..COUNT).await?;
    assert_eq!(looks(&to), (COUNT, 1));
    Ok(())
}

#[tokio::test]
async fn a_list_is_for_those_who_hold_the_same_credentials() -> Result<()> {
    let (from, to) = (sources().await?, FakeRegistry::start().await?);
    let copier = Copier::new(&client());
    copy_all(&copier, &from, &to, 0..3).await?;
    assert_eq!(looks(&to), (1, 1));
    let destination = reference(&to, "app:4")?;
    let mut target = place(&destination);
    target.credentials = logins(&destination, &[("ada", "one")]).into();
    let nobody: Arc<dyn Observer> = Arc::new(|_: &Event| {});
    let source = place(&reference(&from, "app:4")?);
    copier.copy(&source, &target, &CopyOptions::default(), &nobody, &in_background()).await?;
    assert_eq!(looks(&to), (1, 0));
    Ok(())
}

#[tokio::test]
async fn a_registry_that_is_away_at_first_holds_nobody_up() -> Result<()> {
    let (from, to) = (sources().await?, FakeRegistry::start().await?);
    to.inject(Fault::new(Effect::Drop).on(Route::Manifests).method("HEAD").times(4));
    let done = copy_all(&Copier::new(&client()), &from, &to, 0..COUNT).await?;
    assert!(done.iter().all(|copy| copy.changed));
    for number in 0..COUNT {
        let tag = number.to_string();
        assert_eq!(to.digest_of("app", &tag), from.digest_of("app", &tag));
    }
    Ok(())
}

#[tokio::test]
async fn small_blobs_are_read_ahead_only_where_they_are_probably_missing() -> Result<()> {
    let (from, to) = (FakeRegistry::start().await?, FakeRegistry::start().await?);
    let (first, there, missing) =
        (layered(&[&bytes(1, 1000)])?, layered(&[&bytes(2, 1000)])?, layered(&[&bytes(3, 1000)])?);
    for (tag, image) in [("first", &first), ("there", &there), ("missing", &missing)] {
        from.hold("app", tag, image);
    }
    for blob in there.blobs() {
        to.hold_blob("app", &blob.digest(), blob.bytes.clone());
    }
    let copier = Copier::new(&client());
    let options = CopyOptions::default();
    let slow = Fault::new(Effect::Delay(Duration::from_millis(300)));
    to.inject(slow.on(Route::Uploads).method("POST").times(6));
    for (tag, sent) in [("first", 2), ("there", 0), ("missing", 2)] {
        let name = format!("app:{tag}");
        let done = copy(&copier, &reference(&from, &name)?, &reference(&to, &name)?, &options).await?;
        assert_eq!(done.blobs_sent, sent, "{tag}");
    }
    let read = |image: &Image| image.blobs().iter().map(|blob| from.count("GET", &blob.digest())).sum();
    let counts: [usize; 3] = [read(&first), read(&there), read(&missing)];
    assert_eq!(counts, [2, 2, 2], "the second is read in vain, since the first was missing");
    for name in ["first", "missing"] {
        assert_eq!(to.digest_of("app", name), from.digest_of("app", name));
    }
    to.forget_requests();
    from.forget_requests();
    let again = Copier::new(&client());
    to.hold("other", "1", &there);
    copy(&again, &reference(&from, "app:there")?, &reference(&to, "other:2")?, &options).await?;
    assert_eq!(from.count("GET", "/blobs/"), 0, "nothing is read ahead before anything was missing");
    Ok(())
}
