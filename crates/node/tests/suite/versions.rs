//! What depends on the version of the runtime, and what no file can say.

use std::time::Instant;

use fairlead_domain::reference::Reference;
use fairlead_node::RuntimeName::{Containerd, Crio, Podman};
use fairlead_node::{Inexact, Version, read_as, resolve};
use fairlead_plan::node_config::{Endpoint, EndpointState};

use super::*;

#[test]
fn versions_are_read_as_runtimes_print_them() {
    for (text, version) in [
        ("1.24", Version::new(1, 24, 0)),
        ("v1.30.2", Version::new(1, 30, 2)),
        ("1.7.13-k3s1", Version::new(1, 7, 13)),
        ("2.1.0~rc.1+unknown", Version::new(2, 1, 0)),
    ] {
        assert_eq!(text.parse(), Ok(version), "{text}");
    }
    for text in ["", "1", "latest", "1.x"] {
        assert!(text.parse::<Version>().is_err(), "{text}");
    }
}

#[test]
fn a_containerd_without_hosts_files_is_refused() {
    let runtime = |version: &str| Runtime { name: Containerd, version: Some(version.parse().unwrap()) };
    let refused = render(&NodeConfig::default(), &runtime("1.4.13"), None).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "containerd 1.4.13 is too old: it does not read hosts.toml, which needs 1.5 or later"
    );
    assert!(render(&NodeConfig::default(), &runtime("1.5.0"), None).is_ok());
}

#[test]
fn an_old_reader_never_gets_a_mirror_that_it_would_use_for_too_much() {
    let config = plan(vec![tag("hub.test", &["t.test"]), both("q.test", &["m.test"])], &[], &[]);
    for (runtime, old, new) in [(Crio, "1.24.9", "1.25.0"), (Podman, "4.0.3", "4.1.0")] {
        let before = rendered(&config, runtime, Some(old));
        assert!(!before.files[0].content.contains("t.test"), "{}", before.files[0].content);
        assert_eq!(reported(&before, "hub.test").len(), 1);
        // The same mirrors for both need no restriction.
        assert!(before.files[0].content.contains("location = \"m.test\"\n"));
        assert!(!before.files[0].content.contains("pull-from-mirror"));
        assert_eq!(reported(&before, "q.test"), Vec::<&str>::new());
        let after = rendered(&config, runtime, Some(new));
        assert!(
            after.files[0].content.contains("location = \"t.test\"\n    pull-from-mirror = \"tag-only\"")
        );
        for source in ["hub.test", "q.test"] {
            assert_eq!(reported(&after, source), Vec::<&str>::new());
            let told: Vec<_> = after.notes.iter().filter(|one| one.source.as_str() == source).collect();
            assert!(told.len() == 1 && told[0].message.starts_with(OTHER_PORTS[0]), "{told:?}");
        }
    }
}

#[test]
fn a_registry_is_closed_under_its_other_names_where_that_closes_no_other() {
    let config =
        plan(vec![digest_never("hub.test", &["m.test"]), tag_never("port.test:443", &["m.test"])], &[], &[]);
    let routed = render(
        &config,
        &Runtime { name: Containerd, version: None },
        Some("127.0.0.1:7780".parse().unwrap()),
    );
    let routed = routed.unwrap();
    for directory in ["hub.test", "hub.test_443_", "port.test", "port.test_443_"] {
        let path = format!("{directory}/hosts.toml");
        let file = routed.files.iter().find(|file| file.path == path).unwrap();
        assert!(file.content.contains("server = \"http://127.0.0.1:7780\""), "{path}: {}", file.content);
    }
    let file = rendered(&config, Crio, None);
    assert!(file.files[0].content.contains("location = \"hub.test:443\"\n  blocked = true"));
    // A table for the host would be one for all its ports.
    assert!(!file.files[0].content.contains("location = \"port.test\"\n"));
    assert!(reported(&file, "port.test:443")[0].contains("still contact the source"));
    let runtime = Runtime { name: Crio, version: None };
    let places = |image: &str| {
        let resolution = resolve(&config, &runtime, None, &Reference::parse(image).unwrap());
        let states = resolution.endpoints.into_iter().map(|endpoint| (endpoint.image, endpoint.state));
        states.collect::<Vec<_>>()
    };
    let source = "port.test/app:1";
    assert_eq!(places(source), [(source.to_owned(), EndpointState::Asked)]);
    assert_eq!(places("port.test:443/app:1")[0], ("m.test/app:1".to_owned(), EndpointState::Asked));
    assert_eq!(read_as(&config, "port.test:5000/app"), None);
}

