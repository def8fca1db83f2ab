//! Copies that exist already: what it takes to find that out.

use anyhow::Result;
use fairlead_domain::digest::Digest;
use fairlead_registry::ErrorClass;
use fairlead_registry::copy::{Copier, CopyError, CopyOptions};
use fairlead_testkit::fake_registry::{FakeRegistry, Fault, Route};
use fairlead_testkit::{Registry, RegistryConfig, images};

use crate::real::releases;
use crate::support::{asked_of, at, bytes, client, copy, image, layered, reference};

/// Methods of the requests since the last time, in order.
fn asked(registry: &FakeRegistry) -> Vec<String> {
    let methods = registry.requests().into_iter().map(|request| request.method).collect();
    registry.forget_requests();
    methods
}

#[tokio::test]
async fn a_copy_that_is_there_costs_one_look_at_each_end() -> Result<()> {
    for release in releases() {
        let from = Registry::start(RegistryConfig::new()).await?;
        let to = Registry::start(RegistryConfig::new().release(release)).await?;
        let digest: Digest =
            from.endpoint().push("app", "1", &images::multi_platform(&["amd64", "arm64"])?).await?.parse()?;
        let (source, destination) = (at(&from, "app:1")?, at(&to, "mirror/app:1")?);
        let options = CopyOptions::default();
        copy(&Copier::new(&client()), &source, &destination, &options).await?;

        let before = [asked_of(&from).await?, asked_of(&to).await?];
        let again = copy(&Copier::new(&client()), &source, &destination, &options).await?;
        assert!(!again.changed && again.digest == digest && again.source_digest == digest, "{release:?}");
        let after = [asked_of(&from).await?, asked_of(&to).await?];
        for (before, after) in before.iter().zip(&after) {
            let methods: Vec<&str> = after[before.len()..].iter().map(|one| one.method.as_str()).collect();
            assert_eq!(methods, ["HEAD"], "{release:?}");
        }

        let pinned = at(&from, &format!("app@{digest}"))?;
        let again = copy(&Copier::new(&client()), &pinned, &destination, &options).await?;
        assert!(!again.changed && again.source_digest == digest, "{release:?}");
        assert_eq!(asked_of(&from).await?.len(), after[0].len(), "{release:?}: the source is left alone");
        assert_eq!(asked_of(&to).await?.len(), after[1].len() + 1, "{release:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_new_copy_is_looked_for_once() -> Result<()> {
    let (from, to) = (FakeRegistry::start().await?, FakeRegistry::start().await?);
    from.hold("app", "1", &layered(&[&bytes(1, 1000)])?);
    let copier = Copier::new(&client());
    copy(&copier, &reference(&from, "app:1")?, &reference(&to, "app:1")?, &CopyOptions::default()).await?;
    assert_eq!(asked(&from), ["GET"; 3], "a manifest and two blobs");
    let mut methods = asked(&to);
    assert_eq!((methods.remove(0).as_str(), methods.pop().as_deref()), ("HEAD", Some("PUT")));
    methods.sort();
    assert_eq!(methods, ["POST", "POST", "PUT", "PUT"]);
    Ok(())
}

#[tokio::test]
async fn a_source_that_moved_on_is_copied_again() -> Result<()> {
    let (from, to) = (FakeRegistry::start().await?, FakeRegistry::start().await?);
    let old: Digest = from.hold("app", "1", &image("old")?).parse()?;
    let (source, destination) = (reference(&from, "app:1")?, reference(&to, "app:1")?);
    let copier = Copier::new(&client());
    let done = copy(&copier, &source, &destination, &CopyOptions::default()).await?;
    assert_eq!(done.source_digest, old);
    let new: Digest = from.hold("app", "1", &image("new")?).parse()?;
    let done = copy(&copier, &source, &destination, &CopyOptions::default()).await?;
    assert_eq!((done.changed, done.digest), (true, new));
    assert_eq!(to.digest_of("app", "1"), Some(new.to_string()));
    Ok(())
}

#[tokio::test]
async fn a_source_that_is_gone_is_told_even_if_the_copy_is_there() -> Result<()> {
    let (from, to) = (FakeRegistry::start().await?, FakeRegistry::start().await?);
    to.hold("app", "1", &images::empty()?);
    let (source, destination) = (reference(&from, "app:1")?, reference(&to, "app:1")?);
    let copier = Copier::new(&client());
    let error = copy(&copier, &source, &destination, &CopyOptions::default()).await.unwrap_err();
    assert!(matches!(&error, CopyError::Source(_)) && error.class() == ErrorClass::Absent, "{error}");
    Ok(())
}

#[tokio::test]
async fn chosen_platforms_are_compared_after_the_choice() -> Result<()> {
    let (from, to) = (FakeRegistry::start().await?, FakeRegistry::start().await?);
    let whole: Digest = from.hold("app", "1", &images::multi_platform(&["amd64", "arm64"])?).parse()?;
    let (source, destination) = (reference(&from, "app:1")?, reference(&to, "app:1")?);
    let options = CopyOptions { platforms: vec!["linux/arm64".parse()?], ..CopyOptions::default() };
    let copier = Copier::new(&client());
    let first = copy(&copier, &source, &destination, &options).await?;
    assert!(first.changed && first.source_digest == whole && first.digest != whole);
    asked(&to);
    let again = copy(&copier, &source, &destination, &options).await?;
    assert!(!again.changed && again.digest == first.digest && again.source_digest == whole);
    assert_eq!(asked(&to), ["HEAD"]);
    Ok(())
}

#[tokio::test]
async fn a_source_without_head_is_read() -> Result<()> {
    let (from, to) = (FakeRegistry::start().await?, FakeRegistry::start().await?);
    from.hold("app", "1", &images::empty()?);
    from.inject(Fault::status(405).on(Route::Manifests).method("HEAD"));
    let (source, destination) = (reference(&from, "app:1")?, reference(&to, "app:1")?);
    let copier = Copier::new(&client());
    assert!(copy(&copier, &source, &destination, &CopyOptions::default()).await?.changed);
    assert!(!copy(&copier, &source, &destination, &CopyOptions::default()).await?.changed);
    Ok(())
}
