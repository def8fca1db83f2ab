use proptest::prelude::*;

use super::*;

const DIGEST: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

fn kind(header: Option<&str>, body: &str) -> Result<String, String> {
    media_type_of(header, body.as_bytes()).map_err(|problem| problem.to_string())
}

#[test]
fn a_manifest_is_what_it_says_or_looks_like() {
    assert_eq!(kind(Some(OCI_INDEX), r#"{"manifests":[]}"#).unwrap(), OCI_INDEX);
    let with_charset = format!("{DOCKER_MANIFEST}; charset=utf-8");
    assert_eq!(kind(Some(&with_charset), r#"{"config":{}}"#).unwrap(), DOCKER_MANIFEST);
    for header in [None, Some("application/json"), Some("application/octet-stream"), Some("")] {
        assert_eq!(kind(header, &format!(r#"{{"mediaType":"{DOCKER_LIST}"}}"#)).unwrap(), DOCKER_LIST);
        assert_eq!(kind(header, r#"{"schemaVersion":2,"manifests":[]}"#).unwrap(), OCI_INDEX);
        assert_eq!(kind(header, r#"{"schemaVersion":2,"config":{},"layers":[]}"#).unwrap(), OCI_MANIFEST);
    }
    assert!(kind(Some("text/html"), "<html>").unwrap_err().contains("text/html"));
    assert!(kind(None, r#"{"schemaVersion":1,"fsLayers":[]}"#).unwrap_err().contains("schema 1"));
    assert!(kind(None, r#"{"mediaType":"application/x"}"#).unwrap_err().contains("application/x"));
    assert!(kind(None, "{}").is_err());
    assert!(kind(None, r#"{"manifests":[],"config":{}}"#).is_err(), "it cannot be both");
}

#[test]
fn a_header_alone_makes_no_manifest() {
    let (index, image) =
        (r#"{"schemaVersion":2,"manifests":[]}"#, r#"{"schemaVersion":2,"config":{},"layers":[]}"#);
    for (stated, whole) in
        [(OCI_INDEX, index), (DOCKER_LIST, index), (OCI_MANIFEST, image), (DOCKER_MANIFEST, image)]
    {
        for body in ["", "<html>login</html>", "null", "[]", "\u{1f}\u{8b}\u{8}", &whole[..whole.len() - 1]] {
            let refusal = kind(Some(stated), body).unwrap_err();
            assert!(refusal.contains("none, or not all of one"), "{stated} {body}: {refusal}");
        }
        let error = r#"{"errors":[{"code":"DENIED"}]}"#;
        for body in ["{}", r#"{"schemaVersion":2}"#, error] {
            assert!(kind(Some(stated), body).unwrap_err().contains(stated), "{stated} {body}");
        }
        assert_eq!(kind(Some(stated), whole).unwrap(), stated);
    }
    assert!(kind(Some(OCI_INDEX), r#"{"config":{},"layers":[]}"#).is_err(), "an image is no index");
    assert!(kind(Some(OCI_MANIFEST), r#"{"manifests":[]}"#).is_err(), "nor the other way round");
}

#[test]
fn what_is_an_index_and_an_image_is_refused() {
    let config = format!(r#"{{"digest":"{DIGEST}","size":1}}"#);
    for body in [
        format!(r#"{{"manifests":[],"config":{config}}}"#),
        format!(r#"{{"manifests":[],"config":{config},"layers":[]}}"#),
        format!(r#"{{"mediaType":"{OCI_MANIFEST}","Manifests":[],"config":{config},"layers":[]}}"#),
        format!(r#"{{"mediaType":"{OCI_INDEX}","manifests":[],"LAYERS":[]}}"#),
    ] {
        for header in [None, Some(OCI_INDEX), Some(DOCKER_LIST), Some(OCI_MANIFEST), Some(DOCKER_MANIFEST)] {
            let refusal = kind(header, &body).unwrap_err();
            assert!(refusal.contains("parts of an index and those of an image"), "{body}: {refusal}");
        }
    }
    let called_other = format!(r#"{{"mediaType":"{OCI_INDEX}","config":{config},"layers":[]}}"#);
    assert!(kind(Some(OCI_MANIFEST), &called_other).is_err(), "it calls itself an index");
    let called_other = format!(r#"{{"mediaType":"{DOCKER_MANIFEST}","manifests":[]}}"#);
    assert!(kind(Some(OCI_INDEX), &called_other).is_err(), "it calls itself an image");
    let dockers = format!(r#"{{"mediaType":"{DOCKER_MANIFEST}","config":{config},"manifests":null}}"#);
    assert_eq!(kind(Some(OCI_MANIFEST), &dockers).unwrap(), OCI_MANIFEST);
}

fn image(bytes: &[u8]) -> Image {
    assert_eq!(media_type_of(Some(OCI_MANIFEST), bytes).unwrap(), OCI_MANIFEST);
    match Content::read(OCI_MANIFEST, bytes).unwrap() {
        Content::Image(image) => *image,
        Content::Index(_) => panic!("an image"),
    }
}

fn layers(bytes: &[u8]) -> Vec<u64> {
    image(bytes).layers.iter().map(|layer| layer.size).collect()
}

#[test]
fn manifests_are_read_as_programs_in_go_read_them() {
    let piece = |size: u64| format!(r#"{{"mediaType":"a/b","digest":"{DIGEST}","size":{size}}}"#);
    let config = piece(9);
    for (layers_of, expected) in [
        (format!(r#""layers":[{}],"layers":[{}]"#, piece(1), piece(2)), vec![2]),
        (format!(r#""Layers":[{}]"#, piece(3)), vec![3]),
        (format!(r#""layers":[{}],"LAYERS":[{}]"#, piece(1), piece(4)), vec![4]),
        (format!(r#""layers":[{{"digest":"{DIGEST}","size":1,"size":5,"mediaType":null}}]"#), vec![5]),
        (format!(r#""layers":[{{"Digest":"{DIGEST}","SIZE":6,"artifactType":null}}]"#), vec![6]),
        (r#""schemaVersion":2,"annotations":{"a":"b"},"annotations":{"a":"c"}"#.to_owned(), vec![]),
    ] {
        let body = format!(r#"{{"schemaVersion":2,"config":{config},{layers_of}}}"#);
        assert_eq!(layers(body.as_bytes()), expected, "{body}");
    }
}

#[test]
fn what_is_not_unicode_is_replaced() {
    for broken in [&b"\xff"[..], br"\udc00"] {
        let mut body = format!(
            r#"{{"config":{{"digest":"{DIGEST}","size":1}},"layers":[{{"digest":"{DIGEST}","size":1,"annotations":{{"a":""#
        )
        .into_bytes();
        body.extend_from_slice(broken);
        body.extend_from_slice(br#"b","c":null},"platform":{"os":7}}]}"#);
        let layer = image(&body).layers.remove(0);
        let annotations = layer.annotations.unwrap();
        assert_eq!(annotations.get("a").unwrap(), "\u{fffd}b");
        assert_eq!(annotations.get("c").unwrap(), "");
        assert_eq!(layer.platform, None, "what has the wrong shape says nothing");
    }
}

#[test]
fn a_large_manifest_of_fields_given_again_and_again_is_read_in_time() {
    let piece = format!(r#"{{"digest":"{DIGEST}","size":1}}"#);
    let largest = crate::size_limits::MANIFEST;
    for field in [
        format!(r#","layers":[{piece},{piece}]"#),
        r#","LAYERS":null"#.to_owned(),
        r#","mediaType":"\ud800""#.to_owned(),
    ] {
        let body = format!(r#"{{"config":{piece}{}}}"#, field.repeat(largest / field.len()));
        let begun = std::time::Instant::now();
        assert!(image(body.as_bytes()).layers.len() <= 2);
        // Far more than it takes, and far less than if each field cost more than the one before.
        assert!(begun.elapsed() < std::time::Duration::from_secs(10), "{field}: {:?}", begun.elapsed());
    }
}

#[test]
fn a_list_without_entries_may_be_null() {
    let config = format!(r#"{{"digest":"{DIGEST}","size":1}}"#);
    for (body, stated, found) in [
        (r#"{"manifests":null}"#.to_owned(), DOCKER_LIST, OCI_INDEX),
        (format!(r#"{{"config":{config},"layers":null}}"#), DOCKER_MANIFEST, OCI_MANIFEST),
        (format!(r#"{{"config":{config},"layers":[],"manifests":null}}"#), DOCKER_MANIFEST, OCI_MANIFEST),
    ] {
        assert_eq!(kind(Some(stated), &body).unwrap(), stated);
        assert_eq!(kind(None, &body).unwrap(), found);
        match Content::read(found, body.as_bytes()).unwrap() {
            Content::Index(index) => assert!(index.manifests.is_empty()),
            Content::Image(image) => assert!(image.layers.is_empty()),
        }
    }
    assert!(Content::read(OCI_INDEX, b"{}").is_err(), "an index names its list");
}

#[test]
fn attestations_are_not_among_the_platforms() {
    let index = format!(
        r#"{{"manifests":[
            {{"digest":"{DIGEST}","size":1,"platform":{{"os":"unknown","architecture":"unknown"}}}},
            {{"digest":"{DIGEST}","size":2,"platform":{{"os":"linux","architecture":"arm64","variant":"v8"}}}},
            {{"digest":"{DIGEST}","size":3,"platform":{{"os":"linux"}}}},
            {{"digest":"{DIGEST}","size":5,"platform":{{"os":"linux","architecture":"arm","variant":null}}}},
            {{"digest":"{DIGEST}","size":4}}]}}"#
    );
    let Content::Index(index) = Content::read(OCI_INDEX, index.as_bytes()).unwrap() else {
        panic!("an index")
    };
    assert_eq!(
        index.platforms().map(Platform::to_string).collect::<Vec<_>>(),
        ["linux/arm64/v8", "linux/arm"]
    );
}

#[test]
fn a_broken_digest_breaks_the_manifest() {
    let manifest = r#"{"config":{"digest":"sha256:x","size":1},"layers":[]}"#;
    assert!(Content::read(OCI_MANIFEST, manifest.as_bytes()).is_err());
}

fn valid() -> Vec<String> {
    let descriptor = |more: &str| format!(r#"{{"mediaType":"a/b","digest":"{DIGEST}","size":7{more}}}"#);
    let platform = r#","platform":{"os":"linux","architecture":"arm64","variant":"v8","os.version":"1"}"#;
    let (plain, with_platform) = (descriptor(""), descriptor(platform));
    let with_urls = descriptor(r#","urls":["https://a.example/b"],"annotations":{"c":"d"}"#);
    vec![
        format!(r#"{{"schemaVersion":2,"mediaType":"{OCI_INDEX}","manifests":[{with_platform},{plain}]}}"#),
        format!(
            r#"{{"schemaVersion":2,"mediaType":"{OCI_MANIFEST}","config":{plain},"layers":[{plain},{with_urls}],"subject":{plain}}}"#
        ),
    ]
}

proptest! {
    #[test]
    fn manifests_with_something_wrong_are_read_or_refused(bytes in fairlead_testkit::mutation::mutated(valid())) {
        for kind in [OCI_INDEX, OCI_MANIFEST] {
            if let Ok(Content::Index(index)) = Content::read(kind, &bytes) {
                drop(index.platforms().map(Platform::to_string).collect::<Vec<_>>());
            }
        }
        drop(media_type_of(None, &bytes));
        drop(media_type_of(Some(OCI_INDEX), &bytes));
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        drop(media_type_of(None, &bytes));
        drop(Content::read(OCI_INDEX, &bytes));
        drop(Content::read(OCI_MANIFEST, &bytes));
    }
}
