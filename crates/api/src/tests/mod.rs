//! What holds for every kind of every group.

mod examples;
mod golden;
mod reference;
mod structure;
mod texts;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::Value;

/// A directory of the repository.
fn repository(path: &str) -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// The schema of each version of a kind, as JSON.
fn schemas(crd: &CustomResourceDefinition) -> Vec<Value> {
    let schemas = crd.spec.versions.iter().map(|version| {
        let schema = version.schema.as_ref().and_then(|schema| schema.open_api_v3_schema.as_ref());
        serde_json::to_value(schema.expect("every version has a schema")).unwrap()
    });
    schemas.collect()
}

/// Calls `look` with every schema below `schema`, itself included, and with the path of fields that leads there.
fn walk(schema: &Value, path: &str, look: &mut impl FnMut(&str, &Value)) {
    look(path, schema);
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        walk(property, &format!("{path}.{name}"), look);
    }
    for (key, suffix) in [("items", "[]"), ("additionalProperties", ".*")] {
        if schema[key].is_object() {
            walk(&schema[key], &format!("{path}{suffix}"), look);
        }
    }
    for key in ["allOf", "anyOf", "oneOf"] {
        for (at, variant) in schema[key].as_array().into_iter().flatten().enumerate() {
            walk(variant, &format!("{path}|{key}{at}"), look);
        }
    }
    if schema["not"].is_object() {
        walk(&schema["not"], &format!("{path}|not"), look);
    }
}

/// [`walk`] over every schema of every kind; paths begin with the kind.
fn walk_all(mut look: impl FnMut(&str, &Value)) {
    for crd in crate::crds::all() {
        for schema in schemas(&crd) {
            walk(&schema, &crd.spec.names.kind, &mut look);
        }
    }
}
