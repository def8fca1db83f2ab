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

/// A request in the making. It can be sent more than once unless its body is a stream.
#[derive(Debug)]
pub(crate) struct ApiRequest {
    method: Method,
    target: RequestTarget,
    headers: HeaderMap,
    payload: Payload,
    extra: Option<Scope>,
    harmless: bool,
}

#[derive(Debug)]
pub(crate) enum RequestTarget {
    /// Under the registry's API.
    Api(String),
    /// Where an answer pointed to.
    Pointed(CheckedLocation),
}

/// An address from an answer, after it was found acceptable.
#[derive(Clone, Debug)]
pub(crate) struct CheckedLocation {
    pub(crate) target: Target,
    pub(crate) reach: Option<Reach>,
}

#[derive(Debug)]
enum Payload {
    Nothing,
    Bytes(Bytes),
    Stream(Mutex<Option<Body>>),
}

impl ApiRequest {
    pub(crate) fn api(method: Method, path: String) -> Self {
        Self {
            method,
            target: RequestTarget::Api(path),
            headers: HeaderMap::new(),
            payload: Payload::Nothing,
            extra: None,
            harmless: false,
        }
    }

    pub(crate) fn pointed(method: Method, pointer: CheckedLocation) -> Self {
        Self { target: RequestTarget::Pointed(pointer), ..Self::api(method, String::new()) }
    }

    pub(crate) fn headers_mut(&mut self) -> &mut HeaderMap {
        &mut self.headers
    }

    pub(crate) fn with_bytes(mut self, bytes: Bytes) -> Self {
        self.payload = Payload::Bytes(bytes);
        self
    }

    pub(crate) fn with_stream(mut self, body: Body) -> Self {
        self.payload = Payload::Stream(Mutex::new(Some(body)));
        self
    }

    /// Asks for another right beside those of the repository.
    pub(crate) fn with_scope(mut self, scope: Scope) -> Self {
        self.extra = Some(scope);
        self
    }

    pub(crate) fn method(&self) -> &Method {
        &self.method
    }

    pub(crate) fn target(&self) -> &RequestTarget {
        &self.target
    }

    pub(crate) fn extra_scope(&self) -> Option<Scope> {
        self.extra.clone()
    }

    /// Says that sending it twice does no harm, whatever its method suggests.
    pub(crate) fn harmless(mut self) -> Self {
        self.harmless = true;
        self
    }

    /// Whether it may be sent again after a failure that leaves open whether it arrived.
    pub(crate) fn may_be_retried(&self) -> bool {
        self.is_repeatable() && (self.harmless || retry::is_repeatable(&self.method))
    }

    pub(crate) fn is_repeatable(&self) -> bool {
        !matches!(self.payload, Payload::Stream(_))
    }

    pub(crate) fn request(&self, target: &Target, authorization: &Authorization) -> Result<Request, Problem> {
        let mut request = Request::new(self.method.clone(), target.url.clone());
        request.headers.clone_from(&self.headers);
        if target.at_home
            && let Some(header) = authorization.header()
        {
            request.headers.insert(AUTHORIZATION, header.clone());
        }
        request.body = match &self.payload {
            Payload::Nothing => Body::default(),
            Payload::Bytes(bytes) => bytes.clone().into(),
            Payload::Stream(body) => {
                let body = body.lock().take();
                body.ok_or_else(|| Problem::Unreachable("a stream cannot be sent twice".into()))?
            }
        };
        Ok(request)
    }
}
