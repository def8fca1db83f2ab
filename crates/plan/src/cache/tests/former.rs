//! Pairs of former names that Harbor does not let go.

use super::*;

fn stuck(ownership: Ownership) -> Seen {
    let own = pair(endpoint(|_| ()), Some(project(Some(5), false)));
    let observed = Observed { former: vec![former_pair(3, "old")], ..own };
    let plan = Plan { ownership, actions: vec![], problem: None };
    let former = Some("cannot delete project old: Harbor answered 412".to_owned());
    Seen { observed, plan, failed: None, former, refused: None, rejected: false, taken: None }
}

fn reported(seen: Seen, failures: u32) -> Report {
    report(None, Some(1), &Outcome::Seen(Box::new(seen)), failures, Timestamp::UNIX_EPOCH)
}

#[test]
fn every_former_pair_has_its_turn() {
    let own = pair(endpoint(|_| ()), Some(project(Some(5), false)));
    let observed = Observed { former: vec![former_pair(3, "old"), former_pair(4, "older")], ..own };
    let plan = planned(&observed, &taken("uid/one"), Ok(Some(&login("one"))));
    let names = plan.actions.iter().map(|action| match action {
        Action::RemoveFormer(pair) => &*pair.endpoint.name,
        other => panic!("{other}"),
    });
    assert_eq!(names.collect::<Vec<_>>(), ["old", "older"]);
}

/// The pair that the object asks for works, so Pods go on being sent to it.
#[test]
fn a_former_pair_that_cannot_be_removed_does_not_take_the_new_one_out_of_use() {
    for ownership in [Ownership::Ours, Ownership::Foreign(None)] {
        let report = reported(stuck(ownership), 0);
        assert_eq!(report.status.phase, Some(ProxyCachePhase::Ready));
        assert_eq!(condition(&report, types::READY).0, ConditionStatus::True);
        assert_eq!(condition(&report, SYNCED), (ConditionStatus::False, "FormerPairLeft".to_owned()));
        assert!(report.status.message.is_some_and(|message| message.contains("412")));
        assert!(!report.settled);
    }
    let pauses = [0, 1, 2, 3, 4].map(|failures| reported(stuck(Ownership::Ours), failures).again.as_secs());
    assert_eq!(pauses, [30, 60, 120, 240, 300]);
    let foreign = Seen { former: None, ..stuck(Ownership::Foreign(None)) };
    let findings = reported(foreign, 0).findings;
    assert!(findings.iter().all(|finding| finding.type_ != SYNCED), "a pair of others is not written");
}

#[test]
fn a_former_pair_is_given_up_after_a_while() {
    let since = Timestamp::UNIX_EPOCH;
    let mut seen = stuck(Ownership::Ours);
    assert_eq!(seen.give_up(since, since + GIVE_UP - Duration::from_secs(1)), None);
    assert!(!seen.is_complete());
    let left = seen.give_up(since, since + GIVE_UP).expect("it has been long enough");
    assert!(left.contains("project old"), "{left}");
    assert!(seen.is_complete(), "it is not looked for again");
    let report = reported(seen, 7);
    assert_eq!((report.status.message, report.settled), (None, true));
    let mut well = Seen { former: None, ..stuck(Ownership::Ours) };
    assert_eq!(well.give_up(since, since + GIVE_UP), None);
}
