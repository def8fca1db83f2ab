//! The leaf that handshakes get, replaced while connections go on.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use arc_swap::ArcSwapOption;
use fairlead_plan::certificates::{LeafId, WallTime, Window};
use rustls::ServerConfig;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use tokio::sync::watch;

use super::ClientAuthorities;
use super::authority::{fingerprint, parse, window};

/// Why a leaf cannot be served.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    #[error("it holds no certificate that can be read; expected PEM text with the leaf first")]
    Certificate,
    #[error("the private key cannot be read: {0}")]
    Key(rustls::pki_types::pem::Error),
    #[error("certificate and private key cannot be used together: {0}")]
    Pair(rustls::Error),
}

/// A leaf that can be served.
#[derive(Clone)]
pub(super) struct ServableLeaf {
    pub(super) key: Arc<CertifiedKey>,
    pub(super) window: Window,
}

impl ServableLeaf {
    pub(super) fn from_pem(certificate: &[u8], key: &[u8]) -> Result<Self, ServeError> {
        let chain: Vec<CertificateDer<'static>> =
            CertificateDer::pem_slice_iter(certificate).map_while(Result::ok).collect();
        let leaf_window =
            chain.first().and_then(parse).as_ref().and_then(window).ok_or(ServeError::Certificate)?;
        let key = PrivateKeyDer::from_pem_slice(key).map_err(ServeError::Key)?;
        let key = CertifiedKey::from_der(chain, key, &ring::default_provider()).map_err(ServeError::Pair)?;
        Ok(Self { key: Arc::new(key), window: leaf_window })
    }

    pub(super) fn certificate(&self) -> Option<&CertificateDer<'static>> {
        self.key.cert.first()
    }
}

/// Hands out the leaf of the moment to every handshake, and tells whether there is one.
pub struct Resolver {
    current: ArcSwapOption<CertifiedKey>,
    not_after: watch::Sender<Option<WallTime>>,
    ready: watch::Sender<bool>,
}

impl Resolver {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            current: ArcSwapOption::empty(),
            not_after: watch::Sender::new(None),
            ready: watch::Sender::new(false),
        })
    }

    /// Whether handshakes can succeed: there is a leaf and its time is not over.
    pub fn ready(&self) -> watch::Receiver<bool> {
        self.ready.subscribe()
    }

    /// Serves this leaf from the next handshake on. Returns whether it is another one than before.
    pub(super) fn install(&self, leaf: &ServableLeaf) -> bool {
        let same = self.current.load().as_ref().is_some_and(|current| current.cert == leaf.key.cert);
        if !same {
            self.current.store(Some(Arc::clone(&leaf.key)));
            self.not_after.send_replace(Some(leaf.window.not_after));
        }
        !same
    }

    /// Looks at the clock: a leaf ends without any change.
    pub(super) fn refresh(&self, now: WallTime) {
        let ready = self.not_after.borrow().is_some_and(|end| now < end);
        self.ready.send_if_modified(|was| std::mem::replace(was, ready) != ready);
    }

    /// The fingerprint of the leaf that is served.
    pub(super) fn leaf(&self) -> Option<LeafId> {
        let current = self.current.load();
        Some(LeafId(fingerprint(current.as_ref()?.cert.first()?).0))
    }

    /// TLS with the leaf of the moment, HTTP/2 before HTTP/1.1. With `clients`, only for clients with a certificate of
    /// one of those authorities.
    pub fn server_config(
        self: &Arc<Self>,
        clients: Option<Arc<ClientAuthorities>>,
    ) -> Result<ServerConfig, rustls::Error> {
        let provider: Arc<CryptoProvider> = Arc::new(ring::default_provider());
        let asked = clients.is_some();
        let verifier: Arc<dyn ClientCertVerifier> = match clients {
            Some(clients) => clients,
            None => WebPkiClientVerifier::no_client_auth(),
        };
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(verifier)
            .with_cert_resolver(Arc::clone(self) as Arc<dyn ResolvesServerCert>);
        if asked {
            // A resumed session would not be verified again after the authorities have changed.
            config.session_storage = Arc::new(NoServerSessionStorage {});
        }
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(config)
    }
}

impl ResolvesServerCert for Resolver {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.current.load_full()
    }
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resolver").field("not_after", &*self.not_after.borrow()).finish_non_exhaustive()
    }
}

/// The wall clock as the plan counts it.
pub(super) fn wall_time(time: SystemTime) -> WallTime {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO)
}
