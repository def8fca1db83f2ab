//! A ledger as it is decoded: hashes of its rows, and nothing of their texts.

use std::borrow::Cow;

use fairlead_api::fairlead::{CopyState, ImageLedger, LedgerOwner};
use fairlead_api::names::fairlead::LOOK_AGAIN;
use fairlead_domain::digest::Digest;
use fairlead_domain::reference::Reference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::ObjectMeta;
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer};

use super::index::{HashedRow, Mark, Proof, Rows, name_of, namespace_name};
use crate::cluster::watch::{LeanMeta, stands_for};

/// References in one annotation; its writer cuts off more.
pub(super) const MOST_LOOK_AGAIN: usize = 64;

#[derive(Debug, Clone)]
pub(crate) struct LeanLedger {
    /// Name, namespace, version and owners; nothing else is filled.
    pub(super) metadata: ObjectMeta,
    /// The object that it says it belongs to.
    pub(super) owner: LedgerOwner,
    pub(super) rows: Rows,
}

#[derive(Deserialize)]
struct Wire<'a> {
    #[serde(default)]
    metadata: LeanMeta<WireAnnotations>,
    #[serde(borrow)]
    spec: WireSpec<'a>,
}

#[derive(Default, Deserialize)]
struct WireAnnotations {
    #[serde(rename = "fairlead.dev/look-again")]
    look_again: Option<String>,
}

#[derive(Deserialize)]
struct WireSpec<'a> {
    owner: LedgerOwner,
    #[serde(borrow, default)]
    entries: Vec<WireEntry<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireEntry<'a> {
    #[serde(borrow)]
    source: Cow<'a, str>,
    #[serde(borrow, default)]
    source_digest: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    mirrors: Vec<WireCopy<'a>>,
    #[serde(borrow, default)]
    access: Vec<WireProof<'a>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireProof<'a> {
    #[serde(borrow)]
    namespace: Cow<'a, str>,
    proven_at: Time,
}

#[derive(Deserialize)]
struct WireCopy<'a> {
    #[serde(borrow)]
    destination: Cow<'a, str>,
    #[serde(borrow, default)]
    digest: Option<Cow<'a, str>>,
    state: CopyState,
    #[serde(default)]
    replaces: bool,
    #[serde(default)]
    written: Vec<IgnoredAny>,
}

fn mark(text: Option<&Cow<'_, str>>) -> Option<Mark> {
    Some(Mark::of(&text?.parse::<Digest>().ok()?))
}

impl From<Wire<'_>> for LeanLedger {
    fn from(wire: Wire<'_>) -> Self {
        let (mut rows, mut sources, mut proofs) = (Vec::new(), Vec::new(), Vec::new());
        for entry in &wire.spec.entries {
            // A reference that cannot be read is never asked for.
            let Ok(source) = Reference::parse(&entry.source) else { continue };
            let name = name_of(&source);
            // Without copies it is an image that is only watched.
            if let Some(digest) = mark(entry.source_digest.as_ref()).filter(|_| !entry.mirrors.is_empty()) {
                sources.push((name, digest));
            }
            proofs.extend(entry.access.iter().map(|proof| {
                (name, Proof { namespace: namespace_name(&proof.namespace), at: proof.proven_at.0 })
            }));
            for copy in &entry.mirrors {
                let Ok(destination) = Reference::parse(&copy.destination) else { continue };
                let row = HashedRow {
                    source: name,
                    digest: mark(copy.digest.as_ref()),
                    state: copy.state,
                    replaces: copy.replaces,
                    written: !copy.written.is_empty(),
                };
                rows.push((name_of(&destination), row));
            }
        }
        let look_again =
            wire.metadata.annotations.as_ref().and_then(|annotations| annotations.look_again.as_deref());
        let look_again = look_again.map(references).unwrap_or_default().into();
        let rows = Rows { copies: rows, sources, proofs, look_again };
        Self { metadata: wire.metadata.into(), owner: wire.spec.owner, rows }
    }
}

/// The references in an annotation. A foreign text counts as none.
fn references(text: &str) -> Vec<Reference> {
    let texts: Vec<Cow<'_, str>> = serde_json::from_str(text).unwrap_or_default();
    texts.iter().take(MOST_LOOK_AGAIN).filter_map(|text| Reference::parse(text).ok()).collect()
}

/// The annotation that asks for these to be looked at again, the first ones if there are too many.
pub(super) fn annotation(references: &[Reference]) -> serde_json::Value {
    let texts: Vec<&str> = references.iter().take(MOST_LOOK_AGAIN).map(Reference::as_str).collect();
    serde_json::json!({ "metadata": { "annotations": { LOOK_AGAIN: serde_json::json!(texts).to_string() } } })
}

impl<'de> Deserialize<'de> for LeanLedger {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Wire::deserialize(deserializer).map(Self::from)
    }
}

stands_for!(LeanLedger, ImageLedger);
