//! One request that writes a status.

use std::time::Duration;

use fairlead_api::conditions::Condition;
use fairlead_api::kuik::{
    ClusterImageSetMirror, ClusterReplicatedImageSet, ImageSetMirror, ReplicatedImageSet,
};
use fairlead_plan::routing::PolicyKind;
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::core::ApiResource;
use kube::{Api, Client};
use serde_json::{Value, json};

use super::Draft;
use crate::failure::Failure;

const FIELD_MANAGER: &str = "fairlead-policies";

/// One request never holds up the next for longer.
const LIMIT: Duration = Duration::from_secs(5);

/// How a status is written.
pub(super) enum Manner {
    /// Server-side apply of our own fields.
    Apply,
    /// The API server cannot apply to what does not fit the schema, but lets a list be replaced. Then conditions of others
    /// go along, and the write counts only for the version that was seen.
    Replace { version: String, others: Vec<Condition> },
}

pub(super) struct Writer {
    client: Client,
}

impl Writer {
    pub(super) fn new(client: Client) -> Self {
        Self { client }
    }

    pub(super) async fn write(&self, draft: &Draft) -> Result<(), Failure> {
        let resource = resource_of(draft.name.kind);
        let key = &draft.name.key;
        let api: Api<DynamicObject> = match &*key.namespace {
            "" => Api::all_with(self.client.clone(), &resource),
            namespace => Api::namespaced_with(self.client.clone(), namespace, &resource),
        };
        let body = body(draft, &resource);
        let (params, patch) = match &draft.manner {
            Manner::Apply => (PatchParams::apply(FIELD_MANAGER).force(), Patch::Apply(body)),
            Manner::Replace { .. } => {
                let manager = Some(FIELD_MANAGER.to_owned());
                (PatchParams { field_manager: manager, ..PatchParams::default() }, Patch::Merge(body))
            }
        };
        match tokio::time::timeout(LIMIT, api.patch_status(&key.name, &params, &patch)).await {
            Ok(answer) => answer.map(drop).map_err(|error| Failure::from(&error)),
            Err(_) => Err(Failure::timed_out(LIMIT)),
        }
    }
}

/// The UID makes the API server refuse to write about another object of the same name.
fn body(draft: &Draft, resource: &ApiResource) -> Value {
    let key = &draft.name.key;
    let mut metadata = json!({"name": &*key.name, "uid": draft.uid});
    let mut status = draft.status.clone();
    if let (Manner::Replace { version, others }, Some(metadata)) = (&draft.manner, metadata.as_object_mut()) {
        metadata.insert("resourceVersion".to_owned(), json!(version));
        status.conditions.splice(..0, others.iter().cloned());
    }
    json!({"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, "status": status})
}

fn resource_of(kind: PolicyKind) -> ApiResource {
    match kind {
        PolicyKind::ClusterImageSetMirror => ApiResource::erase::<ClusterImageSetMirror>(&()),
        PolicyKind::ImageSetMirror => ApiResource::erase::<ImageSetMirror>(&()),
        PolicyKind::ClusterReplicatedImageSet => ApiResource::erase::<ClusterReplicatedImageSet>(&()),
        PolicyKind::ReplicatedImageSet => ApiResource::erase::<ReplicatedImageSet>(&()),
    }
}
