//! Which place an image is looked for in: paths of mirrors and upstreams.

use super::*;

/// The copy that a mirror offers, or nothing.
fn copy(registry: &str, path: &str, image: &str) -> Option<String> {
    let spec = json!({
        "priority": -1, "imageFilter": { "include": [".*"] }, "mirrors": [{ "registry": registry, "path": path }],
    });
    let policy = policy(ClusterImageSetMirror, "m", spec);
    let alternatives = plan(&[&policy], image, PullPolicy::IfNotPresent, DEFAULT);
    (alternatives.list().len() > 1).then(|| alternatives.list()[0].reference.to_string())
}

/// What a set offers beside the image, which its first upstream recognises by `filter`.
fn moved(from: (&str, &str), to: (&str, &str), filter: &str, image: &str) -> Option<String> {
    let upstreams = json!([
        { "registry": from.0, "path": from.1, "imageFilter": { "include": [filter] } },
        { "registry": to.0, "path": to.1 },
    ]);
    let policy = policy(ClusterReplicatedImageSet, "r", json!({ "priority": -1, "upstreams": upstreams }));
    let alternatives = plan(&[&policy], image, PullPolicy::IfNotPresent, DEFAULT);
    let offered = alternatives.list().iter().find(|one| !one.is_original());
    offered.map(|one| one.reference.to_string())
}

#[test]
fn where_mirrors_keep_copies() {
    let nginx = "docker.io/library/nginx:1.29";
    let digest = format!("nginx@{DIGEST}");
    let both = format!("nginx:1@{DIGEST}");
    for (registry, path, image, expected) in [
        ("registry.example.com", "/mirror", nginx, "registry.example.com/mirror/library/nginx:1.29"),
        (
            "registry.example.com",
            "/mirror",
            "quay.io/thanos/thanos:v1",
            "registry.example.com/mirror/thanos/thanos:v1",
        ),
        ("registry.example.com", "/mirror", "nginx", "registry.example.com/mirror/library/nginx"),
        ("h.io", "", "reg:5000/a/b:1", "h.io/a/b:1"),
        ("h.io", "/", "reg:5000/a/b:1", "h.io/a/b:1"),
        ("h.io", "m", nginx, "h.io/m/library/nginx:1.29"),
        ("h.io", "m/", nginx, "h.io/m/library/nginx:1.29"),
        ("h.io", "//m//n//", nginx, "h.io/m/n/library/nginx:1.29"),
        ("h.io:5000", "/m", nginx, "h.io:5000/m/library/nginx:1.29"),
        ("h.io/below", "/m", nginx, "h.io/below/m/library/nginx:1.29"),
        ("h.io", "m/../n", nginx, "h.io/n/library/nginx:1.29"),
        ("h.io", "/m", &digest, &format!("h.io/m/library/nginx@{DIGEST}")),
        ("h.io", "/m", &both, &format!("h.io/m/library/nginx:1@{DIGEST}")),
        ("docker.io", "", "quay.io/nginx:1", "docker.io/library/nginx:1"),
    ] {
        assert_eq!(copy(registry, path, image).as_deref(), Some(expected), "{registry} {path} {image}");
    }
    let same = |image| copy("registry.example.com", "/mirror", image);
    assert_eq!(same("a.io/x/y:1"), same("b.io/x/y:1"), "the source's host is dropped");
}

#[test]
fn a_mirror_offers_no_copy_of_what_lies_in_it() {
    assert_eq!(copy("h.io", "/mirror", "h.io/mirror/library/nginx:1"), None);
    assert_eq!(copy("docker.io", "", "nginx:1"), None);
    let beside = copy("h.io", "/mirror", "h.io/mirror2/library/nginx:1");
    assert_eq!(beside.as_deref(), Some("h.io/mirror/mirror2/library/nginx:1"));
}

#[test]
fn how_upstreams_exchange_paths() {
    let digest = format!("docker.io/library/nginx@{DIGEST}");
    for (image, from, to, expected) in [
        (
            "docker.io/thanosio/thanos:v1",
            ("docker.io", "/thanosio/thanos"),
            ("quay.io", "/thanos/thanos/"),
            "quay.io/thanos/thanos:v1",
        ),
        ("quay.io/enix/x:3", ("quay.io", "/enix/"), ("ghcr.io", "/enix/"), "ghcr.io/enix/x:3"),
        (
            "docker.io/library/nginx:1",
            ("docker.io", "/library/"),
            ("gitlab.x", "/g/dependency_proxy/containers/"),
            "gitlab.x/g/dependency_proxy/containers/nginx:1",
        ),
        ("docker.io/library/nginx:1", ("docker.io", "/"), ("h.x", "/hub"), "h.x/hub/library/nginx:1"),
        ("docker.io/library/nginx:1", ("docker.io", ""), ("h.x", "/hub"), "h.x/hub/library/nginx:1"),
        ("docker.io/library/nginx:1", ("index.docker.io", ""), ("h.x", ""), "h.x/library/nginx:1"),
        ("nginx", ("docker.io", "/library/nginx"), ("h.x", "/web"), "h.x/web"),
        ("quay.io/a/nginx:1", ("quay.io", "/a"), ("docker.io", ""), "docker.io/library/nginx:1"),
        (&digest, ("docker.io", "/library"), ("h.x", "/hub"), &format!("h.x/hub/nginx@{DIGEST}")),
    ] {
        assert_eq!(moved(from, to, ".*", image).as_deref(), Some(expected), "{image} {from:?} {to:?}");
    }
}

