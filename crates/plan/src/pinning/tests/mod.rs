mod agreement;

use std::collections::BTreeMap;

use fairlead_api::conditions::ConditionStatus;
use fairlead_api::fairlead::{ImagePin, PinnedImage};
use fairlead_domain::digest::Digest;
use fairlead_domain::platform::Platform;
use fairlead_domain::verdict::Verdict;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::*;
use crate::inventory::{Content, Contents, PlatformManifest};
use crate::owners::Controller;

type Labels = BTreeMap<String, String>;

fn reference(text: &str) -> Reference {
    text.parse().expect("a reference")
}

fn digest(of: &str) -> Digest {
    Digest::sha256(of.as_bytes())
}

fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

fn of_set(name: &str, uid: &str, hash: &str) -> Revision {
    let controller = Controller { api_version: "apps/v1", kind: "ReplicaSet", name, uid };
    revision(Some(controller), &labels(&[("pod-template-hash", hash)])).expect("a revision")
}

fn image(asked: &str, of: &str, second: i64) -> PinnedImage {
    PinnedImage {
        asked: pin_key(&reference(asked)).to_string(),
        digest: digest(of).to_string(),
        resolved_from: None,
        resolved_at: Time(Timestamp::from_second(second).expect("a time")),
    }
}

fn created(revision: &Revision, images: &[PinnedImage]) -> ImagePin {
    let Ok(PinWrite::Create(mut pin)) = write(revision, None, images) else { panic!("it is not created") };
    pin.metadata.resource_version = Some("1".to_owned());
    *pin
}

#[test]
fn the_pod_counts_before_its_namespace_and_that_before_the_configuration() {
    let said = |text: &'static str| match text.split_once(':') {
        Some(("annotation", value)) => Said { annotation: Some(value), label: None },
        Some((_, value)) => Said { annotation: None, label: Some(value) },
        None => Said::default(),
    };
    for (pod, namespace, [off, opt_in, all]) in [
        ("", "", [false, false, true]),
        ("annotation:true", "", [false, true, true]),
        ("label:true", "", [false, true, true]),
        ("", "annotation:true", [false, true, true]),
        ("", "label:true", [false, true, true]),
        ("label:false", "annotation:true", [false, false, false]),
        ("annotation:true", "label:false", [false, true, true]),
        ("", "label:false", [false, false, false]),
        ("annotation:yes", "label:true", [false, true, true]),
        ("annotation:yes", "", [false, false, true]),
    ] {
        for (mode, pinned) in [(Mode::Off, off), (Mode::OptIn, opt_in), (Mode::All, all)] {
            let opinion = opinion(mode, said(pod), said(namespace));
            assert_eq!(opinion.pinned, pinned, "{mode:?} {pod:?} {namespace:?}");
            let told =
                (mode == Mode::Off && pod.ends_with(":true")) || (mode != Mode::Off && pod.ends_with("yes"));
            assert_eq!(opinion.warning.is_some(), told, "{mode:?} {pod:?} {:?}", opinion.warning);
        }
    }
    let both = Said { annotation: Some("false"), label: Some("true") };
    assert!(!opinion(Mode::OptIn, both, Said::default()).pinned, "an annotation counts before a label");
}

#[test]
fn revisions_are_those_of_kubernetes() {
    let owner = |kind| Controller { api_version: "apps/v1", kind, name: "web", uid: "u" };
    for (controller, pairs, expected) in [
        (Some(owner("ReplicaSet")), &[("pod-template-hash", "5d4")][..], Some("5d4")),
        (Some(owner("StatefulSet")), &[("controller-revision-hash", "web-7f")], Some("web-7f")),
        (Some(owner("DaemonSet")), &[("controller-revision-hash", "7f"), ("app", "x")], Some("7f")),
        (Some(owner("Job")), &[("job-name", "web")], Some("u")),
        (Some(owner("VirtualMachineInstance")), &[], Some("u")),
        (Some(owner("ReplicaSet")), &[("pod-template-hash", "")], Some("u")),
        (None, &[("pod-template-hash", "5d4")], None),
    ] {
        let found = revision(controller, &labels(pairs));
        assert_eq!(found.as_ref().map(|one| one.revision.as_str()), expected, "{controller:?} {pairs:?}");
    }
}

