//! From the oldest kind to the newer ones.

use std::collections::BTreeMap;

use super::super::migration::{Migration, Request, Step, check_bounds};
use super::*;

const TO: Request = Request { to: Some(PolicyKind::ImageSourceDigestPolicy), deletes: false };
const AND_DELETE: Request = Request { deletes: true, ..TO };

fn migrate(policies: Vec<MirrorPolicy>, request: Request) -> (Vec<String>, Vec<String>) {
    let plan = Migration::plan(&inputs(policies, &[], &[]), request, &BTreeMap::new());
    let steps = plan.steps.iter().map(|step| match step {
        Step::Create { policy } => format!("create {} {:?}", policy.id, policy.sets.first().unwrap().mirrors),
        Step::Delete { name } => format!("delete {name}"),
    });
    let said = plan.conditions.iter().map(|(name, one)| format!("{name} {:?} {}", one.status, one.reason));
    (steps.collect(), said.collect())
}

#[test]
fn nothing_is_done_unless_it_is_asked_for_and_what_stands_alone_is_orphaned() {
    let (steps, said) = migrate(vec![icsp("a.test", &["m.test"])], Request::default());
    assert!(steps.is_empty());
    assert_eq!(said, ["a.test False Orphaned"]);
}

#[test]
fn the_new_object_says_the_same_without_duplicates() {
    let old = icsp("a.test", &["m.test", "n.test", "m.test"]);
    let (steps, _) = migrate(vec![icsp("a.test", &["m.test", "n.test"])], TO);
    assert_eq!(steps, [r#"create ImageSourceDigestPolicy a.test ["m.test", "n.test"]"#]);
    // With the duplicate gone the order may be another: then nothing is made.
    let (steps, said) = migrate(vec![old], TO);
    let is_made = steps == [r#"create ImageSourceDigestPolicy a.test ["m.test", "n.test"]"#];
    assert!(is_made || said == ["a.test False MigrationFailed"], "{steps:?} {said:?}");
}

#[test]
fn the_old_object_goes_only_on_request_and_only_if_nothing_changes_without_it() {
    let both = || vec![icsp("a.test", &["m.test"]), isdp("a.test", &["m.test"])];
    assert_eq!(migrate(both(), TO), (vec![], vec!["a.test True Migrated".to_owned()]));
    assert_eq!(migrate(both(), AND_DELETE).0, ["delete a.test"]);
    let mut other = both();
    other.push(icsp("b.test", &["m.test"]));
    let (steps, said) = migrate(other, Request { to: None, deletes: true });
    assert_eq!((steps, said.len()), (vec!["delete a.test".to_owned()], 2));
}

/// What else the new object says decides, not how it is written.
#[test]
fn an_object_that_also_closes_the_source_takes_the_place_if_that_is_closed_anyway() {
    let closed = || vec![icsp("a.test", &["m.test"]), idms_never("a.test", &["m.test"])];
    assert_eq!(migrate(closed(), Request::default()).1, ["a.test True Migrated"]);
}

#[test]
fn what_cannot_be_said_in_the_newer_kinds_is_named() {
    let (steps, said) = migrate(vec![icsp("A.test/Upper", &["m.test"])], TO);
    assert_eq!((steps.len(), said), (0, vec!["A.test/Upper False NotConvertible".to_owned()]));
    let (steps, said) = migrate(vec![icsp("a.test", &["m.test"]), isdp("a.test", &["n.test"])], TO);
    assert_eq!((steps.len(), said), (0, vec!["a.test False MigrationFailed".to_owned()]));
}

#[test]
fn a_refusal_of_the_api_server_is_repeated_in_the_condition() {
    let failures = BTreeMap::from([("a.test".to_owned(), "quota exceeded".to_owned())]);
    let plan = Migration::plan(&inputs(vec![icsp("a.test", &["m.test"])], &[], &[]), TO, &failures);
    assert!(plan.steps.is_empty());
    let said = plan.conditions.get("a.test").unwrap();
    assert_eq!((said.reason.as_str(), said.message.as_str()), ("MigrationFailed", "quota exceeded"));
}

#[test]
fn what_newer_kinds_have_no_room_for_is_named() {
    let set = |source: &str, mirrors: usize| Set {
        source: source.to_owned(),
        mirrors: (0..mirrors).map(|number| format!("m{number}.test")).collect(),
        never_contact_source: false,
    };
    assert_eq!(check_bounds(&vec![set("a.test", 24); 1024]), Ok(()));
    let said = |sets: &[Set]| check_bounds(sets).unwrap_err();
    assert!(said(&vec![set("a.test", 1); 1025]).starts_with("it has 1025 sources"));
    assert!(said(&[set("a.test", 1), set("b.test", 25)]).starts_with("b.test has 25 mirrors"));
    let long = format!("a.test/{}", "x".repeat(250));
    assert!(said(&[set(&long, 1)]).starts_with(&format!("{long} is longer than the 256 characters")));
}