#[test]
fn a_domain_that_hides_a_closed_host_is_closed() {
    let config = plan(
        vec![both("*.vendor.test", &["m.test/v"]), digest_never("r.vendor.test", &["m.test/r"])],
        &[],
        &[],
    );
    let rendered = rendered(&config, Crio, None);
    assert!(rendered.files[0].content.contains("prefix = \"*.vendor.test\"\n  blocked = true"));
    assert!(reported(&rendered, "*.vendor.test").iter().any(|message| message.contains("r.vendor.test")));
    assert!(reported(&rendered, "r.vendor.test")[0].contains("hides it"));
    // A longer name is not hidden.
    let config = plan(
        vec![both("*.vendor.test", &["m.test/v"]), digest_never("reg.vendor.test", &["m.test/r"])],
        &[],
        &[],
    );
    assert_eq!(reported(&super::rendered(&config, Crio, None), "reg.vendor.test"), Vec::<&str>::new());
}

/// `resolve` says what readers do, not what the policy for the hidden host says.
#[test]
fn images_of_a_hidden_host_are_resolved_as_those_of_its_domain() {
    let runtime = Runtime { name: Crio, version: None };
    let asked = |config: &NodeConfig, image: &str| {
        let resolution = resolve(config, &runtime, None, &Reference::parse(image).unwrap());
        let asked = resolution.endpoints.into_iter().filter(|one| one.state == EndpointState::Asked);
        asked.map(|one| one.image).collect::<Vec<_>>()
    };
    let host = |closed| {
        if closed { tag_never("r.vendor.test", &["m.test/r"]) } else { tag("r.vendor.test", &["m.test/r"]) }
    };
    let config = |closed| plan(vec![both("*.vendor.test", &["m.test/v"]), host(closed)], &[], &[]);
    assert_eq!(asked(&config(false), "r.vendor.test/app:1"), ["m.test/v/app:1", "r.vendor.test/app:1"]);
    assert_eq!(asked(&config(false), "reg.vendor.test/app:1"), ["m.test/v/app:1", "reg.vendor.test/app:1"]);
    // The domain is closed because of the host.
    assert_eq!(asked(&config(true), "r.vendor.test/app:1"), ["m.test/v/app:1"]);
    assert_eq!(asked(&config(true), "reg.vendor.test/app:1"), ["m.test/v/app:1"]);
}

/// A port stays after the mirror of a host without one. Where that leaves no name, nothing is asked at all.
#[test]
fn images_with_a_port_are_resolved_as_readers_name_them() {
    let runtime = Runtime { name: Crio, version: None };
    let config = plan(
        vec![
            both("*.v.test", &["m.test/v"]),
            both("hub.test", &["m.test", "n.test"]),
            tag("half.test", &["m.test/x"]),
            digest_never("shut.test", &["m.test"]),
        ],
        &[],
        &[],
    );
    let places = |image: &str| {
        let resolution = resolve(&config, &runtime, None, &Reference::parse(image).unwrap());
        let shown = |one: Endpoint| format!("{} {:?}", one.image, one.state);
        resolution.endpoints.into_iter().map(shown).collect::<Vec<_>>()
    };
    assert_eq!(
        places("reg.v.test:5000/app:1"),
        ["m.test/v:5000/app:1 GivenUp", "reg.v.test:5000/app:1 GivenUp"]
    );
    assert_eq!(
        places("hub.test:5000/app:1"),
        ["m.test:5000/app:1 Asked", "n.test:5000/app:1 Asked", "hub.test:5000/app:1 Asked"]
    );
    let digest = "@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    let by_digest = format!("half.test:5000/app{digest}");
    assert_eq!(places(&by_digest), [format!("{by_digest} Asked")], "its mirrors are for tags");
    assert_eq!(places("half.test:5000/app:1")[1], "half.test:5000/app:1 GivenUp");
    assert_eq!(
        places("shut.test:5000/app:1"),
        ["shut.test:5000/app:1 ClosedByFile"],
        "its mirrors are for digests"
    );
}

