//! Digests and places that are compared with each other.

use serde_json::json;

use super::*;

#[test]
fn digests_are_compared_through_the_index() {
    let contents = multi_arch("app");
    let none = Contents::default();
    let (amd64, arm64) = (platform("amd64"), platform("arm64"));
    let (match_, differ, unknown) = (State::Matching, State::Differing, State::Unknown);
    for (reported, on, contents, state) in [
        (manifest("app"), Some(&amd64), &none, match_),
        (manifest("app/amd64"), Some(&amd64), &contents, match_),
        (manifest("app/amd64"), Some(&amd64), &none, unknown),
        (manifest("app/amd64"), Some(&arm64), &contents, differ),
        (manifest("app/amd64"), None, &contents, match_),
        (id("app/amd64/config"), Some(&amd64), &contents, match_),
        (id("app/arm64/config"), Some(&arm64), &contents, match_),
        (id("app/arm64/config"), Some(&amd64), &contents, differ),
        (id("app/amd64/config"), Some(&amd64), &none, unknown),
        (id("app/amd64"), Some(&amd64), &contents, match_),
        (id("app/amd64/config"), Some(&platform("riscv64")), &contents, unknown),
        (manifest("other"), Some(&amd64), &contents, unknown),
    ] {
        let compared = compare(&digest("app"), &reported, on, contents);
        assert_eq!(compared.state, state, "{reported} on {on:?}: {}", compared.reason);
        assert!(!compared.reason.is_empty());
    }
    // The image of a platform is expected, and the runtime names the index that it came in.
    let compared = compare(&digest("app/amd64"), &manifest("app"), Some(&amd64), &contents);
    assert_eq!(compared.state, match_);
    // After a look at what the other digest is, it is certain.
    let mut contents = contents;
    contents.learn(digest("other"), Content::image(digest("other/config")));
    assert_eq!(compare(&digest("app"), &manifest("other"), Some(&amd64), &contents).state, differ);
}

#[test]
fn a_digest_that_no_registry_has_is_another_one() {
    let mut contents = multi_arch("app");
    let (amd64, gone) = (platform("amd64"), manifest("gone"));
    let unread = compare(&digest("app"), &gone, Some(&amd64), &contents);
    assert_eq!((unread.state, unread.reads), (State::Unknown, vec![digest("gone")]));
    contents.miss(digest("gone"));
    let compared = compare(&digest("app"), &gone, Some(&amd64), &contents);
    assert_eq!(compared.state, State::Differing, "{}", compared.reason);
    assert!(compared.reason.contains("no registry has"), "{}", compared.reason);
    assert_eq!(compared.reads, [digest("gone")], "it may come back");
    let unread = compare(&digest("other"), &gone, Some(&amd64), &contents);
    assert_eq!(unread.state, State::Unknown, "what is expected may be an index that holds it");
    contents.keep_absent(|_| false);
    assert_eq!(compare(&digest("app"), &gone, Some(&amd64), &contents).state, State::Unknown);
}

#[test]
fn an_index_that_is_not_known_as_a_whole_proves_no_difference() {
    let mut contents = multi_arch("app");
    let many = (0..100).map(|number| PlatformManifest {
        platform: platform("amd64"),
        digest: digest(&format!("large/{number}")),
    });
    contents.learn(digest("large"), Content::index(many));
    contents.learn(digest("large/99"), Content::image(digest("large/99/config")));
    let state = |reported: &Reported| compare(&digest("large"), reported, None, &contents).state;
    assert_eq!(state(&manifest("large/1")), State::Matching);
    assert_eq!([state(&manifest("large/99")), state(&manifest("app"))], [State::Unknown; 2]);
}

