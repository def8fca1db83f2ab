//! Proxy caches that serve routing.

use fairlead_api::reef::ProxyCache;

use super::*;

fn cache(name: &str, spec: Value, health: &str) -> Result<Policy, PolicyError> {
    let mut object = json!({
        "apiVersion": "harbor-reef.nvidia.com/v1alpha1", "kind": "ProxyCache",
        "metadata": { "name": name, "uid": format!("uid-{name}"), "generation": 3 },
        "status": { "phase": "Ready", "health": health, "observedGeneration": 3 },
    });
    object["spec"] = spec;
    let object: ProxyCache = serde_json::from_value(object).unwrap();
    Policy::proxy_cache(&object, Some("harbor.example.com"))
}

fn public(name: &str, url: &str, priority: i64) -> Arc<Policy> {
    let spec = json!({ "type": "public", "name": name, "url": url, "routing": { "priority": priority } });
    Arc::new(cache(name, spec, "healthy").unwrap())
}

fn listed(policies: &[&Arc<Policy>], image: &str) -> Vec<String> {
    let alternatives = plan(policies, image, PullPolicy::IfNotPresent, DEFAULT);
    references(&alternatives).into_iter().map(str::to_owned).collect()
}

#[test]
fn images_of_the_upstream_are_offered_from_the_cache() {
    let hub = public("hub", "https://registry-1.docker.io", 1);
    let (original, cached) = ("docker.io/library/nginx:1", "harbor.example.com/hub/library/nginx:1");
    assert_eq!(listed(&[&hub], "nginx:1"), [original, cached]);
    assert_eq!(listed(&[&public("hub", "docker.io", -1)], "nginx:1"), [cached, original]);
    assert_eq!(listed(&[&hub], "quay.io/a/b:1"), ["quay.io/a/b:1"], "another registry");
    assert_eq!(listed(&[&hub], cached), [cached], "a Pod that names the cache itself");
    let team = public("team", "https://r.example:5000/", 1);
    assert_eq!(
        listed(&[&team], "r.example:5000/app:1"),
        ["r.example:5000/app:1", "harbor.example.com/team/app:1"]
    );
    // Harbor would ask r.example/team/v2/app for what Pods call r.example/team/app.
    let spec =
        json!({ "type": "public", "name": "x", "url": "r.example/team", "routing": { "priority": 1 } });
    assert_eq!(cache("x", spec, "healthy").unwrap_err().field, "spec.url");
    assert_eq!((hub.offered(), hub.problems().len()), (1, 0));
}

#[test]
fn a_cache_comes_after_replicated_sets_of_its_priority() {
    let cache = public("hub", "docker.io", 1);
    let set = replicated(ReplicatedImageSet, "my-app/ris", 1, &["docker.io", "ris.example.com"]);
    let list = listed(&[&cache, &set], "nginx:1");
    let at = |host: &str| list.iter().position(|one| one.starts_with(host)).unwrap();
    assert!(at("ris.example.com") < at("harbor.example.com"), "{list:?}");
    assert_eq!(list[0], "docker.io/library/nginx:1");
}

#[test]
fn an_unhealthy_cache_is_skipped_and_says_so() {
    let spec = json!({ "type": "public", "name": "hub", "url": "docker.io", "routing": { "priority": -1 } });
    for health in ["unhealthy", "unknown"] {
        let policy = Arc::new(cache("hub", spec.clone(), health).unwrap());
        assert_eq!(listed(&[&policy], "nginx:1"), ["docker.io/library/nginx:1"]);
        assert_eq!((policy.offered(), policy.problems().len()), (0, 1));
    }
}

#[test]
fn a_private_project_needs_a_secret_for_pods() {
    let mut spec = json!({
        "type": "private", "name": "team", "url": "https://r.example", "credentials": { "secretName": "s" },
        "routing": { "priority": -1 },
    });
    assert_eq!(cache("team", spec.clone(), "healthy").unwrap_err().field, "spec.routing.credentialSecret");
    spec["routing"]["credentialSecret"] = json!({ "name": "pull", "namespace": "harbor" });
    let policy = Arc::new(cache("team", spec, "healthy").unwrap());
    let alternatives = plan(&[&policy], "r.example/app:1", PullPolicy::IfNotPresent, DEFAULT);
    let first = &alternatives.list()[0];
    assert_eq!(first.reference.to_string(), "harbor.example.com/team/app:1");
    assert_eq!(first.secrets.iter().map(|one| one.secret.to_string()).collect::<Vec<_>>(), ["harbor/pull"]);
}
