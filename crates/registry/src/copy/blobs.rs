//! Getting one blob to the destination in the cheapest way there is.

use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use fairlead_domain::reference::Repository;
use futures::future::{Either, select};
use tokio::sync::SemaphorePermit;
use tokio::time::timeout_at;

use super::blob_index::{BlobState, Standing, Turn};
use super::retry::with_retries;
use super::transfer::{OpenUpload, Transfer};
use super::{BlobOutcome, CopyError, Event, Job};
use crate::error::{Error, ErrorClass, Problem};
use crate::manifest::Descriptor;
use crate::ops::upload::{Mount, Upload};
use crate::size_limits::HELD;

/// Below this size it is cheaper to send a blob than to ask for it first. A request to mount it from the destination
/// itself is both: the registry says that it is there, or opens the upload.
const SMALL: u64 = 1024 * 1024;
/// Blobs that are held at once, in all copies together, in units of [`HELD_UNIT`]: half a mebibyte. Many small ones may be under
/// way, and few that are not so small, each with buffers of its connections.
pub(super) const MOST_HELD: usize = 512;
const HELD_UNIT: u64 = 1024;

impl Job<'_> {
    /// Makes sure that the destination has a blob. With `look`, nothing that was known or said before is believed.
    pub(super) async fn place_blob(&self, blob: &Descriptor, look: bool) -> Result<(), CopyError> {
        self.observer.observe(&Event::BlobFound { digest: blob.digest, size: blob.size });
        let repository = self.destination.repository();
        let entry = self.blob_entry(blob);
        if look {
            entry.is_not_held(repository.path());
        }
        let Ok(standing) = timeout_at(self.context.deadline, entry.standing(repository)).await else {
            let problem = Problem::TimedOut("another copy was still sending it".into());
            let error = self.destination.during("write the blob", &blob.digest.into(), problem);
            return Err(CopyError::Destination(error));
        };
        let outcome = match standing {
            Standing::Held => BlobOutcome::Present,
            Standing::Elsewhere(_) if look => self.bring_plainly(blob).await?,
            Standing::Elsewhere(path) => self.take_over(blob, &entry, &path).await?,
            Standing::Missing(_guard) => {
                let outcome = if look { self.bring_plainly(blob).await? } else { self.bring(blob).await? };
                // Told before the guard goes, so that those who wait for it know.
                entry.is_held(repository);
                outcome
            }
        };
        entry.is_held(repository);
        self.tally.blob(outcome, blob.size);
        self.observer.observe(&Event::BlobDone { digest: blob.digest, size: blob.size, outcome });
        Ok(())
    }

    fn blob_entry(&self, blob: &Descriptor) -> Arc<BlobState> {
        let (repository, credentials) = (self.destination.repository(), self.destination.credentials());
        self.copier.blob_index.blob(repository, blob.digest, credentials)
    }

    /// Takes a blob from a repository that is known to have it.
    async fn take_over(
        &self,
        blob: &Descriptor,
        entry: &BlobState,
        path: &str,
    ) -> Result<BlobOutcome, CopyError> {
        let known = self.sibling(path);
        match self.mount(blob, known.as_ref()).await? {
            Ok(()) => Ok(BlobOutcome::Mounted),
            Err(upload) => {
                // Either it is gone from there or this registry mounts nothing; both are true from now on.
                entry.is_not_held(path);
                self.copier.blob_index.mounts_nothing(self.destination.repository());
                self.send(blob, Some(upload)).await
            }
        }
    }

    /// Finds out whether a blob is there, and brings it if it is not.
    async fn bring(&self, blob: &Descriptor) -> Result<BlobOutcome, CopyError> {
        let own = self.destination.repository();
        let source = self.source.repository();
        let neighbour =
            (source.host().key() == own.host().key() && source.path() != own.path()).then_some(source);
        if blob.size > SMALL || neighbour.is_some() {
            if self.is_found(blob).await? {
                return Ok(BlobOutcome::Present);
            }
            let Some(neighbour) = neighbour else { return self.send(blob, None).await };
            return match self.mount(blob, Some(neighbour)).await? {
                Ok(()) => Ok(BlobOutcome::Mounted),
                Err(upload) => self.send(blob, Some(upload)).await,
            };
        }
        let index = &self.copier.blob_index;
        let empty = index.was_empty(own);
        if blob.size <= HELD as u64 && (empty || index.probably_lacks(own)) {
            return self.bring_held(blob, (!empty).then_some(own)).await;
        }
        let mounted = self.mount(blob, Some(own)).await?;
        index.lacked(own, mounted.is_err());
        match mounted {
            Ok(()) => Ok(BlobOutcome::Present),
            Err(upload) => self.send(blob, Some(upload)).await,
        }
    }

    /// Brings a blob without asking for a mount: there are registries that grant every one and have nothing afterwards.
    async fn bring_plainly(&self, blob: &Descriptor) -> Result<BlobOutcome, CopyError> {
        if self.is_found(blob).await? { Ok(BlobOutcome::Present) } else { self.send(blob, None).await }
    }

    /// Whether the destination says that it has a blob. That only saves work, so one that does not answer such questions,
    /// or not to us, is sent the blob.
    async fn is_found(&self, blob: &Descriptor) -> Result<bool, CopyError> {
        match with_retries(self.context, || self.destination.blob_size(&blob.digest, self.context)).await {
            Ok(found) => Ok(found == Some(blob.size)),
            Err(error) if is_refusal(&error) => Ok(false),
            Err(error) => Err(CopyError::Destination(error)),
        }
    }

    /// Reads a small blob while the destination is asked for it, instead of afterwards. That is a step less for the copy,
    /// and reads that come together cost a registry less than the same ones in turn. If the blob is there after all, the
    /// source was asked in vain. Nobody is asked where the repository is known to have held nothing.
    async fn bring_held(
        &self,
        blob: &Descriptor,
        asked: Option<&Repository>,
    ) -> Result<BlobOutcome, CopyError> {
        let place = self.room_for(blob).await;
        let (mount, read) = (pin!(self.mount(blob, asked)), pin!(self.read_held(blob)));
        let (mounted, read) = match select(mount, read).await {
            Either::Left((mounted, read)) => (mounted?, Either::Left(read)),
            Either::Right((bytes, mount)) => (mount.await?, Either::Right(bytes)),
        };
        if let Some(asked) = asked {
            self.copier.blob_index.lacked(asked, mounted.is_err());
        }
        let Err(upload) = mounted else { return Ok(BlobOutcome::Present) };
        let mut open = OpenUpload(Some(upload));
        let bytes = match read {
            Either::Left(read) => read.await?,
            Either::Right(bytes) => bytes?,
        };
        let sent = self.put_held(blob, bytes, &mut open).await?;
        drop(place);
        if !sent {
            Transfer::new(self, blob).await?.run(open).await?;
        }
        Ok(BlobOutcome::Sent)
    }

    /// Room for a blob that is small enough to be held.
    async fn room_for(&self, blob: &Descriptor) -> Option<SemaphorePermit<'_>> {
        let units = u32::try_from(blob.size.div_ceil(HELD_UNIT).max(1)).ok()?;
        self.copier.held.acquire_many(units).await.ok()
    }

    async fn read_held(&self, blob: &Descriptor) -> Result<Bytes, CopyError> {
        let read = || async {
            let bytes = self.source.small_blob(blob, HELD, self.context).await;
            bytes.map_err(|problem| self.source.during("read the blob", &blob.digest.into(), problem))
        };
        let turn = self.turn(blob);
        turn.came(0);
        let bytes = with_retries(self.context, read).await.map_err(CopyError::Source)?;
        turn.is_complete();
        Ok(bytes)
    }

    /// Our turn to send a blob. To be taken before anything of it is read: one who is slow then may lose it.
    pub(super) fn turn(&self, blob: &Descriptor) -> Arc<Turn> {
        self.blob_entry(blob).turn()
    }

    /// Asks for a mount; the upload that a registry opens instead is not wasted.
    async fn mount(
        &self,
        blob: &Descriptor,
        from: Option<&Repository>,
    ) -> Result<Result<(), Upload>, CopyError> {
        if let Some(from) = from {
            let mounted =
                with_retries(self.context, || self.destination.mount(&blob.digest, from, self.context)).await;
            match mounted {
                Ok(Mount::Done) => return Ok(Ok(())),
                Ok(Mount::Refused(upload)) => return Ok(Err(*upload)),
                // No right to read there, or no idea what was asked: an upload may still work.
                Err(error) if is_refusal(&error) => {}
                Err(error) => return Err(CopyError::Destination(error)),
            }
        }
        let upload = with_retries(self.context, || self.destination.begin_upload(self.context)).await;
        upload.map(Err).map_err(CopyError::Destination)
    }

    async fn send(&self, blob: &Descriptor, upload: Option<Upload>) -> Result<BlobOutcome, CopyError> {
        let mut open = OpenUpload(upload);
        if blob.size <= HELD as u64 && self.send_held(blob, &mut open).await? {
            return Ok(BlobOutcome::Sent);
        }
        let transfer = Transfer::new(self, blob).await?;
        transfer.run(open).await?;
        Ok(BlobOutcome::Sent)
    }

    /// Reads a small blob and sends it. False if the destination wants it in another way.
    async fn send_held(&self, blob: &Descriptor, open: &mut OpenUpload) -> Result<bool, CopyError> {
        let _place = self.room_for(blob).await;
        let bytes = self.read_held(blob).await?;
        if open.0.is_none() {
            let upload = with_retries(self.context, || self.destination.begin_upload(self.context)).await;
            open.0 = Some(upload.map_err(CopyError::Destination)?);
        }
        self.put_held(blob, bytes, open).await
    }

    /// Sends a small blob. False if the destination wants it in another way.
    async fn put_held(
        &self,
        blob: &Descriptor,
        bytes: Bytes,
        open: &mut OpenUpload,
    ) -> Result<bool, CopyError> {
        let Some(upload) = &open.0 else { return Ok(false) };
        // How much of a failed attempt arrived is not known. If that matters, the next attempt is told so.
        let sent =
            with_retries(self.context, || upload.put_bytes(&blob.digest, bytes.clone(), self.context)).await;
        match sent {
            Ok(()) => {
                open.0 = None;
                Ok(true)
            }
            Err(error) if is_about_the_way(&error.problem) => {
                open.give_up();
                Ok(false)
            }
            Err(error) => Err(CopyError::Destination(error)),
        }
    }

    /// Another repository of the destination's registry.
    fn sibling(&self, path: &str) -> Option<Repository> {
        let host = self.destination.repository().host();
        fairlead_domain::reference::Reference::parse(&format!("{host}/{path}"))
            .ok()
            .map(|image| image.repository())
    }
}

/// Whether a blob may be accepted if it is sent in another way, or once more from the beginning.
fn is_about_the_way(problem: &Problem) -> bool {
    matches!(problem, Problem::Rejected { .. } | Problem::NotFound(_) | Problem::Unauthorised(_))
}

fn is_refusal(error: &Error) -> bool {
    matches!(error.class(), ErrorClass::Denied | ErrorClass::Absent | ErrorClass::Broken)
}
