//! What tenants may name, and on whose account registries are contacted.

use super::*;
use crate::routing::{Decision, judge};

fn causes(policies: &[&Arc<Policy>], image: &str) -> Vec<(String, Cause)> {
    let alternatives = plan(policies, image, PullPolicy::IfNotPresent, DEFAULT);
    alternatives.list().iter().map(|one| (one.reference.to_string(), one.cause())).collect()
}

#[test]
fn an_administrator_answers_for_what_a_cluster_scoped_policy_names() {
    let cluster = mirror(ClusterImageSetMirror, "all", -1, &["m.io"]);
    let own = mirror(ImageSetMirror, "my-app/own", -2, &["n.io", "M.io:443"]);
    let set = replicated(ReplicatedImageSet, "my-app/set", -3, &["quay.io", "r.io"]);
    assert_eq!(
        causes(&[&cluster, &own, &set], "quay.io/a:1"),
        [
            ("quay.io/a:1".to_owned(), Cause::Tenant),
            ("r.io/a:1".to_owned(), Cause::Tenant),
            ("n.io/a:1".to_owned(), Cause::Tenant),
            // Both name it.
            ("M.io:443/a:1".to_owned(), Cause::Administrator),
        ]
    );
    let set = replicated(ClusterReplicatedImageSet, "set", 1, &["quay.io", "r.io"]);
    assert_eq!(
        causes(&[&set], "quay.io/a:1").iter().map(|one| one.1).collect::<Vec<_>>(),
        [Cause::Administrator; 2]
    );
    assert_eq!(
        causes(&[&cluster], "quay.io/a:1")[1],
        ("quay.io/a:1".to_owned(), Cause::Tenant),
        "a Pod's image"
    );
}

#[test]
fn an_image_in_use_is_a_tenants_unless_a_cluster_scoped_set_names_its_place() {
    let cluster = replicated(ClusterReplicatedImageSet, "set", 1, &["quay.io/team", "r.io/team"]);
    let own = replicated(ReplicatedImageSet, "my-app/set", 1, &["docker.io", "n.io"]);
    let mirror = mirror(ClusterImageSetMirror, "all", -1, &["m.io"]);
    let index = index(&[&cluster, &own, &mirror]);
    let cause = |image: &str| index.cause_of(&Reference::parse(image).unwrap());
    assert_eq!([cause("quay.io/team/a:1"), cause("R.io:443/team/a:1")], [Cause::Administrator; 2]);
    assert_eq!([cause("quay.io/other/a:1"), cause("nginx:1"), cause("m.io/a:1")], [Cause::Tenant; 3]);
}

#[test]
fn an_original_that_is_off_limits_keeps_its_place_and_an_alternative_does_not() {
    let own = mirror(ImageSetMirror, "my-app/own", -1, &["127.0.0.1:5000"]);
    let alternatives = plan(&[&own], "127.0.0.1:6443/a:1", PullPolicy::IfNotPresent, DEFAULT);
    let off_limits = || Verdict::OffLimits { reason: "it is a loopback address".into() };
    let judged: Vec<_> = alternatives
        .list()
        .iter()
        .map(|one| Some(judge(one.is_original(), off_limits(), false, true)))
        .collect();
    let Decision::Use { index, why } = alternatives.decide(&judged) else { panic!("{judged:?}") };
    assert_eq!(references(&alternatives)[index], "127.0.0.1:6443/a:1");
    assert!(why.contains("127.0.0.1:5000/a:1 is off-limits"), "{why}");
    assert!(why.contains("usable (it is a loopback address)"), "{why}");
}

#[test]
fn registries_that_namespaced_policies_may_not_name_are_left_out_with_their_field() {
    let allowed: Vec<HostPattern> =
        ["*.corp.example", "quay.io"].map(|text| HostPattern::parse(text).unwrap()).to_vec();
    let restricted = |kind, name: &str, list: &str, places: &[&str]| {
        let entries: Vec<Value> = places.iter().map(|place| entry(place)).collect();
        let mut spec = json!({});
        spec[list] = json!(entries);
        compile(&manifest(kind, name, spec)).unwrap().restricted(&allowed)
    };
    let own = restricted(ImageSetMirror, "my-app/own", "mirrors", &["evil.example", "R.corp.example:443/m"]);
    assert_eq!(own.offered(), 1, "the rest of the object works");
    assert_eq!(own.targets()[0].entry, 1, "entries keep their numbers");
    let [problem] = own.problems() else { panic!("{:?}", own.problems()) };
    assert_eq!(problem.field, "spec.mirrors[0].registry");
    for part in ["evil.example is not", "routing.namespacedRegistries", "*.corp.example, quay.io"] {
        assert!(problem.message.contains(part), "{problem}");
    }
    let set = restricted(
        ReplicatedImageSet,
        "my-app/set",
        "upstreams",
        &["quay.io", "quay.io:5000", "a.b.corp.example"],
    );
    assert_eq!((set.offered(), set.problems()[0].field.as_str()), (2, "spec.upstreams[1].registry"));
    let cluster = restricted(ClusterImageSetMirror, "all", "mirrors", &["evil.example"]);
    assert!(cluster.problems().is_empty() && cluster.offered() == 1, "an administrator may name any");
    let none =
        compile(&manifest(ImageSetMirror, "my-app/own", json!({"mirrors": [entry("quay.io")]}))).unwrap();
    let none = none.restricted(&[]);
    assert!(
        none.offered() == 0 && none.problems()[0].message.contains("none at present"),
        "{:?}",
        none.problems()
    );
}
