use fairlead_api::names::fairlead::ROUTES;
use fairlead_api::names::kuik::ORIGINAL_IMAGES;
use fairlead_api::names::reef::ORIGINAL_UPSTREAMS;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;

const MIRROR: &str = "ClusterImageSetMirror//m";

fn rewritten(asked: &str, used: &str) -> Route {
    Route { used: used.to_owned(), by: MIRROR.to_owned(), ..Route::original(asked, "it answered first") }
}

fn kept(image: &str) -> Route {
    Route::original(image, "no policy applies")
}

fn entries<'a>(routes: &[(Place<'a>, Route)]) -> Vec<Entry<'a>> {
    routes.iter().map(|(place, route)| Entry { place: *place, route: route.clone() }).collect()
}

/// The annotations of a Pod that is far from every limit.
fn annotated(found: &PodAnnotations<'_>, entries: Vec<Entry<'_>>) -> Annotations {
    annotations(found, entries, usize::MAX)
}

/// The annotations that a Pod has after a turn.
struct Written(BTreeMap<&'static str, String>);

impl Written {
    fn found(&self) -> PodAnnotations<'_> {
        PodAnnotations::of(self.0.iter().map(|(key, value)| (*key, value.as_str())))
    }

    fn turn(mut self, entries: Vec<Entry<'_>>) -> Self {
        for (name, text) in annotated(&self.found(), entries).changes {
            match text {
                Some(text) => self.0.insert(name, text),
                None => self.0.remove(name),
            };
        }
        self
    }

    fn upstreams(&self) -> Value {
        self.0.get(ORIGINAL_UPSTREAMS).map_or(Value::Null, |text| serde_json::from_str(text).unwrap())
    }
}

/// What an annotation becomes; `null` where it is taken away, nothing where it stays as it is.
fn change(annotations: &Annotations, name: &str) -> Option<Value> {
    let (_, text) = annotations.changes.iter().find(|(found, _)| *found == name)?;
    Some(text.as_ref().map_or(Value::Null, |text| serde_json::from_str(text).unwrap()))
}

#[test]
fn every_image_has_an_entry_and_only_changed_ones_have_originals() {
    let routes = entries(&[
        (Place::Container("web"), rewritten("nginx", "m.io/library/nginx")),
        (Place::Container("side"), kept("busybox:1")),
        (Place::Init("setup"), rewritten("quay.io/a:1", "m.io/a:1")),
        (Place::Ephemeral("debug"), rewritten("quay.io/d:1", "m.io/d:1")),
        (Place::Volume("data"), rewritten("quay.io/v@sha256:x", "m.io/v@sha256:x")),
    ]);
    let result = annotated(&PodAnnotations::default(), routes);
    let routes = change(&result, ROUTES).unwrap();
    assert_eq!(
        routes["images"]["web"],
        json!({
            "asked": "nginx", "used": "m.io/library/nginx", "by": MIRROR, "why": "it answered first",
            "wroteUpstream": true,
        })
    );
    let keys: Vec<_> = routes["images"].as_object().unwrap().keys().collect();
    assert_eq!(keys, ["debug", "setup", "side", "volume:data", "web"]);
    assert_eq!(
        change(&result, ORIGINAL_IMAGES).unwrap(),
        json!({"web": "nginx", "init:setup": "quay.io/a:1", "ephemeral:debug": "quay.io/d:1", "volume:data": "quay.io/v@sha256:x"})
    );
    assert_eq!(change(&result, ORIGINAL_UPSTREAMS).unwrap(), json!({"web": "nginx", "setup": "quay.io/a:1"}));
    assert!(result.left_out.is_empty());
}

#[test]
fn nothing_changed_means_our_record_alone() {
    let result = annotated(&PodAnnotations::default(), entries(&[(Place::Container("web"), kept("nginx"))]));
    assert_eq!(result.changes.len(), 1);
    assert_eq!(result.changes[0].0, ROUTES);
    assert_eq!(annotated(&PodAnnotations::default(), Vec::new()), Annotations::default());
}

