//! One pass: what is looked at and read, what Pods are told, and which of them do not start.

use std::sync::Arc;

use fairlead_domain::reference::Reference;
use fairlead_domain::verdict::Verdict;
use jiff::Timestamp;
use serde_json::json;

use super::*;
use crate::credentials::Principal;
use crate::usage::Holder;

const IMAGE: &str = "registry.example/llm:1";

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).expect("a time")
}

fn reference(text: &str) -> Reference {
    text.parse().expect("a reference")
}

fn shop() -> Arc<str> {
    "shop".into()
}

fn survey<'k>(
    pods: &[PodView<'_>],
    known: &Known,
    resolutions: &'k Resolutions,
    now: i64,
) -> (Survey<'k, String>, Vec<Change>) {
    let mut survey = Survey::new(resolutions, at(now), true);
    let holder = Holder { namespace: shop(), pull_secrets: Arc::default(), pod: "a".into() };
    let mut changes = Vec::new();
    for view in pods {
        let (pod, found) = (view.name.to_owned(), known.rows(view));
        let surveyed = Surveyed { pod: &pod, view, found: &found, holder: &holder };
        survey.add(&surveyed);
        changes.push(survey.annotation(&surveyed));
    }
    (survey, changes)
}

fn looks(mut survey: Survey<'_, String>) -> Vec<(String, bool)> {
    let looks = survey.looks().0.into_iter();
    looks.map(|(_, wish)| (wish.image.to_string(), wish.last.is_none())).collect()
}

#[test]
fn a_claim_is_looked_at_until_it_is_proven() {
    let said = format!("registry.example/llm@{}", digest("llm"));
    let text = json!({"model": said}).to_string();
    let mut view = pod("a", vec![volume(IMAGE, vec![mount("web", None)])]);
    view.volume_digests = Some(&text);
    view.created = 100;
    // The tag was looked at before the Pod came, which says nothing of what the Pod runs.
    let mut earlier = Resolutions::default();
    earlier.learn(&shop(), &reference(IMAGE), digest("llm"), at(50));
    let unproven = |pods: &[PodView<'_>]| {
        // Nothing is known of the claim yet.
        let proven = |_: &PodView<'_>, _: &str| None;
        let contents = Contents::default();
        let knowledge = Knowledge { proven: Some(&proven), ..Knowledge::of_pods(&contents, &|_| false) };
        let found = rows(&pods[0], &knowledge);
        let holder = Holder { namespace: shop(), pull_secrets: Arc::default(), pod: "a".into() };
        let (pod, mut survey) = ("a".to_owned(), Survey::new(&earlier, at(100), false));
        let surveyed = Surveyed { pod: &pod, view: &pods[0], found: &found, holder: &holder };
        survey.add(&surveyed);
        assert_eq!(survey.annotation(&surveyed), Change::Leave);
        looks(survey)
    };
    let pods = [view];
    assert_eq!(unproven(&pods), [(IMAGE.to_owned(), true), (said.clone(), true)]);
    let proven = Known { proven: Some(BTreeSet::from([said])), ..Known::default() };
    let (found, changes) = survey(&pods, &proven, &earlier, 100);
    assert_eq!((looks(found), &changes[..]), (vec![(IMAGE.to_owned(), false)], &[Change::Leave][..]));
}

#[test]
fn tags_are_looked_at_as_they_are_used_and_as_they_were_asked_for() {
    let pinned = format!("registry.example/app:1@{}", digest("app"));
    let routes = json!({"v": 1, "images": {
        "volume:model": {"asked": "origin.example/llm:1", "used": IMAGE, "by": "x", "digest": digest("llm")},
        "web": {"asked": "origin.example/app:1", "used": pinned, "by": "x"},
    }})
    .to_string();
    let images = vec![
        container("web", &pinned, None),
        container("plain", "registry.example/plain:1", None),
        volume(IMAGE, vec![mount("web", None)]),
    ];
    let mut view = pod("a", images);
    view.routes = Some(&routes);
    let resolutions = Resolutions::default();
    let (found, _) = survey(&[view], &Known::default(), &resolutions, 0);
    let wanted: Vec<_> = looks(found).into_iter().map(|(image, _)| image).collect();
    assert_eq!(wanted, ["origin.example/app:1", "origin.example/llm:1", IMAGE]);
}

