//! Copying images between registries.
//!
//! A copy is verbatim unless platforms are selected: every manifest keeps its bytes and so its digest. Content is
//! written first and the manifest that names it last, so an interrupted copy leaves nothing that could be pulled. Blobs
//! are streamed, verified on the way, and sent only if they are missing; copies share what they learn about a
//! destination. The destination is checked first: most requested copies exist, and then two requests are enough.

mod blob_index;
mod blobs;
mod error;
mod manifests;
mod platforms;
mod progress;
mod referrers;
mod retry;
mod tag_index;
mod tag_locks;
mod targets;
mod transfer;

use std::sync::Arc;
use std::time::Duration;

use fairlead_domain::cause::Cause;
use fairlead_domain::digest::Digest;
use fairlead_domain::keyring::Credential;
use fairlead_domain::platform::PlatformFilter;
use fairlead_domain::reference::{Reference, Tag};
use tokio::sync::Semaphore;

use self::blob_index::BlobIndex;
use self::blobs::MOST_HELD;
pub use self::error::CopyError;
use self::progress::CopyCounts;
pub use self::progress::{BlobOutcome, Event, Observer};
use self::retry::with_retries;
use self::tag_index::TagIndex;
use self::tag_locks::TagLocks;
use self::targets::Targets;
use crate::auth::scope::Right;
use crate::client::Client;
use crate::error::Error;
use crate::manifest::{Manifest, Selector};
use crate::repository::RepositoryClient;
use crate::request::context::Context;

/// Time limit of a request that carries no content.
const ANSWER: Duration = Duration::from_mins(1);

/// Concurrent transfers of all copies together; see [`crate::size_limits::TRANSFERS`] for each registry.
const TRANSFERS: usize = 8;

/// An image with the credentials to use for it.
#[derive(Clone, Debug)]
pub struct CopyEndpoint {
    pub reference: Reference,
    /// In the order of trial; none means anonymous.
    pub credentials: Arc<[Credential]>,
    /// The cause of the connections to its registry.
    pub cause: Cause,
}

/// What to copy of an image.
#[derive(Clone, Debug, Default)]
pub struct CopyOptions {
    /// Platforms to keep of an index. None keeps everything, and the digest.
    pub platforms: Vec<PlatformFilter>,
    /// Also copy signatures, attestations and other referrers.
    pub referrers: bool,
    /// The tag for a destination that is named by a digest alone, because many registries delete untagged manifests.
    pub hold: Option<Tag>,
    /// Cosign tags of the destination are replaced by the source's, also where that loses signatures.
    pub follow_source: bool,
}

/// What a copy did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copied {
    /// The digest at the destination.
    pub digest: Digest,
    /// The digest of the source: another one if platforms were selected.
    pub source_digest: Digest,
    /// False when the destination had the image already.
    pub changed: bool,
    /// Blobs that were sent, and their bytes.
    pub blobs_sent: u64,
    pub bytes_sent: u64,
    /// Blobs that were mounted from another repository of the destination's registry.
    pub blobs_mounted: u64,
    /// Blobs that were there.
    pub blobs_present: u64,
    pub manifests: u64,
}

/// Copies images. A process has one: copies share knowledge and the limit of transfers. Clones are the same copier.
#[derive(Clone, Debug)]
pub struct Copier {
    client: Client,
    blob_index: Arc<BlobIndex>,
    tag_index: Arc<TagIndex>,
    tag_locks: Arc<TagLocks>,
    transfers: Arc<Semaphore>,
    /// Limits the blobs that are held in memory.
    held: Arc<Semaphore>,
}

/// Everything one copy works with.
struct Job<'a> {
    copier: &'a Copier,
    source: RepositoryClient,
    destination: RepositoryClient,
    options: &'a CopyOptions,
    observer: &'a Arc<dyn Observer>,
    tally: CopyCounts,
    /// For requests that carry no content.
    context: &'a Context,
    /// For requests that carry content and may take as long as the copy.
    sending: &'a Context,
}

impl Copier {
    pub fn new(client: &Client) -> Self {
        Self::with_transfers(client, TRANSFERS)
    }

    /// A copier with another number of transfers at once.
    pub fn with_transfers(client: &Client, transfers: usize) -> Self {
        Self {
            client: client.clone(),
            blob_index: Arc::default(),
            tag_index: Arc::default(),
            tag_locks: Arc::default(),
            transfers: Arc::new(Semaphore::new(transfers.max(1))),
            held: Arc::new(Semaphore::new(MOST_HELD)),
        }
    }

