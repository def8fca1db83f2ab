//! Connections: whom we talk to, how, and where we refuse to be led.
//!
//! Each registry has one pool of connections to itself, and beside it, made when first needed, pools for the places it
//! points to (storage, token servers). Those are kept apart by the neighbourhood the pointer came from, so a connection
//! that a loopback registry may use is never reused on behalf of a public one.

pub mod address;
pub mod endpoint;
pub mod failure;
pub mod redirect;
pub mod resolver;
pub mod tls;

use std::{
    fmt,
    sync::{Arc, OnceLock},
    time::Duration,
};

use hyper_util::client::proxy::matcher::Matcher;
use reqwest::{Client, Url, dns::Resolve, redirect::Policy};
use rustls::ClientConfig;

use tokio::time::timeout;

use self::{
    address::Reach,
    resolver::{ForbiddenAddress, GuardedResolver},
    tls::TrustError,
};
use crate::bounds;

/// A host that does not accept a connection in this time is as good as down, even to a caller with more patience.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Behind a proxy the outside's names are often unknown, and finding that out can take long.
const JUDGEMENT: Duration = Duration::from_secs(2);
/// Connections are kept for the next round of the watch's busier registries, but not for ever.
const IDLE_TIMEOUT: Duration = Duration::from_secs(90);
/// All requests share one HTTP/2 connection, so one that was lost unnoticed (a route that changed, a firewall that forgot
/// it) would make the registry look dead for as long as the operating system believes in it. A ping goes out only while
/// a request is open and nothing has come for this long.
const PING_AFTER: Duration = Duration::from_secs(3);
const PING_TIMEOUT: Duration = Duration::from_secs(3);
/// The same below HTTP: an unused connection is looked after, and what is not acknowledged for as long as a transfer may
/// stand still was lost.
const KEEP_ALIVE: Duration = Duration::from_secs(30);
const KEEP_ALIVE_AGAIN: Duration = Duration::from_secs(10);
/// Registries send a handful of headers; more is an attack on memory. (HTTP/1 buffers are bounded by the library.)
const MOST_HEADERS: usize = 128;
const LONGEST_HEADER_LIST: u32 = 64 * 1024;
/// What may be on its way to us unread, in one answer and in all answers of one connection. It is memory if we are slow, and
/// speed if the registry is far away: four mebibytes are forty megabytes a second at a tenth of a second.
const STREAM_WINDOW: u32 = 1024 * 1024;
const CONNECTION_WINDOW: u32 = 4 * 1024 * 1024;

/// How a registry's transport is made.
pub struct Profile {
    /// Trust towards the registry's own host.
    pub home: ClientConfig,
    /// Trust towards every other host: never blind, whatever was configured for the registry.
    pub away: ClientConfig,
    pub resolver: Arc<dyn Resolve>,
    pub connections: usize,
    pub user_agent: String,
    /// Loopback is never reached through a proxy.
    pub direct: bool,
}

pub struct Transport {
    profile: Profile,
    home: Client,
    /// For long bodies. A connection keeps as much memory as it once read at a time, so it is few connections that do.
    bulk: OnceLock<Client>,
    /// One pool for each neighbourhood an answer can come from, in the order of [`Reach`].
    guarded: [OnceLock<Client>; 4],
    /// A proxy resolves the names itself, so they are judged before it is asked: see [`Self::judge`].
    proxied: OnceLock<Client>,
    proxies: Matcher,
}

impl Transport {
    pub fn new(profile: Profile) -> Result<Self, TrustError> {
        let home = profile.client(profile.home_trust(), profile.direct, profile.connections)?;
        Ok(Self {
            profile,
            home,
            bulk: OnceLock::new(),
            guarded: Default::default(),
            proxied: OnceLock::new(),
            proxies: Matcher::from_system(),
        })
    }

    /// Connections to the registry itself.
    pub fn home(&self) -> &Client {
        &self.home
    }

    /// Connections to the registry itself for long bodies.
    pub fn bulk(&self) -> Result<&Client, TrustError> {
        made(&self.bulk, || {
            self.profile.client(self.profile.home_trust(), self.profile.direct, bounds::IDLE_BULK)
        })
    }

    /// Connections to a place that an answer from `peer` pointed to.
    pub fn away(&self, url: &Url, peer: Option<Reach>) -> Result<&Client, TrustError> {
        let resolver = &self.profile.resolver;
        let away = |resolver, direct| {
            let trust = (self.profile.away.clone(), resolver);
            self.profile.client(trust, direct, self.profile.connections)
        };
        if self.is_proxied(url) {
            return made(&self.proxied, || away(Arc::clone(resolver), false));
        }
        let from = peer.unwrap_or(Reach::Public);
        let [public, private, link_local, loopback] = &self.guarded;
        let pool = match from {
            Reach::Public | Reach::Unusable => public,
            Reach::Private => private,
            Reach::LinkLocal => link_local,
            Reach::Loopback => loopback,
        };
        made(pool, || away(Arc::new(GuardedResolver { inner: Arc::clone(resolver), from }), true))
    }

