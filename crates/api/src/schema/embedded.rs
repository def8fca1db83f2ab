//! Kubernetes types that our kinds embed, with descriptions of our own: the texts that come with the types are not ours
//! to republish, and say nothing about what the field does here. For use in `#[schemars(schema_with = "…")]`.

use kube::core::Rule;
use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::Value;

use super::rules;

/// Key and value of a label or a taint. The length of the two parts of a key is left to Kubernetes.
const LABEL_KEY: &str = "^([a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$";
const LABEL_VALUE: &str = "^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$";

/// A point in time, to the second.
pub fn timestamp(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "format": "date-time" })
}

/// `Vec<LocalObjectReference>` that names pull secrets.
pub fn secret_references(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": 64,
        "x-kubernetes-list-type": "atomic",
        "items": {
            "type": "object",
            "description": "Secret of type `kubernetes.io/dockerconfigjson` or `kubernetes.io/dockercfg`.",
            "x-kubernetes-map-type": "atomic",
            "properties": {
                "name": { "type": "string", "description": "Name of the Secret.", "default": "" },
            },
        },
    })
}

/// `BTreeMap<String, String>` of labels that a node must carry. A label that no node can carry is refused: it would
/// choose no node at all.
pub fn node_labels(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "maxProperties": 64,
        "additionalProperties": { "type": "string", "maxLength": 63 },
        "x-kubernetes-validations": rules([
            Rule::new(format!("self.all(key, size(key) <= 317 && key.matches('{LABEL_KEY}'))")).message(
                "not the key of a label: write letters, digits, -, _ and ., at most 63 of them, with a DNS name and / before them if there is one, such as topology.kubernetes.io/zone",
            ),
            Rule::new(format!("self.all(key, self[key].matches('{LABEL_VALUE}'))")).message(
                "not the value of a label: write letters, digits, -, _ and ., beginning and ending with a letter or a digit",
            ),
        ]),
    })
}

/// `Vec<Toleration>` as a Pod has it. What the API server would refuse in a Pod is refused here.
pub fn tolerations(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": 256,
        "x-kubernetes-list-type": "atomic",
        "items": {
            "type": "object",
            "description": "Taints that are accepted on a node.",
            "properties": {
                "key": {
                    "type": "string",
                    "maxLength": 317,
                    "description": "Key of the taint. Left out together with operator `Exists`: every taint.",
                },
                "operator": {
                    "type": "string",
                    "description": "How the value is compared: `Equal` (when left out), `Exists` for any value, `Lt` and `Gt` for numbers.",
                },
                "value": {
                    "type": "string",
                    "maxLength": 63,
                    "description": "Value of the taint. Left out with operator `Exists`.",
                },
                "effect": {
                    "type": "string",
                    "description": "Effect of the taint: `NoSchedule`, `PreferNoSchedule` or `NoExecute`. Left out: each of them.",
                },
                "tolerationSeconds": {
                    "type": "integer",
                    "format": "int64",
                    "description": "With effect `NoExecute`: seconds that a Pod stays once the taint appears. Left out: as long as it likes.",
                },
            },
            "x-kubernetes-validations": rules(toleration_rules()),
        },
    })
}

fn toleration_rules() -> [Rule; 7] {
    let set = |field: &str| format!("(has(self.{field}) && self.{field} != '')");
    let (key, operator, value, effect) = (set("key"), set("operator"), set("value"), set("effect"));
    [
        Rule::new(format!("!{operator} || self.operator in ['Equal', 'Exists', 'Lt', 'Gt']"))
            .field_path(".operator")
            .message("operator does not exist: write Equal, Exists, Lt or Gt"),
        Rule::new(format!("!{effect} || self.effect in ['NoSchedule', 'PreferNoSchedule', 'NoExecute']"))
            .field_path(".effect")
            .message("effect does not exist: write NoSchedule, PreferNoSchedule or NoExecute, or leave it out for all of them"),
        Rule::new(format!("{key} || ({operator} && self.operator == 'Exists')"))
            .field_path(".key")
            .message("key is missing: write the key of the taint, or set operator to Exists to accept every taint"),
        Rule::new(format!("!{key} || self.key.matches('{LABEL_KEY}')")).field_path(".key").message(
            "key is not the key of a taint: write letters, digits, -, _ and ., with a DNS name and / before them if there is one, such as node-role.kubernetes.io/control-plane",
        ),
        Rule::new(format!("!{value} || !{operator} || self.operator != 'Exists'"))
            .field_path(".value")
            .message("value must be left out with operator Exists: remove it, or set operator to Equal"),
        Rule::new(format!(
            "!{value} || ({operator} && self.operator in ['Lt', 'Gt'] ? self.value.matches('^-?[0-9]+$') : self.value.matches('{LABEL_VALUE}'))"
        ))
        .field_path(".value")
        .message("value is not the value of a taint: write letters, digits, -, _ and ., or a whole number with operator Lt or Gt"),
        Rule::new(format!("!has(self.tolerationSeconds) || ({effect} && self.effect == 'NoExecute')"))
            .field_path(".tolerationSeconds")
            .message("tolerationSeconds needs effect NoExecute: set it, or remove tolerationSeconds"),
    ]
}

