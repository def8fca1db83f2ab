#![allow(clippy::needless_pass_by_value, reason = "JSON is written where it is used")]

mod evicting;
mod offered;
mod once;

use std::collections::HashSet;
use std::sync::Arc;

use fairlead_domain::reference::Reference;
use fairlead_domain::verdict::Verdict;
use jiff::Timestamp;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::pod_record::VERSION;

const UPSTREAM: &str = "docker.io/library/nginx:1";
const CACHE: &str = "harbor.example.com/hub/library/nginx:1";

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).expect("a time")
}

/// A Pod as it is stored, with what healing reads of it.
#[derive(Clone)]
struct Stored {
    uid: Arc<str>,
    object: Value,
}

impl Stored {
    /// Containers and init containers by name, with their images.
    fn new(containers: &[(&str, &str)], init: &[(&str, &str)], annotations: Value) -> Self {
        let list = |all: &[(&str, &str)]| -> Vec<Value> {
            all.iter().map(|(name, image)| json!({"name": name, "image": image})).collect()
        };
        let object = json!({
            "metadata": {"uid": "u", "annotations": annotations},
            "spec": {"containers": list(containers), "initContainers": list(init)},
            "status": {"containerStatuses": [], "initContainerStatuses": []},
        });
        Self { uid: "u".into(), object }
    }

    fn text(&self, pointer: &str) -> Option<&str> {
        self.object.pointer(pointer)?.as_str()
    }

    fn annotation(&self, name: &str) -> Option<&str> {
        self.object["metadata"]["annotations"].get(name)?.as_str()
    }

    fn annotation_bytes(&self) -> usize {
        let annotations = self.object["metadata"]["annotations"].as_object();
        annotations
            .into_iter()
            .flatten()
            .map(|(key, text)| key.len() + text.as_str().unwrap_or_default().len())
            .sum()
    }

    /// The kubelet's word about the containers; what is not named here runs.
    fn waiting(mut self, waiting: &[(&str, &str)]) -> Self {
        for (list, statuses) in
            [("containers", "containerStatuses"), ("initContainers", "initContainerStatuses")]
        {
            let names = self.object["spec"][list].as_array().expect("a list").clone();
            let states = names.iter().map(|container| {
                let reason =
                    waiting.iter().find(|(name, _)| container["name"] == **name).map(|(_, reason)| reason);
                let state = match reason {
                    Some(reason) => json!({"waiting": {"reason": reason}}),
                    None => json!({"running": {}}),
                };
                json!({"name": container["name"], "state": state})
            });
            self.object["status"][statuses] = states.collect::<Vec<_>>().into();
        }
        self
    }

    fn images(&self) -> Vec<(String, Arc<str>)> {
        let mut all = Vec::new();
        for list in ["initContainers", "containers"] {
            for container in self.object["spec"][list].as_array().expect("a list") {
                let text = |key: &str| container[key].as_str().expect("a text");
                all.push((text("name").to_owned(), text("image").into()));
            }
        }
        all
    }

    fn apply(&mut self, repair: &Repair) -> Result<(), json_patch::PatchError> {
        let operations = serde_json::to_value(&repair.operations).expect("a patch");
        // An absent member is as good as null, to the API server.
        let operations: Vec<_> = operations
            .as_array()
            .expect("a list")
            .iter()
            .filter(|operation| !(operation["op"] == "test" && operation["value"].is_null()))
            .cloned()
            .collect();
        let patch: json_patch::Patch = serde_json::from_value(operations.into()).expect("a patch");
        json_patch::patch(&mut self.object, &patch)
    }
}