#[test]
fn a_tag_that_cluster_scoped_objects_saw_move_is_looked_at_for_the_namespace() {
    let image = "registry.example/app:1";
    let (old, new) = (digest("old"), digest("new"));
    let runs = format!("registry.example/app@{old}");
    let mut view = pod("a", vec![container("web", image, Some(&runs))]);
    view.created = 100;
    let pods = [view];
    let saw = |digest, second| {
        let mut resolutions = Resolutions::default();
        let there = Verdict::Available { digest: Some(digest) };
        assert!(resolutions.saw(&Principal::Cluster, &reference(image), &there, at(second)));
        resolutions
    };
    let wanted = |resolutions: &Resolutions| looks(survey(&pods, &Known::default(), resolutions, 300).0);
    assert_eq!(wanted(&saw(old, 200)), []);
    assert_eq!(wanted(&saw(new, 99)), [], "the Pod is newer than that look");
    let mut resolutions = saw(new, 200);
    assert_eq!(wanted(&resolutions), [(image.to_owned(), true)]);
    assert_eq!(
        resolutions.last_seen(&shop(), &reference(image)),
        None,
        "those may be answers of another one"
    );
    // Looked at with Secrets of the namespace, and for its own objects.
    let own = Principal::Namespace(shop());
    assert!(resolutions.saw(&own, &reference(image), &Verdict::Available { digest: Some(new) }, at(210)));
    assert_eq!(wanted(&resolutions), [(image.to_owned(), false)]);
    resolutions.keep(|_| false);
    let seen = Some(SeenDigest { digest: new, at: 210 });
    assert_eq!(resolutions.last_seen(&shop(), &reference(image)), seen, "until a newer look");
    assert_eq!(resolutions.now(&shop(), &reference(image)), None);
}

#[test]
fn an_annotation_waits_for_registries_that_do_not_answer_but_not_for_ever() {
    let data = UseView { place: Place::Volume("data"), ..volume("down.example/data:1", vec![]) };
    let mut view = pod("a", vec![data, volume(IMAGE, vec![mount("web", None)])]);
    view.created = 100;
    let pods = [view];
    let mut resolutions = Resolutions::default();
    let known = Known { later: BTreeMap::from([(IMAGE.to_owned(), digest("llm"))]), ..Known::default() };
    let change = |resolutions: &Resolutions, now| survey(&pods, &known, resolutions, now).1.remove(0);
    assert_eq!(change(&resolutions, 100), Change::Leave, "nothing was looked at");
    let down = reference("down.example/data:1");
    resolutions.heed(&shop(), &down, &Verdict::Unreachable { reason: "".into() }, at(110));
    assert_eq!(change(&resolutions, 120), Change::Leave);
    assert!(matches!(change(&resolutions, 800), Change::Write(_)));
    resolutions.heed(&shop(), &down, &Verdict::Unauthorised { reason: "".into() }, at(130));
    assert!(matches!(change(&resolutions, 140), Change::Write(_)), "another look will not find more");
}

#[test]
fn a_volume_that_was_not_looked_at_does_not_hold_up_the_others_for_ever() {
    let data = UseView { place: Place::Volume("data"), ..volume("other.example/data:1", vec![]) };
    let mut view = pod("a", vec![data, volume(IMAGE, vec![mount("web", None)])]);
    view.created = 100;
    let pods = [view];
    let known = Known { later: BTreeMap::from([(IMAGE.to_owned(), digest("llm"))]), ..Known::default() };
    let change = |begun: i64, now| survey(&pods, &known, &Resolutions::beginning(at(begun)), now).1.remove(0);
    assert_eq!(change(0, 700), Change::Leave);
    assert!(matches!(change(0, 701), Change::Write(_)));
    assert_eq!(change(600, 701), Change::Leave, "no replica led until a moment ago");
    assert!(matches!(change(600, 1201), Change::Write(_)));
}

#[test]
fn a_pod_without_room_for_another_annotation_is_left_alone() {
    let mut view = pod("a", vec![volume(IMAGE, vec![mount("web", None)])]);
    let later = BTreeMap::from([(IMAGE.to_owned(), digest("llm"))]);
    let known = Known { later, ..Known::default() };
    let resolutions = Resolutions::default();
    let change =
        |view: &PodView<'_>| survey(std::slice::from_ref(view), &known, &resolutions, 1000).1.remove(0);
    let Change::Write(text) = change(&view) else { panic!("there is room") };
    let size = "fairlead.dev/volume-digests".len() + text.len();
    for (bytes, written) in [(240 * 1024 - size, true), (240 * 1024 - size + 1, false), (256 * 1024, false)] {
        view.annotation_bytes = bytes;
        let expected = if written { Change::Write(text.clone()) } else { Change::Leave };
        assert_eq!(change(&view), expected, "{bytes}");
    }
    // What is there gives way, and what is to go needs no room.
    let forged = json!({"model": format!("registry.example/llm@{}", digest("bad"))}).to_string();
    (view.volume_digests, view.annotation_bytes) = (Some(&*forged), 240 * 1024);
    assert_eq!(change(&view), Change::Write(text));
    let told = format!("registry.example/llm@{}", digest("llm"));
    view.images = vec![volume(IMAGE, vec![mount("web", Some(&told))])];
    view.annotation_bytes = 256 * 1024;
    assert_eq!(change(&view), Change::Remove);
}

