use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

fn pod<'a>(record: Option<&'a str>, images: &[(&'a str, &'a str)]) -> Pod<'a> {
    let place = |name: &'a str| match name.strip_prefix("volume:") {
        Some(volume) => Place::Volume(volume),
        None => Place::Container(name),
    };
    let images = images.iter().map(|(name, reference)| Image { place: place(name), reference }).collect();
    Pod { record, other_annotation_bytes: 0, images }
}

fn original(image: &Image<'_>) -> Route {
    Route::original(image.reference, WHY_NOT_ROUTED)
}

fn written(outcome: Outcome) -> String {
    match outcome {
        Outcome::Write(text) => text,
        other => panic!("{other:?}"),
    }
}

fn parsed(outcome: Outcome) -> Value {
    serde_json::from_str(&written(outcome)).unwrap()
}

#[test]
fn every_image_has_an_entry() {
    let value = parsed(record(
        &pod(None, &[("web", "nginx"), ("init", "busybox:1"), ("volume:data", "quay.io/data@sha256:x")]),
        original,
    ));
    assert_eq!(
        value,
        json!({"v": 1, "images": {
            "web": {"asked": "nginx", "used": "nginx", "by": "original", "why": WHY_NOT_ROUTED},
            "init": {"asked": "busybox:1", "used": "busybox:1", "by": "original", "why": WHY_NOT_ROUTED},
            "volume:data": {"asked": "quay.io/data@sha256:x", "used": "quay.io/data@sha256:x", "by": "original", "why": WHY_NOT_ROUTED},
        }})
    );
}

#[test]
fn nothing_to_record() {
    assert_eq!(record(&pod(None, &[]), original), Outcome::Unchanged);
    assert_eq!(parsed(record(&pod(Some("forged"), &[]), original)), json!({"v": 1, "images": {}}));
}

#[test]
fn a_second_turn_changes_nothing() {
    let images = [("web", "nginx"), ("volume:data", "d")];
    let first = written(record(&pod(None, &images), original));
    assert_eq!(record(&pod(Some(&first), &images), original), Outcome::Unchanged);
}

#[test]
fn entries_are_believed_only_while_they_agree_with_the_pod() {
    let ours = |used: &str| json!({"asked": "nginx", "used": used, "by": "ClusterImageSetMirror//m", "why": "w", "alternatives": ["x"]});
    let note = |images: Value| json!({"v": 1, "images": images}).to_string();
    let by = |record_text: &str| {
        let value =
            parsed(record(&pod(Some(record_text), &[("web", "mirror/nginx"), ("new", "b")]), original));
        value["images"]["web"]["by"].as_str().unwrap().to_owned()
    };
    assert_eq!(
        by(&note(json!({"web": ours("mirror/nginx")}))),
        "ClusterImageSetMirror//m",
        "our own, found at reinvocation"
    );
    assert_eq!(by(&note(json!({"web": ours("other/nginx")}))), "original", "the image has changed since");
    assert_eq!(by(&note(json!({"api": ours("mirror/nginx")}))), "original", "about another container");
    assert_eq!(
        by(&note(json!({"web": {"asked": "evil", "used": "mirror/nginx", "by": "original"}}))),
        "original",
        "contradicts itself"
    );
    for forged in [
        "",
        "{",
        "[]",
        "null",
        "5",
        "{\"v\":1}",
        "{\"v\":2,\"images\":{}}",
        &note(json!({"web": 5})),
        &note(json!({"web": {"used": "mirror/nginx"}})),
    ] {
        assert_eq!(by(forged), "original", "{forged}");
    }
    let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    assert_eq!(by(&deep), "original");
}

#[test]
fn entries_of_containers_that_are_gone_go_too() {
    let text = written(record(&pod(None, &[("a", "1"), ("b", "2")]), original));
    let value = parsed(record(&pod(Some(&text), &[("a", "1")]), original));
    assert_eq!(value["images"].as_object().unwrap().len(), 1);
}

#[test]
fn detail_goes_before_entries_and_rewritten_ones_stay_longest() {
    let names: Vec<String> = (0..400).map(|n| format!("container-{n:04}")).collect();
    let image = "registry.example.com/team/application:1.2.3";
    let images: Vec<_> = names.iter().map(|name| (name.as_str(), image)).collect();
    let decide = |rewritten: bool| {
        move |image: &Image<'_>| Route {
            by: if rewritten && image.place == Place::Container("container-0399") {
                "ImageSetMirror/n/m"
            } else {
                BY_ORIGINAL
            }
            .to_owned(),
            alternatives: vec!["mirror.example.com/a".to_owned(); 4],
            ..Route::original(image.reference, WHY_NOT_ROUTED)
        }
    };
    let whole = written(record(&pod(None, &images[..50]), decide(false)));
    assert!(whole.contains("alternatives") && whole.contains("why"));

    let text = written(record(&pod(None, &images), decide(true)));
    assert!(text.len() <= MOST_BYTES);
    assert!(!text.contains("alternatives"));
    let value: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(value["images"].as_object().unwrap().len(), 400, "without detail all fit");

    let mut crowded = pod(None, &images);
    crowded.other_annotation_bytes = MOST_ANNOTATION_BYTES - SPARED_BYTES - 8_000;
    let text = written(record(&crowded, decide(true)));
    let value: Value = serde_json::from_str(&text).unwrap();
    assert!(text.len() <= 8_000, "{}", text.len());
    let kept = value["images"].as_object().unwrap();
    assert_eq!(kept.len() + usize::try_from(value["omitted"].as_u64().unwrap()).unwrap(), 400);
    assert!(kept.contains_key("container-0399"), "what was rewritten is kept before what was not");

    // The same Pod again: the bounded record is stable too.
    crowded.record = Some(&text);
    assert_eq!(record(&crowded, decide(true)), Outcome::Unchanged);
}

#[test]
fn a_crowded_pod_is_left_alone() {
    let crowded = Pod { other_annotation_bytes: MOST_ANNOTATION_BYTES, ..pod(None, &[("a", "b")]) };
    assert_eq!(record(&crowded, original), Outcome::NoRoom);
}

proptest! {
    /// Whatever is on the Pod, the outcome is small enough, can be read, is about this Pod, and is stable.
    #[test]
    fn any_record_becomes_a_right_one(
        found in proptest::option::of("(?s).{0,60}|\\{\"v\":1,\"images\":\\{\"a\":\\{\"asked\":\".\",\"used\":\".\",\"by\":\".\"\\}\\}\\}"),
        images in proptest::collection::vec(("[a-c]{1,2}", "(?s).{1,200}"), 0..6),
        others in 0_usize..300_000,
    ) {
        let images: Vec<_> = images.iter().map(|(name, image)| (name.as_str(), image.as_str())).collect();
        let mut incoming = pod(found.as_deref(), &images);
        incoming.other_annotation_bytes = others;
        if let Outcome::Write(text) = record(&incoming, original) {
            prop_assert!(text.len() <= MOST_BYTES);
            prop_assert!(text.len() + others + ANNOTATION.len() <= MOST_ANNOTATION_BYTES);
            let read: Record = serde_json::from_str(&text).unwrap();
            for (key, route) in &read.images {
                prop_assert!(images.iter().any(|(name, image)| name == key && *image == route.used));
            }
            let again = Pod { record: Some(&text), ..incoming.clone() };
            prop_assert_eq!(record(&again, original), Outcome::Unchanged);
        }
    }
}
