//! What is chosen from a list, once registries have answered.

use fairlead_domain::verdict::Verdict;
use proptest::prelude::*;

use super::super::{Decision, judge};
use super::*;

fn available() -> Verdict {
    Verdict::Available { digest: None }
}

fn missing() -> Verdict {
    Verdict::NotFound { reason: "no such tag".into() }
}

fn down() -> Verdict {
    Verdict::Unreachable { reason: "connection refused".into() }
}

fn unknown() -> Verdict {
    Verdict::Unknown { reason: "nodes may know more".into() }
}

/// Three entries: the original and two mirrors.
fn three() -> Alternatives {
    let set = mirror(ClusterImageSetMirror, "m", 0, &["a.io", "b.io"]);
    plan(&[&set], "docker.io/library/nginx:1", PullPolicy::IfNotPresent, DEFAULT)
}

fn chosen(decision: Decision) -> (Option<usize>, String) {
    match decision {
        Decision::Wait => (None, "wait".to_owned()),
        Decision::Use { index, why } => (Some(index), why),
        Decision::Keep { why } => (None, why),
    }
}

#[test]
fn the_first_in_order_wins_not_the_fastest() {
    let list = three();
    let decide = |verdicts: &[Option<Verdict>]| chosen(list.decide(verdicts));
    let wait = (None, "wait".to_owned());
    assert_eq!(decide(&[]), wait);
    assert_eq!(decide(&[None, None, None]), wait);
    assert_eq!(decide(&[None, Some(available()), Some(available())]), wait, "a slow first may still win");
    assert_eq!(decide(&[Some(missing()), None, Some(available())]), wait);
    assert_eq!(decide(&[Some(available()), None, None]), (Some(0), "available, first of 3".to_owned()));
    assert_eq!(
        decide(&[Some(missing()), Some(available()), None]),
        (Some(1), "docker.io/library/nginx:1 is not-found: no such tag; first available of 3".to_owned())
    );
    assert_eq!(
        decide(&[Some(missing()), Some(down()), Some(unknown())]),
        (
            Some(2),
            "docker.io/library/nginx:1 is not-found: no such tag; a.io/library/nginx:1 is unreachable: connection refused; \
             first usable (nodes may know more) of 3"
                .to_owned()
        )
    );
}

#[test]
fn when_nothing_answers_the_original_is_kept() {
    let (index, why) = chosen(three().decide(&[Some(missing()), Some(down()), Some(down())]));
    assert_eq!(index, None);
    assert_eq!(
        why,
        "none of 3 is available: docker.io/library/nginx:1 is not-found: no such tag; a.io/library/nginx:1 is unreachable: \
         connection refused; b.io/library/nginx:1 is unreachable: connection refused"
    );
}

#[test]
fn when_nothing_answers_and_the_original_is_discarded_the_first_is_used() {
    let set = replicated(ClusterReplicatedImageSet, "r", 0, &["-old.io", "new.io", "other.io"]);
    let list = plan(&[&set], "old.io/a:1", PullPolicy::Always, DEFAULT);
    assert_eq!(
        chosen(list.decide(&[Some(down()), Some(missing())])),
        (
            Some(0),
            "ClusterReplicatedImageSet/r discards the original and none of 2 is available: new.io/a:1 is unreachable: \
             connection refused; other.io/a:1 is not-found: no such tag"
                .to_owned()
        )
    );
    let set = replicated(ClusterReplicatedImageSet, "r", 0, &["-old.io", "new.io"]);
    let list = plan(&[&set], "old.io/a:1", PullPolicy::Always, DEFAULT);
    assert_eq!(list.decide(&[None]), Decision::Wait);
    assert_eq!(
        chosen(list.decide(&[Some(available())])),
        (Some(0), "ClusterReplicatedImageSet/r discards the original; available".to_owned())
    );
    assert_eq!(
        chosen(list.decide(&[Some(missing())])),
        (
            Some(0),
            "ClusterReplicatedImageSet/r discards the original and the only alternative is not available: new.io/a:1 is \
             not-found: no such tag"
                .to_owned()
        )
    );
}

