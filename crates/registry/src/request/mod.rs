//! One HTTP exchange with a registry: building the request, sending it within the limits, reading the response.

pub(crate) mod context;
pub(crate) mod pagination;
pub(crate) mod response;
pub(crate) mod send;

use bytes::Bytes;
use hyper::header::AUTHORIZATION;
use hyper::{HeaderMap, Method};
use parking_lot::Mutex;

use crate::auth::Authorization;
use crate::auth::scope::Scope;
use crate::error::Problem;
use crate::limits::retry;
use crate::transport::address::Reach;
use crate::transport::http::{Body, Request};
use crate::transport::redirect::Target;

/// A request to a registry. It can be sent more than once unless its body is a stream.
#[derive(Debug)]
pub(crate) struct ApiRequest {
    pub(crate) method: Method,
    pub(crate) target: RequestTarget,
    pub(crate) headers: HeaderMap,
    /// A right that is needed besides those of the repository.
    pub(crate) extra_scope: Option<Scope>,
    /// Sending it twice does no harm, whatever its method.
    pub(crate) is_harmless: bool,
    payload: Payload,
}

#[derive(Debug)]
pub(crate) enum RequestTarget {
    /// A path under the registry's API.
    Api(String),
    Location(CheckedLocation),
}

/// An address from an answer, after [`redirect::follow`](crate::transport::redirect::follow) accepted it.
#[derive(Clone, Debug)]
pub(crate) struct CheckedLocation {
    pub(crate) target: Target,
    pub(crate) reach: Option<Reach>,
}

#[derive(Debug)]
enum Payload {
    Bytes(Bytes),
    Stream(Mutex<Option<Body>>),
}

impl ApiRequest {
    pub(crate) fn api(method: Method, path: String) -> Self {
        Self::to(method, RequestTarget::Api(path))
    }

    pub(crate) fn location(method: Method, location: CheckedLocation) -> Self {
        Self::to(method, RequestTarget::Location(location))
    }

    fn to(method: Method, target: RequestTarget) -> Self {
        let payload = Payload::Bytes(Bytes::new());
        Self { method, target, headers: HeaderMap::new(), extra_scope: None, is_harmless: false, payload }
    }

    pub(crate) fn with_bytes(mut self, bytes: Bytes) -> Self {
        self.payload = Payload::Bytes(bytes);
        self
    }

    pub(crate) fn with_stream(mut self, body: Body) -> Self {
        self.payload = Payload::Stream(Mutex::new(Some(body)));
        self
    }

    /// Whether it may be sent again after a failure that leaves open whether it arrived.
    pub(crate) fn may_be_retried(&self) -> bool {
        self.is_repeatable() && (self.is_harmless || retry::is_idempotent(&self.method))
    }

    pub(crate) fn is_repeatable(&self) -> bool {
        matches!(self.payload, Payload::Bytes(_))
    }

    pub(crate) fn is_read(&self) -> bool {
        matches!(self.method, Method::GET | Method::HEAD)
    }

    /// The HTTP request to an address. Credentials go to the registry itself only.
    pub(crate) fn build(&self, target: &Target, authorization: &Authorization) -> Result<Request, Problem> {
        let mut request = Request::new(self.method.clone(), target.url.clone());
        request.headers.clone_from(&self.headers);
        if target.at_home
            && let Some(header) = authorization.header()
        {
            request.headers.insert(AUTHORIZATION, header.clone());
        }
        request.body = match &self.payload {
            Payload::Bytes(bytes) => bytes.clone().into(),
            Payload::Stream(body) => {
                let body = body.lock().take();
                body.ok_or_else(|| Problem::Unreachable("a stream cannot be sent twice".into()))?
            }
        };
        Ok(request)
    }
}
