//! What mirroring asks of policies.

use super::*;
use crate::routing::SecretUse;

#[test]
fn targets_carry_their_secret_and_how_long_unused_copies_stay() {
    let mut spec = cleaned(&["m.io", "m.io/inner", "n.io"], 60);
    spec["mirrors"][0]["credentialSecret"] = json!({ "name": "outer", "namespace": "registries" });
    spec["mirrors"][1]["credentialSecret"] = json!({ "name": "inner", "namespace": "registries" });
    spec["mirrors"][1]["cleanup"] = json!({ "enabled": true, "retention": "2h" });
    spec["mirrors"][2]["cleanup"] = json!({ "enabled": false, "retention": "2h" });
    let compiled = policy("m", &spec);
    let targets = compiled.targets();
    let stays = |number: usize| targets[number].cleanup.as_ref().map(ToString::to_string);
    assert_eq!([stays(0), stays(1), stays(2)], [Some("60s".to_owned()), Some("2h".to_owned()), None]);
    assert_eq!(targets[1].push_secret.unwrap().to_string(), "registries/inner");
    assert_eq!((targets[2].entry, targets[2].place.as_str()), (2, "n.io"));
    assert_eq!(compiled.cleanup().unwrap().to_string(), "60s");

    let secret = |text: &str| compiled.push_secret(&image(text)).map(ToString::to_string);
    assert_eq!(secret("m.io/inner/x:1").as_deref(), Some("registries/inner"));
    assert_eq!(secret("m.io/inner2/x:1").as_deref(), Some("registries/outer"));
    assert_eq!(secret("n.io/x:1"), None);
    assert_eq!(secret("elsewhere.io/x:1"), None);
    assert_eq!(policy("m", &mirrors(&["m.io"])).cleanup(), None);
}

#[test]
fn of_what_is_mirrored() {
    let mut spec = mirrors(&["m.io"]);
    spec["filter"] = json!({ "include": [{ "image": "docker.io/.*" }], "exclude": [{ "image": ".*:dev" }] });
    let own = policy("team/m", &spec);
    assert!(
        own.takes(&image("nginx:1")) && !own.takes(&image("nginx:dev")) && !own.takes(&image("quay.io/x"))
    );
    assert_eq!(own.selection().unwrap().namespace, Some("team"));
    assert_eq!(policy("m", &spec).selection().unwrap().namespace, None);
    let replicated = replicated();
    assert!(replicated.selection().is_none() && replicated.targets().is_empty());
    assert!(!replicated.takes(&image("nginx:1")));
}

/// A replicated set with upstreams written as `registry/path secret`; `-` discards, `?` recognises nothing.
fn set(name: &str, priority: i64, places: &[&str]) -> Arc<Policy> {
    let upstream = |text: &&str| {
        let (place, secret) = text.split_once(' ').unwrap_or((text, ""));
        let bare = place.trim_start_matches(['-', '?']);
        let (registry, path) = bare.split_once('/').unwrap_or((bare, ""));
        let mut upstream = json!({ "registry": registry, "path": path });
        upstream["discardAlternative"] = json!(place.starts_with('-'));
        if !place.starts_with('?') {
            upstream["imageFilter"] = json!({ "include": [".*"] });
        }
        if !secret.is_empty() {
            upstream["credentialSecret"] = json!({ "name": secret, "namespace": "registries" });
        }
        upstream
    };
    let (namespace, short) = name.split_once('/').map_or((None, name), |(one, two)| (Some(one), two));
    let object = json!({
        "apiVersion": "kuik.enix.io/v1alpha1",
        "kind": if namespace.is_some() { "ReplicatedImageSet" } else { "ClusterReplicatedImageSet" },
        "metadata": { "name": short, "namespace": namespace, "uid": format!("uid-{short}") },
        "spec": {
            "priority": priority,
            // Which Pods it is about makes no difference here.
            "filter": { "include": [{ "label": "never=set" }] },
            "upstreams": places.iter().map(upstream).collect::<Vec<_>>(),
        },
    });
    let compiled = match namespace {
        Some(_) => Policy::replicated(&serde_json::from_value(object).unwrap()),
        None => Policy::cluster_replicated(&serde_json::from_value(object).unwrap()),
    };
    Arc::new(compiled.unwrap())
}

#[test]
fn replicas_are_what_a_set_declares() {
    let index = Index::new([
        set("c", 0, &["docker.io/thanosio", "quay.io/thanos", "?only.io/target", "-old.io/thanos"]),
        set("team/t", 0, &["a.io", "b.io"]),
    ]);
    let replicas =
        |one: &str, other: &str, namespace| index.are_replicas(&image(one), &image(other), namespace);
    assert!(replicas("docker.io/thanosio/x:1", "quay.io/thanos/x:1", None));
    assert!(replicas("quay.io/thanos/x:1", "docker.io/thanosio/x:1", Some("anything")));
    assert!(!replicas("docker.io/thanosio/x:1", "quay.io/thanos/x:2", None));
    assert!(!replicas("docker.io/thanosio/x:1", "quay.io/thanos2/x:1", None));
    assert!(replicas("only.io/target/x:1", "docker.io/thanosio/x:1", None), "either way round");
    assert!(replicas("old.io/thanos/x:1", "quay.io/thanos/x:1", None), "discarded, but the same image");
    assert!(replicas("a.io/x", "b.io/x:latest", Some("team")));
    assert!(!replicas("a.io/x", "b.io/x", None) && !replicas("a.io/x", "b.io/x", Some("other")));
    assert!(replicas("nginx", "nginx:latest", None), "the same image");
}

#[test]
fn upstreams_come_in_order_with_their_secrets() {
    let index = Index::new([
        set("late", 5, &["docker.io/x own", "late.io/x"]),
        set("early", -1, &["docker.io/x", "early.io/x push", "-old.io/x"]),
        set("team/t", 0, &["docker.io/x", "team.io/x"]),
    ]);
    let upstreams = |namespace| {
        let list = index.upstreams_of(&image("docker.io/x/y:1"), namespace);
        let line = |(reference, secrets): (Reference, Vec<SecretUse>)| {
            format!("{reference} {}", secrets.first().map_or("-".to_owned(), |used| used.secret.to_string()))
        };
        list.into_iter().map(line).collect::<Vec<_>>()
    };
    assert_eq!(upstreams(None), ["early.io/x/y:1 registries/push", "late.io/x/y:1 -"]);
    assert_eq!(
        upstreams(Some("team")),
        ["early.io/x/y:1 registries/push", "team.io/x/y:1 -", "late.io/x/y:1 -"]
    );
    let own = index.upstream_secrets(&image("docker.io/x/y:1"), None);
    assert_eq!(own.iter().map(|used| used.secret.to_string()).collect::<Vec<_>>(), ["registries/own"]);
    assert!(index.upstreams_of(&image("nginx"), None).is_empty());
    assert!(index.upstream_secrets(&image("nginx"), None).is_empty());
}
