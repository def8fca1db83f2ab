//! Pods that the configuration says to leave alone, by their labels or annotations.

use fairlead_domain::selector::{Labels, Selector};

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
    pub(crate) fn matches(&self, labels: &dyn Labels, annotations: &dyn Labels) -> bool {
        self.labels.iter().any(|selector| selector.matches(labels))
            || self.annotations.iter().any(|selector| selector.matches(annotations))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admission::PodObject;

    fn matches(skip: &Skip, pod: &PodObject<'_>) -> bool {
        skip.matches(&pod.labels(), &pod.annotations())
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
            (r#"{"labels":null}"#, false),
            ("null", false),
        ] {
            let text = format!(r#"{{"metadata":{metadata}}}"#);
            let pod: PodObject<'_> = serde_json::from_str(&text).unwrap();
            assert_eq!(matches(&skip, &pod), skipped, "{metadata}");
            assert!(!matches(&Skip::default(), &pod));
        }
        assert!(!matches(&skip, &PodObject::default()));
    }
}
