use std::collections::BTreeSet;
use std::time::Duration;

use super::*;

const HOUR: Duration = Duration::from_hours(1);
const NOW: WallTime = Duration::from_hours(500_000);

fn settings() -> Settings {
    Settings::new(90 * 24 * HOUR, names(&["fairlead-webhook.fairlead-system.svc"])).unwrap()
}

fn names(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

fn id(name: &str) -> AuthorityId {
    AuthorityId(name.to_owned())
}

/// An authority of which `lived` of its thirtieths are over: 20 make it due, 30 end it.
fn authority(name: &str, lived: u32) -> Authority {
    let life = Duration::from_hours(30 * 30 * 24);
    let not_before = NOW.saturating_sub(life / 30 * lived);
    Authority { id: id(name), window: Window { not_before, not_after: not_before + life } }
}

fn leaf(signed_by: &str, lived: u32) -> Leaf {
    let life = settings().validity;
    let not_before = NOW.saturating_sub(life / 30 * lived);
    Leaf {
        window: Window { not_before, not_after: not_before + life },
        names: settings().names,
        signed_by: Some(id(signed_by)),
    }
}

/// A Secret in which all is well.
fn settled() -> Kept {
    Kept {
        leaf: Some(leaf("a", 5)),
        issuer: Some(authority("a", 5)),
        bundle: vec![authority("a", 5)],
        ..Kept::default()
    }
}

fn trusted(authorities: &[&str], exact_for: Option<u64>) -> Trust {
    Trust::Held {
        authorities: authorities.iter().map(|name| authority(name, 5)).collect(),
        exact_for: exact_for.map(Duration::from_secs),
    }
}

fn view(secret: Option<Kept>, trust: Trust) -> View {
    View { now: NOW, secret, trust, leaf_seen_for: HOUR }
}

fn keep(names: &[&str]) -> Vec<AuthorityId> {
    names.iter().map(|name| id(name)).collect()
}

#[test]
#[expect(clippy::too_many_lines, reason = "one table of all situations")]
fn each_situation_has_its_step() {
    let waits = |decision: &Decision| matches!(decision.step, Step::Wait { .. });
    let well = || trusted(&["a"], Some(60));
    let staged = |lived| Kept {
        staged: Some(authority("b", lived)),
        bundle: vec![authority("a", 5), authority("b", lived)],
        ..settled()
    };
    let retiring = || Kept { bundle: vec![authority("a", 5), authority("old", 21)], ..settled() };
    let cases: Vec<(&str, View, Option<Step>)> = vec![
        ("first start", view(None, trusted(&[], None)), Some(Step::Begin)),
        ("first start, no configuration", view(None, Trust::Absent), Some(Step::Begin)),
        (
            "Secret deleted while old leaves are served",
            view(None, well()),
            Some(Step::Stage { keep: keep(&["a"]) }),
        ),
        ("Secret emptied", view(Some(Kept::default()), well()), Some(Step::Stage { keep: keep(&["a"]) })),
        (
            "signing key lost, leaf good",
            view(Some(Kept { issuer: None, ..settled() }), well()),
            Some(Step::Stage { keep: keep(&["a"]) }),
        ),
        ("all is well", view(Some(settled()), well()), None),
        ("the caller cannot be read", view(Some(settled()), Trust::Unknown), None),
        ("configuration missing", view(Some(settled()), Trust::Absent), None),
        ("somebody overwrote the caBundle", view(Some(settled()), trusted(&["x"], None)), Some(Step::Trust)),
        ("caBundle empty", view(Some(settled()), trusted(&[], None)), Some(Step::Trust)),
        (
            "bundle in the Secret damaged",
            view(Some(Kept { bundle: vec![], bundle_is_damaged: true, ..settled() }), well()),
            Some(Step::Bundle { keep: keep(&["a"]) }),
        ),
        ("leaf due", view(Some(Kept { leaf: Some(leaf("a", 20)), ..settled() }), well()), Some(Step::Renew)),
        ("leaf over", view(Some(Kept { leaf: Some(leaf("a", 31)), ..settled() }), well()), Some(Step::Renew)),
        (
            "leaf of another",
            view(Some(Kept { leaf: Some(leaf("x", 5)), ..settled() }), well()),
            Some(Step::Renew),
        ),
        ("leaf gone", view(Some(Kept { leaf: None, ..settled() }), well()), Some(Step::Renew)),
        (
            "leaf gone, trust fresh",
            view(Some(Kept { leaf: None, ..settled() }), trusted(&["a"], Some(0))),
            None,
        ),
        (
            "names changed, trust fresh",
            view(
                Some(Kept { leaf: Some(Leaf { names: names(&["other"]), ..leaf("a", 5) }), ..settled() }),
                trusted(&["a"], Some(0)),
            ),
            Some(Step::Renew),
        ),
        (
            "authority due",
            view(
                Some(Kept {
                    issuer: Some(authority("a", 20)),
                    bundle: vec![authority("a", 20)],
                    ..settled()
                }),
                well(),
            ),
            Some(Step::Stage { keep: keep(&["a"]) }),
        ),
        (
            "a person asked",
            view(Some(Kept { rotation_requested: true, ..settled() }), well()),
            Some(Step::Stage { keep: keep(&["a"]) }),
        ),
        ("staged, not yet trusted", view(Some(staged(0)), trusted(&["a"], None)), Some(Step::Trust)),
        ("staged, on its way", view(Some(staged(0)), trusted(&["a", "b"], Some(1))), None),
        ("staged and settled", view(Some(staged(0)), trusted(&["a", "b"], Some(3))), Some(Step::Swap)),
        ("staged, nobody calls", view(Some(staged(0)), Trust::Absent), Some(Step::Swap)),
        ("staged, unreadable trust", view(Some(staged(0)), Trust::Unknown), None),
        (
            "staged long ago",
            view(Some(staged(21)), trusted(&["a", "b"], Some(60))),
            Some(Step::Stage { keep: keep(&["a"]) }),
        ),
        (
            "everything expired in its sleep",
            view(Some(Kept { leaf: Some(leaf("a", 40)), ..staged(0) }), trusted(&["a", "b"], Some(0))),
            Some(Step::Swap),
        ),
        ("retiring is over", view(Some(retiring()), well()), Some(Step::Bundle { keep: keep(&["a"]) })),
        (
            "retiring, a replica may lag",
            View { leaf_seen_for: Duration::from_mins(1), ..view(Some(retiring()), well()) },
            None,
        ),
        (
            "asked again while retiring",
            View {
                leaf_seen_for: Duration::from_mins(1),
                ..view(Some(Kept { rotation_requested: true, ..retiring() }), well())
            },
            None,
        ),
        (
            "old authority over",
            View {
                leaf_seen_for: Duration::ZERO,
                ..view(
                    Some(Kept { bundle: vec![authority("a", 5), authority("old", 30)], ..settled() }),
                    well(),
                )
            },
            Some(Step::Bundle { keep: keep(&["a"]) }),
        ),
    ];
    for (what, view, expected) in cases {
        let decision = decide(&view, &settings());
        match expected {
            Some(step) => assert_eq!(decision.step, step, "{what}: {}", decision.reason),
            None => assert!(waits(&decision), "{what}: {decision:?}"),
        }
        assert!(!decision.reason.is_empty());
    }
}

#[test]
fn a_shorter_validity_takes_effect_at_once() {
    let short = Settings::new(HOUR, settings().names).unwrap();
    let decision = decide(&view(Some(settled()), trusted(&["a"], Some(60))), &short);
    assert_eq!(decision.step, Step::Renew, "{}", decision.reason);
}

#[test]
fn the_next_look_is_never_after_something_is_due() {
    let almost = Window {
        not_before: NOW.saturating_sub(2 * HOUR),
        not_after: NOW + HOUR + Duration::from_millis(300),
    };
    let kept = Kept { leaf: Some(Leaf { window: almost, ..leaf("a", 0) }), ..settled() };
    let Step::Wait { after } = decide(&view(Some(kept), trusted(&["a"], Some(60))), &settings()).step else {
        panic!("not due yet")
    };
    assert!(after <= Duration::from_millis(200), "{after:?}");
}

#[test]
fn certificates_from_the_future_are_replaced() {
    let window = Window { not_before: NOW + HOUR, not_after: NOW + 2000 * HOUR };
    let kept = Kept { leaf: Some(Leaf { window, ..leaf("a", 0) }), ..settled() };
    assert_eq!(decide(&view(Some(kept), trusted(&["a"], Some(60))), &settings()).step, Step::Renew);
}

#[test]
fn a_leaf_never_outlives_its_issuer() {
    let settings = settings();
    let issuer = Window { not_before: NOW.saturating_sub(HOUR), not_after: NOW + HOUR };
    assert_eq!(settings.leaf_window(NOW, &issuer), issuer);
    let whole = settings.leaf_window(NOW, &settings.authority_window(NOW));
    assert_eq!((whole.not_before, whole.not_after), (NOW.saturating_sub(HOUR), NOW + settings.validity));
}

#[test]
fn only_sensible_validities() {
    for (seconds, good) in
        [(0, false), (19, false), (20, true), (60, true), (7_776_000, true), (u64::MAX / 4, false)]
    {
        let given = Duration::from_secs(seconds);
        assert_eq!(Settings::new(given, BTreeSet::new()).is_ok(), good, "{given:?}");
    }
    for seconds in [20, 60, 3600, 7_776_000] {
        let settings = Settings::new(Duration::from_secs(seconds), BTreeSet::new()).unwrap();
        let jittered = settings.poll_calm * 5 / 4;
        assert!(
            settings.drain > jittered * 2,
            "replicas must have looked twice before the old authority leaves"
        );
        assert!(
            settings.settle + jittered * 3 < settings.validity / 3,
            "the new leaf is everywhere before the old one ends"
        );
    }
}

#[test]
fn stages() {
    assert_eq!(Stage::of(None), Stage::Missing);
    assert_eq!(Stage::of(Some(&settled())), Stage::Settled);
    assert_eq!(Stage::of(Some(&Kept { leaf: None, ..settled() })), Stage::Missing);
    assert_eq!(Stage::of(Some(&Kept { staged: Some(authority("b", 0)), ..settled() })), Stage::Staged);
    let bundle = vec![authority("a", 5), authority("b", 5)];
    assert_eq!(Stage::of(Some(&Kept { bundle, ..settled() })), Stage::Retiring);
}
