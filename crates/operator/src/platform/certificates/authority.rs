//! Certificates of authorities: telling them apart, and bundles of them as text.

use std::time::Duration;

use fairlead_plan::certificates::{Authority, AuthorityId, Window};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use sha2::{Digest, Sha256};
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;

/// An authority with its certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct KnownAuthority {
    pub(super) facts: Authority,
    pub(super) certificate: CertificateDer<'static>,
}

impl KnownAuthority {
    /// None if the certificate cannot be read or is not that of an authority.
    pub(super) fn of(certificate: &CertificateDer<'_>) -> Option<Self> {
        let parsed = parse(certificate)?;
        let window = window(&parsed)?;
        parsed.is_ca().then(|| Self {
            facts: Authority { id: fingerprint(certificate), window },
            certificate: certificate.clone().into_owned(),
        })
    }

    pub(super) fn id(&self) -> &AuthorityId {
        &self.facts.id
    }
}

/// Reads all authorities of a bundle and skips what else is in it.
pub(super) fn read_bundle(pem: &[u8]) -> Vec<KnownAuthority> {
    let mut authorities: Vec<KnownAuthority> = Vec::new();
    for certificate in CertificateDer::pem_slice_iter(pem).map_while(Result::ok) {
        if let Some(authority) = KnownAuthority::of(&certificate)
            && !authorities.contains(&authority)
        {
            authorities.push(authority);
        }
    }
    authorities
}

/// Writes a bundle; reading it back gives the same authorities.
pub(super) fn write_bundle<'a>(authorities: impl IntoIterator<Item = &'a KnownAuthority>) -> String {
    authorities.into_iter().map(|authority| pem(&authority.certificate)).collect()
}

pub(super) fn pem(certificate: &CertificateDer<'_>) -> String {
    use base64::Engine as _;
    use base64::prelude::BASE64_STANDARD;

    let body = BASE64_STANDARD.encode(certificate);
    let mut text = String::from("-----BEGIN CERTIFICATE-----\n");
    let mut rest = body.as_str();
    while !rest.is_empty() {
        let (line, after) = rest.split_at_checked(64).unwrap_or((rest, ""));
        text.push_str(line);
        text.push('\n');
        rest = after;
    }
    text.push_str("-----END CERTIFICATE-----\n");
    text
}

pub(super) fn parse<'a>(certificate: &'a CertificateDer<'_>) -> Option<X509Certificate<'a>> {
    match X509Certificate::from_der(certificate) {
        Ok(([], parsed)) => Some(parsed),
        _ => None,
    }
}

/// None for times before 1970.
pub(super) fn window(certificate: &X509Certificate<'_>) -> Option<Window> {
    let time = |seconds: i64| u64::try_from(seconds).ok().map(Duration::from_secs);
    let validity = certificate.validity();
    Some(Window {
        not_before: time(validity.not_before.timestamp())?,
        not_after: time(validity.not_after.timestamp())?,
    })
}

pub(super) fn fingerprint(certificate: &CertificateDer<'_>) -> AuthorityId {
    AuthorityId(hexadecimal(&Sha256::digest(certificate)))
}

pub(super) fn hexadecimal(bytes: &[u8]) -> String {
    use std::fmt::Write as _;

    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
    }
    text
}
