//! Which source a copy belongs to, as the ledgers of the cluster say. Admission does not offer the copy of one image as
//! a copy of another, so an explanation must not, either.

use std::collections::HashMap;
use std::sync::Arc;

use fairlead_api::fairlead::{CopyState, ImageLedgerSpec};
use fairlead_domain::digest::Digest;
use fairlead_domain::reference::{ImageKey, Reference};
use fairlead_operator::cluster::ledgers::trusted;
use fairlead_plan::access::{self, Made, Recorded, Standing};
use fairlead_plan::consistency::Pair;
use fairlead_plan::ledger::row_counts;
use fairlead_plan::mirroring::{Claimed, is_foreign};
use fairlead_plan::routing::{GuardedCopy, Index, PolicyId};
use jiff::Timestamp;
use kube::api::ObjectMeta;

/// What decides which ledgers and rows count.
#[derive(Clone, Copy)]
pub(crate) struct Trust<'a> {
    pub(crate) index: &'a Index,
    pub(crate) operator_namespace: &'a str,
}

#[derive(Debug, Default)]
pub(crate) struct Copies {
    /// By what is pulled from a destination: what is pulled from the source, and how far the copy is.
    rows: HashMap<ImageKey, Vec<Row>>,
    /// By what is pulled from a source: the digests that ledgers say it had.
    sources: HashMap<ImageKey, Vec<Digest>>,
    /// By what is pulled from a source: who has proven access to it, by the ledger of which mirror.
    proofs: HashMap<ImageKey, Vec<Proof>>,
    /// The ledgers of a cluster were read.
    pub(crate) known: bool,
}

#[derive(Debug)]
struct Proof {
    mirror: Option<Arc<PolicyId>>,
    namespace: String,
    at: Timestamp,
}

#[derive(Debug)]
struct Row {
    source: ImageKey,
    state: CopyState,
    digest: Option<Digest>,
    replaces: bool,
    written: bool,
    mirror: Option<Arc<PolicyId>>,
}

impl Copies {
    /// None yet, of a cluster whose ledgers are read.
    pub(crate) fn of_cluster() -> Self {
        Self { known: true, ..Self::default() }
    }

    pub(crate) fn add(&mut self, metadata: &ObjectMeta, ledger: &ImageLedgerSpec, trust: &Trust<'_>) {
        let Ok((owner, _)) = trusted(metadata, &ledger.owner, trust.operator_namespace) else { return };
        let policy = trust.index.owner(&owner);
        for entry in &ledger.entries {
            let Ok(source) = Reference::parse(&entry.source) else { continue };
            if let Some(digest) = digest(entry.source_digest.as_ref()) {
                self.sources.entry(source.key()).or_default().push(digest);
            }
            let mirror = policy.map(|policy| Arc::clone(policy.id()));
            let proofs = entry.access.iter().map(|proof| Proof {
                mirror: mirror.clone(),
                namespace: proof.namespace.clone(),
                at: proof.proven_at.0,
            });
            self.proofs.entry(source.key()).or_default().extend(proofs);
            for copy in &entry.mirrors {
                let Ok(destination) = Reference::parse(&copy.destination) else { continue };
                if !row_counts(owner.kind, policy, &destination) {
                    continue;
                }
                let row = Row {
                    source: source.key(),
                    state: copy.state,
                    digest: digest(copy.digest.as_ref()),
                    replaces: copy.replaces,
                    written: !copy.written.is_empty(),
                    mirror: mirror.clone(),
                };
                self.rows.entry(destination.key()).or_default().push(row);
            }
        }
    }

    /// Whether what is there is the copy of another image. What is named by its digest cannot be.
    pub(crate) fn refuse(&self, source: &Reference, destination: &Reference) -> bool {
        let rows = self.rows.get(&destination.key()).filter(|_| destination.digest().is_none());
        let source = source.key();
        let claimed = |row: &Row| Claimed {
            own: row.source == source,
            state: row.state,
            filled: row.digest.is_some(),
            replaces: row.replaces,
        };
        rows.is_some_and(|rows| is_foreign(rows.iter().map(claimed)))
    }

    /// Where a namespace stands with a copy of a mirror that asks for proof of access.
    pub(crate) fn standing(
        &self,
        copy: &GuardedCopy<'_>,
        namespace: &str,
        counts: impl Fn(Timestamp) -> bool,
    ) -> Standing {
        let source = copy.source.key();
        let rows = self.rows.get(&copy.copy.key()).into_iter().flatten().map(|row| Made {
            by: Recorded::by_mirror(row.mirror.as_ref() == Some(copy.policy)),
            of_source: row.source == source,
            state: row.state,
            replaces: row.replaces,
            written: row.written,
        });
        access::standing(copy.source, rows, || {
            let proofs = self.proofs.get(&source).into_iter().flatten();
            let mut own = proofs.filter(|proof| proof.mirror.as_ref() == Some(copy.policy));
            own.any(|proof| proof.namespace == namespace && counts(proof.at))
        })
    }

