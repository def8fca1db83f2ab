//! Opening of connections: resolving, dialling, proxies, TLS.

use std::error::Error as StdError;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use std::{fmt, vec};

use futures::FutureExt as _;
use futures::future::BoxFuture;
use hyper::Uri;
use hyper::header::HeaderValue;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::dns::Name;
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;
use tower::{Service, ServiceExt as _};

use super::JUDGEMENT;
use super::address::Reach;
use super::resolver::{FencedResolver, OffLimits, Resolve};
use crate::size_limits;

/// A host that does not accept a connection in this time counts as down, also for callers with a later deadline. The
/// settings can name a shorter time.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// TCP keep-alive.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
const KEEP_ALIVE_AGAIN: Duration = Duration::from_secs(10);

type BoxError = Box<dyn StdError + Send + Sync>;

/// Opens connections. Clones are the same.
#[derive(Clone)]
pub struct Connector {
    inner: Arc<Inner>,
    /// For resolving, dialling and TLS together.
    limit: Duration,
}

struct Inner {
    tcp: HttpConnector<Names>,
    tls: Arc<ClientConfig>,
    /// `None` for hosts that are never reached through a proxy.
    proxies: Option<Arc<Matcher>>,
    /// Set for connections that tenants cause.
    fence: Option<Fence>,
}

/// Keeps connections away from addresses that are off limits for tenants. A proxy may have such an address.
struct Fence {
    tcp: HttpConnector<Names>,
    resolver: Arc<dyn Resolve>,
}

impl Fence {
    /// Checks literal addresses, which no resolver sees, and names that a proxy resolves. A name that cannot be
    /// resolved here may be known to the proxy alone.
    async fn check(&self, target: &Uri, is_proxied: bool) -> Result<(), OffLimits> {
        let host = target.host().unwrap_or_default();
        let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let found = match bare.parse::<IpAddr>() {
            Ok(address) => vec![address],
            Err(_) if is_proxied => {
                let found = timeout(JUDGEMENT, self.resolver.resolve(bare)).await;
                let found = found.ok().and_then(Result::ok).unwrap_or_default();
                found.iter().map(SocketAddr::ip).collect()
            }
            Err(_) => Vec::new(),
        };
        match found.into_iter().map(Reach::of).find(|reach| reach.is_off_limits()) {
            Some(reach) => Err(OffLimits { name: host.to_owned(), reach }),
            None => Ok(()),
        }
    }
}

/// The route of a connection.
#[derive(Clone, Copy, Debug)]
pub enum Route {
    Direct(Option<Reach>),
    /// Through a proxy that forwards requests; each names its target.
    Forwarded,
    /// Through a tunnel of a proxy.
    Tunnelled,
}

/// When a connection was opened; attached to each of its responses.
#[derive(Clone, Copy, Debug)]
pub struct Opened(pub Instant);

#[derive(Debug, Error)]
#[error("no connection came about in time")]
struct TooLate;

/// A failure of a proxy, which says nothing about its target.
#[derive(Debug, Error)]
#[error("the proxy {proxy} cannot be used")]
pub struct ProxyFailed {
    pub proxy: String,
    #[source]
    cause: BoxError,
}

impl Connector {
    pub fn new(tls: ClientConfig, resolver: Arc<dyn Resolve>, proxies: Option<Arc<Matcher>>) -> Self {
        Self::of(Inner { tcp: tcp(resolver), tls: Arc::new(tls), proxies, fence: None })
    }

    /// The same for connections that tenants cause.
    pub fn fenced(tls: ClientConfig, resolver: Arc<dyn Resolve>, proxies: Option<Arc<Matcher>>) -> Self {
        let fenced = tcp(Arc::new(FencedResolver(Arc::clone(&resolver))));
        let fence = Some(Fence { tcp: fenced, resolver: Arc::clone(&resolver) });
        Self::of(Inner { tcp: tcp(resolver), tls: Arc::new(tls), proxies, fence })
    }

    fn of(inner: Inner) -> Self {
        Self { inner: Arc::new(inner), limit: CONNECT_TIMEOUT }
    }

    /// The same with another limit for opening a connection.
    #[must_use]
    pub fn within(self, limit: Duration) -> Self {
        Self { limit, ..self }
    }

    /// The proxy's credentials for each forwarded request. For a tunnel they are sent when it is opened.
    pub fn authorization_for(&self, target: &Uri) -> Option<HeaderValue> {
        if is_secure(target) {
            return None;
        }
        self.proxy_for(target)?.basic_auth().cloned()
    }

    fn proxy_for(&self, target: &Uri) -> Option<Intercept> {
        self.inner.proxies.as_ref()?.intercept(target)
    }

    async fn connect(self, target: Uri) -> Result<Conn, BoxError> {
        let opened = Opened(Instant::now());
        let proxy = self.proxy_for(&target);
        if let Some(fence) = &self.inner.fence {
            fence.check(&target, proxy.is_some()).await?;
        }
        let (stream, route) = match proxy {
            None => {
                let tcp = self.inner.fence.as_ref().map_or(&self.inner.tcp, |fence| &fence.tcp);
                let stream = dial(tcp, target.clone()).await?;
                let reach = stream.peer_addr().ok().map(|address| Reach::of(address.ip()));
                (Box::new(stream) as Stream, Route::Direct(reach))
            }
            Some(proxy) => {
                let stream = self.connect_through(&proxy, &target).await.map_err(|cause| ProxyFailed {
                    proxy: proxy.uri().authority().map(ToString::to_string).unwrap_or_default(),
                    cause,
                })?;
                (stream, if is_secure(&target) { Route::Tunnelled } else { Route::Forwarded })
            }
        };
        if !is_secure(&target) {
            return Ok(Conn { io: TokioIo::new(stream), route, opened, speaks_h2: false });
        }
        let stream = secured(Arc::clone(&self.inner.tls), &target, stream).await?;
        let speaks_h2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        Ok(Conn { io: TokioIo::new(Box::new(stream)), route, opened, speaks_h2 })
    }

