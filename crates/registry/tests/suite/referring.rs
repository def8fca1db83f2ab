//! Signatures, attestations and what else refers to an image: which of it comes along, and in which order.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use fairlead_domain::digest::Digest;
use fairlead_domain::reference::Reference;
use fairlead_registry::copy::{Copied, Copier, CopyError, CopyOptions};
use fairlead_registry::manifest::{OCI_INDEX, OCI_MANIFEST};
use fairlead_registry::{Right, fallback_tag};
use fairlead_testkit::fake_registry::{Effect, FakeRegistry, Fault, Route};
use fairlead_testkit::images;
use fairlead_testkit::{Registry, RegistryConfig};
use futures::future::try_join_all;
use serde_json::{Value, json};

use crate::real::releases;
use crate::support::{at, client, copy, image, patiently, reference, remote};

const EMPTY: &[u8] = b"{}";

async fn two_registries() -> Result<(FakeRegistry, FakeRegistry)> {
    Ok((FakeRegistry::start().await?, FakeRegistry::start().await?))
}

/// Copies `app:1`, and what refers to it.
async fn copy_app(from: &FakeRegistry, to: &FakeRegistry) -> Result<Result<Copied, CopyError>> {
    let options = CopyOptions { referrers: true, ..CopyOptions::default() };
    let (source, destination) = (reference(from, "app:1")?, reference(to, "app:1")?);
    Ok(copy(&Copier::new(&client()), &source, &destination, &options).await)
}

/// A document about a manifest, as the specification has it.
fn about(subject: &str, kind: &str) -> String {
    json!({
        "schemaVersion": 2, "mediaType": OCI_MANIFEST, "artifactType": format!("application/vnd.example.{kind}"),
        "config": {"mediaType": "application/vnd.oci.empty.v1+json", "digest": Digest::sha256(EMPTY), "size": 2},
        "layers": [], "subject": {"mediaType": OCI_MANIFEST, "digest": subject, "size": 1},
    })
    .to_string()
}

/// Puts a document about a manifest into a registry.
fn refer(registry: &FakeRegistry, subject: &str, kind: &str) -> String {
    registry.hold_blob("app", &Digest::sha256(EMPTY).to_string(), EMPTY);
    registry.hold_manifest("app", "sha256:", OCI_MANIFEST, about(subject, kind))
}

fn tag_for(digest: &str, ending: &str) -> Result<String> {
    Ok(format!("{}{ending}", fallback_tag(&digest.parse()?).context("a digest has a tag")?))
}

