//! Requests out, answers in, over a pool of connections.
//!
//! Pool and protocol are hyper's. It is used without a layer above it because only so can be said how much a connection may
//! read at a time: what it once read at a time it keeps room for, and room for every connection is most of what a copy of
//! many images takes.

use std::error::Error as StdError;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
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
use tokio::sync::Notify;
use tokio::time::Instant;
use url::Url;

use super::address::Reach;
use super::connect::{Connector, Opened, Way};
use super::failure::Failure;

/// Connections are kept for the next round of the watch's busier registries, but not for ever.
const IDLE_TIMEOUT: Duration = Duration::from_secs(90);
/// All requests share one HTTP/2 connection, so one that was lost unnoticed (a route that changed, a firewall that forgot
/// it) would make the registry look dead for as long as the operating system believes in it. A ping goes out only while
/// a request is open and nothing has come for this long.
const PING_AFTER: Duration = Duration::from_secs(3);
const PING_TIMEOUT: Duration = Duration::from_secs(3);
/// Registries send a handful of headers; more is an attack on memory.
const MOST_HEADERS: usize = 128;
const LONGEST_HEADER_LIST: u32 = 64 * 1024;
/// What an HTTP/1 connection reads at a time; it also bounds the head of an answer. With three times as much, a list
/// of images takes ten mebibytes more; with half as much, large layers take a tenth longer.
const READ_AT_ONCE: usize = 128 * 1024;
/// What may be on its way to us unread, in one answer and in all answers of one HTTP/2 connection. It is memory if we are
/// slow, and speed if the registry is far away: four mebibytes are forty megabytes a second at a tenth of a second.
const STREAM_WINDOW: u32 = 1024 * 1024;
const CONNECTION_WINDOW: u32 = 4 * 1024 * 1024;
/// What may wait to be sent in one request of an HTTP/2 connection. The operating system keeps more than that on the way.
const UNSENT: usize = 128 * 1024;
/// Preliminary answers to one request. Registries send one at most; without end they would keep a thread busy.
const MOST_PRELIMINARY: u32 = 32;
/// How often a request is sent again that a server says it has not begun to look at.
const MOST_REFUSALS: u32 = 3;

/// Connections to one or several hosts, kept for the next request. Clones share them.
#[derive(Clone)]
pub struct Pool {
    client: legacy::Client<Connector, Body>,
    connector: Connector,
    user_agent: HeaderValue,
}

impl Pool {
    /// A pool that keeps so many connections to a host which nobody uses.
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

    /// The same without reuse: every request goes over a new connection, which is closed after its answer.
    #[must_use]
    pub fn unpooled(&self) -> Self {
        Self::new(self.connector.clone(), self.user_agent.clone(), 0)
    }

    /// Sends a request. Redirects are not followed: that takes a decision about each.
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
            let preliminary = Preliminary::of(&mut request);
            let answer = tokio::select! {
                answer = self.client.request(request) => answer,
                () = preliminary.exceeded.notified() => {
                    return Err(Failure::Malformed("it sends one preliminary answer after the other".to_owned()));
                }
            };
            match answer {
                Ok(response) => return Ok(Response::new(url, response)),
                Err(error) if again.is_some() && refusals < MOST_REFUSALS && was_left_alone(&error) => {
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

/// Counts what a server sends before it answers.
#[derive(Default)]
struct Preliminary {
    seen: AtomicU32,
    exceeded: Notify,
}

impl Preliminary {
    fn of(request: &mut hyper::Request<Body>) -> Arc<Self> {
        let counter = Arc::new(Self::default());
        let counting = Arc::clone(&counter);
        hyper::ext::on_informational(request, move |_| {
            if counting.seen.fetch_add(1, Ordering::Relaxed) == MOST_PRELIMINARY {
                counting.exceeded.notify_one();
            }
        });
        counter
    }
}

/// Whether the server has said that it did nothing about a request. A server of HTTP/2 does so when it wants a new
/// connection, which some want every thousand requests, or when it is sent too much at once.
fn was_left_alone(error: &legacy::Error) -> bool {
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
pub struct Body(Content);

#[derive(Default)]
enum Content {
    #[default]
    Nothing,
    Bytes(Bytes),
    Stream(Pin<Box<dyn Stream<Item = io::Result<Bytes>> + Send>>),
}

impl Body {
    /// What comes bit by bit. How long it is must be said in a header.
    pub fn stream(pieces: impl Stream<Item = io::Result<Bytes>> + Send + 'static) -> Self {
        Self(Content::Stream(Box::pin(pieces)))
    }

    /// The same body once more, if there is a second of it.
    fn again(&self) -> Option<Self> {
        match &self.0 {
            Content::Nothing => Some(Self(Content::Nothing)),
            Content::Bytes(bytes) => Some(Self(Content::Bytes(bytes.clone()))),
            Content::Stream(_) => None,
        }
    }
}

impl From<Bytes> for Body {
    fn from(bytes: Bytes) -> Self {
        if bytes.is_empty() { Self::default() } else { Self(Content::Bytes(bytes)) }
    }
}

impl hyper::body::Body for Body {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        if let Content::Stream(pieces) = &mut self.0 {
            return Poll::Ready(ready!(pieces.try_poll_next_unpin(cx)).map(|piece| piece.map(Frame::data)));
        }
        Poll::Ready(match std::mem::take(&mut self.0) {
            Content::Bytes(bytes) => Some(Ok(Frame::data(bytes))),
            Content::Nothing | Content::Stream(_) => None,
        })
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.0, Content::Nothing)
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Content::Nothing => SizeHint::with_exact(0),
            Content::Bytes(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Content::Stream(_) => SizeHint::default(),
        }
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Content::Nothing => "Nothing",
            Content::Bytes(_) => "Bytes",
            Content::Stream(_) => "Stream",
        })
    }
}

/// An answer whose body has not been read yet.
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

    /// The neighbourhood it came from, if it came from the host itself and not from a proxy.
    pub fn reach(&self) -> Option<Reach> {
        match self.head.extensions.get()? {
            Way::Direct(reach) => *reach,
            Way::Forwarded | Way::Tunnelled => None,
        }
    }

    /// When the connection was opened over which it came.
    pub fn opened(&self) -> Option<Instant> {
        self.head.extensions.get::<Opened>().map(|opened| opened.0)
    }

    /// The next piece of the body, `None` at its end.
    pub async fn chunk(&mut self) -> Result<Option<Bytes>, Failure> {
        loop {
            let frame = std::future::poll_fn(|cx| Pin::new(&mut self.body).poll_frame(cx)).await;
            match frame.transpose().map_err(|error| Failure::of(&error))? {
                None => return Ok(None),
                // What follows a body tells nothing that anybody here wants to know.
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
