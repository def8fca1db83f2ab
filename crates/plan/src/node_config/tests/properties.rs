//! What holds for any policies.

use std::collections::BTreeSet;
use std::time::Duration;

use fairlead_domain::digest::Digest;
use fairlead_domain::reference::Reference;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

use super::*;
use crate::node_config::scope::enclosing;
use crate::node_config::{End, EndpointState, Object, PullKind, RouteMemory, Wanted};

const SOURCES: &[&str] = &[
    "*.v.test",
    "a.v.test",
    "hub.test",
    "hub.test/a",
    "hub.test/a/b",
    "hub.test:5000",
    "bad source",
    "m.test/a",
];
const MIRRORS: &[&str] =
    &["m.test", "m.test/a", "n.test", "o.test/x", "hub.test/copy", "hub.test", "b.v.test", "https://bad"];
const IMAGES: &[&str] = &[
    "hub.test/a/b/c",
    "hub.test/a/x",
    "hub.test/x",
    "a.v.test/x",
    "b.v.test:5000/y",
    "m.test/a/x",
    "hub.test:5000/a",
];

fn policy() -> impl Strategy<Value = MirrorPolicy> {
    let kind = select(vec![
        PolicyKind::ImageContentSourcePolicy,
        PolicyKind::ImageDigestMirrorSet,
        PolicyKind::ImageSourceDigestPolicy,
        PolicyKind::ImageSourceTagPolicy,
        PolicyKind::ImageTagMirrorSet,
    ]);
    let mirrors = subsequence(MIRRORS, 0..4).prop_shuffle();
    ("[abc]", kind, select(SOURCES), mirrors, any::<bool>()).prop_map(
        |(name, kind, source, mirrors, never)| {
            let can_close = matches!(kind, PolicyKind::ImageDigestMirrorSet | PolicyKind::ImageTagMirrorSet);
            one(kind, &name, source, &mirrors, never && can_close)
        },
    )
}

fn policies() -> impl Strategy<Value = Vec<MirrorPolicy>> {
    prop::collection::vec(policy(), 0..8)
}

fn lists() -> impl Strategy<Value = Vec<Vec<&'static str>>> {
    prop::collection::vec(subsequence(vec!["a", "b", "c", "d", "e"], 1..5).prop_shuffle(), 1..5)
}

fn mirrors_of(lists: &[Vec<&str>]) -> Vec<String> {
    let config = plan(lists.iter().map(|list| idms("source", list)).collect());
    let entry = config.entries.values().next().unwrap();
    entry.mirrors(PullKind::Digest).list.iter().map(|mirror| mirror.location.to_string()).collect()
}

proptest! {
    /// Whatever the router remembers, also of a time before the policies.
    #[test]
    fn a_router_never_asks_a_closed_source_nor_leaves_it_to_the_runtime(
        policies in policies(),
        image in select(IMAGES),
        remembered in (any::<bool>(), any::<bool>(), select(vec![PullKind::Digest, PullKind::Tag])),
        (head, by_tag) in (any::<bool>(), any::<bool>()),
    ) {
        let config = plan(policies);
        let digest = Digest::sha256(b"content");
        let (left_to_source, served_by_source, kind) = remembered;
        let mut memory = RouteMemory::default();
        if left_to_source {
            memory.left_to_source(image, Duration::ZERO);
        }
        if served_by_source {
            memory.served(image, [digest], kind, image, Duration::ZERO);
        }
        let object = if by_tag { Object::Tag("1") } else { Object::Manifest(digest) };
        let wanted = Wanted { name: image, object, head };
        let pull = memory.pull(&wanted, Duration::ZERO);
        let route = config.route(&wanted, &pull, &memory, Duration::ZERO);
        let is_closed = |place: &str| {
            config.entry_for(place).is_some_and(|(_, entry)| entry.is_closed_for(pull.kind))
        };
        prop_assert_eq!(matches!(route.end, End::Refuse(_)), is_closed(image));
        for place in &route.places {
            prop_assert!(!is_closed(&place.name), "{:?}", place);
            prop_assert_eq!(place.is_source, place.name == image);
        }
    }

    #[test]
    fn the_order_of_objects_does_not_matter(
        (given, shuffled) in policies().prop_flat_map(|given| (Just(given.clone()), Just(given).prop_shuffle()))
    ) {
        prop_assert_eq!(plan(given), plan(shuffled));
    }

    /// The source that counts for an image is the nearest that any set names. If one of its sets says never, the
    /// image's own registry is not asked, whatever else is wrong with the set.
    #[test]
    fn a_source_that_must_never_be_contacted_is_not(policies in policies(), insecure in subsequence(IMAGES, 0..3)) {
        let config = NodeConfig::plan(&inputs(policies.clone(), &insecure, &[]));
        for image in IMAGES {
            let sets = policies.iter().flat_map(|policy| &policy.sets);
            let with_effect: Vec<&Set> = sets
                .filter(|set| config.entries.keys().any(|scope| scope.as_str() == set.source))
                .filter(|set| !set.mirrors.is_empty())
                .collect();
            let nearest = enclosing(image).find(|text| with_effect.iter().any(|set| set.source == **text));
            let is_never = with_effect
                .iter()
                .any(|set| set.never_contact_source && Some(set.source.as_str()) == nearest.as_deref());
            if !is_never {
                continue;
            }
            for suffix in [":1", "@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"] {
                let wanted = Reference::parse(&format!("{image}{suffix}")).unwrap();
                let asked = config.resolve(&wanted).endpoints.into_iter().any(|endpoint| {
                    endpoint.image == wanted.as_str() && endpoint.state == EndpointState::Asked
                });
                prop_assert!(!asked, "{wanted} is asked from its source: {}", shown(&config));
            }
        }
    }

    #[test]
    fn every_mirror_comes_once(lists in lists()) {
        let named: BTreeSet<&str> = lists.iter().flatten().copied().collect();
        let mut merged = mirrors_of(&lists);
        merged.sort();
        prop_assert_eq!(merged, named.into_iter().collect::<Vec<_>>());
    }

    #[test]
    fn the_result_as_another_list_changes_nothing(lists in lists()) {
        let merged = mirrors_of(&lists);
        let again: Vec<Vec<&str>> = lists.into_iter().chain([merged.iter().map(String::as_str).collect()]).collect();
        prop_assert_eq!(&mirrors_of(&again), &merged);
    }

    /// Lists that follow one order keep it.
    #[test]
    fn lists_that_agree_keep_their_order(lists in prop::collection::vec(subsequence(vec!["d", "a", "c", "e", "b"], 1..5), 1..5)) {
        let merged = mirrors_of(&lists);
        for list in lists {
            let kept: Vec<_> = merged.iter().filter(|mirror| list.contains(&mirror.as_str())).collect();
            prop_assert_eq!(kept, list.iter().collect::<Vec<_>>());
        }
    }
}