/// The list that stands in for one that a registry does not keep.
fn list_of(referrers: &[&str]) -> String {
    let entry = |digest: &&str| json!({"mediaType": OCI_MANIFEST, "digest": digest, "size": 1});
    let entries: Vec<Value> = referrers.iter().map(entry).collect();
    json!({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": entries}).to_string()
}

/// What a registry says to refer to a manifest beside this image.
async fn referrers_of(image: &Reference, subject: &str) -> Result<Vec<String>> {
    let known = remote(&client(), image, Right::Pull)?.referrers(&subject.parse()?, &patiently()).await?;
    Ok(known.manifests.iter().map(|referrer| referrer.digest.to_string()).collect())
}

/// The manifests that were written, by the names they were written under.
fn written(registry: &FakeRegistry) -> Vec<String> {
    let requests = registry.requests().into_iter().filter(|request| request.method == "PUT");
    let names = requests
        .filter_map(|request| request.path.split_once("/manifests/").map(|(_, name)| name.to_owned()));
    names.collect()
}

#[tokio::test]
async fn the_name_is_written_after_everything_that_refers_to_the_image() -> Result<()> {
    for lists_referrers in [true, false] {
        let (from, to) = two_registries().await?;
        to.behave(|behaviour| behaviour.referrers = lists_referrers);
        let subject = from.hold("app", "1", &image("new")?);
        let signature = refer(&from, &subject, "signature");
        let cosign = tag_for(&subject, ".sig")?;
        from.hold("app", &cosign, &images::artifact("cosign/signature", b"signed")?);
        let old = to.hold("app", "1", &image("old")?);

        // A failure at the very end leaves the name as it was.
        to.inject(Fault::status(403).on(Route::Manifests).method("PUT").path(&cosign).times(1));
        assert!(copy_app(&from, &to).await?.is_err());
        assert_eq!(to.digest_of("app", "1"), Some(old));

        to.forget_requests();
        copy_app(&from, &to).await??;
        assert_eq!(to.digest_of("app", "1").as_ref(), Some(&subject));
        for name in [&signature, &cosign] {
            assert!(to.digest_of("app", name).is_some(), "{name}");
        }
        let written = written(&to);
        assert_eq!(written.first(), Some(&subject), "signatures come to an image that is there: {written:?}");
        assert_eq!(written.last().map(String::as_str), Some("1"), "{written:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_signature_that_may_not_be_read_is_said() -> Result<()> {
    for refusal in [401, 403] {
        let (from, to) = two_registries().await?;
        let subject = from.hold("app", "1", &image("signed")?);
        let cosign = tag_for(&subject, ".sig")?;
        from.hold("app", &cosign, &images::artifact("cosign/signature", b"signed")?);
        from.inject(Fault::status(refusal).on(Route::Manifests).path(".sig"));
        let Err(error) = copy_app(&from, &to).await? else { bail!("{refusal}: nothing was said") };
        assert!(matches!(error, CopyError::Source(_)), "{error}");
        assert!(error.to_string().contains(&cosign), "{error}");
        assert_eq!(to.digest_of("app", "1"), None);
    }
    Ok(())
}

#[tokio::test]
async fn lists_are_freed_of_what_is_gone() -> Result<()> {
    let (from, to) = two_registries().await?;
    let subject = from.hold("app", "1", &image("signed")?);
    let list = tag_for(&subject, "")?;
    let gone = Digest::sha256(b"deleted").to_string();
    let here = refer(&from, &subject, "signature");
    let there = refer(&to, &subject, "scan");
    for (registry, referrer) in [(&from, &here), (&to, &there)] {
        registry.behave(|behaviour| behaviour.referrers = false);
        registry.hold_manifest("app", &list, OCI_INDEX, list_of(&[&gone, referrer]));
    }
    copy_app(&from, &to).await??;
    assert_eq!(to.digest_of("app", "1").as_ref(), Some(&subject));
    let known = referrers_of(&reference(&to, "app:1")?, &subject).await?;
    assert_eq!(known, [there, here], "what was there and what came");

    to.forget_requests();
    copy_app(&from, &to).await??;
    assert_eq!(written(&to), [""; 0], "nothing is new the second time");
    Ok(())
}

#[tokio::test]
async fn a_real_registry_takes_what_is_left_of_a_list() -> Result<()> {
    for release in releases() {
        let from = Registry::start(RegistryConfig::new().release(release).delete()).await?;
        let to = Registry::start(RegistryConfig::new().release(release)).await?;
        let image = image("signed")?;
        let subject = from.endpoint().push("app", "1", &image).await?;
        let signature = images::artifact("example/signature", b"signed")?;
        let signature = from.endpoint().push("app", "signature", &signature).await?;
        let scan = from.endpoint().push("app", "scan", &images::artifact("example/scan", b"clean")?).await?;
        let list = tag_for(&subject, "")?;
        let http = from.endpoint().http()?;
        let send = async |method, path: String, body: String| -> Result<()> {
            let request = from.endpoint().request(&http, method, &format!("/v2/app/manifests/{path}"));
            request.header("content-type", OCI_INDEX).body(body).send().await?.error_for_status()?;
            Ok(())
        };
        send(reqwest::Method::PUT, list.clone(), list_of(&[&signature, &scan])).await?;
        send(reqwest::Method::DELETE, scan.clone(), String::new()).await?;
        let options = CopyOptions { referrers: true, ..CopyOptions::default() };
        let (source, destination) = (at(&from, "app:1")?, at(&to, "app:1")?);
        copy(&Copier::new(&client()), &source, &destination, &options).await?;
        assert_eq!(referrers_of(&destination, &subject).await?, [signature], "{release:?}");
    }
    Ok(())
}

#[tokio::test]
async fn everything_within_an_index_has_its_signatures_and_they_have_theirs() -> Result<()> {
    let (from, to) = two_registries().await?;
    let inner = images::multi_platform(&["amd64", "arm64"])?;
    from.hold("app", "inner", &inner);
    from.hold("app", "1", &images::index(vec![("amd64", inner.clone())])?);
    let deepest = inner.manifests()[1].digest();
    let mut expected = Vec::new();
    let mut cosign = |subject: &str, ending: &str| -> Result<String> {
        let tag = tag_for(subject, ending)?;
        let made = from.hold("app", &tag, &images::artifact("cosign/x", tag.as_bytes())?);
        expected.push(tag);
        Ok(made)
    };
    cosign(&inner.digest(), ".sig")?;
    let attestation = cosign(&deepest, ".att")?;
    cosign(&attestation, ".sig")?;
    let materials = refer(&from, &deepest, "sbom");
    cosign(&materials, ".sig")?;
    let signed = refer(&from, &materials, "signature");
    expected.extend([materials.clone(), signed.clone()]);

    copy_app(&from, &to).await??;
    for name in &expected {
        assert_eq!(to.digest_of("app", name), from.digest_of("app", name), "{name}");
        assert_eq!(to.count("PUT", &format!("/manifests/{name}")), 1, "{name}: written once");
    }
    for subject in [&inner.digest(), &deepest, &attestation, &materials, &signed] {
        assert_eq!(from.count("GET", &format!("/referrers/{subject}")), 1, "{subject}: asked for once");
    }
    Ok(())
}

#[tokio::test]
async fn chains_and_crowds_of_referrers_end() -> Result<()> {
    let chain = |registry: &FakeRegistry, subject: String, length: usize| {
        (0..length).fold(subject, |last, step| refer(registry, &last, &step.to_string()))
    };
    let (from, to) = two_registries().await?;
    let subject = from.hold("app", "1", &image("chained")?);
    let last = chain(&from, subject, 4);
    copy_app(&from, &to).await??;
    assert!(to.digest_of("app", &last).is_some());

    let to = FakeRegistry::start().await?;
    chain(&from, last, 1);
    let error = copy_app(&from, &to).await?.unwrap_err();
    assert!(matches!(error, CopyError::TooManyReferrers { .. }), "{error}");
    assert_eq!(to.digest_of("app", "1"), None);

    let (from, to) = two_registries().await?;
    let subject = from.hold("app", "1", &image("crowded")?);
    from.behave(|behaviour| behaviour.referrers = false);
    let crowd: Vec<String> =
        (0..5000_u32).map(|one| Digest::sha256(&one.to_le_bytes()).to_string()).collect();
    let crowd: Vec<&str> = crowd.iter().map(String::as_str).collect();
    from.hold_manifest("app", &tag_for(&subject, "")?, OCI_INDEX, list_of(&crowd));
    let error = copy_app(&from, &to).await?.unwrap_err();
    assert!(matches!(error, CopyError::TooManyReferrers { .. }), "{error}");
    Ok(())
}

#[tokio::test]
async fn what_several_sources_know_of_one_image_comes_together() -> Result<()> {
    let to = FakeRegistry::start().await?;
    to.behave(|behaviour| behaviour.referrers = false);
    let copier = Copier::new(&client());
    let options = CopyOptions { referrers: true, ..CopyOptions::default() };
    let (mut sources, mut expected, mut subject) = (Vec::new(), Vec::new(), String::new());
    for kind in ["signature", "sbom", "scan"] {
        let from = FakeRegistry::start().await?;
        subject = from.hold("app", "1", &image("the same")?);
        expected.push(refer(&from, &subject, kind));
        sources.push(from);
    }
    let slow = Fault::new(Effect::Delay(Duration::from_millis(100)));
    to.inject(slow.on(Route::Manifests).method("PUT").path(&tag_for(&subject, "")?));
    let all = sources.iter().enumerate().map(async |(number, from)| {
        let destination = reference(&to, &format!("app:{number}"))?;
        anyhow::Ok(copy(&copier, &reference(from, "app:1")?, &destination, &options).await?)
    });
    try_join_all(all).await?;
    let mut known = referrers_of(&reference(&to, "app:1")?, &subject).await?;
    known.sort();
    expected.sort();
    assert_eq!(known, expected);
    Ok(())
}

/// Puts signatures under a tag, as cosign does: all of the same content, each with an annotation of its own.
fn sign(registry: &FakeRegistry, tag: &str, signatures: &[&str]) -> String {
    let digest = Digest::sha256(EMPTY).to_string();
    registry.hold_blob("app", &digest, EMPTY);
    let layer = |signature: &&str| {
        json!({"mediaType": "application/vnd.dev.cosign.simplesigning.v1+json", "digest": digest, "size": 2,
            "annotations": {"dev.cosignproject.cosign/signature": signature}})
    };
    let config =
        json!({"mediaType": "application/vnd.oci.image.config.v1+json", "digest": digest, "size": 2});
    let layers: Vec<Value> = signatures.iter().map(layer).collect();
    let manifest = json!({"schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": config, "layers": layers});
    registry.hold_manifest("app", tag, OCI_MANIFEST, manifest.to_string())
}

#[tokio::test]
async fn signatures_that_only_the_destination_has_are_not_lost() -> Result<()> {
    for (source, destination, follow_source, ends_with) in [
        (&["a", "b"][..], &["a"][..], false, Some("source")),
        (&["a"], &["a", "b"], false, Some("destination")),
        (&["a", "b"], &["b", "c"], false, None),
        (&["a", "b"], &["b", "c"], true, Some("source")),
        (&["a"], &["a", "b"], true, Some("source")),
    ] {
        let case = format!("{source:?} to {destination:?}, {follow_source}");
        let (from, to) = two_registries().await?;
        let subject = from.hold("app", "1", &image("signed")?);
        let tag = tag_for(&subject, ".sig")?;
        let (new, old) = (sign(&from, &tag, source), sign(&to, &tag, destination));
        let options = CopyOptions { referrers: true, follow_source, ..CopyOptions::default() };
        let (from, at) = (reference(&from, "app:1")?, reference(&to, "app:1")?);
        let outcome = copy(&Copier::new(&client()), &from, &at, &options).await;
        let expected = if ends_with == Some("source") { new } else { old };
        assert_eq!(to.digest_of("app", &tag), Some(expected), "{case}");
        assert_eq!(
            to.digest_of("app", "1"),
            ends_with.and(Some(subject)),
            "{case}: the name is written last"
        );
        let told = outcome.err().map(|error| error.to_string());
        assert_eq!(told.is_none(), ends_with.is_some(), "{case}: {told:?}");
        assert!(told.is_none_or(|told| told.contains(&tag)), "{case}: it says which tag");
    }
    Ok(())
}
