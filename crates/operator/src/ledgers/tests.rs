//! Ledgers as the watch brings them, and what becomes known of them.

use fairlead_domain::{digest::Digest, reference::Reference};
use fairlead_plan::consistency::Pair;
use serde_json::{Value, json};

use super::*;
use crate::{
    state::Key,
    watch::{
        Tolerant,
        sink::{Counts, Sink},
    },
};

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
    json!({
        "apiVersion": "fairlead.dev/v1alpha1", "kind": "ImageLedger",
        "metadata": { "name": name, "namespace": "fairlead-system", "resourceVersion": "7" },
        "spec": {
            "owner": { "kind": "ClusterImageSetMirror", "name": "m", "uid": format!("uid of {name}") },
            "entries": rows.iter().map(entry).collect::<Vec<_>>(),
        },
    })
}

fn object(ledger: &Value) -> Tolerant<LeanLedger> {
    serde_json::from_str(&ledger.to_string()).expect("an object")
}

/// What is known after these were listed.
pub(crate) fn claims(ledgers: impl IntoIterator<Item = Value>) -> Claims {
    let claims = Claims::default();
    let mut sink = LedgerSink::new("ImageLedger", claims.clone());
    sink.begin();
    ledgers.into_iter().for_each(|ledger| sink.listed(object(&ledger)));
    sink.finish();
    sink.publish();
    claims
}

fn refuses(claims: &Claims, source: &str, destination: &str) -> bool {
    claims.refuses(&reference(source), &reference(destination))
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
    assert!(claims.has_pair(&pair));
    assert!(!claims.has_pair(&Pair { source_digest: &digest(3), ..pair }), "the source has moved since");
    assert!(!claims.has_pair(&Pair { copy_digest: &digest(1), ..pair }), "the copy was overwritten");
    assert!(!claims.has_pair(&Pair { source: &reference("quay.io/library/nginx:1"), ..pair }));
    assert!(!Claims::default().has_pair(&pair));
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
    assert!(!refuses(&claims, "b.io/app:1", copy), "nobody owns it");
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

    let mut sink = LedgerSink::new("ImageLedger", claims.clone());
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
    let mut sink = LedgerSink::new("ImageLedger", claims.clone());
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
        key: Key { namespace: "fairlead-system".into(), name: "one".into() },
        version: "7".into(),
        owner: "uid of one".into(),
    };
    assert_eq!(claims.objects(), [known]);

    sink.applied(object(&ledger("broken", MIRRORED)));
    assert_eq!(sink.publish(), Counts { objects: 2, malformed: 0, images: None });
    sink.applied(object(&broken));
    assert_eq!(sink.publish(), Counts { objects: 1, malformed: 1, images: None });
    sink.begin();
    sink.finish();
    assert_eq!(sink.publish(), Counts { objects: 0, malformed: 0, images: None });
    sink.clear();
    assert!(!claims.listed());
}

#[test]
fn what_is_to_be_looked_at_again_is_read_from_the_annotation() {
    let mut asking = ledger("one", MIRRORED);
    let references: Vec<_> = (0..100).map(|number| reference(&format!("m.io/app:{number}"))).collect();
    asking["metadata"]["annotations"] = lean::annotation(&references)["metadata"]["annotations"].clone();
    let (_, asked) =
        claims([asking.clone()]).holder(&reference("m.io/hub/library/nginx:1")).expect("its ledger");
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
        assert!(claims.holder(&reference(image)).is_some(), "{image}");
    }
    assert_eq!(claims.holder(&reference("nginx:2")), None);
}

/// Twenty thousand images with three copies each must not weigh on every replica.
#[test]
fn a_row_takes_few_bytes() {
    let (row, source) = (size_of::<index::Item<index::Row>>(), size_of::<index::Item<index::Mark>>());
    assert!(row <= 32 && source <= 16, "{row} bytes for a copy, {source} for a source");
}
