//! Checks of names by the addresses they resolve to.
//!
//! A check of the URL is not enough: `metadata.attacker.example` may resolve to 169.254.169.254. The resolver is the
//! only look-up before a connection, so the addresses that it returns are the ones that are dialled.

use std::error::Error as StdError;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use thiserror::Error;

use super::address::Reach;

/// A name that resolves to an address that the answer must not lead to.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{name} resolves to {reach} and the registry is not there", reach = .reach.described())]
pub struct ForbiddenAddress {
    pub name: String,
    pub reach: Reach,
}

/// An address that is not contacted on behalf of a tenant.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error(
    "{name} is {reach}, which is not contacted for Pods' images and namespaced policies; \
     configure the host under `registries` to allow it",
    reach = .reach.described()
)]
pub struct OffLimits {
    pub name: String,
    pub reach: Reach,
}

/// The addresses of a name; their ports are ignored.
pub type Resolving = BoxFuture<'static, Result<Vec<SocketAddr>, Box<dyn StdError + Send + Sync>>>;

/// Resolves names.
pub trait Resolve: Send + Sync {
    fn resolve(&self, name: &str) -> Resolving;
}

/// Resolves names with the system's resolver.
#[derive(Debug)]
pub struct SystemResolver;

impl Resolve for SystemResolver {
    fn resolve(&self, name: &str) -> Resolving {
        let name = name.to_owned();
        async move { Ok(tokio::net::lookup_host((name, 0)).await?.collect()) }.boxed()
    }
}

/// Returns only addresses that an answer from `from` may lead to.
pub struct GuardedResolver {
    pub inner: Arc<dyn Resolve>,
    pub from: Reach,
}

impl fmt::Debug for GuardedResolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GuardedResolver").field("from", &self.from).finish_non_exhaustive()
    }
}

impl Resolve for GuardedResolver {
    fn resolve(&self, name: &str) -> Resolving {
        let (text, from) = (name.to_owned(), self.from);
        let resolving = self.inner.resolve(name);
        async move {
            let found = resolving.await?;
            let kept = permitted(&found, from);
            match found.first() {
                Some(refused) if kept.is_empty() => {
                    Err(ForbiddenAddress { name: text, reach: Reach::of(refused.ip()) }.into())
                }
                _ => Ok(kept),
            }
        }
        .boxed()
    }
}

/// Returns no addresses that are off limits for tenants.
pub struct FencedResolver(pub Arc<dyn Resolve>);

impl fmt::Debug for FencedResolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FencedResolver").finish_non_exhaustive()
    }
}

impl Resolve for FencedResolver {
    fn resolve(&self, name: &str) -> Resolving {
        let (name, resolving) = (name.to_owned(), self.0.resolve(name));
        async move {
            let found = resolving.await?;
            let refused =
                found.iter().map(|address| Reach::of(address.ip())).find(|reach| reach.is_off_limits());
            let kept: Vec<_> =
                found.into_iter().filter(|address| !Reach::of(address.ip()).is_off_limits()).collect();
            match refused {
                Some(reach) if kept.is_empty() => Err(OffLimits { name, reach }.into()),
                _ => Ok(kept),
            }
        }
        .boxed()
    }
}

fn permitted(found: &[SocketAddr], from: Reach) -> Vec<SocketAddr> {
    found.iter().copied().filter(|address| from.may_lead_to(Reach::of(address.ip()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixed(Vec<SocketAddr>);

    impl Resolve for Fixed {
        fn resolve(&self, _: &str) -> Resolving {
            let addresses = self.0.clone();
            async move { Ok(addresses) }.boxed()
        }
    }

    async fn resolve(addresses: &[&str], from: Reach) -> Result<Vec<String>, String> {
        let addresses = addresses.iter().map(|text| SocketAddr::new(text.parse().unwrap(), 0)).collect();
        let guard = GuardedResolver { inner: Arc::new(Fixed(addresses)), from };
        match guard.resolve("storage.example").await {
            Ok(kept) => Ok(kept.iter().map(|address| address.ip().to_string()).collect()),
            Err(error) => Err(error.downcast::<ForbiddenAddress>().unwrap().to_string()),
        }
    }

    #[tokio::test]
    async fn a_tenants_name_leads_neither_to_this_machine_nor_to_a_metadata_service() {
        let resolve = async |addresses: &[&str]| {
            let addresses = addresses.iter().map(|text| SocketAddr::new(text.parse().unwrap(), 0)).collect();
            let fenced = FencedResolver(Arc::new(Fixed(addresses)));
            match fenced.resolve("r.example").await {
                Ok(kept) => Ok(kept.iter().map(|address| address.ip().to_string()).collect::<Vec<_>>()),
                Err(error) => Err(error.downcast::<OffLimits>().unwrap().reach),
            }
        };
        for address in
            ["127.0.0.1", "127.9.9.9", "0.0.0.0", "::1", "::", "::ffff:127.0.0.1", "64:ff9b::7f00:1"]
        {
            assert_eq!(resolve(&[address]).await, Err(Reach::Loopback), "{address}");
        }
        for address in ["169.254.169.254", "fe80::1", "::ffff:169.254.0.1"] {
            assert_eq!(resolve(&[address]).await, Err(Reach::LinkLocal), "{address}");
        }
        let mixed = ["127.0.0.1", "10.0.0.1", "fe80::1", "1.1.1.1", "fd00::1"];
        assert_eq!(resolve(&mixed).await, Ok(vec!["10.0.0.1".into(), "1.1.1.1".into(), "fd00::1".into()]));
        assert_eq!(resolve(&[]).await, Ok(vec![]));
    }

    #[tokio::test]
    async fn only_permitted_addresses_are_dialled() {
        assert_eq!(resolve(&["1.1.1.1", "10.0.0.1"], Reach::Public).await, Ok(vec!["1.1.1.1".into()]));
        assert_eq!(resolve(&["10.0.0.1"], Reach::Private).await, Ok(vec!["10.0.0.1".into()]));
        assert_eq!(
            resolve(&["169.254.169.254"], Reach::Private).await,
            Err("storage.example resolves to a link-local address and the registry is not there".into())
        );
        assert_eq!(resolve(&[], Reach::Public).await, Ok(vec![]));
    }
}
