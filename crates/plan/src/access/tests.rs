use fairlead_api::fairlead::LedgerManner;
use proptest::prelude::*;

use super::*;
use crate::ledger::{Owner, OwnerKind};
use crate::usage::Holder;

const LIFETIME: SignedDuration = SignedDuration::from_hours(720);
const HOUR: i64 = 3600;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + seconds).unwrap()
}

fn user(namespace: &str, ran: bool) -> User {
    User { namespace: namespace.into(), ran }
}

fn proofs<const N: usize>(list: [(&str, i64); N]) -> Proofs {
    list.into_iter().map(|(namespace, seconds)| (namespace.into(), at(seconds))).collect()
}

#[test]
fn a_namespace_proves_access_by_running_the_original_or_by_its_credentials() {
    let reviewed = review(&Proofs::new(), &[user("ran", true), user("new", false)], LIFETIME, at(0));
    assert_eq!(reviewed, Reviewed { proofs: proofs([("ran", 0)]), to_try: vec!["new".into()] });
    let known = adding(&reviewed.proofs, &["new".into()], at(5));
    assert_eq!(known, proofs([("new", 5), ("ran", 0)]));
    assert_eq!(review(&known, &[user("new", false)], LIFETIME, at(6)).to_try, Vec::<Arc<str>>::new());
}

#[test]
fn a_proof_is_renewed_once_a_day_and_expires_with_its_lifetime() {
    let known = proofs([("team", 0)]);
    let users = [user("team", true)];
    assert_eq!(review(&known, &users, LIFETIME, at(23 * HOUR)).proofs, known, "not written again every time");
    assert_eq!(review(&known, &users, LIFETIME, at(24 * HOUR)).proofs, proofs([("team", 24 * HOUR)]));
    let silent = [user("team", false)];
    let old = review(&known, &silent, LIFETIME, at(719 * HOUR));
    assert_eq!((old.proofs, old.to_try.len()), (known.clone(), 1), "it counts while it is tried again");
    assert!(review(&known, &silent, LIFETIME, at(720 * HOUR)).proofs.is_empty());
    let short = SignedDuration::from_mins(8);
    assert_eq!(review(&known, &silent, short, at(119)).to_try.len(), 0);
    assert_eq!(review(&known, &silent, short, at(120)).to_try.len(), 1);
}

#[test]
fn a_namespace_that_stopped_using_the_image_keeps_its_proof_for_its_lifetime() {
    let known = proofs([("gone", 0)]);
    assert_eq!(review(&known, &[], LIFETIME, at(700 * HOUR)).proofs, known);
}

#[test]
fn users_come_first_and_do_not_take_turns() {
    let many: Vec<User> = (0..100).map(|number| user(&format!("team-{number:03}"), true)).collect();
    let known = review(&proofs([("first", -HOUR)]), &many, LIFETIME, at(0)).proofs;
    assert_eq!((known.len(), known.contains_key("first")), (MAX_PROOFS, false));
    let again = review(&known, &many, LIFETIME, at(60));
    assert_eq!(again, Reviewed { proofs: known.clone(), to_try: Vec::new() }, "nothing is written again");
    let untried: Vec<User> = many.iter().map(|user| User { ran: false, ..user.clone() }).collect();
    assert!(review(&known, &untried, LIFETIME, at(60)).to_try.is_empty(), "there is no room for more");
    // Those who no longer use the image make room.
    let fresh = [user("fresh", true)];
    let reviewed = review(&known, &fresh, LIFETIME, at(120));
    assert_eq!(reviewed.proofs.len(), MAX_PROOFS);
    assert!(reviewed.proofs.contains_key("fresh"));
    assert!(adding(&known, &["last".into()], at(1)).contains_key("last"));
}

#[test]
fn attempts_that_fail_become_rarer() {
    let minutes = |failures| retry_after(failures).as_mins();
    assert_eq!([0, 1, 5, 6, 40, u32::MAX].map(minutes), [1, 2, 32, 60, 60, 60]);
}

fn image(text: &str) -> Reference {
    Reference::parse(text).unwrap()
}

