use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn seconds(value: f64) -> Moment {
    Duration::from_secs_f64(value)
}

fn elector() -> Elector {
    Elector::new("me", Timing::default())
}

fn held_by(holder: &str, renewed: i64, version: &str) -> Stored {
    Stored {
        record: Record {
            holder: Some(holder.to_owned()),
            acquired: Some(Stamp(1)),
            renewed: Some(Stamp(renewed)),
            transitions: 4,
            duration: Some(10 * SECOND),
        },
        version: version.to_owned(),
    }
}

/// An elector that began to lead with a request sent at `begun`.
fn leader(begun: Moment) -> Elector {
    let mut elector = elector();
    elector.saw(None, begun, 0.5);
    let Action::Acquire { write, .. } = elector.decide(begun, Stamp(7)) else { panic!("the record is free") };
    elector.sending(&write, begun);
    elector.wrote(Stored { record: write.record, version: "1".to_owned() }, begun, begun + SECOND / 10);
    elector
}

#[test]
fn a_missing_record_is_created_at_once() {
    let mut elector = elector();
    assert_eq!(elector.decide(seconds(0.0), Stamp(1)), Action::Look { limit: 3 * SECOND });
    elector.saw(None, seconds(0.1), 0.5);
    let Action::Acquire { write, .. } = elector.decide(seconds(0.1), Stamp(7)) else {
        panic!("not acquired")
    };
    assert_eq!(write.replaces, None);
    assert_eq!(write.record.holder.as_deref(), Some("me"));
    assert_eq!((write.record.transitions, write.record.duration), (0, Some(10 * SECOND)));
}

#[test]
fn a_released_record_is_taken_at_once_and_the_term_counted_up() {
    let mut elector = elector();
    let mut released = held_by("other", 1, "5");
    released.record.holder = Some(String::new());
    elector.saw(Some(released), seconds(3.0), 0.5);
    let Action::Acquire { write, .. } = elector.decide(seconds(3.0), Stamp(7)) else {
        panic!("not acquired")
    };
    assert_eq!(write.replaces.as_deref(), Some("5"));
    assert_eq!(write.record.transitions, 5);
}

#[test]
fn a_held_record_is_waited_for_from_when_it_was_seen_to_change() {
    let mut elector = elector();
    elector.saw(Some(held_by("other", 1, "5")), seconds(0.0), 0.5);
    assert_eq!(elector.decide(seconds(0.0), Stamp(7)), Action::Wait { until: seconds(1.2) });
    assert!(matches!(elector.decide(seconds(1.2), Stamp(7)), Action::Look { .. }));

    // Renewed: the wait starts anew.
    elector.saw(Some(held_by("other", 2, "6")), seconds(9.0), 0.5);
    // Touched by another client, not renewed: the wait goes on, and the new version is the one to replace.
    elector.saw(Some(held_by("other", 2, "7")), seconds(18.5), 0.5);
    assert_eq!(elector.decide(seconds(18.9), Stamp(7)), Action::Wait { until: seconds(19.0) });
    let Action::Acquire { write, .. } = elector.decide(seconds(19.0), Stamp(7)) else {
        panic!("not acquired")
    };
    assert_eq!(write.replaces.as_deref(), Some("7"));
}

#[test]
fn the_promise_in_the_record_counts_not_the_own_setting() {
    let mut elector = elector();
    let mut longer = held_by("other", 1, "5");
    longer.record.duration = Some(15 * SECOND);
    elector.saw(Some(longer), seconds(0.0), 0.0);
    assert!(!matches!(elector.decide(seconds(14.9), Stamp(7)), Action::Acquire { .. }));
    assert!(matches!(elector.decide(seconds(15.0), Stamp(7)), Action::Acquire { .. }));
}

#[test]
fn a_record_in_the_own_name_that_this_process_did_not_write_is_somebody_elses() {
    let mut elector = elector();
    elector.saw(Some(held_by("me", 1, "5")), seconds(0.0), 0.5);
    assert!(!elector.leads(seconds(0.0)));
    assert!(matches!(elector.decide(seconds(5.0), Stamp(7)), Action::Look { .. }));
    assert!(matches!(elector.decide(seconds(10.0), Stamp(7)), Action::Acquire { .. }));
}

#[test]
fn a_leader_renews_every_two_seconds_and_stops_at_eight() {
    let elector = leader(seconds(0.0));
    assert_eq!(elector.decide(seconds(0.2), Stamp(8)), Action::Wait { until: seconds(2.0) });
    let Action::Renew { write, limit } = elector.decide(seconds(2.0), Stamp(8)) else {
        panic!("not renewed")
    };
    assert_eq!((write.replaces.as_deref(), limit), (Some("1"), 3 * SECOND));
    assert_eq!((write.record.acquired, write.record.renewed), (Some(Stamp(7)), Some(Stamp(8))));
    assert!(
        matches!(elector.decide(seconds(6.5), Stamp(8)), Action::Renew { limit, .. } if limit == seconds(1.5))
    );
    assert!(elector.leads(seconds(7.9)));
    assert!(!elector.leads(seconds(8.0)));
    assert_eq!(elector.decide(seconds(8.0), Stamp(8)), Action::StepDown { loss: Loss::OutOfTime });
}