#[test]
fn a_tag_that_moved_before_the_pull_is_no_difference() {
    let contents = || {
        let mut contents = multi_arch("old");
        for (read, content) in multi_arch("new").iter() {
            contents.learn(*read, content.clone());
        }
        contents
    };
    let routes = json!({"v": 1, "images": {"web": {
        "asked": "app:1", "used": "app:1", "by": "original", "digest": digest("old"),
    }}})
    .to_string();
    let runs = format!("docker.io/library/app@{}", digest("new"));
    let mut view = pod("a", vec![container("web", "app:1", Some(&runs))]);
    view.routes = Some(&routes);
    for (now, state) in [
        (None, State::Differing),
        (Some("old"), State::Differing),
        (Some("unread"), State::Differing),
        (Some("new"), State::Unknown),
    ] {
        let now = now.map(|of| ("app:1".to_owned(), digest(of))).into_iter().collect();
        let row = Known { contents: contents(), now, ..Known::default() }.rows(&view).rows.remove(0);
        assert_eq!((row.state, row.asks_tag), (state, true), "{}", row.reason);
    }
    // What the specification names does not move.
    let image = format!("app:1@{}", digest("old"));
    let now = [(image.clone(), digest("new"))].into();
    let pinned = pod("a", vec![container("web", &image, Some(&runs))]);
    let row = Known { contents: contents(), now, ..Known::default() }.rows(&pinned).rows.remove(0);
    assert_eq!((row.state, row.asks_tag), (State::Differing, false));
}

#[test]
fn places_of_an_image_are_compared_as_they_are_today() {
    let routes = json!({"v": 1, "images": {"web": {
        "asked": "app:1", "used": format!("m.example/app:1@{}", digest("app")), "by": "x",
        "alternatives": [format!("docker.io/library/app:1@{}", digest("app")), "n.example/app:1"],
    }}})
    .to_string();
    let used = format!("m.example/app:1@{}", digest("app"));
    let mut view = pod("a", vec![container("web", &used, None)]);
    view.routes = Some(&routes);
    let known = Known::default();
    let row = known.rows(&view).rows.remove(0);
    let named: Vec<_> = row.places().iter().map(ToString::to_string).collect();
    assert_eq!(named, ["n.example/app:1", "m.example/app:1"]);
    let contents = multi_arch("app");
    let compare = |mirror: Option<&str>| {
        let mut places = Places::default();
        places.add(&view, &row);
        let now = |image: &str| match image {
            "app:1" | "n.example/app:1" => Some(digest("app")),
            _ => mirror.map(digest),
        };
        places.compare(now, &contents)
    };
    assert_eq!(compare(Some("app")).of("shop", "app:1"), Some(Vec::new()));
    assert_eq!(compare(Some("app/amd64")).of("shop", "app:1"), Some(Vec::new()), "a copy of one platform");
    assert_eq!(compare(None).of("shop", "app:1"), None, "one of them did not answer");
    let unread = compare(Some("other"));
    assert_eq!((unread.of("shop", "app:1"), unread.undecided.len()), (None, 1));
    assert_eq!(unread.reads, [(digest("other"), "m.example/app:1".parse().expect("a reference"))]);
}

#[test]
fn what_has_to_be_read_is_named_once() {
    let compared =
        compare(&digest("app"), &id("app/amd64/config"), Some(&platform("amd64")), &Contents::default());
    assert_eq!(compared.reads, [digest("app")]);
    let mut contents = Contents::default();
    let image = PlatformManifest { platform: platform("amd64"), digest: digest("app/amd64") };
    contents.learn(digest("app"), Content::index([image]));
    let compared = compare(&digest("app"), &id("app/amd64/config"), Some(&platform("amd64")), &contents);
    assert_eq!(compared.reads, [digest("app/amd64")], "the index is not read again");
    contents.learn(digest("app/amd64"), Content::image(digest("app/amd64/config")));
    let compared = compare(&digest("app"), &id("app/amd64/config"), Some(&platform("amd64")), &contents);
    assert_eq!((compared.state, compared.reads), (State::Matching, vec![]));
}

#[test]
fn artifacts_are_not_told_by_the_configuration_that_all_of_them_share() {
    let empty = Digest::sha256(b"{}");
    assert_eq!(empty.hex(), "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a");
    let mut contents = Contents::default();
    contents.learn(digest("artifact"), Content::image(empty));
    assert_eq!(contents.get(&digest("artifact")), Some(&Content::Image { config: None }));
    for reported in [empty.to_string(), empty.hex()] {
        let reported = Reported::parse(&reported).expect("a report");
        let compared = compare(&digest("artifact"), &reported, None, &contents);
        assert_eq!(compared.state, State::Unknown, "{}", compared.reason);
    }
    // CRI-O names an artifact by its manifest.
    assert_eq!(compare(&digest("artifact"), &id("artifact"), None, &contents).state, State::Matching);
    assert_eq!(compare(&digest("artifact"), &id("something"), None, &contents).state, State::Unknown);
}
