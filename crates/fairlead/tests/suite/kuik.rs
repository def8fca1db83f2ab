//! A cluster as kube-image-keeper 2 leaves it behind: its five definitions, which are looser than ours, and objects
//! with finalizers, recorded state, and values that it accepted but could not act on.

use serde_json::{Value, json};

struct Kind {
    name: &'static str,
    plural: &'static str,
    short: &'static str,
    scope: &'static str,
    spec: Value,
    status: Value,
}

pub const FINALIZERS: [&str; 2] = ["kuik.enix.io/mirror-cleanup", "kuik.enix.io/secret-cleanup"];

/// The definitions as kuik's chart installs them: by Helm, but outside the release, so without any mark of ownership.
pub fn definitions() -> Vec<Value> {
    let mirrors = || (mirror_spec(), mirror_status());
    let upstreams = || (upstream_spec(), json!({ "type": "object" }));
    [
        ("ClusterImageSetMirror", "clusterimagesetmirrors", "cism", "Cluster", mirrors()),
        ("ImageSetMirror", "imagesetmirrors", "ism", "Namespaced", mirrors()),
        ("ClusterReplicatedImageSet", "clusterreplicatedimagesets", "cris", "Cluster", upstreams()),
        ("ReplicatedImageSet", "replicatedimagesets", "ris", "Namespaced", upstreams()),
        (
            "ClusterImageSetAvailability",
            "clusterimagesetavailabilities",
            "cisa",
            "Cluster",
            (availability_spec(), availability_status()),
        ),
    ]
    .into_iter()
    .map(|(name, plural, short, scope, (spec, status))| {
        definition(&Kind { name, plural, short, scope, spec, status })
    })
    .collect()
}

/// Objects that people made and kuik worked on. The second one holds what blinded kuik itself: days as a unit, and a
/// priority below zero.
pub fn objects(namespace: &str) -> Vec<Value> {
    let secret = json!({ "name": "push", "namespace": "registry" });
    vec![
        json!({
            "apiVersion": "kuik.enix.io/v1alpha1",
            "kind": "ClusterImageSetMirror",
            "metadata": { "name": "everything", "finalizers": FINALIZERS },
            "spec": {
                "priority": -1,
                "imageFilter": { "include": [".*"], "exclude": ["registry\\.example\\.com/.*"] },
                "cleanup": { "enabled": true, "retention": "168h" },
                "mirrors": [{ "registry": "registry.example.com", "path": "/mirror", "credentialSecret": secret }],
            },
            "status": { "matchingImages": [{
                "image": "docker.io/library/nginx:1.29",
                "mirrors": [{ "image": "registry.example.com/mirror/library/nginx:1.29", "mirroredAt": "2026-05-04T03:02:01Z" }],
            }] },
        }),
        json!({
            "apiVersion": "kuik.enix.io/v1alpha1",
            "kind": "ImageSetMirror",
            "metadata": { "name": "loose", "namespace": namespace, "finalizers": [FINALIZERS[0]] },
            "spec": {
                "imageFilter": { "include": ["docker.io/.*"] },
                "cleanup": { "enabled": true, "retention": "7d" },
                "mirrors": [{ "registry": "https://registry.example.com", "path": "/team", "priority": -3 }],
            },
        }),
        json!({
            "apiVersion": "kuik.enix.io/v1alpha1",
            "kind": "ClusterReplicatedImageSet",
            "metadata": { "name": "thanos", "finalizers": [FINALIZERS[1]] },
            "spec": { "upstreams": [
                { "registry": "docker.io", "path": "/thanosio/", "imageFilter": { "include": ["/thanosio/.*"] } },
                { "registry": "quay.io", "path": "/thanos/" },
            ] },
        }),
        json!({
            "apiVersion": "kuik.enix.io/v1alpha1",
            "kind": "ReplicatedImageSet",
            "metadata": { "name": "empty", "namespace": namespace },
        }),
        json!({
            "apiVersion": "kuik.enix.io/v1alpha1",
            "kind": "ClusterImageSetAvailability",
            "metadata": { "name": "all" },
            "spec": { "unusedImageExpiry": "720h", "imageFilter": { "include": [".*"] } },
            "status": { "imageCount": 1, "images": [{ "image": "docker.io/library/nginx:1.29", "status": "Available" }] },
        }),
    ]
}

