//! Pods that the configuration says to leave alone, by their labels or annotations.

use std::collections::HashMap;

use fairlead_domain::selector::Selector;
use serde::Deserialize;

use crate::config::Config;

/// Which Pods are left alone. The empty one leaves none alone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Skip {
    labels: Vec<Selector>,
    annotations: Vec<Selector>,
}

impl From<&Config> for Skip {
    fn from(config: &Config) -> Self {
        Self { labels: config.skip_labels.clone(), annotations: config.skip_annotations.clone() }
    }
}

impl Skip {
    /// Looks at a Pod. What cannot be read matches nothing; it is found out where the Pod itself is read.
    pub(super) fn matches(&self, pod: &str) -> bool {
        #[derive(Default, Deserialize)]
        struct Pod {
            #[serde(default)]
            metadata: Option<Metadata>,
        }

        #[derive(Default, Deserialize)]
        struct Metadata {
            labels: Option<HashMap<String, String>>,
            annotations: Option<HashMap<String, String>>,
        }

        // Reading all labels and annotations costs more than the rest of the answer, and few configurations need it.
        if self.labels.is_empty() && self.annotations.is_empty() {
            return false;
        }
        let metadata = serde_json::from_str::<Pod>(pod).ok().and_then(|pod| pod.metadata).unwrap_or_default();
        self.labels.iter().any(|selector| selector.matches(&metadata.labels))
            || self.annotations.iter().any(|selector| selector.matches(&metadata.annotations))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_selector_is_enough() {
        let text =
            "skipLabels: [app=web, 'tier in (a,b)']\nskipAnnotations: ['example.com/skip', 'x!=y,z']\n";
        let skip = Skip::from(&Config::parse(text).unwrap().config);
        for (metadata, skipped) in [
            (r#"{"labels":{"app":"web"}}"#, true),
            (r#"{"labels":{"tier":"b","app":"api"}}"#, true),
            (r#"{"annotations":{"example.com/skip":"any value, even a long one"}}"#, true),
            (r#"{"annotations":{"z":"1"}}"#, true),
            (r#"{"annotations":{"z":"1","x":"y"}}"#, false),
            (r#"{"labels":{"app":"api"},"annotations":{"app":"web"}}"#, false),
            (r#"{"labels":null}"#, false),
            ("null", false),
            ("5", false),
        ] {
            assert_eq!(skip.matches(&format!(r#"{{"metadata":{metadata}}}"#)), skipped, "{metadata}");
        }
        assert!(!skip.matches("{}"));
        assert!(!Skip::default().matches(r#"{"metadata":{"labels":{"app":"web"}}}"#));
    }
}
