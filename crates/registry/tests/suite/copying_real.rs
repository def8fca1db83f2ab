//! Copies between real registries, and through a wire that breaks.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use fairlead_domain::reference::Reference;
use fairlead_domain::verdict::VerdictKind;
use fairlead_registry::copy::{Copier, CopyOptions, Event, Observer};
use fairlead_testkit::fake_registry::{Auth, Bearer, FakeRegistry, Issuer};
use fairlead_testkit::registry::Release;
use fairlead_testkit::{ApiProxy, Registry, RegistryConfig, eventually, images};

use crate::real::releases;
use crate::support::{bytes, client, copy, in_background, layered, logins, parse, place, probe};

fn at(registry: &Registry, rest: &str) -> Result<Reference> {
    parse(&format!("{}/{rest}", registry.endpoint().host()))
}

#[tokio::test]
async fn every_kind_of_image_keeps_its_digest_between_releases() -> Result<()> {
    let options = CopyOptions::default();
    for release in releases() {
        let from = Registry::start(RegistryConfig::new().release(release)).await?;
        let to = Registry::start(RegistryConfig::new().release(Release::V3)).await?;
        let copier = Copier::new(&client());
        let large = layered(&[&bytes(1, 6_000_000), &bytes(2, 2_000_000), &bytes(3, 10)])?;
        for (name, image) in [
            ("multi", images::multi_platform(&["amd64", "arm64"])?),
            ("artifact", images::artifact("application/vnd.example.thing", b"thing")?),
            ("large", large),
        ] {
            from.endpoint().push(name, "1", &image).await?;
            let (source, destination) =
                (at(&from, &format!("{name}:1"))?, at(&to, &format!("mirror/{name}:1"))?);
            let done = copy(&copier, &source, &destination, &options).await?;
            assert_eq!(done.digest.to_string(), image.digest(), "{release:?} {name}");
            assert!(probe(&client(), &destination, &[]).await.is_available(), "{release:?} {name}");
            let again = copy(&copier, &source, &destination, &options).await?;
            assert!(!again.changed, "{release:?} {name}");
            let moved = at(&to, &format!("other/{name}:1"))?;
            let mounted = copy(&copier, &source, &moved, &options).await?;
            assert_eq!(mounted.blobs_sent, 0, "{release:?} {name}: everything is mounted");
        }
        let back = Registry::start(RegistryConfig::new().release(release)).await?;
        let done = copy(&copier, &at(&to, "mirror/large:1")?, &at(&back, "large:1")?, &options).await?;
        assert_eq!(done.blobs_sent, 4, "{release:?}");
    }
    Ok(())
}

#[tokio::test]
async fn many_small_images_cost_few_requests() -> Result<()> {
    let from = Registry::start(RegistryConfig::new()).await?;
    let to = Registry::start(RegistryConfig::new()).await?;
    let shared: Vec<Vec<u8>> = (0..3).map(|number| bytes(number, 20_000)).collect();
    let count = 20;
    for number in 0..count {
        let own = [bytes(1000 + number, 5000), bytes(2000 + number, 5000)];
        let layers: Vec<&[u8]> = shared.iter().chain(&own).map(Vec::as_slice).collect();
        from.endpoint().push("app", &number.to_string(), &layered(&layers)?).await?;
    }
    let copier = Copier::new(&client());
    let options = CopyOptions::default();
    let mut pairs = Vec::new();
    for number in 0..count {
        pairs.push((at(&from, &format!("app:{number}"))?, at(&to, &format!("one:{number}"))?));
    }
    let running = pairs.iter().map(|(source, destination)| copy(&copier, source, destination, &options));
    for done in futures::future::join_all(running).await {
        done?;
    }
    let requests = to.accesses()?.iter().filter(|access| access.path.starts_with("/v2/one/")).count();
    assert!(requests <= 8 * 20 + 6, "{requests} requests for 20 images of three new blobs each");
    Ok(())
}

