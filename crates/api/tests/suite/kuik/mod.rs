//! What the kuik.enix.io kinds accept because kube-image-keeper acted on it, and what they refuse because it did not.

mod availability;
mod mirror;
mod replicated;

use serde_json::json;

use crate::refused::{Change, Refusal, change, refusal, without};

fn long(length: usize) -> String {
    "a".repeat(length)
}

/// What no kind lets through in its `filter`.
fn bad_filters() -> Vec<Refusal> {
    vec![
        refusal(change("/spec/filter/include/0", json!({})), "spec.filter.include[0]", "sets exactly one of"),
        refusal(
            change("/spec/filter/include/0", json!({ "annotation": "a", "label": "b" })),
            "spec.filter.include[0]",
            "write one item for each",
        ),
        refusal(
            change("/spec/filter/exclude", json!([{ "label": "a===b" }])),
            "spec.filter.exclude[0].label",
            "not a selector",
        ),
        refusal(
            change("/spec/filter/exclude", json!([{ "label": "a in (b" }])),
            "spec.filter.exclude[0].label",
            "key in (a,b)",
        ),
        refusal(
            change("/spec/filter/exclude", json!([{ "label": "a," }])),
            "spec.filter.exclude[0].label",
            "joined by commas",
        ),
        refusal(
            change("/spec/filter/exclude", json!([{ "annotation": format!("a={}", long(64)) }])),
            "spec.filter.exclude[0].annotation",
            "at most 63",
        ),
        refusal(
            change("/spec/filter/exclude", json!([{ "label": long(513) }])),
            "spec.filter.exclude[0].label",
            "512",
        ),
        refusal(
            change("/spec/filter/include", (0..17).map(|_| json!({ "label": "a" })).collect::<Vec<_>>()),
            "spec.filter.include",
            "must have at most 16 items",
        ),
        refusal(change("/spec/filter/include", "docker.io/.*"), "spec.filter.include", "array"),
        refusal(change("/spec/filter/includes", json!([])), "spec.filter.includes", "unknown field"),
    ]
}

/// What a kind that chooses images does not let through in either filter.
fn bad_image_filters() -> Vec<Refusal> {
    vec![
        refusal(
            change("/spec/filter/include/0/image", "nginx:["),
            "spec.filter.include[0].image",
            "check brackets",
        ),
        refusal(
            change("/spec/filter/include/0/image", "(?!latest).*"),
            "spec.filter.include[0].image",
            "no look-around",
        ),
        refusal(change("/spec/filter/include/0/image", long(129)), "spec.filter.include[0].image", "128"),
        refusal(
            change("/spec/imageFilter", json!({ "include": ["a"] })),
            "spec",
            "spec.imageFilter and spec.filter exclude each other",
        ),
        refusal(
            change("/spec/imageFilter", json!({ "include": ["*"] })),
            "spec.imageFilter.include[0]",
            "check brackets",
        ),
        refusal(
            change("/spec/imageFilter", json!({ "exclude": ["a)|(b"] })),
            "spec.imageFilter.exclude[0]",
            "check brackets",
        ),
        refusal(
            change("/spec/imageFilter", json!({ "include": vec!["a"; 17] })),
            "spec.imageFilter.include",
            "at most 16",
        ),
    ]
}

fn bad_registries(place: &'static str, registry: &'static str, path: &'static str) -> Vec<Refusal> {
    let at_registry = |value: &str| change(place, value);
    vec![
        refusal(at_registry("https://registry.example.com"), registry, "without a scheme"),
        refusal(at_registry("oci://registry.example.com/team"), registry, "without a scheme"),
        refusal(at_registry(""), registry, "registry must be a host"),
        refusal(at_registry("harbor"), registry, "a dot or a port"),
        refusal(at_registry("/registry.example.com"), registry, "registry must be a host"),
        refusal(at_registry("registry.example.com:port"), registry, "registry:5000"),
        refusal(at_registry("registry.example.com/Team"), registry, "optionally followed by a path"),
        refusal(at_registry("registry.example.com/../x"), registry, "optionally followed by a path"),
        refusal(at_registry("user@registry.example.com"), registry, "registry must be a host"),
    ]
    .into_iter()
    .chain(
        ["/Mirror", "/mirror:v1", "/a@sha256:00", "../up", "/a/../../b", "/team/*", "/a b", "-dash"].map(
            |value| refusal(change(path_pointer(place), value), path, "path must be made of lower-case"),
        ),
    )
    .collect()
}

fn path_pointer(registry_pointer: &str) -> &'static str {
    match registry_pointer {
        "/spec/mirrors/0/registry" => "/spec/mirrors/0/path",
        _ => "/spec/upstreams/0/path",
    }
}

/// Values that made kube-image-keeper do something sensible, and so are not for us to refuse.
fn good_entries(registry: &'static str, path: &'static str) -> Vec<Change> {
    [
        "registry.example.com",
        "registry.example.com/",
        "registry.example.com/team/images",
        "Registry.Example.Com:443",
        "localhost",
        "localhost:5000",
        "registry:5000/team",
        "10.0.0.7:5000",
        "[::1]:5000",
        "[2001:db8::7]/team",
        "xn--bcher-kva.example",
    ]
    .map(|value| change(registry, value))
    .into_iter()
    .chain(
        ["", "/", "mirror", "/mirror/", "/a//b", "/a/./b", "/a/../b", "a/b_c/d__e/f-g/h.i", "/2024"]
            .map(|value| change(path, value)),
    )
    .collect()
}

fn good_filters() -> Vec<Change> {
    [
        "app",
        "!app",
        "! app",
        "app=web",
        "app==web",
        "app = web",
        "app!=web",
        "app=",
        "app in (a,b)",
        "app in(a)",
        "app in ()",
        "app notin (a, b)",
        "app in (,a)",
        "tier>3",
        "example.com/app=web,!legacy",
        " app , tier in (a , b) ",
        "in",
        "notin in (in)",
        "",
    ]
    .map(|selector| change("/spec/filter/exclude", json!([{ "label": selector }])))
    .into_iter()
    .chain([change("/spec/filter", json!({ "exclude": [] })), change("/spec/filter", json!({}))])
    .collect()
}

fn only_on_cluster_wide_kinds(field: &'static str, at: &'static str) -> Vec<Refusal> {
    vec![
        refusal(without(at), field, "must name the namespace of the Secret"),
        refusal(change(at, ""), field, "has no namespace of its own"),
    ]
}