    /// Connects through a proxy: a tunnel for TLS, otherwise a connection to the proxy, which forwards requests.
    async fn connect_through(&self, proxy: &Intercept, target: &Uri) -> Result<Stream, BoxError> {
        match proxy.uri().scheme_str() {
            Some("http" | "https") => {}
            other => {
                return Err(format!("proxies of the kind {} are not known", other.unwrap_or("?")).into());
            }
        }
        let dial = ProxyDial(self.clone());
        if !is_secure(target) {
            return Ok(dial.oneshot(proxy.uri().clone()).await?.into_inner());
        }
        let mut tunnel = Tunnel::new(proxy.uri().clone(), dial);
        if let Some(authorization) = proxy.basic_auth() {
            tunnel = tunnel.with_auth(authorization.clone());
        }
        Ok(tunnel.oneshot(target.clone()).await.map_err(tunnel_error)?.into_inner())
    }
}

fn tcp(resolver: Arc<dyn Resolve>) -> HttpConnector<Names> {
    let mut tcp = HttpConnector::new_with_resolver(Names(resolver));
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
    tcp.set_keepalive(Some(KEEP_ALIVE));
    tcp.set_keepalive_interval(Some(KEEP_ALIVE_AGAIN));
    #[cfg(target_os = "linux")]
    tcp.set_tcp_user_timeout(Some(size_limits::STALL));
    tcp
}

async fn dial(tcp: &HttpConnector<Names>, target: Uri) -> Result<tokio::net::TcpStream, BoxError> {
    Ok(tcp.clone().oneshot(target).await?.into_inner())
}

/// hyper-util exports this type under no other name.
type TunnelError = <Tunnel<ProxyDial> as Service<Uri>>::Error;

fn tunnel_error(error: TunnelError) -> BoxError {
    match error {
        TunnelError::ConnectFailed(cause) => cause,
        TunnelError::Io(error) => error.into(),
        TunnelError::ProxyAuthRequired => "it wants a user name and password, or others".into(),
        TunnelError::TunnelUnsuccessful => "it refuses".into(),
        TunnelError::TunnelUnexpectedEof => "it closes the connection".into(),
        other => other.into(),
    }
}

async fn secured<S: AsyncRead + AsyncWrite + Unpin>(
    tls: Arc<ClientConfig>,
    target: &Uri,
    stream: S,
) -> Result<tokio_rustls::client::TlsStream<S>, BoxError> {
    let host = target.host().unwrap_or_default();
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    let name = ServerName::try_from(host.to_owned())?;
    Ok(TlsConnector::from(tls).connect(name, stream).await?)
}

fn is_secure(target: &Uri) -> bool {
    target.scheme_str() == Some("https")
}

impl Service<Uri> for Connector {
    type Response = Conn;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Conn, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, target: Uri) -> Self::Future {
        let (connecting, limit) = (self.clone().connect(target), self.limit);
        async move { timeout(limit, connecting).await.map_err(|_| TooLate)? }.boxed()
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connector").finish_non_exhaustive()
    }
}

/// Connects to a proxy itself.
#[derive(Clone)]
struct ProxyDial(Connector);

impl Service<Uri> for ProxyDial {
    type Response = TokioIo<Stream>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<TokioIo<Stream>, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, address: Uri) -> Self::Future {
        let Self(connector) = self.clone();
        async move {
            let stream = dial(&connector.inner.tcp, address.clone()).await?;
            if !is_secure(&address) {
                return Ok(TokioIo::new(Box::new(stream) as Stream));
            }
            // A proxy is spoken to in HTTP/1.
            let mut tls = ClientConfig::clone(&connector.inner.tls);
            tls.alpn_protocols.clear();
            let stream = secured(Arc::new(tls), &address, stream).await?;
            Ok(TokioIo::new(Box::new(stream) as Stream))
        }
        .boxed()
    }
}

/// Passes names to the resolver.
#[derive(Clone)]
struct Names(Arc<dyn Resolve>);

impl Service<Name> for Names {
    type Response = vec::IntoIter<SocketAddr>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, name: Name) -> Self::Future {
        self.0.resolve(name.as_str()).map(|found| found.map(Vec::into_iter)).boxed()
    }
}

trait AnyStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> AnyStream for S {}

type Stream = Box<dyn AnyStream>;

/// An open connection.
pub struct Conn {
    io: TokioIo<Stream>,
    route: Route,
    opened: Opened,
    speaks_h2: bool,
}

impl fmt::Debug for Conn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Conn").field("route", &self.route).finish_non_exhaustive()
    }
}

impl Connection for Conn {
    fn connected(&self) -> Connected {
        let connected = Connected::new().proxy(matches!(self.route, Route::Forwarded));
        let connected = connected.extra(self.route).extra(self.opened);
        if self.speaks_h2 { connected.negotiated_h2() } else { connected }
    }
}

impl Read for Conn {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.io).poll_read(cx, buffer)
    }
}

impl Write for Conn {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[std::io::IoSlice<'_>],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, pieces)
    }
}

#[cfg(test)]
mod tests;