    /// Whether a ledger says that the copy was made of the source as both are now.
    pub(crate) fn have_pair(&self, pair: &Pair<'_>) -> bool {
        let source = pair.source.key();
        let is_copy = |row: &Row| {
            row.state == CopyState::Mirrored && row.source == source && row.digest == Some(*pair.copy_digest)
        };
        self.rows.get(&pair.copy.key()).is_some_and(|rows| rows.iter().any(is_copy))
            && self.sources.get(&source).is_some_and(|known| known.contains(pair.source_digest))
    }
}

fn digest(text: Option<&String>) -> Option<Digest> {
    text?.parse().ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Of the first ledger of a mirror.
    fn metadata(namespace: &str) -> ObjectMeta {
        serde_json::from_value(json!({
            "name": "cism-all-1-0", "namespace": namespace, "ownerReferences": [{
                "apiVersion": "kuik.enix.io/v1alpha1", "kind": "ClusterImageSetMirror", "name": "all", "uid": "1",
            }],
        }))
        .unwrap()
    }

    #[test]
    fn a_copy_with_a_digest_of_its_own_is_known_by_the_ledger() {
        let (of_source, of_copy) = (Digest::sha256(b"all platforms"), Digest::sha256(b"one platform"));
        let ledger: ImageLedgerSpec = serde_json::from_value(json!({
            "owner": {"kind": "ClusterImageSetMirror", "name": "all", "uid": "1"},
            "entries": [{
                "source": "docker.io/team/app:1", "sourceDigest": of_source.to_string(),
                "mirrors": [{
                    "destination": "m.io/team/app:1", "state": "Mirrored", "since": "2026-01-01T00:00:00Z",
                    "digest": of_copy.to_string(),
                }],
            }],
        }))
        .unwrap();
        let index = Index::default();
        let trust = Trust { index: &index, operator_namespace: "fairlead-system" };
        let mut copies = Copies::default();
        copies.add(&metadata("fairlead-system"), &ledger, &trust);
        let (source, copy) =
            (Reference::parse("team/app:1").unwrap(), Reference::parse("m.io/team/app:1").unwrap());
        let pair = Pair { source: &source, source_digest: &of_source, copy: &copy, copy_digest: &of_copy };
        assert!(copies.have_pair(&pair));
        assert!(!copies.have_pair(&Pair { source_digest: &of_copy, ..pair }), "the source has moved");
        assert!(!copies.have_pair(&Pair { copy_digest: &of_source, ..pair }), "the copy was overwritten");
        assert!(!copies.have_pair(&Pair { source: &copy, ..pair }));
    }

    #[test]
    fn a_copy_is_offered_for_its_own_source_only() {
        let image = |text: &str| Reference::parse(text).unwrap();
        let row = |destination: &str, state: &str| {
            json!({
                "destination": destination, "state": state, "since": "2026-01-01T00:00:00Z",
                "digest": format!("sha256:{}", "0".repeat(64)), "lastError": "x",
            })
        };
        let ledger: ImageLedgerSpec = serde_json::from_value(json!({
            "owner": {"kind": "ClusterImageSetMirror", "name": "all", "uid": "1"},
            "entries": [
                {"source": "docker.io/team/app:latest", "mirrors": [row("m.io/team/app:latest", "Mirrored")]},
                {"source": "quay.io/team/app:latest", "mirrors": [row("m.io/team/app:latest", "Refused")]},
            ],
        }))
        .unwrap();
        let index = Index::default();
        let trust = Trust { index: &index, operator_namespace: "fairlead-system" };
        let mut copies = Copies::default();
        copies.add(&metadata("team"), &ledger, &trust);
        assert!(!copies.refuse(&image("quay.io/team/app"), &image("m.io/team/app")), "nobody claims it");
        copies.add(&metadata("fairlead-system"), &ledger, &trust);
        for (source, destination, refused) in [
            ("team/app", "m.io/team/app", false),
            ("quay.io/team/app", "m.io/team/app", true),
            ("gcr.io/team/app", "m.io/team/app:latest", true),
            ("gcr.io/team/app", "m.io/team/other", false),
        ] {
            assert_eq!(copies.refuse(&image(source), &image(destination)), refused, "{source} {destination}");
        }
        let digest = format!("m.io/team/app@sha256:{}", "0".repeat(64));
        assert!(!copies.refuse(&image("quay.io/team/app"), &image(&digest)));
    }
}
