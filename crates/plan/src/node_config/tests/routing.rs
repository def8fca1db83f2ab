//! What a router does with the requests of a runtime.

use std::time::Duration;

use fairlead_domain::digest::Digest;

use super::{idms, idms_never, inputs, isdp, istp, itms, itms_never};
use crate::node_config::{
    Attempt, Delivery, End, MirrorPolicy, NodeConfig, Object, Origin, Place, PolicyId, Pull, PullKind, Route,
    RouteMemory, Wanted,
};

const START: Duration = Duration::ZERO;
const SOURCE: &str = "hub.test/team/app";

struct Node {
    config: NodeConfig,
    memory: RouteMemory,
    now: Duration,
}

impl Node {
    fn new(policies: Vec<MirrorPolicy>) -> Self {
        Self::with(policies, &[], &[])
    }

    fn with(policies: Vec<MirrorPolicy>, insecure: &[&str], blocked: &[&str]) -> Self {
        let config = NodeConfig::plan(&inputs(policies, insecure, blocked));
        Self { config, memory: RouteMemory::default(), now: START }
    }

    fn asks(&mut self, name: &str, object: Object<'_>, head: bool) -> (Pull, Route) {
        let wanted = Wanted { name, object, head };
        let pull = self.memory.pull(&wanted, self.now);
        let route = self.config.route(&wanted, &pull, &self.memory, self.now);
        (pull, route)
    }

    /// Places in order, then `source` or `refused`.
    fn route(&mut self, name: &str, object: Object<'_>, head: bool) -> Vec<String> {
        shown(&self.asks(name, object, head).1)
    }

    fn tag(&mut self) -> Vec<String> {
        self.route(SOURCE, Object::Tag("1"), true)
    }

    fn digest(&mut self) -> Vec<String> {
        self.route(SOURCE, Object::Manifest(digest(b"by digest")), true)
    }
}

fn shown(route: &Route) -> Vec<String> {
    let end = match &route.end {
        End::Source { .. } => "source",
        End::Refuse(_) => "refused",
    };
    route.places.iter().map(|place| place.name.clone()).chain([end.to_owned()]).collect()
}

fn digest(content: &[u8]) -> Digest {
    Digest::sha256(content)
}

#[test]
fn the_most_specific_source_decides_down_to_the_repository() {
    let mut node = Node::new(vec![
        istp("hub.test/team", &["m.test/team"]),
        istp("hub.test/team/app", &["special.test/app"]),
        istp("*.vendor.test", &["m.test/vendor"]),
    ]);
    assert_eq!(node.tag(), ["special.test/app", "source"]);
    let tag = Object::Tag("1");
    assert_eq!(node.route("hub.test/team/web", tag, true), ["m.test/team/web", "source"]);
    assert_eq!(node.route("hub.test/other", tag, true), ["source"]);
    assert_eq!(node.route("eu.vendor.test/a/b", tag, true), ["m.test/vendor/a/b", "source"]);
}

#[test]
fn digests_and_tags_have_mirrors_of_their_own() {
    let mut node = Node::new(vec![isdp(SOURCE, &["d.test/app"]), itms(SOURCE, &["t.test/app"])]);
    assert_eq!(node.digest(), ["d.test/app", "source"]);
    assert_eq!(node.tag(), ["t.test/app", "source"]);
}

#[test]
fn content_of_a_tag_comes_from_where_the_tag_came_from() {
    let mut node =
        Node::new(vec![isdp(SOURCE, &["d.test/app"]), itms(SOURCE, &["t1.test/app", "t2.test/app"])]);
    let (manifest, layer) = (digest(b"manifest"), digest(b"layer"));
    node.memory.served(SOURCE, [manifest], PullKind::Tag, "t2.test/app", START);
    let tag_mirrors = ["t2.test/app", "t1.test/app", "source"];
    assert_eq!(node.route(SOURCE, Object::Manifest(manifest), false), tag_mirrors);
    node.memory.served(SOURCE, [layer], PullKind::Tag, "t2.test/app", START);
    assert_eq!(node.route(SOURCE, Object::Blob(layer), false), tag_mirrors);
    // The same digest in another repository is another pull.
    assert_eq!(node.route("hub.test/other", Object::Blob(layer), false), ["source"]);
}

