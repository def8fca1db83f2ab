//! Which of the places that policies offer a container may be given.

use std::collections::BTreeMap;

use fairlead_domain::selector::PodFacts;

use super::*;
use crate::routing::{Alternatives, Index, Policy, PullPolicy, Rules};

pub(super) const ASKED: &str = "a.io/team/app:1";

/// What a set of replicas offers for the image: hosts, each with the Secret that it needs.
pub(super) fn offers(upstreams: &[(&str, Option<(&str, &str)>)]) -> Alternatives {
    offers_at(0, upstreams)
}

/// The same with a priority of the set.
fn offers_at(priority: i64, upstreams: &[(&str, Option<(&str, &str)>)]) -> Alternatives {
    let upstreams: Vec<_> = upstreams
        .iter()
        .map(|(host, secret)| {
            let mut upstream =
                json!({"registry": host, "path": "/team", "imageFilter": {"include": ["/team/.*"]}});
            if let Some((namespace, name)) = secret {
                upstream["credentialSecret"] = json!({"namespace": namespace, "name": name});
            }
            upstream
        })
        .collect();
    let set = json!({
        "apiVersion": "kuik.enix.io/v1alpha1", "kind": "ClusterReplicatedImageSet",
        "metadata": {"name": "set", "uid": "set"}, "spec": {"priority": priority, "upstreams": upstreams},
    });
    let policy =
        Policy::cluster_replicated(&serde_json::from_value(set).expect("a set")).expect("it compiles");
    let none: BTreeMap<String, String> = BTreeMap::new();
    let pod = PodFacts { namespace: "team", labels: &none, annotations: &none };
    let asked = Reference::parse(ASKED).expect("a reference");
    let rules = Rules { rewrite_on_never: false, honor_priorities_on_always: false };
    Index::new([Arc::new(policy)]).for_pod(&pod).alternatives(&asked, PullPolicy::IfNotPresent, &rules)
}

pub(super) fn container(image: &Arc<str>) -> FailingContainer<'_> {
    FailingContainer {
        place: Place::Container("main"),
        position: 0,
        status_position: 0,
        image,
        waiting: "ErrImagePull",
        failure: PullFailure::NotFound,
        names_image: true,
        volume: None,
    }
}

/// Images to ask about, in order, and the one that is given without asking.
fn found(image: &str, known: &Background<'_>) -> (Vec<String>, Option<String>) {
    let image = Arc::from(image);
    let Candidates { ask, last, .. } = candidates(&container(&image), known);
    (ask.into_iter().map(|one| one.image).collect(), last)
}

/// What is known of a Pod that bypassed admission.
fn bypassed<'a>(planned: &'a Alternatives, tried: &'a Tried, pull_secrets: &'a [Arc<str>]) -> Background<'a> {
    Background {
        route: None,
        planned: Some(planned),
        of_original: None,
        upstream: None,
        tried,
        patched: false,
        namespace: "team",
        pull_secrets,
    }
}

#[test]
fn a_pod_that_bypassed_admission_gets_only_what_needs_no_secret_beyond_its_own() {
    let planned = offers(&[
        ("a.io", None),
        ("locked.io", Some(("team", "absent"))),
        ("foreign.io", Some(("vault", "own"))),
        ("own.io", Some(("team", "own"))),
        ("open.io", None),
    ]);
    let (tried, own) = (Tried::of("u"), [Arc::from("own")]);
    let known = bypassed(&planned, &tried, &own);
    assert_eq!(found(ASKED, &known), (vec!["own.io/team/app:1".into(), "open.io/team/app:1".into()], None));
    assert_eq!(found(ASKED, &Background { pull_secrets: &[], ..known }).0, ["open.io/team/app:1"]);
    // The original that a person named is given if nothing else is available, without being asked about.
    let upstream = Some("docker.io/library/app:1@sha256:0");
    let with = Background { upstream, ..known };
    assert_eq!(found(ASKED, &with).1.as_deref(), upstream);
    assert_eq!(
        found(ASKED, &Background { patched: true, ..with }),
        (vec![], None),
        "once for each container"
    );
}

