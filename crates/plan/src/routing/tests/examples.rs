//! The examples that the documentation works through, read from the manifests that users are given.

use super::*;

/// All documents of an example file.
fn example(name: &str) -> Vec<Arc<Policy>> {
    let path = format!("{}/../../examples/image-routing/{name}.yaml", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).unwrap();
    let documents: Vec<Value> = serde_saphyr::from_multiple(&text).unwrap();
    documents.iter().map(|document| Arc::new(compile(document).unwrap())).collect()
}

/// The list, made from policies in every order.
fn ordered(policies: &[Arc<Policy>], image: &str, pull: PullPolicy, rules: Rules) -> Vec<String> {
    let list = |policies: &[Arc<Policy>]| -> Vec<String> {
        let index = Index::new(policies.iter().cloned());
        let alternatives = plan_in(&index, "my-app", image, pull, rules);
        references(&alternatives).into_iter().map(str::to_owned).collect()
    };
    let forward = list(policies);
    let mut turned = policies.to_vec();
    for _ in policies {
        turned.rotate_left(1);
        assert_eq!(list(&turned), forward);
        let mut swapped = turned.clone();
        swapped.reverse();
        assert_eq!(list(&swapped), forward);
    }
    forward
}

#[test]
fn default_order_of_kinds() {
    let policies = [
        replicated(ReplicatedImageSet, "my-app/ris", 0, &["docker.io", "ris.example.com"]),
        replicated(ClusterReplicatedImageSet, "cris", 0, &["docker.io", "cris.example.com"]),
        mirror(ImageSetMirror, "my-app/ism", 0, &["ism.example.com"]),
        mirror(ClusterImageSetMirror, "cism", 0, &["cism-1.example.com/a", "cism-2.example.com/b"]),
    ];
    let list = ordered(&policies, "nginx:1.29", PullPolicy::IfNotPresent, DEFAULT);
    let first_of = |place: &str| list.iter().position(|one| one.starts_with(place)).unwrap();
    assert_eq!(list[0], "docker.io/library/nginx:1.29");
    assert_eq!(list[1], "cism-1.example.com/a/library/nginx:1.29");
    assert!(first_of("cism-1") < first_of("cism-2"), "declaration order within one object");
    assert!(first_of("cism-2") < first_of("ism"));
    assert!(first_of("ism") < first_of("cris"));
    assert!(first_of("cris") < first_of("ris"));
}

#[test]
fn private_mirror_is_preferred() {
    let policies = example("private-mirror");
    let list = |pull, rules: Rules| ordered(&policies, "nginx:1.29", pull, rules);
    let (original, copy) = ("docker.io/library/nginx:1.29", "registry.example.com/mirror/library/nginx:1.29");
    assert_eq!(list(PullPolicy::IfNotPresent, DEFAULT), [copy, original]);
    assert_eq!(list(PullPolicy::Always, DEFAULT), [original, copy]);
    assert_eq!(list(PullPolicy::Always, HONOUR), [copy, original]);
    let alternatives = plan(&[&policies[0]], "nginx:1.29", PullPolicy::IfNotPresent, DEFAULT);
    let secrets: Vec<String> =
        alternatives.list()[0].secrets.iter().map(|one| format!("{} {}", one.secret, one.by)).collect();
    assert_eq!(secrets, ["kuik-system/registry-secret ClusterImageSetMirror/private-mirror"]);
    assert_eq!(alternatives.list()[1].secrets, []);
}

#[test]
fn quay_over_ecr_over_docker_hub() {
    let policies = example("nginx-unprivileged");
    let list =
        ordered(&policies, "docker.io/nginxinc/nginx-unprivileged:1.29", PullPolicy::IfNotPresent, DEFAULT);
    assert_eq!(
        list,
        [
            "docker.io/nginxinc/nginx-unprivileged:1.29",
            "quay.io/nginx/nginx-unprivileged:1.29",
            "public.ecr.aws/nginx/nginx-unprivileged:1.29",
        ]
    );
    let alternatives =
        plan(&[&policies[0]], "nginxinc/nginx-unprivileged:1.29", PullPolicy::IfNotPresent, DEFAULT);
    assert_eq!(
        lines(&alternatives),
        "docker.io/nginxinc/nginx-unprivileged:1.29 (original + ClusterReplicatedImageSet/nginx-unprivileged, upstreams[0])\n\
         quay.io/nginx/nginx-unprivileged:1.29 (ClusterReplicatedImageSet/nginx-unprivileged, upstreams[1])\n\
         public.ecr.aws/nginx/nginx-unprivileged:1.29 (ClusterReplicatedImageSet/nginx-unprivileged, upstreams[2])\n"
    );
    let from_quay =
        ordered(&policies, "quay.io/nginx/nginx-unprivileged:1.29", PullPolicy::IfNotPresent, DEFAULT);
    assert_eq!(
        from_quay,
        [
            "quay.io/nginx/nginx-unprivileged:1.29",
            "public.ecr.aws/nginx/nginx-unprivileged:1.29",
            "docker.io/nginxinc/nginx-unprivileged:1.29",
        ]
    );
}