fn ledger(entries: &[(&str, Option<Digest>)]) -> Ledger {
    let owner =
        Owner { kind: OwnerKind::ClusterImageSetMirror, namespace: None, name: "m".into(), uid: "1".into() };
    let mut ledger = Ledger::new(owner);
    ledger.adopt_manner(&LedgerManner::default());
    for (source, digest) in entries {
        assert!(ledger.insert(image(source), Entry { source_digest: *digest, ..Entry::default() }));
    }
    ledger
}

fn used(source: &str, namespaces: &[&str], ran: &[(&str, Digest)]) -> Used {
    let holder = |namespace: &&str| Holder {
        namespace: (*namespace).into(),
        pull_secrets: Arc::default(),
        pod: "pod".into(),
    };
    Used {
        image: image(source),
        original: true,
        holders: namespaces.iter().map(holder).collect(),
        running: None,
        ran: ran.iter().map(|(namespace, digest)| ((*namespace).into(), *digest)).collect(),
    }
}

fn accesses(changes: &[LedgerChange]) -> Vec<(Reference, Proofs)> {
    let access = |change: &LedgerChange| (change.source.clone(), change.entry.clone().unwrap().access);
    changes.iter().map(access).collect()
}

/// Only what was copied counts, byte for byte.
#[test]
fn running_something_else_under_the_same_name_proves_nothing() {
    let (copied, other) = (Digest::sha256(b"copied"), Digest::sha256(b"other"));
    let ledger = ledger(&[("r.io/app:1", Some(copied)), ("r.io/new:1", None)]);
    let used = [
        used("r.io/app:1", &["honest", "sly"], &[("honest", copied), ("sly", other)]),
        used("r.io/new:1", &["honest"], &[("honest", other)]),
    ];
    let review = review_ledger(&ledger, &used, MirrorAccess::Proven, LIFETIME, at(0));
    assert_eq!(accesses(&review.changes), [(image("r.io/app:1"), proofs([("honest", 0)]))]);
    let attempt = Attempt { source: image("r.io/app:1"), digest: copied, namespaces: vec!["sly".into()] };
    assert_eq!(review.to_try, [attempt], "what was not copied yet is not tried yet");
    assert_eq!(
        review_ledger(&ledger, &used, MirrorAccess::Shared, LIFETIME, at(0)),
        LedgerReview::default(),
        "nothing is gathered that is not asked for"
    );
}

#[test]
fn proofs_expire_also_while_access_is_shared() {
    let mut ledger = ledger(&[("r.io/app:1", Some(Digest::sha256(b"copied")))]);
    ledger.edit(&image("r.io/app:1"), |entry| entry.access = proofs([("old", 0), ("young", 2 * HOUR)]));
    let review = |ledger: &Ledger, now| {
        review_ledger(ledger, &[], MirrorAccess::Shared, LIFETIME, at(now * HOUR)).changes
    };
    assert!(review(&ledger, 719).is_empty());
    let changes = review(&ledger, 721);
    assert_eq!(accesses(&changes), [(image("r.io/app:1"), proofs([("young", 2 * HOUR)]))]);
    ledger.apply(changes);
    assert!(review(&ledger, 721).is_empty(), "once applied there is nothing more to change");
}

#[test]
fn namespaces_that_opened_the_original_are_entered_at_once() {
    let app = image("r.io/app:1");
    let mut ledger = ledger(&[("r.io/app:1", Some(Digest::sha256(b"copied")))]);
    ledger.edit(&app, |entry| entry.access = proofs([("old", 0)]));
    let before = ledger.get(&app).cloned().unwrap();
    let namespaces: [Arc<str>; 2] = ["new".into(), "old".into()];
    let change = proven(&ledger, &app, &namespaces, at(5)).unwrap();
    let access = proofs([("new", 5), ("old", 5)]);
    assert_eq!(change, LedgerChange::set(&app, Entry { access, ..before }), "nothing else changes");
    ledger.apply([change]);
    let later = at(5) + SignedDuration::from_millis(900);
    assert_eq!(proven(&ledger, &app, &namespaces, later), None, "times are stored to the second");
    ledger.remove(&app);
    assert_eq!(proven(&ledger, &app, &namespaces, at(6)), None, "the image is not in the ledger any more");
}

/// One thing that happens.
#[derive(Debug, Clone)]
enum AccessStep {
    /// Seconds pass.
    Wait(i64),
    /// Namespaces use the image; those of the second list ran it.
    Use(Vec<u8>, Vec<u8>),
    /// A namespace opens the original with its own credentials.
    Open(u8),
}

