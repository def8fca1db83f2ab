//! Asking mirrors, with the registry client that all of Fairlead shares.

use std::num::NonZeroU32;
use std::path::PathBuf;
use std::time::Duration;

use axum::body::Bytes;
use fairlead_domain::digest::Digest;
use fairlead_domain::keyring::Credential;
use fairlead_domain::reference::{Reference, Repository};
use fairlead_plan::node_config::{Delivery, Place};
use fairlead_registry::manifest::{Content, Manifest, Resolved, Selector};
use fairlead_registry::{
    BlobReader, Budget, Class, Client, Context, Error, Problem, RegistrySettings, RepositoryClient, Right,
    Settings,
};
use tokio::time::Instant;
use url::Url;

use super::request::{Asked, AskedObject};
use super::{Router, RouterSettings};

/// For opening a connection to a mirror. containerd alone waits 30 s, for every layer.
const DIAL: Duration = Duration::from_secs(2);
/// For headers and manifests of one mirror. A cache may have to fetch them first.
const ANSWER: Duration = Duration::from_secs(15);
/// The same where no other place may be asked afterwards.
const LAST_ANSWER: Duration = Duration::from_mins(1);
/// For a layer. One that stands still is given up much sooner.
const TRANSFER: Duration = Duration::from_hours(24);
/// Connections to one mirror. The runtime limits how many layers it pulls at the same time.
const CONNECTIONS: NonZeroU32 = NonZeroU32::MIN.saturating_add(63);

/// What a mirror has.
#[derive(Debug)]
pub(super) enum Served {
    Head(Resolved),
    Manifest(Manifest, Vec<Digest>),
    BlobHead(Digest, u64),
    Blob(Box<Blob>),
    /// The address of a blob, to which the runtime is sent.
    Elsewhere(Digest, Url),
}

/// A blob of which the first piece has arrived.
#[derive(Debug)]
pub(super) struct Blob {
    pub(super) digest: Digest,
    /// `None`: the mirror does not say.
    pub(super) size: Option<u64>,
    pub(super) first: Option<Bytes>,
    pub(super) rest: BlobReader,
    pub(super) context: Context,
}

impl Served {
    /// Everything that belongs to the same pull: what was asked for, and what it refers to.
    pub(super) fn digests(&self) -> Vec<Digest> {
        match self {
            Self::Head(resolved) => vec![resolved.digest],
            Self::Manifest(manifest, children) => children.iter().copied().chain([manifest.digest]).collect(),
            Self::BlobHead(digest, _) | Self::Elsewhere(digest, _) => vec![*digest],
            Self::Blob(blob) => vec![blob.digest],
        }
    }
}

/// Clients for mirrors.
#[derive(Debug)]
pub(super) struct Clients {
    /// File with certificate authorities that are trusted besides the system's.
    pub(super) authorities: Option<PathBuf>,
    verifying: Client,
    /// For mirrors that may have any certificate, or speak plain HTTP.
    insecure: Client,
}

impl Clients {
    pub(super) fn new(settings: &RouterSettings) -> Self {
        let authorities = settings.authorities.clone().filter(|file| file.exists());
        let client = |insecure| {
            let default = RegistrySettings {
                plain_http_fallback: insecure,
                insecure_skip_verify: insecure,
                ca_file: authorities.clone(),
                token_hosts: settings.token_hosts.clone(),
                budget: Budget { rate: None, connections: CONNECTIONS },
                ..RegistrySettings::default()
            };
            let mut settings = Settings::default();
            settings.default = default;
            settings.connect_timeout = DIAL;
            Client::new(settings)
        };
        Self { verifying: client(false), insecure: client(true), authorities }
    }
}

fn elsewhere(remote: &RepositoryClient, digest: Digest) -> Result<Served, Problem> {
    let path = format!("v2/{}/blobs/{digest}", remote.repository().path());
    let address = remote.address().join(&path);
    Ok(Served::Elsewhere(digest, address.map_err(|error| Problem::Malformed(error.to_string().into()))?))
}

fn context(limit: Duration) -> Context {
    Context::new(Class::Admission, Instant::now() + limit).once()
}

impl Router {
    /// Asks a mirror for what the runtime asked for. `is_last`: if it does not serve, the pull fails.
    pub(super) async fn ask(&self, asked: &Asked, place: &Place, is_last: bool) -> Result<Served, Problem> {
        let limit = if is_last { LAST_ANSWER } else { ANSWER };
        let repository = repository(&place.name)?;
        let credentials = self.keyring.load().lookup(&repository);
        let remote = self.remote(place.insecure, &repository, credentials)?;
        let context = context(limit);
        match &asked.object {
            AskedObject::Tag(tag) => manifest(&remote, &tag.into(), asked.head, &context).await,
            AskedObject::Manifest(digest) => manifest(&remote, &(*digest).into(), asked.head, &context).await,
            AskedObject::Blob(digest) => self.blob(&remote, *digest, asked.head, place, limit).await,
        }
    }

