//! What stored ledgers are called.

use super::*;

#[test]
fn objects_are_named_after_their_owner() {
    let cases = [
        (OwnerKind::ClusterImageSetMirror, "all", "cism-all-0f5a3c71-0"),
        (OwnerKind::ImageSetMirror, "team.mirror", "ism-team.mirror-0f5a3c71-0"),
        (OwnerKind::ClusterImageSetAvailability, "everything", "cisa-everything-0f5a3c71-0"),
    ];
    for (kind, name, expected) in cases {
        let owner = Owner { kind, name: name.into(), ..owner() };
        assert_eq!(owner.object_name(ShardId(0)), expected);
        assert_eq!(owner.shard_named(expected), Some(ShardId(0)));
    }
}

#[test]
fn long_names_are_cut_to_valid_ones() {
    let long = "a".repeat(253);
    let dotted = format!("{}.{}", "a".repeat(199), "b".repeat(53));
    let dashed = format!("{}--.{}", "a".repeat(197), "b".repeat(53));
    for name in [long, dotted, dashed] {
        let owner = Owner { name: name.as_str().into(), ..owner() };
        let object = owner.object_name(ShardId(u32::MAX));
        assert!(object.len() <= 253, "{object}");
        let fine = |part: &str| {
            part.starts_with(|c: char| c.is_ascii_alphanumeric())
                && part.ends_with(|c: char| c.is_ascii_alphanumeric())
        };
        assert!(object.split('.').all(fine), "{object}");
        assert!(object.ends_with("a-0f5a3c71-4294967295"), "{object}");
    }
}

#[test]
fn a_name_of_another_making_is_not_taken_for_a_number() {
    let mine = ["cism-all-0f5a3c71-7", "cism-all-0f5a3c71-0"];
    let foreign = [
        "cism-all-0f5a3c71-",
        "cism-all-0f5a3c71-07",
        "cism-all-0f5a3c71-+7",
        "cism-all-0f5a3c71-7-1",
        "cism-all-ffffffff-7",
        "ism-all-0f5a3c71-7",
        "",
    ];
    assert!(mine.iter().all(|name| owner().shard_named(name).is_some()));
    assert!(foreign.iter().all(|name| owner().shard_named(name).is_none()));
}

#[test]
fn namesakes_have_ledgers_of_their_own() {
    let later = Owner { uid: "aa5a3c71-9d2e-4b60-8a11-27c4d3e5f609".into(), ..owner() };
    assert_ne!(owner().object_name(ShardId(0)), later.object_name(ShardId(0)));
    assert_ne!(owner(), later);
}

#[test]
fn labels_find_them_again() {
    let labels: Vec<_> = owner().labels().into_iter().collect();
    let expected = [
        ("app.kubernetes.io/managed-by", "fairlead"),
        ("fairlead.dev/owner-kind", "ClusterImageSetMirror"),
        ("fairlead.dev/owner-uid", "0f5a3c71-9d2e-4b60-8a11-27c4d3e5f609"),
    ];
    assert_eq!(labels, expected.map(|(key, value)| (key.to_owned(), value.to_owned())));
}

#[test]
fn owners_are_named_by_kind_namespace_and_name() {
    let owner = |kind, namespace: Option<&str>| Owner {
        kind,
        namespace: namespace.map(Into::into),
        name: "one".into(),
        uid: "u-1".into(),
    };
    let mirror = owner(OwnerKind::ImageSetMirror, Some("team"));
    assert_eq!(mirror.to_string(), "ImageSetMirror/team/one");
    assert_eq!(owner(OwnerKind::ClusterImageSetMirror, None).to_string(), "ClusterImageSetMirror/one");
    for kind in OwnerKind::ALL {
        assert_eq!(OwnerKind::parse(kind.name()), Some(kind));
    }
}