/// Looks at a Pod as the operator does.
fn failing<'a>(stored: &'a Stored, images: &'a [(String, Arc<str>)], failure: PullFailure) -> FailingPod<'a> {
    let mut containers = Vec::new();
    for (init, list, statuses) in
        [(true, "initContainers", "initContainerStatuses"), (false, "containers", "containerStatuses")]
    {
        for (position, container) in
            stored.object["spec"][list].as_array().expect("a list").iter().enumerate()
        {
            let name = container["name"].as_str().expect("a name");
            let waiting = &stored.object["status"][statuses][position]["state"]["waiting"]["reason"];
            let Some(waiting) = waiting.as_str() else { continue };
            let image = &images.iter().find(|(known, _)| known == name).expect("known").1;
            containers.push(FailingContainer {
                place: if init { Place::Init(name) } else { Place::Container(name) },
                position,
                status_position: position,
                image,
                waiting,
                failure,
                names_image: true,
                volume: None,
            });
        }
    }
    let written = Written {
        any: stored.object["metadata"]["annotations"].is_object(),
        bytes: stored.annotation_bytes(),
        routes: stored.annotation("fairlead.dev/routes"),
        healed: stored.annotation("fairlead.dev/healed"),
        originals: stored.annotation("kuik.enix.io/original-images"),
        upstreams: stored.annotation("harbor.rewrite/original-upstreams"),
        patched_containers: stored.annotation("harbor-reef/patched-containers"),
        patched: stored.annotation("harbor-reef/patched"),
    };
    FailingPod { uid: &stored.uid, containers, written }
}

/// Heals every due container, with the given images available, and tells what moved.
fn heal(stored: &mut Stored, incidents: &mut Incidents, available: &[&str], now: Timestamp) -> Vec<String> {
    let images = stored.images();
    let repair = {
        let pod = failing(stored, &images, PullFailure::ConnectionRefused);
        let record = pod.written.record();
        let look = incidents.look(&pod, now);
        let choices: Vec<_> = look
            .due
            .iter()
            .map(|position| {
                let container = &pod.containers[*position];
                let (tried, upstreams) = (pod.tried(), pod.written.upstreams());
                let known = Background {
                    route: pod.route(record.as_ref(), &container.place, container.image),
                    planned: None,
                    of_original: None,
                    upstream: upstreams.get(container.name()).map(String::as_str),
                    tried: &tried,
                    patched: pod.written.patched_containers().iter().any(|name| name == container.name()),
                    namespace: "team",
                    pull_secrets: &[],
                };
                let candidates = candidates(container, &known);
                let verdicts: Vec<_> = candidates
                    .ask
                    .iter()
                    .map(|one| {
                        if available.contains(&one.image.as_str()) {
                            Verdict::Available { digest: None }
                        } else {
                            Verdict::Unreachable { reason: "it is down".into() }
                        }
                    })
                    .collect();
                (*position, choose(candidates, &verdicts))
            })
            .collect();
        repair(&pod, &choices, now)
    };
    let Some(repair) = repair else { return Vec::new() };
    stored.apply(&repair).expect("the patch fits the Pod");
    incidents.patched(&stored.uid, now);
    repair.moves.iter().map(|one| format!("{}: {}", one.container, one.to)).collect()
}

fn annotated(map: Value) -> Value {
    json!({"harbor.rewrite/original-upstreams": map.to_string()})
}

fn routes(name: &str, asked: &str, used: &str, alternatives: &[&str]) -> Value {
    let route =
        json!({"asked": asked, "used": used, "by": "ClusterImageSetMirror//m", "alternatives": alternatives});
    json!({"fairlead.dev/routes": json!({"v": VERSION, "images": {name: route}}).to_string()})
}

