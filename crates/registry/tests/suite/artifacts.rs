//! Documents stored as artifacts, and artifacts that are copied.

use anyhow::Result;
use fairlead_domain::digest::Digest;
use fairlead_domain::reference::Tag;
use fairlead_registry::copy::{Copier, CopyOptions};
use fairlead_registry::manifest::{OCI_MANIFEST, Selector};
use fairlead_registry::{ErrorClass, Right};
use fairlead_testkit::fake_registry::FakeRegistry;
use fairlead_testkit::{Registry, RegistryConfig, images};
use serde_json::json;

use crate::real::releases;
use crate::support::{at, client, copy, patiently, reference, remote};

const TYPE: &str = "application/vnd.example.list.v1+json";

#[tokio::test]
async fn a_document_is_stored_read_and_replaced() -> Result<()> {
    for release in releases() {
        let registry = Registry::start(RegistryConfig::new().release(release).delete()).await?;
        let remote = remote(&client(), &at(&registry, "deep/path/list")?, Right::Delete)?;
        let tag = Selector::from(&Tag::parse("one")?);
        let missing = remote.artifact(&tag, TYPE, 100, &patiently()).await.unwrap_err();
        assert_eq!(missing.class(), ErrorClass::Absent, "{release:?}: {missing}");

        let first = remote.put_artifact(&tag, TYPE, "first".into(), &patiently()).await?;
        let read = remote.artifact(&tag, TYPE, 100, &patiently()).await?;
        assert_eq!((read.digest, &*read.document), (first, b"first".as_slice()), "{release:?}");
        let second = remote.put_artifact(&tag, TYPE, "the second".into(), &patiently()).await?;
        assert_ne!(first, second);
        remote.delete_digest(first, &patiently()).await?;
        assert_eq!(
            remote.artifact(&tag, TYPE, 100, &patiently()).await?.document,
            "the second",
            "{release:?}"
        );

        let long = remote.artifact(&tag, TYPE, 5, &patiently()).await.unwrap_err();
        assert!(long.to_string().contains("longer than 5 bytes"), "{release:?}: {long}");
    }
    Ok(())
}

#[tokio::test]
async fn another_kind_of_content_is_refused() -> Result<()> {
    let registry = Registry::start(RegistryConfig::new()).await?;
    registry.endpoint().push("list", "one", &images::empty()?).await?;
    let remote = remote(&client(), &at(&registry, "list")?, Right::Pull)?;
    let refused =
        remote.artifact(&Selector::from(&Tag::parse("one")?), TYPE, 100, &patiently()).await.unwrap_err();
    assert_eq!(refused.class(), ErrorClass::Broken, "{refused}");
    Ok(())
}

/// Artifacts are mounted as image volumes, on nodes of every platform.
#[tokio::test]
async fn what_names_no_platform_is_copied_whatever_platforms_are_chosen() -> Result<()> {
    let (from, to) = (FakeRegistry::start().await?, FakeRegistry::start().await?);
    let weights = images::artifact("application/vnd.example.model", b"weights")?;
    let mut digests = vec![from.hold("model", "0", &weights)];
    for (kind, content) in [
        ("application/vnd.example.model.config.v1+json", "no JSON at all"),
        ("application/vnd.oci.image.config.v1+json", "{}"),
    ] {
        let config = Digest::sha256(content.as_bytes());
        from.hold_blob("model", &config.to_string(), content);
        let manifest = json!({
            "schemaVersion": 2, "mediaType": OCI_MANIFEST, "layers": [],
            "config": {"mediaType": kind, "digest": config, "size": content.len()},
        });
        let tag = digests.len().to_string();
        digests.push(from.hold_manifest("model", &tag, OCI_MANIFEST, manifest.to_string()));
    }
    let copier = Copier::new(&client());
    let options = CopyOptions { platforms: vec!["linux/arm64".parse()?], ..CopyOptions::default() };
    for (number, digest) in digests.into_iter().enumerate() {
        let name = format!("model:{number}");
        copy(&copier, &reference(&from, &name)?, &reference(&to, &name)?, &options).await?;
        assert_eq!(to.digest_of("model", &number.to_string()), Some(digest));
    }
    Ok(())
}
