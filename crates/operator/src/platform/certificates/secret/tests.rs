use std::time::Duration;

use fairlead_plan::certificates::{Settings as Plan, Stage};

use super::*;

const NOW: Duration = Duration::from_hours(500_000);

fn plan() -> Plan {
    let names = ["127.0.0.1", "::1", "webhook.ns.svc"].map(str::to_owned);
    Plan::new(Duration::from_hours(1), names.into()).unwrap()
}

fn settings() -> Settings {
    Settings::new("ns", "fairlead", &[], Duration::from_hours(1)).unwrap()
}

fn authority() -> SigningAuthority {
    SigningAuthority::make(plan().authority_window(NOW)).unwrap()
}

fn leaf(authority: &SigningAuthority) -> MadeLeaf {
    authority.sign(&plan().names, plan().leaf_window(NOW, &authority.known.facts.window)).unwrap()
}

type Damage = Box<dyn Fn(&mut Secret)>;
type Check = fn(&Kept) -> bool;

/// A Secret as it is after the first start.
fn fresh() -> (Secret, SigningAuthority) {
    let authority = authority();
    let mut secret = blank(&settings());
    Change {
        leaf: Some(leaf(&authority)),
        issuer: Some(authority.clone()),
        staged: Staging::Clear,
        bundle: Some(vec![authority.known.clone()]),
    }
    .apply(&mut secret);
    (secret, authority)
}

fn text(secret: &Secret, key: &str) -> String {
    String::from_utf8(secret.data.as_ref().unwrap()[key].0.clone()).unwrap()
}

#[test]
fn what_is_written_is_read_back() {
    let (secret, authority) = fresh();
    let contents = Contents::read(&secret);
    let facts = contents.kept.leaf.clone().unwrap();
    assert_eq!(facts.names, plan().names);
    assert_eq!(facts.signed_by.as_ref(), Some(authority.known.id()));
    assert_eq!(facts.window, plan().leaf_window(NOW, &authority.known.facts.window));
    assert_eq!(contents.kept.issuer, Some(authority.known.facts.clone()));
    assert_eq!(contents.kept.bundle, [authority.known.facts]);
    assert!(!contents.kept.bundle_is_damaged && !contents.kept.rotation_requested);
    assert!(contents.leaf.is_some());
    assert_eq!(Stage::of(Some(&contents.kept)), Stage::Settled);
    assert_eq!(text(&secret, "ca.crt"), text(&secret, "issuer.crt"));
}

#[test]
fn staging_and_swapping_keep_what_is_in_use() {
    let (mut secret, old) = fresh();
    let next = authority();
    Change {
        staged: Staging::Put(next.clone()),
        bundle: Some(vec![old.known.clone(), next.known.clone()]),
        ..Change::default()
    }
    .apply(&mut secret);
    let contents = Contents::read(&secret);
    assert_eq!(Stage::of(Some(&contents.kept)), Stage::Staged);
    assert_eq!(
        contents.kept.leaf.unwrap().signed_by.as_ref(),
        Some(old.known.id()),
        "the old leaf is still served"
    );

    Change { leaf: Some(leaf(&next)), issuer: Some(next.clone()), staged: Staging::Clear, bundle: None }
        .apply(&mut secret);
    let contents = Contents::read(&secret);
    assert_eq!(Stage::of(Some(&contents.kept)), Stage::Retiring);
    assert_eq!(contents.kept.leaf.as_ref().unwrap().signed_by.as_ref(), Some(next.known.id()));
    let kept = contents.authorities(&[next.known.id().clone()], &[]);
    assert_eq!(kept, [next.known]);
}

#[test]
fn damage_is_seen_for_what_it_is() {
    let other = authority();
    let damages: [(&str, Damage, Check); 9] = [
        ("no data", Box::new(|secret| secret.data = None), |kept| {
            *kept == Kept { bundle_is_damaged: kept.bundle_is_damaged, ..Kept::default() }
        }),
        ("garbage leaf", put("tls.crt", "garbage"), |kept| kept.leaf.is_none() && kept.issuer.is_some()),
        ("empty leaf", put("tls.crt", ""), |kept| kept.leaf.is_none()),
        ("no leaf key", put("tls.key", ""), |kept| kept.leaf.is_none()),
        ("leaf key of another", put("tls.key", &other.key), |kept| {
            kept.leaf.is_none() && kept.issuer.is_some()
        }),
        ("issuer key of another", put("issuer.key", &other.key), |kept| {
            kept.issuer.is_none() && kept.leaf.is_some()
        }),
        ("issuer is a leaf", put("issuer.crt", &leaf(&other).certificate), |kept| kept.issuer.is_none()),
        ("bundle emptied", put("ca.crt", ""), |kept| {
            kept.bundle.is_empty() && kept.leaf.as_ref().is_some_and(|leaf| leaf.signed_by.is_some())
        }),
        (
            "bundle with something else in it",
            put("ca.crt", &format!("hello\n{}{}", other.certificate(), leaf(&other).certificate)),
            |kept| kept.bundle.len() == 1 && kept.bundle_is_damaged,
        ),
    ];
    for (what, damage, check) in damages {
        let (mut secret, _) = fresh();
        damage(&mut secret);
        let contents = Contents::read(&secret);
        assert!(check(&contents.kept), "{what}: {:?}", contents.kept);
    }
}

fn put(key: &str, text: &str) -> Damage {
    let (key, text) = (key.to_owned(), text.to_owned());
    Box::new(move |secret| {
        secret.data.as_mut().unwrap().insert(key.clone(), ByteString(text.clone().into_bytes()));
    })
}

#[test]
fn a_request_for_rotation_is_granted_once() {
    let (mut secret, old) = fresh();
    let annotate = |secret: &mut Secret, value: &str| {
        secret.metadata.annotations.get_or_insert_default().insert(ROTATE.to_owned(), value.to_owned());
    };
    annotate(&mut secret, "1");
    assert!(Contents::read(&secret).kept.rotation_requested);
    Change { leaf: Some(leaf(&old)), ..Change::default() }.apply(&mut secret);
    assert!(Contents::read(&secret).kept.rotation_requested, "a new leaf is not a new authority");
    Change { staged: Staging::Put(authority()), ..Change::default() }.apply(&mut secret);
    assert!(!Contents::read(&secret).kept.rotation_requested);
    annotate(&mut secret, "2");
    assert!(Contents::read(&secret).kept.rotation_requested);
}

#[test]
fn what_others_put_there_stays() {
    let (mut secret, authority) = fresh();
    secret.metadata.labels.get_or_insert_default().insert("team".to_owned(), "x".to_owned());
    put("note", "hello")(&mut secret);
    Change { leaf: Some(leaf(&authority)), ..Change::default() }.apply(&mut secret);
    assert_eq!(text(&secret, "note"), "hello");
    assert_eq!(secret.metadata.labels.unwrap()["team"], "x");
}

#[test]
fn a_secret_without_a_leaf_still_has_the_keys_of_its_type() {
    let mut secret = blank(&settings());
    Change { staged: Staging::Put(authority()), ..Change::default() }.apply(&mut secret);
    assert_eq!((text(&secret, "tls.crt"), text(&secret, "tls.key")), (String::new(), String::new()));
    assert_eq!(Contents::read(&secret).kept.leaf, None);
}
