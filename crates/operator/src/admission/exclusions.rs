//! Pods that are left alone: those that pull images onto nodes, and those that the configuration names by labels or
//! annotations.

use fairlead_domain::selector::{Labels, Selector};

use fairlead_plan::usage::is_warming;

use super::PodObject;
use crate::platform::config::Config;

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
    /// Why a new Pod is left alone. `own`: the namespace of the operator.
    pub fn reason_for(&self, pod: &PodObject<'_>, namespace: &str, own: &str) -> Option<String> {
        if namespace == own {
            return Some(format!("Pods of the operator's own namespace, {own}, are never routed"));
        }
        if pod.is_mirror_pod() {
            let why = "it mirrors a static Pod: the kubelet runs what the file on its node says";
            return Some(why.to_owned());
        }
        self.reason(&pod.labels(), &pod.annotations())
    }

    /// Why a Pod is left alone on account of what it says.
    pub fn reason(&self, labels: &dyn Labels, annotations: &dyn Labels) -> Option<String> {
        if is_warming(labels) {
            return Some(
                "this Pod pulls images onto a node, under the names that were planned for it".to_owned(),
            );
        }
        let said = |key, selector| {
            format!("the operator's configuration leaves this Pod alone: {key} has {selector}")
        };
        let by_label = self.labels.iter().find(|selector| selector.matches(labels));
        let by_annotation = || self.annotations.iter().find(|selector| selector.matches(annotations));
        let by_label = by_label.map(|selector| said("skipLabels", selector));
        by_label.or_else(|| by_annotation().map(|selector| said("skipAnnotations", selector)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(skip: &Skip, pod: &PodObject<'_>) -> bool {
        skip.reason(&pod.labels(), &pod.annotations()).is_some()
    }

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
            (
                r#"{"labels":{"app.kubernetes.io/managed-by":"drop","drop.corewire.io/cachedimage":"a"}}"#,
                true,
            ),
            (r#"{"labels":null}"#, false),
            ("null", false),
        ] {
            let text = format!(r#"{{"metadata":{metadata}}}"#);
            let pod: PodObject<'_> = serde_json::from_str(&text).unwrap();
            assert_eq!(matches(&skip, &pod), skipped, "{metadata}");
            let is_warming = metadata.contains("cachedimage");
            assert_eq!(matches(&Skip::default(), &pod), is_warming, "{metadata}");
        }
        assert!(!matches(&skip, &PodObject::default()));
    }
}