/// Readers look mirrors up in the file before they ask them.
#[test]
fn a_mirror_that_the_file_closes_and_policies_do_not_is_reported() {
    let runtime = Runtime { name: Crio, version: None };
    for (policies, mirror, closing) in [
        // Another port of a closed host.
        (vec![digest_never("m.test", &["n.test/x"])], "m.test:5000/hub", "m.test"),
        // Closed for tags, and by the file for digests as well.
        (
            vec![tag_never("m.test", &["n.test/x"]), digest("m.test/hub", &["n.test/y"])],
            "m.test/hub",
            "m.test/hub",
        ),
        // A domain that has to be closed because it hides a closed host.
        (
            vec![both("*.v.test", &["n.test/v"]), digest_never("r.v.test", &["n.test/r"])],
            "reg.v.test/hub",
            "*.v.test",
        ),
    ] {
        let config =
            plan([policies, vec![digest("hub.test/team", &[mirror, "open.test/hub"])]].concat(), &[], &[]);
        let rendered = rendered(&config, Crio, None);
        let expected = format!(
            "the mirror {mirror} is not asked: readers of the file take it for a part of {closing}, which the file closes"
        );
        assert_eq!(reported(&rendered, "hub.test/team"), [expected], "{mirror}");
        let image =
            "hub.test/team/app@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        let resolution = resolve(&config, &runtime, None, &Reference::parse(image).unwrap());
        let states: Vec<EndpointState> = resolution.endpoints.into_iter().map(|one| one.state).collect();
        assert!(
            matches!(states[0], EndpointState::ClosedByFile | EndpointState::Closed { .. }),
            "{states:?}"
        );
        assert_eq!(states[1..], [EndpointState::Asked, EndpointState::Asked]);
    }
    // Where policies close it, that is said of the policies.
    let config =
        plan(vec![digest_never("m.test", &["n.test"]), digest("hub.test/team", &["m.test/hub"])], &[], &[]);
    assert!(reported(&rendered(&config, Crio, None), "hub.test/team").is_empty());
}

/// Readers take `reg.vendor.test:5000` for a part of `reg.vendor.test`, and would contact it.
#[test]
fn an_open_host_in_a_closed_domain_is_closed() {
    let config = plan(
        vec![tag_never("*.vendor.test", &["m.test/v"]), both("reg.vendor.test", &["m.test/r"])],
        &[],
        &[],
    );
    let rendered = rendered(&config, Crio, None);
    assert!(rendered.files[0].content.contains("location = \"reg.vendor.test\"\n  blocked = true"));
    assert!(reported(&rendered, "reg.vendor.test")[0].contains("names with a port"));
    let of_domain = reported(&rendered, "*.vendor.test");
    assert!(
        of_domain.iter().any(|message| message.contains(".vendor.test twice in their names")),
        "{of_domain:?}"
    );
}

#[test]
fn a_registry_alone_is_no_mirror_of_a_repository() {
    let config = plan(vec![digest("hub.test/p/app", &["m1.test", "m2.test/app"])], &[], &[]);
    let rendered = rendered(&config, Crio, None);
    assert!(!rendered.files[0].content.contains("m1.test"));
    assert!(rendered.files[0].content.contains("m2.test/app"));
    assert!(reported(&rendered, "hub.test/p/app")[0].contains("m1.test is left out"));
}

#[test]
fn a_closed_registry_that_containerd_cannot_serve_exactly_stays_closed() {
    for config in [
        plan(vec![tag_never("hub.test", &["m.test"])], &[], &[]),
        plan(vec![digest_never("hub.test", &["m.test"]), digest("hub.test/a", &["n.test/a"])], &[], &[]),
        plan(vec![digest_never("hub.test", &["m.test"])], &[], &["m.test/secret"]),
    ] {
        let rendered = rendered(&config, Containerd, None);
        let file = rendered.files.iter().find(|file| file.path == "hub.test/hosts.toml").unwrap();
        assert!(
            file.content.ends_with("server = \"https://hub.test\"\ncapabilities = [\"push\"]\n\n[host]\n")
        );
        assert!(reported(&rendered, "hub.test")[0].ends_with("the registry is closed, without mirrors"));
    }
}

