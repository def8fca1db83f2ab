//! Pods that were not admitted here, texts that the API server would refuse, and events that are sent once.

use super::offered::{ASKED, container, offers};
use super::*;

const OPEN: &str = "open.io/team/app:1";

/// A Pod that bypassed admission, with what policies offer for its image; everything that is asked is available.
fn heal_bypassed(stored: &mut Stored, now: Timestamp) -> Vec<String> {
    let planned = offers(&[("a.io", None), ("open.io", None), ("next.io", None)]);
    let images = stored.images();
    let repair = {
        let pod = failing(stored, &images, PullFailure::ConnectionRefused);
        let record = pod.written.record();
        let container = &pod.containers[0];
        let (tried, upstreams) = (pod.tried(), pod.written.upstreams());
        let known = Background {
            route: pod.route(record.as_ref(), &container.place, container.image),
            planned: Some(&planned),
            of_original: None,
            upstream: upstreams.get(container.name()).map(String::as_str),
            tried: &tried,
            patched: !pod.written.patched_containers().is_empty(),
            namespace: "team",
            pull_secrets: &[],
        };
        let candidates = candidates(container, &known);
        let verdicts = vec![Verdict::Available { digest: None }; candidates.ask.len()];
        repair(&pod, &[(0, choose(candidates, &verdicts))], now)
    };
    let Some(repair) = repair else { return Vec::new() };
    stored.apply(&repair).expect("the patch fits the Pod");
    repair.moves.iter().map(|one| one.to.clone()).collect()
}

#[test]
fn a_pod_that_was_not_admitted_here_is_patched_once_also_with_a_place_of_a_policy() {
    let annotations = annotated(json!({"main": UPSTREAM}));
    let mut pod = Stored::new(&[("main", ASKED)], &[], annotations).waiting(&[("main", "ErrImagePull")]);
    assert_eq!(heal_bypassed(&mut pod, at(0)), [OPEN]);
    let record = Record::parse(pod.annotation("fairlead.dev/routes").expect("a record")).expect("ours");
    assert_eq!(record.images["main"].asked, ASKED, "mirrors count it as a user of what it asked for");
    assert_eq!(heal_bypassed(&mut pod, at(60)), [""; 0], "neither another place nor the original");
    assert_eq!(pod.text("/spec/containers/0/image"), Some(OPEN));
}

#[test]
fn places_that_need_other_secrets_are_counted_because_a_new_pod_could_use_them() {
    let planned = offers(&[("a.io", None), ("locked.io", Some(("vault", "key")))]);
    let (image, tried) = (Arc::from(ASKED), Tried::of("u"));
    let known = Background {
        route: None,
        planned: Some(&planned),
        of_original: None,
        upstream: None,
        tried: &tried,
        patched: false,
        namespace: "team",
        pull_secrets: &[],
    };
    let choice = choose(candidates(&container(&image), &known), &[]);
    assert_eq!(choice, Choice::GiveUp { locked: 1, patched: false });
    assert!(choice.is_locked());
    let with = Background { upstream: Some(UPSTREAM), ..known };
    let choice = choose(candidates(&container(&image), &with), &[]);
    assert!(!choice.is_locked(), "the original is tried first: {choice:?}");
}

#[test]
fn an_original_with_blanks_around_it_is_reported_and_does_not_hold_up_the_others() {
    for blank in ["nginx:1\n", " nginx:1", "\u{a0}nginx:1", " "] {
        let annotations = annotated(json!({"main": blank, "side": UPSTREAM}));
        let mut pod = Stored::new(&[("main", CACHE), ("side", CACHE)], &[], annotations)
            .waiting(&[("main", "ErrImagePull"), ("side", "ErrImagePull")]);
        let mut incidents = Incidents::default();
        assert_eq!(heal(&mut pod, &mut incidents, &[], at(0)), [format!("side: {UPSTREAM}")], "{blank:?}");
        let images = pod.images();
        let look = Incidents::default().look(&failing(&pod, &images, PullFailure::NotFound), at(0));
        let told = |note: &Note| matches!(note, Note::Malformed(one) if one.error.contains("container main"));
        assert!(look.notes.iter().any(told), "{:?}", look.notes);
    }
}

