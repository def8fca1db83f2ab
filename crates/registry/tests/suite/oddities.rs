//! Copies of what is seldom seen and valid all the same, or nearly so.

use anyhow::Result;
use fairlead_domain::digest::{Algorithm, Digest};
use fairlead_registry::ErrorClass;
use fairlead_registry::copy::{Copier, CopyError, CopyOptions};
use fairlead_registry::manifest::{DOCKER_LIST, DOCKER_MANIFEST, OCI_INDEX, OCI_MANIFEST};
use fairlead_testkit::fake_registry::FakeRegistry;
use serde_json::json;

use crate::support::{client, copy, image, reference};

#[tokio::test]
async fn lists_that_are_null_are_lists_without_entries() -> Result<()> {
    let (from, to) = (FakeRegistry::start().await?, FakeRegistry::start().await?);
    let config = Digest::sha256(b"{}");
    from.hold_blob("app", &config.to_string(), "{}");
    let copier = Copier::new(&client());
    for (number, kind) in [OCI_MANIFEST, DOCKER_MANIFEST, OCI_INDEX, DOCKER_LIST].into_iter().enumerate() {
        let manifest = if number < 2 {
            let config = json!({"mediaType": "application/json", "digest": config, "size": 2});
            json!({"schemaVersion": 2, "mediaType": kind, "config": config, "layers": null})
        } else {
            json!({"schemaVersion": 2, "mediaType": kind, "manifests": null})
        };
        let name = format!("app:{number}");
        let digest = from.hold_manifest("app", &number.to_string(), kind, manifest.to_string());
        copy(&copier, &reference(&from, &name)?, &reference(&to, &name)?, &CopyOptions::default()).await?;
        assert_eq!(to.digest_of("app", &number.to_string()), Some(digest), "{kind}");
    }
    Ok(())
}

#[tokio::test]
async fn an_index_without_entries_has_no_platform_to_choose() -> Result<()> {
    let (from, to) = (FakeRegistry::start().await?, FakeRegistry::start().await?);
    from.hold_manifest("app", "1", OCI_INDEX, r#"{"schemaVersion":2,"manifests":[]}"#);
    let options = CopyOptions { platforms: vec!["linux/amd64".parse()?], ..CopyOptions::default() };
    let copier = Copier::new(&client());
    let outcome = copy(&copier, &reference(&from, "app:1")?, &reference(&to, "app:1")?, &options).await;
    assert!(matches!(outcome, Err(CopyError::NoPlatform { .. })), "{outcome:?}");
    assert!(to.digest_of("app", "1").is_none());
    Ok(())
}

#[tokio::test]
async fn a_digest_of_another_algorithm_must_come_out_as_well() -> Result<()> {
    let (from, to) = (FakeRegistry::start().await?, FakeRegistry::start().await?);
    let image = image("a")?;
    from.hold("app", "1", &image);
    let source = reference(&from, "app:1")?;
    let right = Algorithm::Sha512.digest(&image.root().bytes);
    let wrong = reference(&to, &format!("app:1@{}", Algorithm::Sha512.digest(b"x")))?;
    let copier = Copier::new(&client());
    let options = CopyOptions::default();
    let error = copy(&copier, &source, &wrong, &options).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Misconfigured, "{error}");
    assert!(error.to_string().contains(&right.to_string()), "it says which one it is: {error}");
    assert!(to.digest_of("app", "1").is_none());

    for destination in [format!("app:1@{right}"), format!("app@{right}")] {
        let destination = reference(&to, &destination)?;
        assert!(copy(&copier, &source, &destination, &options).await?.changed, "{destination}");
        assert!(!copy(&copier, &source, &destination, &options).await?.changed, "{destination}");
    }
    let error = copy(&copier, &source, &wrong, &options).await.unwrap_err();
    assert!(matches!(error, CopyError::OtherDigest { .. }), "also where the image is there: {error}");
    Ok(())
}

#[tokio::test]
async fn the_layers_of_a_build_cache_are_copied_as_blobs() -> Result<()> {
    let (from, to) = (FakeRegistry::start().await?, FakeRegistry::start().await?);
    let entry = |media_type: &str, content: &'static str| {
        let digest = Digest::sha256(content.as_bytes()).to_string();
        from.hold_blob("cache", &digest, content);
        json!({"mediaType": media_type, "digest": digest, "size": content.len()})
    };
    let entries = [
        entry("application/vnd.oci.image.layer.v1.tar+gzip", "layer"),
        entry("application/vnd.buildkit.cacheconfig.v0", "{}"),
    ];
    let index = json!({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": entries});
    let digest = from.hold_manifest("cache", "1", OCI_INDEX, index.to_string());
    let copier = Copier::new(&client());
    let (source, destination) = (reference(&from, "cache:1")?, reference(&to, "cache:1")?);
    let done = copy(&copier, &source, &destination, &CopyOptions::default()).await?;
    assert_eq!(done.blobs_sent, 2);
    assert_eq!(to.digest_of("cache", "1"), Some(digest));
    assert!(to.has_blob("cache", &Digest::sha256(b"layer").to_string()));
    Ok(())
}
