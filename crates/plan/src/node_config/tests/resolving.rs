//! The places that are asked for one image, in order.

use fairlead_domain::reference::Reference;

use super::*;
use crate::node_config::{EndpointState, Mirror, PullKind};

const DIGEST: &str = "@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

fn asked(config: &NodeConfig, image: &str) -> Vec<String> {
    let resolution = config.resolve(&Reference::parse(image).unwrap());
    let asked = resolution.endpoints.into_iter().filter(|endpoint| endpoint.state == EndpointState::Asked);
    asked.map(|endpoint| endpoint.image.replace(DIGEST, "@")).collect()
}

#[test]
fn mirrors_of_the_right_kind_come_before_the_source() {
    let config =
        plan(vec![idms("hub.test/team", &["m1.test/t", "m2.test/t"]), itms("hub.test", &["t.test"])]);
    let by_digest = format!("hub.test/team/app{DIGEST}");
    assert_eq!(asked(&config, &by_digest), ["m1.test/t/app@", "m2.test/t/app@", "hub.test/team/app@"]);
    assert_eq!(asked(&config, &format!("hub.test/team/app:1{DIGEST}"))[0], "m1.test/t/app:1@");
    assert_eq!(asked(&config, "hub.test/team/app:1"), ["t.test/team/app:1", "hub.test/team/app:1"]);
    assert_eq!(asked(&config, "hub.test/other:1"), ["t.test/other:1", "hub.test/other:1"]);
    assert_eq!(asked(&config, "else.test/app:1"), ["else.test/app:1"]);
}

#[test]
fn a_closed_source_is_not_asked_and_neither_is_a_mirror_in_a_closed_place() {
    let policies = vec![istp("hub.test", &["blk.test/b", "m.test"]), idms_never("shut.test", &["m.test"])];
    let config = NodeConfig::plan(&inputs(policies, &[], &["blk.test"]));
    assert_eq!(asked(&config, "hub.test/app:1"), ["m.test/app:1", "hub.test/app:1"]);
    assert_eq!(asked(&config, "shut.test/app:1"), Vec::<String>::new());
    assert_eq!(asked(&config, &format!("shut.test/app{DIGEST}")), ["m.test/app@"]);
}

#[test]
fn a_domain_is_replaced_with_its_host_and_port_and_an_exact_host_wins() {
    let config = plan(vec![
        istp("*.vendor.test", &["m.test/vendor"]),
        istp("r.vendor.test", &["m.test/r"]),
        istp("docker.io", &["m.test/hub"]),
    ]);
    assert_eq!(
        asked(&config, "reg.vendor.test:5000/app:1"),
        ["m.test/vendor/app:1", "reg.vendor.test:5000/app:1"]
    );
    assert_eq!(asked(&config, "r.vendor.test/app:1")[0], "m.test/r/app:1");
    assert_eq!(asked(&config, "nginx:1"), ["m.test/hub/library/nginx:1", "docker.io/library/nginx:1"]);
}

#[test]
fn a_registry_alone_cannot_take_the_place_of_a_repository() {
    let config = plan(vec![istp("hub.test/p/app", &["m1.test", "m2.test/app"])]);
    assert_eq!(asked(&config, "hub.test/p/app:1"), ["m2.test/app:1", "hub.test/p/app:1"]);
}

#[test]
fn a_closed_registry_is_closed_under_its_other_names() {
    let config = NodeConfig::plan(&inputs(
        vec![
            idms_never("hub.test", &["m.test"]),
            istp("hub.test/open", &["m.test/open"]),
            itms_never("docker.io/library", &["m.test/hub"]),
            idms_never("port.test:443", &["m.test"]),
            istp("else.test", &["m.test"]),
            itms_never("both.test", &["m.test"]),
            istp("both.test:443", &["n.test"]),
        ],
        &[],
        &["shut.test/team"],
    ));
    let by_digest = |name: &str| asked(&config, &format!("{name}{DIGEST}"));
    assert_eq!(by_digest("hub.test:443/app"), ["m.test/app@"]);
    assert_eq!(asked(&config, "hub.test:443/open/app:1"), ["m.test/open/app:1", "hub.test:443/open/app:1"]);
    assert_eq!(asked(&config, "registry-1.docker.io/library/nginx:1"), ["m.test/hub/nginx:1"]);
    assert_eq!(asked(&config, "docker.io:443/library/nginx:1"), ["m.test/hub/nginx:1"]);
    assert_eq!(asked(&config, "registry-1.docker.io/other/app:1").len(), 1, "nothing is closed there");
    assert_eq!(by_digest("port.test/app"), ["m.test/app@"]);
    assert_eq!(asked(&config, "shut.test:443/team/app:1"), Vec::<String>::new());
    // Another port is another registry, and so is a name that a policy is about.
    assert_eq!(asked(&config, "hub.test:5000/app:1"), ["hub.test:5000/app:1"]);
    assert_eq!(asked(&config, "both.test:443/app:1"), ["n.test/app:1", "both.test:443/app:1"]);
    // Where nothing is closed, names stay what they are.
    assert_eq!(asked(&config, "else.test:443/app:1"), ["else.test:443/app:1"]);
    let named: Vec<&str> = config.named().map(Scope::as_str).collect();
    assert_eq!(named.len(), 8, "{named:?}");
}

#[test]
fn mirrors_are_known_by_the_objects_that_list_them_for_the_kind_of_pull() {
    let named = |name: &str, policy: MirrorPolicy| {
        let id = PolicyId { name: name.to_owned(), ..policy.id };
        MirrorPolicy { id, ..policy }
    };
    let config = plan(vec![
        named("b", idms("hub.test", &["d1.test", "both.test"])),
        named("a", idms("hub.test", &["d1.test"])),
        named("c", itms("hub.test", &["t.test", "both.test"])),
        named("child", itms("hub.test/team", &["t.test/team"])),
    ]);
    let by = |place: &str, kind| {
        let mirrors = config.entry_for(place).unwrap().1.mirrors(kind);
        let line = |(number, mirror): (usize, &Mirror)| {
            let by: Vec<&str> =
                mirrors.listed_by.mirror(number).iter().map(|policy| policy.name.as_str()).collect();
            format!("{} by {}", mirror.location, by.join(" and "))
        };
        mirrors.list.iter().enumerate().map(line).collect::<Vec<_>>()
    };
    assert_eq!(by("hub.test", PullKind::Digest), ["d1.test by a and b", "both.test by b"]);
    assert_eq!(by("hub.test", PullKind::Tag), ["t.test by c", "both.test by c"]);
    assert_eq!(by("hub.test/team", PullKind::Digest), ["d1.test/team by a and b", "both.test/team by b"]);
    assert_eq!(by("hub.test/team", PullKind::Tag), ["t.test/team by child"]);
}
