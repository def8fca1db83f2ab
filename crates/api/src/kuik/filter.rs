//! Which images, and the images of which Pods, an object applies to.

use kube::core::Rule;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::schema::{list_of, regular_expression, rules, selector};

const MAX_ITEMS: usize = 16;
const MAX_PATTERN_LENGTH: usize = 128;
const MAX_SELECTOR_LENGTH: usize = 512;

/// Images by regular expressions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ImageFilter {
    /// Regular expressions, each compared with the whole reference. An image is chosen if any of them matches. Empty:
    /// every image, provided that `exclude` is not empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "patterns")]
    pub include: Vec<String>,
    /// Regular expressions, each compared with the whole reference. An image that any of them matches is left out,
    /// whatever `include` says.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "patterns")]
    pub exclude: Vec<String>,
}

impl ImageFilter {
    pub fn is_empty(&self) -> bool {
        self.include.is_empty() && self.exclude.is_empty()
    }
}

fn patterns(_: &mut SchemaGenerator) -> Schema {
    list_of(&regular_expression(MAX_PATTERN_LENGTH), MAX_ITEMS)
}

/// Images, and Pods by their labels, annotations and namespaces.
///
/// Items are grouped by what they look at. Within a group any `include` may match, and every group must match. A group
/// without an `include` matches everything. Any `exclude` that matches leaves the candidate out.
///
/// What an item may look at depends on the kind, and so does the schema: each kind names one of the functions below.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Filter {
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub include: Vec<FilterItem>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<FilterItem>,
}

/// One thing to look at. Exactly one field is set; an empty text is set too, and selects nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct FilterItem {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub annotation: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
}

impl Filter {
    pub fn is_empty(&self) -> bool {
        self.include.is_empty() && self.exclude.is_empty()
    }
}

/// Schema of a cluster-wide kind that chooses images.
pub(super) fn of_images_in_cluster(_: &mut SchemaGenerator) -> Schema {
    filter(Images::Chosen, Namespaces::All)
}

/// Schema of a namespaced kind that chooses images.
pub(super) fn of_images_in_namespace(_: &mut SchemaGenerator) -> Schema {
    filter(Images::Chosen, Namespaces::Own)
}

/// Schema of a cluster-wide kind whose images are chosen elsewhere.
pub(super) fn of_pods_in_cluster(_: &mut SchemaGenerator) -> Schema {
    filter(Images::PerUpstream, Namespaces::All)
}

/// Schema of a namespaced kind whose images are chosen elsewhere.
pub(super) fn of_pods_in_namespace(_: &mut SchemaGenerator) -> Schema {
    filter(Images::PerUpstream, Namespaces::Own)
}

/// For kinds that have both filters: only one of them may be used.
pub(super) fn one_filter_only() -> Rule {
    Rule::new(
        "!(has(self.imageFilter) && (has(self.imageFilter.include) || has(self.imageFilter.exclude)) && \
         has(self.filter) && (has(self.filter.include) || has(self.filter.exclude)))",
    )
    .message(
        "spec.imageFilter and spec.filter exclude each other: move the patterns of imageFilter into filter.include and filter.exclude, each as an item of the form {image: pattern}",
    )
}

#[derive(Clone, Copy, PartialEq)]
enum Images {
    Chosen,
    PerUpstream,
}

#[derive(Clone, Copy, PartialEq)]
enum Namespaces {
    All,
    Own,
}

fn filter(images: Images, namespaces: Namespaces) -> Schema {
    let list = |description: &str| {
        let mut list = list_of(&item(images, namespaces), MAX_ITEMS);
        list.insert("description".to_owned(), description.into());
        list
    };
    json_schema!({
        "type": "object",
        "properties": {
            "include": list(
                "What is chosen. Items that look at the same thing are alternatives; different things must all match. What no item looks at is chosen."
            ),
            "exclude": list("What is left out, whatever `include` says."),
        },
    })
}

fn item(images: Images, namespaces: Namespaces) -> Schema {
    let mut item = json_schema!({
        "type": "object",
        "description": "One thing to look at. Exactly one field is set.",
        "properties": {
            "image": described(
                regular_expression(MAX_PATTERN_LENGTH),
                match images {
                    Images::Chosen => "Regular expression for the whole image reference, registry and tag included.",
                    Images::PerUpstream => "Not for this kind: images are chosen by `spec.upstreams[].imageFilter`.",
                },
            ),
            "label": described(selector(MAX_SELECTOR_LENGTH), "Selector for the labels of the Pod, such as `app=web` or `tier in (a,b)`."),
            "annotation": described(
                selector(MAX_SELECTOR_LENGTH),
                "Selector for the annotations of the Pod, written like one for labels.",
            ),
        },
    });
    let mut keys = vec!["image", "label", "annotation"];
    if namespaces == Namespaces::All {
        keys.push("namespace");
        let namespace = described(
            regular_expression(MAX_PATTERN_LENGTH),
            "Regular expression for the whole name of the Pod's namespace.",
        );
        if let Some(properties) = item.get_mut("properties").and_then(|properties| properties.as_object_mut())
        {
            properties.insert("namespace".to_owned(), namespace.to_value());
        }
    }
    let mut item_rules = vec![exactly_one_of(&keys)];
    if images == Images::PerUpstream {
        item_rules.push(
            Rule::new("!has(self.image)")
                .message("image cannot be used in the filter of this kind: move the pattern to spec.upstreams[].imageFilter")
                .field_path(".image"),
        );
    }
    item.insert("x-kubernetes-validations".to_owned(), rules(item_rules));
    item
}

fn exactly_one_of(keys: &[&str]) -> Rule {
    let present = keys.iter().map(|key| match *key {
        // A reserved word of the rule language, which is written with underscores around it.
        "namespace" => "has(self.__namespace__)".to_owned(),
        key => format!("has(self.{key})"),
    });
    let present = present.collect::<Vec<_>>().join(", ");
    Rule::new(format!("[{present}].filter(present, present).size() == 1")).message(&*format!(
        "an item of filter.include or filter.exclude sets exactly one of {}: write one item for each",
        keys.join(", ")
    ))
}

fn described(mut schema: Schema, description: &str) -> Schema {
    schema.insert("description".to_owned(), description.into());
    schema
}
