//! Getting one blob to the destination in the cheapest way there is.

use fairlead_domain::reference::Repository;

use super::{
    BlobOutcome, CopyError, Event, Job,
    ledger::{Entry, Standing},
    steady::steadily,
    transfer::Transfer,
};
use crate::{
    error::{Error, ErrorClass},
    manifest::Descriptor,
    upload::{Mount, Upload},
};

/// Below this size it is cheaper to send a blob than to ask for it first. A request to mount it from the destination
/// itself is both: the registry says that it is there, or opens the upload.
const SMALL: u64 = 1024 * 1024;

impl Job<'_> {
    /// Makes sure that the destination has a blob. With `look`, nothing that was known before is believed.
    pub(super) async fn place_blob(&self, blob: &Descriptor, look: bool) -> Result<(), CopyError> {
        self.observer.observe(&Event::BlobFound { digest: blob.digest, size: blob.size });
        let repository = self.destination.repository();
        let entry = self.copier.ledger.entry(repository, blob.digest);
        if look {
            entry.is_not_held(repository.path());
        }
        let outcome = match entry.standing(repository).await {
            Standing::Held => BlobOutcome::Present,
            Standing::Elsewhere(path) => self.take_over(blob, &entry, &path).await?,
            Standing::Missing(_guard) => {
                let outcome = self.bring(blob).await?;
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

    /// Takes a blob from a repository that is known to have it.
    async fn take_over(
        &self,
        blob: &Descriptor,
        entry: &Entry,
        path: &str,
    ) -> Result<BlobOutcome, CopyError> {
        let known = self.sibling(path);
        match self.mount(blob, known.as_ref()).await? {
            Ok(()) => Ok(BlobOutcome::Mounted),
            Err(upload) => {
                // Either it is gone from there or this registry mounts nothing; both are true from now on.
                entry.is_not_held(path);
                self.copier.ledger.mounts_nothing(self.destination.repository());
                self.send(blob, Some(upload)).await
            }
        }
    }

    /// Finds out whether a blob is there, and brings it if it is not.
    async fn bring(&self, blob: &Descriptor) -> Result<BlobOutcome, CopyError> {
        let own = self.destination.repository();
        let source = self.source.repository();
        let neighbour = (source.host() == own.host() && source != own).then_some(source);
        if blob.size > SMALL || neighbour.is_some() {
            let found = self
                .destination
                .blob_size(&blob.digest, self.context)
                .await
                .map_err(CopyError::Destination)?;
            if found == Some(blob.size) {
                return Ok(BlobOutcome::Present);
            }
            let Some(neighbour) = neighbour else { return self.send(blob, None).await };
            return match self.mount(blob, Some(neighbour)).await? {
                Ok(()) => Ok(BlobOutcome::Mounted),
                Err(upload) => self.send(blob, Some(upload)).await,
            };
        }
        match self.mount(blob, Some(own)).await? {
            Ok(()) => Ok(BlobOutcome::Present),
            Err(upload) => self.send(blob, Some(upload)).await,
        }
    }

    /// Asks for a mount; the upload that a registry opens instead is not wasted.
    async fn mount(
        &self,
        blob: &Descriptor,
        from: Option<&Repository>,
    ) -> Result<Result<(), Upload>, CopyError> {
        if let Some(from) = from {
            let mounted =
                steadily(self.context, || self.destination.mount(&blob.digest, from, self.context)).await;
            match mounted {
                Ok(Mount::Done) => return Ok(Ok(())),
                Ok(Mount::Refused(upload)) => return Ok(Err(*upload)),
                // No right to read there, or no idea what was asked: an upload may still work.
                Err(error) if is_refusal(&error) => {}
                Err(error) => return Err(CopyError::Destination(error)),
            }
        }
        let upload = steadily(self.context, || self.destination.begin_upload(self.context)).await;
        upload.map(Err).map_err(CopyError::Destination)
    }

    async fn send(&self, blob: &Descriptor, upload: Option<Upload>) -> Result<BlobOutcome, CopyError> {
        let transfer = Transfer::new(self, blob).await?;
        transfer.run(upload).await?;
        Ok(BlobOutcome::Sent)
    }

    /// Another repository of the destination's registry.
    fn sibling(&self, path: &str) -> Option<Repository> {
        let host = self.destination.repository().host();
        fairlead_domain::reference::Reference::parse(&format!("{host}/{path}"))
            .ok()
            .map(|image| image.repository())
    }
}

fn is_refusal(error: &Error) -> bool {
    matches!(error.class(), ErrorClass::Denied | ErrorClass::Absent | ErrorClass::Broken)
}
