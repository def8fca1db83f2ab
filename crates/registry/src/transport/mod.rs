//! Connections: pools, TLS, proxies, and checks of where answers lead.
//!
//! Each registry has a pool of connections to itself, and pools for the hosts that it points to (storage, token
//! servers). The latter are separate for each address class of the registry, so that a connection that a loopback
//! registry may use is never reused for a public one.

pub mod address;
pub(crate) mod ca_file;
pub mod connect;
pub mod endpoint;
pub mod failure;
pub mod http;
pub mod redirect;
pub mod resolver;
pub mod tls;

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use hyper::header::HeaderValue;
use hyper_util::client::proxy::matcher::Matcher;
use rustls::ClientConfig;
use tokio::time::timeout;
use url::Url;

use self::address::Reach;
use self::connect::Connector;
use self::http::Pool;
use self::resolver::{ForbiddenAddress, GuardedResolver, Resolve};

/// Behind a proxy external names often cannot be resolved, and finding that out can take long.
pub(super) const JUDGEMENT: Duration = Duration::from_secs(2);

/// Settings of a registry's transport.
#[derive(Clone)]
pub struct Profile {
    /// TLS towards the registry's own host.
    pub home: ClientConfig,
    /// TLS towards every other host: certificates are always verified.
    pub away: ClientConfig,
    pub resolver: Arc<dyn Resolve>,
    pub connections: usize,
    /// For opening one connection.
    pub connect_timeout: Duration,
    pub user_agent: HeaderValue,
    /// Without proxies: for loopback hosts.
    pub direct: bool,
    /// Tenants cause its connections: addresses that are off limits for them are not dialled.
    pub fenced: bool,
    /// Answers lead to no address that is off limits for tenants, also if the host itself has one.
    pub fences_redirects: bool,
}

pub struct Transport {
    profile: Profile,
    home: Pool,
    /// A new connection to the registry for each request.
    unpooled: Pool,
    /// One pool for each address class of an answer, in the order of [`Reach`].
    guarded: [OnceLock<Pool>; 4],
    /// A proxy resolves names itself, so they are checked before: see [`Self::judge`].
    proxied: OnceLock<Pool>,
    proxies: Arc<Matcher>,
}

impl Transport {
    pub fn new(profile: Profile) -> Self {
        Self::with_proxies(profile, Arc::new(Matcher::from_system()))
    }

    fn with_proxies(profile: Profile, proxies: Arc<Matcher>) -> Self {
        let own_proxies = (!profile.direct).then(|| Arc::clone(&proxies));
        let make = if profile.fenced { Connector::fenced } else { Connector::new };
        let home = profile.pool(make(profile.home.clone(), Arc::clone(&profile.resolver), own_proxies));
        let unpooled = home.unpooled();
        Self { profile, home, unpooled, guarded: Default::default(), proxied: OnceLock::new(), proxies }
    }

    /// The same for connections that tenants cause, with pools of its own: a tenant's request must not use a connection
    /// that only an administrator may cause.
    #[must_use]
    pub fn fenced(&self) -> Self {
        Self::with_proxies(Profile { fenced: true, ..self.profile.clone() }, Arc::clone(&self.proxies))
    }

    pub fn is_fenced(&self) -> bool {
        self.profile.fenced
    }

    /// Connections to the registry itself.
    pub fn home(&self) -> &Pool {
        &self.home
    }

    /// New connections to the registry itself.
    pub fn unpooled(&self) -> &Pool {
        &self.unpooled
    }

    /// Connections to a host that an answer from `peer` pointed to.
    pub fn away(&self, url: &Url, peer: Option<Reach>) -> &Pool {
        let resolver = &self.profile.resolver;
        // Hosts are checked against the class of the registry, which for tenants is not off limits.
        let make = if self.profile.fences_redirects { Connector::fenced } else { Connector::new };
        let away = |resolver, proxies| self.profile.pool(make(self.profile.away.clone(), resolver, proxies));
        if self.is_proxied(url) {
            return self.proxied.get_or_init(|| away(Arc::clone(resolver), Some(Arc::clone(&self.proxies))));
        }
        let from = peer.unwrap_or(Reach::Public);
        let [public, private, link_local, loopback] = &self.guarded;
        let pool = match from {
            Reach::Public | Reach::Unusable => public,
            Reach::Private => private,
            Reach::LinkLocal => link_local,
            Reach::Loopback => loopback,
        };
        pool.get_or_init(|| away(Arc::new(GuardedResolver { inner: Arc::clone(resolver), from }), None))
    }

    /// Checks a host before a proxy is asked for it. How the proxy resolves the name is not known; but a name that
    /// resolves to loopback or link-local here is not passed to it. One that cannot be resolved may be known to the
    /// proxy alone.
    pub async fn judge(&self, url: &Url, peer: Option<Reach>) -> Result<(), ForbiddenAddress> {
        let (Some(url::Host::Domain(text)), true) = (url.host(), self.is_proxied(url)) else {
            return Ok(());
        };
        let Ok(Ok(found)) = timeout(JUDGEMENT, self.profile.resolver.resolve(text)).await else {
            return Ok(());
        };
        let from = peer.unwrap_or(Reach::Public);
        for reach in found.iter().map(|address| Reach::of(address.ip())) {
            if matches!(reach, Reach::Loopback | Reach::LinkLocal) && !from.may_lead_to(reach) {
                return Err(ForbiddenAddress { name: text.to_owned(), reach });
            }
        }
        Ok(())
    }

    fn is_proxied(&self, url: &Url) -> bool {
        url.as_str().parse().is_ok_and(|uri| self.proxies.intercept(&uri).is_some())
    }
}

impl Profile {
    fn pool(&self, connector: Connector) -> Pool {
        Pool::new(connector.within(self.connect_timeout), self.user_agent.clone(), self.connections)
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

    use futures::FutureExt as _;

    use super::resolver::Resolving;
    use super::tls::Trust;
    use super::*;

    struct Fixed(Option<SocketAddr>);

    impl Resolve for Fixed {
        fn resolve(&self, _: &str) -> Resolving {
            let found = self.0;
            async move { Ok(vec![found.ok_or("no such name")?]) }.boxed()
        }
    }

    async fn judged(address: &str, no_proxy: &str, peer: Option<Reach>) -> Result<(), String> {
        let trust = Trust::blind().unwrap();
        let address = address.parse().ok().map(|address| SocketAddr::new(address, 0));
        let profile = Profile {
            home: trust.clone(),
            away: trust,
            resolver: Arc::new(Fixed(address)),
            connections: 1,
            connect_timeout: connect::CONNECT_TIMEOUT,
            user_agent: HeaderValue::from_static("test"),
            direct: false,
            fenced: false,
            fences_redirects: false,
        };
        let proxies = Matcher::builder().all("http://proxy.example:3128").no(no_proxy).build();
        let transport = Transport::with_proxies(profile, Arc::new(proxies));
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