#[test]
fn a_claim_that_a_registry_refuses_to_confirm_goes() {
    let said = format!("registry.example/llm@{}", digest("evil"));
    let text = json!({"model": said}).to_string();
    let mut view = pod("a", vec![volume(IMAGE, vec![mount("web", None)])]);
    (view.volume_digests, view.created) = (Some(&*text), 100);
    let pods = [view];
    let refused = Verdict::Unauthorised { reason: "".into() };
    let mut resolutions = Resolutions::default();
    resolutions.heed(&shop(), &reference(IMAGE), &refused, at(110));
    resolutions.heed(&shop(), &reference(&said), &refused, at(90));
    let change = |resolutions: &Resolutions| survey(&pods, &Known::default(), resolutions, 120).1.remove(0);
    assert_eq!(change(&resolutions), Change::Leave, "that was before the Pod came");
    resolutions.heed(&shop(), &reference(&said), &refused, at(110));
    assert_eq!(change(&resolutions), Change::Remove);
}

#[test]
fn an_old_pod_is_never_told_what_its_tag_names_in_place_of_what_it_said() {
    let said = format!("registry.example/llm@{}", digest("mounted"));
    let text = json!({"model": said}).to_string();
    let mut view = pod("a", vec![volume(IMAGE, vec![mount("web", None)])]);
    (view.volume_digests, view.created) = (Some(&*text), 100);
    // A new leader finds that the digest is gone, and that the tag has moved.
    let mut resolutions = Resolutions::beginning(at(5000));
    resolutions.learn(&shop(), &reference(IMAGE), digest("moved"), at(5010));
    resolutions.heed(&shop(), &reference(&said), &Verdict::NotFound { reason: "".into() }, at(5010));
    let later = BTreeMap::from([(IMAGE.to_owned(), digest("moved"))]);
    let mut known = Known { later, is_old: true, ..Known::default() };
    let change = |known: &Known, view: &PodView<'_>| {
        survey(std::slice::from_ref(view), known, &resolutions, 5020).1.remove(0)
    };
    assert_eq!(change(&known, &view), Change::Remove);
    known.rows(&view).unproven.iter().for_each(|volume| known.notes.note_unproven(&"a".into(), volume));
    view.volume_digests = None;
    assert_eq!(change(&known, &view), Change::Leave);
}

#[test]
fn a_tag_is_looked_at_at_once_for_a_pod_that_may_have_a_newer_digest() {
    let pinned = format!("registry.example/app:1@{}", digest("new"));
    let routes =
        json!({"v": 1, "images": {"web": {"asked": "registry.example/app:1", "used": pinned, "by": "x"}}})
            .to_string();
    let mut view = pod("a", vec![container("web", &pinned, None)]);
    (view.routes, view.created) = (Some(&*routes), 100);
    let pods = [view];
    let tag = reference("registry.example/app:1");
    for (seen, looked, urgent) in [("old", 50, true), ("old", 100, false), ("new", 50, false)] {
        let mut resolutions = Resolutions::default();
        resolutions.learn(&shop(), &tag, digest(seen), at(looked));
        let found = survey(&pods, &Known::default(), &resolutions, 120).0;
        assert_eq!(looks(found), [(tag.to_string(), urgent)], "{seen} {looked}");
    }
    // A replica that was there before the look has the digest as well: the tag has moved.
    let mut resolutions = Resolutions::default();
    resolutions.learn(&shop(), &tag, digest("old"), at(50));
    let older = PodView { name: "b", created: 49, ..pods[0].clone() };
    let found = survey(&[pods[0].clone(), older], &Known::default(), &resolutions, 120).0;
    assert_eq!(looks(found), [(tag.to_string(), false)]);
}

