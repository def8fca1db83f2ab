//! TLS: the system's certificate authorities, private ones where configured, none where verification is switched off.
//!
//! The crypto provider is named here, so that the library does not depend on a process-wide default. Registries without
//! settings of their own share one configuration and its store of TLS sessions.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use thiserror::Error;

/// Why a registry has no TLS configuration.
#[derive(Clone, Debug, Error)]
pub enum TrustError {
    #[error("cannot read the certificates in {}: {reason}; check caFile", .path.display())]
    Unreadable { path: PathBuf, reason: String },
    #[error("{} holds no certificate in PEM form; check caFile", .path.display())]
    Empty { path: PathBuf },
    #[error("a certificate in {} cannot be used as an authority: {reason}; check caFile", .path.display())]
    Invalid { path: PathBuf, reason: String },
    #[error("TLS cannot be set up: {0}")]
    Setup(String),
}

/// The configurations in use. The system's authorities are read once.
#[derive(Debug, Default)]
pub struct Trust {
    system: OnceLock<RootCertStore>,
    usual: OnceLock<ClientConfig>,
}

impl Trust {
    /// The configuration for registries without settings of their own.
    pub fn usual(&self) -> Result<ClientConfig, TrustError> {
        if let Some(config) = self.usual.get() {
            return Ok(config.clone());
        }
        let config = verifying(self.system().clone())?;
        Ok(self.usual.get_or_init(|| config).clone())
    }

    /// The system's authorities and those of a file.
    pub fn with_authorities(&self, path: &Path) -> Result<ClientConfig, TrustError> {
        let unreadable =
            |error: pem::Error| TrustError::Unreadable { path: path.to_owned(), reason: error.to_string() };
        let own = CertificateDer::pem_file_iter(path).and_then(Iterator::collect).map_err(unreadable)?;
        self.with_certificates(own, path)
    }

    /// The system's authorities and those of a text in PEM form.
    pub fn with_pem(&self, text: &[u8]) -> Result<ClientConfig, TrustError> {
        let own = CertificateDer::pem_slice_iter(text).collect::<Result<_, _>>();
        self.with_certificates(own.map_err(|error| TrustError::Setup(error.to_string()))?, Path::new("ca"))
    }

    fn with_certificates(
        &self,
        own: Vec<CertificateDer<'static>>,
        path: &Path,
    ) -> Result<ClientConfig, TrustError> {
        if own.is_empty() {
            return Err(TrustError::Empty { path: path.to_owned() });
        }
        let mut roots = self.system().clone();
        for certificate in own.clone() {
            let invalid = |reason| TrustError::Invalid { path: path.to_owned(), reason };
            roots.add(certificate).map_err(|error| invalid(error.to_string()))?;
        }
        let provider = Arc::new(ring::default_provider());
        let usual = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
            .build()
            .map_err(|error| TrustError::Setup(error.to_string()))?;
        judging(provider, Arc::new(WithOwnCertificates { usual, own }))
    }

    /// Adds a client certificate, PEM.
    pub fn identify(config: &mut ClientConfig, chain: &[u8], key: &[u8]) -> Result<(), TrustError> {
        let refuse = |reason: String| TrustError::Setup(format!("the client certificate: {reason}"));
        let chain: Vec<_> = CertificateDer::pem_slice_iter(chain)
            .collect::<Result<_, _>>()
            .map_err(|error| refuse(error.to_string()))?;
        if chain.is_empty() {
            return Err(refuse("there is none in PEM form".to_owned()));
        }
        let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| refuse(error.to_string()))?;
        let certified = CertifiedKey::from_der(chain, key, &ring::default_provider());
        let certified = certified.map_err(|error| refuse(error.to_string()))?;
        config.client_auth_cert_resolver = Arc::new(SingleCertAndKey::from(certified));
        Ok(())
    }

    /// Accepts any certificate.
    pub fn blind() -> Result<ClientConfig, TrustError> {
        let provider = Arc::new(ring::default_provider());
        let verifier = Arc::new(AnyCertificate { provider: Arc::clone(&provider) });
        judging(provider, verifier)
    }

    fn system(&self) -> &RootCertStore {
        self.system.get_or_init(|| authorities(rustls_native_certs::load_native_certs().certs))
    }
}

/// The system's authorities, or Mozilla's where it has none, as in a minimal image.
fn authorities(system: Vec<CertificateDer<'static>>) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    // A broken file does not affect the others.
    roots.add_parsable_certificates(system);
    if roots.is_empty() {
        roots.add_parsable_certificates(webpki_root_certs::TLS_SERVER_ROOT_CERTS.iter().cloned());
    }
    roots
}

fn verifying(roots: RootCertStore) -> Result<ClientConfig, TrustError> {
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| TrustError::Setup(error.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(speaking_http(config))
}

fn judging(
    provider: Arc<CryptoProvider>,
    verifier: Arc<dyn ServerCertVerifier>,
) -> Result<ClientConfig, TrustError> {
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| TrustError::Setup(error.to_string()))?
        .dangerous()
        .with_custom_certificate_verifier(verifier)
        .with_no_client_auth();
    Ok(speaking_http(config))
}

fn speaking_http(mut config: ClientConfig) -> ClientConfig {
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    config
}

/// Accepts what the authorities signed, and the configured certificates themselves: a self-signed certificate is
/// usually marked as an authority, which webpki does not accept as a server's.
#[derive(Debug)]
struct WithOwnCertificates {
    usual: Arc<WebPkiServerVerifier>,
    own: Vec<CertificateDer<'static>>,
}

impl ServerCertVerifier for WithOwnCertificates {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        match self.usual.verify_server_cert(certificate, intermediates, name, ocsp, now) {
            // Validity in time was checked before this error; the name was not.
            Err(rustls::Error::InvalidCertificate(why))
                if is_of_authority(&why) && self.own.iter().any(|own| own == certificate) =>
            {
                verify_server_name(&ParsedCertificate::try_from(certificate)?, name)?;
                Ok(ServerCertVerified::assertion())
            }
            judged => judged,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.usual.verify_tls12_signature(message, certificate, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.usual.verify_tls13_signature(message, certificate, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.usual.supported_verify_schemes()
    }
}

/// Whether a certificate was refused because it is an authority's. rustls has no variant for this reason, only webpki's
/// name of it.
pub(super) fn is_of_authority(refused: &CertificateError) -> bool {
    matches!(refused, CertificateError::Other(why) if why.0.to_string() == "CaUsedAsEndEntity")
}

#[derive(Debug)]
struct AnyCertificate {
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_system_without_authorities_trusts_mozillas() {
        assert!(authorities(Vec::new()).len() > 100);
        assert!(
            authorities(vec![CertificateDer::from(vec![0])]).len() > 100,
            "an odd file is as good as none"
        );
        let own = webpki_root_certs::TLS_SERVER_ROOT_CERTS[..1].to_vec();
        assert_eq!(authorities(own).len(), 1, "a system that has some is not second-guessed");
    }

    #[test]
    fn a_bad_authority_file_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let missing = directory.path().join("missing.pem");
        let error = Trust::default().with_authorities(&missing).unwrap_err().to_string();
        assert!(error.contains("missing.pem") && error.contains("caFile"), "{error}");
        let empty = directory.path().join("empty.pem");
        std::fs::write(&empty, "no certificate here").unwrap();
        let error = Trust::default().with_authorities(&empty).unwrap_err().to_string();
        assert!(error.contains("empty.pem holds no certificate"), "{error}");
    }
}