#[test]
fn what_others_wrote_for_harbor_stays() {
    let routes = || {
        entries(&[
            (Place::Container("web"), rewritten("nginx", "m.io/nginx")),
            (Place::Container("api"), rewritten("api", "m.io/api")),
        ])
    };
    let found = PodAnnotations {
        upstreams: Some(r#"{"web":"written by a person","gone":"x"}"#),
        ..PodAnnotations::default()
    };
    let result = annotated(&found, routes());
    assert_eq!(
        change(&result, ORIGINAL_UPSTREAMS).unwrap(),
        json!({"web": "written by a person", "gone": "x", "api": "api"})
    );
    let found = PodAnnotations { upstreams: Some("not JSON"), ..PodAnnotations::default() };
    assert_eq!(change(&annotated(&found, routes()), ORIGINAL_UPSTREAMS), None);
}

#[test]
fn what_was_written_for_harbor_follows_the_image() {
    let web = |route: Route| entries(&[(Place::Container("web"), route)]);
    let written = |by_others: &str| {
        Written(BTreeMap::from([(ORIGINAL_UPSTREAMS, by_others.to_owned())]))
            .turn(web(rewritten("nginx:1", "m.io/nginx:1")))
    };
    let first = written(r#"{"side":"x"}"#);
    assert_eq!(first.upstreams(), json!({"side": "x", "web": "nginx:1"}));
    let same = first.turn(web(rewritten("nginx:1", "n.io/nginx:1")));
    assert_eq!(same.upstreams(), json!({"side": "x", "web": "nginx:1"}));
    let changed = same.turn(web(rewritten("redis:2", "m.io/redis:2")));
    assert_eq!(
        changed.upstreams(),
        json!({"side": "x", "web": "redis:2"}),
        "another webhook changed the image"
    );
    let unchanged = changed.turn(web(kept("busybox:1")));
    assert_eq!(unchanged.upstreams(), json!({"side": "x"}), "the image is used as it was asked for");

    // What a person or Kyverno wrote stays, also where it is what would have been written here.
    for theirs in [r#"{"web":"docker.io/library/nginx:1"}"#, r#"{"web":"nginx:1"}"#] {
        let changed = written(theirs).turn(web(rewritten("redis:2", "m.io/redis:2")));
        assert_eq!(changed.upstreams().to_string(), theirs);
    }
    // So does what another client wrote over it since.
    let mut first = written("{}");
    first.0.insert(ORIGINAL_UPSTREAMS, r#"{"web":"by hand"}"#.to_owned());
    assert_eq!(first.turn(web(rewritten("redis:2", "m.io/redis:2"))).upstreams(), json!({"web": "by hand"}));
    // Without the record nothing is proven.
    let mut first = written("{}");
    first.0.remove(ROUTES);
    assert_eq!(first.turn(web(rewritten("redis:2", "m.io/redis:2"))).upstreams(), json!({"web": "nginx:1"}));
    // The last key takes the annotation with it.
    let gone = written("{}").turn(web(kept("busybox:1")));
    assert!(!gone.0.contains_key(ORIGINAL_UPSTREAMS));
}

#[test]
fn a_pod_grows_by_no_more_than_its_room() {
    let routes = || {
        let route = |number: usize| rewritten(&format!("nginx:{number}"), &format!("m.io/nginx:{number}"));
        let names: [&'static str; 4] = ["a", "b", "c", "d"];
        let all = names.iter().enumerate().map(|(number, name)| (Place::Container(name), route(number)));
        entries(&all.collect::<Vec<_>>())
    };
    let whole = annotations(&PodAnnotations::default(), routes(), usize::MAX);
    let bytes = |result: &Annotations| -> usize {
        result.changes.iter().map(|(name, text)| size_of(name, text.as_deref())).sum()
    };
    for room in 0..=bytes(&whole) {
        let result = annotations(&PodAnnotations::default(), routes(), room);
        assert!(bytes(&result) <= room, "{room}: {result:?}");
        assert_eq!(result.left_out.is_empty(), result.changes.len() == 3, "{room}");
    }
    assert_eq!(annotations(&PodAnnotations::default(), routes(), bytes(&whole)), whole);
}

#[test]
fn forged_originals_are_corrected() {
    let found = PodAnnotations {
        originals: Some(r#"{"web":"forged","other":"stays"}"#),
        ..PodAnnotations::default()
    };
    let result = annotated(&found, entries(&[(Place::Container("web"), kept("nginx"))]));
    assert_eq!(change(&result, ORIGINAL_IMAGES).unwrap(), json!({"other": "stays"}));
    let found = PodAnnotations { originals: Some(r#"{"web":"forged"}"#), ..PodAnnotations::default() };
    let result = annotated(&found, entries(&[(Place::Container("web"), kept("nginx"))]));
    assert_eq!(change(&result, ORIGINAL_IMAGES), Some(Value::Null), "an empty one is taken away");
    let found = PodAnnotations { originals: Some("nonsense"), ..PodAnnotations::default() };
    let result = annotated(&found, entries(&[(Place::Container("web"), kept("nginx"))]));
    assert_eq!(change(&result, ORIGINAL_IMAGES), None, "nobody can read it");
    let result = annotated(&found, entries(&[(Place::Container("web"), rewritten("a", "b"))]));
    assert_eq!(change(&result, ORIGINAL_IMAGES).unwrap(), json!({"web": "a"}));
}

#[test]
fn a_second_turn_changes_nothing() {
    let routes = || {
        entries(&[
            (Place::Container("web"), rewritten("nginx", "m.io/library/nginx")),
            (Place::Volume("data"), kept("d")),
        ])
    };
    let first = annotated(&PodAnnotations::default(), routes());
    let text = |name| {
        first.changes.iter().find(|(found, _)| *found == name).and_then(|(_, text)| text.as_deref()).unwrap()
    };
    let found = PodAnnotations {
        routes: Some(text(ROUTES)),
        originals: Some(text(ORIGINAL_IMAGES)),
        upstreams: Some(text(ORIGINAL_UPSTREAMS)),
        other_bytes: 0,
    };
    assert_eq!(annotated(&found, routes()), Annotations::default());
    let claims = RecordedOriginals::read(&found);
    assert_eq!(claims.asked(&Place::Container("web"), "m.io/library/nginx"), Some("nginx"));
    assert_eq!(claims.asked(&Place::Container("web"), "m.io/library/other"), None, "about another image");
    assert_eq!(claims.asked(&Place::Container("api"), "m.io/library/nginx"), None, "about another container");
    assert_eq!(claims.asked(&Place::Volume("data"), "d"), None);
}

#[test]
fn claims_are_read_from_kuiks_annotation_where_ours_says_nothing() {
    let found = PodAnnotations {
        originals: Some(r#"{"web":"nginx","init:web2":"busybox"}"#),
        ..PodAnnotations::default()
    };
    let claims = RecordedOriginals::read(&found);
    assert_eq!(claims.asked(&Place::Container("web"), "m.io/nginx"), Some("nginx"));
    assert_eq!(claims.asked(&Place::Container("web"), "nginx"), None, "the original itself");
    assert_eq!(claims.asked(&Place::Init("web2"), "m.io/busybox"), Some("busybox"));
    assert_eq!(claims.asked(&Place::Container("web2"), "m.io/busybox"), None);
    let record = json!({"v": 1, "images": {"web": kept("m.io/nginx")}}).to_string();
    let claims = RecordedOriginals::read(&PodAnnotations { routes: Some(&record), ..found });
    assert_eq!(claims.asked(&Place::Container("web"), "m.io/nginx"), None, "ours is newer");
}

#[test]
fn forgeries_claim_nothing() {
    let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    let long = format!("\"{}\"", "x".repeat(MOST_BYTES));
    for forged in ["", "{", "[]", "null", "5", "{\"v\":1}", "{\"v\":2,\"images\":{}}", &deep, &long] {
        let found =
            PodAnnotations { routes: Some(forged), originals: Some(forged), ..PodAnnotations::default() };
        assert_eq!(
            RecordedOriginals::read(&found).asked(&Place::Container("web"), "x"),
            None,
            "{forged:.40}"
        );
    }
    let original = json!({"v": 1, "images": {"web": {"asked": "evil", "used": "x", "by": "original"}}});
    let claims = RecordedOriginals::read(&PodAnnotations {
        routes: Some(&original.to_string()),
        ..PodAnnotations::default()
    });
    assert_eq!(claims.asked(&Place::Container("web"), "x"), None, "contradicts itself");
}

#[test]
fn detail_goes_before_entries_and_rewritten_ones_stay_longest() {
    let names: Vec<String> = (0..400).map(|n| format!("container-{n:04}")).collect();
    let image = "registry.example.com/team/application:1.2.3";
    let all = || {
        let route = |name: &str| Route {
            by: if name == "container-0399" { MIRROR } else { BY_ORIGINAL }.to_owned(),
            alternatives: vec!["mirror.example.com/a".to_owned(); 4],
            ..Route::original(image, "images are recorded and nothing else was done to them")
        };
        names.iter().map(move |name| Entry { place: Place::Container(name), route: route(name) })
    };
    let record = |result: &Annotations| change(result, ROUTES).unwrap();
    let few = record(&annotated(&PodAnnotations::default(), all().take(50).collect())).to_string();
    assert!(few.contains("alternatives") && few.contains("why"));

    let whole = record(&annotated(&PodAnnotations::default(), all().collect()));
    assert!(!whole.to_string().contains("alternatives"));
    assert_eq!(whole["images"].as_object().unwrap().len(), 400, "without detail all fit");

    let mut crowded = PodAnnotations {
        other_bytes: MOST_ANNOTATION_BYTES - SPARED_BYTES - 8_000,
        ..PodAnnotations::default()
    };
    let result = annotated(&crowded, all().collect());
    let value = record(&result);
    let kept = value["images"].as_object().unwrap();
    assert_eq!(kept.len() + usize::try_from(value["omitted"].as_u64().unwrap()).unwrap(), 400);
    assert!(kept.contains_key("container-0399"), "what was rewritten is kept before what was not");

    let text = result.changes[0].1.clone().unwrap();
    assert!(text.len() <= 8_000, "{}", text.len());
    crowded.routes = Some(&text);
    assert_eq!(annotated(&crowded, all().collect()), Annotations::default(), "stable");
}

#[test]
fn a_crowded_pod_loses_records_and_not_its_images() {
    let crowded = PodAnnotations {
        other_bytes: MOST_ANNOTATION_BYTES,
        routes: Some("somebody's"),
        ..PodAnnotations::default()
    };
    let result = annotated(&crowded, entries(&[(Place::Container("a"), rewritten("b", "c"))]));
    assert_eq!(result.changes, [(ROUTES, None)]);
    assert_eq!(result.left_out, [ORIGINAL_IMAGES, ORIGINAL_UPSTREAMS, ROUTES]);
}

proptest! {
    /// Whatever is on the Pod, the outcome is small enough, can be read, is about this Pod, and is stable.
    #[test]
    fn any_annotations_become_right_ones(
        found in proptest::collection::vec(proptest::option::of("(?s).{0,60}|\\{\"[a-c]\":\".\"\\}|\\{\"v\":1,\"images\":\\{\"a\":\\{\"asked\":\".\",\"used\":\".\",\"by\":\".\"\\}\\}\\}"), 3),
        images in proptest::collection::btree_map("[a-c]{1,2}", ("(?s).{1,200}", proptest::option::of("(?s).{1,200}")), 0..6),
        other_bytes in 0_usize..300_000,
    ) {
        let mut state = [found[0].clone(), found[1].clone(), found[2].clone()];
        let names = [ROUTES, ORIGINAL_IMAGES, ORIGINAL_UPSTREAMS];
        let all = || images.iter().map(|(name, (image, used))| Entry {
            place: Place::Container(name),
            route: used.as_ref().map_or_else(|| kept(image), |used| rewritten(image, used)),
        }).collect::<Vec<_>>();
        let size = |state: &[Option<String>; 3]| -> usize {
            names.iter().zip(state).filter_map(|(name, text)| Some(name.len() + text.as_ref()?.len())).sum::<usize>() + other_bytes
        };
        let view = |state: &[Option<String>; 3]| -> Annotations {
            annotated(&PodAnnotations { routes: state[0].as_deref(), originals: state[1].as_deref(), upstreams: state[2].as_deref(), other_bytes }, all())
        };
        let before = size(&state);
        for (name, text) in view(&state).changes {
            let at = names.iter().position(|known| *known == name).unwrap();
            state[at] = text;
        }
        prop_assert!(size(&state) <= before.max(MOST_ANNOTATION_BYTES));
        if let Some(record) = state[0].as_deref().and_then(Record::parse) {
            for (key, route) in &record.images {
                prop_assert!(images.get(key).is_some_and(|(asked, _)| *asked == route.asked));
            }
        }
        prop_assert_eq!(view(&state).changes, vec![], "stable");
    }
}
