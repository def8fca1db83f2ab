//! What a node's router does with one request of the runtime: which mirrors it asks, in which order, and what it
//! answers if none of them serves.
//!
//! The router stands between a runtime whose files know whole registries only and the entries, which know repositories,
//! domains, digests and tags. It never leaves the mirrors of a source that must not be contacted.

use std::fmt;
use std::ops::Bound;
use std::time::Duration;

use fairlead_domain::digest::Digest;

use super::resolve::{Endpoint, EndpointState};
use super::route_memory::{Origin, Pull, RouteMemory};
use super::scope::host;
use super::{Closing, Entry, NodeConfig, PullKind, Scope};

/// Longest text of a refusal. It travels in a status line and ends up in an event.
const LONGEST_REFUSAL: usize = 700;

/// What a runtime asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted<'a> {
    /// The repository, with its registry, as images name it.
    pub name: &'a str,
    pub object: Object<'a>,
    /// The headers alone are asked for. A runtime that pulls by digest begins with that; one that pulls by tag does so
    /// for the tag only, and then asks for the content of digests.
    pub head: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Object<'a> {
    Tag(&'a str),
    Manifest(Digest),
    Blob(Digest),
}

impl Object<'_> {
    pub fn digest(&self) -> Option<Digest> {
        match self {
            Self::Tag(_) => None,
            Self::Manifest(digest) | Self::Blob(digest) => Some(*digest),
        }
    }
}

/// What a router does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// Asked one after another until one serves.
    pub places: Vec<Place>,
    /// What follows if none does.
    pub end: End,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The repository there: `host[:port]/path`.
    pub name: String,
    pub insecure: bool,
    /// The pulls that it is listed for.
    pub kind: PullKind,
    /// The source itself, which a list names before other mirrors.
    pub is_source: bool,
    /// It sent wrong content for what is asked for.
    pub is_spoiled: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// The runtime asks the source itself, with its own credentials.
    Source {
        insecure: bool,
    },
    Refuse(Refusal),
}

/// Why a source is not asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    name: String,
    scope: Scope,
    /// `None`: the list of blocked registries covers the scope.
    never: Option<Closing>,
    /// `None`: it is not known how the image is pulled.
    kind: Option<PullKind>,
}

/// A place that did not serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    pub place: String,
    pub why: String,
}

/// How the content of a mirror reaches the runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The runtime is sent to the mirror.
    Redirect,
    /// The router reads from the mirror and passes on.
    Proxy,
}

impl Delivery {
    /// A runtime gives the credentials of the source to every host that asks for some, and trusts only what the node
    /// trusts. So it is sent to a mirror only if that is permitted, and if the mirror asked the router for nothing.
    pub fn of(place: &Place, redirects: bool, wants_login: bool) -> Self {
        if redirects && !place.insecure && !wants_login { Self::Redirect } else { Self::Proxy }
    }
}

impl Place {
    pub fn host(&self) -> &str {
        host(&self.name)
    }

    /// What is said about this place after it was asked in vain.
    pub fn attempt(&self, why: &dyn fmt::Display) -> Attempt {
        let before = if self.is_spoiled { "; it sent wrong content before" } else { "" };
        Attempt { place: self.name.clone(), why: format!("{why}{before}") }
    }
}

impl NodeConfig {
    /// The route of a request that belongs to a pull.
    pub fn route(&self, wanted: &Wanted<'_>, pull: &Pull, memory: &RouteMemory, now: Duration) -> Route {
        let (name, digest) = (wanted.name, wanted.object.digest());
        let (mut places, source) = self.places(name, pull.kind);
        let insecure = source.as_ref().is_some_and(|source| source.insecure);
        let end = match source.map(|source| source.state) {
            Some(EndpointState::Closed { scope, .. }) => End::Refuse(self.refusal(name, scope, pull)),
            _ => End::Source { insecure },
        };
        let is_open = matches!(end, End::Source { .. });
        if is_open && pull.origin == Origin::Source {
            return Route { places: Vec::new(), end };
        }
        if !is_open && pull.is_guessed {
            // It may be a part of a tag that is pulled. Content has its digest wherever it comes from, so both kinds of
            // mirrors are asked before the pull fails.
            let known: Vec<String> = places.iter().map(|place| place.name.clone()).collect();
            let (others, _) = self.places(name, PullKind::Tag);
            places.extend(others.into_iter().filter(|other| !known.contains(&other.name)));
        }
        for place in &mut places {
            place.is_spoiled = digest.is_some_and(|digest| memory.is_spoiled(&place.name, digest, now));
        }
        let is_failing = |place: &Place| !place.is_source && memory.is_failing(place.host(), now);
        if is_open {
            places.retain(|place| !place.is_spoiled && !is_failing(place));
        }
        // Sorting is stable. What failed or sent wrong content is asked last where nothing else may be, and what served
        // this pull so far first.
        places.sort_by_key(|place| (place.is_spoiled, !pull.origin.is(&place.name), is_failing(place)));
        while places.pop_if(|place| is_open && place.is_source).is_some() {}
        Route { places, end }
    }

