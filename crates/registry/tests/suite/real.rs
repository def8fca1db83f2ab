//! Real registries: distribution 3 and 2.8.

use std::path::Path;

use anyhow::Result;
use bytes::Bytes;
use fairlead_domain::digest::Digest;
use fairlead_domain::reference::Tag;
use fairlead_domain::verdict::VerdictKind;
use fairlead_registry::manifest::{Manifest, Selector};
use fairlead_registry::{Client, Deleted, Mount, ProbeMethod, ProbeOptions, Right};
use fairlead_testkit::images;
use fairlead_testkit::registry::Release;
use fairlead_testkit::{Registry, RegistryConfig};

use crate::support::{at, available_again, client, client_for, logins, patiently, probe};

/// The releases that can be tested on this machine.
#[allow(clippy::print_stderr, reason = "the person who runs the tests has to know")]
pub(crate) fn releases() -> Vec<Release> {
    let mut releases = vec![Release::V3];
    if Path::new("/usr/bin/docker-registry").exists() {
        releases.push(Release::V2);
    } else {
        eprintln!("NOT TESTED: distribution 2.8, since Debian's docker-registry is not installed");
    }
    releases
}

#[tokio::test]
async fn images_are_probed_resolved_and_listed() -> Result<()> {
    for release in releases() {
        let registry = Registry::start(RegistryConfig::new().release(release)).await?;
        let multi = images::multi_platform(&["amd64", "arm64"])?;
        let digest: Digest = registry.endpoint().push("team/app", "1", &multi).await?.parse()?;
        let client = client();
        let image = at(&registry, "team/app:1")?;
        for method in [ProbeMethod::Head, ProbeMethod::Get] {
            let options = ProbeOptions { method, check_digest: true, ..ProbeOptions::default() };
            let verdict = client.probe(&image, &[], options, &patiently()).await;
            assert_eq!(verdict.digest(), Some(digest), "{release:?} {method:?}: {verdict}");
        }
        let missing = probe(&client, &at(&registry, "team/app:2")?, &[]).await;
        assert_eq!(missing.kind(), VerdictKind::NotFound, "{release:?}");
        let nowhere = probe(&client, &at(&registry, "team/none:1")?, &[]).await;
        assert_eq!(nowhere.kind(), VerdictKind::NotFound, "{release:?}");

        let remote = client.repository(&image.repository(), Vec::new(), Right::Pull)?;
        let selector = Selector::of(&image);
        assert_eq!(remote.resolve(&selector, &patiently()).await?.digest, digest);
        let arm: Digest = multi.manifests()[1].digest().parse()?;
        assert_eq!(remote.manifest(&arm.into(), &patiently()).await?.digest, arm);
        let tags = remote.tags(10, &patiently()).await?;
        assert_eq!((tags.tags.len(), tags.complete), (1, true));
        assert_eq!(remote.referrers(&digest, &patiently()).await?.manifests, []);
    }
    Ok(())
}

#[tokio::test]
async fn blobs_and_manifests_are_written_and_read_back() -> Result<()> {
    for release in releases() {
        let registry = Registry::start(RegistryConfig::new().release(release)).await?;
        let source = images::empty()?;
        registry.endpoint().push("source", "1", &source).await?;
        let client = client();
        let target = at(&registry, "target:1")?;
        let remote = client.repository(&target.repository(), Vec::new(), Right::Push)?;
        let from = at(&registry, "source")?.repository();
        for (position, blob) in source.blobs().iter().enumerate() {
            let (digest, bytes): (Digest, _) = (blob.digest().parse()?, Bytes::from(blob.bytes.clone()));
            assert_eq!(remote.blob_size(&digest, &patiently()).await?, None, "{release:?}");
            if position == 0 {
                assert!(matches!(remote.mount(&digest, &from, &patiently()).await?, Mount::Done));
            } else {
                let mut upload = remote.begin_upload(&patiently()).await?;
                let half = bytes.len() / 2;
                upload.append(bytes.slice(..half), &patiently()).await?;
                assert_eq!(upload.catch_up(&patiently()).await?, half as u64, "{release:?}");
                upload.append(bytes.slice(half..), &patiently()).await?;
                upload.finish(&digest, &patiently()).await?;
            }
            assert_eq!(
                remote.blob_size(&digest, &patiently()).await?,
                Some(bytes.len() as u64),
                "{release:?}"
            );
        }
        let whole = Bytes::from(vec![7; 3_000_000]);
        let digest = Digest::sha256(&whole);
        let upload = remote.begin_upload(&patiently()).await?;
        upload.put(&digest, whole.len() as u64, whole.clone().into(), &patiently()).await?;
        let descriptor = serde_json::from_value(
            serde_json::json!({"digest": digest, "size": whole.len(), "mediaType": "x/y"}),
        )?;
        let mut reader = remote.blob(&descriptor);
        let mut read = Vec::new();
        while let Some(piece) = reader.next(&patiently()).await? {
            read.extend_from_slice(&piece);
        }
        assert!(read == whole);

        let root = source.root();
        let manifest = Manifest {
            media_type: root.media_type.clone(),
            digest: root.digest().parse()?,
            bytes: root.bytes.clone().into(),
        };
        remote.put_manifest(&Selector::of(&target), &manifest, &patiently()).await?;
        assert_eq!(remote.manifest(&Selector::of(&target), &patiently()).await?, manifest);
    }
    Ok(())
}

