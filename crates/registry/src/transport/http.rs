//! HTTP over a pool of connections.
//!
//! Pool and protocol are hyper's, used directly because only then can the read buffer of a connection be limited. These
//! buffers are most of the memory of a copy of many images.

use std::error::Error as StdError;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use std::{fmt, io};

use bytes::Bytes;
use futures::{Stream, TryStreamExt as _};
use hyper::body::{Body as _, Frame, Incoming, SizeHint};
use hyper::header::{ACCEPT, HeaderValue, PROXY_AUTHORIZATION, USER_AGENT};
use hyper::http::response::Parts;
use hyper::{HeaderMap, Method, StatusCode, Uri};
use hyper_util::client::legacy;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::time::Instant;
use url::Url;

use super::address::Reach;
use super::connect::{Connector, Opened, Route};
use super::failure::Failure;

/// How long an unused connection is kept: long enough for the next round of the availability watch.
const IDLE_TIMEOUT: Duration = Duration::from_secs(90);
/// HTTP/2 pings. All requests share one connection, so one that was lost unnoticed (a changed route, a firewall) would
/// make the registry look dead until the operating system notices. Sent only while a request is open and nothing
/// arrives.
const PING_AFTER: Duration = Duration::from_secs(3);
const PING_TIMEOUT: Duration = Duration::from_secs(3);
/// Registries send a handful of headers.
const MOST_HEADERS: usize = 128;
const LONGEST_HEADER_LIST: u32 = 64 * 1024;
/// The read buffer of an HTTP/1 connection; also limits the head of a response. With three times as much, a list of
/// images takes ten mebibytes more; with half as much, large layers take a tenth longer.
const READ_AT_ONCE: usize = 128 * 1024;
/// HTTP/2 windows. They cost memory if we read slowly, and allow speed if the registry is far away: four mebibytes are
/// forty megabytes a second at a latency of a tenth of a second.
const STREAM_WINDOW: u32 = 1024 * 1024;
const CONNECTION_WINDOW: u32 = 4 * 1024 * 1024;
/// The send buffer of one request of an HTTP/2 connection.
const UNSENT: usize = 128 * 1024;
/// How often a request is repeated that the server did not process.
const MOST_REFUSALS: u32 = 3;

/// A pool of connections. Clones share them.
#[derive(Clone)]
pub struct Pool {
    client: legacy::Client<Connector, Body>,
    connector: Connector,
    user_agent: HeaderValue,
}

impl Pool {
    /// A pool that keeps up to `idle` unused connections per host.
    pub fn new(connector: Connector, user_agent: HeaderValue, idle: usize) -> Self {
        let client = legacy::Client::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_TIMEOUT)
            .pool_max_idle_per_host(idle)
            .http1_max_buf_size(READ_AT_ONCE)
            .http1_max_headers(MOST_HEADERS)
            .http2_keep_alive_interval(PING_AFTER)
            .http2_keep_alive_timeout(PING_TIMEOUT)
            .http2_initial_stream_window_size(STREAM_WINDOW)
            .http2_initial_connection_window_size(CONNECTION_WINDOW)
            .http2_max_send_buf_size(UNSENT)
            .http2_max_header_list_size(LONGEST_HEADER_LIST)
            .build(connector.clone());
        Self { client, connector, user_agent }
    }

    /// A pool without reuse: every request uses a new connection, which is closed afterwards.
    #[must_use]
    pub fn unpooled(&self) -> Self {
        Self::new(self.connector.clone(), self.user_agent.clone(), 0)
    }

    /// Sends a request. Redirects are not followed, because each needs a decision.
    pub async fn send(&self, request: Request) -> Result<Response, Failure> {
        let Request { method, url, mut headers, body } = request;
        let uri: Uri = url
            .as_str()
            .parse()
            .map_err(|error| Failure::Malformed(format!("its address cannot be asked for: {error}")))?;
        headers.entry(ACCEPT).or_insert(HeaderValue::from_static("*/*"));
        headers.entry(USER_AGENT).or_insert_with(|| self.user_agent.clone());
        if let Some(authorization) = self.connector.authorization_for(&uri) {
            headers.insert(PROXY_AUTHORIZATION, authorization);
        }
        let mut refusals = 0;
        let mut body = Some(body);
        loop {
            let again = body.as_ref().and_then(Body::again);
            let mut request = hyper::Request::new(body.take().unwrap_or_default());
            *request.method_mut() = method.clone();
            *request.uri_mut() = uri.clone();
            headers.clone_into(request.headers_mut());
            match self.client.request(request).await {
                Ok(response) => return Ok(Response::new(url, response)),
                Err(error) if again.is_some() && refusals < MOST_REFUSALS && was_not_processed(&error) => {
                    refusals += 1;
                    body = again;
                }
                Err(error) => return Err(Failure::of(&error)),
            }
        }
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").finish_non_exhaustive()
    }
}

