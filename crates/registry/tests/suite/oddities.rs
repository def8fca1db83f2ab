//! Copies of what is seldom seen and valid all the same, or nearly so.

use anyhow::Result;
use fairlead_domain::digest::{Algorithm, Digest};
use fairlead_domain::verdict::VerdictKind;
use fairlead_registry::ErrorClass;
use fairlead_registry::copy::{Copier, CopyError, CopyOptions};
use fairlead_registry::manifest::{DOCKER_LIST, DOCKER_MANIFEST, OCI_INDEX, OCI_MANIFEST};
use fairlead_testkit::fake_registry::{Effect, FakeRegistry, Fault, Route};
use fairlead_testkit::{Registry, RegistryConfig};
use serde_json::{Value, json};

use crate::support::{at, bytes, client, copy, image, layered, probe, reference};

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

/// Each is a document that registries keep and runtimes read, because programs written in Go do; strict decoders do
/// not.
#[tokio::test]
async fn documents_that_registries_take_are_copied_byte_for_byte() -> Result<()> {
    // A real one, which refuses what names a layer that it was not sent.
    let (from, to) = (FakeRegistry::start().await?, Registry::start(RegistryConfig::new()).await?);
    let blob = |content: &'static str| {
        let digest = Digest::sha256(content.as_bytes()).to_string();
        from.hold_blob("app", &digest, content);
        (digest, content.len())
    };
    let ((config, size), (layer, length)) = (blob("{}"), blob("layer"));
    let config = format!(r#""config":{{"mediaType":"a/b","digest":"{config}","size":{size}}}"#);
    let described = |more: &str| format!(r#"{{"mediaType":"a/b","digest":"{layer}","size":{length}{more}}}"#);
    let plain = described("");
    let escaped = described(r#","annotations":{"a":"\udc00"}"#);
    let broken = described(r#","annotations":{"a":"?"}"#);
    let null_type = plain.replace(r#""a/b""#, "null");
    let size_twice = described(r#","size":5"#);
    let copier = Copier::new(&client());
    for (number, layers) in [
        format!(r#""layers":[{escaped}]"#),
        format!(r#""layers":[{broken}]"#),
        format!(r#""schemaVersion":2,"layers":[{plain}]"#),
        format!(r#""layers":[],"layers":[{plain}]"#),
        format!(r#""layers":[{size_twice}]"#),
        format!(r#""layers":[{null_type}]"#),
        format!(r#""Layers":[{plain}]"#),
    ]
    .into_iter()
    .enumerate()
    {
        let tag = number.to_string();
        let mut document = format!(r#"{{"schemaVersion":2,{config},{layers}}}"#).into_bytes();
        for byte in document.iter_mut().filter(|byte| **byte == b'?') {
            *byte = 0xff;
        }
        let digest = from.hold_manifest("app", &tag, OCI_MANIFEST, document);
        // A repository of its own, so that its layer is there for no other's sake.
        let (source, destination) = (reference(&from, &format!("app:{tag}"))?, at(&to, &format!("{tag}:1"))?);
        let done = copy(&copier, &source, &destination, &CopyOptions::default()).await?;
        assert_eq!(done.digest.to_string(), digest, "{layers}");
        assert!(probe(&client(), &destination, &[]).await.is_available(), "{layers}");
    }
    Ok(())
}

#[tokio::test]
async fn what_is_an_index_and_an_image_is_not_copied() -> Result<()> {
    let (from, to) = (FakeRegistry::start().await?, FakeRegistry::start().await?);
    let config = Digest::sha256(b"{}");
    from.hold_blob("app", &config.to_string(), "{}");
    let config = json!({"mediaType": "application/json", "digest": config, "size": 2});
    let both = json!({"schemaVersion": 2, "config": config, "layers": [], "manifests": []}).to_string();
    let client = client();
    for kind in [OCI_MANIFEST, OCI_INDEX] {
        from.hold_manifest("app", "1", kind, both.clone());
        let source = reference(&from, "app:1")?;
        let copier = Copier::new(&client);
        let outcome = copy(&copier, &source, &reference(&to, "app:1")?, &CopyOptions::default()).await;
        let error = outcome.unwrap_err().to_string();
        assert!(error.contains("parts of an index and those of an image"), "{kind}: {error}");
        assert!(to.digest_of("app", "1").is_none());

        from.inject(Fault::status(405).on(Route::Manifests).method("HEAD"));
        let verdict = probe(&client, &source, &[]).await;
        assert_eq!(verdict.kind(), VerdictKind::Malformed, "as soon as it is read: {verdict}");
        from.heal();
    }
    Ok(())
}

const ORDINARY: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
/// Registries need not hold such layers, which have addresses of their own.
const FOREIGN: &str = "application/vnd.oci.image.layer.nondistributable.v1.tar+gzip";

/// Puts `app:1` into a registry, with layers of these kinds that are all the same blob.
fn hold_layers(registry: &FakeRegistry, kinds: &[&str]) -> String {
    let blob = |kind: &str, content: &'static str| {
        registry.hold_blob("app", &Digest::sha256(content.as_bytes()).to_string(), content);
        let (digest, size) = (Digest::sha256(content.as_bytes()), content.len());
        if kind == FOREIGN {
            json!({"mediaType": kind, "digest": digest, "size": size, "urls": ["https://layers.example/1"]})
        } else {
            json!({"mediaType": kind, "digest": digest, "size": size})
        }
    };
    let config = blob("application/vnd.oci.image.config.v1+json", "{}");
    let layers: Vec<Value> = kinds.iter().map(|kind| blob(kind, "layer")).collect();
    let manifest = json!({"schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": config, "layers": layers});
    registry.hold_manifest("app", "1", OCI_MANIFEST, manifest.to_string())
}

#[tokio::test]
async fn a_blob_that_is_foreign_in_one_place_only_is_copied() -> Result<()> {
    for layers in [[FOREIGN, ORDINARY], [ORDINARY, FOREIGN]] {
        let (from, to) = (FakeRegistry::start().await?, FakeRegistry::start().await?);
        let digest = hold_layers(&from, &layers);
        let (source, destination) = (reference(&from, "app:1")?, reference(&to, "app:1")?);
        copy(&Copier::new(&client()), &source, &destination, &CopyOptions::default()).await?;
        assert_eq!(to.digest_of("app", "1"), Some(digest));
        assert_eq!(to.count("PUT", "/manifests/"), 1);
    }
    Ok(())
}

#[tokio::test]
async fn foreign_layers_are_brought_only_to_those_who_insist() -> Result<()> {
    let layer = Digest::sha256(b"layer").to_string();
    for (refusals, is_there) in [(0, true), (1, true), (2, true), (3, false)] {
        let (from, to) = (FakeRegistry::start().await?, FakeRegistry::start().await?);
        let digest = hold_layers(&from, &[FOREIGN]);
        to.inject(Fault::status(400).on(Route::Manifests).method("PUT").times(refusals));
        if !is_there {
            from.lose_blob("app", &layer);
        }
        let (source, destination) = (reference(&from, "app:1")?, reference(&to, "app:1")?);
        let outcome = copy(&Copier::new(&client()), &source, &destination, &CopyOptions::default()).await;
        if is_there {
            assert_eq!(outcome?.digest.to_string(), digest);
            assert_eq!(to.has_blob("app", &layer), refusals == 2, "once all else was looked for");
        } else {
            assert!(matches!(outcome, Err(CopyError::Destination(_))), "its words count: {outcome:?}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_destination_that_does_not_say_what_it_has_is_sent_everything() -> Result<()> {
    for status in [400, 403, 405] {
        let (from, to) = (FakeRegistry::start().await?, FakeRegistry::start().await?);
        let digest = from.hold("app", "1", &layered(&[&bytes(1, 2_000_000)])?);
        to.inject(Fault::status(status).on(Route::Blobs).method("HEAD"));
        let (source, destination) = (reference(&from, "app:1")?, reference(&to, "app:1")?);
        copy(&Copier::new(&client()), &source, &destination, &CopyOptions::default()).await?;
        assert_eq!(to.digest_of("app", "1"), Some(digest), "{status}");
    }
    Ok(())
}

#[tokio::test]
async fn a_destination_that_grants_every_mount_and_has_nothing_is_sent_everything() -> Result<()> {
    let (from, to) = (FakeRegistry::start().await?, FakeRegistry::start().await?);
    let images = [from.hold("app", "1", &image("a")?), from.hold("other", "1", &image("a")?)];
    to.inject(Fault::new(Effect::Answer(201, "", Vec::new())).on(Route::Uploads).query("mount="));
    let copier = Copier::new(&client());
    for (repository, digest) in ["app", "other"].into_iter().zip(images) {
        let name = format!("{repository}:1");
        copy(&copier, &reference(&from, &name)?, &reference(&to, &name)?, &CopyOptions::default()).await?;
        assert_eq!(to.digest_of(repository, "1"), Some(digest));
    }
    Ok(())
}