fn definition(kind: &Kind) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{}.kuik.enix.io", kind.plural) },
        "spec": {
            "group": "kuik.enix.io",
            "scope": kind.scope,
            "names": {
                "kind": kind.name,
                "listKind": format!("{}List", kind.name),
                "plural": kind.plural,
                "singular": kind.name.to_lowercase(),
                "shortNames": [kind.short],
            },
            "versions": [{
                "name": "v1alpha1",
                "served": true,
                "storage": true,
                "subresources": { "status": {} },
                "schema": { "openAPIV3Schema": {
                    "type": "object",
                    "properties": {
                        "apiVersion": text(),
                        "kind": text(),
                        "metadata": { "type": "object" },
                        "spec": kind.spec,
                        "status": kind.status,
                    },
                } },
            }],
        },
    })
}

fn text() -> Value {
    json!({ "type": "string" })
}

fn time() -> Value {
    json!({ "type": "string", "format": "date-time" })
}

fn object(properties: &Value) -> Value {
    json!({ "type": "object", "properties": properties })
}

fn list(items: &Value) -> Value {
    json!({ "type": "array", "items": items })
}

fn map_list_by_image(items: &Value) -> Value {
    json!({ "type": "array", "items": items, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["image"] })
}

fn image_filter() -> Value {
    object(&json!({ "include": list(&text()), "exclude": list(&text()) }))
}

fn filter() -> Value {
    let item = || {
        list(&object(&json!({ "image": text(), "label": text(), "annotation": text(), "namespace": text() })))
    };
    object(&json!({ "include": item(), "exclude": item() }))
}

fn secret() -> Value {
    object(&json!({ "name": text(), "namespace": text() }))
}

fn mirror_spec() -> Value {
    let cleanup = || object(&json!({ "enabled": { "type": "boolean" }, "retention": text() }));
    object(&json!({
        "priority": { "type": "integer" },
        "imageFilter": image_filter(),
        "filter": filter(),
        "cleanup": cleanup(),
        "mirrors": list(&object(&json!({
            "registry": text(),
            "path": text(),
            "priority": { "type": "integer" },
            "credentialSecret": secret(),
            "cleanup": cleanup(),
        }))),
    }))
}

fn mirror_status() -> Value {
    let copy = json!({
        "type": "object",
        "required": ["image"],
        "properties": { "image": text(), "mirroredAt": time(), "lastError": text() },
    });
    object(&json!({ "matchingImages": map_list_by_image(&json!({
        "type": "object",
        "required": ["image"],
        "properties": { "image": text(), "unusedSince": time(), "mirrors": map_list_by_image(&copy) },
    })) }))
}

fn upstream_spec() -> Value {
    object(&json!({
        "priority": { "type": "integer" },
        "filter": filter(),
        "upstreams": list(&json!({
            "type": "object",
            "required": ["registry", "path"],
            "properties": {
                "registry": text(),
                "path": text(),
                "imageFilter": image_filter(),
                "priority": { "type": "integer" },
                "discardAlternative": { "type": "boolean" },
                "credentialSecret": secret(),
            },
        })),
    }))
}

fn availability_spec() -> Value {
    object(&json!({ "unusedImageExpiry": text(), "imageFilter": image_filter(), "filter": filter() }))
}

fn availability_status() -> Value {
    object(&json!({
        "imageCount": { "type": "integer" },
        "images": map_list_by_image(&json!({
            "type": "object",
            "required": ["image", "status"],
            "properties": {
                "image": text(),
                "status": { "type": "string", "default": "Scheduled" },
                "unusedSince": time(),
                "lastError": text(),
                "lastMonitor": time(),
                "original": { "type": "boolean" },
            },
        })),
    }))
}
