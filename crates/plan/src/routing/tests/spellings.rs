//! A registry is the same in every spelling of its host; filters see the text as it was written.

use super::*;

#[test]
fn a_place_in_another_spelling_is_a_duplicate() {
    let first = mirror(ClusterImageSetMirror, "first", -2, &["reg.local/x one/secret"]);
    let second = mirror(ImageSetMirror, "my-app/second", -1, &["REG.local:443/x secret"]);
    let alternatives = plan(&[&first, &second], "quay.io/a:1", PullPolicy::IfNotPresent, DEFAULT);
    assert_eq!(
        lines(&alternatives),
        "reg.local/x/a:1 (ClusterImageSetMirror/first, mirrors[0] + ImageSetMirror/my-app/second, mirrors[0])\n\
         quay.io/a:1 (original)\n"
    );
    assert_eq!(alternatives.list()[0].secrets.len(), 2);
    // Also where there are so many that they are looked up.
    let many: Vec<String> =
        (0..20).map(|number| format!("m{number}.io")).chain(["Reg.local/x".to_owned()]).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let many = mirror(ClusterImageSetMirror, "many", 1, &many);
    let alternatives = plan(&[&first, &many], "quay.io/a:1", PullPolicy::IfNotPresent, DEFAULT);
    assert_eq!(alternatives.list().len(), 22);
}

#[test]
fn the_original_keeps_its_spelling_and_is_not_rewritten_for_it() {
    let set = replicated(ClusterReplicatedImageSet, "r", -1, &["REG.local:443/team", "other.io/team"]);
    let alternatives = plan(&[&set], "reg.local/team/app:1", PullPolicy::IfNotPresent, DEFAULT);
    assert_eq!(references(&alternatives), ["reg.local/team/app:1", "other.io/team/app:1"]);
    assert!(alternatives.list()[0].is_original());
    let alone = replicated(ClusterReplicatedImageSet, "r", -1, &["REG.local:443/team"]);
    let alternatives = plan(&[&alone], "reg.local/team/app:1", PullPolicy::IfNotPresent, DEFAULT);
    assert!(!alternatives.needs_probe(), "there is nothing to choose from: {}", lines(&alternatives));
}

#[test]
fn upstreams_recognise_images_in_every_spelling_and_discard_them() {
    for image in ["reg.local/team/app:1", "REG.local/team/app:1", "reg.local:443/team/app:1"] {
        let moved = replicated(ClusterReplicatedImageSet, "r", 0, &["-Reg.local/team", "other.io/team"]);
        let alternatives = plan(&[&moved], image, PullPolicy::IfNotPresent, DEFAULT);
        assert_eq!(references(&alternatives), ["other.io/team/app:1"], "{image}");
        assert!(alternatives.discarded_by().is_some(), "{image}");
    }
}

#[test]
fn a_mirror_offers_no_copy_of_what_lies_in_it_in_another_spelling() {
    let inside = mirror(ClusterImageSetMirror, "m", -1, &["REG.local/m"]);
    let alternatives = plan(&[&inside], "reg.local:443/m/app:1", PullPolicy::IfNotPresent, DEFAULT);
    assert_eq!(references(&alternatives), ["reg.local:443/m/app:1"]);
}

#[test]
fn filters_are_matched_against_the_text_as_written() {
    let spec = json!({ "priority": -1, "imageFilter": { "include": ["reg\\.local/.*"] }, "mirrors": [entry("m.io")] });
    let policy = policy(ClusterImageSetMirror, "m", spec);
    let count = |image: &str| plan(&[&policy], image, PullPolicy::IfNotPresent, DEFAULT).list().len();
    assert_eq!((count("reg.local/a:1"), count("REG.local/a:1"), count("reg.local:443/a:1")), (2, 1, 1));
}

#[test]
fn replicas_are_declared_for_every_spelling() {
    let set = replicated(ClusterReplicatedImageSet, "r", 0, &["reg.local/a", "other.io/a"]);
    let index = index(&[&set]);
    let image = |text: &str| Reference::parse(text).unwrap();
    assert!(index.are_replicas(&image("REG.local:443/a/x:1"), &image("Other.io/a/x:1"), None));
    assert!(
        index.are_replicas(&image("REG.local/b/x"), &image("reg.local/b/x:latest"), None),
        "it is the same"
    );
    assert!(!index.are_replicas(&image("reg.local:80/a/x:1"), &image("other.io/a/x:1"), None));
    let upstreams = index.upstreams_of(&image("REG.local/a/x:1"), None);
    assert_eq!(upstreams.len(), 1, "not the place itself: {upstreams:?}");
}
