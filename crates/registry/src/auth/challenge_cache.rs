//! What a registry's challenges taught.
//!
//! The first request to a registry is anonymous and comes back with a challenge. From then on requests are prepared, so
//! a probe costs one round trip instead of three. A registry that changes its mind challenges again. Where a registry
//! wants different things for different repositories, a request whose preparation fails is repeated anonymously.

use url::Url;

use super::challenge::Bearer;
use super::scope::{Scope, combined};
use crate::lru::LruCache;
use crate::transport::address::Reach;
use crate::transport::redirect::Target;

/// Most repositories whose scope in tokens is remembered to differ from ours.
const MOST_SCOPES: usize = 4096;

/// How a registry authenticates its clients.
#[derive(Clone, Debug)]
pub(crate) enum Scheme {
    Basic,
    Bearer(TokenServer),
}

/// Where tokens come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TokenServer {
    pub(crate) url: Url,
    /// It is the registry itself.
    pub(crate) at_home: bool,
    /// The address class of the registry that named it.
    pub(crate) reach: Option<Reach>,
    pub(crate) service: Option<String>,
}

#[derive(Debug)]
pub(crate) struct ChallengeCache {
    scheme: Option<Scheme>,
    /// `/v2/` was answered without a challenge.
    is_open: bool,
    /// The scope a challenge named, by the scope that we would have asked for.
    scopes: LruCache<Scope, String>,
}

impl Default for ChallengeCache {
    fn default() -> Self {
        Self { scheme: None, is_open: false, scopes: LruCache::new(MOST_SCOPES) }
    }
}

impl ChallengeCache {
    pub(crate) fn scheme(&self) -> Option<Scheme> {
        self.scheme.clone()
    }

    pub(crate) fn learn_basic(&mut self) {
        self.scheme = Some(Scheme::Basic);
    }

    /// Records that `/v2/` was answered without a challenge.
    pub(crate) fn learn_open(&mut self) {
        self.is_open = true;
    }

    /// Whether the registry may require authentication although it has not challenged yet.
    pub(crate) fn may_be_hidden(&self) -> bool {
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
            self.scopes.insert(first.clone(), named.clone());
        }
        server
    }

    /// The scopes to request a token for, as the registry names them where that is known.
    pub(crate) fn scopes(&self, wanted: &[Scope]) -> Vec<Scope> {
        let named = wanted.first().and_then(|first| self.scopes.get(first));
        combined(wanted, named.as_deref())
    }
}
