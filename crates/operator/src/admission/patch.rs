//! A JSON patch that touches only what changes.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde::Serialize;
use serde_json::{Value, json};

use super::review::PodObject;

/// One operation. `add` replaces what is there.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "op", rename_all = "lowercase")]
pub enum Operation {
    Add { path: String, value: Value },
}

/// Operations in the order in which they are applied. Never empty.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Patch(Vec<Operation>);

impl Patch {
    /// Sets one annotation, whatever of the map and of the metadata is there already.
    pub fn annotate(pod: &PodObject<'_>, key: &str, value: String) -> Self {
        let (path, value) = match &pod.metadata {
            Some(metadata) if metadata.annotations.is_some() => {
                (format!("/metadata/annotations/{}", escape(key)), Value::String(value))
            }
            Some(_) => ("/metadata/annotations".to_owned(), json!({ key: value })),
            None => ("/metadata".to_owned(), json!({"annotations": { key: value }})),
        };
        Self(vec![Operation::Add { path, value }])
    }

    /// The form in which it travels in an admission response.
    pub(super) fn encode(&self) -> Result<String, serde_json::Error> {
        Ok(BASE64_STANDARD.encode(serde_json::to_vec(self)?))
    }
}

/// A key as one step of a JSON pointer.
fn escape(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_missing_is_added() {
        let unknown = json!({"future": {"field": [1, 2]}});
        for (metadata, operations) in [
            (None, 1),
            (Some(json!({"name": "p"})), 1),
            (Some(json!({"annotations": null})), 1),
            (Some(json!({"annotations": {}})), 1),
            (Some(json!({"annotations": {"a/b": "1", "fairlead.dev/routes": "old"}, "new": true})), 1),
        ] {
            let mut object = unknown.clone();
            if let Some(metadata) = metadata {
                object["metadata"] = metadata;
            }
            let text = object.to_string();
            let pod: PodObject<'_> = serde_json::from_str(&text).unwrap();
            let patch = Patch::annotate(&pod, "fairlead.dev/routes", "record".to_owned());
            assert_eq!(patch.0.len(), operations);
            let parsed: json_patch::Patch =
                serde_json::from_value(serde_json::to_value(&patch).unwrap()).unwrap();
            let mut patched = object.clone();
            json_patch::patch(&mut patched, &parsed).unwrap();
            assert_eq!(patched["metadata"]["annotations"]["fairlead.dev/routes"], "record", "{text}");
            if object["metadata"]["annotations"].get("a/b").is_some() {
                assert_eq!(patched["metadata"]["annotations"]["a/b"], "1");
            }
            assert_eq!(patched["future"], unknown["future"]);
        }
    }
}
