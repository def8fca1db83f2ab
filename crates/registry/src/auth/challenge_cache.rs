//! What a registry's challenges taught.
//!
//! The first request to a registry goes out bare and comes back with a challenge. From then on requests come prepared, so
//! a probe costs one round trip, not three. A registry that changes its mind simply challenges again; one that wants
//! different things for different repositories is asked bare where what was brought along does not do.

use url::Url;

use super::challenge::Bearer;
use super::scope::{Scope, combined};
use crate::lru::LruMap;
use crate::transport::address::Reach;
use crate::transport::redirect::Target;

/// Most repositories whose name in tokens is remembered to differ from ours.
const MOST_NAMES: usize = 4096;

/// How a registry wants to be told who we are.
#[derive(Clone, Debug)]
pub(crate) enum Scheme {
    Basic,
    Bearer(TokenServer),
}

/// Where tokens come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TokenServer {
    pub(crate) url: Url,
    /// Whether it is the registry itself.
    pub(crate) at_home: bool,
    /// The neighbourhood of the registry that named it.
    pub(crate) reach: Option<Reach>,
    pub(crate) service: Option<String>,
}

#[derive(Debug)]
pub(crate) struct ChallengeCache {
    scheme: Option<Scheme>,
    is_open: bool,
    /// The scope a challenge named, by the scope we had in mind.
    names: LruMap<Scope, String>,
}

impl Default for ChallengeCache {
    fn default() -> Self {
        Self { scheme: None, is_open: false, names: LruMap::new(MOST_NAMES) }
    }
}

impl ChallengeCache {
    pub(crate) fn scheme(&self) -> Option<Scheme> {
        self.scheme.clone()
    }

    pub(crate) fn learn_basic(&mut self) {
        self.scheme = Some(Scheme::Basic);
    }

    /// Takes note that the registry has nothing to ask before it is known what for.
    pub(crate) fn learn_open(&mut self) {
        self.is_open = true;
    }

    /// Whether the registry may want to know who we are without ever having said so.
    pub(crate) fn may_hide_its_wish(&self) -> bool {
        self.scheme.is_none() && !self.is_open
    }

    pub(crate) fn learn_bearer(
        &mut self,
        target: Target,
        reach: Option<Reach>,
        bearer: &Bearer,
        wanted: &[Scope],
    ) -> TokenServer {
        let server =
            TokenServer { url: target.url, at_home: target.at_home, reach, service: bearer.service.clone() };
        self.scheme = Some(Scheme::Bearer(server.clone()));
        if let (Some(named), Some(first)) = (&bearer.scope, wanted.first())
            && combined(wanted, Some(named)) != combined(wanted, None)
        {
            self.names.insert(first.clone(), named.clone());
        }
        server
    }

    /// The scopes to ask a token for, in the registry's own words where they are known.
    pub(crate) fn scopes(&mut self, wanted: &[Scope]) -> Vec<Scope> {
        let named = wanted.first().and_then(|first| self.names.get(first)).cloned();
        combined(wanted, named.as_deref())
    }
}