#[test]
fn team_mirror_before_global_mirror() {
    let policies = example("global-and-team-mirror");
    let image = "docker-registry.example.com/my-app/api:v2";
    let list = ordered(&policies, image, PullPolicy::IfNotPresent, DEFAULT);
    let expected = [
        "fast-registry.internal/my-app-cache/my-app/api:v2",
        "harbor.example.com/my-app-mirror/my-app/api:v2",
        "harbor.example.com/global-mirror/my-app/api:v2",
        "docker-registry.example.com/my-app/api:v2",
    ];
    assert_eq!(list, expected);
    let index = Index::new(policies);
    let alternatives = plan_in(&index, "my-app", image, PullPolicy::IfNotPresent, DEFAULT);
    let secret = |place: usize| alternatives.list()[place].secrets[0].secret.to_string();
    assert_eq!(
        secret(0),
        "my-app/fast-registry-secret",
        "a namespaced object's Secret is in its own namespace"
    );
    assert_eq!(secret(2), "kuik-system/harbor-secret");
    let elsewhere = plan_in(&index, "other", image, PullPolicy::IfNotPresent, DEFAULT);
    assert_eq!(references(&elsewhere), expected[2..], "another namespace has no part in it");
}

#[test]
fn a_moved_registry_is_not_asked() {
    let policies = example("bitnami");
    for pull in [PullPolicy::Always, PullPolicy::IfNotPresent] {
        let list = ordered(&policies, "docker.io/bitnami/nginx:latest", pull, DEFAULT);
        assert_eq!(list, ["registry.bitnami.com/bitnami/nginx:latest"]);
    }
    let alternatives = plan(&[&policies[0]], "bitnami/nginx:latest", PullPolicy::Always, DEFAULT);
    assert!(alternatives.needs_probe());
    assert_eq!(alternatives.discarded_by().unwrap().to_string(), "ClusterReplicatedImageSet/bitnami");
    assert_eq!(
        alternatives.notes(),
        [
            "docker.io/bitnami/nginx:latest is not tried as such: ClusterReplicatedImageSet/bitnami, upstreams[0] discards it"
        ]
    );
    let new_place =
        ordered(&policies, "registry.bitnami.com/bitnami/nginx:1", PullPolicy::IfNotPresent, DEFAULT);
    assert_eq!(new_place, ["registry.bitnami.com/bitnami/nginx:1"]);
}

#[test]
fn objects_of_one_kind_and_priority_are_interleaved_by_entry_priority_then_named() {
    let set = |name: &str, places: [(&str, u64); 2]| {
        let mirrors: Vec<Value> = places
            .iter()
            .map(|(registry, priority)| json!({ "registry": registry, "priority": priority }))
            .collect();
        policy(
            ClusterImageSetMirror,
            name,
            json!({ "imageFilter": { "include": [".*"] }, "mirrors": mirrors }),
        )
    };
    let policies = [
        set("b", [("b0.example.com", 0), ("b1.example.com", 1)]),
        set("a", [("a0.example.com", 0), ("a1.example.com", 1)]),
    ];
    assert_eq!(
        ordered(&policies, "quay.io/x/y:1", PullPolicy::IfNotPresent, DEFAULT),
        [
            "quay.io/x/y:1",
            "a0.example.com/x/y:1",
            "b0.example.com/x/y:1",
            "a1.example.com/x/y:1",
            "b1.example.com/x/y:1"
        ]
    );
    let policies = [
        mirror(ClusterImageSetMirror, "b", 0, &["b0.io", "b1.io"]),
        mirror(ClusterImageSetMirror, "a", 0, &["a0.io", "a1.io"]),
    ];
    assert_eq!(
        ordered(&policies, "quay.io/x/y:1", PullPolicy::IfNotPresent, DEFAULT),
        ["quay.io/x/y:1", "a0.io/x/y:1", "a1.io/x/y:1", "b0.io/x/y:1", "b1.io/x/y:1"]
    );
}
