use std::sync::Arc;

use fairlead_domain::reference::Reference;
use jiff::{SignedDuration, Timestamp};
use proptest::prelude::*;

use super::*;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_700_000_000 + seconds).unwrap()
}

fn name(copy: &str) -> NameHash {
    NameHash::of(&Reference::parse(copy).unwrap())
}

fn list(updated: i64, names: &[&str]) -> UsageList {
    UsageList::new(at(updated), names.iter().map(|copy| name(copy)))
}

fn reading<const N: usize>(lists: [(&str, Result<UsageList, &str>); N]) -> Reading {
    lists
        .into_iter()
        .map(|(cluster, list)| (Arc::from(cluster), list.map(Arc::new).map_err(str::to_owned)))
        .collect()
}

const DAY: i64 = 86_400;

#[test]
fn a_copy_has_one_name_by_whatever_host_it_is_reached() {
    let names = ["r.io/m/nginx", "r.io/m/nginx:latest", "registry.internal:5000/m/nginx:latest"];
    assert!(names.iter().all(|copy| name(copy) == name("r.io/m/nginx:latest")));
    assert_ne!(name("r.io/m/nginx:1"), name("r.io/m/nginx:2"));
    assert_ne!(name("r.io/m/nginx:1"), name("r.io/other/nginx:1"));
    let digest = format!("sha256:{}", "ab".repeat(32));
    assert_eq!(
        name(&format!("r.io/m/nginx@{digest}")),
        name(&format!("r.io/m/nginx:digest-{}", "ab".repeat(32))),
        "an image that is named by digest is held by a tag"
    );
}

#[test]
fn a_list_survives_being_stored() {
    let stored = list(5, &["r.io/m/a:1", "r.io/m/b:1", "r.io/m/a:1"]);
    assert_eq!(UsageList::decode(&stored.encode()), Ok(stored.clone()));
    assert_eq!(stored.len(), 2);
    assert!(!String::from_utf8(stored.encode()).unwrap().contains("m/a"), "names are hashed");
    let newer = br#"{"version": 2, "names": {"of": "another shape"}}"#;
    assert_eq!(UsageList::decode(newer), Err(DocumentError::Version(2)));
    for odd in ["", "{}", "[1]", r#"{"version":1,"updated":"2026-01-01T00:00:00Z","names":["xyz"]}"#] {
        assert!(matches!(UsageList::decode(odd.as_bytes()), Err(DocumentError::Malformed(_))), "{odd}");
    }
}

#[test]
fn a_list_is_stored_on_change_once_a_minute_and_else_once_an_hour() {
    let (one, other) = (list(0, &["r.io/m/a:1"]).fingerprint(), list(0, &["r.io/m/b:1"]).fingerprint());
    assert_eq!(publish_at(None, &one, at(7)), at(7));
    let last = Published { at: at(0), names: one };
    assert_eq!(publish_at(Some(&last), &one, at(10)), at(3600));
    assert_eq!(publish_at(Some(&last), &other, at(10)), at(60));
    assert_eq!(publish_at(Some(&last), &other, at(-600)), at(-540), "the clock was set back");
}

#[test]
fn what_another_cluster_uses_stays() {
    let lists = ForeignLists::default();
    let (used, unused) = (name("r.io/m/a:1"), name("r.io/m/b:1"));
    assert_eq!(lists.permit_deletion(&unused, None, at(0)), Err(Withheld::NotRead));
    let lists = lists.after(reading([("east", Ok(list(0, &["r.io/m/a:1"])))]), at(0));
    assert_eq!(lists.permit_deletion(&used, None, at(30)), Err(Withheld::Used { cluster: "east".into() }));
    assert_eq!(lists.permit_deletion(&unused, None, at(30)), Ok(()));
    assert_eq!(lists.permit_deletion(&unused, None, at(31)), Err(Withheld::NotRead), "it may have changed");
}

#[test]
fn while_one_list_cannot_be_read_nothing_goes() {
    let lists = ForeignLists::default()
        .after(reading([("east", Ok(list(0, &[]))), ("west", Err("the registry sent half of it"))]), at(0));
    let refused = lists.permit_deletion(&name("r.io/m/b:1"), None, at(0)).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the usage list of cluster west cannot be read: the registry sent half of it"
    );
    let repaired = lists.after(reading([("east", Ok(list(0, &[]))), ("west", Ok(list(0, &[])))]), at(10));
    assert_eq!(repaired.permit_deletion(&name("r.io/m/b:1"), None, at(10)), Ok(()));
    let removed = lists.after(reading([("east", Ok(list(0, &[])))]), at(10));
    assert_eq!(removed.permit_deletion(&name("r.io/m/b:1"), None, at(10)), Ok(()), "it never was a list");
    assert_eq!(lists.seen().count(), 1);
}

