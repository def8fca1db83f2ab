//! Every field is explained, in words of our own.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{
    LocalObjectReference, NodeSelector, SecretKeySelector, SecretReference, Toleration,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, LabelSelector, Time};
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::Value;

use super::{walk, walk_all};

#[test]
fn every_field_is_described() {
    walk_all(|path, schema| {
        // Plain values of lists and maps are described by the list or map itself.
        let is_plain_item = path.ends_with("[]") || path.ends_with(".*");
        if path.contains('|') || (is_plain_item && schema["type"] != "object") {
            return;
        }
        let description = schema["description"].as_str().unwrap_or_default();
        assert!(description.len() > 3, "{path}: no description");
        assert!(description.ends_with(['.', ')']), "{path}: {description}");
        assert!(!description.contains("Auto-generated"), "{path}: {description}");
        assert!(!description.replace("\n\n", "").contains('\n'), "{path}: wrapped lines in {description}");
    });
}

#[test]
fn no_description_is_that_of_kubernetes() {
    let mut theirs = BTreeSet::new();
    for schema in [
        foreign::<Toleration>(),
        foreign::<NodeSelector>(),
        foreign::<LocalObjectReference>(),
        foreign::<SecretReference>(),
        foreign::<SecretKeySelector>(),
        foreign::<LabelSelector>(),
        foreign::<Quantity>(),
        foreign::<Condition>(),
        foreign::<Time>(),
    ] {
        walk(&schema, "", &mut |_, schema| {
            theirs.extend(schema["description"].as_str().map(str::to_owned));
        });
    }
    assert!(theirs.len() > 20, "the texts of Kubernetes were not found");
    walk_all(|path, schema| {
        let description = schema["description"].as_str().unwrap_or_default();
        assert!(!theirs.contains(description), "{path}: {description}");
        assert!(!description.contains("More info"), "{path}: {description}");
    });
}

fn foreign<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::openapi3().with(|settings| settings.inline_subschemas = true);
    settings.into_generator().into_root_schema_for::<T>().to_value()
}