    /// Judges a place before a proxy is asked for it. What the proxy makes of the name cannot be seen from here; but a name
    /// that leads to this machine or to the metadata service for us is not given to it. One that we cannot resolve may be
    /// known to the proxy alone.
    pub async fn judge(&self, url: &Url, peer: Option<Reach>) -> Result<(), ForbiddenAddress> {
        let (Some(url::Host::Domain(text)), true) = (url.host(), self.is_proxied(url)) else {
            return Ok(());
        };
        let Ok(name) = text.parse() else { return Ok(()) };
        let Ok(Ok(found)) = timeout(JUDGEMENT, self.profile.resolver.resolve(name)).await else {
            return Ok(());
        };
        let from = peer.unwrap_or(Reach::Public);
        for reach in found.map(|address| Reach::of(address.ip())) {
            if matches!(reach, Reach::Loopback | Reach::LinkLocal) && !from.may_lead_to(reach) {
                return Err(ForbiddenAddress { name: text.to_owned(), reach });
            }
        }
        Ok(())
    }

    /// The neighbourhood an answer came from, if it came from the host itself and not from a proxy.
    pub fn reach(&self, answer: &reqwest::Response) -> Option<Reach> {
        if !self.profile.direct && self.is_proxied(answer.url()) {
            return None;
        }
        answer.remote_addr().map(|address| Reach::of(address.ip()))
    }

    fn is_proxied(&self, url: &Url) -> bool {
        url.as_str().parse().is_ok_and(|uri| self.proxies.intercept(&uri).is_some())
    }
}

/// A pool that is made when it is first needed.
fn made(
    pool: &OnceLock<Client>,
    make: impl FnOnce() -> Result<Client, TrustError>,
) -> Result<&Client, TrustError> {
    if let Some(client) = pool.get() {
        return Ok(client);
    }
    let client = make()?;
    Ok(pool.get_or_init(|| client))
}

impl Profile {
    fn home_trust(&self) -> (ClientConfig, Arc<dyn Resolve>) {
        (self.home.clone(), Arc::clone(&self.resolver))
    }

    /// A pool that keeps so many connections which nobody uses.
    fn client(
        &self,
        (tls, resolver): (ClientConfig, Arc<dyn Resolve>),
        direct: bool,
        idle: usize,
    ) -> Result<Client, TrustError> {
        let builder = Client::builder()
            .tls_backend_preconfigured(tls)
            .dns_resolver(resolver)
            // Redirects are followed by hand, one by one, after a decision about each.
            .redirect(Policy::none())
            .user_agent(&self.user_agent)
            .connect_timeout(CONNECT_TIMEOUT)
            .pool_idle_timeout(IDLE_TIMEOUT)
            .pool_max_idle_per_host(idle)
            .tcp_keepalive(KEEP_ALIVE)
            .tcp_keepalive_interval(KEEP_ALIVE_AGAIN)
            .http2_keep_alive_interval(PING_AFTER)
            .http2_keep_alive_timeout(PING_TIMEOUT)
            .http2_initial_stream_window_size(STREAM_WINDOW)
            .http2_initial_connection_window_size(CONNECTION_WINDOW)
            .http1_max_headers(MOST_HEADERS)
            .http2_max_header_list_size(LONGEST_HEADER_LIST)
            .referer(false);
        #[cfg(target_os = "linux")]
        let builder = builder.tcp_user_timeout(bounds::STALL);
        let builder = if direct { builder.no_proxy() } else { builder };
        builder.build().map_err(|error| TrustError::Setup(error.to_string()))
    }
}

impl fmt::Debug for Profile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Profile").field("direct", &self.direct).finish_non_exhaustive()
    }
}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transport").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use reqwest::dns::{Addrs, Name, Resolving};

    use super::*;
    use crate::transport::tls::Trust;

    struct Fixed(Option<SocketAddr>);

    impl Resolve for Fixed {
        fn resolve(&self, _: Name) -> Resolving {
            let found = self.0;
            Box::pin(async move {
                let address = found.ok_or("no such name")?;
                Ok(Box::new(std::iter::once(address)) as Addrs)
            })
        }
    }

    async fn judged(address: &str, no_proxy: &str, peer: Option<Reach>) -> Result<(), String> {
        let trust = Trust::blind().unwrap();
        let address = address.parse().ok().map(|address| SocketAddr::new(address, 0));
        let mut transport = Transport::new(Profile {
            home: trust.clone(),
            away: trust,
            resolver: Arc::new(Fixed(address)),
            connections: 1,
            user_agent: String::new(),
            direct: false,
        })
        .unwrap();
        transport.proxies = Matcher::builder().all("http://proxy.example:3128").no(no_proxy).build();
        let url = Url::parse("https://storage.example/x").unwrap();
        transport.judge(&url, peer).await.map_err(|forbidden| forbidden.to_string())
    }

    #[tokio::test]
    async fn a_proxy_is_not_asked_for_what_is_known_to_be_inside() {
        for (address, described) in
            [("169.254.169.254", "a link-local address"), ("127.0.0.1", "a loopback address")]
        {
            let expected = format!("storage.example resolves to {described} and the registry is not there");
            assert_eq!(judged(address, "", None).await, Err(expected));
            // Then it is not the proxy that is asked, and the guarded resolver judges.
            assert_eq!(judged(address, "storage.example", None).await, Ok(()));
        }
        assert_eq!(
            judged("127.0.0.1", "", Some(Reach::Loopback)).await,
            Ok(()),
            "the registry is there itself"
        );
        assert_eq!(judged("1.1.1.1", "", None).await, Ok(()));
        assert_eq!(judged("unknown", "", None).await, Ok(()), "the proxy may know it");
    }
}
