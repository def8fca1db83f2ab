//! Why a Pod cannot have a Secret.

use std::sync::Arc;

use fairlead_plan::pull_secrets::CopyPlace;
use fairlead_plan::routing::SecretUse;

use crate::registries::secrets::Read;

#[derive(Debug, Clone, thiserror::Error)]
pub enum CopyError {
    #[error(
        "Secret {} of {} is not copied to other namespaces: only cluster-scoped policies may share theirs",
        of.secret, of.by
    )]
    NamespacedOwner { of: SecretUse },
    #[error(
        "Secret {} of {} is not copied: routing.pullSecrets.copy is false; put the credentials into the Pod's \
         namespace by other means",
        of.secret, of.by
    )]
    Disabled { of: SecretUse },
    #[error(
        "Secret {} of {} is not copied to namespace {namespace}: the webhook's namespaceSelector leaves it out",
        of.secret, of.by
    )]
    LeftOut { of: SecretUse, namespace: Arc<str> },
    #[error(
        "Secret {} of {} is not copied to namespace {namespace} yet: its labels or the webhook's namespaceSelector are \
         not known",
        of.secret, of.by
    )]
    Unselected { of: SecretUse, namespace: Arc<str> },
    #[error("Secret {} of {} {problem}", of.secret, of.by)]
    Source { of: SecretUse, problem: Arc<str> },
    #[error(
        "Secret {} of {} cannot be copied to {place}: a Secret of that name is there which is no copy; rename or \
         delete it",
        of.secret, of.by
    )]
    Foreign { of: SecretUse, place: CopyPlace },
    #[error("Secret {} of {} could not be copied to {place}: {why}", of.secret, of.by)]
    Failed { of: SecretUse, place: CopyPlace, why: Arc<str> },
    #[error("Secret {} of {} could not be copied to {place} in the time of the request", of.secret, of.by)]
    TimeIsUp { of: SecretUse, place: CopyPlace },
}

impl CopyError {
    pub(super) fn source(of: &SecretUse, read: &Read) -> Self {
        Self::Source { of: of.clone(), problem: read.problem().unwrap_or_default().into() }
    }
}
