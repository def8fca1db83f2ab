//! Deleting tags alone, and finding out who else needs a manifest.

use anyhow::Result;
use fairlead_domain::digest::Digest;
use fairlead_domain::reference::Tag;
use fairlead_registry::{Deleted, ErrorClass, Right, TagUsage};
use fairlead_testkit::fake_registry::{FakeRegistry, Fault, Route};
use fairlead_testkit::registry::Release;
use fairlead_testkit::{Registry, RegistryConfig, images};

use crate::real::releases;
use crate::support::{at, client, image, patiently, probe, reference, remote};

fn tag(text: &str) -> Result<Tag> {
    Ok(Tag::parse(text)?)
}

#[tokio::test]
async fn a_tag_alone_is_deleted_or_nothing() -> Result<()> {
    for release in releases() {
        let registry = Registry::start(RegistryConfig::new().release(release).delete()).await?;
        let digest: Digest = registry.endpoint().push("app", "1", &images::empty()?).await?.parse()?;
        registry.endpoint().push("app", "2", &images::empty()?).await?;
        let client = client();
        let remote = remote(&client, &at(&registry, "app")?, Right::Delete)?;
        let deleted = remote.delete_tag(&tag("1")?, &patiently()).await?;
        let left =
            async |name: &str| anyhow::Ok(probe(&client, &at(&registry, name)?, &[]).await.is_available());
        assert!(left("app:2").await?, "{release:?}: the other tag is not touched");
        match release {
            Release::V3 => {
                assert_eq!((deleted, left("app:1").await?), (Deleted::Tag, false));
                let again = remote.delete_tag(&tag("1")?, &patiently()).await?;
                assert_eq!(again, Deleted::Nothing);
                assert!(left(&format!("app@{digest}")).await?);
            }
            Release::V2 => assert_eq!((deleted, left("app:1").await?), (Deleted::Unsupported, true)),
        }

        let closed = Registry::start(RegistryConfig::new().release(release)).await?;
        closed.endpoint().push("app", "1", &images::empty()?).await?;
        let remote = client.repository(&at(&closed, "app")?.repository(), Vec::new(), Right::Delete)?;
        let refused = remote.delete_tag(&tag("1")?, &patiently()).await?;
        assert_eq!(refused, Deleted::Unsupported, "{release:?}");
        let refused = remote.delete_digest(digest, &patiently()).await.unwrap_err();
        assert!(refused.to_string().contains("switched off"), "{release:?}: {refused}");
    }
    Ok(())
}

#[tokio::test]
async fn whoever_else_needs_a_manifest_is_found() -> Result<()> {
    for release in releases() {
        let registry = Registry::start(RegistryConfig::new().release(release)).await?;
        let digest: Digest = registry.endpoint().push("app", "1", &image("one")?).await?.parse()?;
        registry.endpoint().push("app", "other", &image("other")?).await?;
        let client = client();
        let remote = remote(&client, &at(&registry, "app")?, Right::Delete)?;
        let shared = async |digest: Digest, except: &str, most: usize| {
            anyhow::Ok(remote.tag_usage(digest, &tag(except)?, most, &patiently()).await?)
        };
        assert_eq!(shared(digest, "1", 10).await?, TagUsage::Unused, "{release:?}");
        assert_eq!(shared(digest, "1", 1).await?, TagUsage::Unused, "{release:?}");
        assert_eq!(shared(digest, "1", 0).await?, TagUsage::Unknown, "{release:?}");
        registry.endpoint().push("app", "2", &image("one")?).await?;
        assert_eq!(shared(digest, "1", 10).await?, TagUsage::UsedBy(tag("2")?), "{release:?}");
        assert_eq!(shared(digest, "1", 1).await?, TagUsage::Unknown, "{release:?}");

        let multi = images::multi_platform(&["amd64", "arm64"])?;
        registry.endpoint().push("app", "multi", &multi).await?;
        let part: Digest = multi.manifests()[1].digest().parse()?;
        let found = shared(part, "held", 10).await?;
        assert_eq!(found, TagUsage::UsedBy(tag("multi")?), "{release:?}: an index needs its parts");
        let nowhere =
            client.repository(&at(&registry, "nowhere")?.repository(), Vec::new(), Right::Delete)?;
        let found = nowhere.tag_usage(digest, &tag("1")?, 10, &patiently()).await?;
        assert_eq!(found, TagUsage::Unused, "{release:?}");
    }
    Ok(())
}

#[tokio::test]
async fn what_cannot_be_looked_at_is_not_taken_for_unshared() -> Result<()> {
    let registry = FakeRegistry::start().await?;
    let digest: Digest = registry.hold("app", "1", &image("one")?).parse()?;
    for number in 0..5 {
        registry.hold("app", &format!("other-{number}"), &image("other")?);
    }
    let client = client();
    let remote = remote(&client, &reference(&registry, "app")?, Right::Delete)?;
    for status in [401, 403, 500] {
        registry.heal();
        registry.inject(Fault::status(status).on(Route::Manifests).path("other-3"));
        let error = remote.tag_usage(digest, &tag("1")?, 100, &patiently()).await.unwrap_err();
        assert!(error.to_string().contains("other-3"), "{error}");
    }
    registry.heal();
    registry.inject(Fault::status(404).on(Route::Manifests).path("other-3"));
    let found = remote.tag_usage(digest, &tag("1")?, 100, &patiently()).await?;
    assert_eq!(found, TagUsage::Unused, "a tag that went away meanwhile needs nothing");
    registry.heal();
    registry.inject(Fault::status(405).on(Route::Tags));
    let error = remote.tag_usage(digest, &tag("1")?, 100, &patiently()).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Broken, "{error}");

    let inner = images::multi_platform(&["amd64"])?;
    let index = serde_json::json!({"schemaVersion": 2, "mediaType": fairlead_registry::manifest::OCI_INDEX, "manifests": [
        {"mediaType": fairlead_registry::manifest::OCI_INDEX, "digest": inner.digest(), "size": 1},
    ]});
    registry.heal();
    registry.hold_manifest("app", "nested", fairlead_registry::manifest::OCI_INDEX, index.to_string());
    let found = remote.tag_usage(digest, &tag("1")?, 100, &patiently()).await?;
    assert_eq!(found, TagUsage::Unknown, "an index within an index may hold it");
    Ok(())
}