#[test]
fn content_of_a_tag_that_the_source_resolved_comes_from_the_source() {
    let mut node = Node::new(vec![isdp(SOURCE, &["d.test/app"])]);
    assert_eq!(node.tag(), ["source"], "mirrors for digests are not for tags");
    node.memory.left_to_source(SOURCE, START);
    assert_eq!(node.route(SOURCE, Object::Manifest(digest(b"manifest")), false), ["source"]);
    assert_eq!(node.route(SOURCE, Object::Blob(digest(b"layer")), false), ["source"]);
    // A pull by digest begins with a look at its headers, and its content is known to belong to it.
    assert_eq!(node.digest(), ["d.test/app", "source"]);
    assert_eq!(node.route(SOURCE, Object::Manifest(digest(b"by digest")), false), ["d.test/app", "source"]);
}

#[test]
fn a_pull_by_digest_is_not_served_by_mirrors_for_tags_because_a_tag_was_pulled_before() {
    let mut node = Node::new(vec![itms_never(SOURCE, &["t.test/app"])]);
    node.memory.served(SOURCE, [digest(b"by digest")], PullKind::Tag, "t.test/app", START);
    assert_eq!(node.digest(), ["refused"]);
}

/// An agent that takes the place of another one knows nothing of the pulls that are under way.
#[test]
fn the_rest_of_a_pull_whose_beginning_is_not_known_may_come_from_mirrors_of_either_kind() {
    let mut node = Node::new(vec![
        itms_never(SOURCE, &["both.test/app", "t.test/app"]),
        idms(SOURCE, &["d.test/app", "both.test/app"]),
    ]);
    let (manifest, layer) = (digest(b"manifest"), digest(b"layer"));
    let either = ["d.test/app", "both.test/app", "t.test/app", "refused"];
    assert_eq!(node.route(SOURCE, Object::Blob(layer), false), either);
    let (_, route) = node.asks(SOURCE, Object::Manifest(manifest), false);
    assert_eq!(shown(&route), either);
    // What a mirror for tags serves is from then on known to belong to a tag.
    let tags = &route.places[2];
    node.memory.served(SOURCE, [manifest, layer], tags.kind, &tags.name, START);
    assert_eq!(node.route(SOURCE, Object::Blob(layer), false), ["t.test/app", "both.test/app", "refused"]);
    // A pull by digest begins with a look at its headers, and has mirrors for digests alone.
    assert_eq!(node.digest(), ["d.test/app", "both.test/app", "refused"]);
    assert_eq!(node.route(SOURCE, Object::Blob(digest(b"by digest")), false).len(), 3, "it has begun");
    // An open source is as good as any mirror of the other kind.
    let mut open = Node::new(vec![itms(SOURCE, &["t.test/app"]), idms(SOURCE, &["d.test/app"])]);
    assert_eq!(open.route(SOURCE, Object::Blob(layer), false), ["d.test/app", "source"]);
    // Without any mirror, it is not the kind of the pull that the refusal is about.
    let mut blocked = Node::with(Vec::new(), &[], &["hub.test"]);
    let End::Refuse(refusal) = blocked.asks(SOURCE, Object::Blob(layer), false).1.end else {
        panic!("it is left to the source")
    };
    assert!(refusal.message(&[]).ends_with("; no mirror of it can be used"), "{}", refusal.message(&[]));
}

#[test]
fn a_source_that_must_not_be_contacted_is_never_left_to_the_runtime() {
    let mut node = Node::new(vec![idms_never(SOURCE, &["d1.test/app", "d2.test/app"])]);
    assert_eq!(node.digest(), ["d1.test/app", "d2.test/app", "refused"]);
    assert_eq!(node.tag(), ["refused"]);
    node.memory.left_to_source(SOURCE, START);
    assert_eq!(node.route(SOURCE, Object::Blob(digest(b"layer")), false), ["refused"]);
    assert_eq!(node.route("hub.test/team/web", Object::Tag("1"), true), ["source"]);
}

