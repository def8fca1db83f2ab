//! Setting and taking off finalizers, over the version that was seen, so that those of others are never touched.

use kube::Api;
use kube::api::{DynamicObject, Patch, PatchParams};
use serde_json::json;

use super::status::ObjectId;
use crate::platform::api_error::{Class, Failure, LIMIT, within};

/// What became of a write of finalizers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finalized {
    Done,
    /// The object has changed or is gone; the watch will show it as it is.
    Outdated,
}

/// Sets finalizers of ours, or takes them off. `version` and `present` are those of the object as it was seen.
pub async fn set(
    client: &kube::Client,
    manager: &str,
    object: &ObjectId,
    (version, present): (Option<&str>, &[String]),
    ours: &[&str],
    wanted: bool,
) -> Result<Finalized, Failure> {
    let others = present.iter().map(String::as_str).filter(|name| !ours.contains(name));
    let finalizers: Vec<_> = others.chain(ours.iter().copied().filter(|_| wanted)).collect();
    let api: Api<DynamicObject> = object.api(client);
    let patch = Patch::Merge(json!({"metadata": {"resourceVersion": version, "finalizers": finalizers}}));
    let params = PatchParams { field_manager: Some(manager.to_owned()), ..PatchParams::default() };
    match within(LIMIT, api.patch_metadata(&object.name, &params, &patch)).await {
        Ok(_) => Ok(Finalized::Done),
        Err(failure) if matches!(failure.class, Class::Conflict | Class::Absent) => Ok(Finalized::Outdated),
        Err(failure) => Err(failure),
    }
}