#[test]
fn leadership_counts_from_when_a_request_was_sent() {
    let mut elector = leader(seconds(0.0));
    let Action::Renew { write, .. } = elector.decide(seconds(2.0), Stamp(8)) else { panic!("not renewed") };
    elector.wrote(Stored { record: write.record, version: "2".to_owned() }, seconds(2.0), seconds(4.9));
    assert_eq!(elector.leads_until(), Some(seconds(10.0)));
}

#[test]
fn a_failed_renewal_is_tried_again_soon_but_never_past_the_deadline() {
    let mut elector = leader(seconds(0.0));
    elector.failed(seconds(5.0), 0.5);
    assert_eq!(elector.decide(seconds(5.0), Stamp(8)), Action::Wait { until: seconds(5.5) });
    assert!(matches!(elector.decide(seconds(5.5), Stamp(8)), Action::Renew { .. }));
    elector.failed(seconds(7.8), 0.5);
    assert_eq!(elector.decide(seconds(7.8), Stamp(8)), Action::Wait { until: seconds(8.0) });
}

#[test]
fn a_refused_renewal_is_explained_by_reading_first() {
    let mut touched = leader(seconds(0.0));
    touched.refused(seconds(2.1));
    assert!(matches!(touched.decide(seconds(2.1), Stamp(8)), Action::Look { .. }));
    let mut taken = touched.clone();
    let mut vanished = touched.clone();

    // A user set an annotation: still ours, under another version.
    let mut same = touched.observation.clone().and_then(|o| o.stored).expect("it wrote the record");
    same.version = "9".to_owned();
    touched.saw(Some(same), seconds(2.2), 0.5);
    assert!(
        matches!(touched.decide(seconds(2.2), Stamp(8)), Action::Renew { write, .. } if write.replaces.as_deref() == Some("9"))
    );

    taken.saw(Some(held_by("other", 3, "9")), seconds(2.2), 0.5);
    let by = Some("other".to_owned());
    assert_eq!(taken.decide(seconds(2.2), Stamp(8)), Action::StepDown { loss: Loss::Taken { by } });

    vanished.saw(None, seconds(2.2), 0.5);
    assert_eq!(vanished.decide(seconds(2.2), Stamp(8)), Action::StepDown { loss: Loss::Vanished });
    vanished.step_down();
    assert!(matches!(vanished.decide(seconds(2.2), Stamp(8)), Action::Acquire { .. }));
}

#[test]
fn a_namesake_that_took_over_is_noticed() {
    let mut elector = leader(seconds(0.0));
    elector.refused(seconds(2.1));
    elector.saw(Some(held_by("me", 3, "9")), seconds(2.2), 0.5);
    assert!(matches!(elector.decide(seconds(2.2), Stamp(8)), Action::StepDown { loss: Loss::Taken { .. } }));
}

#[test]
fn a_record_deleted_under_its_holder_is_not_created_while_the_holder_may_act() {
    let mut elector = elector();
    elector.saw(Some(held_by("other", 1, "5")), seconds(0.0), 0.5);
    elector.saw(None, seconds(1.0), 0.5);
    assert!(!matches!(elector.decide(seconds(9.9), Stamp(7)), Action::Acquire { .. }));
    assert!(matches!(elector.decide(seconds(10.0), Stamp(7)), Action::Acquire { .. }));
}

#[test]
fn an_acquisition_whose_answer_was_lost_is_recognised() {
    let mut elector = elector();
    elector.saw(None, seconds(0.0), 0.5);
    let Action::Acquire { write, .. } = elector.decide(seconds(0.0), Stamp(7)) else {
        panic!("not acquired")
    };
    elector.sending(&write, seconds(0.0));
    elector.failed(seconds(3.0), 0.5);
    assert_eq!(elector.decide(seconds(3.0), Stamp(8)), Action::Wait { until: seconds(3.5) });
    assert!(matches!(elector.decide(seconds(3.5), Stamp(8)), Action::Look { .. }));
    elector.saw(Some(Stored { record: write.record, version: "1".to_owned() }), seconds(3.6), 0.5);
    assert_eq!(elector.leads_until(), Some(seconds(8.0)));
    assert!(matches!(elector.decide(seconds(3.6), Stamp(8)), Action::Renew { .. }));
}

#[test]
fn only_a_leader_has_something_to_release() {
    assert_eq!(elector().release(Stamp(8)), None);
    let mut elector = leader(seconds(0.0));
    let write = elector.release(Stamp(8)).expect("it leads");
    assert_eq!((write.record.holder, write.replaces.as_deref()), (None, Some("1")));
    elector.step_down();
    assert_eq!(elector.release(Stamp(9)), None);
}
