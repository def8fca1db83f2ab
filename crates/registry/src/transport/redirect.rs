//! Checks of addresses in answers: redirects, upload locations, links to pages, token servers.
//!
//! Such an address must not leave TLS or carry a password, receives credentials only if it is the registry itself, and
//! a literal IP address must be one that the answer may lead to. Names are checked again when they are resolved
//! ([`super::resolver`]).

use std::net::IpAddr;

use thiserror::Error;
use url::Url;

use super::address::Reach;

/// Registries need one hop to their storage, sometimes two.
const MOST_HOPS: u32 = 5;

/// An address that was accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    pub url: Url,
    /// It is the registry itself: credentials are sent, and its own connections used.
    pub at_home: bool,
}

/// Why an address is not followed.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Refusal {
    #[error("it is not a valid address")]
    Unreadable,
    #[error("only http and https are followed, not {0}")]
    Scheme(String),
    #[error("it leads from TLS to plain HTTP at {0}")]
    Downgrade(String),
    #[error("it carries a user name or password")]
    Userinfo,
    #[error("{host} is {reach} and the registry is not there", reach = .reach.described())]
    Address { host: String, reach: Reach },
    #[error("it is the {MOST_HOPS}th in a row")]
    TooMany,
}

/// Decides about an address in an answer from `from`.
///
/// `home` is the registry's API, `peer` the address class of the answer (`None` through a proxy, which allows public
/// addresses only), `hops` the number of redirects so far.
pub fn follow(
    home: &Url,
    from: &Url,
    location: &str,
    peer: Option<Reach>,
    hops: u32,
) -> Result<Target, Refusal> {
    if hops >= MOST_HOPS {
        return Err(Refusal::TooMany);
    }
    let mut url = from.join(location).map_err(|_| Refusal::Unreadable)?;
    url.set_fragment(None);
    if !matches!(url.scheme(), "http" | "https") {
        return Err(Refusal::Scheme(url.scheme().to_owned()));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(Refusal::Userinfo);
    }
    if url.scheme() == "http" && from.scheme() == "https" {
        url = restored(home, &url).ok_or_else(|| Refusal::Downgrade(host_of(&url)))?;
    }
    if same_origin(home, &url) {
        return Ok(Target { url, at_home: true });
    }
    let from_reach = peer.unwrap_or(Reach::Public);
    if let Some(reach) = literal_reach(&url)
        && !from_reach.may_lead_to(reach)
    {
        return Err(Refusal::Address { host: host_of(&url), reach });
    }
    Ok(Target { url, at_home: false })
}

pub fn same_origin(one: &Url, other: &Url) -> bool {
    one.scheme() == other.scheme()
        && one.host() == other.host()
        && one.port_or_known_default() == other.port_or_known_default()
}

/// The class of a literal address; `None` for names, which are checked when they are resolved.
pub fn literal_reach(url: &Url) -> Option<Reach> {
    match url.host()? {
        url::Host::Ipv4(address) => Some(Reach::of(IpAddr::V4(address))),
        url::Host::Ipv6(address) => Some(Reach::of(IpAddr::V6(address))),
        // The one name with a fixed meaning (RFC 6761).
        url::Host::Domain(name) => {
            let last = name.trim_end_matches('.').rsplit('.').next().unwrap_or(name);
            last.eq_ignore_ascii_case("localhost").then_some(Reach::Loopback)
        }
    }
}

/// A registry behind a proxy that terminates TLS often names itself with plain HTTP. Its known address is meant then.
fn restored(home: &Url, url: &Url) -> Option<Url> {
    let names_itself = url.host() == home.host() && (url.port().is_none() || url.port() == home.port());
    if !names_itself || home.scheme() != "https" {
        return None;
    }
    let mut url = url.clone();
    url.set_scheme(home.scheme()).ok()?;
    url.set_port(home.port()).ok()?;
    Some(url)
}