/// Kyverno has rewritten the image to a cache that no policy knows.
#[test]
fn a_pod_that_another_program_rewrote_gets_the_places_of_its_original_before_the_original() {
    let (none, of_original) = (
        offers(&[("unrelated.io", None)]),
        offers(&[("a.io", None), ("locked.io", Some(("vault", "key"))), ("open.io", None)]),
    );
    let tried = Tried::of("u");
    let known =
        Background { upstream: Some(ASKED), of_original: Some(&of_original), ..bypassed(&none, &tried, &[]) };
    let (ask, last) = found(CACHE, &Background { planned: None, ..known });
    assert_eq!((ask, last.as_deref()), (vec!["open.io/team/app:1".to_owned()], Some(ASKED)));
    // What both offer is asked once.
    let both = Background { planned: Some(&of_original), ..known };
    assert_eq!(found(CACHE, &both).0, ["open.io/team/app:1"]);
}

#[test]
fn a_pod_that_was_admitted_has_the_secrets_of_all_its_places() {
    let planned = offers(&[("a.io", None), ("locked.io", Some(("vault", "secret"))), ("open.io", None)]);
    let tried = Tried::of("u");
    let route = Route {
        asked: ASKED.to_owned(),
        used: ASKED.to_owned(),
        by: "original".to_owned(),
        alternatives: vec!["open.io/team/app:1".to_owned(), "locked.io/team/app:1".to_owned()],
        ..Route::default()
    };
    let known = Background { route: Some(&route), patched: true, ..bypassed(&planned, &tried, &[]) };
    let expected = ["open.io/team/app:1", "locked.io/team/app:1"];
    assert_eq!(found(ASKED, &known).0, expected, "in the order of the record");
    // What policies came to offer since is not part of what the Pod was admitted with.
    let planned = offers(&[("a.io", None), ("new.io", None)]);
    let known = Background { planned: Some(&planned), ..known };
    assert_eq!(found(ASKED, &known).0, expected, "nor does a place go with its policy");
}

/// Registries are asked once for admission and healing.
#[test]
fn places_are_asked_about_as_admission_asks() {
    let tried = Tried::of("u");
    for planned in [
        offers(&[("a.io", None), ("open.io", None)]),
        // The set's upstream is first, and the original as well.
        offers_at(-1, &[("a.io", None), ("open.io", None)]),
    ] {
        for place in planned.list() {
            let Candidate { is_original, cause, .. } = Candidate::offered(place);
            assert_eq!((is_original, cause), (place.is_original(), place.cause()), "{}", place.reference);
        }
        let route = Route {
            asked: ASKED.to_owned(),
            used: "open.io/team/app:1".to_owned(),
            by: "ClusterReplicatedImageSet//set".to_owned(),
            ..Route::default()
        };
        let known = Background { route: Some(&route), ..bypassed(&planned, &tried, &[]) };
        let image = Arc::from("open.io/team/app:1");
        let candidates = candidates(&container(&image), &known);
        let [original] = &*candidates.ask else { panic!("{candidates:?}") };
        let place = planned.list().iter().find(|place| place.is_original()).expect("the original");
        assert_eq!((&*original.image, &*original.by, original.is_original), (ASKED, "original", true));
        assert_eq!(original.cause, place.cause(), "a cluster-scoped policy names it");
        let known = Background { planned: None, ..known };
        let Candidates { ask, .. } = super::candidates(&container(&image), &known);
        assert_eq!(ask[0].cause, fairlead_domain::cause::Cause::Tenant, "no policy does");
    }
}

#[test]
fn what_was_tried_is_not_given_again_however_it_is_written() {
    let planned = offers(&[("a.io", None)]);
    let route = Route {
        asked: "nginx".to_owned(),
        used: "a.io/nginx".to_owned(),
        by: "ImageSetMirror/team/m".to_owned(),
        alternatives: vec!["index.docker.io/library/nginx:latest".to_owned(), "b.io/nginx:1".to_owned()],
        ..Route::default()
    };
    let mut tried = Tried::of("u");
    tried.moved("main", ("docker.io/library/nginx:latest", PullFailure::NotFound), "a.io/nginx", at(0));
    let known =
        Background { route: Some(&route), upstream: Some("nginx:latest"), ..bypassed(&planned, &tried, &[]) };
    assert_eq!(found("a.io/nginx", &known), (vec!["b.io/nginx:1".to_owned()], None));
    let mut full = Tried::of("u");
    for number in 0..40 {
        full.moved("main", ("x.io/app:1", PullFailure::NotFound), &format!("x.io/app:{number}"), at(0));
    }
    assert_eq!(found("a.io/nginx", &Background { tried: &full, ..known }).0, [""; 0], "healing ends");
}
