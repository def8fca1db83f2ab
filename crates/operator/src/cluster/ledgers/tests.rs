//! Ledgers as the watch brings them, and what becomes known of them.

use std::sync::Arc;

use fairlead_domain::digest::Digest;
use fairlead_domain::reference::Reference;
use fairlead_plan::consistency::Pair;
use fairlead_plan::ledger::{Owner, OwnerKind};
use fairlead_plan::routing::{Index, Policy};
use serde_json::{Value, json};

use super::*;
use crate::cluster::state::Key;
use crate::cluster::watch::Tolerant;
use crate::cluster::watch::sink::{Counts, Sink};

/// The operator's namespace.
const HOME: &str = "fairlead-system";

/// States of the rows of a ledger: source, destination, state.
type Rows<'a> = &'a [(&'a str, &'a str, &'a str)];

pub(super) const MIRRORED: Rows<'_> =
    &[("docker.io/library/nginx:1", "m.io/hub/library/nginx:1", "Mirrored")];

pub(super) fn reference(text: &str) -> Reference {
    Reference::parse(text).expect("a reference")
}

pub(super) fn digest(number: u8) -> Digest {
    Digest::sha256(&[number])
}

/// A ledger in which every digest is `digest(1)`.
pub(super) fn ledger(name: &str, rows: Rows<'_>) -> Value {
    let entry = |(source, destination, state): &(&str, &str, &str)| {
        json!({
            "source": source, "sourceDigest": digest(1).to_string(),
            "mirrors": [{
                "destination": destination, "digest": digest(1).to_string(), "state": state,
                "since": "2026-01-01T00:00:00Z", "lastError": "x",
            }],
        })
    };
    // Each of an object of its own, of which it is the first shard.
    let uid = format!("{name}-uid");
    let reference = json!({ "apiVersion": "kuik.enix.io/v1alpha1", "kind": "ClusterImageSetMirror", "name": "m", "uid": uid });
    json!({
        "apiVersion": "fairlead.dev/v1alpha1", "kind": "ImageLedger",
        "metadata": {
            "name": object_name(name), "namespace": HOME, "resourceVersion": "7", "ownerReferences": [reference],
        },
        "spec": {
            "owner": { "kind": "ClusterImageSetMirror", "name": "m", "uid": uid },
            "entries": rows.iter().map(entry).collect::<Vec<_>>(),
        },
    })
}

fn object_name(name: &str) -> String {
    let uid: String = format!("{name}uid").chars().take(8).collect();
    format!("cism-m-{uid}-0")
}

fn object(ledger: &Value) -> Tolerant<LeanLedger> {
    serde_json::from_str(&ledger.to_string()).expect("an object")
}

/// What is known after these were listed.
pub(crate) fn claims(ledgers: impl IntoIterator<Item = Value>) -> Claims {
    let claims = Claims::default();
    let mut sink = LedgerSink::new(HOME, claims.clone());
    sink.begin();
    ledgers.into_iter().for_each(|ledger| sink.listed(object(&ledger)));
    sink.finish();
    sink.publish();
    claims
}

fn refuses(claims: &Claims, source: &str, destination: &str) -> bool {
    claims.refuses(&reference(source), &reference(destination), &Index::default())
}

#[test]
fn a_copy_serves_its_own_source_only() {
    let claims = claims([ledger("one", MIRRORED)]);
    let copy = "m.io/hub/library/nginx:1";
    assert!(!refuses(&claims, "nginx:1", copy), "its own");
    assert!(refuses(&claims, "quay.io/library/nginx:1", copy), "of another");
    assert!(!refuses(&claims, "quay.io/library/nginx:2", "m.io/hub/library/nginx:2"), "claimed by nobody");
    let pinned = format!("m.io/hub/library/nginx:1@{}", digest(1));
    assert!(
        !refuses(&claims, &format!("quay.io/library/nginx@{}", digest(1)), &pinned),
        "a digest says what it is"
    );
}

#[test]
fn a_copy_with_a_digest_of_its_own_is_known_to_be_made_of_its_source() {
    let mut ledger = ledger("one", MIRRORED);
    ledger["spec"]["entries"][0]["mirrors"][0]["digest"] = json!(digest(2).to_string());
    let claims = claims([ledger]);
    let (source, copy) = (reference("nginx:1"), reference("m.io/hub/library/nginx:1"));
    let pair = Pair { source: &source, source_digest: &digest(1), copy: &copy, copy_digest: &digest(2) };
    let none = Index::default();
    assert!(claims.has_pair(&pair, &none));
    assert!(
        !claims.has_pair(&Pair { source_digest: &digest(3), ..pair }, &none),
        "the source has moved since"
    );
    assert!(!claims.has_pair(&Pair { copy_digest: &digest(1), ..pair }, &none), "the copy was overwritten");
    assert!(!claims.has_pair(&Pair { source: &reference("quay.io/library/nginx:1"), ..pair }, &none));
    assert!(!Claims::default().has_pair(&pair, &none));
}

#[test]
fn another_spelling_of_the_registry_is_no_other_copy_and_no_other_source() {
    let claims = claims([ledger("one", &[("a.io/nginx:1", "reg.local/m/nginx:1", "Mirrored")])]);
    for copy in ["REG.local/m/nginx:1", "reg.local:443/m/nginx:1", "Reg.Local:443/m/nginx:1"] {
        assert!(refuses(&claims, "b.io/nginx:1", copy), "{copy}");
        assert!(!refuses(&claims, "A.io:443/nginx:1", copy), "{copy}");
    }
    assert!(!refuses(&claims, "b.io/nginx:1", "reg.local:80/m/nginx:1"), "claimed by nobody");
}

#[test]
fn latest_is_what_no_tag_means() {
    let claims = claims([ledger("one", &[("docker.io/library/nginx", "m.io/library/nginx", "Mirrored")])]);
    assert!(!refuses(&claims, "nginx:latest", "m.io/library/nginx:latest"));
    assert!(refuses(&claims, "quay.io/library/nginx", "m.io/library/nginx:latest"));
}

#[test]
fn a_row_that_is_refused_claims_nothing() {
    let copy = "m.io/app:1";
    let refused = ("b.io/app:1", copy, "Refused");
    let claims_of = |first: &'static str| claims([ledger("one", &[("a.io/app:1", copy, first), refused])]);
    for state in ["Mirrored", "Pending", "Failed", "Deleting"] {
        let claims = claims_of(state);
        assert!(!refuses(&claims, "a.io/app:1", copy), "{state}");
        assert!(refuses(&claims, "b.io/app:1", copy), "{state}");
        assert!(refuses(&claims, "c.io/app:1", copy), "{state}");
    }
    let claims = claims_of("Refused");
    assert!(!refuses(&claims, "c.io/app:1", copy), "nobody owns it");
    assert!(refuses(&claims, "b.io/app:1", copy), "its own row says that it is refused");
}

#[test]
fn several_objects_may_own_one_copy() {
    let other = ledger("two", &[("a.io/nginx:1", "m.io/hub/library/nginx:1", "Mirrored")]);
    let claims = claims([ledger("one", MIRRORED), ledger("three", MIRRORED), other]);
    let copy = "m.io/hub/library/nginx:1";
    let refused = |claims: &Claims| {
        ["nginx:1", "a.io/nginx:1", "b.io/nginx:1"].map(|source| refuses(claims, source, copy))
    };
    assert_eq!(refused(&claims), [false, false, true]);

    let mut sink = LedgerSink::new(HOME, claims.clone());
    sink.deleted(object(&ledger("one", MIRRORED)));
    assert_eq!(refused(&claims), [false, false, true], "another ledger has the same row");
    sink.applied(object(&ledger("three", &[])));
    assert_eq!(refused(&claims), [true, false, true]);
    sink.applied(object(&ledger("two", &[])));
    assert_eq!(refused(&claims), [false, false, false]);
}

#[test]
fn what_is_known_follows_the_watch() {
    let claims = Claims::default();
    let mut sink = LedgerSink::new(HOME, claims.clone());
    let mut changes = claims.changes();
    sink.begin();
    sink.listed(object(&ledger("one", MIRRORED)));
    assert!(!claims.listed() && claims.objects().is_empty(), "a list counts when it is complete");
    let mut broken = ledger("broken", MIRRORED);
    broken["spec"]["entries"][0]["mirrors"][0]["state"] = json!("Done");
    sink.listed(object(&broken));
    sink.finish();
    assert_eq!(sink.publish(), Counts { objects: 1, malformed: 1, images: None });
    assert!(claims.listed());
    assert_eq!(futures::FutureExt::now_or_never(changes.next()), Some(()));
    let known = LedgerObject {
        key: Key { namespace: HOME.into(), name: object_name("one").into() },
        version: "7".into(),
        owner: Arc::new(Owner {
            kind: OwnerKind::ClusterImageSetMirror,
            namespace: None,
            name: "m".into(),
            uid: "one-uid".into(),
        }),
    };
    assert_eq!(claims.objects(), [known]);

    sink.applied(object(&ledger("broken", MIRRORED)));
    assert_eq!(sink.publish(), Counts { objects: 2, malformed: 0, images: None });
    sink.applied(object(&broken));
    assert_eq!(sink.publish(), Counts { objects: 1, malformed: 1, images: None });
    sink.begin();
    sink.finish();
    assert_eq!(sink.publish(), Counts { objects: 0, malformed: 0, images: None });
}

/// A policy object with one mirror, as routing compiles it.
fn policies(kind: &str, namespace: Option<&str>, registry: &str) -> Index {
    let mut object = json!({
        "apiVersion": "kuik.enix.io/v1alpha1", "kind": kind, "metadata": { "name": "m", "uid": "one-uid" },
        "spec": { "imageFilter": { "include": [".*"] }, "mirrors": [{ "registry": registry }] },
    });
    let policy = if let Some(namespace) = namespace {
        object["metadata"]["namespace"] = json!(namespace);
        Policy::mirror(&serde_json::from_value(object).expect("a mirror"))
    } else {
        Policy::cluster_mirror(&serde_json::from_value(object).expect("a mirror"))
    };
    Index::new([Arc::new(policy.expect("a policy"))])
}

/// The same ledger as if it were of a namespaced object.
fn of_namespace(namespace: &str) -> Value {
    let mut ledger = ledger("one", MIRRORED);
    ledger["metadata"]["namespace"] = json!(namespace);
    ledger["metadata"]["name"] = json!(object_name("one").replacen("cism", "ism", 1));
    ledger["metadata"]["ownerReferences"][0]["kind"] = json!("ImageSetMirror");
    ledger["spec"]["owner"]["kind"] = json!("ImageSetMirror");
    ledger
}

#[test]
fn a_ledger_that_is_not_where_it_belongs_claims_nothing() {
    let refused = |ledger: Value| {
        let claims = claims([ledger]);
        (
            claims.refuses(
                &reference("quay.io/library/nginx:1"),
                &reference("m.io/hub/library/nginx:1"),
                &policies("ClusterImageSetMirror", None, "m.io"),
            ),
            claims.objects().len(),
        )
    };
    assert_eq!(refused(ledger("one", MIRRORED)), (true, 1), "where it belongs");
    for (field, value) in [
        ("/metadata/namespace", json!("tenant")),
        ("/metadata/name", json!("cism-m-oneuid-x")),
        ("/metadata/ownerReferences", json!([])),
        ("/metadata/ownerReferences/0/uid", json!("two-uid")),
        ("/metadata/ownerReferences/0/name", json!("n")),
        ("/metadata/ownerReferences/0/kind", json!("ImageSetMirror")),
        ("/spec/owner/uid", json!("two-uid")),
        ("/spec/owner/name", json!("n")),
        ("/spec/owner/kind", json!("ImageSetMirror")),
    ] {
        let mut forged = ledger("one", MIRRORED);
        *forged.pointer_mut(field).expect("a field") = value;
        assert_eq!(refused(forged), (false, 0), "{field}");
    }
}

#[test]
fn rows_count_within_the_mirrors_of_their_object_only() {
    let refuses = |claims: &Claims, policies: &Index| {
        claims.refuses(
            &reference("quay.io/library/nginx:1"),
            &reference("m.io/hub/library/nginx:1"),
            policies,
        )
    };
    let kind = "ImageSetMirror";
    let namespaced = claims([of_namespace("team")]);
    for (policies, expected, what) in [
        (policies(kind, Some("team"), "m.io"), true, "its own mirror"),
        (policies(kind, Some("team"), "other.io"), false, "another registry"),
        (policies(kind, Some("else"), "m.io"), false, "an object of another namespace"),
        (Index::default(), false, "no such object"),
    ] {
        assert_eq!(refuses(&namespaced, &policies), expected, "{what}");
    }
    let cluster = claims([ledger("one", MIRRORED)]);
    for (policies, expected, what) in [
        (policies("ClusterImageSetMirror", None, "m.io"), true, "its own mirror"),
        (policies("ClusterImageSetMirror", None, "other.io"), false, "another registry"),
        (Index::default(), true, "broken just now: only the operator writes where it is"),
    ] {
        assert_eq!(refuses(&cluster, &policies), expected, "{what}");
    }
}

#[test]
fn what_a_ledger_asks_for_concerns_its_own_object() {
    let mut asking = of_namespace("team");
    let annotation = lean::annotation(&[reference("m.io/other:1")]);
    asking["metadata"]["annotations"] = annotation["metadata"]["annotations"].clone();
    let claims = claims([asking, ledger("two", MIRRORED)]);
    let asked = claims.asking();
    assert_eq!(asked.len(), 1);
    assert_eq!(asked[0].1.owner.to_string(), "ImageSetMirror/team/m");
    assert_eq!(claims.holders(&reference("nginx:1")).len(), 2, "all that have the image are asked");
}

#[test]
fn what_is_to_be_looked_at_again_is_read_from_the_annotation() {
    let mut asking = ledger("one", MIRRORED);
    let references: Vec<_> = (0..100).map(|number| reference(&format!("m.io/app:{number}"))).collect();
    asking["metadata"]["annotations"] = lean::annotation(&references)["metadata"]["annotations"].clone();
    let (_, asked) = claims([asking.clone()]).holders(&reference("m.io/hub/library/nginx:1")).remove(0);
    assert_eq!(asked.len(), lean::MOST_LOOK_AGAIN);
    assert_eq!(asked[..2], references[..2]);
    for nonsense in ["", "{}", "[7]", r#"["//", ":"]"#] {
        asking["metadata"]["annotations"][fairlead_api::names::fairlead::LOOK_AGAIN] = json!(nonsense);
        assert!(claims([asking.clone()]).asking().is_empty(), "{nonsense}");
    }
}

#[test]
fn a_source_is_found_as_well_as_a_copy() {
    let claims = claims([ledger("one", MIRRORED)]);
    for image in ["nginx:1", "m.io/hub/library/nginx:1"] {
        assert_eq!(claims.holders(&reference(image)).len(), 1, "{image}");
    }
    assert_eq!(claims.holders(&reference("nginx:2")), []);
}

/// Twenty thousand images with three copies each must not weigh on every replica.
#[test]
fn a_row_takes_few_bytes() {
    let (row, source) = (size_of::<index::Item<index::HashedRow>>(), size_of::<index::Item<index::Mark>>());
    assert!(row <= 32 && source <= 16, "{row} bytes for a copy, {source} for a source");
}
