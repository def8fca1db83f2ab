//! Tags, referrers, platforms and deletion.

use anyhow::{Result, bail};
use fairlead_domain::digest::Digest;
use fairlead_domain::reference::Tag;
use fairlead_registry::manifest::{OCI_INDEX, OCI_MANIFEST};
use fairlead_registry::{Deleted, ErrorClass, Right, fallback_tag};
use fairlead_testkit::fake_registry::{Effect, FakeRegistry, Fault, Route};
use serde_json::json;

use crate::support::{client, image, patiently, reference, remote};

#[tokio::test]
async fn tags_are_listed_page_by_page_and_within_a_bound() -> Result<()> {
    let registry = FakeRegistry::start().await?;
    let tags: Vec<String> = (0..25).map(|number| format!("v{number:02}")).collect();
    for tag in &tags {
        registry.hold("app", tag, &image("a")?);
    }
    registry.behave(|behaviour| behaviour.tags_per_page = 10);
    let client = client();
    let remote = remote(&client, &reference(&registry, "app")?, Right::Pull)?;
    let found = remote.tags(1000, &patiently()).await?;
    assert!(found.complete);
    assert_eq!(found.tags.iter().map(Tag::as_str).collect::<Vec<_>>(), tags);
    assert_eq!(registry.count("GET", "tags/list"), 3);
    let some = remote.tags(12, &patiently()).await?;
    assert_eq!((some.tags.len(), some.complete), (12, false));

    registry.inject(Fault::status(400).on(Route::Tags).times(1));
    assert!(remote.tags(1000, &patiently()).await?.complete, "a page size may be refused");
    registry.inject(Fault::new(Effect::Answer(200, "application/json", br#"{"tags":null}"#.to_vec())));
    assert!(remote.tags(1000, &patiently()).await?.tags.is_empty());
    registry.heal();
    registry.inject(Fault::new(Effect::Header("link", "</v2/app/tags/list?n=1>; rel=next".into())));
    let error = remote.tags(100_000, &patiently()).await.unwrap_err();
    assert!(error.to_string().contains("on and on"), "{error}");
    Ok(())
}

/// Has a registry answer with these pages, each once and leading to the next.
fn in_pages(registry: &FakeRegistry, route: Route, kind: &'static str, pages: &[serde_json::Value]) {
    for (number, page) in pages.iter().enumerate() {
        let mut fault = Fault::new(Effect::Answer(200, kind, page.to_string().into_bytes()));
        if number + 1 < pages.len() {
            let link = format!(r#"<?page={number}é>; title="<a>, b"; rel="next""#);
            fault = fault.and(Effect::Header("link", link));
        }
        registry.inject(fault.on(route).times(1));
    }
}

#[tokio::test]
async fn pages_without_anything_new_are_passed_over() -> Result<()> {
    let registry = FakeRegistry::start().await?;
    let client = client();
    let remote = remote(&client, &reference(&registry, "app")?, Right::Pull)?;
    let page = |tags: &[&str]| json!({"name": "app", "tags": tags});
    let pages = [page(&[]), page(&["a"]), page(&["a", "no tag"]), json!({"tags": null}), page(&["b"])];
    in_pages(&registry, Route::Tags, "application/json", &pages);
    let found = remote.tags(1000, &patiently()).await?;
    assert_eq!(found.tags.iter().map(Tag::as_str).collect::<Vec<_>>(), ["a", "b"]);
    assert!(found.complete);

    let listed = Digest::sha256(b"a");
    let page = |digests: &[Digest]| {
        let entry = |digest: &Digest| json!({"mediaType": OCI_MANIFEST, "digest": digest, "size": 1});
        json!({"schemaVersion": 2, "manifests": digests.iter().map(entry).collect::<Vec<_>>()})
    };
    in_pages(&registry, Route::Referrers, OCI_INDEX, &[page(&[]), page(&[]), page(&[listed])]);
    let found = remote.referrers(&Digest::sha256(b"subject"), &patiently()).await?;
    assert_eq!((found.manifests.len(), found.fallback_tag), (1, None));

    let endless = Effect::Answer(200, OCI_INDEX, page(&[listed]).to_string().into_bytes());
    registry.inject(Fault::new(endless).and(Effect::Header("link", "<?page=1>; rel=next".into())));
    let error = remote.referrers(&Digest::sha256(b"subject"), &patiently()).await.unwrap_err();
    assert!(error.to_string().contains("on and on"), "{error}");
    Ok(())
}

#[tokio::test]
async fn a_list_whose_next_page_is_missing_is_not_taken_for_no_list() -> Result<()> {
    let registry = FakeRegistry::start().await?;
    registry.hold("app", "a", &image("a")?);
    let client = client();
    let remote = remote(&client, &reference(&registry, "app")?, Right::Pull)?;
    let first = json!({"schemaVersion": 2, "manifests": [
        {"mediaType": OCI_MANIFEST, "digest": Digest::sha256(b"signature"), "size": 1},
    ]});
    let tags = json!({"name": "app", "tags": ["a"]});
    for next in [
        Effect::Status(404),
        Effect::Status(400),
        Effect::Answer(200, "text/html", b"Welcome!".to_vec()),
        Effect::Answer(200, OCI_INDEX, b"Welcome!".to_vec()),
    ] {
        let shown = format!("{next:?}");
        let begin = |route, kind, page: &serde_json::Value| {
            registry.heal();
            let page = Effect::Answer(200, kind, page.to_string().into_bytes());
            let page = Fault::new(page).and(Effect::Header("link", "<?page=2>; rel=next".into()));
            registry.inject(page.on(route).times(1));
            registry.inject(Fault::new(next.clone()).on(route));
        };
        begin(Route::Referrers, OCI_INDEX, &first);
        let found = remote.referrers(&Digest::sha256(b"subject"), &patiently()).await;
        assert_eq!(found.map_err(|error| error.class()), Err(ErrorClass::Broken), "{shown}");
        begin(Route::Tags, "application/json", &tags);
        let found = remote.tags(1000, &patiently()).await;
        assert_eq!(found.map_err(|error| error.class()), Err(ErrorClass::Broken), "{shown}");
        begin(Route::Tags, "application/json", &tags);
        let others = remote.tag_usage(Digest::sha256(b"x"), &Tag::parse("b")?, 10, &patiently()).await;
        assert!(others.is_err(), "what other tags may need is not called unneeded: {others:?}");
    }
    Ok(())
}

#[tokio::test]
async fn referrers_are_found_with_and_without_the_registrys_help() -> Result<()> {
    let registry = FakeRegistry::start().await?;
    let subject: Digest = registry.hold("app", "1", &image("a")?).parse()?;
    let client = client();
    let remote = remote(&client, &reference(&registry, "app")?, Right::Pull)?;
    assert_eq!(remote.referrers(&subject, &patiently()).await?.manifests, []);
    let signature = json!({
        "schemaVersion": 2, "mediaType": OCI_MANIFEST, "artifactType": "application/vnd.example.signature",
        "config": {"mediaType": "x/y", "digest": Digest::sha256(b"{}"), "size": 2}, "layers": [],
        "subject": {"mediaType": OCI_MANIFEST, "digest": subject, "size": 1},
    });
    let signature = registry.hold_manifest("app", "sha256:", OCI_MANIFEST, signature.to_string());
    let found = remote.referrers(&subject, &patiently()).await?;
    assert_eq!(found.fallback_tag, None);
    assert_eq!(found.manifests[0].digest.to_string(), signature);
    assert_eq!(found.manifests[0].artifact_type.as_deref(), Some("application/vnd.example.signature"));

    registry.behave(|behaviour| behaviour.referrers = false);
    assert_eq!(remote.referrers(&subject, &patiently()).await?.manifests, []);
    let Some(tag) = fallback_tag(&subject) else { bail!("a digest has a tag") };
    let list = json!({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": [
        {"mediaType": OCI_MANIFEST, "digest": signature, "size": 5},
    ]});
    registry.hold_manifest("app", tag.as_str(), OCI_INDEX, list.to_string());
    let found = remote.referrers(&subject, &patiently()).await?;
    assert_eq!(found.fallback_tag, Some(tag));
    assert_eq!(found.manifests[0].digest.to_string(), signature);
    Ok(())
}

#[tokio::test]
async fn deleting_a_tag_leaves_the_others_where_the_registry_can() -> Result<()> {
    let registry = FakeRegistry::start().await?;
    let digest: Digest = registry.hold("app", "1", &image("a")?).parse()?;
    registry.hold("app", "2", &image("a")?);
    let client = client();
    let remote = remote(&client, &reference(&registry, "app")?, Right::Delete)?;
    let (one, two) = (Tag::parse("1")?, Tag::parse("2")?);
    assert_eq!(remote.delete_tag(&one, &patiently()).await?, Deleted::Tag);
    assert_eq!(remote.delete_tag(&one, &patiently()).await?, Deleted::Nothing);
    assert!(registry.digest_of("app", "2").is_some());
    registry.behave(|behaviour| behaviour.delete_tags = false);
    assert_eq!(remote.delete_tag(&two, &patiently()).await?, Deleted::Unsupported);
    assert_eq!(remote.delete_digest(digest, &patiently()).await?, Deleted::Digest(digest));
    assert_eq!(remote.delete_digest(digest, &patiently()).await?, Deleted::Nothing);
    registry.inject(Fault::status(405).method("DELETE"));
    let error = remote.delete_digest(digest, &patiently()).await.unwrap_err();
    assert_eq!(error.class(), ErrorClass::Broken);
    assert!(error.to_string().contains("switched off"), "{error}");
    Ok(())
}