    async fn blob(
        &self,
        remote: &RepositoryClient,
        digest: Digest,
        head: bool,
        place: &Place,
        limit: Duration,
    ) -> Result<Served, Problem> {
        let redirects = self.settings.redirects && self.clients.load().authorities.is_none();
        if head || redirects {
            match remote.blob_size(&digest, &context(limit)).await.map_err(problem) {
                Ok(None) => return Err(Problem::NotFound("it lacks the blob".into())),
                Ok(Some(size)) if head && size > 0 => return Ok(Served::BlobHead(digest, size)),
                Ok(Some(_))
                    if !head
                        && Delivery::of(place, redirects, remote.wants_login()) == Delivery::Redirect =>
                {
                    return elsewhere(remote, digest);
                }
                // Storage may permit GET alone, or name no length.
                Ok(Some(_)) | Err(Problem::Forbidden(_) | Problem::Rejected { .. }) => {}
                Err(problem) => return Err(problem),
            }
        }
        // The deadline of a blob is that of its transfer; its first piece has to come as soon as an answer.
        let context = context(TRANSFER).answered_within(limit);
        let (size, mut rest) = remote.open_blob(digest, &context).await.map_err(problem)?;
        if head {
            let unknown = || Problem::Malformed("it does not say how long the blob is".into());
            return Ok(Served::BlobHead(digest, size.ok_or_else(unknown)?));
        }
        let first = rest.next(&context).await.map_err(problem)?;
        Ok(Served::Blob(Box::new(Blob { digest, size, first, rest, context })))
    }

    /// Whether the source answers, so that it takes its place in the list. It may want the runtime's credentials.
    pub(super) async fn source_has(&self, asked: &Asked, insecure: bool) -> Result<(), Problem> {
        let remote = self.remote(insecure, &repository(&asked.name)?, Vec::new())?;
        let context = context(ANSWER);
        let found = match &asked.object {
            AskedObject::Tag(tag) => remote.resolve(&tag.into(), &context).await.map(|_| ()),
            AskedObject::Manifest(digest) => remote.resolve(&(*digest).into(), &context).await.map(|_| ()),
            AskedObject::Blob(digest) => remote.blob_size(digest, &context).await.map(|_| ()),
        };
        match found.map_err(problem) {
            Err(Problem::Unauthorised(_) | Problem::Forbidden(_)) | Ok(()) => Ok(()),
            Err(problem) => Err(problem),
        }
    }

    /// The address of the source's registry. Whether an insecure one speaks TLS is found out by asking.
    pub(super) async fn source_address(&self, asked: &Asked, insecure: bool) -> Result<Url, Problem> {
        let repository = repository(&asked.name)?;
        if insecure || repository.host().is_loopback() {
            // Any answer tells the scheme.
            let _ = self.source_has(asked, insecure).await;
        }
        Ok(self.remote(insecure, &repository, Vec::new())?.address().clone())
    }

    fn remote(
        &self,
        insecure: bool,
        repository: &Repository,
        credentials: Vec<Credential>,
    ) -> Result<RepositoryClient, Problem> {
        let clients = self.clients.load();
        let client = if insecure { &clients.insecure } else { &clients.verifying };
        client.repository(repository, credentials, Right::Pull).map_err(problem)
    }
}

/// The repository of this name. A name without dot and port is a mirror's host in policies, and Docker Hub's in images.
fn repository(name: &str) -> Result<Repository, Problem> {
    let parsed =
        Reference::parse(name).ok().filter(|parsed| name.split('/').next() == Some(parsed.host().as_str()));
    let parsed = parsed.ok_or_else(|| {
        let message = format!("{name} is not the name of an image; write the registry with a port");
        Problem::Misconfigured(message.into())
    })?;
    Ok(parsed.repository())
}

async fn manifest(
    remote: &RepositoryClient,
    selector: &Selector,
    head: bool,
    context: &Context,
) -> Result<Served, Problem> {
    if head {
        return remote.resolve(selector, context).await.map(Served::Head).map_err(problem);
    }
    let manifest = remote.manifest(selector, context).await.map_err(problem)?;
    let children = match manifest.content().map_err(problem)? {
        Content::Index(index) => index.manifests.iter().map(|one| one.digest).collect(),
        Content::Image(image) => image.layers.iter().chain([&image.config]).map(|one| one.digest).collect(),
    };
    Ok(Served::Manifest(manifest, children))
}

fn problem(error: Error) -> Problem {
    error.problem
}
