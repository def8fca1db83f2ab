//! Puts a copy where it is wanted, unless something else is there.

use std::time::Duration;

use fairlead_plan::pull_secrets::{Copy, CopyPlace, FoundSecret, VERIFY_AFTER};
use fairlead_plan::routing::SecretUse;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions};

use super::{CopiesInner, CopyError, object};
use crate::platform::api_error::{Class, Failure, within};
use crate::registries::secrets::Keys;
use crate::registries::secrets::metrics::Done;

/// One field manager for all who apply copies, so that they never contend for a field.
const FIELD_MANAGER: &str = "fairlead-webhook";

/// One request never takes longer.
pub(super) const LIMIT: Duration = Duration::from_secs(5);

/// The copy may change between the look and the write; then it is looked at again.
const ATTEMPTS: usize = 3;

impl CopiesInner {
    /// Makes the copy, or gives it the content and the marks that it should have; both are left alone where they are
    /// right and recent. Remembers how it went.
    pub(super) async fn put(
        &self,
        of: &SecretUse,
        keys: &Keys,
        place: &CopyPlace,
    ) -> Result<Copy, CopyError> {
        let outcome = self.try_put(of, keys, place).await;
        self.remember(place, keys, outcome.as_ref().map(drop));
        match &outcome {
            Ok(_) => {
                self.secrets.problems().copying(&of.by, place, None);
            }
            Err(error) => {
                let refused = matches!(error, CopyError::Foreign { .. });
                self.metrics.copy(if refused { Done::Refused } else { Done::Failed });
                tracing::warn!(policy = %of.by, secret = %of.secret, copy = %place, %error, "pull secret not copied");
                self.tell(of, place, error);
            }
        }
        outcome
    }

    /// Tells the policy that a copy of its Secret is not where it should be.
    pub(super) fn tell(&self, of: &SecretUse, place: &CopyPlace, error: &CopyError) {
        self.secrets.problems().copying(&of.by, place, Some(error.to_string()));
    }

    async fn try_put(&self, of: &SecretUse, keys: &Keys, place: &CopyPlace) -> Result<Copy, CopyError> {
        let failed =
            |why: String| CopyError::Failed { of: of.clone(), place: place.clone(), why: why.into() };
        for attempt in 1..=ATTEMPTS {
            let found = self.get(place).await.map_err(|failure| failed(failure.to_string()))?;
            let copy = match self.recognise(found.as_ref(), Some(&of.by.uid)) {
                FoundSecret::Foreign => {
                    return Err(CopyError::Foreign { of: of.clone(), place: place.clone() });
                }
                FoundSecret::Copy(copy) if self.is_good(&copy, keys) => return Ok(copy),
                FoundSecret::Copy(copy) => Some(copy),
                FoundSecret::Nothing => None,
            };
            let unchanged = copy.as_ref().is_some_and(|copy| copy.content == Some(keys.content()));
            // The type of a Secret cannot be changed.
            let retyped = found.is_some_and(|secret| secret.type_.as_deref() != Some(keys.type_name()));
            let applied = match (&copy, retyped) {
                (Some(copy), true) => match self.delete(place, copy).await {
                    Ok(()) => self.apply(of, keys, place, None).await,
                    Err(failure) => Err(failure),
                },
                _ => self.apply(of, keys, place, copy.as_ref()).await,
            };
            match applied {
                Ok(secret) => match self.recognise(Some(&secret), Some(&of.by.uid)) {
                    FoundSecret::Copy(copy) => {
                        self.metrics.copy(Done::Applied);
                        if unchanged {
                            tracing::debug!(copy = %place, "copy of a pull secret confirmed");
                        } else {
                            tracing::info!(policy = %of.by, secret = %of.secret, copy = %place, "pull secret copied");
                        }
                        return Ok(copy);
                    }
                    FoundSecret::Nothing | FoundSecret::Foreign => {
                        return Err(failed("something else takes its labels away".to_owned()));
                    }
                },
                Err(failure) if failure.class == Class::Conflict && attempt < ATTEMPTS => {}
                Err(failure) => return Err(failed(failure.to_string())),
            }
        }
        Err(failed("another writer keeps changing it".to_owned()))
    }

    fn is_good(&self, copy: &Copy, keys: &Keys) -> bool {
        let recent = self.now().saturating_sub(copy.applied_at) < VERIFY_AFTER;
        recent && copy.complete && copy.content == Some(keys.content())
    }

    /// What is at the place: a copy for the owner, if one is expected, or else for any policy.
    pub(super) async fn look(
        &self,
        place: &CopyPlace,
        owner_uid: Option<&str>,
    ) -> Result<FoundSecret, Failure> {
        Ok(self.recognise(self.get(place).await?.as_ref(), owner_uid))
    }

    async fn get(&self, place: &CopyPlace) -> Result<Option<Secret>, Failure> {
        within(LIMIT, self.api(place).get_opt(&place.name)).await
    }

    fn recognise(&self, secret: Option<&Secret>, owner_uid: Option<&str>) -> FoundSecret {
        secret.map_or(FoundSecret::Nothing, |secret| object::recognise(secret, owner_uid, self.now()))
    }

    async fn apply(
        &self,
        of: &SecretUse,
        keys: &Keys,
        place: &CopyPlace,
        before: Option<&Copy>,
    ) -> Result<Secret, Failure> {
        let version = before.map(|copy| copy.resource_version.as_str());
        // What is known to be a copy is taken over from its last writer. Where nothing was found, a Secret that appears
        // in this instant is foreign, and contending for its fields is what the server then refuses.
        let params = PatchParams { force: before.is_some(), ..PatchParams::apply(FIELD_MANAGER) };
        let body = Patch::Apply(object::write(&of.by, keys, place, version, self.now()));
        within(LIMIT, self.api(place).patch(&place.name, &params, &body)).await
    }

    /// Removes a copy that is still as it was seen. One that is gone already is fine.
    pub(super) async fn delete(&self, place: &CopyPlace, copy: &Copy) -> Result<(), Failure> {
        self.known.entries().remove(place);
        let preconditions = Preconditions {
            resource_version: Some(copy.resource_version.clone()),
            uid: Some(copy.uid.clone()),
        };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        match within(LIMIT, self.api(place).delete(&place.name, &params)).await {
            Ok(_) => {
                self.metrics.copy(Done::Deleted);
                Ok(())
            }
            Err(failure) if failure.class == Class::Absent => Ok(()),
            Err(failure) => Err(failure),
        }
    }

    fn api(&self, place: &CopyPlace) -> Api<Secret> {
        Api::namespaced(self.client.clone(), &place.namespace)
    }
}