#[tokio::test]
async fn deletion_follows_what_the_release_can_do() -> Result<()> {
    for release in releases() {
        let registry = Registry::start(RegistryConfig::new().release(release).delete()).await?;
        let digest: Digest = registry.endpoint().push("app", "1", &images::empty()?).await?.parse()?;
        registry.endpoint().push("app", "2", &images::empty()?).await?;
        let client = client();
        let remote = client.repository(&at(&registry, "app")?.repository(), Vec::new(), Right::Delete)?;
        let expected = match release {
            Release::V3 => Deleted::Tag,
            Release::V2 => Deleted::Unsupported,
        };
        assert_eq!(remote.delete_tag(&Tag::parse("1")?, &patiently()).await?, expected);
        assert!(probe(&client, &at(&registry, "app:2")?, &[]).await.is_available(), "{release:?}");
        assert_eq!(remote.delete_digest(digest, &patiently()).await?, Deleted::Digest(digest));
        assert_eq!(remote.delete_digest(digest, &patiently()).await?, Deleted::Nothing, "{release:?}");
        assert!(!probe(&client, &at(&registry, "app:2")?, &[]).await.is_available(), "{release:?}");

        let closed = Registry::start(RegistryConfig::new().release(release)).await?;
        closed.endpoint().push("app", "1", &images::empty()?).await?;
        let remote = client.repository(&at(&closed, "app")?.repository(), Vec::new(), Right::Delete)?;
        let refused = remote.delete_digest(digest, &patiently()).await.unwrap_err();
        assert!(refused.to_string().contains("405"), "{release:?}: {refused}");
    }
    Ok(())
}

#[tokio::test]
async fn a_registry_that_cannot_be_written_to_says_so() -> Result<()> {
    let full = Registry::start(RegistryConfig::new()).await?;
    full.endpoint().push("app", "1", &images::empty()?).await?;
    let registry = Registry::start(RegistryConfig::new().read_only(full.directory())).await?;
    let client = client();
    let image = at(&registry, "app:1")?;
    assert!(probe(&client, &image, &[]).await.is_available());
    let remote = client.repository(&image.repository(), Vec::new(), Right::Push)?;
    let refused = remote.begin_upload(&patiently()).await.unwrap_err();
    assert!(refused.to_string().contains("405"), "{refused}");
    Ok(())
}

fn trusting(registry: &Registry, directory: &Path) -> Result<Client> {
    let file = directory.join("ca.pem");
    std::fs::write(&file, registry.endpoint().authority.clone().unwrap_or_default())?;
    client_for(&registry.endpoint().host(), |settings| settings.ca_file = Some(file))
}

#[tokio::test]
async fn passwords_and_private_authorities() -> Result<()> {
    for release in releases() {
        let config = RegistryConfig::new().release(release).tls().user("ada", "one").user("bob", "two");
        let registry = Registry::start(config).await?;
        registry.endpoint().push("private", "1", &images::empty()?).await?;
        let image = at(&registry, "private:1")?;
        assert_eq!(probe(&client(), &image, &[]).await.kind(), VerdictKind::TlsError, "{release:?}");
        let directory = tempfile::tempdir()?;
        let client = trusting(&registry, directory.path())?;
        assert_eq!(probe(&client, &image, &[]).await.kind(), VerdictKind::Unauthorised, "{release:?}");
        let wrong_then_right = logins(&image, &[("ada", "two"), ("bob", "two")]);
        let verdict = probe(&client, &image, &wrong_then_right).await;
        assert!(verdict.is_available(), "{release:?}: {verdict}");
        let wrong = logins(&image, &[("ada", "two")]);
        assert_eq!(probe(&client, &image, &wrong).await.kind(), VerdictKind::Unauthorised, "{release:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_certificate_that_is_its_own_authority_is_trusted_where_it_is_named() -> Result<()> {
    for release in releases() {
        let registry = Registry::start(RegistryConfig::new().release(release).self_signed()).await?;
        registry.endpoint().push("app", "1", &images::empty()?).await?;
        let image = at(&registry, "app:1")?;
        let verdict = probe(&client(), &image, &[]).await;
        assert_eq!(verdict.kind(), VerdictKind::TlsError, "{release:?}: {verdict}");
        assert!(verdict.reason().contains("caFile"), "{release:?}: {verdict}");
        let directory = tempfile::tempdir()?;
        let verdict = probe(&trusting(&registry, directory.path())?, &image, &[]).await;
        assert!(verdict.is_available(), "{release:?}: {verdict}");
    }
    Ok(())
}

#[tokio::test]
async fn a_registry_that_is_killed_is_noticed_and_so_is_its_return() -> Result<()> {
    let registry = Registry::start(RegistryConfig::new()).await?;
    registry.endpoint().push("app", "1", &images::empty()?).await?;
    let client = client();
    let image = at(&registry, "app:1")?;
    assert!(probe(&client, &image, &[]).await.is_available());
    registry.kill().await?;
    assert_eq!(probe(&client, &image, &[]).await.kind(), VerdictKind::Unreachable);
    registry.start_again().await?;
    available_again(&client, &image).await
}
