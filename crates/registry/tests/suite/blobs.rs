//! Blobs: read to the last verified byte, written whole or in chunks, mounted.

use anyhow::Result;
use bytes::Bytes;
use fairlead_domain::digest::Digest;
use fairlead_registry::manifest::{Descriptor, Manifest, OCI_INDEX, Selector};
use fairlead_registry::{Mount, RepositoryClient, Right};
use fairlead_testkit::fake_registry::{Effect, FakeRegistry, Fault, Route};

use crate::support::{client, patiently, reference, remote};

fn content(length: usize) -> Bytes {
    (0..length).map(|position| u8::try_from(position % 251).unwrap_or_default()).collect()
}

fn descriptor(bytes: &[u8]) -> Result<Descriptor> {
    let digest = Digest::sha256(bytes);
    Ok(serde_json::from_value(serde_json::json!({"digest": digest, "size": bytes.len()}))?)
}

/// A registry that holds a blob, and the way to it.
async fn registry_with_blob(length: usize) -> Result<(FakeRegistry, RepositoryClient, Descriptor, Bytes)> {
    let registry = FakeRegistry::start().await?;
    let bytes = content(length);
    let blob = descriptor(&bytes)?;
    registry.hold_blob("app", &blob.digest.to_string(), bytes.clone());
    let remote = remote(&client(), &reference(&registry, "app")?, Right::Pull)?;
    Ok((registry, remote, blob, bytes))
}

async fn read(
    remote: &RepositoryClient,
    descriptor: &Descriptor,
) -> Result<Vec<u8>, fairlead_registry::Error> {
    let mut reader = remote.blob(descriptor);
    let mut whole = Vec::new();
    while let Some(piece) = reader.next(&patiently()).await? {
        whole.extend_from_slice(&piece);
    }
    Ok(whole)
}

#[tokio::test]
async fn a_blob_is_read_through_broken_connections() -> Result<()> {
    let (registry, remote, blob, bytes) = registry_with_blob(300_000).await?;
    assert_eq!(remote.blob_size(&blob.digest, &patiently()).await?, Some(300_000));
    assert_eq!(remote.blob_size(&Digest::sha256(b"other"), &patiently()).await?, None);
    assert!(read(&remote, &blob).await? == bytes);

    registry.forget_requests();
    registry.inject(Fault::new(Effect::Truncate(100_000)).on(Route::Blobs).times(2));
    assert!(read(&remote, &blob).await? == bytes);
    let ranges: Vec<_> =
        registry.requests().iter().map(|request| request.header("range").to_owned()).collect();
    assert_eq!(ranges, ["", "bytes=100000-", "bytes=200000-"], "the rest is asked for, not all of it again");
    Ok(())
}

#[tokio::test]
async fn a_registry_without_ranges_sends_everything_again() -> Result<()> {
    let (registry, remote, blob, bytes) = registry_with_blob(200_000).await?;
    registry.inject(Fault::new(Effect::Truncate(70_000)).on(Route::Blobs).times(1));
    registry.inject(Fault::new(Effect::Answer(200, "application/octet-stream", bytes.to_vec())).times(1));
    assert!(read(&remote, &blob).await? == bytes);
    Ok(())
}

#[tokio::test]
async fn false_content_is_never_completed() -> Result<()> {
    let (registry, remote, blob, bytes) = registry_with_blob(100_000).await?;
    let longer = Effect::Answer(200, "application/octet-stream", [&bytes[..], b"more"].concat());
    for effect in [Effect::Corrupt, Effect::Shorten(99_999), longer] {
        registry.heal();
        registry.inject(Fault::new(effect.clone()).on(Route::Blobs));
        let mut reader = remote.blob(&blob);
        let mut received = 0;
        let error = loop {
            match reader.next(&patiently()).await {
                Ok(Some(piece)) => received += piece.len(),
                Ok(None) => panic!("{effect:?} was not noticed"),
                Err(error) => break error,
            }
        };
        assert!(received < bytes.len(), "{effect:?}: the last piece is kept back");
        assert!(error.to_string().contains("digest"), "{effect:?}: {error}");
    }
    Ok(())
}

