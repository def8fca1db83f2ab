//! Whether what is reported is what is expected.
//!
//! Equal digests are equal content. Different ones may be: an index names an image for each platform, and a runtime may
//! report that image, its configuration, or another index that holds it. What is needed to tell is read once by a
//! process, and until then the answer is unknown.
//!
//! The same holds for what two nodes, or two containers of one Pod, report.

use std::borrow::Cow;

use fairlead_domain::digest::Digest;
use fairlead_domain::platform::Platform;
use serde::Serialize;

use super::{Content, Contents, Reported, is_empty_config};

const TOO_LARGE: &str = "an index has more images than are compared";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    Matching,
    Differing,
    Unknown,
}

impl State {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Matching => "matching",
            Self::Differing => "differing",
            Self::Unknown => "unknown",
        }
    }
}

/// What comparing came to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Comparison {
    pub state: State,
    /// For people.
    pub reason: Cow<'static, str>,
    /// Digests whose content would tell more.
    pub reads: Vec<Digest>,
}

impl Comparison {
    fn of(state: State, reason: impl Into<Cow<'static, str>>) -> Self {
        Self { state, reason: reason.into(), reads: Vec::new() }
    }

    fn matching(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::of(State::Matching, reason)
    }

    fn differing(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::of(State::Differing, reason)
    }

    pub(super) fn unknown(reason: impl Into<Cow<'static, str>>) -> Self {
        Self::of(State::Unknown, reason)
    }

    fn after(reads: Vec<Digest>) -> Self {
        let reason = "the digests differ, and whether they name the same image is not known: it takes a look at what \
                      is behind them";
        Self { reads, ..Self::unknown(reason) }
    }
}

/// Compares an expected digest with what a node of this platform reports.
pub fn compare(
    expected: &Digest,
    reported: &Reported,
    platform: Option<&Platform>,
    contents: &Contents,
) -> Comparison {
    match reported {
        Reported::Unreadable => Comparison::unknown("what the kubelet reports is no digest"),
        Reported::Id(id) if is_empty_config(id) => Comparison::unknown(
            "the reported image ID is that of the empty configuration, which all artifacts without one share",
        ),
        Reported::Manifest { digest, .. } | Reported::Id(digest) if digest == expected => {
            Comparison::matching("the reported digest is the expected one")
        }
        Reported::Manifest { digest, .. } => manifests(expected, digest, platform, contents),
        Reported::Id(id) => by_id(expected, id, platform, contents),
    }
}

/// Two digests of manifests or indexes that differ.
fn manifests(
    expected: &Digest,
    reported: &Digest,
    platform: Option<&Platform>,
    contents: &Contents,
) -> Comparison {
    let other = || {
        let on = platform.map_or_else(String::new, |platform| format!(" for {platform}"));
        format!("the node holds {reported}{on}, and {expected} is expected")
    };
    let (wanted, found) = (contents.get(expected), contents.get(reported));
    if let Some(index) = wanted
        && index.on(platform).any(|one| one.digest == *reported)
    {
        return Comparison::matching(
            "the reported digest is that of the node's platform in the expected index",
        );
    }
    if let Some(index) = found
        && index.on(platform).any(|one| one.digest == *expected)
    {
        return Comparison::matching(
            "the expected digest is that of the node's platform in the reported index",
        );
    }
    if wanted.is_some_and(|index| index.holds(reported)) {
        return Comparison::differing(format!("the node holds the image of another platform: {reported}"));
    }
    let (wanted, found) = match (wanted, found) {
        (Some(wanted), Some(found)) => (wanted, found),
        // It is asked for again now and then, so that it is known when a registry has it after all.
        (Some(wanted), None) if contents.is_absent(reported) && !wanted.is_cut() => {
            let reason = format!("{}; no registry has {reported} that the image may be from", other());
            return Comparison { reads: vec![*reported], ..Comparison::differing(reason) };
        }
        _ => {
            let unread =
                [(expected, wanted), (reported, found)].into_iter().filter(|(_, read)| read.is_none());
            return Comparison::after(unread.map(|(digest, _)| *digest).collect());
        }
    };
    if wanted.on(platform).any(|one| found.on(platform).any(|of| of.digest == one.digest)) {
        Comparison::matching("both indexes hold the same image for the node's platform")
    } else if wanted.is_cut() || found.is_cut() {
        Comparison::unknown(TOO_LARGE)
    } else {
        Comparison::differing(other())
    }
}

/// An expected digest and a runtime's own name of an image.
fn by_id(expected: &Digest, id: &Digest, platform: Option<&Platform>, contents: &Contents) -> Comparison {
    let of_config =
        || Comparison::matching("the reported image ID is the configuration of the expected image");
    let other = || Comparison::differing(format!("the node holds image ID {id}, which is not of {expected}"));
    let artifact =
        || Comparison::unknown("an artifact without a configuration cannot be told by its image ID");
    match contents.get(expected) {
        None => Comparison::after(vec![*expected]),
        Some(Content::Image { config: None }) => artifact(),
        Some(Content::Image { config: Some(config) }) if config == id => of_config(),
        Some(Content::Image { .. }) => other(),
        Some(index @ Content::Index { .. }) => {
            let images: Vec<_> = index.on(platform).collect();
            if images.is_empty() {
                let on = platform.map_or_else(String::new, |platform| format!(" for {platform}"));
                return Comparison::unknown(format!("the expected index has no image{on}"));
            }
            // CRI-O names an artifact by its manifest.
            if images.iter().any(|one| one.digest == *id) {
                return Comparison::matching(
                    "the reported image ID is the manifest of the node's platform in the expected index",
                );
            }
            let read: Vec<_> = images.iter().map(|one| (one.digest, contents.get(&one.digest))).collect();
            let is_it = |content: &Content| *content == Content::Image { config: Some(*id) };
            if read.iter().any(|(_, content)| content.is_some_and(is_it)) {
                return of_config();
            }
            let unread: Vec<_> =
                read.iter().filter(|(_, content)| content.is_none()).map(|(digest, _)| *digest).collect();
            if !unread.is_empty() {
                return Comparison::after(unread);
            }
            let known =
                read.iter().any(|(_, content)| matches!(content, Some(Content::Image { config: Some(_) })));
            match known {
                true if index.is_cut() => Comparison::unknown(TOO_LARGE),
                true => other(),
                false => artifact(),
            }
        }
    }
}

