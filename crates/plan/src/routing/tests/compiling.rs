//! What is wrong with an object, and how much of it is left out for that.

use super::*;

fn error(kind: PolicyKind, name: &str, spec: Value) -> PolicyError {
    compile(&manifest(kind, name, spec)).unwrap_err()
}

#[test]
fn a_broken_filter_disables_the_object_and_names_the_field() {
    for (kind, filter, field) in [
        (
            ClusterImageSetMirror,
            json!({ "include": [{ "image": "ok" }, { "image": "(" }] }),
            "spec.filter.include[1].image",
        ),
        (
            ClusterImageSetMirror,
            json!({ "exclude": [{ "namespace": "*" }] }),
            "spec.filter.exclude[0].namespace",
        ),
        (ImageSetMirror, json!({ "include": [{ "label": "a===b" }] }), "spec.filter.include[0].label"),
        (
            ClusterReplicatedImageSet,
            json!({ "include": [{ "annotation": "a in" }] }),
            "spec.filter.include[0].annotation",
        ),
        (
            ReplicatedImageSet,
            json!({ "exclude": [{ "label": "ok" }, { "label": "-" }] }),
            "spec.filter.exclude[1].label",
        ),
    ] {
        let name = if kind.is_cluster_scoped() { "x" } else { "my-app/x" };
        let error = error(kind, name, json!({ "filter": filter }));
        assert_eq!(error.field, field);
        assert!(error.is_filter(), "{error}");
        assert!(error.to_string().starts_with(&format!("{field}: ")), "{error}");
        assert!(!error.message.contains(field), "{error}");
    }
    let error = error(ClusterImageSetMirror, "x", json!({ "imageFilter": { "exclude": ["a", "a)|(b"] } }));
    assert_eq!(error.field, "spec.imageFilter.exclude[1]");
    assert!(error.is_filter());
    assert_eq!(
        error.to_string(),
        "spec.imageFilter.exclude[1]: regular expression \"a)|(b\": character 2: this ')' closes nothing; write '\\)' for the character"
    );
}

#[test]
fn an_object_of_the_wrong_shape_is_refused() {
    let two = json!({ "filter": { "include": [{ "image": "a", "label": "b" }] } });
    let none = json!({ "filter": { "exclude": [{}] } });
    let image = json!({ "filter": { "include": [{ "image": "a" }] } });
    let namespace = json!({ "filter": { "include": [{ "namespace": "a" }] } });
    for (kind, name, spec, field) in [
        (ClusterImageSetMirror, "x", two, "spec.filter.include[0]"),
        (ClusterImageSetMirror, "x", none, "spec.filter.exclude[0]"),
        (ClusterReplicatedImageSet, "x", image.clone(), "spec.filter.include[0].image"),
        (ReplicatedImageSet, "my-app/x", image, "spec.filter.include[0].image"),
        (ImageSetMirror, "my-app/x", namespace.clone(), "spec.filter.include[0].namespace"),
        (ReplicatedImageSet, "my-app/x", namespace, "spec.filter.include[0].namespace"),
        (ImageSetMirror, "x", json!({}), "metadata.namespace"),
        (ClusterImageSetMirror, "", json!({}), "metadata.name"),
    ] {
        let error = error(kind, name, spec);
        assert_eq!(error.field, field, "{error}");
        assert!(!error.is_filter(), "{error}");
    }
}

#[test]
fn an_object_without_a_spec_does_nothing() {
    // The specification of a ProxyCache is required.
    for kind in PolicyKind::ALL.into_iter().filter(|kind| *kind != PolicyKind::ProxyCache) {
        let name = if kind.is_cluster_scoped() { "x" } else { "my-app/x" };
        let mut manifest = manifest(kind, name, Value::Null);
        manifest.as_object_mut().unwrap().remove("spec");
        let policy = Arc::new(compile(&manifest).unwrap());
        assert_eq!((policy.offered(), policy.secrets().count(), policy.problems()), (0, 0, &[][..]));
        assert_eq!(references(&plan(&[&policy], "nginx:1", PullPolicy::IfNotPresent, DEFAULT)).len(), 1);
    }
}

