//! Writes manifests to the destination, each after everything it names.

use std::collections::HashSet;
use std::pin::Pin;

use futures::{StreamExt as _, TryStreamExt as _, stream};

use super::retry::with_retries;
use super::transfer::COMMIT;
use super::{CopyError, Event, Job};
use crate::error::{Error, Problem};
use crate::manifest::{Content, Descriptor, Manifest, Selector, is_manifest};

/// Deepest nesting of indexes.
pub(super) const DEEPEST: u32 = 3;
/// Manifests of one index copied at once.
const MANIFESTS_AT_ONCE: usize = 4;
/// Blobs of one image copied at once; transfers are limited for all copies together.
const BLOBS_AT_ONCE: usize = 16;

impl Job<'_> {
    /// Copies a manifest and everything it names, and publishes it under `target` last.
    pub(super) fn place<'b>(
        &'b self,
        manifest: &'b Manifest,
        target: &'b Selector,
        depth: u32,
    ) -> Pin<Box<dyn Future<Output = Result<(), CopyError>> + Send + 'b>> {
        Box::pin(async move {
            if manifest.is_index() && depth == DEEPEST {
                return Err(CopyError::TooDeep { digest: Box::new(manifest.digest) });
            }
            let parts = Parts::of(manifest.content().map_err(CopyError::Source)?);
            self.place_parts(&parts, depth, false).await?;
            if depth == 0 {
                self.announce(manifest, target);
            }
            let mut written = self.write(manifest, target).await;
            if is_about_content(&written) {
                // The destination was cleaned up meanwhile: everything is checked again.
                self.place_parts(&parts, depth, true).await?;
                written = self.write(manifest, target).await;
            }
            if is_about_content(&written) && !parts.foreign.is_empty() {
                self.place_foreign(&parts.foreign).await?;
                written = self.write(manifest, target).await;
            }
            self.accept(written, manifest, target).await.map_err(CopyError::Destination)
        })
    }

    async fn place_parts(&self, parts: &Parts, depth: u32, look: bool) -> Result<(), CopyError> {
        self.place_blobs(&parts.blobs, look).await?;
        stream::iter(parts.manifests.clone())
            .map(|child| self.place_child(child, depth + 1))
            .buffer_unordered(MANIFESTS_AT_ONCE)
            .try_collect::<()>()
            .await
    }

    async fn place_child(&self, child: Descriptor, depth: u32) -> Result<(), CopyError> {
        let target = Selector::from(child.digest);
        if self.is_there(&target, child.digest).await? {
            return Ok(());
        }
        let manifest = self.read(&target).await.map_err(CopyError::Source)?;
        self.place(&manifest, &target, depth).await
    }

    async fn place_blobs(&self, blobs: &[Descriptor], look: bool) -> Result<(), CopyError> {
        stream::iter(blobs.to_vec())
            .map(|blob| async move { self.place_blob(&blob, look).await })
            .buffer_unordered(BLOBS_AT_ONCE)
            .try_collect::<()>()
            .await
    }

    /// Copies layers that registries need not store, for a registry that requires them, as far as the source has them.
    async fn place_foreign(&self, blobs: &[Descriptor]) -> Result<(), CopyError> {
        for blob in blobs {
            match self.place_blob(blob, true).await {
                Err(CopyError::Source(error)) if error.problem.is_absence() => {}
                placed => placed?,
            }
        }
        Ok(())
    }

    /// Announces that a tag of the image itself is about to be written.
    pub(super) fn announce(&self, manifest: &Manifest, target: &Selector) {
        if target.digest().is_none() {
            self.observer.observe(&Event::Publishing { digest: manifest.digest });
        }
    }

    pub(super) async fn publish(&self, manifest: &Manifest, target: &Selector) -> Result<(), Error> {
        let written = self.write(manifest, target).await;
        self.accept(written, manifest, target).await
    }

    async fn write(&self, manifest: &Manifest, target: &Selector) -> Result<(), Error> {
        let context = self.sending.clone().answered_within(COMMIT);
        with_retries(&context, || self.destination.put_manifest(target, manifest, &context)).await
    }

    /// Records what was published. A refusal counts as success if the name has this manifest: the answer to an earlier
    /// attempt was lost, or another client was faster, and the registry does not overwrite tags.
    async fn accept(
        &self,
        written: Result<(), Error>,
        manifest: &Manifest,
        target: &Selector,
    ) -> Result<(), Error> {
        if let Err(error) = written {
            let refused = matches!(error.problem, Problem::Rejected { .. } | Problem::Forbidden(_));
            let found =
                if refused { self.destination.resolve(target, self.context).await.ok() } else { None };
            if !found.is_some_and(|found| found.digest.matches(&manifest.bytes)) {
                return Err(error);
            }
        }
        self.is_published(target);
        self.tally.manifest();
        Ok(())
    }
}

/// What a manifest names, and the destination must have before.
struct Parts {
    manifests: Vec<Descriptor>,
    blobs: Vec<Descriptor>,
    /// Blobs that registries usually need not have.
    foreign: Vec<Descriptor>,
}

impl Parts {
    fn of(content: Content) -> Self {
        let (manifests, blobs): (Vec<_>, Vec<_>) = match content {
            Content::Index(index) => index.manifests.into_iter().partition(is_manifest_entry),
            Content::Image(image) => (vec![], image.layers.into_iter().chain([image.config]).collect()),
        };
        // A blob may be foreign in one place and ordinary in another.
        let (foreign, blobs): (Vec<_>, Vec<_>) = blobs.into_iter().partition(is_foreign);
        let mut blobs = distinct(blobs);
        // The largest first, so that they do not end alone.
        blobs.sort_by_key(|blob| std::cmp::Reverse(blob.size));
        Self { manifests: distinct(manifests), blobs, foreign: distinct(foreign) }
    }
}

/// Whether an entry of an index is a manifest. Build caches list layers there, which are blobs.
pub(super) fn is_manifest_entry(entry: &Descriptor) -> bool {
    entry.media_type.is_empty() || is_manifest(&entry.media_type)
}

pub(super) fn distinct(descriptors: impl IntoIterator<Item = Descriptor>) -> Vec<Descriptor> {
    let mut seen = HashSet::new();
    descriptors.into_iter().filter(|descriptor| seen.insert(descriptor.digest)).collect()
}

/// Layers whose licence keeps them out of registries: runtimes fetch them from elsewhere.
fn is_foreign(blob: &Descriptor) -> bool {
    blob.urls.as_ref().is_some_and(|urls| !urls.is_empty())
        && (blob.media_type.contains("nondistributable") || blob.media_type.contains(".foreign."))
}

/// Whether a manifest was refused, perhaps because parts are missing.
fn is_about_content(written: &Result<(), Error>) -> bool {
    let problem = written.as_ref().err().map(|error| &error.problem);
    matches!(problem, Some(Problem::NotFound(_) | Problem::Rejected { status: 400, .. }))
}