    /// Copies an image. A destination with a tag gets that tag; one with a digest must end up with that digest.
    /// Dropping the future ends the copy, and cancels its uploads in the background.
    pub async fn copy(
        &self,
        source: &CopyEndpoint,
        destination: &CopyEndpoint,
        options: &CopyOptions,
        observer: &Arc<dyn Observer>,
        context: &Context,
    ) -> Result<Copied, CopyError> {
        let open = |place: &CopyEndpoint, right| {
            let credentials = Arc::clone(&place.credentials);
            self.client.repository_for(place.cause, &place.reference.repository(), credentials, right)
        };
        let answered = context.clone().answered_within(ANSWER);
        let job = Job {
            copier: self,
            source: open(source, Right::Pull).map_err(CopyError::Source)?,
            destination: open(destination, Right::Push).map_err(CopyError::Destination)?,
            options,
            observer,
            tally: CopyCounts::default(),
            context: &answered,
            sending: context,
        };
        job.run(source, destination).await
    }

    /// Waits until the uploads of dropped copies are cancelled, a few seconds at most. To be called before the runtime
    /// ends.
    pub async fn cancellations_sent(&self) {
        let cancellations = &self.client.state.cancellations;
        cancellations.close();
        cancellations.wait().await;
        cancellations.reopen();
    }
}

impl Job<'_> {
    async fn run(self, source: &CopyEndpoint, destination: &CopyEndpoint) -> Result<Copied, CopyError> {
        let selector = Selector::of(&source.reference);
        let targets = Targets::of(&destination.reference, self.options.hold.as_ref());
        let found = self.look_for(&targets.main).await?;
        if let Some(found) = found
            && self.is_settled_by_digest()
            && targets.admit(found)
            && self.source_digest(&selector).await? == found
        {
            return Ok(self.finish(found, found, false));
        }
        let root = match self.read(&selector).await {
            Ok(root) => root,
            Err(error) => return self.hold_without_source(&targets, &selector, found, error).await,
        };
        let source_digest = root.digest;
        let root = self.chosen(root).await?;
        targets.check(&root)?;
        let changed = found.is_none_or(|found| !found.matches(&root.bytes));
        // Some registries accept a referrer only if its subject exists. So the image is written first by its digest,
        // then its referrers, and its name last, so that it is never pulled without them.
        let first = if self.options.referrers { root.digest.into() } else { targets.main.clone() };
        if changed {
            self.place(&root, &first, 0).await?;
        }
        if self.options.referrers {
            self.copy_referrers(&root).await?;
        }
        if changed {
            for name in targets.all().filter(|name| **name != first) {
                self.announce(&root, name);
                self.publish(&root, name).await.map_err(CopyError::Destination)?;
            }
        }
        Ok(self.finish(root.digest, source_digest, changed))
    }

    fn finish(&self, digest: Digest, source_digest: Digest, changed: bool) -> Copied {
        self.observer.observe(&Event::Published { digest, changed });
        self.tally.finish(digest, source_digest, changed)
    }

    /// Whether equal digests mean that nothing is left to do. Selected platforms and referrers need the manifest.
    fn is_settled_by_digest(&self) -> bool {
        self.options.platforms.is_empty() && !self.options.referrers
    }

    /// The digest of the source's name, with as few requests as possible.
    async fn source_digest(&self, selector: &Selector) -> Result<Digest, CopyError> {
        if let Some(known) = selector.digest() {
            return Ok(known);
        }
        let resolved = with_retries(self.context, || self.source.resolve(selector, self.context)).await;
        Ok(resolved.map_err(CopyError::Source)?.digest)
    }

    /// Tags an image that the destination has by digest, if its source cannot be read any more.
    async fn hold_without_source(
        &self,
        targets: &Targets,
        selector: &Selector,
        found: Option<Digest>,
        error: Error,
    ) -> Result<Copied, CopyError> {
        let held = targets.held().filter(|held| selector.digest() == Some(*held));
        let Some(digest) = held else { return Err(CopyError::Source(error)) };
        let Ok(root) = self.destination.manifest(&digest.into(), self.context).await else {
            return Err(CopyError::Source(error));
        };
        let changed = found != Some(digest);
        if changed {
            self.announce(&root, &targets.main);
            self.publish(&root, &targets.main).await.map_err(CopyError::Destination)?;
        }
        Ok(self.finish(digest, digest, changed))
    }

    /// A manifest of the source.
    async fn read(&self, selector: &Selector) -> Result<Manifest, Error> {
        with_retries(self.context, || self.source.manifest(selector, self.context)).await
    }

    /// Whether the destination has this manifest under this name. Then it has the whole image, because registries
    /// accept a manifest only if its parts exist.
    async fn is_there(&self, target: &Selector, digest: Digest) -> Result<bool, CopyError> {
        Ok(self.look_for(target).await? == Some(digest))
    }
}
