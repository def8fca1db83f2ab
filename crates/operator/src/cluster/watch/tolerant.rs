//! Decoding that survives objects which are not as they should be.
//!
//! The API server checks objects when they are written. Those written under an older definition, or a looser one, stay
//! as they are, and a single one in a list would fail the whole list and blind the watch. Here each object is decoded
//! on its own, and failing is a value.

use std::borrow::Cow;

use fairlead_api::conditions::Condition;
use kube::Resource;
use kube::api::ObjectMeta;
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

/// Annotation in which `kubectl apply` keeps a second copy of the object.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// An object of kind `K`, or what is known of it if it could not be read as one.
#[derive(Debug, Clone)]
pub struct Tolerant<K>(pub Result<K, Unreadable>);

/// An object that could not be read.
#[derive(Debug, Clone)]
pub struct Unreadable {
    pub metadata: ObjectMeta,
    /// Names the field that is wrong.
    pub error: String,
    /// What its status says, if that much can be read: the status writer that reports the error leaves the rest as it
    /// is.
    pub conditions: Vec<Condition>,
}

#[derive(Deserialize)]
struct OnlyMetadata {
    #[serde(default)]
    metadata: ObjectMeta,
}

#[derive(Deserialize)]
struct OnlyConditions {
    status: Conditions,
}

#[derive(Deserialize)]
struct Conditions {
    conditions: Vec<Condition>,
}

impl<'de, K> Deserialize<'de> for Tolerant<K>
where
    K: Resource + for<'any> Deserialize<'any>,
{
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // The text of one object at a time: taking it out first means that a failure inside leaves the rest of the
        // list where it was.
        let text = Box::<RawValue>::deserialize(deserializer)?;
        if let Ok(mut object) = serde_json::from_str::<K>(text.get()) {
            trim(object.meta_mut());
            return Ok(Self(Ok(object)));
        }
        let OnlyMetadata { mut metadata } =
            serde_json::from_str(text.get()).map_err(serde::de::Error::custom)?;
        trim(&mut metadata);
        let conditions = serde_json::from_str::<OnlyConditions>(text.get())
            .map(|found| found.status.conditions)
            .unwrap_or_default();
        Ok(Self(Err(Unreadable { metadata, error: find_error::<K>(text.get()), conditions })))
    }
}

/// Decodes once more, this time taking note of the way to the field that is wrong.
fn find_error<K: for<'any> Deserialize<'any>>(text: &str) -> String {
    let mut json = serde_json::Deserializer::from_str(text);
    match serde_path_to_error::deserialize::<_, K>(&mut json) {
        Ok(_) => String::new(),
        Err(error) => describe(&error),
    }
}

/// Drops what is large and never read.
fn trim(metadata: &mut ObjectMeta) {
    metadata.managed_fields = None;
    if let Some(annotations) = &mut metadata.annotations {
        annotations.remove(LAST_APPLIED);
    }
}

/// The position in the text is left out: users never see the text as it came.
fn describe(error: &serde_path_to_error::Error<serde_json::Error>) -> String {
    let text = error.inner().to_string();
    let text = text.rsplit_once(" at line ").map_or(text.as_str(), |(text, _)| text);
    match error.path().to_string().as_str() {
        "." => text.to_owned(),
        path => format!("{path}: {text}"),
    }
}

impl<K: Resource> Resource for Tolerant<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(dynamic: &Self::DynamicType) -> Cow<'_, str> {
        K::kind(dynamic)
    }

    fn group(dynamic: &Self::DynamicType) -> Cow<'_, str> {
        K::group(dynamic)
    }

    fn version(dynamic: &Self::DynamicType) -> Cow<'_, str> {
        K::version(dynamic)
    }

    fn plural(dynamic: &Self::DynamicType) -> Cow<'_, str> {
        K::plural(dynamic)
    }

    fn meta(&self) -> &ObjectMeta {
        match &self.0 {
            Ok(object) => object.meta(),
            Err(unreadable) => &unreadable.metadata,
        }
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        match &mut self.0 {
            Ok(object) => object.meta_mut(),
            Err(unreadable) => &mut unreadable.metadata,
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::api::{ObjectList, WatchEvent};
    use serde_json::json;

    use super::*;

    fn map(name: &str, data: &serde_json::Value) -> serde_json::Value {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "data": data,
            "metadata": {
                "name": name, "namespace": "shop", "resourceVersion": "7",
                "annotations": {LAST_APPLIED: "{}", "mine": "x"},
                "managedFields": [{"manager": "kubectl", "operation": "Apply"}],
            },
        })
    }

    #[test]
    fn one_bad_object_leaves_the_rest_of_a_list_alone() {
        let list = json!({
            "apiVersion": "v1", "kind": "ConfigMapList", "metadata": {"resourceVersion": "9", "continue": "c"},
            "items": [map("a", &json!({"k": "v"})), map("bad", &json!({"k": 3})), map("z", &json!({}))],
        });
        let list: ObjectList<Tolerant<ConfigMap>> = serde_json::from_str(&list.to_string()).expect("a list");
        assert_eq!(list.metadata.resource_version.as_deref(), Some("9"));
        let found: Vec<_> =
            list.items.iter().map(|item| (item.meta().name.as_deref(), item.0.is_ok())).collect();
        assert_eq!(found, [(Some("a"), true), (Some("bad"), false), (Some("z"), true)]);
        let unreadable = list.items[1].0.as_ref().expect_err("a number is not a string");
        assert_eq!(unreadable.error, "data.k: invalid type: integer `3`, expected a string");
        assert_eq!(unreadable.metadata.resource_version.as_deref(), Some("7"));
    }

    #[test]
    fn conditions_of_a_bad_object_are_read_where_they_can_be() {
        let condition = json!({
            "type": "Ready", "status": "False", "reason": "InvalidSpec", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        });
        for (status, wanted) in [(json!({"conditions": [condition]}), 1), (json!({"conditions": 7}), 0)] {
            let mut object = map("bad", &json!({"k": 3}));
            object["status"] = status;
            let object: Tolerant<ConfigMap> = serde_json::from_str(&object.to_string()).expect("an object");
            assert_eq!(object.0.expect_err("a number is not a string").conditions.len(), wanted);
        }
    }

    #[test]
    fn an_event_with_a_bad_object_is_an_event() {
        // The API server writes the type first, which is what lets the object be read in place.
        let event = format!(r#"{{"type":"MODIFIED","object":{}}}"#, map("bad", &json!([])));
        let event: WatchEvent<Tolerant<ConfigMap>> = serde_json::from_str(&event).expect("an event");
        assert!(matches!(event, WatchEvent::Modified(Tolerant(Err(_)))));
    }

    #[test]
    fn what_nobody_reads_is_dropped() {
        let object: Tolerant<ConfigMap> =
            serde_json::from_str(&map("a", &json!({})).to_string()).expect("an object");
        let metadata = object.meta();
        assert_eq!(metadata.managed_fields, None);
        let annotations = metadata.annotations.as_ref().expect("one is left");
        assert_eq!(annotations.keys().collect::<Vec<_>>(), ["mine"]);
    }
}