#[test]
fn names_of_pins_are_legal_and_differ() {
    let long = format!("{}.-{}", "a".repeat(150), "b".repeat(103));
    let names: Vec<_> = ["web-5d4", "Web_5d4", "a.b-.c", "-", "", long.as_str()]
        .into_iter()
        .flat_map(|name| ["u1", "u2"].map(|uid| of_set(name, uid, "5d4")))
        .map(|revision| revision.pin_name())
        .collect();
    for name in &names {
        assert!(!name.is_empty() && name.len() <= 253, "{name}");
        let legal = |part: &str| {
            let alphanumeric =
                |one: Option<char>| one.is_some_and(|one| one.is_ascii_lowercase() || one.is_ascii_digit());
            let inside = part.chars().all(|one| one == '-' || alphanumeric(Some(one)));
            inside && alphanumeric(part.chars().next()) && alphanumeric(part.chars().last())
        };
        assert!(name.split('.').all(legal), "{name}");
    }
    assert!(names[0].starts_with("web-5d4-"), "{}", names[0]);
    assert_ne!(names[0], names[1], "the same name, another workload");
    assert_eq!(names[0], of_set("web-5d4", "u1", "5d4").pin_name(), "the same on every replica");
    assert_ne!(names[0], of_set("web-5d4", "u1", "6e5").pin_name(), "another revision");
}

#[test]
fn only_tags_that_are_pulled_get_a_digest() {
    let pinned = format!("nginx@{}", digest("x"));
    let both = format!("nginx:1@{}", digest("x"));
    for (image, policy, needs) in [
        ("nginx:1", Some("IfNotPresent"), true),
        ("nginx", Some("Always"), true),
        ("nginx:1", None, true),
        ("nginx:1", Some("Never"), false),
        (pinned.as_str(), None, false),
        (&both, Some("Always"), false),
    ] {
        assert_eq!(needs_digest(&reference(image), policy), needs, "{image} {policy:?}");
    }
}

#[test]
fn tags_stay_beside_their_digests() {
    let one = digest("x");
    for (written, held) in [
        ("nginx:1", format!("nginx:1@{one}")),
        ("nginx", format!("nginx:latest@{one}")),
        ("Reg.example:5000/a/b:v1", format!("Reg.example:5000/a/b:v1@{one}")),
        (&format!("nginx:1@{}", digest("y")), format!("docker.io/library/nginx:1@{one}")),
    ] {
        assert_eq!(hold_written(written, &one), held);
        assert_eq!(hold(&reference(written), &one), reference(&held), "{written}");
    }
}

#[test]
fn the_origin_decides_and_else_what_was_known_or_what_another_place_serves() {
    let (told, old, copy) = (digest("told"), digest("old"), digest("copy"));
    let available = |digest| Verdict::Available { digest: Some(digest) };
    let down = || Verdict::Unreachable { reason: "refused".into() };
    let place = |tag: Verdict, last_known: Option<Verdict>| PlaceAnswer {
        reference: reference("m.io/nginx:1"),
        tag,
        last_known,
    };
    let gone = || Verdict::NotFound { reason: "gone".into() };
    let refused = || Verdict::Unauthorised { reason: "no credential".into() };
    let missing = || Some(gone());
    for (what, origin, last_known, places, expected) in [
        (
            "the origin tells",
            available(told),
            Some(old),
            vec![place(available(copy), None)],
            Some((told, false)),
        ),
        ("nothing else is known", down(), Some(old), vec![place(down(), Some(down()))], Some((old, false))),
        (
            "a place has the old one",
            down(),
            Some(old),
            vec![place(available(copy), Some(available(old)))],
            Some((old, false)),
        ),
        (
            "no place has the old one",
            down(),
            Some(old),
            vec![place(available(copy), missing())],
            Some((copy, true)),
        ),
        (
            "a copy is all there is",
            down(),
            None,
            vec![place(down(), None), place(available(copy), None)],
            Some((copy, true)),
        ),
        ("nothing", down(), None, vec![place(down(), None)], None),
        ("the tag is gone", gone(), Some(old), vec![place(gone(), Some(available(old)))], None),
        ("the registry refuses", refused(), Some(old), vec![place(refused(), Some(refused()))], None),
        (
            "gone, and a copy is left",
            gone(),
            Some(old),
            vec![place(available(copy), None)],
            Some((copy, true)),
        ),
        ("a registry that tells no digest", Verdict::Available { digest: None }, None, Vec::new(), None),
    ] {
        let found = resolve(&origin, last_known, &places).map(|found| (found.digest, found.from.is_some()));
        assert_eq!(found, expected, "{what}");
    }
}

