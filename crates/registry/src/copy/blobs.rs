//! Brings one blob to the destination in the cheapest way.

use std::sync::Arc;

use bytes::Bytes;
use fairlead_domain::reference::{Reference, Repository};
use tokio::sync::SemaphorePermit;
use tokio::time::timeout_at;

use super::blob_index::{BlobState, Standing};
use super::retry::with_retries;
use super::transfer::{OpenUpload, Transfer};
use super::{BlobOutcome, CopyError, Event, Job};
use crate::error::{Error, ErrorClass, Problem};
use crate::manifest::Descriptor;
use crate::ops::upload::{Mount, Upload};
use crate::size_limits::HELD;

/// Below this size a blob is sent without a HEAD first. A request to mount it from the destination itself answers the
/// same question: the registry has it, or opens the upload.
const SMALL: u64 = 1024 * 1024;
/// Blobs held in memory at once, in all copies together, in units of [`HELD_UNIT`]: half a mebibyte. Many small ones
/// may be under way, and few that are larger, each with the buffers of its connections.
pub(super) const MOST_HELD: usize = 512;
const HELD_UNIT: u64 = 1024;

impl Job<'_> {
    /// Makes sure that the destination has a blob. With `look`, earlier knowledge is not used.
    pub(super) async fn place_blob(&self, blob: &Descriptor, look: bool) -> Result<(), CopyError> {
        self.observer.observe(&Event::BlobFound { digest: blob.digest, size: blob.size });
        let repository = self.destination.repository();
        let state = self.blob_state(blob);
        if look {
            state.is_not_held(repository.path());
        }
        let Ok(standing) = timeout_at(self.context.deadline, state.standing(repository)).await else {
            let problem = Problem::TimedOut("another copy was still sending it".into());
            let error = self.destination.during("write the blob", &blob.digest.into(), problem);
            return Err(CopyError::Destination(error));
        };
        let (outcome, guard) = match standing {
            Standing::Held => (BlobOutcome::Present, None),
            Standing::Elsewhere(_) if look => (self.bring_without_mount(blob).await?, None),
            Standing::Elsewhere(path) => (self.bring_from_sibling(blob, &state, &path).await?, None),
            Standing::Missing(guard) if look => (self.bring_without_mount(blob).await?, Some(guard)),
            Standing::Missing(guard) => (self.bring(blob).await?, Some(guard)),
        };
        // Before the guard is dropped, so that waiting copies see it.
        state.is_held(repository);
        drop(guard);
        self.tally.blob(outcome, blob.size);
        self.observer.observe(&Event::BlobDone { digest: blob.digest, size: blob.size, outcome });
        Ok(())
    }

    pub(super) fn blob_state(&self, blob: &Descriptor) -> Arc<BlobState> {
        let (repository, credentials) = (self.destination.repository(), self.destination.credentials());
        self.copier.blob_index.blob(repository, blob.digest, credentials)
    }

    /// Mounts a blob from a repository of the destination's registry that is known to have it.
    async fn bring_from_sibling(
        &self,
        blob: &Descriptor,
        state: &BlobState,
        path: &str,
    ) -> Result<BlobOutcome, CopyError> {
        let own = self.destination.repository();
        let sibling =
            Reference::parse(&format!("{}/{path}", own.host())).ok().map(|image| image.repository());
        match self.mount(blob, sibling.as_ref()).await? {
            Ok(()) => Ok(BlobOutcome::Mounted),
            Err(upload) => {
                // It is gone from there, or this registry does not mount.
                state.is_not_held(path);
                self.copier.blob_index.mounts_nothing(own);
                self.send(blob, Some(upload)).await
            }
        }
    }

    /// Finds out whether the destination has a blob, and brings it if not.
    async fn bring(&self, blob: &Descriptor) -> Result<BlobOutcome, CopyError> {
        let (own, source) = (self.destination.repository(), self.source.repository());
        let is_neighbour = source.host().key() == own.host().key() && source.path() != own.path();
        let (from, mounted) =
            if is_neighbour { (source, BlobOutcome::Mounted) } else { (own, BlobOutcome::Present) };
        if blob.size > SMALL || is_neighbour {
            if self.has_blob(blob).await? {
                return Ok(BlobOutcome::Present);
            }
            if !is_neighbour {
                return self.send(blob, None).await;
            }
        }
        match self.mount(blob, Some(from)).await? {
            Ok(()) => Ok(mounted),
            Err(upload) => self.send(blob, Some(upload)).await,
        }
    }

    /// Brings a blob without a mount: some registries grant every mount and have nothing afterwards.
    async fn bring_without_mount(&self, blob: &Descriptor) -> Result<BlobOutcome, CopyError> {
        if self.has_blob(blob).await? { Ok(BlobOutcome::Present) } else { self.send(blob, None).await }
    }

    /// Whether the destination says that it has a blob. One that refuses the question is sent the blob.
    async fn has_blob(&self, blob: &Descriptor) -> Result<bool, CopyError> {
        match with_retries(self.context, || self.destination.blob_size(&blob.digest, self.context)).await {
            Ok(found) => Ok(found == Some(blob.size)),
            Err(error) if is_refusal(&error) => Ok(false),
            Err(error) => Err(CopyError::Destination(error)),
        }
    }

    /// Requests a mount. The upload that a registry opens instead is used.
    async fn mount(
        &self,
        blob: &Descriptor,
        from: Option<&Repository>,
    ) -> Result<Result<(), Upload>, CopyError> {
        if let Some(from) = from {
            let mount = || self.destination.mount(&blob.digest, from, self.context);
            match with_retries(self.context, mount).await {
                Ok(Mount::Done) => return Ok(Ok(())),
                Ok(Mount::Refused(upload)) => return Ok(Err(*upload)),
                // No right to read there, or mounts are not supported: an upload may still work.
                Err(error) if is_refusal(&error) => {}
                Err(error) => return Err(CopyError::Destination(error)),
            }
        }
        self.begin_upload().await.map(Err)
    }

    pub(super) async fn begin_upload(&self) -> Result<Upload, CopyError> {
        let upload = with_retries(self.context, || self.destination.begin_upload(self.context)).await;
        upload.map_err(CopyError::Destination)
    }

    async fn send(&self, blob: &Descriptor, upload: Option<Upload>) -> Result<BlobOutcome, CopyError> {
        let mut open = OpenUpload(upload);
        let is_sent = blob.size <= HELD as u64 && self.send_held(blob, &mut open).await?;
        if !is_sent {
            Transfer::new(self, blob).await?.run(open).await?;
        }
        Ok(BlobOutcome::Sent)
    }

    /// Reads a small blob and sends it. False if the destination wants it in another way.
    async fn send_held(&self, blob: &Descriptor, open: &mut OpenUpload) -> Result<bool, CopyError> {
        let _room = self.room_for(blob).await;
        let bytes = self.read_held(blob).await?;
        let upload = match &open.0 {
            Some(upload) => upload,
            None => open.0.insert(self.begin_upload().await?),
        };
        // How much of a failed attempt arrived is not known. If it matters, the registry refuses the next attempt.
        let put = || upload.put_bytes(&blob.digest, bytes.clone(), self.context);
        match with_retries(self.context, put).await {
            Ok(()) => {
                open.0 = None;
                Ok(true)
            }
            Err(error) if may_work_otherwise(&error.problem) => {
                open.cancel();
                Ok(false)
            }
            Err(error) => Err(CopyError::Destination(error)),
        }
    }

    async fn room_for(&self, blob: &Descriptor) -> Option<SemaphorePermit<'_>> {
        let units = u32::try_from(blob.size.div_ceil(HELD_UNIT).max(1)).ok()?;
        self.copier.held.acquire_many(units).await.ok()
    }

    async fn read_held(&self, blob: &Descriptor) -> Result<Bytes, CopyError> {
        let read = || async {
            let bytes = self.source.small_blob(blob, HELD, self.context).await;
            bytes.map_err(|problem| self.source.during("read the blob", &blob.digest.into(), problem))
        };
        let sender = self.blob_state(blob).sender();
        sender.came(0);
        let bytes = with_retries(self.context, read).await.map_err(CopyError::Source)?;
        sender.is_complete();
        Ok(bytes)
    }
}

/// Whether a blob may be accepted if it is sent in another way, or from the beginning.
fn may_work_otherwise(problem: &Problem) -> bool {
    matches!(problem, Problem::Rejected { .. } | Problem::NotFound(_) | Problem::Unauthorised(_))
}

fn is_refusal(error: &Error) -> bool {
    matches!(error.class(), ErrorClass::Denied | ErrorClass::Absent | ErrorClass::Broken)
}
