//! What the schemas of all groups have in common: patterns, rules with their messages, and our own schemas of the
//! Kubernetes types that are embedded.
//!
//! Rules are preferred to bare patterns for what people write: both are enforced by the API server, but only a rule
//! can say how to put it right.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSON, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use kube::core::Rule;
use schemars::{Schema, json_schema};
use serde_json::{Value, json};

mod embedded;
mod text;

pub use embedded::{node_labels, node_selector, secret_references, timestamp, tolerations};
pub use text::{
    MAX_NAME_LENGTH, digest, image_reference, object_name, registry, regular_expression, repository_path,
    selector,
};

/// A rule in the form that schemas carry, for schemas that are written out rather than derived.
pub fn rules(rules: impl IntoIterator<Item = Rule>) -> Value {
    json!(rules.into_iter().collect::<Vec<_>>())
}

/// A list of at most `max_items` values of one schema. It is replaced as a whole when it is applied.
pub fn list_of(items: &Schema, max_items: usize) -> Schema {
    json_schema!({
        "type": "array",
        "items": items,
        "maxItems": max_items,
        "x-kubernetes-list-type": "atomic",
    })
}

/// Adjusts a derived schema to what the API server and people reading it expect.
///
/// - An explicit `null` means the same as leaving the field out, so no field is nullable: the API server then drops it.
/// - Unsigned formats are unknown to Kubernetes; the minimum that accompanies them says the same.
/// - A list that says nothing of merging is replaced as a whole when it is applied; saying so costs nothing.
/// - Line breaks inside a paragraph of a description are where a source file wrapped, nothing more.
pub(crate) fn finish(schema: &mut JSONSchemaProps) {
    schema.nullable = None;
    schema.title = None;
    schema.default = schema.default.take().filter(|JSON(default)| !default.is_null());
    if let Some(values) = &mut schema.enum_ {
        values.retain(|JSON(value)| !value.is_null());
    }
    schema.format = match schema.format.take().as_deref() {
        Some("uint8" | "uint16" | "int8" | "int16") => Some("int32".to_owned()),
        Some("uint32" | "uint64" | "uint") => Some("int64".to_owned()),
        other => other.map(str::to_owned),
    };
    if schema.type_.as_deref() == Some("array") {
        schema.x_kubernetes_list_type.get_or_insert_with(|| "atomic".to_owned());
    }
    if let Some(description) = &mut schema.description {
        *description = unwrap_lines(description);
    }
    for child in children(schema) {
        finish(child);
    }
}

fn unwrap_lines(text: &str) -> String {
    text.split("\n\n")
        .map(|paragraph| paragraph.lines().map(str::trim).collect::<Vec<_>>().join(" "))
        .collect::<Vec<_>>()
        .join("\n\n")
}

fn children(schema: &mut JSONSchemaProps) -> impl Iterator<Item = &mut JSONSchemaProps> {
    let items = schema.items.iter_mut().flat_map(|items| match items {
        JSONSchemaPropsOrArray::Schema(schema) => std::slice::from_mut(schema.as_mut()),
        JSONSchemaPropsOrArray::Schemas(schemas) => schemas.as_mut_slice(),
    });
    let values = schema.additional_properties.iter_mut().filter_map(|values| match values {
        JSONSchemaPropsOrBool::Schema(schema) => Some(schema.as_mut()),
        JSONSchemaPropsOrBool::Bool(_) => None,
    });
    schema
        .properties
        .iter_mut()
        .flat_map(|properties| properties.values_mut())
        .chain(items)
        .chain(values)
        .chain(schema.not.as_deref_mut())
        .chain(schema.all_of.iter_mut().flatten())
        .chain(schema.any_of.iter_mut().flatten())
        .chain(schema.one_of.iter_mut().flatten())
}

/// Makes a missing `spec` the same as an empty one, for the kinds whose originals admitted objects without it.
///
/// The derive macro has no switch for it. The type must be `Default` and carry `#[serde(remote = "Self")]`, which makes
/// serde write its code as plain functions, and leaves the traits to this macro. It must derive `JsonSchema`, and bring
/// its rules by `#[schemars(extend(…))]`: `KubeSchema` copies the type, and nothing would use the functions of the
/// copy. The definition then follows by itself: `spec` is required exactly where an object without it cannot be read.
macro_rules! spec_may_be_absent {
    ($spec:ty) => {
        impl serde::Serialize for $spec {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                <$spec>::serialize(self, serializer)
            }
        }

        impl<'de> serde::Deserialize<'de> for $spec {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Visitor;

                impl<'de> serde::de::Visitor<'de> for Visitor {
                    type Value = $spec;

                    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        f.write_str("a spec")
                    }

                    fn visit_none<E: serde::de::Error>(self) -> Result<Self::Value, E> {
                        Ok(Default::default())
                    }

                    fn visit_unit<E: serde::de::Error>(self) -> Result<Self::Value, E> {
                        Ok(Default::default())
                    }

                    fn visit_some<D: serde::Deserializer<'de>>(
                        self,
                        some: D,
                    ) -> Result<Self::Value, D::Error> {
                        <$spec>::deserialize(some)
                    }
                }

                deserializer.deserialize_option(Visitor)
            }
        }
    };
}
pub(crate) use spec_may_be_absent;
