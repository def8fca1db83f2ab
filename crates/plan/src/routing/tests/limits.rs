//! One namespace may hold more policies than any use needs: planning costs what is kept, not what is declared.

use super::super::MOST_ALTERNATIVES;
use super::*;

/// The replicated sets and mirrors of a namespace, `entries` in each; `path` tells where in its host an entry is.
fn attack(objects: usize, entries: usize, path: impl Fn(&str, usize, usize) -> String) -> Vec<Arc<Policy>> {
    let mut policies = Vec::new();
    for object in 0..objects {
        let entry = |kind: &str, number: usize| {
            let registry = format!("{kind}-{object}-{number}.example.com");
            json!({ "registry": registry, "path": path(kind, object, number) })
        };
        let mut upstreams: Vec<Value> = (1..entries).map(|number| entry("u", number)).collect();
        upstreams.push(json!({ "registry": "docker.io", "path": "", "imageFilter": { "include": [".*"] } }));
        policies.push(policy(
            ReplicatedImageSet,
            &format!("my-app/r{object}"),
            json!({ "upstreams": upstreams }),
        ));
        let mirrors: Vec<Value> = (0..entries).map(|number| entry("m", number)).collect();
        let spec = json!({ "imageFilter": { "include": [".*"] }, "mirrors": mirrors });
        policies.push(policy(ImageSetMirror, &format!("my-app/m{object}"), spec));
    }
    policies
}

fn planned(policies: Vec<Arc<Policy>>) -> Alternatives {
    plan_in(&Index::new(policies), "my-app", "nginx:1", PullPolicy::IfNotPresent, DEFAULT)
}

#[test]
fn a_million_combinations_are_counted_and_not_made() {
    let alternatives = planned(attack(30, 32, |_, object, number| format!("/p{object}/n{number}")));
    let first: Vec<&str> = references(&alternatives).into_iter().take(3).collect();
    assert_eq!(
        first,
        [
            "docker.io/library/nginx:1",
            "m-0-0.example.com/p0/n0/library/nginx:1",
            "m-0-0.example.com/p0/n0/p0/n1/library/nginx:1",
        ]
    );
    assert_eq!(alternatives.list().len(), MOST_ALTERNATIVES);
    assert_eq!(alternatives.dropped(), 894_691 - MOST_ALTERNATIVES);
    assert_eq!(
        alternatives.cut().unwrap(),
        "only the first 64 of 894691 places are tried, 894627 are left out"
    );
}

#[test]
fn sources_whose_copies_have_one_name_count_once() {
    let alternatives = planned(attack(30, 32, |_, _, _| String::new()));
    let first: Vec<&str> = references(&alternatives).into_iter().take(3).collect();
    assert_eq!(
        first,
        [
            "docker.io/library/nginx:1",
            "m-0-0.example.com/library/nginx:1",
            "m-0-1.example.com/library/nginx:1",
        ]
    );
    assert_eq!(alternatives.list().len(), MOST_ALTERNATIVES);
    assert_eq!(alternatives.dropped(), 1 + 930 + 960 - MOST_ALTERNATIVES);
}

#[test]
fn origins_secrets_and_remarks_are_bounded() {
    let mirror = |number: usize| json!({ "registry": "m.example.com", "credentialSecret": { "name": format!("s{number}") } });
    let mut policies: Vec<_> = (0..100)
        .map(|object| {
            let mirrors: Vec<Value> = (0..32).map(|number| mirror(100 * object + number)).collect();
            let spec = json!({ "imageFilter": { "include": [".*"] }, "mirrors": mirrors });
            policy(ImageSetMirror, &format!("my-app/m{object}"), spec)
        })
        .collect();
    let same = planned(policies.clone());
    assert_eq!(references(&same), ["docker.io/library/nginx:1", "m.example.com/library/nginx:1"]);
    let [_, copy] = same.list() else { unreachable!() };
    assert_eq!((copy.also.len() + 1, copy.secrets.len()), (16, 16));

    let inside: Vec<Value> = (0..32).map(|_| json!({ "registry": "docker.io" })).collect();
    policies.extend((0..100).map(|object| {
        let spec = json!({ "priority": -1, "imageFilter": { "include": [".*"] }, "mirrors": inside });
        policy(ImageSetMirror, &format!("my-app/i{object}"), spec)
    }));
    let notes = planned(policies).notes().to_vec();
    assert_eq!(notes.len(), 65);
    assert!(notes[64].ends_with(" more remarks are left out"), "{}", notes[64]);
}

#[test]
fn a_policy_that_comes_too_late_says_so() {
    let mut policies = attack(3, 32, |_, _, _| String::new());
    let late = mirror(ImageSetMirror, "my-app/late", 9, &["late.example.com"]);
    policies.push(Arc::clone(&late));
    let none: BTreeMap<String, String> = BTreeMap::new();
    let pod = PodFacts { namespace: "my-app", labels: &none, annotations: &none };
    let alternatives = planned(policies);
    assert_eq!(alternatives.dropped(), 1 + 96 + 93 + 1 - MOST_ALTERNATIVES);
    let passed = late.passes_over(&pod, &alternatives).unwrap();
    assert_eq!(passed.reason(), "what it offers comes after the 64 places that are tried");
}

#[test]
fn replicas_are_found_however_many_there_are() {
    let index = Index::new(attack(30, 32, |_, object, number| format!("/p{object}/n{number}")));
    let image = Reference::parse("nginx:1").unwrap();
    let last = Reference::parse("u-29-31.example.com/p29/n31/library/nginx:1").unwrap();
    assert!(index.are_replicas(&image, &last, Some("my-app")));
    assert!(!index.are_replicas(&image, &last, None));
    assert_eq!(index.upstreams_of(&image, Some("my-app")).len(), MOST_ALTERNATIVES - 1);
}