#[test]
fn every_annotation_that_cannot_be_read_is_reported() {
    for (annotation, text, is_told) in [
        ("harbor-reef/patched-containers", "main", true),
        ("harbor-reef/patched-containers", "{}", true),
        ("harbor-reef/patched-containers", "", false),
        ("harbor-reef/patched-containers", "null", false),
        ("fairlead.dev/healed", "[]", true),
        ("fairlead.dev/healed", r#"{"v":7,"images":{}}"#, true),
        ("fairlead.dev/healed", r#"{"v":1,"images":{}}"#, false),
    ] {
        let pod = Stored::new(&[("main", CACHE)], &[], json!({annotation: text}))
            .waiting(&[("main", "ErrImagePull")]);
        let images = pod.images();
        let look = Incidents::default().look(&failing(&pod, &images, PullFailure::NotFound), at(0));
        let told = |note: &Note| matches!(note, Note::Malformed(one) if one.annotation == annotation);
        assert_eq!(look.notes.iter().any(told), is_told, "{annotation}: {text}");
    }
}

/// Another program may write the Pod more often than healing can send a patch that fits.
#[test]
fn a_pod_that_is_written_all_the_time_is_not_patched_all_the_time() {
    let record = routes("main", "nginx:1", "l.io/nginx:1", &["m.io/nginx:1"]);
    let pod = Stored::new(&[("main", "l.io/nginx:1"), ("side", "l.io/nginx:1")], &[], record);
    let (one, both) = (
        pod.clone().waiting(&[("main", "ErrImagePull")]),
        pod.clone().waiting(&[("main", "ErrImagePull"), ("side", "ErrImagePull")]),
    );
    let images = one.images();
    let mut incidents = Incidents::default();
    let due = |incidents: &mut Incidents, pod: &Stored, seconds| {
        incidents.look(&failing(pod, &images, PullFailure::NotFound), at(seconds)).due.len()
    };
    assert_eq!(due(&mut incidents, &one, 0), 1);
    assert!(incidents.may_repeat(&pod.uid), "what is decided on the Pod as it is now may fit");
    assert_eq!(due(&mut incidents, &one, 0), 1);
    for round in 0..3 {
        let now = 15 * round;
        assert!(!incidents.may_repeat(&pod.uid));
        incidents.failed(&pod.uid, at(now));
        assert_eq!(due(&mut incidents, &both, now + 14), 0, "also if another container fails meanwhile");
        assert_eq!(due(&mut incidents, &both, now + 15), 2);
    }
    incidents.patched(&pod.uid, at(60));
    assert!(incidents.may_repeat(&pod.uid), "another patch, another race");
}

/// A template, a copy or a restored backup carries the annotations of another Pod along.
#[test]
fn what_another_pod_was_given_does_not_stop_healing() {
    let all = ["m.io/nginx:1", "n.io/nginx:1"];
    let new = |annotations| {
        Stored::new(&[("main", "l.io/nginx:1")], &[], annotations).waiting(&[("main", "ErrImagePull")])
    };
    let record = routes("main", "nginx:1", "l.io/nginx:1", &all);
    let mut first = new(record.clone());
    let mut incidents = Incidents::default();
    assert_eq!(heal(&mut first, &mut incidents, &all, at(0)), ["main: m.io/nginx:1"]);
    assert_eq!(heal(&mut first, &mut incidents, &all, at(60)), ["main: n.io/nginx:1"]);
    let healed = first.annotation("fairlead.dev/healed").expect("what it was given").to_owned();
    assert!(healed.contains(r#""uid":"u""#), "{healed}");

    let mut annotations = record;
    annotations["fairlead.dev/healed"] = healed.into();
    annotations["harbor-reef/patched-containers"] = r#"["main"]"#.into();
    let mut copy = new(annotations);
    copy.uid = "v".into();
    copy.object["metadata"]["uid"] = "v".into();
    let images = copy.images();
    let look = Incidents::default().look(&failing(&copy, &images, PullFailure::NotFound), at(0));
    assert!(!look.notes.iter().any(|note| matches!(note, Note::Malformed(_))), "{:?}", look.notes);
    let mut incidents = Incidents::default();
    let given = [0, 60, 120, 180].map(|seconds| heal(&mut copy, &mut incidents, &all, at(seconds)));
    assert_eq!(given.concat(), ["main: m.io/nginx:1", "main: n.io/nginx:1"], "each once, of its own");
    assert!(copy.annotation("fairlead.dev/healed").is_some_and(|text| text.contains(r#""uid":"v""#)));
}

/// Image volumes have entries of their own in the record.
#[test]
fn a_passing_failure_of_a_recorded_image_volume_is_waited_for() {
    let model: &str = "l.io/model:1";
    let record = routes("volume:model", "model:1", model, &["m.io/model:1"]);
    let stored = Stored::new(&[("main", "app:1")], &[], record).waiting(&[("main", "ErrImagePull")]);
    let images = stored.images();
    let mut pod = failing(&stored, &images, PullFailure::Network);
    pod.containers[0].volume = Some(FailingVolume { name: "model", image: model });
    let mut incidents = Incidents::default();
    let look = incidents.look(&pod, at(0));
    assert_eq!((look.unpatchable, look.next), (vec![], Some(at(20))));
    assert_eq!(incidents.look(&pod, at(20)).unpatchable, [0]);
    pod.containers[0].volume = Some(FailingVolume { name: "other", image: "other:1" });
    assert_eq!(Incidents::default().look(&pod, at(0)).unpatchable, [0], "of this one nothing is recorded");
}

/// Statuses that name no image look the same before and after the patch, for as long as the kubelet pulls.
#[test]
fn what_the_kubelet_repeats_after_a_patch_is_no_failure_of_the_new_image() {
    let record = routes("main", "nginx:1", "l.io/nginx:1", &["m.io/nginx:1", "n.io/nginx:1"]);
    let containers = [("main", "l.io/nginx:1"), ("side", "s:1")];
    let mut pod = Stored::new(&containers, &[], record).waiting(&[("main", "ErrImagePull")]);
    let mut incidents = Incidents::default();
    assert_eq!(heal(&mut pod, &mut incidents, &["m.io/nginx:1"], at(0)), ["main: m.io/nginx:1"]);
    let look = |reasons: &[(&str, &str)], names_image, incidents: &mut Incidents, now| {
        let pod = pod.clone().waiting(reasons);
        let images = pod.images();
        let mut view = failing(&pod, &images, PullFailure::NotFound);
        view.containers.iter_mut().for_each(|one| one.names_image = names_image);
        incidents.look(&view, at(now))
    };
    for reason in ["ErrImagePull", "RegistryUnavailable"] {
        // The Pod was no failing one for a moment, or another replica leads.
        for incidents in [&mut incidents, &mut Incidents::default()] {
            let later = look(&[("main", reason)], false, incidents, 15);
            assert_eq!((later.due, later.next), (vec![], Some(at(300))), "it may be pulling still");
            assert_eq!(later.notes, [], "nothing is said of it either");
        }
        let late = look(&[("main", reason)], false, &mut Incidents::default(), 300);
        assert_eq!(late.due, [0], "a kubelet that says nothing else for so long");
    }
    let named = look(&[("main", "ErrImagePull")], true, &mut Incidents::default(), 15);
    assert_eq!(named.due, [0], "the kubelet says that the new image failed");
    let other = look(&[("side", "ErrImagePull")], false, &mut Incidents::default(), 15);
    assert_eq!(other.due, [0], "that container was not patched");
    let failed = look(&[("main", "ImagePullBackOff")], false, &mut incidents, 60);
    assert_eq!(failed.due, [0], "the new image failed as well");
}

/// What is too long is not read again, and what is not read is tried again.
#[test]
fn no_place_is_given_twice_however_much_there_is_to_remember() {
    let image = |place: usize| format!("r{place}.io/{}:1", "x".repeat(50));
    let names: Vec<_> = (0..40).map(|number| format!("c{number}")).collect();
    let places: Vec<_> = (0..16).map(image).collect();
    let first = image(99);
    let route =
        json!({"asked": first, "used": first, "by": "ClusterImageSetMirror//m", "alternatives": places});
    let images: serde_json::Map<_, _> = names.iter().map(|name| (name.clone(), route.clone())).collect();
    let record = json!({"fairlead.dev/routes": json!({"v": VERSION, "images": images}).to_string()});
    let containers: Vec<_> = names.iter().map(|name| (&**name, &*first)).collect();
    let waiting: Vec<_> = names.iter().map(|name| (&**name, "ErrImagePull")).collect();
    let mut pod = Stored::new(&containers, &[], record).waiting(&waiting);
    let available: Vec<_> = places.iter().map(String::as_str).collect();
    let (mut incidents, mut given) = (Incidents::default(), Vec::new());
    for round in 0..20 {
        given.extend(heal(&mut pod, &mut incidents, &available, at(60 * round)));
        let healed = pod.annotation("fairlead.dev/healed").expect("what was tried");
        assert!(
            Written { healed: Some(healed), ..Written::default() }.malformed().is_empty(),
            "round {round}"
        );
    }
    let distinct: HashSet<_> = given.iter().collect();
    assert_eq!(distinct.len(), given.len(), "a place was given twice");
    assert!(given.len() > 15 * names.len(), "{} moves", given.len());
    assert!(heal(&mut pod, &mut incidents, &available, at(60 * 20)).is_empty(), "it ends");
}

#[test]
fn a_record_for_which_there_is_no_room_is_left_out_and_healing_ends_all_the_same() {
    let all = ["m.io/nginx:1", "n.io/nginx:1"];
    let mut annotations = routes("main", "nginx:1", "l.io/nginx:1", &all);
    annotations["example.com/large"] = "x".repeat(245_500).into();
    let mut pod =
        Stored::new(&[("main", "l.io/nginx:1")], &[], annotations).waiting(&[("main", "ErrImagePull")]);
    let mut incidents = Incidents::default();
    assert_eq!(heal(&mut pod, &mut incidents, &all, at(0)), ["main: m.io/nginx:1"]);
    assert!(pod.annotation_bytes() < 256 * 1024, "{}", pod.annotation_bytes());
    assert_eq!(pod.annotation("fairlead.dev/routes"), None);
    assert_eq!(pod.annotation("harbor-reef/patched-containers"), Some(r#"["main"]"#));
    assert_eq!(heal(&mut pod, &mut incidents, &all, at(60)), [""; 0]);
}

/// What the patch rewrites must be what it was made from.
#[test]
fn a_patch_does_not_fit_annotations_that_were_edited_meanwhile() {
    let mut annotations = routes("main", "nginx:1", "nginx:1", &["m.io/nginx:1"]);
    annotations["kuik.enix.io/original-images"] = json!({"other": "x"}).to_string().into();
    annotations["harbor.rewrite/original-upstreams"] = json!({"other": "x"}).to_string().into();
    let stored = Stored::new(&[("main", "nginx:1")], &[], annotations).waiting(&[("main", "ErrImagePull")]);
    let images = stored.images();
    let view = failing(&stored, &images, PullFailure::NotFound);
    let choice = alternative("m.io/nginx:1");
    let repair = repair(&view, &[(0, choice)], at(0)).expect("a patch");
    assert!(stored.clone().apply(&repair).is_ok());
    for annotation in ["kuik.enix.io/original-images", "harbor.rewrite/original-upstreams"] {
        let mut edited = stored.clone();
        edited.object["metadata"]["annotations"][annotation] = json!({"other": "y"}).to_string().into();
        assert!(edited.apply(&repair).is_err(), "{annotation}");
    }
}

#[test]
fn a_patch_does_not_give_an_original_that_was_replaced_meanwhile() {
    let annotations = annotated(json!({"main": UPSTREAM}));
    let stored = Stored::new(&[("main", CACHE)], &[], annotations).waiting(&[("main", "ErrImagePull")]);
    let images = stored.images();
    let view = failing(&stored, &images, PullFailure::NotFound);
    let repair = repair(&view, &[(0, Choice::GiveOriginal(UPSTREAM.to_owned()))], at(0)).expect("a patch");
    assert!(stored.clone().apply(&repair).is_ok());
    let mut edited = stored.clone();
    edited.object["metadata"]["annotations"] = annotated(json!({"main": "docker.io/library/nginx:2"}));
    assert!(edited.apply(&repair).is_err());
}

/// While a patch waits for its turn, kubelets go on from one state of the same failure to the next.
#[test]
fn choices_hold_while_the_same_images_fail() {
    let record = routes("main", "nginx:1", "l.io/nginx:1", &["m.io/nginx:1"]);
    let stored = Stored::new(&[("main", "l.io/nginx:1"), ("side", "s:1")], &[("init", "i:1")], record)
        .waiting(&[("main", "ErrImagePull")]);
    let images = stored.images();
    let before = failing(&stored, &images, PullFailure::NotFound);
    let choices = [(0, alternative("m.io/nginx:1"))];
    let holds = |now: &Stored, failure| {
        let images = now.images();
        let (pod, carried) = carried_over(&before, failing(now, &images, failure), &choices)?;
        let repair = repair(&pod, &carried, at(1))?;
        now.clone().apply(&repair).expect("the patch fits the Pod as it is now");
        Some(repair.moves[0].why.clone())
    };
    let flipped = stored.clone().waiting(&[("main", "ImagePullBackOff"), ("init", "ErrImagePull")]);
    let why = holds(&flipped, PullFailure::Unknown).expect("the same image fails");
    assert!(why.starts_with("image not found"), "the kubelet said so before: {why}");
    assert!(holds(&stored, PullFailure::Signature).is_none(), "another image must not be used");
    assert!(holds(&stored.clone().waiting(&[]), PullFailure::NotFound).is_none(), "it runs");
    for (pointer, value) in
        [("/spec/containers/0/image", "another:1"), ("/metadata/annotations/fairlead.dev~1routes", "edited")]
    {
        let mut changed = stored.clone();
        *changed.object.pointer_mut(pointer).expect("it is there") = value.into();
        assert!(holds(&changed, PullFailure::NotFound).is_none(), "{pointer}");
    }
    let mut touched = stored.clone();
    touched.object["metadata"]["annotations"]["example.com/any"] = "x".into();
    assert!(holds(&touched, PullFailure::NotFound).is_some(), "no concern of ours");
}
