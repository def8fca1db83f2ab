//! When images of a registry were made. Registries count a manifest that is read as a pull, so each is read once.

use std::collections::{BTreeMap, HashMap};

use fairlead_domain::digest::Digest;
use fairlead_domain::reference::Tag;
use fairlead_registry::manifest::Selector;
use fairlead_registry::{Context as CallContext, Error, RepositoryClient};
use futures::{StreamExt, stream};
use jiff::Timestamp;
use parking_lot::Mutex;

/// Images that are remembered.
const MOST: usize = 10_000;
/// Requests at once.
const AT_ONCE: usize = 8;

/// What is known by digest, which is for ever.
#[derive(Debug, Default)]
pub(super) struct Dates(Mutex<HashMap<Digest, Option<Timestamp>>>);

impl Dates {
    /// When the images of these tags were made, of those where that can be found out.
    pub(super) async fn of(
        &self,
        remote: &RepositoryClient,
        tags: Vec<Tag>,
        call: &CallContext,
    ) -> BTreeMap<Tag, Timestamp> {
        let ask = |tag: Tag| async {
            let found = self.of_one(remote, &tag, call).await.unwrap_or_else(|error| {
                tracing::debug!(%error, "it is not known when an image was made");
                None
            });
            found.map(|at| (tag, at))
        };
        let found = stream::iter(tags).map(ask).buffer_unordered(AT_ONCE);
        found.filter_map(|found| async { found }).collect().await
    }

    async fn of_one(
        &self,
        remote: &RepositoryClient,
        tag: &Tag,
        call: &CallContext,
    ) -> Result<Option<Timestamp>, Error> {
        let digest = remote.resolve(&Selector::from(tag), call).await?.digest;
        let known = self.0.lock().get(&digest).copied();
        if let Some(known) = known {
            return Ok(known);
        }
        let made = remote.created(&digest.into(), call).await?;
        let made = made.and_then(|text| text.parse().ok());
        let mut all = self.0.lock();
        if all.len() >= MOST {
            all.clear();
        }
        all.insert(digest, made);
        Ok(made)
    }
}
