//! What routing promises: the documented examples to the letter, the edge cases, and properties of any list.

mod caches;
mod choosing;
mod compiling;
mod examples;
mod limits;
mod listing;
mod paths;
mod properties;
mod spellings;
mod tenants;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use fairlead_domain::cause::Cause;
use fairlead_domain::reference::{HostPattern, Reference};
use fairlead_domain::selector::PodFacts;
use fairlead_domain::verdict::Verdict;
use serde_json::{Value, json};

use super::identity::PolicyKind::{
    self, ClusterImageSetMirror, ClusterReplicatedImageSet, ImageSetMirror, ReplicatedImageSet,
};
use super::{Alternatives, Index, Policy, PolicyError, PullPolicy, Rules};

const HONOUR: Rules = Rules { rewrite_on_never: false, honor_priorities_on_always: true };
const DEFAULT: Rules = Rules { rewrite_on_never: false, honor_priorities_on_always: false };
const DIGEST: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// Compiles a manifest as it would stand in a file.
fn compile(manifest: &Value) -> Result<Policy, PolicyError> {
    fn read<T: serde::de::DeserializeOwned>(manifest: &Value) -> T {
        serde_json::from_value(manifest.clone()).unwrap()
    }
    match manifest["kind"].as_str().unwrap() {
        "ClusterImageSetMirror" => Policy::cluster_mirror(&read(manifest)),
        "ImageSetMirror" => Policy::mirror(&read(manifest)),
        "ClusterReplicatedImageSet" => Policy::cluster_replicated(&read(manifest)),
        "ReplicatedImageSet" => Policy::replicated(&read(manifest)),
        other => panic!("{other} takes no part in routing"),
    }
}

/// `name`, or `namespace/name` for namespaced kinds.
fn manifest(kind: PolicyKind, name: &str, spec: Value) -> Value {
    let (namespace, name) = match name.split_once('/') {
        Some((namespace, name)) => (json!(namespace), name),
        None => (Value::Null, name),
    };
    let mut manifest = json!({
        "apiVersion": "kuik.enix.io/v1alpha1", "kind": kind.name(),
        "metadata": { "name": name, "namespace": namespace, "uid": format!("uid-{name}") },
    });
    manifest["spec"] = spec;
    manifest
}

fn policy(kind: PolicyKind, name: &str, spec: Value) -> Arc<Policy> {
    Arc::new(compile(&manifest(kind, name, spec)).unwrap())
}

/// A mirror set for all images, with mirrors written as `registry/path`.
fn mirror(kind: PolicyKind, name: &str, priority: i64, places: &[&str]) -> Arc<Policy> {
    let mirrors: Vec<Value> = places.iter().map(|place| entry(place)).collect();
    policy(
        kind,
        name,
        json!({ "priority": priority, "imageFilter": { "include": [".*"] }, "mirrors": mirrors }),
    )
}

/// `registry/path`, `registry/path secret` or `registry/path namespace/secret`.
fn entry(text: &str) -> Value {
    let (place, secret) = text.split_once(' ').unwrap_or((text, ""));
    let (registry, path) = place.split_once('/').unwrap_or((place, ""));
    let mut entry = json!({ "registry": registry, "path": path });
    if !secret.is_empty() {
        let (namespace, name) = secret.split_once('/').map_or((None, secret), |(one, two)| (Some(one), two));
        entry["credentialSecret"] = json!({ "name": name, "namespace": namespace });
    }
    entry
}

/// A replicated set whose upstreams, written like mirrors, recognise everything; a leading `-` discards one.
fn replicated(kind: PolicyKind, name: &str, priority: i64, places: &[&str]) -> Arc<Policy> {
    let upstream = |place: &&str| {
        let mut upstream = entry(place.trim_start_matches('-'));
        upstream["imageFilter"] = json!({ "include": [".*"] });
        upstream["discardAlternative"] = json!(place.starts_with('-'));
        upstream
    };
    let upstreams: Vec<Value> = places.iter().map(upstream).collect();
    policy(kind, name, json!({ "priority": priority, "upstreams": upstreams }))
}

fn index(policies: &[&Arc<Policy>]) -> Index {
    Index::new(policies.iter().map(|policy| Arc::clone(policy)))
}

/// A Pod in the namespace `my-app` without labels.
fn plan(policies: &[&Arc<Policy>], image: &str, pull: PullPolicy, rules: Rules) -> Alternatives {
    plan_in(&index(policies), "my-app", image, pull, rules)
}

fn plan_in(index: &Index, namespace: &str, image: &str, pull: PullPolicy, rules: Rules) -> Alternatives {
    let none: BTreeMap<String, String> = BTreeMap::new();
    let pod = PodFacts { namespace, labels: &none, annotations: &none };
    index.for_pod(&pod).alternatives(&Reference::parse(image).unwrap(), pull, &rules)
}

fn references(alternatives: &Alternatives) -> Vec<&str> {
    alternatives.list().iter().map(|one| one.reference.as_str()).collect()
}

/// The list as lines, for a Pod that pulls if the image is not present.
fn listed(policies: &[&Arc<Policy>], image: &str) -> String {
    lines(&plan(policies, image, PullPolicy::IfNotPresent, DEFAULT))
}

/// One line for each alternative: its reference and all its origins.
fn lines(alternatives: &Alternatives) -> String {
    let mut lines = String::new();
    for one in alternatives.list() {
        let origins = std::iter::once(&one.origin).chain(&one.also);
        let origins: Vec<String> = origins.map(ToString::to_string).collect();
        writeln!(lines, "{} ({})", one.reference, origins.join(" + ")).unwrap();
    }
    lines
}
