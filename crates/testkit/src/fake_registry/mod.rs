//! A registry inside the test, for what real ones will not do on demand: lie, stall, truncate, refuse, count.
//!
//! It keeps state like a real one (blobs, manifests, tags, uploads, tokens), so a client can work against it normally
//! until a [`Fault`] that a test asked for strikes. Every request is logged, since how often and in which order
//! a client asks is often the very thing under test. What needs no fault is tested against the real thing instead: see
//! [`crate::registry`].

mod auth;
mod blobs;
mod fault;
mod handler;
mod issuer;
mod log;
mod manifests;
mod server;
mod store;

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Result;
use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use tokio::task::JoinHandle;

pub use auth::{Auth, Bearer};
pub use fault::{Effect, Fault, Route};
pub use issuer::Issuer;
pub use log::Logged;

use self::auth::Tokens;
use self::log::Log;
use self::store::Store;
use crate::images::Image;
use crate::pki::Identity;

/// How the registry behaves when no fault strikes.
#[derive(Clone, Debug)]
pub struct Behaviour {
    /// Deletes tags, as distribution 3 does; 2.8 answers 400.
    pub delete_tags: bool,
    /// Lists referrers itself, as the current specification has it.
    pub referrers: bool,
    /// Takes blobs from other repositories.
    pub mount: bool,
    /// Most tags in one page.
    pub tags_per_page: usize,
    /// Refuses chunks that are smaller, unless they are the last.
    pub smallest_chunk: Option<u64>,
    pub strangers: Strangers,
}

/// What becomes of those who do not say who they are, where that is required.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Strangers {
    /// They are asked.
    #[default]
    Asked,
    /// They may read the repositories under this name, and are asked elsewhere.
    MayRead(&'static str),
    /// They are asked at `/v2/`, and told elsewhere that nothing is there.
    Misled,
}

impl Default for Behaviour {
    fn default() -> Self {
        Self {
            delete_tags: true,
            referrers: true,
            mount: true,
            tags_per_page: 1000,
            smallest_chunk: None,
            strangers: Strangers::Asked,
        }
    }
}

/// A registry on a free loopback port. It lives on the runtime that started it and ends with it or when dropped.
#[derive(Debug)]
pub struct FakeRegistry {
    address: SocketAddr,
    shared: Arc<Shared>,
    serving: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    tls: bool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    store: Store,
    log: Log,
    faults: Vec<Fault>,
    auth: Auth,
    tokens: Tokens,
    behaviour: Behaviour,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }
}

impl FakeRegistry {
    /// Speaks plain HTTP to every client.
    pub async fn start() -> Result<Self> {
        server::start(None).await
    }

    /// Speaks TLS with this certificate.
    pub async fn start_tls(identity: &Identity) -> Result<Self> {
        server::start(Some(identity)).await
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// `127.0.0.1:PORT`, as in image references.
    pub fn host(&self) -> String {
        self.address.to_string()
    }

    pub fn url(&self) -> String {
        let scheme = if self.shared.tls { "https" } else { "http" };
        format!("{scheme}://{}", self.address)
    }

    /// Who is let in from now on. Tokens given before stay good until they end.
    pub fn require(&self, auth: Auth) {
        self.shared.lock().auth = auth;
    }

    pub fn behave(&self, change: impl FnOnce(&mut Behaviour)) {
        change(&mut self.shared.lock().behaviour);
    }

    /// Adds a fault. Of several that fit a request, the first added that is not used up strikes.
    pub fn inject(&self, fault: Fault) {
        self.shared.lock().faults.push(fault);
    }

    /// Takes every fault back.
    pub fn heal(&self) {
        self.shared.lock().faults.clear();
    }

    /// Forgets every token, as a registry that was restarted with another key does.
    pub fn revoke_tokens(&self) {
        self.shared.lock().tokens.revoke();
    }

    /// Puts an image there without a request, and returns its digest.
    pub fn hold(&self, repository: &str, tag: &str, image: &Image) -> String {
        let mut state = self.shared.lock();
        for blob in image.blobs() {
            state.store.put_blob(repository, &blob.digest(), Bytes::from(blob.bytes.clone()));
        }
        for manifest in image.manifests() {
            let bytes = Bytes::from(manifest.bytes.clone());
            state.store.put_manifest(repository, &manifest.digest(), &manifest.media_type, bytes);
        }
        let root = image.root();
        state.store.put_manifest(repository, tag, &root.media_type, Bytes::from(root.bytes.clone()))
    }

    /// Puts a manifest there, of whatever form.
    pub fn hold_manifest(
        &self,
        repository: &str,
        reference: &str,
        media_type: &str,
        bytes: impl Into<Bytes>,
    ) -> String {
        self.shared.lock().store.put_manifest(repository, reference, media_type, bytes.into())
    }

    pub fn hold_blob(&self, repository: &str, digest: &str, bytes: impl Into<Bytes>) {
        self.shared.lock().store.put_blob(repository, digest, bytes.into());
    }

    /// Removes a manifest and leaves its tags behind, as a proxy does that lost part of its cache.
    pub fn lose_manifest(&self, repository: &str, digest: &str) {
        self.shared.lock().store.lose_manifest(repository, digest);
    }

    pub fn lose_blob(&self, repository: &str, digest: &str) {
        self.shared.lock().store.delete_blob(repository, digest);
    }

    pub fn has_blob(&self, repository: &str, digest: &str) -> bool {
        self.shared.lock().store.blob(repository, digest).is_some()
    }

    /// The digest a tag names, or the digest itself if that manifest is there.
    pub fn digest_of(&self, repository: &str, reference: &str) -> Option<String> {
        self.shared.lock().store.manifest(repository, reference).map(|(digest, _)| digest)
    }

    /// Uploads that were opened and neither closed nor given up.
    pub fn open_uploads(&self) -> usize {
        self.shared.lock().store.open_uploads()
    }

    /// Every request since the start or the last [`Self::forget_requests`], in the order of arrival.
    pub fn requests(&self) -> Vec<Logged> {
        self.shared.lock().log.requests.clone()
    }

    /// How many requests began with this method and whose path contains this text.
    pub fn count(&self, method: &str, path: &str) -> usize {
        self.requests()
            .iter()
            .filter(|request| request.method == method && request.path.contains(path))
            .count()
    }

    pub fn forget_requests(&self) {
        self.shared.lock().log.requests.clear();
    }

    /// The most requests that were being answered at one moment.
    pub fn peak_in_flight(&self) -> usize {
        self.shared.lock().log.peak
    }

    /// Connections that were accepted.
    pub fn connections(&self) -> usize {
        self.shared.lock().log.connections
    }
}

impl Drop for FakeRegistry {
    fn drop(&mut self) {
        self.serving.abort();
    }
}