#[test]
fn one_kind_of_pull_can_be_closed_alone() {
    let mut node =
        Node::new(vec![itms_never("hub.test/team", &["t.test/team"]), idms(SOURCE, &["d.test/app"])]);
    assert_eq!(node.tag(), ["t.test/team/app", "refused"]);
    assert_eq!(node.digest(), ["d.test/app", "source"]);
}

#[test]
fn mirrors_that_fail_are_passed_over_and_tried_last_where_nothing_else_may_be() {
    let mirrors = ["m1.test/app", "m2.test/app"];
    let mut open = Node::new(vec![istp(SOURCE, &mirrors)]);
    let mut closed = Node::new(vec![idms_never(SOURCE, &mirrors)]);
    for node in [&mut open, &mut closed] {
        node.memory.failed("m1.test", START, 0.5);
    }
    assert_eq!(open.digest(), ["m2.test/app", "source"]);
    assert_eq!(closed.digest(), ["m2.test/app", "m1.test/app", "refused"]);
    open.now = Duration::from_secs(11);
    assert_eq!(open.digest(), ["m1.test/app", "m2.test/app", "source"], "it is tried again");
    open.memory.failed("m1.test", open.now, 0.5);
    open.now += Duration::from_secs(19);
    assert_eq!(open.digest(), ["m2.test/app", "source"], "twice as long after the second failure");
    open.memory.answered("m1.test");
    assert_eq!(open.digest(), ["m1.test/app", "m2.test/app", "source"]);
}

#[test]
fn the_pause_of_a_failing_mirror_has_a_limit() {
    let mut node = Node::new(vec![istp(SOURCE, &["m1.test/app"])]);
    for _ in 0..100 {
        node.memory.failed("m1.test", START, 1.0);
    }
    node.now = Duration::from_secs(151);
    assert_eq!(node.tag(), ["m1.test/app", "source"]);
}

#[test]
fn a_place_that_sent_wrong_content_is_not_asked_for_it_again_for_a_while() {
    let mut node = Node::new(vec![istp(SOURCE, &["m1.test/app"])]);
    let layer = digest(b"layer");
    node.memory.spoiled("m1.test/app", layer, START);
    for minutes in [0, 29, 59, 61] {
        node.now = Duration::from_mins(minutes);
        let is_forgotten = minutes > 60;
        let expected = if is_forgotten { &["m1.test/app", "source"][..] } else { &["source"] };
        assert_eq!(node.route(SOURCE, Object::Blob(layer), false), expected, "{minutes}");
    }
    assert_eq!(node.tag(), ["m1.test/app", "source"]);
}

#[test]
fn a_place_that_sent_wrong_content_is_asked_last_where_nothing_else_may_be() {
    let mut node = Node::new(vec![idms_never(SOURCE, &["m1.test/app", "m2.test/app"])]);
    let layer = digest(b"layer");
    node.memory.served(SOURCE, [layer], PullKind::Digest, "m1.test/app", START);
    node.memory.spoiled("m1.test/app", layer, START);
    let (_, route) = node.asks(SOURCE, Object::Blob(layer), false);
    assert_eq!(shown(&route), ["m2.test/app", "m1.test/app", "refused"]);
    let said: Vec<String> = route.places.iter().map(|place| place.attempt(&"it is gone").why).collect();
    assert_eq!(said, ["it is gone", "it is gone; it sent wrong content before"]);
}

#[test]
fn a_source_that_a_list_names_keeps_its_place() {
    let mut node = Node::new(vec![istp(SOURCE, &["m1.test/app", SOURCE, "m2.test/app"])]);
    let (_, route) = node.asks(SOURCE, Object::Tag("1"), true);
    let is_source: Vec<bool> = route.places.iter().map(|place| place.is_source).collect();
    assert_eq!(shown(&route), ["m1.test/app", SOURCE, "m2.test/app", "source"]);
    assert_eq!(is_source, [false, true, false]);
    node.memory.failed("m2.test", START, 0.5);
    assert_eq!(node.tag(), ["m1.test/app", "source"], "the source is not asked twice");
}