fn step() -> impl Strategy<Value = AccessStep> {
    let some =
        || prop::collection::btree_set(0u8..90, 0..90).prop_map(|set| set.into_iter().collect::<Vec<_>>());
    prop_oneof![
        (0i64..400 * HOUR).prop_map(AccessStep::Wait),
        (some(), some()).prop_map(|(users, ran)| AccessStep::Use(users, ran)),
        (0u8..90).prop_map(AccessStep::Open),
    ]
}

proptest! {
    /// However it is used, a namespace has a proof only from something that proved it, within its lifetime.
    #[test]
    fn no_namespace_has_a_proof_without_a_reason(steps in prop::collection::vec(step(), 0..40)) {
        let name = |number: u8| Arc::<str>::from(format!("team-{number:02}"));
        let (mut known, mut now) = (Proofs::new(), 0);
        let mut reasons: BTreeMap<Arc<str>, i64> = BTreeMap::new();
        for step in steps {
            match step {
                AccessStep::Wait(seconds) => now += seconds,
                AccessStep::Open(number) => {
                    known = adding(&known, &[name(number)], at(now));
                    reasons.insert(name(number), now);
                }
                AccessStep::Use(users, ran) => {
                    let users: Vec<User> =
                        users.into_iter().map(|one| User { namespace: name(one), ran: ran.contains(&one) }).collect();
                    let Reviewed { proofs, to_try } = review(&known, &users, LIFETIME, at(now));
                    for user in users.iter().filter(|user| user.ran) {
                        reasons.insert(Arc::clone(&user.namespace), now);
                    }
                    prop_assert!(to_try.iter().all(|one| users.iter().any(|user| user.namespace == *one && !user.ran)));
                    prop_assert!(proofs.values().all(|proof| counts(*proof, LIFETIME, at(now))));
                    known = proofs;
                }
            }
            prop_assert!(known.len() <= MAX_PROOFS);
            for (namespace, proof) in &known {
                prop_assert!(reasons.get(namespace).is_some_and(|reason| *proof <= at(*reason)), "{}", namespace);
            }
        }
    }
}

#[test]
fn a_registrys_word_counts_only_where_the_copy_was_made_of_its_image_alone() {
    let own = Made {
        by: Recorded::ByMirror,
        of_source: true,
        state: CopyState::Mirrored,
        replaces: false,
        written: true,
    };
    let other = Made { of_source: false, ..own };
    let (asks, waits) = (Standing::Unproven { may_ask: true }, Standing::Unproven { may_ask: false });
    for (source, rows, expected) in [
        ("r.io/app:1", vec![], Standing::NotCopied),
        ("r.io/app:1", vec![Made { by: Recorded::ByAnother, ..own }], Standing::NotCopied),
        ("r.io/app:1", vec![other], Standing::NotCopied),
        ("r.io/app:1", vec![Made { state: CopyState::Refused, ..own }], Standing::NotCopied),
        ("r.io/app:1", vec![Made { replaces: true, ..own }], Standing::NotCopied),
        ("r.io/app:1", vec![own], asks),
        ("r.io/app:1", vec![own, Made { state: CopyState::Refused, ..other }], asks),
        ("r.io/app:1", vec![own, other], waits),
        ("r.io/app:1", vec![Made { written: false, ..own }], waits),
        (&*format!("r.io/app@{}", Digest::sha256(b"copied")), vec![own], waits),
    ] {
        assert_eq!(standing(&image(source), rows.clone(), || false), expected, "{source} {rows:?}");
        let proven = standing(&image(source), rows.clone(), || true);
        let expected = if expected == Standing::NotCopied { expected } else { Standing::Proven };
        assert_eq!(proven, expected, "{source} {rows:?}");
    }
}

#[test]
fn many_namespaces_have_their_turns() {
    let namespaces: Vec<Arc<str>> = (0..=MAX_PROOFS).map(|number| number.to_string().into()).collect();
    assert_eq!(turn_of(&namespaces, 0), &namespaces[..MAX_PROOFS]);
    assert_eq!(turn_of(&namespaces, 1), &namespaces[MAX_PROOFS..]);
    assert_eq!(turn_of(&namespaces, 2), turn_of(&namespaces, 0));
    assert!(turn_of(&[], 7).is_empty());
}
