//! Stored objects as [`fairlead_plan::ledger::trusted`] takes them.

use fairlead_api::fairlead::LedgerOwner;
use fairlead_plan::ledger::{self, Distrust, FoundLedger, FoundReference, Owner, ShardId};
use kube::api::ObjectMeta;

/// The owner of a stored ledger and the shard that it is; an error if it is not where Fairlead writes ledgers, so that
/// it counts for nothing. Every reader of ledgers asks this first.
pub fn trusted(
    metadata: &ObjectMeta,
    owner: &LedgerOwner,
    operator_namespace: &str,
) -> Result<(Owner, ShardId), Distrust> {
    let references: Vec<FoundReference<'_>> = metadata
        .owner_references
        .iter()
        .flatten()
        .map(|one| FoundReference {
            api_version: &one.api_version,
            kind: &one.kind,
            name: &one.name,
            uid: &one.uid,
        })
        .collect();
    let found = FoundLedger {
        namespace: metadata.namespace.as_deref().unwrap_or_default(),
        name: metadata.name.as_deref().unwrap_or_default(),
        owner,
        references: &references,
    };
    ledger::trusted(&found, operator_namespace)
}
