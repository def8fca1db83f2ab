use fairlead_api::kuik::ReplicatedImageSet;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::json;

use super::*;
use crate::cluster::policies::kinds::Sources;
use crate::cluster::state::{Malformed, Store};
use crate::cluster::watch::Resources;

fn set(name: &str, generation: i64, pattern: &str) -> ReplicatedImageSet {
    serde_json::from_value(json!({
        "apiVersion": "kuik.enix.io/v1alpha1", "kind": "ReplicatedImageSet",
        "metadata": {"name": name, "namespace": "shop", "uid": format!("uid-of-{name}"), "generation": generation},
        "spec": {"upstreams": [{"registry": "a.example", "path": "/", "imageFilter": {"include": ["/.*"]}}],
                 "filter": {"include": [{"label": pattern}]}},
    }))
    .expect("a set")
}

fn put(store: &Store<ReplicatedImageSet>, sets: &[ReplicatedImageSet], malformed: &[&str]) {
    let objects = sets.iter().map(|set| (Key::of(&set.metadata), Arc::new(set.clone()))).collect();
    let malformed = malformed.iter().map(|name| {
        let malformed = Malformed {
            uid: format!("uid-of-{name}"),
            generation: Some(1),
            resource_version: "1".to_owned(),
            error: "spec.priority: invalid type".to_owned(),
            conditions: Vec::new(),
            finalizers: Vec::new(),
            deleting: false,
        };
        (Key { namespace: "shop".into(), name: (*name).into() }, Arc::new(malformed))
    });
    store.replace(Snapshot { objects, malformed: malformed.collect() });
}

fn policy(compiled: &CompiledPolicies, name: &str) -> Option<Arc<Policy>> {
    compiled.index.policies().find(|policy| &*policy.id().name == name).cloned()
}

#[test]
fn only_what_changed_is_compiled_and_a_written_status_changes_nothing() {
    let resources = Resources::default();
    let (store, sources) = (&resources.replicated_image_sets, Sources::from(&resources));
    put(store, &[set("a", 1, "app=web"), set("b", 1, "app=web")], &[]);
    let first = CompiledPolicies::default()
        .next(&sources.view(), Terms { allowed: &[HostPattern::everything()], pull_host: None });

    let mut told = set("a", 1, "app=web");
    told.metadata.resource_version = Some("2".to_owned());
    put(store, &[told.clone(), set("b", 1, "app=web")], &[]);
    let second =
        first.next(&sources.view(), Terms { allowed: &[HostPattern::everything()], pull_host: None });
    assert!(Arc::ptr_eq(&first.index, &second.index), "no policy changed");

    put(store, &[told, set("b", 2, "app=db")], &[]);
    let third =
        second.next(&sources.view(), Terms { allowed: &[HostPattern::everything()], pull_host: None });
    assert!(!Arc::ptr_eq(&second.index, &third.index));
    let same = |name| Arc::ptr_eq(&policy(&second, name).unwrap(), &policy(&third, name).unwrap());
    assert_eq!((same("a"), same("b")), (true, false));

    // Another object of the same name and generation is another object.
    let mut other = set("a", 1, "app=db");
    other.metadata.uid = Some("another".to_owned());
    put(store, &[other, set("b", 2, "app=db")], &[]);
    let fourth =
        third.next(&sources.view(), Terms { allowed: &[HostPattern::everything()], pull_host: None });
    assert!(!Arc::ptr_eq(&policy(&third, "a").unwrap(), &policy(&fourth, "a").unwrap()));

    let mut leaving = set("a", 1, "app=db");
    leaving.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
    put(store, &[leaving, set("b", 2, "app=db")], &[]);
    let fifth =
        fourth.next(&sources.view(), Terms { allowed: &[HostPattern::everything()], pull_host: None });
    assert_eq!(fifth.index.policies().count(), 1);
}

#[test]
fn a_broken_object_is_left_out_alone_and_comes_back() {
    let resources = Resources::default();
    let (store, sources) = (&resources.replicated_image_sets, Sources::from(&resources));
    put(store, &[set("a", 1, "app=web"), set("b", 1, "app in (")], &["c"]);
    let broken = CompiledPolicies::default()
        .next(&sources.view(), Terms { allowed: &[HostPattern::everything()], pull_host: None });
    assert!(policy(&broken, "a").is_some() && broken.index.policies().count() == 1);
    let problems = broken.problems();
    let told: Vec<_> = problems.iter().map(|one| (one.object.to_string(), one.reason)).collect();
    assert_eq!(
        told,
        [
            ("ReplicatedImageSet/shop/b".to_owned(), "InvalidFilter"),
            ("ReplicatedImageSet/shop/c".to_owned(), "InvalidSpec"),
        ]
    );
    assert!(problems[0].message.contains("spec.filter.include[0].label: "), "{}", problems[0].message);

    // Repaired; one of them without a new generation, as when a definition changed.
    put(store, &[set("a", 1, "app=web"), set("b", 2, "app=web"), set("c", 1, "app=web")], &[]);
    let mended =
        broken.next(&sources.view(), Terms { allowed: &[HostPattern::everything()], pull_host: None });
    assert_eq!((mended.index.policies().count(), mended.problems()), (3, Vec::new()));
    assert!(Arc::ptr_eq(&policy(&broken, "a").unwrap(), &policy(&mended, "a").unwrap()));
}
