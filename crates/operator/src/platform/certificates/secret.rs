//! What the Secret holds: how it is read, with every kind of damage in mind, and how it is written.

use std::collections::{BTreeMap, BTreeSet};

use fairlead_plan::certificates::{AuthorityId, Kept, Leaf, Window};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use rustls::RootCertStore;
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::ParsedCertificate;
use x509_parser::extensions::GeneralName;

use super::Settings;
use super::authority::{KnownAuthority, parse, read_bundle, write_bundle};
use super::material::{MadeLeaf, SigningAuthority};
use super::resolver::ServableLeaf;
use super::tokens::StoredTokens;

const LEAF: &str = "tls.crt";
const LEAF_KEY: &str = "tls.key";
const BUNDLE: &str = "ca.crt";
const ISSUER: &str = "issuer.crt";
const ISSUER_KEY: &str = "issuer.key";
const STAGED: &str = "next-issuer.crt";
const STAGED_KEY: &str = "next-issuer.key";

/// A person sets this to any new value to get a new authority.
const ROTATE: &str = "fairlead.dev/rotate";
/// The value of the request that was granted last.
const ROTATED: &str = "fairlead.dev/rotated";

/// The Secret, read.
#[derive(Default)]
pub(super) struct Contents {
    pub(super) leaf: Option<ServableLeaf>,
    pub(super) issuer: Option<SigningAuthority>,
    pub(super) staged: Option<SigningAuthority>,
    pub(super) bundle: Vec<KnownAuthority>,
    /// The bundle as it stands there, to the byte.
    pub(super) bundle_text: Vec<u8>,
    pub(super) tokens: StoredTokens,
    pub(super) kept: Kept,
}

impl Contents {
    pub(super) fn read(secret: &Secret) -> Self {
        let empty = BTreeMap::new();
        let data = secret.data.as_ref().unwrap_or(&empty);
        let bytes = |key: &str| data.get(key).map_or(&[][..], |value| value.0.as_slice());
        let bundle_text = bytes(BUNDLE).to_vec();
        let bundle = read_bundle(&bundle_text);
        let issuer = read_signing(bytes(ISSUER), bytes(ISSUER_KEY));
        let staged = read_signing(bytes(STAGED), bytes(STAGED_KEY));
        let leaf = ServableLeaf::from_pem(bytes(LEAF), bytes(LEAF_KEY)).ok();
        let known =
            bundle.iter().chain([&issuer, &staged].into_iter().flatten().map(|signing| &signing.known));
        let tokens = StoredTokens::read(secret);
        let kept = Kept {
            leaf: leaf.as_ref().and_then(|leaf| leaf_facts(leaf, known)),
            issuer: issuer.as_ref().map(|issuer| issuer.known.facts.clone()),
            staged: staged.as_ref().map(|staged| staged.known.facts.clone()),
            bundle_is_damaged: write_bundle(&bundle).as_bytes() != bundle_text,
            bundle: bundle.iter().map(|authority| authority.facts.clone()).collect(),
            rotation_requested: rotation_requested(&secret.metadata),
            tokens: tokens.facts(),
        };
        Self { leaf, issuer, staged, bundle, bundle_text, tokens, kept }
    }

    /// The authorities of this Secret by id, in the order asked for, completed from elsewhere.
    pub(super) fn authorities(
        &self,
        keep: &[AuthorityId],
        elsewhere: &[KnownAuthority],
    ) -> Vec<KnownAuthority> {
        let own = [&self.issuer, &self.staged].into_iter().flatten().map(|signing| &signing.known);
        let all: Vec<_> = self.bundle.iter().chain(own).chain(elsewhere).collect();
        keep.iter()
            .filter_map(|id| all.iter().find(|known| known.id() == id))
            .map(|known| (*known).clone())
            .collect()
    }
}

/// What becomes of the staged authority.
#[derive(Default)]
pub(super) enum Staging {
    #[default]
    Leave,
    Clear,
    Put(SigningAuthority),
}

/// What to change in the Secret. What is none stays.
#[derive(Default)]
pub(super) struct Change {
    pub(super) leaf: Option<MadeLeaf>,
    pub(super) issuer: Option<SigningAuthority>,
    pub(super) staged: Staging,
    pub(super) bundle: Option<Vec<KnownAuthority>>,
}