/// Whether the server did not process a request. An HTTP/2 server says so when it wants a new connection, which some
/// want every thousand requests, or when it receives too many requests at once.
fn was_not_processed(error: &legacy::Error) -> bool {
    let mut cause = error.source();
    while let Some(current) = cause {
        if let Some(error) = current.downcast_ref::<h2::Error>() {
            let reason = error.reason();
            return error.is_remote()
                && (error.is_go_away() && reason == Some(h2::Reason::NO_ERROR)
                    || error.is_reset() && reason == Some(h2::Reason::REFUSED_STREAM));
        }
        cause = current.source();
    }
    false
}

#[derive(Debug)]
pub struct Request {
    pub method: Method,
    pub url: Url,
    pub headers: HeaderMap,
    pub body: Body,
}

impl Request {
    pub fn new(method: Method, url: Url) -> Self {
        Self { method, url, headers: HeaderMap::new(), body: Body::default() }
    }
}

/// The body of a request.
#[derive(Default)]
pub struct Body(BodyContent);

#[derive(Default)]
enum BodyContent {
    #[default]
    Nothing,
    Bytes(Bytes),
    Stream(Pin<Box<dyn Stream<Item = io::Result<Bytes>> + Send>>),
}

impl Body {
    /// A stream. Its length must be stated in a header.
    pub fn stream(pieces: impl Stream<Item = io::Result<Bytes>> + Send + 'static) -> Self {
        Self(BodyContent::Stream(Box::pin(pieces)))
    }

    /// The same body again, if it can be repeated.
    fn again(&self) -> Option<Self> {
        match &self.0 {
            BodyContent::Nothing => Some(Self(BodyContent::Nothing)),
            BodyContent::Bytes(bytes) => Some(Self(BodyContent::Bytes(bytes.clone()))),
            BodyContent::Stream(_) => None,
        }
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Self {
        if bytes.is_empty() { Self::default() } else { Self(BodyContent::Bytes(bytes)) }
    }
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        if let BodyContent::Stream(pieces) = &mut self.0 {
            return Poll::Ready(ready!(pieces.try_poll_next_unpin(cx)).map(|piece| piece.map(Frame::data)));
        }
        Poll::Ready(match std::mem::take(&mut self.0) {
            BodyContent::Bytes(bytes) => Some(Ok(Frame::data(bytes))),
            BodyContent::Nothing | BodyContent::Stream(_) => None,
        })
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.0, BodyContent::Nothing)
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            BodyContent::Nothing => SizeHint::with_exact(0),
            BodyContent::Bytes(bytes) => SizeHint::with_exact(bytes.len() as u64),
            BodyContent::Stream(_) => SizeHint::default(),
        }
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            BodyContent::Nothing => "Nothing",
            BodyContent::Bytes(_) => "Bytes",
            BodyContent::Stream(_) => "Stream",
        })
    }
}

/// A response whose body has not been read yet.
#[derive(Debug)]
pub struct Response {
    url: Url,
    head: Parts,
    body: Incoming,
}

impl Response {
    fn new(url: Url, response: hyper::Response<Incoming>) -> Self {
        let (head, body) = response.into_parts();
        Self { url, head, body }
    }

    pub fn url(&self) -> &Url {
        &self.url
    }

    pub fn status(&self) -> StatusCode {
        self.head.status
    }

    pub fn headers(&self) -> &HeaderMap {
        &self.head.headers
    }

    /// The address class of the host, unless there was a proxy in between.
    pub fn reach(&self) -> Option<Reach> {
        match self.head.extensions.get()? {
            Route::Direct(reach) => *reach,
            Route::Forwarded | Route::Tunnelled => None,
        }
    }

    /// When its connection was opened.
    pub fn opened(&self) -> Option<Instant> {
        self.head.extensions.get::<Opened>().map(|opened| opened.0)
    }

    /// The next piece of the body, `None` at its end.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, Failure> {
        loop {
            let frame = std::future::poll_fn(|cx| Pin::new(&mut self.body).poll_frame(cx)).await;
            match frame.transpose().map_err(|error| Failure::of(&error))? {
                None => return Ok(None),
                // Trailers are ignored.
                Some(frame) => {
                    if let Ok(piece) = frame.into_data() {
                        return Ok(Some(piece));
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