/// What a node of a platform holds.
#[derive(Debug, Clone, Copy)]
pub(super) struct Held<'h> {
    pub(super) reported: &'h Reported,
    pub(super) platform: Option<&'h Platform>,
}

/// Tells whether two digests are different content, and which ones would have to be read for it.
pub(super) struct Judge<'c> {
    pub(super) contents: &'c Contents,
    /// Digests that will not be read.
    pub(super) given_up: &'c dyn Fn(&Digest) -> bool,
}

/// Whether two digests are different content; none: that is not known. Also the digests whose content would tell more,
/// given up or not.
pub(super) type Difference = (Option<bool>, Vec<Digest>);

impl Judge<'_> {
    /// Whether two nodes hold different content. Digests that will not be read count as different content only where
    /// they are of one class and of nodes of one platform.
    pub(super) fn between(&self, one: Held<'_>, other: Held<'_>) -> Difference {
        let (state, reads) = same(one, other, self.contents);
        let is_manifest = |held: Held<'_>| matches!(held.reported, Reported::Manifest { .. });
        let comparable = one.platform.is_some() && one.platform == other.platform;
        self.decide(state, reads, comparable && is_manifest(one) && is_manifest(other))
    }

    /// The same of two containers of one Pod, whose node is the same even where its platform is not known.
    pub(super) fn beside(&self, one: Held<'_>, other: Held<'_>) -> Difference {
        let (state, reads) = match (one.reported, other.reported) {
            (Reported::Id(id), Reported::Id(of)) if id != of => (State::Differing, Vec::new()),
            _ => same(one, other, self.contents),
        };
        let is_manifest = |held: Held<'_>| matches!(held.reported, Reported::Manifest { .. });
        self.decide(state, reads, is_manifest(one) && is_manifest(other))
    }

    /// Whether a node holds something else than a registry serves now. What the registry serves has to be known; what
    /// runs may be gone from there.
    pub(super) fn since(&self, now: &Digest, held: Held<'_>) -> Difference {
        let Comparison { state, reads, .. } = compare(now, held.reported, held.platform, self.contents);
        let is_manifest = matches!(held.reported, Reported::Manifest { .. });
        self.decide(state, reads, is_manifest && self.contents.get(now).is_some())
    }

    fn decide(&self, state: State, reads: Vec<Digest>, counts_unread: bool) -> Difference {
        let given_up = !reads.is_empty() && reads.iter().all(self.given_up);
        let differs = match state {
            State::Matching => Some(false),
            State::Differing => Some(true),
            State::Unknown => (given_up && counts_unread).then_some(true),
        };
        (differs, reads)
    }
}

/// Whether two nodes hold the same: a digest of one platform cannot be compared with that of another, unless an index
/// holds both.
fn same(one: Held<'_>, other: Held<'_>, contents: &Contents) -> (State, Vec<Digest>) {
    let one_platform = one.platform == other.platform;
    let against = |digest: &Digest, held: Held<'_>| {
        let compared = compare(digest, held.reported, held.platform, contents);
        (compared.state, compared.reads)
    };
    match (one.reported, other.reported) {
        (Reported::Manifest { digest, .. }, _) if one_platform => against(digest, other),
        (_, Reported::Manifest { digest, .. }) if one_platform => against(digest, one),
        // All artifacts without a configuration share one, and CRI-O may name the manifest of one.
        (Reported::Id(id), Reported::Id(of)) if id == of && !is_empty_config(id) => {
            (State::Matching, Vec::new())
        }
        (Reported::Id(id), Reported::Id(of)) if one_platform && one.platform.is_some() => {
            let told = !is_empty_config(id) && !is_empty_config(of);
            (if told { State::Differing } else { State::Unknown }, Vec::new())
        }
        (Reported::Manifest { digest, .. }, Reported::Manifest { digest: of, .. }) => {
            across_platforms(digest, of, contents)
        }
        _ => (State::Unknown, Vec::new()),
    }
}

/// Indexes name the same on every platform. Two images of different platforms may belong to one index.
fn across_platforms(one: &Digest, other: &Digest, contents: &Contents) -> (State, Vec<Digest>) {
    if one == other {
        return (State::Matching, Vec::new());
    }
    match (contents.get(one), contents.get(other)) {
        (None, _) => (State::Unknown, vec![*one]),
        (_, None) => (State::Unknown, vec![*other]),
        (Some(index), Some(of)) if index.holds(other) || of.holds(one) => (State::Matching, Vec::new()),
        (Some(one @ Content::Index { .. }), Some(other @ Content::Index { .. })) => {
            let all_known = !one.is_cut() && !other.is_cut();
            (if all_known { State::Differing } else { State::Unknown }, Vec::new())
        }
        _ => (State::Unknown, Vec::new()),
    }
}
