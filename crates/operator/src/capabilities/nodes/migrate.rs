//! Carries out what is decided about `ImageContentSourcePolicy` objects.

use std::collections::BTreeMap;

use fairlead_api::names::fairlead::MIGRATED_FROM;
use fairlead_api::openshift::{ImageContentSourcePolicy, ImageDigestMirrorSet, ImageSourceDigestPolicy};
use fairlead_plan::node_config::migration::Step;
use fairlead_plan::node_config::{MirrorPolicy, PolicyKind};
use kube::api::{DeleteParams, DynamicObject, PostParams, Preconditions};
use kube::core::ApiResource;
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

use super::observe::Policy;
use crate::cluster::state::Store;
use crate::context::Context;
use crate::platform::api_error::{Class, Failure, LIMIT, within};

pub(super) const SOURCE_DIGEST_POLICY: PolicyKind = PolicyKind::ImageSourceDigestPolicy;
pub(super) const DIGEST_MIRROR_SET: PolicyKind = PolicyKind::ImageDigestMirrorSet;

const FIELD_MANAGER: &str = "fairlead-nodes";
/// What kubectl writes about the other kind.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Does one step. `Ok` says what was done; nothing was if the API server did not answer.
pub(super) async fn carry_out(
    context: &Context,
    old: &Policy,
    step: &Step,
) -> Result<Option<String>, Failure> {
    let done = match step {
        Step::Create { policy } => create(context, old, policy).await,
        Step::Delete { .. } => delete(context, old).await,
    };
    match done {
        Err(failure) if failure.class == Class::Unavailable => Ok(None),
        done => done.map(Some),
    }
}

async fn create(context: &Context, old: &Policy, twin: &MirrorPolicy) -> Result<String, Failure> {
    let (resource, list) = match twin.id.kind {
        DIGEST_MIRROR_SET => (ApiResource::erase::<ImageDigestMirrorSet>(&()), "imageDigestMirrors"),
        _ => (ApiResource::erase::<ImageSourceDigestPolicy>(&()), "repositoryDigestMirrors"),
    };
    let sets = twin.sets.iter().map(|set| json!({"source": set.source, "mirrors": set.mirrors}));
    let mut object = DynamicObject::new(&twin.id.name, &resource);
    object.data = json!({"spec": {list: sets.collect::<Vec<Value>>()}});
    let store = &context.resources.image_content_source_policies;
    (object.metadata.labels, object.metadata.annotations) = kept(store, old);
    let annotations = object.metadata.annotations.get_or_insert_default();
    annotations.insert(MIGRATED_FROM.to_owned(), old.object.uid.to_string());
    let api: Api<DynamicObject> = Api::all_with(context.client.clone(), &resource);
    let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
    within(LIMIT, api.create(&params, &object)).await?;
    Ok(format!("{} was made of it and says the same", twin.id))
}

type Texts = Option<BTreeMap<String, String>>;

/// Labels and annotations that a person wrote.
fn kept(store: &Store<ImageContentSourcePolicy>, old: &Policy) -> (Texts, Texts) {
    let snapshot = store.snapshot();
    let found = snapshot.objects.iter().find(|(key, _)| key.name == old.object.name);
    let Some((_, object)) = found else { return (None, None) };
    let mut annotations = object.annotations().clone();
    annotations.remove(LAST_APPLIED);
    (object.metadata.labels.clone(), Some(annotations))
}

/// Deletes the object as it was seen, and no later one of its name.
async fn delete(context: &Context, old: &Policy) -> Result<String, Failure> {
    let api = old.object.api(&context.client);
    let uid = Some(old.object.uid.to_string());
    let params = DeleteParams {
        preconditions: Some(Preconditions { uid, resource_version: None }),
        ..DeleteParams::default()
    };
    within(LIMIT, api.delete(&old.object.name, &params)).await?;
    Ok("it was deleted, because an object of a newer kind says the same".to_owned())
}
