//! Setting and taking off finalizers, over the version that was seen, so that those of others are never touched.

use std::time::Duration;

use kube::Api;
use kube::api::{DynamicObject, Patch, PatchParams};
use serde_json::json;

use super::status::ObjectId;
use crate::platform::api_error::{Class, Failure, within};

/// One request never holds up the next for longer.
const LIMIT: Duration = Duration::from_secs(10);

/// What became of a write of finalizers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finalized {
    Done,
    /// The object has changed or is gone; the watch will show it as it is.
    Outdated,
}

/// Makes these the object's finalizers.
pub async fn write(
    client: &kube::Client,
    manager: &str,
    object: &ObjectId,
    version: Option<&str>,
    finalizers: &[String],
) -> Result<Finalized, Failure> {
    let api: Api<DynamicObject> = object.api(client);
    let patch = Patch::Merge(json!({"metadata": {"resourceVersion": version, "finalizers": finalizers}}));
    let params = PatchParams { field_manager: Some(manager.to_owned()), ..PatchParams::default() };
    match within(LIMIT, api.patch_metadata(&object.name, &params, &patch)).await {
        Ok(_) => Ok(Finalized::Done),
        Err(failure) if matches!(failure.class, Class::Conflict | Class::Absent) => Ok(Finalized::Outdated),
        Err(failure) => Err(failure),
    }
}
