use super::*;

fn route(asked: &str, used: &str, by: &str) -> Route {
    Route {
        asked: asked.to_owned(),
        used: used.to_owned(),
        by: by.to_owned(),
        why: "docker.io/library/nginx:1 is not-found".to_owned(),
        ..Route::default()
    }
}

fn record(routes: &[(&str, Route)]) -> String {
    let images = routes.iter().map(|(key, route)| ((*key).to_owned(), route.clone())).collect();
    serde_json::to_string(&Record { v: 1, images, omitted: 0 }).unwrap()
}

fn pod<'a>(record: &'a str, images: &[(Place<'a>, &'a str)]) -> Pod<'a> {
    Pod { name: "web-0", uid: "0b1c", record, images: images.to_vec() }
}

const MIRROR: &str = "ImageSetMirror/shop/m";

#[test]
fn a_rewritten_image_is_told_with_everything_about_it() {
    let text = record(&[("web", route("nginx:1", "mirror.example/nginx:1", MIRROR))]);
    let found = events(&pod(&text, &[(Place::Container("web"), "mirror.example/nginx:1")]));
    let wanted = Event {
        name: "web-0.0b1c.web.rewritten".to_owned(),
        kind: EventKind::ImageRewritten,
        field: "spec.containers{web}".to_owned(),
        message: "container web uses mirror.example/nginx:1 instead of nginx:1, by ImageSetMirror/shop/m: \
                  docker.io/library/nginx:1 is not-found"
            .to_owned(),
    };
    assert_eq!(found, [wanted]);
}

#[test]
fn an_image_that_nobody_has_is_a_warning_whether_or_not_it_was_rewritten() {
    let unavailable = |route: Route| Route { unavailable: true, ..route };
    let text = record(&[
        ("web", unavailable(route("nginx:1", "nginx:1", BY_ORIGINAL))),
        ("setup", unavailable(route("gone.example/x:1", "new.example/x:1", MIRROR))),
    ]);
    let images = [(Place::Init("setup"), "new.example/x:1"), (Place::Container("web"), "nginx:1")];
    let found = events(&pod(&text, &images));
    let told: Vec<_> = found.iter().map(|event| (event.field.as_str(), event.kind)).collect();
    assert_eq!(
        told,
        [
            ("spec.initContainers{setup}", EventKind::ImageRewritten),
            ("spec.initContainers{setup}", EventKind::NoAlternativeAvailable),
            ("spec.containers{web}", EventKind::NoAlternativeAvailable),
        ]
    );
    assert!(found[1].message.contains("it uses new.example/x:1 all the same"), "{}", found[1].message);
    assert!(found[2].message.contains("it is left as it is"), "{}", found[2].message);
}

#[test]
fn what_stayed_as_it_was_and_what_the_pod_does_not_use_is_not_told() {
    let rewritten = route("nginx:1", "mirror.example/nginx:1", MIRROR);
    let text = record(&[
        ("as-asked", route("nginx:1", "nginx:1", BY_ORIGINAL)),
        ("healed-since", rewritten.clone()),
        ("not-of-this-pod", rewritten),
    ]);
    let images = [(Place::Container("as-asked"), "nginx:1"), (Place::Container("healed-since"), "nginx:1")];
    assert_eq!(events(&pod(&text, &images)), []);
    for nonsense in ["", "{}", "[]", r#"{"v":2,"images":{}}"#] {
        assert_eq!(events(&pod(nonsense, &images)), [], "{nonsense}");
    }
}

#[test]
fn a_container_and_a_volume_of_one_name_have_events_of_their_own() {
    let rewritten = route("a:1", "b.example/a:1", MIRROR);
    let text = record(&[("data", rewritten.clone()), ("volume:data", rewritten)]);
    let images = [(Place::Container("data"), "b.example/a:1"), (Place::Volume("data"), "b.example/a:1")];
    let names: Vec<_> = events(&pod(&text, &images)).into_iter().map(|event| event.name).collect();
    assert_eq!(names, ["web-0.0b1c.data.rewritten", "web-0.0b1c.volume.data.rewritten"]);
}

#[test]
fn names_and_messages_keep_within_what_the_api_server_takes() {
    let long = "ä".repeat(2000);
    let mut one = route(&format!("{long}1"), "used", &long);
    one.why.clone_from(&long);
    let text = record(&[("web", one)]);
    let name = format!("{}.{}", "a".repeat(178), "b".repeat(74));
    let pod = Pod {
        name: &name,
        uid: "0b1cd5c8-4d6d-4f2f-a6ee-3f5f6f9a8b7c",
        record: &text,
        images: vec![(Place::Container("web"), "used")],
    };
    let found = events(&pod);
    let [event] = found.as_slice() else { panic!("one event, not {}", found.len()) };
    assert!(event.message.len() <= LONGEST_MESSAGE && event.message.ends_with('…'), "{}", event.message);
    assert!(event.message.contains("uses used instead of ä"), "every part has its place: {}", event.message);
    assert!(event.name.len() <= LONGEST_NAME, "{}", event.name.len());
    assert!(event.name.ends_with("b.0b1cd5c8-4d6d-4f2f-a6ee-3f5f6f9a8b7c.web.rewritten"), "{}", event.name);

    // Cut where a new part of the name begins: what is left must not end in a dot.
    let cut_at_the_dot = format!("{}.{}", "a".repeat(201), "b".repeat(51));
    let found = events(&Pod { name: &cut_at_the_dot, ..pod });
    assert!(!found[0].name.contains(".."), "{}", found[0].name);
}

#[test]
fn young_pods_only() {
    let now = 1_700_000_000;
    assert!(is_recent(now, now) && is_recent(now - 299, now));
    assert!(!is_recent(now - 300, now), "an event that it was given may be forgotten before it is old");
    assert!(is_recent(now + 3600, now), "clocks differ");
    assert!(!is_recent(0, now), "a Pod whose age is not known");
}