#[test]
fn a_pin_is_created_once_and_extended_by_what_it_lacks() {
    let revision = of_set("web-5d4", "u", "5d4");
    let images = [image("nginx:1", "a", 1)];
    let pin = created(&revision, &images);
    assert_eq!(pin.metadata.owner_references.as_ref().map(|owners| owners[0].uid.as_str()), Some("u"));
    assert_eq!(
        pin.metadata.labels.as_ref().map(|labels| labels["fairlead.dev/revision"].as_str()),
        Some("5d4")
    );
    assert_eq!(
        write(&revision, Some(&pin), &[image("nginx:1", "b", 2)]),
        Ok(PinWrite::Nothing),
        "the first counts"
    );
    assert_eq!(digest_in(&pin.spec.images, &reference("nginx:1")), Some(digest("a")));

    let Ok(PinWrite::Add(patch)) =
        write(&revision, Some(&pin), &[image("nginx:1", "b", 2), image("redis", "c", 2)])
    else {
        panic!("it is not extended");
    };
    assert_eq!(patch["metadata"]["resourceVersion"], "1");
    assert_eq!(patch["spec"]["images"][0]["digest"], digest("a").to_string());
    assert_eq!(patch["spec"]["images"][1]["asked"], "docker.io/library/redis:latest");

    let foreign = of_set("web-5d4", "another", "5d4");
    assert!(matches!(write(&foreign, Some(&pin), &images), Err(Unpinnable::Foreign(_))));
    let mut full = pin;
    full.spec.images = (0..256).map(|number| image(&format!("nginx:{number}"), "a", 1)).collect();
    assert!(matches!(write(&revision, Some(&full), &[image("redis", "c", 2)]), Err(Unpinnable::Full(_))));
}

#[test]
fn the_newest_pin_of_the_workload_is_known_last_and_then_that_of_any_other() {
    let pins = [
        created(&of_set("web-5d4", "u1", "5d4"), &[image("nginx:1", "first", 1)]),
        created(&of_set("web-6e5", "u2", "6e5"), &[image("nginx:1", "second", 2), image("redis:1", "r", 9)]),
        created(&of_set("other-5d4", "u3", "5d4"), &[image("nginx:1", "other", 3)]),
    ];
    let specs = || pins.iter().map(|pin| &pin.spec);
    let next = of_set("web-7f6", "u4", "7f6");
    let third = of_set("third-1", "u5", "1");
    for (revision, image, known) in [
        (Some(&next), "nginx:1", Some("second")),
        (Some(&next), "nginx:2", None),
        (Some(&third), "nginx:1", Some("other")),
        (None, "nginx:1", Some("other")),
    ] {
        assert_eq!(
            last_known(revision, &reference(image), specs()),
            known.map(digest),
            "{revision:?} {image}"
        );
    }
}

#[test]
fn a_pin_is_ready_while_all_pods_run_it() {
    let pin = created(&of_set("web-5d4", "u", "5d4"), &[image("nginx:1", "a", 1)]).spec;
    let (held, other) = (format!("m.io/nginx:1@{}", digest("a")), format!("nginx:1@{}", digest("b")));
    let image = |asked, used, pull_policy| PodImage { asked, used, pull_policy };
    let other_image = image("redis:1", "redis:1", None);
    let pod = |name, asked, used| PodImages { name, images: vec![image(asked, used, None), other_image] };
    let from_node = PodImages {
        images: vec![image("nginx:1", &held, None), image("nginx:1", "nginx:1", Some("Never"))],
        ..pod("p", "", "")
    };
    for (pods, ready, says) in [
        (vec![], true, "1 image pinned; the revision has no Pod"),
        (vec![pod("p", "nginx:1", &held)], true, "1 image pinned; 1 Pod runs what is pinned"),
        (
            vec![pod("p", "nginx:1", "nginx:1"), pod("q", "nginx:1", &held)],
            false,
            "1 of 2 Pods were admitted without",
        ),
        (vec![pod("p", "docker.io/library/nginx:1", &other)], false, "without the pinned digests: p; delete"),
        (vec![pod("p", &other, &other)], true, "1 Pod runs"),
        (vec![from_node], true, "1 Pod runs"),
        (vec![pod("p", &other, &other), pod("q", "nginx:1", &held)], true, "2 Pods run what is pinned"),
    ] {
        let finding = report(&pin, &pods);
        assert_eq!(finding.status, ConditionStatus::from(ready), "{}", finding.message);
        assert!(finding.message.contains(says), "{}", finding.message);
    }
}

