//! Signatures, attestations and other documents that refer to an image.
//!
//! They come in two forms: manifests that name the image as their subject, which registries list or keep in an index under
//! a tag, and the older agreement of cosign, tags made of the digest with an ending.

use bytes::Bytes;
use fairlead_domain::{digest::Digest, reference::Tag};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use serde_json::json;

use super::{CopyError, Job, steady::steadily};
use crate::{
    manifest::{Content, Descriptor, Manifest, OCI_INDEX, Selector},
    referrers::{Referrers, fallback_tag},
};

const COSIGN_ENDINGS: [&str; 3] = [".sig", ".att", ".sbom"];
const IMAGES_AT_ONCE: usize = 4;

impl Job<'_> {
    /// Copies what refers to the image and to each of its platforms.
    pub(super) async fn copy_referrers(&self, root: &Manifest) -> Result<(), CopyError> {
        let mut digests = vec![root.digest];
        if let Content::Index(index) = root.content().map_err(CopyError::Source)? {
            digests.extend(index.manifests.iter().map(|manifest| manifest.digest));
        }
        stream::iter(digests)
            .map(|digest| async move {
                self.copy_subjects(digest).await?;
                self.copy_cosign(digest).await
            })
            .buffer_unordered(IMAGES_AT_ONCE)
            .try_collect()
            .await
    }

    async fn copy_subjects(&self, digest: Digest) -> Result<(), CopyError> {
        let found = steadily(self.context, || self.source.referrers(&digest, self.context)).await;
        let found = found.map_err(CopyError::Source)?.manifests;
        if found.is_empty() {
            return Ok(());
        }
        for referrer in &found {
            self.copy_named(&referrer.digest.into()).await?;
        }
        let known = steadily(self.context, || self.destination.referrers(&digest, self.context)).await;
        match known.map_err(CopyError::Destination)? {
            Referrers { manifests, fallback_tag: Some(tag) } => self.list_under(&tag, manifests, found).await,
            _ => Ok(()),
        }
    }

    /// Adds referrers to the index that stands in for a list the registry does not keep.
    async fn list_under(
        &self,
        tag: &Tag,
        mut listed: Vec<Descriptor>,
        found: Vec<Descriptor>,
    ) -> Result<(), CopyError> {
        let before = listed.len();
        for referrer in found {
            if !listed.iter().any(|known| known.digest == referrer.digest) {
                listed.push(referrer);
            }
        }
        if listed.len() == before {
            return Ok(());
        }
        let document = json!({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": listed});
        let bytes = Bytes::from(document.to_string());
        let index = Manifest { media_type: OCI_INDEX.to_owned(), digest: Digest::sha256(&bytes), bytes };
        self.publish(&index, &Selector::from(tag)).await.map_err(CopyError::Destination)
    }

    async fn copy_cosign(&self, digest: Digest) -> Result<(), CopyError> {
        let Some(base) = fallback_tag(&digest) else { return Ok(()) };
        for ending in COSIGN_ENDINGS {
            if let Ok(tag) = Tag::parse(&format!("{base}{ending}")) {
                self.copy_named(&Selector::from(&tag)).await?;
            }
        }
        Ok(())
    }

    /// Copies a manifest under the name it has at the source, if it is there.
    async fn copy_named(&self, selector: &Selector) -> Result<(), CopyError> {
        let manifest = match self.read(selector).await {
            Ok(manifest) => manifest,
            Err(error) if error.problem.is_absence() => return Ok(()),
            Err(error) => return Err(CopyError::Source(error)),
        };
        if self.is_there(selector, manifest.digest).await? {
            return Ok(());
        }
        self.place(&manifest, selector, 1).await
    }
}
