//! What is wrong with a set touches its own source only, is reported, and never opens a closed source.

use super::*;

#[test]
fn a_wrong_set_is_reported_and_the_others_hold() {
    for (wrong, message) in [
        (icsp("*.a.test/ns", &["m.test"]), "\"*.a.test/ns\" is not a source"),
        (icsp("s.test", &["*.b.test/ns"]), "\"*.b.test/ns\" is not a mirror"),
        (icsp("s.test", &["b.test/ns "]), "\"b.test/ns \" is not a mirror"),
        (icsp("s.test", &["good.test", "https://b.test"]), "\"https://b.test\" is not a mirror"),
    ] {
        let config = plan(vec![wrong, idms("hub.test", &["m.test"])]);
        assert_eq!(shown(&config), "hub.test\n  m.test digest\n");
        let told = told(&config);
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(
            told[0].starts_with("Failed ImageContentSourcePolicy ") && told[0].contains(message),
            "{told:?}"
        );
    }
}

#[test]
fn other_sets_of_the_same_object_hold() {
    let mut policy = icsp("hub.test", &["m.test"]);
    policy.sets.extend(icsp("bad source", &["m.test"]).sets);
    let config = plan(vec![policy]);
    assert_eq!(shown(&config), "hub.test\n  m.test digest\n");
    assert_eq!(told(&config).len(), 1);
}

#[test]
fn a_wrong_set_that_closes_its_source_keeps_it_closed() {
    for wrong in [
        idms_never("s.test", &["s.test", "m.test"]),
        idms_never("s.test", &["s.test/mirror"]),
        idms_never("s.test", &["s.test:5000/mirror"]),
        idms_never("s.test", &["not a mirror"]),
        itms_never("s.test", &["m.test", "https://m.test"]),
    ] {
        let config = plan(vec![wrong]);
        assert_eq!(shown(&config), "s.test blocked\n");
        assert!(told(&config)[0].contains("the source stays closed"), "{:?}", told(&config));
        assert!(config.findings[0].problem.is_failure());
    }
    let config = plan(vec![idms_never("*.s.test", &["m.s.test/x"])]);
    assert_eq!(shown(&config), "*.s.test blocked\n");
}

#[test]
fn never_wins_and_both_objects_say_so() {
    for (open, merged) in [
        (idms("s.test", &["b.test"]), "s.test blocked\n  a.test digest\n  b.test digest\n"),
        (itms("s.test", &["t.test"]), "s.test blocked\n  a.test digest\n  t.test tag\n"),
        (icsp("s.test", &["a.test"]), "s.test blocked\n  a.test digest\n"),
    ] {
        let mut closing = idms_never("s.test", &["a.test"]);
        "closing".clone_into(&mut closing.id.name);
        let mut objects = vec![closing.id.clone(), open.id.clone()];
        objects.sort();
        let config = plan(vec![closing, open]);
        assert_eq!(shown(&config), merged);
        assert!(config.findings.iter().all(|finding| finding.problem.reason() == "Conflict"));
        let named: Vec<_> = config.findings.iter().map(|finding| finding.policy.clone()).collect();
        assert_eq!(named, objects);
    }
}

#[test]
fn a_mirror_inside_a_source_that_another_object_closes_is_not_used() {
    let mut open = idms("s.test", &["s.test", "s.test/copy", "b.test"]);
    "open".clone_into(&mut open.id.name);
    let config = plan(vec![idms_never("s.test", &["a.test"]), open]);
    assert_eq!(shown(&config), "s.test blocked\n  a.test digest\n  b.test digest\n");
    let failed = config.findings.iter().filter(|finding| finding.problem.is_failure());
    assert!(failed.clone().all(|finding| finding.policy.name == "open"));
    assert_eq!(failed.count(), 2);
}

#[test]
fn different_sources_do_not_conflict() {
    for policies in [
        vec![idms("*.a.test", &["m.test/x"]), idms("a.test/ns", &["m.test/y"])],
        vec![idms_never("s.test/a", &["m.test/a"]), idms("s.test", &["m.test"])],
    ] {
        assert_eq!(told(&plan(policies)), Vec::<String>::new());
    }
}

#[test]
fn a_scope_that_inherits_from_a_closed_one_is_closed_for_both() {
    let config = plan(vec![idms("hub.test/team", &["d.test/tm"]), itms_never("hub.test", &["t.test"])]);
    assert_eq!(
        shown(&config),
        "hub.test blocked\n  t.test tag\nhub.test/team blocked\n  d.test/tm digest\n  t.test/team tag\n"
    );
}

#[test]
fn a_bare_scope_in_a_source_that_lost_its_mirrors_is_closed() {
    let policies = vec![idms_never("hub.test/team", &["hub.test/team/copy"])];
    let config = NodeConfig::plan(&inputs(policies, &["hub.test/team/dev"], &[]));
    assert_eq!(shown(&config), "hub.test/team blocked\nhub.test/team/dev blocked insecure\n");
}

#[test]
fn a_source_without_mirrors_is_said_to_have_no_effect() {
    for policy in
        [idms("s.test", &[]), idms_never("s.test", &[]), istp("s.test", &["s.test"]), icsp("s.test", &[])]
    {
        let config = plan(vec![policy]);
        assert_eq!(shown(&config), "");
        assert!(told(&config)[0].starts_with("NoEffect "), "{:?}", told(&config));
    }
}

#[test]
fn a_source_that_no_image_can_have_is_said_to_have_no_effect() {
    for (source, taken_for) in [
        ("reg", Some("docker.io/reg")),
        ("reg/team", Some("docker.io/reg/team")),
        ("index.docker.io/library", Some("docker.io/library")),
        ("index.docker.io", Some("docker.io")),
        // A namespace, although an image of that name is another one.
        ("docker.io/nginx", None),
        ("registry-1.docker.io", None),
        ("reg:5000/team", None),
        ("localhost/team", None),
        ("*.io", None),
    ] {
        let told = told(&plan(vec![istp(source, &["m.test/x"])]));
        let expected = taken_for.map(|name| {
            format!("NoEffect ImageSourceTagPolicy {source}: source {source:?}: runtimes take it for {name} in the names")
        });
        let is_told = expected.as_ref().is_some_and(|text| told.len() == 1 && told[0].starts_with(text));
        assert_eq!(is_told, expected.is_some(), "{source}: {told:?}");
        assert_eq!(told.len(), usize::from(expected.is_some()), "{source}: {told:?}");
    }
}

/// Runtimes look mirrors up before they ask them.
#[test]
fn a_mirror_in_the_closed_scope_of_another_object_is_named() {
    let policies = || {
        vec![
            istp("hub.test", &["shut.test/copy", "m.test"]),
            itms_never("shut.test", &["n.test"]),
            itms_never("m.test/sub", &["n.test"]),
        ]
    };
    assert_eq!(
        told(&plan(policies())),
        [
            "Conflict ImageSourceTagPolicy hub.test: source \"hub.test\": the mirror shut.test/copy is not asked, because it \
          lies in shut.test, which must not be contacted"
        ]
    );
    let blocked = NodeConfig::plan(&inputs(policies(), &[], &["m.test"]));
    assert_eq!(blocked.findings.len(), 2, "{:?}", told(&blocked));
}
