//! Which tags are compared on mirrors and sources, and what is said about those that differ.

use fairlead_domain::digest::Digest;
use fairlead_domain::reference::Reference;
use fairlead_domain::verdict::Verdict;

use super::*;
use crate::node_config::comparison::TagDigests;

fn image(text: &str) -> Reference {
    Reference::parse(text).unwrap()
}

fn places(config: &NodeConfig, text: &str) -> Vec<String> {
    let comparison = config.comparison(&image(text));
    comparison.iter().flat_map(|one| one.places().map(ToString::to_string)).collect()
}

fn holds(text: &str) -> Verdict {
    Verdict::Available { digest: Some(Digest::sha256(text.as_bytes())) }
}

#[test]
fn tags_of_open_sources_are_compared_and_nothing_else() {
    let config = NodeConfig::plan(&inputs(
        vec![
            istp("hub.test/team", &["m.test/team", "shut.test/team", "n.test/team"]),
            itms_never("shut.test", &["m.test"]),
            isdp("digests.test", &["m.test"]),
            istp("blocked.test", &["m.test"]),
        ],
        &[],
        &["blocked.test/secret"],
    ));
    assert_eq!(
        places(&config, "hub.test/team/app:1"),
        ["hub.test/team/app:1", "m.test/team/app:1", "n.test/team/app:1"],
        "a mirror in a closed place is not asked"
    );
    for other in [
        "shut.test/app:1",
        "shut.test:443/app:1",
        "digests.test/app:1",
        "blocked.test/secret/app:1",
        "else.test/app:1",
        "hub.test/team/app@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    ] {
        assert_eq!(places(&config, other), Vec::<String>::new(), "{other}");
    }
}

#[test]
fn what_differs_is_said_to_the_policies_that_list_the_mirror() {
    let config = plan(vec![istp("hub.test", &["m.test"]), istp("other.test", &["m.test/other"])]);
    let comparisons: Vec<_> = ["hub.test/app:1", "other.test/app:1"]
        .iter()
        .filter_map(|text| config.comparison(&image(text)))
        .collect();
    let mut digests = TagDigests::default();
    let said = |digests: &TagDigests, name: &str| {
        let found = digests.differences(&comparisons);
        found.into_iter().find(|(policy, _)| policy.name == name).unwrap().1
    };
    assert_eq!(said(&digests, "hub.test"), None, "nothing was asked");
    digests.learn(&image("hub.test/app:1"), &holds("one"));
    digests.learn(&image("m.test/app:1"), &holds("two"));
    let [one, two] = ["one", "two"].map(|text| Digest::sha256(text.as_bytes()));
    let expected = format!("hub.test/app:1 is {one} and m.test/app:1 is {two}");
    assert_eq!(said(&digests, "hub.test"), Some(vec![expected.clone()]));
    assert_eq!(said(&digests, "other.test"), None);

    // A mirror that does not answer may still hold the same; one that has lost the tag does not.
    digests.learn(&image("m.test/app:1"), &Verdict::Unreachable { reason: "down".into() });
    assert_eq!(said(&digests, "hub.test"), Some(vec![expected]));
    digests.learn(&image("m.test/app:1"), &Verdict::NotFound { reason: "gone".into() });
    assert_eq!(said(&digests, "hub.test"), Some(Vec::new()));
    digests.learn(&image("m.test/app:1"), &holds("one"));
    assert_eq!(said(&digests, "hub.test"), Some(Vec::new()));
    digests.keep(&[]);
    assert_eq!(said(&digests, "hub.test"), None);
}

/// Several objects may name a source: each answers for the mirrors that it lists for tags.
#[test]
fn a_mirror_that_differs_is_no_matter_of_policies_that_do_not_list_it() {
    let named = |name: &str, policy: MirrorPolicy| {
        let id = PolicyId { name: name.to_owned(), ..policy.id };
        MirrorPolicy { id, ..policy }
    };
    let config = plan(vec![
        named("first", istp("hub.test", &["one.test"])),
        named("second", itms("hub.test", &["two.test"])),
        named("digests", isdp("hub.test", &["two.test"])),
    ]);
    let comparisons: Vec<_> = config.comparison(&image("hub.test/app:1")).into_iter().collect();
    let mut digests = TagDigests::default();
    for (place, holds_what) in [("hub.test", "new"), ("one.test", "new"), ("two.test", "old")] {
        digests.learn(&image(&format!("{place}/app:1")), &holds(holds_what));
    }
    let found = digests.differences(&comparisons);
    let said: Vec<(&str, bool)> = found
        .iter()
        .map(|(policy, said)| (policy.name.as_str(), said.as_ref().unwrap().is_empty()))
        .collect();
    assert_eq!(said, [("first", true), ("second", false)]);
}
