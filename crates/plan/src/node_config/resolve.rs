//! Which places a runtime asks for an image, in order.

use fairlead_domain::reference::Reference;

use super::{Entry, NodeConfig, PullKind, Scope};

/// What becomes of one image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resolution {
    pub kind: PullKind,
    /// The entry that counts; without one, the image comes from its own registry.
    pub scope: Option<Scope>,
    pub endpoints: Vec<Endpoint>,
}

/// One place that is asked, or would be if it were allowed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// What is asked for there.
    pub image: String,
    pub is_source: bool,
    pub insecure: bool,
    pub state: EndpointState,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndpointState {
    /// It is asked if everything before it has failed.
    Asked,
    /// It is not asked, because it lies in a scope that must not be contacted.
    Closed { scope: Scope, never: bool },
    /// The image has no full name at the mirror: see [`super::Location::is_repository`].
    NoName,
    /// The files of the runtime leave it out.
    LeftOut,
    /// The files of the runtime close it because of another scope.
    ClosedByFile,
    /// The runtime keeps the port of the image after a mirror, which leaves no name, and gives up the whole pull.
    GivenUp,
}

impl NodeConfig {
    /// The places for an image, in the order in which they are tried, where a source is closed for all pulls or none.
    pub fn resolve(&self, image: &Reference) -> Resolution {
        self.resolve_by(image, |entry, _| entry.is_closed())
    }

    /// The same where digests and tags are told apart.
    pub fn resolve_by_kind(&self, image: &Reference) -> Resolution {
        self.resolve_by(image, Entry::is_closed_for)
    }

    fn resolve_by(&self, image: &Reference, is_closed: impl Fn(&Entry, PullKind) -> bool) -> Resolution {
        let kind = if image.digest().is_some() { PullKind::Digest } else { PullKind::Tag };
        let name = image.name();
        let wanted = image.as_str().get(name.len()..).unwrap_or_default();
        let (scope, mut endpoints) = self.endpoints(name, kind, |entry| is_closed(entry, kind));
        for endpoint in &mut endpoints {
            endpoint.image.push_str(wanted);
        }
        Resolution { kind, scope: scope.cloned(), endpoints }
    }

    /// The places for a repository, without tag and digest. The source comes last.
    pub(super) fn endpoints(
        &self,
        name: &str,
        kind: PullKind,
        is_closed: impl Fn(&Entry) -> bool,
    ) -> (Option<&Scope>, Vec<Endpoint>) {
        let found = self.entry_for(name);
        let mut endpoints = Vec::new();
        if let Some((scope, entry)) = found {
            for mirror in &entry.mirrors(kind).list {
                let place = mirror.location.join(scope.suffix(name));
                let state = if place.is_repository() {
                    self.state(place.as_str(), &is_closed)
                } else {
                    EndpointState::NoName
                };
                let is_source = place.as_str() == name;
                let image = place.as_str().to_owned();
                endpoints.push(Endpoint { image, is_source, insecure: mirror.insecure, state });
            }
        }
        let insecure = found.is_some_and(|(_, entry)| entry.insecure);
        let (image, state) = (name.to_owned(), self.state(name, &is_closed));
        endpoints.push(Endpoint { image, is_source: true, insecure, state });
        (found.map(|(scope, _)| scope), endpoints)
    }

    /// Runtimes look every place up again before they contact it.
    fn state(&self, place: &str, is_closed: &impl Fn(&Entry) -> bool) -> EndpointState {
        match self.entry_for(place) {
            Some((scope, entry)) if is_closed(entry) => {
                EndpointState::Closed { scope: scope.clone(), never: entry.never }
            }
            _ => EndpointState::Asked,
        }
    }
}
