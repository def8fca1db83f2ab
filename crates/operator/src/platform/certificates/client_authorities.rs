//! The authorities whose clients may connect at all, for API servers that present client certificates to webhooks.
//!
//! They come from a file that is read again every few seconds, since the kubelet replaces mounted files. A file that
//! cannot be used at the start is an error; one that cannot be used later leaves those in force that were read before.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, RootCertStore, SignatureScheme};
use tokio_util::sync::CancellationToken;

/// Time between two reads of the file.
const EVERY: Duration = Duration::from_secs(2);

/// Why a file with authorities cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ClientAuthorityError {
    #[error("--webhook-client-ca: reading {} failed: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    #[error("--webhook-client-ca: {} holds no certificate of an authority in PEM form", path.display())]
    Empty { path: PathBuf },
    #[error("--webhook-client-ca: a certificate in {} cannot be used: {source}", path.display())]
    Use { path: PathBuf, source: rustls::Error },
}

/// Verifies client certificates against the authorities in a file.
pub struct ClientAuthorities {
    file: PathBuf,
    current: ArcSwap<Current>,
}

struct Current {
    text: Vec<u8>,
    verifier: Arc<dyn ClientCertVerifier>,
}

impl ClientAuthorities {
    pub fn read(file: &Path) -> Result<Arc<Self>, ClientAuthorityError> {
        let current = ArcSwap::from_pointee(verifying(file, text_of(file)?)?);
        Ok(Arc::new(Self { file: file.to_owned(), current }))
    }

    /// Follows the file until `shutdown`.
    pub async fn run(self: Arc<Self>, shutdown: CancellationToken) {
        let mut complained = None;
        while shutdown.run_until_cancelled(tokio::time::sleep(EVERY)).await.is_some() {
            let problem = self.look().err().map(|error| error.to_string());
            if let Some(problem) = &problem
                && complained.as_ref() != Some(problem)
            {
                tracing::warn!(
                    problem,
                    "client authorities cannot be read again; the former ones stay in force"
                );
            }
            complained = problem;
        }
    }

    fn look(&self) -> Result<(), ClientAuthorityError> {
        let text = text_of(&self.file)?;
        if text != self.current.load().text {
            self.current.store(Arc::new(verifying(&self.file, text)?));
            tracing::info!(file = %self.file.display(), "the authorities of clients have changed");
        }
        Ok(())
    }
}

fn text_of(file: &Path) -> Result<Vec<u8>, ClientAuthorityError> {
    std::fs::read(file).map_err(|source| ClientAuthorityError::Read { path: file.to_owned(), source })
}

fn verifying(file: &Path, text: Vec<u8>) -> Result<Current, ClientAuthorityError> {
    let path = || file.to_owned();
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&text).map_while(Result::ok) {
        roots.add(certificate).map_err(|source| ClientAuthorityError::Use { path: path(), source })?;
    }
    let provider = Arc::new(ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
        .build()
        .map_err(|_| ClientAuthorityError::Empty { path: path() })?;
    Ok(Current { text, verifier })
}

impl ClientCertVerifier for ClientAuthorities {
    /// None are named: clients of webhooks have one certificate, and present it in any case.
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        self.current.load().verifier.verify_client_cert(end_entity, intermediates, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.current.load().verifier.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.current.load().verifier.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.current.load().verifier.supported_verify_schemes()
    }
}

impl fmt::Debug for ClientAuthorities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientAuthorities").field("file", &self.file).finish_non_exhaustive()
    }
}