#[tokio::test]
async fn a_blob_is_written_whole_or_in_chunks_and_can_be_resumed() -> Result<()> {
    let registry = FakeRegistry::start().await?;
    let client = client();
    let remote = remote(&client, &reference(&registry, "app")?, Right::Push)?;
    let bytes = content(100_000);
    let digest = Digest::sha256(&bytes);
    let upload = remote.begin_upload(&patiently()).await?;
    upload.put(&digest, bytes.len() as u64, bytes.clone().into(), &patiently()).await?;
    assert!(registry.has_blob("app", &digest.to_string()));
    assert_eq!(registry.requests().len(), 2, "one to open, one that carries everything");

    let other = content(100_001);
    let digest = Digest::sha256(&other);
    registry.behave(|behaviour| behaviour.smallest_chunk = Some(1000));
    let mut upload = remote.begin_upload(&patiently()).await?;
    assert_eq!(upload.smallest_chunk(), Some(1000));
    upload.append(other.slice(..60_000), &patiently()).await?;
    registry.inject(Fault::new(Effect::Drop).method("PATCH").times(1));
    assert!(upload.append(other.slice(60_000..), &patiently()).await.is_err());
    assert_eq!(upload.catch_up(&patiently()).await?, 60_000);
    upload.append(other.slice(60_000..), &patiently()).await?;
    assert_eq!(upload.offset(), 100_001);
    upload.finish(&digest, &patiently()).await?;
    assert!(registry.has_blob("app", &digest.to_string()));

    let mut upload = remote.begin_upload(&patiently()).await?;
    let wrong =
        upload.put(&Digest::sha256(b"else"), 4, Bytes::from_static(b"this").into(), &patiently()).await;
    assert!(wrong.unwrap_err().to_string().contains("DIGEST_INVALID"));
    upload.cancel(&patiently()).await?;
    assert_eq!(registry.open_uploads(), 0);
    Ok(())
}

#[tokio::test]
async fn a_blob_is_mounted_from_another_repository() -> Result<()> {
    let registry = FakeRegistry::start().await?;
    let digest = Digest::sha256(b"layer");
    registry.hold_blob("team/source", &digest.to_string(), "layer");
    let client = client();
    let remote = remote(&client, &reference(&registry, "app")?, Right::Push)?;
    let source = reference(&registry, "team/source")?.repository();
    assert!(matches!(remote.mount(&digest, &source, &patiently()).await?, Mount::Done));
    assert!(registry.has_blob("app", &digest.to_string()));
    registry.behave(|behaviour| behaviour.mount = false);
    let Mount::Refused(upload) = remote.mount(&Digest::sha256(b"x"), &source, &patiently()).await? else {
        panic!("it cannot mount")
    };
    upload.put(&Digest::sha256(b"x"), 1, Bytes::from_static(b"x").into(), &patiently()).await?;
    Ok(())
}

#[tokio::test]
async fn a_manifest_is_stored_as_it_was_sent() -> Result<()> {
    let registry = FakeRegistry::start().await?;
    let client = client();
    let target = reference(&registry, "app:1")?;
    let remote = remote(&client, &target, Right::Push)?;
    let bytes = Bytes::from_static(br#"{ "schemaVersion": 2, "manifests": [ ] }"#);
    let manifest =
        Manifest { media_type: OCI_INDEX.into(), digest: Digest::sha256(&bytes), bytes: bytes.clone() };
    remote.put_manifest(&Selector::of(&target), &manifest, &patiently()).await?;
    assert_eq!(remote.manifest(&Selector::of(&target), &patiently()).await?, manifest);
    let other = format!("sha256:{}", "0".repeat(64));
    registry.inject(Fault::new(Effect::Header("docker-content-digest", other)).method("PUT"));
    let error = remote.put_manifest(&Selector::of(&target), &manifest, &patiently()).await.unwrap_err();
    assert!(error.to_string().contains("instead of"), "{error}");
    Ok(())
}
