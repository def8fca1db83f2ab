//! One request that writes a status.

use fairlead_api::kuik::{
    ClusterImageSetMirror, ClusterReplicatedImageSet, ImageSetMirror, ReplicatedImageSet,
};
use fairlead_plan::routing::PolicyKind;
use kube::api::DynamicObject;
use kube::core::ApiResource;
use kube::{Api, Client};
use serde_json::json;

use super::Draft;
use crate::platform::api_error::Failure;

const FIELD_MANAGER: &str = "fairlead-policies";

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
        let mut status = draft.status.clone();
        status.conditions = draft.manner.conditions(&status.conditions);
        let body = json!({
            "apiVersion": resource.api_version, "kind": resource.kind,
            "metadata": draft.manner.metadata(&key.name, &draft.uid), "status": status,
        });
        draft.manner.write(&api, &key.name, FIELD_MANAGER, body).await
    }
}

fn resource_of(kind: PolicyKind) -> ApiResource {
    match kind {
        PolicyKind::ClusterImageSetMirror => ApiResource::erase::<ClusterImageSetMirror>(&()),
        PolicyKind::ImageSetMirror => ApiResource::erase::<ImageSetMirror>(&()),
        PolicyKind::ClusterReplicatedImageSet => ApiResource::erase::<ClusterReplicatedImageSet>(&()),
        PolicyKind::ReplicatedImageSet => ApiResource::erase::<ReplicatedImageSet>(&()),
    }
}
