//! Which stored ledgers count.

use fairlead_api::fairlead::LedgerOwner;

use super::*;

const HOME: &str = "fairlead-system";

fn owners() -> [Owner; 3] {
    OwnerKind::ALL.map(|kind| Owner {
        kind,
        namespace: (!kind.is_cluster_scoped()).then(|| "team".into()),
        name: "hub".into(),
        uid: "0f5a3c71-9d2e-4b60-8a11-27c4d3e5f609".into(),
    })
}

fn reference(owner: &Owner) -> FoundReference<'_> {
    let api_version = "kuik.enix.io/v1alpha1";
    FoundReference { api_version, kind: owner.kind.name(), name: &owner.name, uid: &owner.uid }
}

#[test]
fn what_fairlead_writes_is_trusted() {
    for owner in owners() {
        let name = owner.object_name(ShardId(7));
        let named = owner.named();
        let foreign = FoundReference { api_version: "v1", kind: "ConfigMap", name: "x", uid: "y" };
        for references in [vec![reference(&owner)], vec![foreign, reference(&owner)]] {
            let found = FoundLedger {
                namespace: owner.namespace.as_deref().unwrap_or(HOME),
                name: &name,
                owner: &named,
                references: &references,
            };
            assert_eq!(trusted(&found, HOME), Ok((owner.clone(), ShardId(7))));
        }
    }
}

#[test]
fn everything_else_is_not() {
    let [cluster, own, _] = owners();
    let name = cluster.object_name(ShardId(0));
    let named = cluster.named();
    let references = [reference(&cluster)];
    let good = FoundLedger { namespace: HOME, name: &name, owner: &named, references: &references };
    let own_name = own.object_name(ShardId(0));
    let own_references = [reference(&own)];
    let other_version = [FoundReference { api_version: "example.com/v1", ..references[0] }];
    let renamed = LedgerOwner { name: "hub2".into(), ..named.clone() };
    let unknown = LedgerOwner { kind: "Deployment".into(), ..named.clone() };
    for (found, why) in [
        (FoundLedger { namespace: "team", ..good }, Distrust::Place),
        (FoundLedger { name: &own_name, ..good }, Distrust::Name),
        (FoundLedger { name: "cism-hub-0f5a3c71-00", ..good }, Distrust::Name),
        (FoundLedger { name: "hub", ..good }, Distrust::Name),
        (FoundLedger { owner: &renamed, ..good }, Distrust::Name),
        (FoundLedger { owner: &unknown, ..good }, Distrust::Kind),
        (FoundLedger { references: &[], ..good }, Distrust::Reference),
        (FoundLedger { references: &own_references, ..good }, Distrust::Reference),
        (FoundLedger { references: &other_version, ..good }, Distrust::Reference),
    ] {
        assert_eq!(trusted(&found, HOME), Err(why), "{found:?}");
    }
}

/// In another namespace it is the ledger of an object there, whatever the UID: it is never taken for this one's.
#[test]
fn a_namespaced_ledger_belongs_to_an_object_of_its_own_namespace() {
    let [_, own, _] = owners();
    let (name, named, references) = (own.object_name(ShardId(0)), own.named(), [reference(&own)]);
    let found = FoundLedger { namespace: "evil", name: &name, owner: &named, references: &references };
    let (owner, _) = trusted(&found, HOME).unwrap();
    assert_eq!(owner.namespace.as_deref(), Some("evil"));
    assert_ne!(owner, own);
}
