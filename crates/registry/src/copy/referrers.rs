//! Copies signatures, attestations and other documents that refer to an image.
//!
//! There are two forms: manifests with the image as their subject, which registries list or keep in an index under a
//! tag, and cosign's older tags, made of the digest and an ending. Their subject may be the image, a manifest within
//! it, or another such document: a bill of materials can be signed.
//!
//! The destination may have documents of its own. Lists are extended; the content of a cosign tag is replaced only if
//! nothing is lost.

use std::collections::{BTreeMap, HashSet};

use bytes::Bytes;
use fairlead_domain::digest::Digest;
use fairlead_domain::reference::Tag;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use serde_json::json;

use super::manifests::{DEEPEST, distinct, is_manifest_entry};
use super::retry::with_retries;
use super::{CopyError, Job};
use crate::error::Problem;
use crate::manifest::{Content, DOCKER_LIST, Descriptor, Manifest, OCI_INDEX, Selector};
use crate::ops::referrers::{Referrers, fallback_tag};

const COSIGN_ENDINGS: [&str; 3] = [".sig", ".att", ".sbom"];
const SUBJECTS_AT_ONCE: usize = 4;
/// Longest chain of referrers. A signature of an attestation is two.
const FARTHEST: usize = 4;
/// Most manifests whose referrers one copy looks for.
const MOST_SUBJECTS: usize = 4096;