    /// The mirrors that may be asked for a repository, and its source.
    fn places(&self, name: &str, kind: PullKind) -> (Vec<Place>, Option<Endpoint>) {
        let (_, mut endpoints) = self.endpoints(name, kind, |entry| entry.is_closed_for(kind));
        let source = endpoints.pop();
        let asked = endpoints.into_iter().filter(|endpoint| endpoint.state == EndpointState::Asked);
        let places = asked.map(|Endpoint { image: name, insecure, is_source, .. }| Place {
            name,
            insecure,
            kind,
            is_source,
            is_spoiled: false,
        });
        (places.collect(), source)
    }

    /// Whether the files of a runtime that has a router lead to the router only, for images of this registry: some of
    /// it must not be contacted, and it has to stay closed while the router is not there. A registry without entries of
    /// its own shares one file with all others of its kind.
    pub fn leads_to_router_only(&self, registry: &str) -> bool {
        if self.entries_of(registry).next().is_none() {
            return self.domains().any(|(_, entry)| entry.is_closed());
        }
        let mut deciding = self.entries_of(registry).chain(self.entry_for(registry));
        deciding.any(|(_, entry)| entry.is_closed())
    }

    /// The entries of domains. No host begins with a star, so they stand together.
    pub fn domains(&self) -> impl Iterator<Item = (&Scope, &Entry)> {
        let from_first = self.entries.range::<str, _>((Bound::Included("*"), Bound::Unbounded));
        from_first.take_while(|(scope, _)| scope.domain().is_some())
    }

    /// Whether a router has a part in pulls from this registry, which has entries of its own.
    pub fn is_routed(&self, registry: &str) -> bool {
        self.entries_of(registry).any(|(_, entry)| entry.has_mirrors() || entry.is_closed())
    }

    /// Whether mirrors are named for every image of a registry, by digest and by tag, or all of it is closed.
    pub fn decides_all_of(&self, registry: &str) -> bool {
        let has_both = |entry: &Entry| !entry.digest.list.is_empty() && !entry.tag.list.is_empty();
        self.entry_for(registry).is_some_and(|(_, entry)| entry.is_closed() || has_both(entry))
    }

    /// The entries of a registry and of what lies in it.
    pub fn entries_of(&self, registry: &str) -> impl Iterator<Item = (&Scope, &Entry)> {
        let inside = self.entries.range::<str, _>((Bound::Included(registry), Bound::Unbounded));
        let inside = inside.take_while(move |(scope, _)| scope.as_str().starts_with(registry));
        inside.filter(move |(scope, _)| scope.host() == registry)
    }

    fn refusal(&self, name: &str, scope: Scope, pull: &Pull) -> Refusal {
        let never = self.entries.get(&scope).and_then(|entry| entry.mirrors(pull.kind).closed.clone());
        let kind = (!pull.is_guessed).then_some(pull.kind);
        Refusal { name: name.to_owned(), scope, never, kind }
    }
}

impl Refusal {
    /// The whole reason on one line of printable ASCII, the places that were asked in vain included.
    pub fn message(&self, attempts: &[Attempt]) -> String {
        let mut text = self.to_string();
        if attempts.is_empty() {
            text.push_str(match self.kind {
                Some(PullKind::Digest) => "; no mirror of it can be used for digests",
                Some(PullKind::Tag) => "; no mirror of it can be used for tags",
                None => "; no mirror of it can be used",
            });
        }
        for Attempt { place, why } in attempts {
            for piece in ["; ", place, ": ", why] {
                text.push_str(piece);
            }
        }
        let printable =
            text.chars().map(|letter| if letter == ' ' || letter.is_ascii_graphic() { letter } else { '?' });
        printable.take(LONGEST_REFUSAL).collect()
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, scope, never, .. } = self;
        let Some(Closing { source, by }) = never else {
            return write!(formatter, "{name} is not pulled: {scope} is a blocked registry");
        };
        write!(formatter, "{name} is not pulled from its source: NeverContactSource for {source}")?;
        match (by.first(), by.len()) {
            (None, _) => Ok(()),
            (Some(one), 1) => write!(formatter, " in {one}"),
            (Some(first), count) => write!(formatter, " in {first} and {} more", count - 1),
        }
    }
}
