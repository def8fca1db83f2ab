//! Names are judged by what they resolve to.
//!
//! A check of the URL alone is no defence: `metadata.attacker.example` may point to 169.254.169.254. The resolver sits
//! between the name and the connection, so what it lets through is what is dialled; there is no second look-up that could
//! answer differently.

use std::{fmt, net::SocketAddr, sync::Arc};

use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use thiserror::Error;

use super::address::Reach;

/// A name that leads where the answer we got may not lead.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{name} resolves to {reach} and the registry is not there", reach = .reach.described())]
pub struct ForbiddenAddress {
    pub name: String,
    pub reach: Reach,
}

/// Resolves names with the system's resolver.
#[derive(Debug)]
pub struct SystemResolver;

impl Resolve for SystemResolver {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let found: Vec<SocketAddr> = tokio::net::lookup_host((name.as_str(), 0)).await?.collect();
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}

/// Lets only those addresses through that an answer from `from` may lead to.
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
    fn resolve(&self, name: Name) -> Resolving {
        let (text, from) = (name.as_str().to_owned(), self.from);
        let resolving = self.inner.resolve(name);
        Box::pin(async move {
            let found: Vec<SocketAddr> = resolving.await?.collect();
            let kept = permitted(&found, from);
            match found.first() {
                Some(refused) if kept.is_empty() => {
                    Err(ForbiddenAddress { name: text, reach: Reach::of(refused.ip()) }.into())
                }
                _ => Ok(Box::new(kept.into_iter()) as Addrs),
            }
        })
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
        fn resolve(&self, _: Name) -> Resolving {
            let addresses = self.0.clone();
            Box::pin(async move { Ok(Box::new(addresses.into_iter()) as Addrs) })
        }
    }

    async fn resolve(addresses: &[&str], from: Reach) -> Result<Vec<String>, String> {
        let addresses = addresses.iter().map(|text| SocketAddr::new(text.parse().unwrap(), 0)).collect();
        let guard = GuardedResolver { inner: Arc::new(Fixed(addresses)), from };
        match guard.resolve("storage.example".parse().unwrap()).await {
            Ok(kept) => Ok(kept.map(|address| address.ip().to_string()).collect()),
            Err(error) => Err(error.downcast::<ForbiddenAddress>().unwrap().to_string()),
        }
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
