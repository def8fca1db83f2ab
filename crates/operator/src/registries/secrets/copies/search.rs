//! Looks for copies of one name in every namespace.
//!
//! Secrets are not listed, so this is how copies are found that no Pod leads to: those of a former leader, those made
//! for Pods that were refused afterwards, and those that kube-image-keeper left behind.

use std::sync::Arc;

use fairlead_plan::pull_secrets::{CopyPlace, FoundSecret, Sighting};
use fairlead_plan::routing::SecretUse;
use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::Secret;
use kube::Api;

use super::controller::{CopyKeeper, PACE};
use super::object;
use super::put::LIMIT;
use crate::platform::api_error::{Failure, within};

const AT_ONCE: usize = 4;

impl CopyKeeper {
    pub(super) async fn search(&mut self, name: Arc<str>, of: &SecretUse) -> Result<(), Failure> {
        let began = self.shared().now();
        for (place, found) in self.search_all(&name, of).await? {
            self.saw_metadata(place, found);
        }
        self.searched.insert(name, began);
        Ok(())
    }

    /// What is known in full stays known in full, as long as it is the same version.
    fn saw_metadata(&mut self, place: CopyPlace, found: FoundSecret) {
        let same = |known: &Sighting| match (&known.found, &found) {
            (FoundSecret::Copy(known), FoundSecret::Copy(found)) => {
                known.resource_version == found.resource_version
            }
            _ => false,
        };
        if !self.sightings.get(&place).is_some_and(same) {
            self.saw(place, found);
        }
    }

    async fn search_all(
        &self,
        name: &Arc<str>,
        of: &SecretUse,
    ) -> Result<Vec<(CopyPlace, FoundSecret)>, Failure> {
        let namespaces = self.shared().namespaces.names();
        let elsewhere = namespaces.into_iter().filter(|namespace| *namespace != of.secret.namespace);
        let looks = stream::iter(elsewhere)
            .then(|namespace| async move {
                tokio::time::sleep(PACE).await;
                namespace
            })
            .map(|namespace| async move {
                let api = Api::<Secret>::namespaced(self.context.client.clone(), &namespace);
                (namespace, within(LIMIT, api.get_metadata_opt(name)).await)
            });
        let mut looks = std::pin::pin!(looks.buffer_unordered(AT_ONCE));
        let mut seen = Vec::new();
        while let Some((namespace, metadata)) = looks.next().await {
            if let Some(found) = metadata? {
                let place = CopyPlace { namespace, name: name.clone() };
                let now = self.shared().now();
                seen.push((place, object::recognise_metadata(&found.metadata, Some(&of.by.uid), now)));
            }
        }
        Ok(seen)
    }
}