impl Job<'_> {
    /// Copies the referrers of the image, of every manifest within it, and of what was copied as a referrer.
    pub(super) async fn copy_referrers(&self, root: &Manifest) -> Result<(), CopyError> {
        let mut seen = HashSet::new();
        let mut subjects = self.manifests_within(root).await?;
        for _ in 0..=FARTHEST {
            subjects.retain(|subject| seen.insert(*subject));
            bounded(root.digest, seen.len())?;
            subjects = stream::iter(subjects)
                .map(|subject| self.copy_referrers_of(subject))
                .buffer_unordered(SUBJECTS_AT_ONCE)
                .try_concat()
                .await?;
            if subjects.is_empty() {
                return Ok(());
            }
        }
        Err(CopyError::TooManyReferrers { digest: Box::new(root.digest) })
    }

    /// A manifest and all manifests within it, on every level.
    async fn manifests_within(&self, root: &Manifest) -> Result<Vec<Digest>, CopyError> {
        let mut found = vec![root.digest];
        let mut level = entries(root)?;
        for _ in 0..DEEPEST {
            let mut deeper = Vec::new();
            for entry in level {
                found.push(entry.digest);
                if matches!(entry.media_type.as_str(), OCI_INDEX | DOCKER_LIST | "") {
                    let inner = self.read(&entry.digest.into()).await.map_err(CopyError::Source)?;
                    deeper.extend(entries(&inner)?);
                }
                bounded(root.digest, found.len() + deeper.len())?;
            }
            level = distinct(deeper);
        }
        Ok(found)
    }

    /// Copies the referrers of one manifest, and returns the manifests that were copied.
    async fn copy_referrers_of(&self, subject: Digest) -> Result<Vec<Digest>, CopyError> {
        let mut brought = self.copy_listed(subject).await?;
        let Some(base) = fallback_tag(&subject) else { return Ok(brought) };
        for ending in COSIGN_ENDINGS {
            if let Ok(tag) = Tag::parse(&format!("{base}{ending}")) {
                brought.extend(self.copy_tagged(&tag).await?);
            }
        }
        Ok(brought)
    }

    async fn copy_listed(&self, subject: Digest) -> Result<Vec<Digest>, CopyError> {
        let found = with_retries(self.context, || self.source.referrers(&subject, self.context)).await;
        let found = distinct(found.map_err(CopyError::Source)?.manifests);
        bounded(subject, found.len())?;
        let (mut brought, mut copied) = (Vec::new(), Vec::new());
        for referrer in found {
            // A deleted referrer often stays in the list.
            if let Some(manifests) = self.copy_referrer(referrer.digest).await? {
                brought.extend(manifests);
                copied.push(referrer);
            }
        }
        if copied.is_empty() {
            return Ok(brought);
        }
        let Some(tag) = fallback_tag(&subject) else { return Ok(brought) };
        let _turn = self.copier.tag_locks.lock(self.destination.repository(), tag.as_str()).await;
        let known = with_retries(self.context, || self.destination.referrers(&subject, self.context)).await;
        if let Referrers { manifests, fallback_tag: Some(tag) } = known.map_err(CopyError::Destination)? {
            self.list_under(&tag, manifests, copied).await?;
        }
        Ok(brought)
    }

    /// Adds referrers to the index under a tag, for a registry that does not list them.
    async fn list_under(
        &self,
        tag: &Tag,
        known: Vec<Descriptor>,
        mut copied: Vec<Descriptor>,
    ) -> Result<(), CopyError> {
        copied.retain(|referrer| known.iter().all(|known| known.digest != referrer.digest));
        if copied.is_empty() {
            return Ok(());
        }
        // Registries refuse an index with missing entries, so those are removed.
        let mut listed = Vec::new();
        for referrer in known {
            if self.is_there(&referrer.digest.into(), referrer.digest).await? {
                listed.push(referrer);
            }
        }
        listed.extend(copied);
        let document = json!({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": listed});
        let bytes = Bytes::from(document.to_string());
        let index = Manifest { media_type: OCI_INDEX.to_owned(), digest: Digest::sha256(&bytes), bytes };
        self.publish(&index, &Selector::from(tag)).await.map_err(CopyError::Destination)
    }

    /// Copies a referrer if it exists, and returns all manifests within it.
    async fn copy_referrer(&self, digest: Digest) -> Result<Option<Vec<Digest>>, CopyError> {
        let selector = Selector::from(digest);
        let Some(manifest) = self.read_if_there(&selector).await? else { return Ok(None) };
        if !self.is_there(&selector, digest).await? {
            self.place(&manifest, &selector, 1).await?;
        }
        self.manifests_within(&manifest).await.map(Some)
    }

    /// Copies the content of a cosign tag if it exists, and returns all manifests within it.
    async fn copy_tagged(&self, tag: &Tag) -> Result<Vec<Digest>, CopyError> {
        let selector = Selector::from(tag);
        let Some(manifest) = self.read_if_there(&selector).await? else { return Ok(Vec::new()) };
        let _turn = self.copier.tag_locks.lock(self.destination.repository(), tag.as_str()).await;
        // Resolved, not taken from a list: signatures that were added meanwhile must not be lost.
        match self.look(&selector).await? {
            Some(found) if found == manifest.digest => {}
            Some(_) if !self.options.follow_source && self.has_all_of(&manifest, tag).await? => {
                return Ok(Vec::new());
            }
            _ => self.place(&manifest, &selector, 1).await?,
        }
        self.manifests_within(&manifest).await
    }

    /// Whether the destination has everything under this tag that the source has, and more. An error if each has
    /// something that the other lacks.
    async fn has_all_of(&self, manifest: &Manifest, tag: &Tag) -> Result<bool, CopyError> {
        let selector = Selector::from(tag);
        let found = with_retries(self.context, || self.destination.manifest(&selector, self.context)).await;
        let found = match found.and_then(|found| found.content()) {
            Ok(found) => documents(found),
            Err(error) if matches!(error.problem, Problem::NotFound(_)) => return Ok(false),
            Err(error) => return Err(CopyError::Destination(error)),
        };
        let wanted = documents(manifest.content().map_err(CopyError::Source)?);
        if found.is_subset(&wanted) {
            return Ok(false);
        }
        let has_all = wanted.is_subset(&found);
        has_all.then_some(true).ok_or_else(|| CopyError::OtherDocuments { tag: tag.as_str().to_owned() })
    }

    /// A manifest of the source, `None` if it does not exist.
    ///
    /// A refusal does not count as absence: the same credential has just read the image, and a signature must not be
    /// left out silently.
    async fn read_if_there(&self, selector: &Selector) -> Result<Option<Manifest>, CopyError> {
        match self.read(selector).await {
            Ok(manifest) => Ok(Some(manifest)),
            Err(error) if matches!(error.problem, Problem::NotFound(_)) => Ok(None),
            Err(error) => Err(CopyError::Source(error)),
        }
    }
}

/// The documents under a cosign tag. Several signatures often have the same content, which states what was signed; the
/// signature itself is in the annotations.
fn documents(content: Content) -> HashSet<(Digest, Option<BTreeMap<String, String>>)> {
    let parts = match content {
        Content::Image(image) => image.layers,
        Content::Index(index) => index.manifests,
    };
    parts.into_iter().map(|part| (part.digest, part.annotations)).collect()
}

/// Limits the number of manifests that one image leads to.
fn bounded(digest: Digest, count: usize) -> Result<(), CopyError> {
    let few = count <= MOST_SUBJECTS;
    few.then_some(()).ok_or_else(|| CopyError::TooManyReferrers { digest: Box::new(digest) })
}

/// The manifests in an index; none for an image.
fn entries(manifest: &Manifest) -> Result<Vec<Descriptor>, CopyError> {
    let Content::Index(index) = manifest.content().map_err(CopyError::Source)? else { return Ok(Vec::new()) };
    Ok(distinct(index.manifests.into_iter().filter(is_manifest_entry)))
}