#[test]
fn a_broken_entry_is_left_out_alone() {
    let set = mirror(
        ClusterImageSetMirror,
        "m",
        -1,
        &["good.io/a", "", "https://bad.io", "good.io/../..", "secret.io noname", "good.io/Upper", "also.io"],
    );
    let fields: Vec<&str> = set.problems().iter().map(|problem| problem.field.as_str()).collect();
    assert_eq!(
        fields,
        [
            "spec.mirrors[1].registry",
            "spec.mirrors[2].registry",
            "spec.mirrors[3].path",
            "spec.mirrors[4].credentialSecret.namespace",
            "spec.mirrors[5].path"
        ]
    );
    assert!(set.problems().iter().all(|problem| problem.message.len() > 20), "{:?}", set.problems());
    assert_eq!(set.offered(), 2);
    assert_eq!(
        listed(&[&set], "quay.io/x:1"),
        "good.io/a/x:1 (ClusterImageSetMirror/m, mirrors[0])\nalso.io/x:1 (ClusterImageSetMirror/m, mirrors[6])\nquay.io/x:1 (original)\n"
    );
}

#[test]
fn an_upstream_with_a_broken_filter_neither_recognises_nor_serves() {
    let upstreams = json!([
        { "registry": "quay.io", "path": "/a", "imageFilter": { "include": ["/a/.*"], "exclude": ["ok", "("] } },
        { "registry": "ghcr.io", "path": "/b", "imageFilter": { "include": ["/b/.*"] } },
        { "registry": "r.io", "path": "/c", "discardAlternative": true },
    ]);
    let set = policy(ClusterReplicatedImageSet, "r", json!({ "upstreams": upstreams }));
    assert_eq!(set.offered(), 1, "discarded ones do not count");
    assert_eq!(
        set.problems().iter().map(ToString::to_string).collect::<Vec<_>>(),
        [
            "spec.upstreams[0].imageFilter.exclude[1]: regular expression \"(\": character 1: this '(' is never closed; write '\\(' for the character"
        ]
    );
    assert_eq!(
        references(&plan(&[&set], "quay.io/a/x:1", PullPolicy::IfNotPresent, DEFAULT)),
        ["quay.io/a/x:1"]
    );
    assert_eq!(
        references(&plan(&[&set], "ghcr.io/b/x:1", PullPolicy::IfNotPresent, DEFAULT)),
        ["ghcr.io/b/x:1"]
    );
}

#[test]
fn secrets_are_named_once_and_namespaced_objects_keep_to_their_namespace() {
    let names = |policy: &Arc<Policy>| policy.secrets().map(ToString::to_string).collect::<Vec<_>>();
    let cluster = mirror(ClusterImageSetMirror, "m", 0, &["a.io b/two", "b.io a/one", "c.io b/two", "d.io"]);
    assert_eq!(names(&cluster), ["a/one", "b/two"]);
    let own = replicated(ReplicatedImageSet, "my-app/r", 0, &["a.io kube-system/admin", "-b.io mine"]);
    assert_eq!(names(&own), ["my-app/admin", "my-app/mine"]);
    assert!(own.problems().is_empty());
}

#[test]
fn both_filters_at_once() {
    let spec = json!({
        "filter": { "include": [{ "image": "quay.io/.*" }] }, "imageFilter": { "include": ["("] },
        "mirrors": [{ "registry": "m.io" }],
    });
    let set = policy(ClusterImageSetMirror, "m", spec);
    assert_eq!(
        plan(&[&set], "quay.io/a:1", PullPolicy::IfNotPresent, DEFAULT).list().len(),
        2,
        "the unified one counts"
    );
}