#[test]
fn a_list_that_is_overwritten_and_removed_still_counts() {
    let used = name("r.io/m/a:1");
    let lists = ForeignLists::default().after(reading([("east", Ok(list(0, &["r.io/m/a:1"])))]), at(0));
    let lists = lists.after(reading([("east", Err("garbage"))]), at(10)).after(Reading::new(), at(20));
    assert_eq!(lists.permit_deletion(&used, None, at(20)), Err(Withheld::Used { cluster: "east".into() }));
}

#[test]
fn a_list_that_vanished_counts_for_seven_days() {
    let used = name("r.io/m/a:1");
    let lists = ForeignLists::default().after(reading([("east", Ok(list(0, &["r.io/m/a:1"])))]), at(0));
    let lists = lists.after(Reading::new(), at(6 * DAY));
    assert_eq!(
        lists.permit_deletion(&used, None, at(6 * DAY)),
        Err(Withheld::Used { cluster: "east".into() })
    );
    assert_eq!(lists.permit_deletion(&name("r.io/m/b:1"), None, at(6 * DAY)), Ok(()));
    let lists = lists.after(Reading::new(), at(7 * DAY));
    assert_eq!(lists.permit_deletion(&used, None, at(7 * DAY)), Ok(()));
    assert_eq!(lists.seen().count(), 0);
}

#[test]
fn after_a_restart_a_vanished_list_keeps_everything() {
    let seen = SeenCluster { cluster: "east".into(), last_seen: at(0) };
    let lists = ForeignLists::remembered([seen.clone()]);
    let any = name("r.io/m/b:1");
    assert_eq!(lists.permit_deletion(&any, None, at(1)), Err(Withheld::NotRead));
    let without = lists.after(Reading::new(), at(DAY));
    assert_eq!(
        without.permit_deletion(&any, None, at(DAY)),
        Err(Withheld::Vanished { cluster: "east".into(), last_seen: at(0) })
    );
    assert_eq!(without.seen().collect::<Vec<_>>(), [seen]);
    let with = lists.after(reading([("east", Ok(list(DAY, &[])))]), at(DAY));
    assert_eq!(with.permit_deletion(&any, None, at(DAY)), Ok(()));
}

#[test]
fn stale_lists_are_reported_and_ignored_only_where_that_is_configured() {
    let used = name("r.io/m/a:1");
    let read = || reading([("east", Ok(list(0, &["r.io/m/a:1"])))]);
    let lists = ForeignLists::default().after(read(), at(2 * DAY));
    let limit = Some(SignedDuration::from_hours(24));
    let stale = |ignored| StaleList { cluster: "east".into(), updated: at(0), ignored };
    assert_eq!(lists.stale(None, at(2 * DAY)), [stale(false)]);
    assert_eq!(lists.stale(limit, at(2 * DAY)), [stale(true)]);
    assert!(lists.permit_deletion(&used, None, at(2 * DAY)).is_err());
    assert_eq!(lists.permit_deletion(&used, limit, at(2 * DAY)), Ok(()));
    let lists = ForeignLists::default().after(read(), at(3600));
    assert_eq!(
        (lists.stale(limit, at(3600)), lists.permit_deletion(&used, limit, at(3600)).is_ok()),
        (vec![], false)
    );
}

proptest! {
    /// A list can only ever prevent a deletion.
    #[test]
    fn more_lists_never_permit_more(
        lists in prop::collection::vec((0_u8..4, prop::option::of((0_i64..400_000, prop::collection::vec(0_u8..6, 0..4)))), 0..12),
        asked in 0_u8..6,
        max_age in prop::option::of(1_i64..200),
    ) {
        let max_age = max_age.map(SignedDuration::from_hours);
        let asked = name(&format!("r.io/m/{asked}:1"));
        let mut known = ForeignLists::default().after(Reading::new(), at(400_000));
        let mut permitted = known.permit_deletion(&asked, max_age, at(400_000)).is_ok();
        prop_assert!(permitted);
        let mut reading = Reading::new();
        for (cluster, content) in lists {
            if reading.contains_key(&*cluster.to_string()) {
                continue;
            }
            let content = content
                .map(|(updated, names)| {
                    let names = names.iter().map(|one| name(&format!("r.io/m/{one}:1")));
                    Arc::new(UsageList::new(at(updated), names))
                })
                .ok_or_else(|| "unreadable".to_owned());
            reading.insert(cluster.to_string().into(), content);
            known = known.after(reading.clone(), at(400_000));
            let now_permitted = known.permit_deletion(&asked, max_age, at(400_000)).is_ok();
            prop_assert!(permitted || !now_permitted);
            permitted = now_permitted;
        }
    }
}