#[test]
fn a_pin_goes_when_neither_pod_nor_revision_needs_it() {
    let of = |kind, label: &[(&str, &str)]| {
        let controller = Controller { api_version: "apps/v1", kind, name: "db", uid: "u" };
        created(&revision(Some(controller), &labels(label)).expect("a revision"), &[image("nginx:1", "a", 1)])
            .spec
    };
    let stateful = of("StatefulSet", &[("controller-revision-hash", "db-7f")]);
    let names = ["db-7f".to_owned(), "db-db-7f".to_owned()];
    assert_eq!(fate(&stateful, true, 0, 0, 600, 600), Fate::GoesWithout(names));
    assert_eq!(fate(&stateful, true, 0, 1, 600, 600), Fate::Stays, "a Pod runs it");
    assert_eq!(fate(&stateful, true, 1, 0, 600, 600), Fate::Stays, "its first Pod may not be stored yet");
    let daemons = of("DaemonSet", &[("controller-revision-hash", "7f")]);
    assert!(matches!(fate(&daemons, true, 0, 0, 600, 600), Fate::GoesWithout(names) if names[1] == "db-7f"));
    for with_owner in [of("ReplicaSet", &[("pod-template-hash", "5d4")]), of("Job", &[])] {
        let fate = |is_owned, pods, now| fate(&with_owner, is_owned, 0, pods, 600, now);
        assert_eq!(fate(true, 0, 6000), Fate::Stays, "its owner's deletion takes it along");
        assert_eq!(fate(false, 0, 6000), Fate::Goes, "its owner was deleted without it");
        assert_eq!([fate(false, 1, 6000), fate(false, 0, 599)], [Fate::Stays, Fate::Stays]);
    }
}

fn runs(pod: &str, image: &str, reported: Option<String>, expected: Option<Digest>) -> RunningImage {
    RunningImage {
        pod: pod.to_owned(),
        asked: "nginx:1".to_owned(),
        image: image.to_owned(),
        reported,
        expected: expected.map(|digest| digest.to_string()),
        doubt: None,
    }
}

fn named(digest: Digest) -> String {
    format!("docker.io/library/nginx@{digest}")
}

/// Where nothing can be read but `contents`, and the tag names the digest of "1".
fn told(images: &[RunningImage], contents: &Contents) -> Result<Digest, NotRunning> {
    told_beside(images, contents, &Ok(digest("1")))
}

/// The same where the registry says this of the tag.
fn told_beside(
    images: &[RunningImage],
    contents: &Contents,
    now: &Result<Digest, String>,
) -> Result<Digest, NotRunning> {
    let unread = |_: &Digest| Some("the registry is away".to_owned());
    let now = |_: &Reference| Some(now.clone());
    running(&reference("nginx:1"), images, ReadContents { contents, unread: &unread, now: &now })
}