#[test]
fn mirrors_that_cannot_be_asked_are_left_out() {
    let mut node = Node::with(
        vec![istp(SOURCE, &["bare.test", "blocked.test/app", "m.test/app"])],
        &[],
        &["blocked.test"],
    );
    assert_eq!(node.tag(), ["m.test/app", "source"]);
}

#[test]
fn a_refusal_names_the_policy_and_what_the_mirrors_said() {
    let mut node = Node::with(vec![idms_never("hub.test/team", &["m.test/team"])], &[], &["blocked.test"]);
    let refusal = |route: Route| match route.end {
        End::Refuse(refusal) => refusal,
        End::Source { .. } => panic!("it is left to the source"),
    };
    let (_, route) = node.asks(SOURCE, Object::Manifest(digest(b"x")), true);
    let attempt =
        Attempt { place: "m.test/team/app".to_owned(), why: "it is not there\u{2026}\n".to_owned() };
    assert_eq!(
        refusal(route).message(&[attempt]),
        "hub.test/team/app is not pulled from its source: NeverContactSource for hub.test/team in \
         ImageDigestMirrorSet hub.test/team; m.test/team/app: it is not there??"
    );
    let (_, route) = node.asks(SOURCE, Object::Tag("1"), true);
    assert!(refusal(route).message(&[]).ends_with("; no mirror of it can be used for tags"));
    let (_, route) = node.asks("blocked.test/a", Object::Tag("1"), true);
    let text = refusal(route).message(&[]);
    assert!(text.starts_with("blocked.test/a is not pulled: blocked.test is a blocked registry;"), "{text}");
}

fn refusal(node: &mut Node, name: &str, object: Object<'_>) -> String {
    match node.asks(name, object, true).1.end {
        End::Refuse(refusal) => refusal.to_string(),
        End::Source { .. } => panic!("it is left to the source"),
    }
}

#[test]
fn a_refusal_names_the_policy_that_closes_the_source_and_none_that_allows_it() {
    let named = |name: &str, policy: MirrorPolicy| {
        let id = PolicyId { name: name.to_owned(), ..policy.id };
        MirrorPolicy { id, ..policy }
    };
    let mut node = Node::new(vec![
        named("a-allow", idms("hub.test", &["m1.test"])),
        named("b-never", idms_never("hub.test", &["m2.test"])),
    ]);
    assert_eq!(
        refusal(&mut node, "hub.test/app", Object::Tag("1")),
        "hub.test/app is not pulled from its source: NeverContactSource for hub.test in ImageDigestMirrorSet b-never"
    );
    // The source is closed around the one whose digests have mirrors of their own.
    let mut node = Node::new(vec![
        named("c-never", itms_never("hub.test", &["t.test"])),
        named("a-digests", isdp("hub.test/team", &["d.test/team"])),
    ]);
    assert_eq!(
        refusal(&mut node, SOURCE, Object::Tag("1")),
        "hub.test/team/app is not pulled from its source: NeverContactSource for hub.test in ImageTagMirrorSet c-never"
    );
    // What is only insecure is closed by the source that it lies in.
    let mut node = Node::with(vec![itms_never("hub.test", &["t.test"])], &["hub.test/team"], &[]);
    assert!(
        refusal(&mut node, SOURCE, Object::Tag("1")).ends_with("for hub.test in ImageTagMirrorSet hub.test")
    );
    // A list closes it for digests, a policy for tags.
    let mut node = Node::with(
        vec![itms_never("hub.test", &["t.test"]), idms("hub.test/team", &["d.test/team"])],
        &[],
        &["hub.test/team"],
    );
    let by_digest = refusal(&mut node, SOURCE, Object::Manifest(digest(b"x")));
    assert_eq!(by_digest, "hub.test/team/app is not pulled: hub.test/team is a blocked registry");
}

#[test]
fn a_registry_alone_serves_what_lies_below_a_source_and_not_an_image_of_its_name() {
    let mut node = Node::new(vec![istp("hub.test/ns", &["m1.test:5000"])]);
    let tag = Object::Tag("1");
    assert_eq!(node.route("hub.test/ns/team/app", tag, true), ["m1.test:5000/team/app", "source"]);
    assert_eq!(node.route("hub.test/ns", tag, true), ["source"]);
    let mut node = Node::new(vec![istp("hub.test/ns", &["short"])]);
    assert_eq!(node.route("hub.test/ns/app", tag, true), ["source"], "no name of a registry");
}