#[test]
fn a_pod_annotated_by_hand_gets_its_original_once() {
    let mut pod = Stored::new(
        &[("side", "x"), ("main", CACHE)],
        &[("init", CACHE)],
        annotated(json!({
            "main": "nginx:1", "init": UPSTREAM, "gone": "other",
        })),
    )
    .waiting(&[("main", "ImagePullBackOff"), ("init", "ErrImagePull")]);
    let mut incidents = Incidents::default();
    let moved = heal(&mut pod, &mut incidents, &[], at(0));
    assert_eq!(moved, ["main: nginx:1", &format!("init: {UPSTREAM}")]);
    assert_eq!(pod.text("/spec/containers/1/image"), Some("nginx:1"), "byte for byte");
    assert_eq!(pod.text("/spec/containers/0/image"), Some("x"), "it does not fail");
    let patched = pod.annotation("harbor-reef/patched-containers");
    assert_eq!(patched, Some(r#"["main","init"]"#), "containers first, as harbor-reef-operator walks");
    assert_eq!(pod.annotation("harbor-reef/patched"), Some("2027-01-15T08:00:00Z"));
    assert_eq!(pod.annotation("fairlead.dev/routes"), None, "it was not admitted here");
    assert!(heal(&mut pod, &mut incidents, &[], at(100)).is_empty(), "the original fails, too");
}

#[test]
fn operations_come_in_the_order_that_is_documented() {
    let pod = Stored::new(&[("side", "x"), ("main", CACHE)], &[("init", CACHE)], annotated(json!({})))
        .waiting(&[("main", "ImagePullBackOff"), ("init", "ErrImagePull")]);
    let images = pod.images();
    let pod = failing(&pod, &images, PullFailure::NotFound);
    let choices = [(0, Choice::GiveOriginal("i:1".to_owned())), (1, Choice::GiveOriginal("m:1".to_owned()))];
    let repair = repair(&pod, &choices, at(0)).expect("a patch");
    let writes: Vec<_> = repair
        .operations
        .iter()
        .filter_map(|operation| match operation {
            Operation::Test { .. } => None,
            Operation::Replace { path, .. } | Operation::Add { path, .. } | Operation::Remove { path } => {
                Some(path.as_str())
            }
        })
        .collect();
    assert_eq!(
        writes,
        [
            "/spec/containers/1/image",
            "/spec/initContainers/0/image",
            "/metadata/annotations/harbor-reef~1patched-containers",
            "/metadata/annotations/harbor-reef~1patched",
        ]
    );
}

#[test]
fn main_containers_follow_init_containers() {
    let mut pod = Stored::new(
        &[("main", CACHE)],
        &[("init", CACHE)],
        annotated(json!({
            "main": UPSTREAM, "init": UPSTREAM,
        })),
    )
    .waiting(&[("init", "ErrImagePull")]);
    let mut incidents = Incidents::default();
    assert_eq!(heal(&mut pod, &mut incidents, &[], at(0)), [format!("init: {UPSTREAM}")]);
    let mut pod = pod.waiting(&[("main", "ErrImagePull")]);
    assert_eq!(heal(&mut pod, &mut incidents, &[], at(1)), [format!("main: {UPSTREAM}")]);
    assert_eq!(pod.annotation("harbor-reef/patched-containers"), Some(r#"["init","main"]"#));
}

#[test]
fn annotations_that_say_nothing_useful_change_nothing() {
    for annotation in [
        "",
        "null",
        "[]",
        "5",
        r#"{"main": 5}"#,
        r#"{"main": "a", "x": {}}"#,
        r#"{"main": "a"} x"#,
        r#"{"main": null}"#,
        r#"{"main": ""}"#,
        r#"{"other": "a"}"#,
        &format!(r#"{{"main": "{CACHE}"}}"#),
    ] {
        let annotations = json!({"harbor.rewrite/original-upstreams": annotation});
        let mut pod = Stored::new(&[("main", CACHE)], &[], annotations).waiting(&[("main", "ErrImagePull")]);
        assert!(heal(&mut pod, &mut Incidents::default(), &[], at(0)).is_empty(), "{annotation}");
    }
    let pod = Stored::new(&[("main", CACHE)], &[], json!({"harbor.rewrite/original-upstreams": "[1]"}))
        .waiting(&[("main", "ErrImagePull")]);
    let images = pod.images();
    let pod = failing(&pod, &images, PullFailure::NotFound);
    let mut incidents = Incidents::default();
    let told = |look: Look| {
        let malformed =
            |note: &Note| matches!(note, Note::Malformed(one) if one.error.contains("JSON object"));
        look.notes.iter().any(malformed)
    };
    assert!(told(incidents.look(&pod, at(0))));
    assert!(!told(incidents.look(&pod, at(1))), "once");
}

#[test]
fn a_list_of_patched_containers_that_cannot_be_read_is_written_anew() {
    let mut annotations = annotated(json!({"main": UPSTREAM}));
    annotations["harbor-reef/patched-containers"] = "main".into();
    let mut pod = Stored::new(&[("main", CACHE)], &[], annotations).waiting(&[("main", "ErrImagePull")]);
    assert_eq!(heal(&mut pod, &mut Incidents::default(), &[], at(0)).len(), 1);
    assert_eq!(pod.annotation("harbor-reef/patched-containers"), Some(r#"["main"]"#));
}

#[test]
fn a_pod_with_our_record_goes_through_its_alternatives_each_once() {
    // The original comes last, wherever the record has it.
    let all = [UPSTREAM, "m.io/nginx:1", "n.io/nginx:1"];
    let record = routes("main", "nginx:1", "l.io/nginx:1", &all);
    let mut pod = Stored::new(&[("main", "l.io/nginx:1")], &[], record).waiting(&[("main", "ErrImagePull")]);
    let mut incidents = Incidents::default();
    assert!(heal(&mut pod, &mut incidents, &[], at(0)).is_empty(), "nothing is available: it waits");
    let everything = ["l.io/nginx:1", "m.io/nginx:1", "n.io/nginx:1", "nginx:1", UPSTREAM];
    let mut moves = Vec::new();
    for round in 1..10 {
        // Whatever it is given fails again.
        moves.extend(heal(&mut pod, &mut incidents, &everything, at(40 * round)));
    }
    assert_eq!(moves, ["main: m.io/nginx:1", "main: n.io/nginx:1", "main: nginx:1"]);
    let record = Record::parse(pod.annotation("fairlead.dev/routes").expect("a record")).expect("ours");
    let route = &record.images["main"];
    assert_eq!((&*route.asked, &*route.used, &*route.by), ("nginx:1", "nginx:1", "original"));
    assert!(route.why.starts_with("healed: the registry refuses connections"), "{}", route.why);
    assert_eq!(pod.annotation("harbor-reef/patched-containers"), Some(r#"["main"]"#));
    assert_eq!(pod.annotation("kuik.enix.io/original-images"), None, "what is used is what was asked for");
}

#[test]
fn the_original_comes_last_and_as_it_was_written() {
    let record = routes("main", "nginx:1", "l.io/nginx:1", &["m.io/nginx:1"]);
    let mut pod = Stored::new(&[("main", "l.io/nginx:1")], &[], record).waiting(&[("main", "ErrImagePull")]);
    let mut incidents = Incidents::default();
    assert_eq!(heal(&mut pod, &mut incidents, &["nginx:1"], at(0)), ["main: nginx:1"]);
    let record = Record::parse(pod.annotation("fairlead.dev/routes").expect("a record")).expect("ours");
    assert_eq!((&*record.images["main"].by, &*record.images["main"].used), ("original", "nginx:1"));
    assert_eq!(record.images["main"].alternatives, ["m.io/nginx:1", "l.io/nginx:1"]);
}

#[test]
fn a_pinned_image_is_given_no_other_digest() {
    let digest = fairlead_domain::digest::Digest::sha256(b"x");
    let (cache, upstream) = (format!("{CACHE}@{digest}"), format!("{UPSTREAM}@{digest}"));
    let mut annotations = routes("main", "nginx:1", &cache, &[&upstream]);
    annotations["harbor.rewrite/original-upstreams"] = json!({"main": "nginx:1"}).to_string().into();
    let mut pod = Stored::new(&[("main", &cache)], &[], annotations).waiting(&[("main", "ErrImagePull")]);
    let mut incidents = Incidents::default();
    let tags = [UPSTREAM, CACHE, "nginx:1"];
    assert!(heal(&mut pod, &mut incidents, &tags, at(0)).is_empty(), "tags may have moved");
    let held = format!("nginx:1@{digest}");
    assert_eq!(heal(&mut pod, &mut incidents, &[&held], at(300)), [format!("main: {held}")]);
    assert_eq!(heal(&mut pod, &mut incidents, &tags, at(600)), Vec::<String>::new());

    let original = json!({"asked": "nginx:1", "used": held, "by": "original"});
    let record = json!({"v": VERSION, "images": {"main": original}}).to_string();
    let mut pod = Stored::new(&[("main", &held)], &[], json!({"fairlead.dev/routes": record}))
        .waiting(&[("main", "ErrImagePull")]);
    assert!(
        heal(&mut pod, &mut Incidents::default(), &tags, at(0)).is_empty(),
        "the tag alone is no alternative"
    );
}

/// The webhook writes a record where no policy has anything to say.
#[test]
fn a_record_without_alternatives_is_as_good_as_none() {
    let mut annotations = routes("main", CACHE, CACHE, &[]);
    annotations["harbor.rewrite/original-upstreams"] = json!({"main": UPSTREAM}).to_string().into();
    let mut pod = Stored::new(&[("main", CACHE)], &[], annotations).waiting(&[("main", "ErrImagePull")]);
    let moved = heal(&mut pod, &mut Incidents::default(), &[], at(0));
    assert_eq!(moved, [format!("main: {UPSTREAM}")], "although it does not answer");
}

#[test]
fn a_record_about_another_image_is_not_believed() {
    let mut annotations = routes("main", "nginx:1", "somewhere.else/nginx:1", &["evil.io/nginx:1"]);
    annotations["harbor.rewrite/original-upstreams"] = json!({"main": UPSTREAM}).to_string().into();
    let mut pod = Stored::new(&[("main", CACHE)], &[], annotations).waiting(&[("main", "ErrImagePull")]);
    let moved = heal(&mut pod, &mut Incidents::default(), &["evil.io/nginx:1"], at(0));
    assert_eq!(moved, [format!("main: {UPSTREAM}")]);
}

#[test]
fn definite_causes_are_acted_on_at_once_and_others_the_second_time() {
    let record = routes("main", "nginx:1", "l.io/nginx:1", &["m.io/nginx:1"]);
    let stored = Stored::new(&[("main", "l.io/nginx:1")], &[], record);
    let (first, second) = (
        stored.clone().waiting(&[("main", "ErrImagePull")]),
        stored.waiting(&[("main", "ImagePullBackOff")]),
    );
    let images = first.images();
    for (failure, at_once) in [
        (PullFailure::NotFound, true),
        (PullFailure::ConnectionRefused, true),
        (PullFailure::Unavailable, true),
        (PullFailure::Network, false),
        (PullFailure::RateLimited, false),
        (PullFailure::Unknown, false),
    ] {
        let mut incidents = Incidents::default();
        let look = incidents.look(&failing(&first, &images, failure), at(0));
        assert_eq!(!look.due.is_empty(), at_once, "{failure}");
        assert_eq!(look.next, (!at_once).then(|| at(20)), "{failure}");
        let again = incidents.look(&failing(&first, &images, failure), at(5));
        assert_eq!(!again.due.is_empty(), at_once, "the same status is not a second observation: {failure}");
        let look = incidents.look(&failing(&second, &images, PullFailure::Unknown), at(6));
        assert_eq!(look.due, [0], "{failure}");
        let mut incidents = Incidents::default();
        incidents.look(&failing(&first, &images, failure), at(0));
        assert_eq!(incidents.look(&failing(&first, &images, failure), at(20)).due, [0], "{failure}");
    }
}

#[test]
fn what_another_image_cannot_fix_is_left_alone_and_said_once() {
    let stored = Stored::new(&[("main", CACHE)], &[], annotated(json!({"main": UPSTREAM})))
        .waiting(&[("main", "ErrImagePull")]);
    let images = stored.images();
    for (failure, said) in [
        (PullFailure::Signature, true),
        (PullFailure::DiskFull, true),
        (PullFailure::Platform, true),
        (PullFailure::NeverPull, true),
        (PullFailure::InvalidName, true),
        (PullFailure::TooManyPulls, false),
    ] {
        let mut incidents = Incidents::default();
        let look = incidents.look(&failing(&stored, &images, failure), at(0));
        assert!(look.due.is_empty() && look.unpatchable.is_empty(), "{failure}");
        let left_alone = |look: &Look| look.notes.iter().any(|note| matches!(note, Note::LeftAlone { .. }));
        assert_eq!(left_alone(&look), said, "{failure}");
        assert!(!left_alone(&incidents.look(&failing(&stored, &images, failure), at(60))), "{failure}");
    }
}

#[test]
fn a_failed_patch_is_tried_again_after_fifteen_seconds() {
    let stored = Stored::new(&[("main", CACHE)], &[], annotated(json!({"main": UPSTREAM})))
        .waiting(&[("main", "ErrImagePull")]);
    let images = stored.images();
    let pod = failing(&stored, &images, PullFailure::NotFound);
    let mut incidents = Incidents::default();
    assert_eq!(incidents.look(&pod, at(0)).due, [0]);
    incidents.failed(pod.uid, at(0));
    let look = incidents.look(&pod, at(14));
    assert_eq!((look.due, look.next), (vec![], Some(at(15))));
    assert_eq!(incidents.look(&pod, at(15)).due, [0]);
    incidents.retain(&HashSet::new());
    assert!(incidents.is_empty());
}

#[test]
fn a_patch_does_not_fit_a_container_that_has_started() {
    let stored = Stored::new(&[("main", CACHE)], &[], annotated(json!({"main": UPSTREAM})))
        .waiting(&[("main", "ErrImagePull")]);
    let images = stored.images();
    let pod = failing(&stored, &images, PullFailure::NotFound);
    let repair = repair(&pod, &[(0, Choice::GiveOriginal(UPSTREAM.to_owned()))], at(0)).expect("a patch");
    assert!(stored.clone().apply(&repair).is_ok());
    assert!(stored.clone().waiting(&[]).apply(&repair).is_err(), "it runs");
    let mut other = stored.clone();
    other.object["spec"]["containers"][0]["image"] = "another:1".into();
    assert!(other.apply(&repair).is_err(), "its image was changed");
    let mut other = stored;
    other.object["metadata"]["uid"] = "v".into();
    assert!(other.apply(&repair).is_err(), "it is another Pod of the same name");
}

/// An image of another place, which is available.
fn alternative(image: &str) -> Choice {
    let candidate = Candidate {
        image: image.to_owned(),
        reference: Reference::parse(image).expect("a reference"),
        by: "ClusterReplicatedImageSet//r".to_owned(),
        cause: fairlead_domain::cause::Cause::Administrator,
        is_original: false,
    };
    Choice::Give { candidate, verdict: Verdict::Available { digest: None } }
}

#[test]
fn a_pod_without_annotations_can_be_given_an_alternative() {
    let mut pod = Stored::new(&[("main", UPSTREAM)], &[], Value::Null).waiting(&[("main", "ErrImagePull")]);
    let images = pod.images();
    let choice = alternative("m.io/nginx:1");
    let repair =
        repair(&failing(&pod, &images, PullFailure::NotFound), &[(0, choice)], at(0)).expect("a patch");
    pod.apply(&repair).expect("it fits");
    let record = Record::parse(pod.annotation("fairlead.dev/routes").expect("a record")).expect("ours");
    assert_eq!((&*record.images["main"].asked, &*record.images["main"].used), (UPSTREAM, "m.io/nginx:1"));
    assert!(record.images["main"].bypassed);
    let mut pod = pod.waiting(&[("main", "ErrImagePull")]);
    assert!(heal(&mut pod, &mut Incidents::default(), &[UPSTREAM], at(60)).is_empty(), "once");
}

proptest! {
    /// Whatever fails, in whatever order, healing comes to an end, and nothing but failing containers changes.
    #[test]
    fn healing_ends(
        alternatives in proptest::collection::btree_set("[a-d]", 0..4),
        upstream in proptest::option::of("[a-f]"),
        recorded in any::<bool>(),
        available in proptest::collection::vec(proptest::collection::btree_set("[a-f]", 0..6), 30),
    ) {
        let image = |name: &String| format!("{name}.io/app:1");
        let mut annotations = json!({});
        let all: Vec<_> = alternatives.iter().map(image).collect();
        let list: Vec<_> = all.iter().map(String::as_str).collect();
        if recorded {
            annotations = routes("main", "e.io/app:1", "x.io/app:1", &list);
        }
        if let Some(upstream) = &upstream {
            annotations["harbor.rewrite/original-upstreams"] = json!({"main": image(upstream)}).to_string().into();
        }
        let mut pod = Stored::new(&[("main", "x.io/app:1"), ("well", "w.io/app:1")], &[], annotations)
            .waiting(&[("main", "ErrImagePull")]);
        let (mut incidents, mut given) = (Incidents::default(), Vec::new());
        for (round, available) in (0..).zip(&available) {
            let up: Vec<_> = available.iter().map(image).collect();
            let up: Vec<_> = up.iter().map(String::as_str).collect();
            given.extend(heal(&mut pod, &mut incidents, &up, at(60 * round)));
            if round == 15 {
                // Another replica takes over and knows nothing but what is on the Pod.
                incidents = Incidents::default();
            }
            prop_assert_eq!(pod.text("/spec/containers/1/image"), Some("w.io/app:1"));
        }
        let distinct: HashSet<_> = given.iter().collect();
        prop_assert_eq!(distinct.len(), given.len(), "an image was given twice: {:?}", given);
        prop_assert!(recorded || given.len() <= 1, "{:?}", given);
        prop_assert!(given.len() <= alternatives.len() + 2);
    }
}