/// Files, reports and what `resolve` says are about the same mirrors on every runtime.
#[test]
fn a_mirror_without_full_names_for_images_is_left_out_of_containerds_file_too() {
    let config = plan(vec![both("hub.test", &["short", "docker.io", "m.test"])], &[], &[]);
    let rendered = rendered(&config, Containerd, None);
    let content = &rendered.files[0].content;
    assert_eq!(content.matches("[host.").count(), 1, "{content}");
    assert!(content.contains("[host.\"https://m.test\"]"), "{content}");
    let left_out = ["the mirror docker.io is left out: ", "the mirror short is left out: "];
    let reported = reported(&rendered, "hub.test");
    assert!(
        reported.len() == 2 && reported.iter().zip(left_out).all(|(one, text)| one.starts_with(text)),
        "{reported:?}"
    );
    let runtime = Runtime { name: Containerd, version: None };
    let image = Reference::parse("hub.test/team/app:1").unwrap();
    let resolution = resolve(&config, &runtime, None, &image);
    let asked = resolution.endpoints.iter().filter(|endpoint| endpoint.state == EndpointState::Asked);
    let asked: Vec<&str> = asked.map(|endpoint| endpoint.image.as_str()).collect();
    assert_eq!(asked, ["m.test/team/app:1", "hub.test/team/app:1"]);
}

/// Without a file, containerd checks no certificates of registries on its own machine, and tries HTTP after HTTPS.
#[test]
fn a_file_asks_a_registry_on_the_same_machine_as_containerd_does_without_one() {
    let part = plan(vec![both("localhost:5000/team", &["m.test/t"])], &[], &[]);
    let content = |rendered: &Rendered| rendered.files[0].content.clone();
    let server = "server = \"http://localhost:5000\"\nskip_verify = true\n";
    assert!(content(&routed(&part)).contains(server), "{}", content(&routed(&part)));
    assert!(routed(&part).inexact.is_empty());
    let whole = plan(vec![both("127.0.0.1:5000", &["m.test/t"])], &[], &[]);
    assert!(content(&rendered(&whole, Containerd, None)).contains("server = \"http://127.0.0.1:5000\""));
    // The router sends containerd to the source, whose certificate it checks as little.
    let closed = plan(vec![digest_never("localhost:5000/shut", &["m.test/s"])], &[], &[]);
    assert!(content(&routed(&closed)).contains("skip_verify = true"), "{}", content(&routed(&closed)));
    let old = rendered(&whole, Containerd, Some("1.6.20"));
    assert!(content(&old).contains("server = \"https://127.0.0.1:5000\""));
    assert!(reported(&old, "127.0.0.1:5000")[0].ends_with("asked with a checked certificate"), "{old:?}");
}

/// The file of a closed registry closes all of it, whatever policies say about its parts.
#[test]
fn parts_of_a_registry_that_a_file_closes_are_said_to_be_closed() {
    let policies =
        || vec![both("hub.test/open", &["m.test/o"]), digest_never("hub.test/shut", &["m.test/s"])];
    let why = "containerd's files are about whole registries; it is left out";
    let closed = rendered(&plan(policies(), &[], &["hub.test"]), Containerd, None);
    for source in ["hub.test/open", "hub.test/shut"] {
        assert_eq!(
            reported(&closed, source),
            [format!("{why}, and closed with all of hub.test")],
            "{source}"
        );
    }
    let open = rendered(&plan(policies(), &[], &[]), Containerd, None);
    assert_eq!(reported(&open, "hub.test/open"), [why]);
    assert_eq!(reported(&open, "hub.test/shut"), [format!("{why}, and its source is still contacted")]);
}

