//! A JSON patch that touches only what changes.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use fairlead_plan::pod_record::Place;
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::review::{PodImage, PodObject};

/// One operation. `add` replaces what is there.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "op", rename_all = "lowercase")]
pub enum Operation {
    Add { path: String, value: Value },
    Replace { path: String, value: Value },
    Remove { path: String },
}

/// Operations in the order in which they are applied.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Patch(Vec<Operation>);

impl Patch {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Gives an image of the Pod another reference.
    pub fn image(&mut self, image: &PodImage<'_>, reference: &str) {
        let at = image.position;
        let path = match image.place {
            Place::Container(_) => format!("/spec/containers/{at}/image"),
            Place::Init(_) => format!("/spec/initContainers/{at}/image"),
            Place::Ephemeral(_) => format!("/spec/ephemeralContainers/{at}/image"),
            Place::Volume(_) => format!("/spec/volumes/{at}/image/reference"),
        };
        self.0.push(Operation::Replace { path, value: reference.into() });
    }

    /// Adds pull secrets that are not on the Pod yet.
    pub fn pull_secrets(&mut self, pod: &PodObject<'_>, names: impl IntoIterator<Item = String>) {
        let mut names = names.into_iter().map(|name| json!({ "name": name })).peekable();
        if names.peek().is_none() {
            return;
        }
        let has_list = pod.spec.as_ref().is_some_and(|spec| spec.image_pull_secrets.is_some());
        if has_list {
            let path = || "/spec/imagePullSecrets/-".to_owned();
            self.0.extend(names.map(|value| Operation::Add { path: path(), value }));
        } else {
            let path = "/spec/imagePullSecrets".to_owned();
            self.0.push(Operation::Add { path, value: names.collect() });
        }
    }

    /// Sets annotations, or takes them away, whatever of the map and of the metadata is there already.
    pub fn annotations(&mut self, pod: &PodObject<'_>, changes: Vec<(&'static str, Option<String>)>) {
        if changes.is_empty() {
            return;
        }
        match &pod.metadata {
            Some(metadata) if metadata.annotations.is_some() => {
                for (key, text) in changes {
                    let path = pointer("/metadata/annotations", key);
                    self.0.push(match text {
                        Some(text) => Operation::Add { path, value: text.into() },
                        None => Operation::Remove { path },
                    });
                }
            }
            // Nothing can be taken away where nothing is.
            found => {
                let set: Map<String, Value> = changes
                    .into_iter()
                    .filter_map(|(key, text)| Some((key.to_owned(), Value::String(text?))))
                    .collect();
                let (path, value) = match found {
                    Some(_) => ("/metadata/annotations", Value::Object(set)),
                    None => ("/metadata", json!({ "annotations": set })),
                };
                self.0.push(Operation::Add { path: path.to_owned(), value });
            }
        }
    }

    /// The form in which it travels in an admission response.
    pub(super) fn encode(&self) -> Result<String, serde_json::Error> {
        Ok(BASE64_STANDARD.encode(serde_json::to_vec(self)?))
    }
}

/// A JSON pointer to a key below a place.
pub(super) fn pointer(place: &str, key: &str) -> String {
    format!("{place}/{}", key.replace('~', "~0").replace('/', "~1"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn apply(object: &Value, change: impl FnOnce(&mut Patch, &PodObject<'_>)) -> Value {
        let text = object.to_string();
        let pod: PodObject<'_> = serde_json::from_str(&text).unwrap();
        let mut patch = Patch::default();
        change(&mut patch, &pod);
        let parsed: json_patch::Patch =
            serde_json::from_value(serde_json::to_value(&patch).unwrap()).unwrap();
        let mut patched = object.clone();
        json_patch::patch(&mut patched, &parsed).unwrap();
        patched
    }

    #[test]
    fn annotations_are_set_whatever_is_there() {
        for metadata in [
            None,
            Some(json!({"name": "p"})),
            Some(json!({"annotations": null})),
            Some(json!({"annotations": {}})),
            Some(json!({"annotations": {"a/b": "1", "fairlead.dev/routes": "old"}, "new": true})),
        ] {
            let mut object = json!({"future": {"field": [1, 2]}});
            if let Some(metadata) = metadata {
                object["metadata"] = metadata;
            }
            let patched = apply(&object, |patch, pod| {
                patch.annotations(pod, vec![("fairlead.dev/routes", Some("record".to_owned()))]);
            });
            assert_eq!(patched["metadata"]["annotations"]["fairlead.dev/routes"], "record", "{object}");
            if object["metadata"]["annotations"].get("a/b").is_some() {
                assert_eq!(patched["metadata"]["annotations"]["a/b"], "1");
            }
            assert_eq!(patched["future"], object["future"]);
        }
    }

    #[test]
    fn annotations_are_taken_away() {
        let object = json!({"metadata": {"annotations": {"fairlead.dev/routes": "x", "b": "1"}}});
        let patched =
            apply(&object, |patch, pod| patch.annotations(pod, vec![("fairlead.dev/routes", None)]));
        assert_eq!(patched, json!({"metadata": {"annotations": {"b": "1"}}}));
    }

    #[test]
    fn pull_secrets_join_those_that_are_there() {
        for (secrets, expected) in [
            (json!(null), json!([{"name": "a"}, {"name": "b"}])),
            (json!([]), json!([{"name": "a"}, {"name": "b"}])),
            (json!([{"name": "own"}]), json!([{"name": "own"}, {"name": "a"}, {"name": "b"}])),
        ] {
            let object = json!({"spec": {"imagePullSecrets": secrets}});
            let patched = apply(&object, |patch, pod| {
                patch.pull_secrets(pod, ["a".to_owned(), "b".to_owned()]);
            });
            assert_eq!(patched["spec"]["imagePullSecrets"], expected);
        }
    }

    #[test]
    fn images_are_replaced_where_they_stand() {
        let container = |image: &str| json!({"name": image, "image": image, "unknown": 1});
        let object = json!({"spec": {
            "initContainers": [container("i")],
            "containers": [{"name": "without image"}, container("c")],
            "ephemeralContainers": [container("e")],
            "volumes": [{"name": "t", "emptyDir": {}}, {"name": "v", "image": {"reference": "v", "pullPolicy": "Always"}}],
        }});
        let patched = apply(&object, |patch, pod| {
            for image in pod.images() {
                patch.image(&image, &format!("{}-moved", image.reference));
            }
        });
        let spec = &patched["spec"];
        assert_eq!(spec["initContainers"][0]["image"], "i-moved");
        assert_eq!(spec["containers"][1], json!({"name": "c", "image": "c-moved", "unknown": 1}));
        assert_eq!(spec["ephemeralContainers"][0]["image"], "e-moved");
        assert_eq!(spec["volumes"][1]["image"], json!({"reference": "v-moved", "pullPolicy": "Always"}));
    }
}
