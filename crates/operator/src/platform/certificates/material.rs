//! Making authorities and leaves.

use std::collections::BTreeSet;
use std::time::Duration;

use fairlead_plan::certificates::Window;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, date_time_ymd,
};

use super::authority::{KnownAuthority, parse, pem};

/// A certificate or key could not be made or used.
#[derive(Debug, thiserror::Error)]
pub enum MaterialError {
    #[error("making {what} failed: {source}")]
    Make { what: &'static str, source: rcgen::Error },
    #[error("the {what} that was just made cannot be read")]
    Unreadable { what: &'static str },
    #[error("the system gives no random numbers")]
    Random,
}

/// An authority that can sign.
#[derive(Clone)]
pub(super) struct SigningAuthority {
    pub(super) known: KnownAuthority,
    pub(super) key: String,
}

/// A leaf with its key, as text.
#[derive(Clone)]
pub(super) struct MadeLeaf {
    pub(super) certificate: String,
    pub(super) key: String,
}

impl SigningAuthority {
    /// Makes a new authority. Its name carries its birth, so that two of them are told apart in a listing.
    pub(super) fn make(window: Window) -> Result<Self, MaterialError> {
        let failed = |source| MaterialError::Make { what: "an authority", source };
        let key = KeyPair::generate().map_err(failed)?;
        let mut params = CertificateParams::default();
        params.distinguished_name =
            name(&format!("Fairlead webhook authority {}", window.not_before.as_secs()));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        set_window(&mut params, window);
        let certificate = params.self_signed(&key).map_err(failed)?;
        let known =
            KnownAuthority::of(certificate.der()).ok_or(MaterialError::Unreadable { what: "authority" })?;
        Ok(Self { known, key: key.serialize_pem() })
    }

    /// Puts certificate and key together; none if they do not belong to one another.
    pub(super) fn from_parts(known: KnownAuthority, key: &str) -> Option<Self> {
        let pair = KeyPair::from_pem(key).ok()?;
        let matches =
            parse(&known.certificate)?.public_key().subject_public_key.data.as_ref() == pair.public_key_raw();
        matches.then(|| Self { known, key: key.to_owned() })
    }

    pub(super) fn certificate(&self) -> String {
        pem(&self.known.certificate)
    }

    /// Makes a leaf for a server with these names.
    pub(super) fn sign(&self, names: &BTreeSet<String>, window: Window) -> Result<MadeLeaf, MaterialError> {
        let failed = |source| MaterialError::Make { what: "a leaf", source };
        let signing_key = KeyPair::from_pem(&self.key).map_err(failed)?;
        let issuer = Issuer::from_ca_cert_der(&self.known.certificate, signing_key).map_err(failed)?;
        let key = KeyPair::generate().map_err(failed)?;
        let mut params = CertificateParams::new(names.iter().cloned().collect::<Vec<_>>()).map_err(failed)?;
        params.distinguished_name = name("Fairlead webhook");
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        set_window(&mut params, window);
        let certificate = params.signed_by(&key, &issuer).map_err(failed)?;
        Ok(MadeLeaf { certificate: certificate.pem().replace("\r\n", "\n"), key: key.serialize_pem() })
    }
}

fn name(common_name: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common_name);
    name
}

/// Certificates know whole seconds only.
fn set_window(params: &mut CertificateParams, window: Window) {
    let time = |since: Duration| date_time_ymd(1970, 1, 1) + Duration::from_secs(since.as_secs());
    params.not_before = time(window.not_before);
    params.not_after = time(window.not_after);
}