/// `NodeSelector` as Pod affinity has it. What the API server would refuse in a Pod is refused here.
pub fn node_selector(_: &mut SchemaGenerator) -> Schema {
    let expressions = |description: &str, key: &str, rules: Value| {
        json_schema!({
            "type": "array",
            "description": description,
            "maxItems": 32,
            "x-kubernetes-list-type": "atomic",
            "items": {
                "type": "object",
                "description": "One comparison.",
                "required": ["key", "operator"],
                "properties": {
                    "key": { "type": "string", "maxLength": 317, "description": key },
                    "operator": {
                        "type": "string",
                        "description": "Kind of comparison: `In`, `NotIn`, `Exists`, `DoesNotExist`, `Gt` or `Lt`.",
                    },
                    "values": {
                        "type": "array",
                        "description": "Values to compare with: several for `In` and `NotIn`, one number for `Gt` and `Lt`, none otherwise.",
                        "maxItems": 1024,
                        "x-kubernetes-list-type": "atomic",
                        "items": { "type": "string" },
                    },
                },
                "x-kubernetes-validations": rules,
            },
        })
    };
    json_schema!({
        "type": "object",
        "x-kubernetes-map-type": "atomic",
        "required": ["nodeSelectorTerms"],
        "properties": {
            "nodeSelectorTerms": {
                "type": "array",
                "description": "Alternatives: a node is chosen if any of them matches it.",
                "minItems": 1,
                "maxItems": 32,
                "x-kubernetes-list-type": "atomic",
                "items": {
                    "type": "object",
                    "description": "Comparisons that must all hold. A term without any matches no node.",
                    "x-kubernetes-map-type": "atomic",
                    "properties": {
                        "matchExpressions": expressions("Comparisons with labels of the node.", "Label to look at.", rules(label_rules())),
                        "matchFields": expressions("Comparisons with fields of the node.", "Field to look at: `metadata.name`.", rules(field_rules())),
                    },
                },
            },
        },
    })
}

fn label_rules() -> [Rule; 3] {
    let count = "(has(self.values) ? self.values.size() : 0)";
    [
        Rule::new(format!("self.key.matches('{LABEL_KEY}')")).field_path(".key").message(
            "key is not the key of a label: write letters, digits, -, _ and ., with a DNS name and / before them if there is one, such as topology.kubernetes.io/zone",
        ),
        Rule::new("self.operator in ['In', 'NotIn', 'Exists', 'DoesNotExist', 'Gt', 'Lt']")
            .field_path(".operator")
            .message("operator does not exist: write In, NotIn, Exists, DoesNotExist, Gt or Lt"),
        Rule::new(format!(
            "self.operator in ['In', 'NotIn'] ? {count} > 0 : self.operator in ['Gt', 'Lt'] ? {count} == 1 : {count} == 0"
        ))
        .field_path(".values")
        .message("values do not fit operator: In and NotIn need at least one, Gt and Lt exactly one, Exists and DoesNotExist none"),
    ]
}

fn field_rules() -> [Rule; 2] {
    [
        Rule::new("self.key == 'metadata.name'")
            .field_path(".key")
            .message("key is not a field that nodes can be chosen by: write metadata.name, or use matchExpressions for labels"),
        Rule::new("self.operator in ['In', 'NotIn'] && has(self.values) && self.values.size() == 1")
            .field_path(".values")
            .message("a field is compared with one value: write operator In or NotIn and one name in values"),
    ]
}