#[test]
fn only_whole_segments_of_a_path_count() {
    for path in ["/lib", "/zzz", "/library/nginx/more"] {
        let upstreams = json!([
            { "registry": "docker.io", "path": path, "imageFilter": { "include": [".*"] } },
            { "registry": "q.x", "path": "/p" },
        ]);
        let set = policy(ClusterReplicatedImageSet, "r", json!({ "upstreams": upstreams }));
        let alternatives = plan(&[&set], "nginx:1", PullPolicy::IfNotPresent, DEFAULT);
        assert_eq!(references(&alternatives), ["docker.io/library/nginx:1"], "{path}");
        assert!(!alternatives.needs_probe());
        let note = format!(
            "ClusterReplicatedImageSet/r, upstreams[0] does not apply to docker.io/library/nginx:1: it does not lie in \
             docker.io{path}, compared by whole path segments"
        );
        assert_eq!(alternatives.notes(), [note]);
    }
}

#[test]
fn as_a_target_an_upstream_needs_no_common_path() {
    let upstreams = json!([
        { "registry": "docker.io", "path": "/library", "imageFilter": { "include": [".*"] } },
        { "registry": "quay.io", "path": "/zzz", "imageFilter": { "include": ["/zzz/.*"] } },
    ]);
    let set = policy(ClusterReplicatedImageSet, "r", json!({ "upstreams": upstreams }));
    assert_eq!(
        references(&plan(&[&set], "nginx:1", PullPolicy::IfNotPresent, DEFAULT))[1],
        "quay.io/zzz/nginx:1"
    );
}

#[test]
fn upstream_filters_see_what_follows_the_registry() {
    let (from, to) = (("docker.io", "/library"), ("h.x", "/hub"));
    let seen = |filter: &str, image: &str| moved(from, to, filter, image).is_some();
    assert!(seen("/library/nginx:.+", "nginx:1"));
    assert!(seen("/library/nginx:.+", "nginx"), "an image without tag is latest");
    assert!(seen("/library/nginx(:.+)?", "nginx"));
    assert!(seen("/library/nginx:.+", &format!("nginx@{DIGEST}")));
    assert!(seen("/library/nginx:1", &format!("nginx:1@{DIGEST}")));
    assert!(!seen("/nginx:.+", "nginx:1"), "the path is not cut off");
    assert!(!seen("library/nginx:.+", "nginx:1"));
    assert!(!seen("/library/nginx", "nginx:1"), "the whole text is compared");
    assert!(!seen("docker.io/library/nginx:.+", "nginx:1"));
    assert!(!seen(".*", "docker.io.evil/library/nginx:1"), "a host that only begins alike is another host");
    assert!(!seen(".*", "quay.io/library/nginx:1"));
}

#[test]
fn a_registry_may_carry_a_path() {
    let below = moved(("docker.io/library", ""), ("h.x", "/hub"), "/nginx:.+", "nginx:1");
    assert_eq!(below.as_deref(), Some("h.x/hub/nginx:1"));
    assert_eq!(moved(("docker.io/library", ""), ("h.x", "/hub"), "/library/nginx:.+", "nginx:1"), None);
    let namespace = moved(("bitnami", ""), ("h.x", "/hub"), "/nginx:.+", "bitnami/nginx:1");
    assert_eq!(
        namespace.as_deref(),
        Some("h.x/hub/nginx:1"),
        "without a dot it is a namespace on Docker Hub"
    );
}

#[test]
fn an_upstream_that_cannot_hold_the_image_is_left_out_and_said_so() {
    let set = replicated(ClusterReplicatedImageSet, "r", 0, &["docker.io/library/nginx", "h.x", "q.x/web"]);
    let alternatives = plan(&[&set], "nginx:1", PullPolicy::IfNotPresent, DEFAULT);
    assert_eq!(references(&alternatives), ["docker.io/library/nginx:1", "q.x/web:1"]);
    assert_eq!(alternatives.notes().len(), 1);
    assert!(
        alternatives.notes()[0]
            .starts_with("ClusterReplicatedImageSet/r, upstreams[1] is left out: h.x has no path")
    );
}