#[test]
fn what_runs_is_told_by_the_specification_the_kubelet_or_the_record() {
    let (one, two) = (digest("1"), digest("2"));
    let plain = |pod, reported| runs(pod, "nginx:1", reported, None);
    let asked = |asked: &str| RunningImage { asked: asked.to_owned(), ..plain("p", Some(named(one))) };
    for (images, expected) in [
        (vec![plain("p", Some(named(one))), plain("q", Some(named(one)))], Ok(one)),
        (vec![plain("p", Some(format!("docker-pullable://nginx@{one}")))], Ok(one)),
        (vec![runs("p", &format!("m.io/nginx:1@{one}"), Some(two.to_string()), None)], Ok(one)),
        (vec![asked("docker.io/library/nginx:1")], Ok(one)),
        (vec![plain("p", Some(named(one))), plain("waiting", None)], Ok(one)),
        (vec![runs("p", "nginx:1", Some(named(one)), Some(one))], Ok(one)),
        (vec![runs("p", "nginx:1", None, Some(one))], Ok(one)),
        (vec![plain("p", Some(one.to_string()))], Err(NotRunning::Untold("p".to_owned()))),
        (vec![asked("nginx:2")], Err(NotRunning::Other("nginx:2".to_owned()))),
        (vec![], Err(NotRunning::NoPod)),
    ] {
        assert_eq!(told(&images, &Contents::default()), expected, "{images:?}");
    }
    let mut contents = Contents::default();
    for image in [one, two] {
        contents.learn(image, Content::image(digest("config")));
    }
    let both = told(&[plain("p", Some(named(one))), plain("q", Some(named(two)))], &contents);
    assert!(matches!(both, Err(NotRunning::Differs(told)) if told.contains("Pod q")));

    // What only annotations say, and the registry does not bear out.
    let doubtful = |pod| {
        let noted = runs(pod, "nginx:1", None, Some(two));
        assert_eq!(noted.unproven(), Some(two));
        RunningImage { doubt: Some("it is not there".to_owned()), ..noted }
    };
    let alone = told(&[doubtful("p")], &Contents::default());
    assert_eq!(alone, Err(NotRunning::Doubtful("p".to_owned(), "it is not there".to_owned())));
    assert_eq!(told(&[doubtful("p"), plain("q", Some(named(one)))], &Contents::default()), Ok(one));
    assert_eq!(runs("p", "nginx:1", Some(named(one)), Some(two)).unproven(), None);
}

#[test]
fn what_was_recorded_is_compared_with_what_is_reported() {
    let [index, one, two, config, other] = ["index", "1", "2", "config of 1", "other"].map(digest);
    let mut contents = Contents::default();
    let manifest = |digest| PlatformManifest { platform: Platform::default(), digest };
    contents.learn(index, Content::index([manifest(one), manifest(two)]));
    contents.learn(one, Content::image(config));
    contents.learn(two, Content::image(digest("config of 2")));
    contents.learn(other, Content::image(digest("config of other")));
    let on = |reported: Option<String>| runs("p", "nginx:1", reported, Some(index));
    let id = |digest: Digest| Some(digest.to_string());
    // The index, the image of a platform, its configuration; and CRI-O's name of an artifact.
    for reported in
        [Some(named(index)), Some(named(one)), Some(named(two)), id(config), Some(config.hex()), id(one)]
    {
        assert_eq!(told(&[on(reported.clone())], &contents), Ok(index), "{reported:?}");
    }
    assert_eq!(told(&[on(Some(named(one))), on(id(config)), on(Some(named(two)))], &contents), Ok(index));

    // The tag was moved between admission and the pull: what runs is served under this name, if it is an index.
    let moved = digest("moved");
    contents.learn(moved, Content::index([manifest(other)]));
    assert_eq!(told(&[on(Some(named(moved)))], &contents), Ok(moved));
    let single = runs("p", "nginx:1", Some(named(other)), Some(one));
    assert_eq!(told(&[single], &contents), Ok(other), "neither is for several platforms");
    for (reported, why) in [
        (Some(named(other)), "the image sha256:".to_owned()),
        (id(digest("config of other")), format!("image ID {}", digest("config of other"))),
        (Some(named(digest("unread"))), "cannot be read: the registry is away".to_owned()),
        (Some("junk".to_owned()), "no digest".to_owned()),
    ] {
        let Err(error) = told(&[on(reported.clone())], &contents) else { panic!("{reported:?}") };
        let error = error.to_string();
        let about = format!("Pod p was to run {index}, and ");
        assert!(error.starts_with(&about) && error.contains(&why), "{error}");
    }
    // Where the index cannot be read.
    for reported in [Some(named(one)), id(config)] {
        let Err(error) = told(&[on(reported)], &Contents::default()) else { panic!("it is not known") };
        assert!(error.to_string().contains("the registry is away"), "{error}");
    }
}

