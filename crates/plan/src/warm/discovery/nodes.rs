//! Nodes that a ranking counts, with the rules of node affinity.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm};

use crate::node::Node;

/// A Node, as far as selectors look at it.
pub trait NodeFacts {
    fn name(&self) -> &str;
    fn label(&self, key: &str) -> Option<&str>;
}

impl NodeFacts for Arc<Node> {
    fn name(&self) -> &str {
        &self.name
    }

    fn label(&self, key: &str) -> Option<&str> {
        Node::label(self, key)
    }
}

/// Whether one of the terms matches.
pub(super) fn selects(selector: &NodeSelector, node: &impl NodeFacts) -> bool {
    selector.node_selector_terms.iter().any(|term| matches(term, node))
}

/// A term without requirements matches nothing.
fn matches(term: &NodeSelectorTerm, node: &impl NodeFacts) -> bool {
    let expressions = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    (!expressions.is_empty() || !fields.is_empty())
        && expressions.iter().all(|requirement| holds(requirement, node.label(&requirement.key)))
        && fields
            .iter()
            .all(|requirement| holds(requirement, (requirement.key == "metadata.name").then(|| node.name())))
}

fn holds(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let listed = value.is_some_and(|value| values.iter().any(|one| one == value));
    let number = |text: &str| text.parse::<i64>().ok();
    let compared = || Some(number(value?)?.cmp(&number(values.first()?)?));
    match requirement.operator.as_str() {
        "In" => listed,
        "NotIn" => !listed,
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compared().is_some_and(std::cmp::Ordering::is_gt),
        "Lt" => compared().is_some_and(std::cmp::Ordering::is_lt),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    struct Node;

    impl NodeFacts for Node {
        fn name(&self) -> &'static str {
            "n1"
        }

        fn label(&self, key: &str) -> Option<&str> {
            [("pool", "gpu"), ("cores", "16")].iter().find(|(name, _)| *name == key).map(|(_, value)| *value)
        }
    }

    fn selected(terms: &Value) -> bool {
        selects(&serde_json::from_value(json!({"nodeSelectorTerms": terms})).unwrap(), &Node)
    }

    #[test]
    fn terms_are_alternatives_of_requirements() {
        let requirement = |key: &str, operator: &str, values: &[&str]| json!({"key": key, "operator": operator, "values": values});
        for (key, operator, values, expected) in [
            ("pool", "In", &["cpu", "gpu"][..], true),
            ("pool", "NotIn", &["gpu"], false),
            ("other", "NotIn", &["gpu"], true),
            ("pool", "Exists", &[], true),
            ("other", "DoesNotExist", &[], true),
            ("cores", "Gt", &["8"], true),
            ("cores", "Lt", &["8"], false),
            ("pool", "Gt", &["8"], false),
            ("pool", "Near", &["gpu"], false),
        ] {
            let term = json!([{"matchExpressions": [requirement(key, operator, values)]}]);
            assert_eq!(selected(&term), expected, "{key} {operator} {values:?}");
        }
        let (gpu, cpu) = (requirement("pool", "In", &["gpu"]), requirement("pool", "In", &["cpu"]));
        let named = requirement("metadata.name", "In", &["n1"]);
        assert!(selected(&json!([{"matchExpressions": [cpu.clone()]}, {"matchExpressions": [gpu.clone()]}])));
        assert!(!selected(&json!([{"matchExpressions": [gpu.clone(), cpu]}])));
        assert!(selected(&json!([{"matchExpressions": [gpu], "matchFields": [named]}])));
        assert!(!selected(&json!([{}])) && !selected(&json!([])));
    }
}
