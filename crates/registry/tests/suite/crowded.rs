//! Many copies to one registry: they share what they learn. Absent tags are found by one list, those
//! that are there are resolved.

use std::sync::Arc;

use anyhow::Result;
use fairlead_registry::copy::{Copied, Copier, CopyOptions, Event, Observer};
use fairlead_testkit::fake_registry::{Effect, FakeRegistry, Fault, Route};

use crate::support::{client, copy, image, in_background, logins, place, reference};

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
    let (resolved, listed) = looks(&to);
    assert!(resolved == COUNT && listed <= 1, "{resolved} {listed}");
    Ok(())
}

/// Blobs that a registry was asked for.
fn asked_for(registry: &FakeRegistry) -> usize {
    registry.requests().iter().filter(|request| request.query.contains("mount=")).count()
}

#[tokio::test]
async fn blobs_that_are_there_under_other_tags_are_not_sent() -> Result<()> {
    let from = sources().await?;
    let to = FakeRegistry::start().await?;
    for number in 0..COUNT {
        to.hold("app", &format!("former-{number}"), &image(&number.to_string())?);
    }
    let done = copy_all(&Copier::new(&client()), &from, &to, 0..COUNT).await?;
    assert!(done.iter().all(|copied| copied.changed && copied.blobs_sent == 0), "{done:?}");
    let blobs = done.iter().map(|copied| copied.blobs_present).sum::<u64>();
    assert!(asked_for(&to) <= usize::try_from(blobs)?, "each is asked for once at most");
    Ok(())
}

#[tokio::test]
async fn tags_that_are_there_are_resolved() -> Result<()> {
    let (from, to) = (sources().await?, FakeRegistry::start().await?);
    for number in 0..COUNT {
        to.hold("app", &number.to_string(), &image(&number.to_string())?);
    }
    let done = copy_all(&Copier::new(&client()), &from, &to, 0..COUNT).await?;
    assert!(done.iter().all(|copy| !copy.changed));
    assert_eq!(looks(&to), (COUNT, 1), "a tag in the list is still resolved");
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