#[test]
fn a_manifest_of_which_nothing_was_recorded_is_compared_with_what_the_tag_names() {
    let [index, one, two, other, moved] = ["index", "1", "2", "other", "moved"].map(digest);
    let mut contents = Contents::default();
    let manifest = |digest| PlatformManifest { platform: Platform::default(), digest };
    contents.learn(index, Content::index([manifest(one), manifest(two)]));
    contents.learn(moved, Content::index([manifest(other)]));
    for image in [one, two, other] {
        contents.learn(image, Content::image(digest("config")));
    }
    let on = |digest: Digest| runs("p", "nginx:1", Some(named(digest)), None);
    let away = || Err("it is unreachable".to_owned());
    for (what, reported, now, expected) in [
        ("the index of the tag", index, Ok(index), Ok(index)),
        ("CRI-O names the image of its platform", one, Ok(index), Ok(index)),
        ("the same on another platform", two, Ok(index), Ok(index)),
        ("the tag is for one platform", one, Ok(one), Ok(one)),
        ("it was, and has moved", one, Ok(other), Ok(one)),
        ("an index whose tag has moved", index, Ok(moved), Ok(index)),
        ("an index, and the tag is gone", index, away(), Ok(index)),
        ("of an index whose tag has moved", one, Ok(moved), Err("is not part of that index")),
        ("the tag is not known", one, away(), Err("may be the image of one platform")),
        ("neither is", digest("unread"), away(), Err("may be the image of one platform")),
        ("the index cannot be read", one, Ok(digest("unread")), Err("the registry is away")),
    ] {
        match (told_beside(&[on(reported)], &contents, &now), expected) {
            (Err(error), Err(says)) => {
                let error = error.to_string();
                let about = "what Pod p was to run is not recorded, and ";
                assert!(error.starts_with(about) && error.contains(says), "{what}: {error}");
                assert!(error.ends_with("; use --from registry"), "{what}: {error}");
            }
            (told, expected) => assert_eq!(told.ok(), expected.ok(), "{what}"),
        }
    }
    // On nodes of two platforms it is one index.
    assert_eq!(told_beside(&[on(one), on(two)], &contents, &Ok(index)), Ok(index));

    let (asked, unread) = (on(one), |_: &Digest| None);
    let none = Contents::default();
    let unasked = ReadContents { contents: &none, unread: &unread, now: &|_| None };
    assert_eq!((asked.to_ask(unasked), asked.to_read(unasked)), (Some(reference("nginx:1")), None));
    for (now, reads) in [(Ok(one), None), (Ok(index), Some(index)), (away(), Some(one))] {
        let now = |_: &Reference| Some(now.clone());
        let read = ReadContents { now: &now, ..unasked };
        assert_eq!((asked.to_ask(read), asked.to_read(read)), (None, reads));
    }
    assert_eq!(runs("p", "nginx:1", Some(named(one)), Some(index)).to_ask(unasked), None);
}

#[test]
fn no_more_is_read_than_it_takes() {
    let [index, one, two, config] = ["index", "1", "2", "config of 1"].map(digest);
    let manifest = |digest| PlatformManifest { platform: Platform::default(), digest };
    let mut contents = Contents::default();
    let on = |reported: Option<String>| runs("p", "nginx:1", reported, Some(index));
    let (by_manifest, by_id, same) =
        (on(Some(named(one))), on(Some(config.to_string())), on(Some(named(index))));
    let reads = |image: &RunningImage, contents: &Contents| {
        image.to_read(ReadContents { contents, unread: &|_| None, now: &|_| None })
    };
    assert_eq!(reads(&same, &contents), None);
    assert_eq!([&by_manifest, &by_id].map(|image| reads(image, &contents)), [Some(index), Some(index)]);
    contents.learn(index, Content::index([manifest(one), manifest(two)]));
    assert_eq!([&by_manifest, &by_id].map(|image| reads(image, &contents)), [None, Some(one)]);
    assert_eq!(reads(&on(Some(named(digest("moved")))), &contents), Some(digest("moved")));
    contents.learn(one, Content::image(config));
    assert_eq!(reads(&by_id, &contents), None, "the other image need not be read");
    let of_two = on(Some(digest("config of 2").to_string()));
    assert_eq!(reads(&of_two, &contents), Some(two));
    let away = |digest: &Digest| (*digest == one).then(|| "it is away".to_owned());
    let mut without = Contents::default();
    without.learn(index, Content::index([manifest(one), manifest(two)]));
    let read = ReadContents { contents: &without, unread: &away, now: &|_| None };
    assert_eq!(of_two.to_read(read), Some(two));
    let elsewhere = on(Some(format!("mirror.example/nginx@{one}")));
    let places: Vec<_> = elsewhere.repositories().iter().map(|place| place.as_str().to_owned()).collect();
    assert_eq!(places, ["docker.io/library/nginx", "mirror.example/nginx"]);
}
