//! Copying images between registries.
//!
//! A copy is verbatim unless platforms are chosen: every manifest keeps its bytes and so its digest. Content goes first,
//! the manifest that names it last, so whatever interrupts a copy leaves nothing behind that could be pulled. Blobs are
//! streamed from one registry to the other, verified on the way, and sent only if they are not there already; what one
//! copy learnt about a destination saves the next one its requests.

mod blobs;
mod choice;
mod errors;
mod ledger;
mod manifests;
mod progress;
mod referrers;
mod steady;
mod transfer;

use std::sync::Arc;

use fairlead_domain::{digest::Digest, keyring::Credential, platform::PlatformFilter, reference::Reference};
use tokio::sync::Semaphore;

use self::{blobs::MOST_HELD, ledger::Ledger, progress::Tally, steady::steadily};
pub use self::{
    errors::CopyError,
    progress::{BlobOutcome, Event, Observer},
};
use crate::{
    auth::scope::Right,
    client::Client,
    context::Context,
    error::Error,
    manifest::{Manifest, Selector},
    remote::Remote,
};

/// Transfers under way at once, in all copies together; see [`crate::bounds::TRANSFERS`] for each registry.
const TRANSFERS: usize = 8;

/// An image with the credentials to use for it.
#[derive(Clone, Debug)]
pub struct Place {
    pub reference: Reference,
    /// In the order of trial; none means anonymous.
    pub credentials: Arc<[Credential]>,
}

/// What to copy of an image.
#[derive(Clone, Debug, Default)]
pub struct CopyOptions {
    /// Platforms to keep of an index. None keeps everything, and with it the digest.
    pub platforms: Vec<PlatformFilter>,
    /// Signatures, attestations and whatever else refers to the image.
    pub referrers: bool,
}

/// What a copy did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copied {
    /// The digest at the destination.
    pub digest: Digest,
    /// False when the destination had the image already.
    pub changed: bool,
    /// Blobs that were sent, and their bytes.
    pub blobs_sent: u64,
    pub bytes_sent: u64,
    /// Blobs that the destination took from another of its repositories.
    pub blobs_mounted: u64,
    /// Blobs that were there.
    pub blobs_present: u64,
    pub manifests: u64,
}

/// Copies images. One for the whole process: copies share their knowledge and the limit of transfers. Clones are the same
/// copier.
#[derive(Clone, Debug)]
pub struct Copier {
    client: Client,
    ledger: Arc<Ledger>,
    transfers: Arc<Semaphore>,
    /// Room for blobs that are held in memory.
    held: Arc<Semaphore>,
}

/// Everything one copy works with.
struct Job<'a> {
    copier: &'a Copier,
    source: Remote,
    destination: Remote,
    options: &'a CopyOptions,
    observer: &'a Arc<dyn Observer>,
    tally: Tally,
    context: &'a Context,
}

impl Copier {
    pub fn new(client: &Client) -> Self {
        Self::with_transfers(client, TRANSFERS)
    }

    /// A copier with another number of transfers at once.
    pub fn with_transfers(client: &Client, transfers: usize) -> Self {
        Self {
            client: client.clone(),
            ledger: Arc::default(),
            transfers: Arc::new(Semaphore::new(transfers.max(1))),
            held: Arc::new(Semaphore::new(MOST_HELD)),
        }
    }

    /// Copies an image. A destination with a tag gets that tag; one with a digest must come out with that digest.
    pub async fn copy(
        &self,
        source: &Place,
        destination: &Place,
        options: &CopyOptions,
        observer: &Arc<dyn Observer>,
        context: &Context,
    ) -> Result<Copied, CopyError> {
        let open = |place: &Place, right| {
            self.client.remote(&place.reference.repository(), Arc::clone(&place.credentials), right)
        };
        let job = Job {
            copier: self,
            source: open(source, Right::Pull).map_err(CopyError::Source)?,
            destination: open(destination, Right::Push).map_err(CopyError::Destination)?,
            options,
            observer,
            tally: Tally::default(),
            context,
        };
        job.run(source, destination).await
    }
}

impl Job<'_> {
    async fn run(self, source: &Place, destination: &Place) -> Result<Copied, CopyError> {
        let root = self.read(&Selector::of(&source.reference)).await.map_err(CopyError::Source)?;
        let root = self.chosen(root).await?;
        let target = target(&destination.reference, root.digest)?;
        let changed = !self.is_there(&target, root.digest).await?;
        if changed {
            self.place(&root, &target, 0).await?;
        }
        if self.options.referrers {
            self.copy_referrers(&root).await?;
        }
        self.observer.observe(&Event::Published { digest: root.digest, changed });
        Ok(self.tally.finish(root.digest, changed))
    }

    /// A manifest of the source.
    async fn read(&self, selector: &Selector) -> Result<Manifest, Error> {
        steadily(self.context, || self.source.manifest(selector, self.context)).await
    }

    /// Whether the destination holds this very manifest under this name. Then it holds all of the image, since registries
    /// take a manifest only when its parts are there.
    async fn is_there(&self, target: &Selector, digest: Digest) -> Result<bool, CopyError> {
        match steadily(self.context, || self.destination.resolve(target, self.context)).await {
            Ok(resolved) => Ok(resolved.digest == digest),
            Err(error) if error.problem.is_absence() => Ok(false),
            Err(error) => Err(CopyError::Destination(error)),
        }
    }
}

/// Under which name an image with this digest is to be found at the destination.
fn target(wanted: &Reference, digest: Digest) -> Result<Selector, CopyError> {
    match (wanted.tag(), wanted.digest()) {
        (_, Some(stated)) if stated.algorithm() == digest.algorithm() && stated != digest => {
            Err(CopyError::OtherDigest { wanted: Box::new(stated), found: Box::new(digest) })
        }
        (None, Some(stated)) => Ok(stated.into()),
        _ => Ok(Selector::of(&wanted.without_digest())),
    }
}