#[test]
fn registries_lead_to_the_router_only_if_a_part_of_them_is_closed() {
    let never = || idms_never("hub.test/team", &["m.test/t"]);
    let is_only = |policies, registry: &str| {
        Node::with(policies, &[], &["b.test:5000/x"]).config.leads_to_router_only(registry)
    };
    for (registry, expected) in [
        ("hub.test", true),
        ("hub.test:5000", false),
        ("hub.tes", false),
        ("b.test:5000", true),
        ("m.test", false),
    ] {
        assert_eq!(is_only(vec![never()], registry), expected, "{registry}");
    }
    // One file stands for all registries without entries of their own.
    let domains =
        || vec![idms_never("*.vendor.test", &["m.test/v"]), istp("open.vendor.test", &["m.test/o"])];
    for (registry, expected) in [("eu.vendor.test", true), ("open.vendor.test", false), ("other.test", true)]
    {
        assert_eq!(is_only(domains(), registry), expected, "{registry}");
    }
    // The rest of this registry follows its domain.
    let part = vec![idms_never("*.vendor.test", &["m.test/v"]), istp("eu.vendor.test/a", &["m.test/o"])];
    assert!(is_only(part, "eu.vendor.test"));
}

#[test]
fn what_was_not_used_for_an_hour_is_forgotten_and_what_is_used_stays() {
    let mut node = Node::new(vec![isdp(SOURCE, &["d.test/app"]), itms(SOURCE, &["t.test/app"])]);
    let (used, unused) = (digest(b"used"), digest(b"unused"));
    node.memory.served(SOURCE, [used, unused], PullKind::Tag, "t.test/app", START);
    for minutes in [20, 40, 61, 80] {
        node.now = Duration::from_mins(minutes);
        assert_eq!(node.route(SOURCE, Object::Blob(used), false), ["t.test/app", "source"], "{minutes}");
    }
    assert_eq!(node.route(SOURCE, Object::Blob(unused), false), ["d.test/app", "source"]);
}

#[test]
fn memory_is_bounded_and_keeps_the_newest() {
    let mut node = Node::new(vec![isdp(SOURCE, &["d.test/app"]), itms(SOURCE, &["t.test/app"])]);
    for number in 0..20_000_u32 {
        node.memory.served(SOURCE, [digest(&number.to_be_bytes())], PullKind::Tag, "t.test/app", START);
    }
    let mut kind = |number: u32| {
        let object = Object::Blob(digest(&number.to_be_bytes()));
        node.asks(SOURCE, object, false).0.kind
    };
    assert_eq!(kind(19_999), PullKind::Tag);
    assert_eq!(kind(16_000), PullKind::Tag);
    assert_eq!(kind(0), PullKind::Digest);
}

#[test]
fn the_runtime_is_sent_to_a_mirror_only_where_that_gives_nothing_away() {
    let place = |insecure| Place {
        name: "m.test/app".to_owned(),
        insecure,
        kind: PullKind::Tag,
        is_source: false,
        is_spoiled: false,
    };
    assert_eq!(Delivery::of(&place(false), true, false), Delivery::Redirect);
    assert_eq!(Delivery::of(&place(false), false, false), Delivery::Proxy, "not permitted");
    assert_eq!(Delivery::of(&place(false), true, true), Delivery::Proxy, "it would ask for credentials");
    assert_eq!(Delivery::of(&place(true), true, false), Delivery::Proxy, "the runtime would not trust it");
}

#[test]
fn the_origin_of_a_pull_is_known_to_its_requests() {
    let mut node = Node::new(vec![itms(SOURCE, &["t.test/app"])]);
    node.memory.served(SOURCE, [digest(b"m")], PullKind::Tag, "t.test/app", START);
    let (pull, _) = node.asks(SOURCE, Object::Manifest(digest(b"m")), false);
    let origin = Origin::Mirror("t.test/app".into());
    assert_eq!(pull, Pull { kind: PullKind::Tag, origin, is_guessed: false });
}