fn host_of(url: &Url) -> String {
    url.host_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PUBLIC: Option<Reach> = Some(Reach::Public);
    const PRIVATE: Option<Reach> = Some(Reach::Private);
    const LOOPBACK: Option<Reach> = Some(Reach::Loopback);

    /// Checks decisions, written as `home URL`, `away URL` or the reason of a refusal.
    fn check(home: &str, peer: Option<Reach>, cases: &[(&str, &str)]) {
        let home = Url::parse(home).unwrap();
        let from = home.join("/v2/a/blobs/x").unwrap();
        for (location, expected) in cases {
            let decided = match follow(&home, &from, location, peer, 0) {
                Ok(Target { url, at_home: true }) => format!("home {url}"),
                Ok(Target { url, at_home: false }) => format!("away {url}"),
                Err(refusal) => refusal.to_string(),
            };
            assert_eq!(&decided, expected, "{home} to {location} seen from {peer:?}");
        }
    }

    #[test]
    fn the_registry_itself_is_home_and_nothing_else() {
        check(
            "https://r.example.com/",
            PUBLIC,
            &[
                ("/v2/other", "home https://r.example.com/v2/other"),
                ("blob?x=1#y", "home https://r.example.com/v2/a/blobs/blob?x=1"),
                ("https://R.example.com:443/z", "home https://r.example.com/z"),
                ("https://r.example.com:8443/z", "away https://r.example.com:8443/z"),
                ("https://cdn.example.net/z", "away https://cdn.example.net/z"),
                ("//cdn.example.net/z", "away https://cdn.example.net/z"),
                ("https://u:p@r.example.com/z", "it carries a user name or password"),
                ("file:///etc/passwd", "only http and https are followed, not file"),
                ("https://[::bad/z", "it is not a valid address"),
            ],
        );
    }

    #[test]
    fn tls_is_not_left() {
        check(
            "https://r.example.com/",
            PUBLIC,
            &[
                ("http://cdn.example.net/z", "it leads from TLS to plain HTTP at cdn.example.net"),
                ("http://r.example.com/v2/z", "home https://r.example.com/v2/z"),
            ],
        );
        check(
            "https://r.example.com:5000/",
            PUBLIC,
            &[
                ("http://r.example.com:5000/z", "home https://r.example.com:5000/z"),
                ("http://r.example.com:81/z", "it leads from TLS to plain HTTP at r.example.com"),
            ],
        );
    }

    #[test]
    fn the_inside_is_closed_to_the_outside() {
        for peer in [PUBLIC, None] {
            check(
                "https://r.example.com/",
                peer,
                &[
                    (
                        "https://169.254.169.254/x",
                        "169.254.169.254 is a link-local address and the registry is not there",
                    ),
                    (
                        "https://0xa9fea9fe/x",
                        "169.254.169.254 is a link-local address and the registry is not there",
                    ),
                    ("https://127.0.0.1/z", "127.0.0.1 is a loopback address and the registry is not there"),
                    (
                        "https://localhost:6443/z",
                        "localhost is a loopback address and the registry is not there",
                    ),
                    (
                        "https://a.localhost./z",
                        "a.localhost. is a loopback address and the registry is not there",
                    ),
                    ("https://[::1]/z", "[::1] is a loopback address and the registry is not there"),
                    ("https://10.1.2.3/z", "10.1.2.3 is a private address and the registry is not there"),
                ],
            );
        }
        check(
            "https://r.example.com/",
            PRIVATE,
            &[
                ("https://10.1.2.3/z", "away https://10.1.2.3/z"),
                (
                    "https://169.254.169.254/z",
                    "169.254.169.254 is a link-local address and the registry is not there",
                ),
                ("https://127.0.0.1/z", "127.0.0.1 is a loopback address and the registry is not there"),
                ("https://224.0.0.1/z", "224.0.0.1 is no address of a host and the registry is not there"),
            ],
        );
        check(
            "http://127.0.0.1:5000/",
            LOOPBACK,
            &[
                ("http://127.0.0.1:9000/z", "away http://127.0.0.1:9000/z"),
                (
                    "http://169.254.169.254/z",
                    "169.254.169.254 is a link-local address and the registry is not there",
                ),
                ("http://10.0.0.1/z", "10.0.0.1 is a private address and the registry is not there"),
            ],
        );
    }

    #[test]
    fn chains_end() {
        let home = Url::parse("https://r.example.com/").unwrap();
        assert!(follow(&home, &home, "/next", None, 4).is_ok());
        assert_eq!(follow(&home, &home, "/next", None, 5), Err(Refusal::TooMany));
    }

    proptest! {
        #[test]
        fn nothing_but_the_registry_itself_is_home(location in "(https?:)?//?[ -~]{0,40}|[ -~]{0,40}") {
            let home = Url::parse("https://r.example.com:5000/").unwrap();
            if let Ok(target) = follow(&home, &home, &location, None, 0) {
                prop_assert_eq!(target.at_home, same_origin(&home, &target.url));
                prop_assert_eq!(target.url.scheme(), "https");
                prop_assert!(target.url.username().is_empty() && target.url.password().is_none());
            }
        }
    }
}
