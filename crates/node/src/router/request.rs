//! What a runtime asks for, read from the address of its request.

use axum::http::{Method, Uri};
use fairlead_domain::digest::Digest;
use fairlead_domain::reference::{Reference, Tag};
use fairlead_plan::node_config::{Object, Wanted};
use thiserror::Error;
use url::form_urlencoded;

/// A request for content: `/v2/<repository>/(manifests|blobs)/<reference>?ns=<registry>`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Asked {
    /// Registry and repository, as images name them.
    pub(super) name: String,
    pub(super) registry: String,
    pub(super) object: AskedObject,
    pub(super) head: bool,
    /// Path of the request; the same at the source.
    pub(super) path: String,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum AskedObject {
    Tag(Tag),
    Manifest(Digest),
    Blob(Digest),
}

#[derive(Debug, PartialEq, Eq, Error)]
pub(super) enum RequestError {
    #[error("only GET and HEAD are answered")]
    Method,
    #[error(
        "there is nothing at this address: /v2/REPOSITORY/manifests/REFERENCE and /v2/REPOSITORY/blobs/DIGEST are"
    )]
    Address,
    #[error("the parameter ns is missing, which names the registry of the image")]
    NoRegistry,
    #[error("{0}")]
    Name(String),
}

impl Asked {
    /// `None` for the address that runtimes ask whether this is a registry at all.
    pub(super) fn read(method: &Method, uri: &Uri) -> Result<Option<Self>, RequestError> {
        let head = match *method {
            Method::GET => false,
            Method::HEAD => true,
            _ => return Err(RequestError::Method),
        };
        let path = uri.path();
        let rest = path.strip_prefix("/v2/").ok_or(RequestError::Address)?;
        if rest.is_empty() {
            return Ok(None);
        }
        let (rest, reference) = rest.rsplit_once('/').ok_or(RequestError::Address)?;
        let (repository, kind) = rest.rsplit_once('/').ok_or(RequestError::Address)?;
        let registry = registry(uri)?;
        let name = format!("{registry}/{repository}");
        // Runtimes send names in full. Another name than the one that was sent would be looked up for another image.
        let is_name = |parsed: Reference| {
            parsed.name() == name && parsed.as_str() == name && parsed.host().as_str() == registry
        };
        if !Reference::parse(&name).is_ok_and(is_name) {
            return Err(RequestError::Name(format!("{name:?} is not the full name of a repository")));
        }
        let object = match kind {
            "blobs" => AskedObject::Blob(digest(reference)?),
            "manifests" if reference.contains(':') => AskedObject::Manifest(digest(reference)?),
            "manifests" => AskedObject::Tag(
                Tag::parse(reference).map_err(|error| RequestError::Name(error.to_string()))?,
            ),
            _ => return Err(RequestError::Address),
        };
        Ok(Some(Self { name, registry, object, head, path: path.to_owned() }))
    }

    pub(super) fn wanted(&self) -> Wanted<'_> {
        let object = match &self.object {
            AskedObject::Tag(tag) => Object::Tag(tag.as_str()),
            AskedObject::Manifest(digest) => Object::Manifest(*digest),
            AskedObject::Blob(digest) => Object::Blob(*digest),
        };
        Wanted { name: &self.name, object, head: self.head }
    }
}

fn registry(uri: &Uri) -> Result<String, RequestError> {
    let query = uri.query().unwrap_or_default();
    let mut parameters = form_urlencoded::parse(query.as_bytes());
    let registry = parameters.find(|(name, _)| name == "ns").map(|(_, value)| value.into_owned());
    registry.filter(|registry| !registry.is_empty()).ok_or(RequestError::NoRegistry)
}

fn digest(text: &str) -> Result<Digest, RequestError> {
    text.parse().map_err(|_| RequestError::Name(format!("{text:?} is not a digest")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    fn read(address: &str) -> Result<Option<Asked>, RequestError> {
        Asked::read(&Method::HEAD, &address.parse().unwrap())
    }

    #[test]
    fn names_and_objects_are_read() {
        let asked = read("/v2/team/app/manifests/1.0?ns=hub.test%3A5000").unwrap().unwrap();
        assert_eq!(
            (asked.name.as_str(), asked.registry.as_str()),
            ("hub.test:5000/team/app", "hub.test:5000")
        );
        assert!(matches!(asked.wanted().object, Object::Tag("1.0")));
        let asked = read(&format!("/v2/library/nginx/manifests/{DIGEST}?x=y&ns=docker.io")).unwrap().unwrap();
        assert_eq!(asked.name, "docker.io/library/nginx");
        assert!(matches!(asked.wanted().object, Object::Manifest(_)));
        // A repository may be called like a part of the address.
        let asked = read(&format!("/v2/manifests/blobs/blobs/{DIGEST}?ns=hub.test")).unwrap().unwrap();
        assert_eq!(asked.name, "hub.test/manifests/blobs");
        assert!(matches!(asked.wanted().object, Object::Blob(_)));
        assert_eq!(read("/v2/?ns=hub.test"), Ok(None));
    }

    #[test]
    fn what_is_not_a_request_for_content_is_refused() {
        for address in [
            "/",
            "/v2/app/tags/list?ns=hub.test",
            "/v2/manifests/1?ns=hub.test",
            "/v2/app/manifests/1",
            "/v2/app/manifests/1?ns=",
            "/v2/app/manifests/a%20b?ns=hub.test",
            "/v2/app/blobs/1?ns=hub.test",
            "/v2/app/manifests/sha256:abc?ns=hub.test",
            // These would be completed to names of other images.
            "/v2/app/manifests/1?ns=library",
            "/v2/nginx/manifests/1?ns=docker.io",
            "/v2/../secret/manifests/1?ns=hub.test",
            "/v2/app/manifests/1?ns=hub.test/other",
            "/v2/app/manifests/1?ns=user@hub.test",
            "/v2/app:1/manifests/1?ns=hub.test",
        ] {
            let read = read(address);
            assert!(read.is_err(), "{address}: {read:?}");
        }
        let address = "/v2/app/manifests/1?ns=hub.test".parse().unwrap();
        assert_eq!(Asked::read(&Method::DELETE, &address), Err(RequestError::Method));
    }
}