#[tokio::test]
async fn a_registry_with_tokens_is_copied_to_and_probed() -> Result<()> {
    for release in releases() {
        let issuer = Arc::new(Issuer::new()?);
        let tokens = FakeRegistry::start().await?;
        tokens.require(Auth::bearer(Bearer {
            issuer: Some(Arc::clone(&issuer)),
            ..Bearer::new().user("ada", "one")
        }));
        let config =
            RegistryConfig::new().release(release).tokens(&format!("{}/token", tokens.url()), &issuer);
        let (from, to) = (Registry::start(RegistryConfig::new()).await?, Registry::start(config).await?);
        let digest = from.endpoint().push("app", "1", &images::multi_platform(&["amd64", "arm64"])?).await?;
        let destination = at(&to, "team/app:1")?;
        let client = client();
        let copier = Copier::new(&client);
        let nobody: Arc<dyn Observer> = Arc::new(|_: &Event| {});
        let mut target = place(&destination);
        target.credentials = logins(&destination, &[("ada", "one")]).into();
        let options = CopyOptions::default();
        let done =
            copier.copy(&place(&at(&from, "app:1")?), &target, &options, &nobody, &in_background()).await?;
        assert_eq!(done.digest.to_string(), digest, "{release:?}");
        assert_eq!(tokens.count("GET", "/token"), 1, "{release:?}: one token for the whole copy");
        assert!(probe(&client, &destination, &target.credentials).await.is_available(), "{release:?}");
        let wrong = logins(&destination, &[("ada", "two")]);
        assert_eq!(
            probe(&client, &destination, &wrong).await.kind(),
            VerdictKind::Unauthorised,
            "{release:?}"
        );
        assert_eq!(probe(&client, &destination, &[]).await.kind(), VerdictKind::Unauthorised, "{release:?}");
    }
    Ok(())
}

#[tokio::test]
async fn registries_that_are_killed_in_mid_copy_are_waited_for() -> Result<()> {
    for kill_source in [true, false] {
        let from = Registry::start(RegistryConfig::new()).await?;
        let to = Registry::start(RegistryConfig::new()).await?;
        let image = layered(&[&bytes(1, 16_000_000), &bytes(2, 8_000_000)])?;
        let digest = from.endpoint().push("app", "1", &image).await?;
        let copier = Copier::new(&client());
        let (source, destination) = (at(&from, "app:1")?, at(&to, "app:1")?);
        let copying =
            tokio::spawn(async move { copy(&copier, &source, &destination, &CopyOptions::default()).await });
        eventually(Duration::from_secs(20), || async {
            ensure!(to.accesses()?.iter().any(|access| access.method == "POST"), "no upload yet");
            Ok(())
        })
        .await?;
        let killed = if kill_source { &from } else { &to };
        killed.kill().await?;
        killed.start_again().await?;
        assert_eq!(copying.await??.digest.to_string(), digest, "source killed: {kill_source}");
        assert!(probe(&client(), &at(&to, "app:1")?, &[]).await.is_available());
    }
    Ok(())
}

#[tokio::test]
async fn a_wire_that_is_cut_in_mid_copy_is_survived() -> Result<()> {
    for release in releases() {
        let from = Registry::start(RegistryConfig::new()).await?;
        let to = Registry::start(RegistryConfig::new().release(release)).await?;
        let wire = ApiProxy::start(format!("127.0.0.1:{}", to.endpoint().port()).parse()?).await?;
        let image = layered(&[&bytes(1, 16_000_000), &bytes(2, 8_000_000)])?;
        let digest = from.endpoint().push("app", "1", &image).await?;
        let copier = Copier::new(&client());
        let (source, destination) = (at(&from, "app:1")?, parse(&format!("{}/app:1", wire.address()))?);
        let copying = {
            let (copier, source, destination) = (copier.clone(), source.clone(), destination.clone());
            tokio::spawn(async move { copy(&copier, &source, &destination, &CopyOptions::default()).await })
        };
        eventually(Duration::from_secs(20), || async {
            let begun = to.accesses()?.iter().any(|access| access.method == "POST");
            ensure!(begun, "no upload yet");
            Ok(())
        })
        .await?;
        wire.cut();
        tokio::time::sleep(Duration::from_millis(300)).await;
        wire.heal();
        let done = copying.await??;
        assert_eq!(done.digest.to_string(), digest, "{release:?}");
        assert!(probe(&client(), &at(&to, "app:1")?, &[]).await.is_available(), "{release:?}");
    }
    Ok(())
}
