//! Which source a copy belongs to, as the ledgers of the cluster say. Admission does not offer the copy of one image as a
//! copy of another, so an explanation must not, either.

use std::collections::HashMap;

use fairlead_api::fairlead::{CopyState, ImageLedgerSpec};
use fairlead_domain::reference::Reference;
use fairlead_plan::mirroring::is_foreign;

#[derive(Debug, Default)]
pub(crate) struct Copies {
    /// By what is pulled from a destination: what is pulled from the source, and how far the copy is.
    rows: HashMap<String, Vec<(String, CopyState)>>,
}

impl Copies {
    pub(crate) fn add(&mut self, ledger: &ImageLedgerSpec) {
        for entry in &ledger.entries {
            let Ok(source) = Reference::parse(&entry.source) else { continue };
            for copy in &entry.mirrors {
                let Ok(destination) = Reference::parse(&copy.destination) else { continue };
                let row = (pulled(&source), copy.state);
                self.rows.entry(pulled(&destination)).or_default().push(row);
            }
        }
    }

    /// Whether what is there is the copy of another image. What is named by its digest cannot be.
    pub(crate) fn refuse(&self, source: &Reference, destination: &Reference) -> bool {
        let rows = self.rows.get(&pulled(destination)).filter(|_| destination.digest().is_none());
        let source = pulled(source);
        rows.is_some_and(|rows| is_foreign(rows.iter().map(|(owner, state)| (*owner == source, *state))))
    }
}

fn pulled(reference: &Reference) -> String {
    reference.pulled().as_str().to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

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
        let mut copies = Copies::default();
        assert!(!copies.refuse(&image("quay.io/team/app"), &image("m.io/team/app")), "nobody claims it");
        copies.add(&ledger);
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