impl Change {
    /// The Secret with the change made to it. Everything else that is in it stays.
    pub(super) fn apply(self, secret: &mut Secret) {
        let new_authority = self.issuer.is_some() || matches!(self.staged, Staging::Put(_));
        let data = secret.data.get_or_insert_default();
        let mut put = |key: &str, text: String| {
            data.insert(key.to_owned(), ByteString(text.into_bytes()));
        };
        if let Some(leaf) = self.leaf {
            put(LEAF, leaf.certificate);
            put(LEAF_KEY, leaf.key);
        }
        if let Some(issuer) = self.issuer {
            put(ISSUER, issuer.certificate());
            put(ISSUER_KEY, issuer.key);
        }
        if let Some(bundle) = self.bundle {
            put(BUNDLE, write_bundle(&bundle));
        }
        match self.staged {
            Staging::Put(staged) => {
                put(STAGED, staged.certificate());
                put(STAGED_KEY, staged.key);
            }
            Staging::Clear => {
                data.remove(STAGED);
                data.remove(STAGED_KEY);
            }
            Staging::Leave => {}
        }
        // Secrets of this type must have both keys, if only to say that there is no leaf yet.
        for key in [LEAF, LEAF_KEY] {
            data.entry(key.to_owned()).or_insert_with(|| ByteString(Vec::new()));
        }
        if new_authority {
            grant_rotation(&mut secret.metadata);
        }
    }
}

/// A Secret for certificates, with nothing in it yet.
pub(super) fn blank(settings: &Settings) -> Secret {
    empty(settings, "kubernetes.io/tls")
}

/// A Secret for tokens alone, with nothing in it yet.
pub(super) fn blank_of_path(settings: &Settings) -> Secret {
    empty(settings, "Opaque")
}

fn empty(settings: &Settings, kind: &str) -> Secret {
    let labels = [
        ("app.kubernetes.io/name", "fairlead"),
        ("app.kubernetes.io/component", "operator"),
        ("app.kubernetes.io/part-of", "fairlead"),
        ("app.kubernetes.io/managed-by", "fairlead"),
    ];
    Secret {
        metadata: ObjectMeta {
            name: Some(settings.secret.clone()),
            namespace: Some(settings.namespace.clone()),
            labels: Some(labels.map(|(key, value)| (key.to_owned(), value.to_owned())).into()),
            ..ObjectMeta::default()
        },
        type_: Some(kind.to_owned()),
        ..Secret::default()
    }
}

fn rotation_requested(metadata: &ObjectMeta) -> bool {
    let annotation = |key: &str| metadata.annotations.as_ref().and_then(|annotations| annotations.get(key));
    annotation(ROTATE).is_some() && annotation(ROTATE) != annotation(ROTATED)
}

fn grant_rotation(metadata: &mut ObjectMeta) {
    if let Some(annotations) = &mut metadata.annotations
        && let Some(asked) = annotations.get(ROTATE).cloned()
    {
        annotations.insert(ROTATED.to_owned(), asked);
    }
}

fn read_signing(certificate: &[u8], key: &[u8]) -> Option<SigningAuthority> {
    let certificate = CertificateDer::pem_slice_iter(certificate).next()?.ok()?;
    SigningAuthority::from_parts(KnownAuthority::of(&certificate)?, std::str::from_utf8(key).ok()?)
}

fn leaf_facts<'a>(leaf: &ServableLeaf, known: impl Iterator<Item = &'a KnownAuthority>) -> Option<Leaf> {
    let certificate = leaf.certificate()?;
    let parsed = parse(certificate)?;
    let names = match parsed.subject_alternative_name() {
        Ok(Some(extension)) => extension.value.general_names.iter().filter_map(name_text).collect(),
        _ => BTreeSet::new(),
    };
    let mut known = known;
    let signed_by = known.find(|authority| is_signed_by(certificate, leaf.window, authority));
    Some(Leaf { window: leaf.window, names, signed_by: signed_by.map(|authority| authority.id().clone()) })
}

fn name_text(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => {
            let four = <[u8; 4]>::try_from(*bytes).map(std::net::IpAddr::from);
            let sixteen = <[u8; 16]>::try_from(*bytes).map(std::net::IpAddr::from);
            four.or(sixteen).ok().map(|address| address.to_string())
        }
        _ => None,
    }
}

/// Asks the same library that TLS clients use, at a time when both certificates are valid.
fn is_signed_by(leaf: &CertificateDer<'_>, leaf_window: Window, authority: &KnownAuthority) -> bool {
    let time = leaf_window.not_before.max(authority.facts.window.not_before);
    let mut roots = RootCertStore::empty();
    if roots.add(authority.certificate.clone()).is_err() {
        return false;
    }
    let algorithms = ring::default_provider().signature_verification_algorithms.all;
    ParsedCertificate::try_from(leaf).is_ok_and(|leaf| {
        verify_server_cert_signed_by_trust_anchor(
            &leaf,
            &roots,
            &[],
            UnixTime::since_unix_epoch(time),
            algorithms,
        )
        .is_ok()
    })
}

#[cfg(test)]
mod tests;