#[test]
fn looks_are_bounded_and_those_that_something_waits_for_come_first() {
    let images: Vec<_> = (0..5000).map(|number| format!("registry.example/{number:04}:1")).collect();
    let pods: Vec<_> =
        images.iter().map(|image| pod("a", vec![volume(image, vec![mount("web", None)])])).collect();
    let mut resolutions = Resolutions::default();
    for image in &images[..4000] {
        resolutions.learn(&shop(), &reference(image), digest("llm"), at(10));
    }
    let later = images[..4000].iter().map(|image| (image.clone(), digest("llm"))).collect();
    let known = Known { later, ..Known::default() };
    let (mut found, _) = survey(&pods, &known, &resolutions, 20);
    assert_eq!(found.wanted().len(), 5000);
    let (looks, omitted) = found.looks();
    assert_eq!((looks.len(), omitted), (4096, 904));
    assert_eq!(looks.iter().filter(|(_, wish)| wish.last.is_none()).count(), 1000);
}

#[test]
fn contents_are_read_where_the_image_runs_from_and_digests_in_use_are_known() {
    let image_id = format!("elsewhere.example/app@{}", digest("new"));
    let image = format!("registry.example/app:1@{}", digest("app"));
    let resolutions = Resolutions::default();
    let pods = [pod("a", vec![container("web", &image, Some(&image_id))])];
    let (mut found, _) = survey(&pods, &Known::default(), &resolutions, 0);
    assert_eq!(found.in_use(), Some(&HashSet::from([digest("app"), digest("new")])));
    assert!(found.compares_platforms);
    let mut reads = found.readings(8, |wanted| *wanted != digest("app"));
    assert_eq!(reads.len(), 1, "the other one cannot be read now");
    let (read, readings) = reads.remove(0);
    let [reading] = &readings[..] else { panic!("{readings:?}") };
    let images: Vec<_> = reading.images.iter().map(ToString::to_string).collect();
    assert_eq!((read, &*reading.pod), (digest("new"), "a"));
    assert_eq!(images, [image.as_str(), "elsewhere.example/app"], "what runs may be from there");
    for room in [0, 1, 2] {
        let (mut found, _) = survey(&pods, &Known::default(), &resolutions, 0);
        assert_eq!(found.readings(room, |_| true).len(), room, "what cannot be kept is not read");
    }
}

#[test]
fn contents_are_read_with_the_secrets_of_every_pod_that_differs_in_them() {
    let resolutions = Resolutions::default();
    let mut survey = Survey::new(&resolutions, at(0), false);
    let image = reference("registry.example/app:1");
    let mut read = |pod: &str, namespace: &str, secret: &str, image: &Reference| {
        let pull_secrets = [Arc::from(secret)].into();
        let holder = Holder { namespace: namespace.into(), pull_secrets, pod: pod.into() };
        survey.read(digest("app"), vec![image.clone()], &pod.to_owned(), &holder);
    };
    read("without", "shop", "none", &image);
    read("replica", "shop", "none", &image);
    read("with", "shop", "login", &image);
    read("another", "team", "login", &image);
    read("elsewhere", "team", "login", &reference("mirror.example/app:1"));
    (0..20).for_each(|number| read("many", &number.to_string(), "login", &image));
    let readings = survey.readings(1, |_| true).remove(0).1;
    let pods: Vec<_> = readings.iter().map(|reading| reading.pod.as_str()).collect();
    assert_eq!(pods, ["without", "with", "another", "elsewhere", "many", "many", "many", "many"]);
}

#[test]
fn a_pod_is_counted_that_waits_for_a_container_with_an_image_volume() {
    let mounting = |created| UseView { mounts_images: true, created, ..container("web", "app:1", None) };
    let init = |created, ended| UseView {
        place: Place::Init("init"),
        created,
        ended,
        ..container("init", "app:1", None)
    };
    let side = UseView { created: true, ..container("side", "app:1", None) };
    let waits = |images: Vec<UseView<'_>>, node, now| {
        let mut view = pod("a", images);
        view.node = node;
        survey(&[view], &Known::default(), &Resolutions::default(), now).0.not_started
    };
    let node = Some("node-1");
    for (images, node, now, count) in [
        (vec![mounting(false)], node, 301, 1),
        (vec![mounting(false)], node, 300, 0),
        (vec![mounting(false)], None, 301, 0),
        (vec![mounting(true)], node, 301, 0),
        // Another container runs, or an init container has ended.
        (vec![mounting(false), side.clone()], node, 301, 1),
        (vec![init(true, true), mounting(false)], node, 301, 1),
        (vec![init(true, false), mounting(false)], node, 301, 0),
        (vec![container("web", "app:1", None)], node, 301, 0),
    ] {
        assert_eq!(waits(images.clone(), node, now), count, "{images:?} {node:?} {now}");
    }
}
