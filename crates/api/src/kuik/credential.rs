//! The Secret that an entry authenticates with.

use kube::core::Rule;
use schemars::{JsonSchema, Schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::schema::rules;

/// Names a Secret of type `kubernetes.io/dockerconfigjson` or `kubernetes.io/dockercfg`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CredentialSecret {
    /// Name of the Secret.
    #[schemars(schema_with = "crate::schema::object_name")]
    pub name: String,
    /// Namespace of the Secret. Objects that live in a namespace use Secrets of that namespace, whatever is written
    /// here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub namespace: Option<String>,
}

/// For lists of cluster-wide objects, as `#[schemars(transform = …)]`: an entry that names a Secret must say where it
/// is.
pub(super) fn namespace_is_named(list: &mut Schema) {
    for field in ["credentialSecret", "pullSecret"] {
        let path = format!("/items/properties/{field}");
        if let Some(secret) = list.pointer_mut(&path).and_then(Value::as_object_mut) {
            secret.insert("x-kubernetes-validations".to_owned(), rules([names_its_namespace()]));
        }
    }
}

/// For the Secret of a cluster-wide object, which must say where it is.
pub(crate) fn namespace_is_said(secret: &mut Schema) {
    secret.insert("x-kubernetes-validations".to_owned(), rules([names_its_namespace()]));
}

fn names_its_namespace() -> Rule {
    // `namespace` is a reserved word of the rule language, which is written with underscores around it.
    Rule::new("has(self.__namespace__) && self.__namespace__.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')")
        .message("namespace must name the namespace of the Secret, because a cluster-wide object has no namespace of its own")
        .field_path(".namespace")
}
