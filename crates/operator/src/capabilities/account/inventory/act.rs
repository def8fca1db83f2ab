//! Reads the content behind digests, finds the object that an event about drift belongs to, and records the digests
//! that kubelets do not report.

use std::time::Duration;

use fairlead_api::names::fairlead::VOLUME_DIGESTS;
use fairlead_plan::inventory::Content;
use fairlead_registry::manifest::Selector;
use fairlead_registry::{Class, Context as Call, Problem, Right};
use k8s_openapi::api::apps::v1::ReplicaSet;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{PartialObjectMeta, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::json;
use tokio::time::Instant;

use super::tally::{ContentWish, DigestWrite};
use crate::capabilities::account::observe::content;
use crate::cluster::state::PodEntry;
use crate::context::Context;
use crate::controller::events::About;
use crate::controller::rate_limit::Pace;
use crate::platform::api_error::{self, LIMIT, within};
use crate::platform::leader::Term;

/// Time for one manifest, with the Secrets for it, and for one write.
const PATIENCE: Duration = Duration::from_secs(30);

/// What came of reading an index or a manifest.
#[derive(Debug)]
pub(super) enum ReadResult {
    Content(Content),
    /// It is in none of the repositories.
    Absent,
    Failed,
}

/// Reads an index or a manifest as the Pod could, in the first repository that has it.
pub(super) async fn read(context: &Context, wish: ContentWish) -> ReadResult {
    let ContentWish { digest, images, pod } = wish;
    let deadline = Instant::now() + PATIENCE;
    let keys = context.secrets.of_pod(&pod, deadline).await;
    let call = Call::new(Class::Background, deadline).on_behalf_of(&pod.key.namespace);
    let mut result = ReadResult::Absent;
    for image in images {
        let (credentials, cause) = (keys.credentials(&image), context.cause_of(&pod, &image));
        let reading = async {
            let repository =
                context.registries.repository_for(cause, &image.repository(), credentials, Right::Pull)?;
            repository.manifest(&Selector::from(digest), &call).await?.content()
        };
        match reading.await {
            Ok(read) => return ReadResult::Content(content(read)),
            Err(error) => {
                tracing::debug!(%image, %digest, %error, "what is behind a digest could not be read");
                if !matches!(error.problem, Problem::NotFound(_)) {
                    result = ReadResult::Failed;
                }
            }
        }
    }
    result
}

/// The object that an event about a Pod belongs to: the Deployment of its `ReplicaSet` where there is one, else its
/// controller, or the Pod itself without one.
pub(super) async fn concerned(context: &Context, pod: &PodEntry) -> About {
    let Some(owner) = &pod.owner else { return About::pod(pod) };
    let about = |api_version: &str, kind: &str, name: &str, uid: &str| About {
        api_version: api_version.to_owned(),
        kind: kind.to_owned(),
        namespace: Some(pod.key.namespace.to_string()),
        name: name.to_owned(),
        uid: uid.to_owned(),
    };
    if &*owner.kind == "ReplicaSet" {
        let sets: Api<ReplicaSet> = Api::namespaced(context.client.clone(), &pod.key.namespace);
        match within(LIMIT, sets.get_metadata_opt(&owner.name)).await {
            Ok(set) => {
                let mut owners = set.iter().flat_map(ResourceExt::owner_references);
                if let Some(above) = owners.find(|above| above.controller == Some(true)) {
                    return about(&above.api_version, &above.kind, &above.name, &above.uid);
                }
            }
            Err(failure) => {
                tracing::debug!(pod = %pod.key, %failure, "the owner of a ReplicaSet could not be read");
            }
        }
    }
    about(&owner.api_version, &owner.kind, &owner.name, &owner.uid)
}

/// What became of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WriteResult {
    Written,
    Removed,
    /// The Pod is gone, or another one of its name.
    Gone,
    Failed,
}

impl WriteResult {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Written => "written",
            Self::Removed => "removed",
            Self::Gone => "gone",
            Self::Failed => "failed",
        }
    }
}

/// Writes the annotation, and nothing else: neither the specification nor the status is touched, so nothing restarts
/// and no kubelet is in the way.
pub(super) async fn write(
    context: &Context,
    term: &Term,
    pace: &tokio::sync::Mutex<Pace>,
    wish: DigestWrite,
) -> WriteResult {
    let DigestWrite { pod, text } = wish;
    pace.lock().await.turn().await;
    if !term.holds() {
        return WriteResult::Failed;
    }
    let outcome = if text.is_some() { WriteResult::Written } else { WriteResult::Removed };
    let patch = json!({"metadata": {"uid": *pod.uid, "annotations": {VOLUME_DIGESTS: text}}});
    let pods: Api<PartialObjectMeta<Pod>> = Api::namespaced(context.client.clone(), &pod.key.namespace);
    let params = PatchParams::default();
    match within(LIMIT, pods.patch(&pod.key.name, &params, &Patch::Merge(&patch))).await {
        Ok(_) => outcome,
        Err(failure) => match failure.class {
            api_error::Class::Absent | api_error::Class::Conflict => WriteResult::Gone,
            _ => {
                tracing::warn!(pod = %pod.key, %failure, "the digests of image volumes could not be written down");
                WriteResult::Failed
            }
        },
    }
}
