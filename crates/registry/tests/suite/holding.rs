//! Copies that are named by a digest and held by a tag.

use anyhow::Result;
use fairlead_domain::digest::Algorithm;
use fairlead_domain::reference::Tag;
use fairlead_registry::copy::{Copier, CopyError, CopyOptions};
use fairlead_testkit::fake_registry::{FakeRegistry, Fault, Route};
use fairlead_testkit::{Registry, RegistryConfig, images};

use crate::real::releases;
use crate::support::{asked_of, at, bytes, client, copy, image, layered, probe, reference};

const HOLD: &str = "digest-held";

fn held() -> Result<CopyOptions> {
    Ok(CopyOptions { hold: Some(Tag::parse(HOLD)?), ..CopyOptions::default() })
}

#[tokio::test]
async fn one_tag_serves_both_names() -> Result<()> {
    for release in releases() {
        let from = Registry::start(RegistryConfig::new()).await?;
        let to = Registry::start(RegistryConfig::new().release(release)).await?;
        for (name, image) in
            [("single", image("held")?), ("multi", images::multi_platform(&["amd64", "arm64"])?)]
        {
            let digest = from.endpoint().push(name, "1", &image).await?;
            let pinned = format!("{name}@{digest}");
            let (source, destination) = (at(&from, &pinned)?, at(&to, &pinned)?);
            assert!(copy(&Copier::new(&client()), &source, &destination, &held()?).await?.changed);
            for found in [&pinned, &format!("{name}:{HOLD}")] {
                let verdict = probe(&client(), &at(&to, found)?, &[]).await;
                assert_eq!(
                    verdict.digest().map(|found| found.to_string()),
                    Some(digest.clone()),
                    "{release:?}"
                );
            }
            let before = asked_of(&to).await?;
            let by_digest = format!("/v2/{name}/manifests/{digest}");
            let twice = before.iter().any(|one| one.method == "PUT" && one.path == by_digest);
            assert!(!twice, "{release:?} {name}: written under its tag alone");

            let again = copy(&Copier::new(&client()), &source, &destination, &held()?).await?;
            assert!(!again.changed, "{release:?} {name}");
            let cost = asked_of(&to).await?.len() - before.len();
            assert_eq!(cost, 1, "{release:?} {name}: one look for both names");
        }
    }
    Ok(())
}

#[tokio::test]
async fn an_image_that_is_there_without_its_tag_gets_it() -> Result<()> {
    for release in releases() {
        let from = Registry::start(RegistryConfig::new()).await?;
        let to = Registry::start(RegistryConfig::new().release(release)).await?;
        for (name, source_is_gone) in [("one", false), ("two", true)] {
            let image = layered(&[&bytes(1, 2_000_000), &bytes(2, 10)])?;
            let digest = from.endpoint().push(name, "1", &image).await?;
            let pinned = format!("{name}@{digest}");
            let destination = at(&to, &pinned)?;
            let options = CopyOptions::default();
            copy(&Copier::new(&client()), &at(&from, &pinned)?, &destination, &options).await?;
            assert!(!probe(&client(), &at(&to, &format!("{name}:{HOLD}"))?, &[]).await.is_available());

            let source = if source_is_gone { format!("gone@{digest}") } else { pinned.clone() };
            let done = copy(&Copier::new(&client()), &at(&from, &source)?, &destination, &held()?).await?;
            assert_eq!((done.changed, done.blobs_sent), (true, 0), "{release:?} {name}");
            let tagged = probe(&client(), &at(&to, &format!("{name}:{HOLD}"))?, &[]).await;
            assert_eq!(tagged.digest().map(|found| found.to_string()), Some(digest), "{release:?} {name}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_source_that_is_gone_is_told_when_nothing_is_there() -> Result<()> {
    let (from, to) = (FakeRegistry::start().await?, FakeRegistry::start().await?);
    let digest = images::empty()?.digest();
    let (source, destination) =
        (reference(&from, &format!("app@{digest}"))?, reference(&to, &format!("app@{digest}"))?);
    let error = copy(&Copier::new(&client()), &source, &destination, &held()?).await.unwrap_err();
    assert!(matches!(error, CopyError::Source(_)), "{error}");
    to.hold("app", "other", &images::empty()?);
    let by_tag = reference(&from, "app:1")?;
    let error = copy(&Copier::new(&client()), &by_tag, &destination, &held()?).await.unwrap_err();
    assert!(matches!(error, CopyError::Source(_)), "nobody knows what the tag stood for: {error}");
    assert_eq!(to.digest_of("app", HOLD), None);
    Ok(())
}

#[tokio::test]
async fn a_holding_tag_that_names_something_else_is_moved_back() -> Result<()> {
    let (from, to) = (FakeRegistry::start().await?, FakeRegistry::start().await?);
    let digest = from.hold("app", "1", &image("right")?);
    to.hold("app", HOLD, &image("wrong")?);
    let pinned = format!("app@{digest}");
    let done =
        copy(&Copier::new(&client()), &reference(&from, &pinned)?, &reference(&to, &pinned)?, &held()?)
            .await?;
    assert!(done.changed);
    assert_eq!(to.digest_of("app", HOLD), Some(digest));
    Ok(())
}

#[tokio::test]
async fn destinations_with_a_tag_need_no_other() -> Result<()> {
    let (from, to) = (FakeRegistry::start().await?, FakeRegistry::start().await?);
    let digest = from.hold("app", "1", &images::empty()?);
    let copier = Copier::new(&client());
    for destination in ["app:1".to_owned(), format!("app:2@{digest}")] {
        copy(&copier, &reference(&from, "app:1")?, &reference(&to, &destination)?, &held()?).await?;
    }
    assert_eq!(to.digest_of("app", "2"), Some(digest));
    assert_eq!(to.digest_of("app", HOLD), None);
    Ok(())
}

#[tokio::test]
async fn digests_that_registries_do_not_make_themselves_are_written_too() -> Result<()> {
    let (from, to) = (FakeRegistry::start().await?, FakeRegistry::start().await?);
    let image = images::empty()?;
    from.hold("app", "1", &image);
    let long = Algorithm::Sha512.digest(&image.root().bytes);
    let (source, destination) = (reference(&from, "app:1")?, reference(&to, &format!("app@{long}"))?);
    // The double knows one algorithm only; that it is asked for both names is what matters.
    to.inject(Fault::status(201).on(Route::Manifests).method("PUT").path("sha512"));
    copy(&Copier::new(&client()), &source, &destination, &held()?).await?;
    assert_eq!(to.count("PUT", &long.to_string()), 1);
    assert_eq!(to.digest_of("app", HOLD), Some(image.digest()));
    Ok(())
}