#[test]
fn without_alternatives_nobody_is_asked() {
    let keep = |why: &str| Decision::Keep { why: why.to_owned() };
    let alone = plan(&[], "nginx:1", PullPolicy::IfNotPresent, DEFAULT);
    assert_eq!(alone.decide(&[]), keep("no policy offers an alternative"));
    let m = mirror(ClusterImageSetMirror, "m", -1, &["m.io"]);
    let never = plan(&[&m], "nginx:1", PullPolicy::Never, DEFAULT);
    assert_eq!(never.decide(&[]), keep("images with the pull policy Never are not routed"));
    let r = replicated(ClusterReplicatedImageSet, "r", 0, &["-old.io"]);
    let nothing = plan(&[&r], "old.io/a:1", PullPolicy::IfNotPresent, DEFAULT);
    assert_eq!(
        nothing.decide(&[]),
        keep("ClusterReplicatedImageSet/r discards the original and no alternative is left")
    );
}

#[test]
fn an_original_that_wants_credentials_we_do_not_have_is_unknown() {
    let refused = || Verdict::Unauthorised { reason: "401".into() };
    assert!(matches!(judge(true, refused(), false, true), Verdict::Unknown { .. }));
    assert_eq!(judge(true, refused(), true, true), refused(), "our credential was refused");
    assert_eq!(judge(true, refused(), false, false), refused(), "nodes are said to hold none");
    assert_eq!(judge(false, refused(), false, true), refused(), "only the original keeps its place");
    let forbidden = Verdict::Forbidden { reason: "403".into() };
    assert_eq!(judge(true, forbidden.clone(), false, true), forbidden, "it does not ask who we are");
    assert_eq!(judge(true, missing(), false, true), missing());
    assert_eq!(judge(true, available(), false, true), available());
    let set = replicated(ClusterReplicatedImageSet, "r", -1, &["quay.io", "r.io"]);
    let offered = plan(&[&set], "quay.io/a:1", PullPolicy::IfNotPresent, DEFAULT);
    assert!(matches!(
        judge(offered.list()[0].is_original(), refused(), false, true),
        Verdict::Unknown { .. }
    ));
}

fn verdicts() -> impl Strategy<Value = Vec<Option<Verdict>>> {
    let reason = || "[ -~\n\té…]{0,200}";
    let one = prop_oneof![
        Just(None),
        Just(Some(available())),
        reason().prop_map(|reason| Some(Verdict::Unknown { reason: reason.into() })),
        reason().prop_map(|reason| Some(Verdict::Malformed { reason: reason.into() })),
        reason().prop_map(|reason| Some(Verdict::TlsError { reason: reason.into() })),
        reason().prop_map(|reason| Some(Verdict::RateLimited { until: None, reason: reason.into() })),
    ];
    prop::collection::vec(one, 0..12)
}

proptest! {
    #[test]
    fn sentences_are_short_lines_and_the_choice_is_the_first_usable(
        verdicts in verdicts(), discard: bool, path in "[a-z]{1,200}", name in "[a-z]{1,250}",
    ) {
        let places: Vec<String> = (0..8).map(|n| format!("r{n}.io/{path}")).collect();
        let mut places: Vec<&str> = places.iter().map(String::as_str).collect();
        places.insert(0, if discard { "-old.io" } else { "old.io" });
        let set = replicated(ClusterReplicatedImageSet, &name, 0, &places);
        let list = plan(&[&set], "old.io/a:1", PullPolicy::IfNotPresent, DEFAULT);
        let usable = |verdict: &Verdict| matches!(verdict, Verdict::Available { .. } | Verdict::Unknown { .. });
        let answers = || (0..list.list().len()).map(|place| verdicts.get(place).and_then(Option::as_ref));
        let first = answers().position(|verdict| verdict.is_none_or(usable));
        let why = match (first, list.decide(&verdicts)) {
            (Some(place), Decision::Wait) => {
                prop_assert!(answers().nth(place).unwrap().is_none());
                return Ok(());
            }
            (Some(place), Decision::Use { index, why }) => {
                prop_assert_eq!(index, place);
                prop_assert!(answers().nth(place).unwrap().is_some());
                why
            }
            (None, Decision::Use { index: 0, why }) if discard => why,
            (None, Decision::Keep { why }) if !discard => why,
            (_, decision) => return Err(TestCaseError::fail(format!("{decision:?}"))),
        };
        prop_assert!(why.len() < 300 && !why.is_empty(), "{} bytes: {why}", why.len());
        prop_assert!(!why.contains(char::is_control), "{why:?}");
    }
}
