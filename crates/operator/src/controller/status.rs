//! Writing statuses into which others may have written, too.

use std::time::Duration;

use fairlead_api::conditions::Condition;
use kube::Api;
use kube::api::{DynamicObject, Patch, PatchParams};
use serde_json::{Value, json};

use crate::platform::api_error::{Failure, within};

/// One request never holds up the next for longer.
const LIMIT: Duration = Duration::from_secs(5);

/// How a status is written.
#[derive(Debug)]
pub(crate) enum Manner {
    /// Server-side apply of our own fields.
    Apply,
    /// Lists are replaced whole. What others listed, kube-image-keeper for instance, would survive an apply; and the API
    /// server applies nothing to an object that does not fit its schema. Conditions of others go along, and the write
    /// counts only for the version that was seen.
    Replace { version: String, others: Vec<Condition> },
}

impl Manner {
    /// The conditions that are sent, given our own.
    pub(crate) fn conditions(&self, own: &[Condition]) -> Vec<Condition> {
        match self {
            Self::Apply => own.to_vec(),
            Self::Replace { others, .. } => [others, own].concat(),
        }
    }

    /// The metadata that is sent. The UID makes the API server refuse to write about another object of the same name.
    pub(crate) fn metadata(&self, name: &str, uid: &str) -> Value {
        match self {
            Self::Apply => json!({"name": name, "uid": uid}),
            Self::Replace { version, .. } => json!({"name": name, "uid": uid, "resourceVersion": version}),
        }
    }

    pub(crate) async fn write(
        &self,
        api: &Api<DynamicObject>,
        name: &str,
        field_manager: &str,
        body: Value,
    ) -> Result<(), Failure> {
        let (params, patch) = match self {
            Self::Apply => (PatchParams::apply(field_manager).force(), Patch::Apply(body)),
            Self::Replace { .. } => {
                let field_manager = Some(field_manager.to_owned());
                (PatchParams { field_manager, ..PatchParams::default() }, Patch::Merge(body))
            }
        };
        within(LIMIT, api.patch_status(name, &params, &patch)).await.map(drop)
    }
}