#[test]
fn a_containerd_that_does_not_fall_back_to_http_gets_no_insecure_places() {
    let config = plan(vec![both("hub.test", &["m.test"])], &["m.test"], &[]);
    for (version, written) in
        [("1.6.20", false), ("1.6.38", true), ("1.7.0", false), ("1.7.13", true), ("2.0.0", true)]
    {
        let rendered = rendered(&config, Containerd, Some(version));
        let file = rendered.files.iter().find(|file| file.path == "hub.test/hosts.toml");
        assert_eq!(file.is_some(), written, "{version}");
        assert_eq!(reported(&rendered, "hub.test").is_empty(), written, "{version}");
    }
}

#[test]
fn other_ports_of_a_host_are_a_note_unless_something_names_one() {
    let policies = || vec![both("hub.test", &["m.test"]), digest_never("shut.test", &["m.test/x"])];
    let alone = rendered(&plan(policies(), &[], &[]), Crio, None);
    assert!(alone.inexact.is_empty() && alone.notes.len() == 2, "{alone:?}");
    let named = rendered(&plan(policies(), &["hub.test:5000/x"], &[]), Crio, None);
    let source = |list: &[Inexact]| list.iter().map(|one| one.source.to_string()).collect::<Vec<_>>();
    assert_eq!(
        (source(&named.inexact), source(&named.notes)),
        (vec!["hub.test".to_owned()], vec!["shut.test".to_owned()])
    );
}

#[test]
fn a_source_that_a_file_can_only_close_for_all_pulls_is_reported() {
    let half =
        plan(vec![tag_never("hub.test", &["t.test"]), digest("hub.test/team", &["d.test/team"])], &[], &[]);
    let message = "its source is closed for digests as well: the file cannot close it for tags alone";
    assert_eq!(reported(&rendered(&half, Crio, None), "hub.test/team"), [message]);
    assert_eq!(
        reported(&routed(&half), "hub.test/team"),
        ["while the agent is not there, nothing can be pulled from hub.test"]
    );
    let domain = plan(vec![tag_never("*.v.test", &["t.test/v"]), both("r.v.test", &["d.test/r"])], &[], &[]);
    assert!(
        reported(&rendered(&domain, Containerd, None), "r.v.test").is_empty(),
        "it has mirrors of its own"
    );
    let domain =
        plan(vec![tag_never("*.v.test", &["d.test/v"]), digest("r.v.test", &["d.test/v"])], &[], &[]);
    assert_eq!(reported(&rendered(&domain, Containerd, None), "r.v.test"), [message]);
}

/// The router alone leads into a registry with something closed in it, whatever else is there.
#[test]
fn open_sources_of_a_registry_that_is_closed_in_part_are_not_exact() {
    let part = plan(
        vec![digest_never("hub.test/base", &["m.test/b"]), both("hub.test/team", &["m.test/t"])],
        &[],
        &[],
    );
    let message = "while the agent is not there, nothing can be pulled from hub.test";
    for source in ["hub.test/base", "hub.test/team"] {
        assert_eq!(reported(&routed(&part), source), [message], "{source}");
    }
    let domains = plan(vec![tag_never("*.v.test", &["m.test/v"]), both("*.w.test", &["m.test/w"])], &[], &[]);
    assert_eq!(reported(&routed(&domains), "*.w.test").len(), 1);
    let bare = plan(vec![both("hub.test/ns", &["m.test:5000"])], &[], &[]);
    assert_eq!(
        reported(&routed(&bare), "hub.test/ns"),
        [
            "the mirror m.test:5000 is not asked for an image hub.test/ns itself, only for those below it: a registry alone \
         is no image"
        ]
    );
}

/// Agents render again and again. Ten times as many sources take about ten times as long, and not a hundred times.
#[test]
fn files_for_a_router_take_time_in_proportion_to_sources() {
    for path in ["", "/closed"] {
        let time = |sources: usize| {
            let policies =
                (0..sources).map(|number| digest_never(&format!("r{number}.test{path}"), &["m.test/x"]));
            let config = plan(policies.collect(), &[], &[]);
            let measured = (0..3).map(|_| {
                let started = Instant::now();
                let rendered = routed(&config);
                assert!(rendered.files.len() >= sources);
                started.elapsed()
            });
            measured.min().unwrap()
        };
        let (few, many) = (time(500), time(5_000));
        assert!(many < few * 40, "{many:?} for ten times the sources of {few:?}");
    }
}
