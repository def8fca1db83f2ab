//! Which token servers may receive a password.
//!
//! A registry names its token server in a challenge. If every name were accepted, a hostile answer could collect
//! passwords by naming a server of its choice. A password therefore goes only to the registry's own host, to a host
//! under the same registrable domain, or to one that the administrator listed.
//!
//! The Public Suffix List, which is compiled in, decides what a registrable domain is: `a.co.uk` and `b.co.uk` have
//! different owners, `a.example.com` and `b.example.com` do not. Under suffixes that the list does not contain (private
//! zones such as `svc.cluster.local`) only the same host counts.
//!
//! Over plain HTTP a password goes only to the host of a registry that is itself used over plain HTTP, and to hosts
//! that the administrator listed or configured for it.

use thiserror::Error;
use url::{Host, Url};

/// Docker Hub's token server.
const DOCKER_HUB_TOKENS: &str = "auth.docker.io";

/// Why a token server does not receive a password.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Withheld {
    #[error(
        "its token server {0} is not part of it and gets no password; \
         if it is, list it in registries.<host>.tokenHosts"
    )]
    Stranger(String),
    #[error(
        "its token server {0} would get the password over plain HTTP, which is not configured for it; \
         if that is meant, list it in registries.<host>.tokenHosts"
    )]
    InTheClear(String),
}

/// Whether the token server at `realm` may receive a password for the registry at `home`. `plain_http`: the token
/// server itself is configured for plain HTTP.
pub fn may_have_password(
    home: &Url,
    realm: &Url,
    token_hosts: &[String],
    plain_http: bool,
) -> Result<(), Withheld> {
    let stranger = || Withheld::Stranger(realm.host_str().unwrap_or_default().to_owned());
    let (Some(registry), Some(server)) = (home.host(), realm.host()) else {
        return Err(stranger());
    };
    let (same, listed) = (registry == server, listed(realm, token_hosts));
    if !(same || listed || related(&registry, &server)) {
        return Err(stranger());
    }
    let meant = home.scheme() != "https" && (same || listed || plain_http);
    if realm.scheme() == "https" || meant { Ok(()) } else { Err(Withheld::InTheClear(authority(realm))) }
}

/// Host and port, as settings name them.
pub(crate) fn authority(url: &Url) -> String {
    let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
    format!("{}{port}", url.host_str().unwrap_or_default())
}

fn listed(realm: &Url, token_hosts: &[String]) -> bool {
    let name = realm.host_str().unwrap_or_default();
    let with_port = realm.port_or_known_default().map(|port| format!("{name}:{port}"));
    token_hosts.iter().any(|listed| {
        listed.eq_ignore_ascii_case(name)
            || with_port.as_deref().is_some_and(|with_port| listed.eq_ignore_ascii_case(with_port))
    })
}

fn related(registry: &Host<&str>, server: &Host<&str>) -> bool {
    let (Host::Domain(registry), Host::Domain(server)) = (registry, server) else {
        return false;
    };
    if *registry == "registry-1.docker.io" && *server == DOCKER_HUB_TOKENS {
        return true;
    }
    match (registrable(registry), registrable(server)) {
        (Some(one), Some(other)) => one == other,
        _ => false,
    }
}

fn registrable(name: &str) -> Option<&str> {
    let domain = psl::domain(name.as_bytes())?;
    domain.suffix().is_known().then(|| std::str::from_utf8(domain.as_bytes()).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(home: &str, realm: &str, listed: &[&str], plain_http: bool) -> Result<(), Withheld> {
        let listed: Vec<String> = listed.iter().map(|host| (*host).to_owned()).collect();
        may_have_password(&Url::parse(home).unwrap(), &Url::parse(realm).unwrap(), &listed, plain_http)
    }

    fn allowed(home: &str, realm: &str, listed: &[&str]) -> bool {
        judged(home, realm, listed, false).is_ok()
    }

    #[test]
    fn passwords_stay_in_the_family() {
        for (home, realm) in [
            ("https://registry-1.docker.io", "https://auth.docker.io/token"),
            ("https://quay.io", "https://quay.io/v2/auth"),
            ("https://r.example.com:5000", "https://r.example.com:5001/token"),
            ("https://registry.gitlab.com", "https://gitlab.com/jwt/auth"),
            ("https://a.example.co.uk", "https://b.example.co.uk/t"),
            ("https://R.example.com", "https://AUTH.example.com/t"),
            ("http://127.0.0.1:5000", "http://127.0.0.1:5001/t"),
            ("http://r.example.com", "https://r.example.com/t"),
            ("https://[fd00::1]:5000", "https://[fd00::1]/t"),
        ] {
            assert!(allowed(home, realm, &[]), "{home} {realm}");
        }
    }

    #[test]
    fn strangers_get_none() {
        for (home, realm) in [
            ("https://r.example.com", "https://evil.example.net/t"),
            ("https://example.co.uk", "https://evil.co.uk/t"),
            ("https://a.github.io", "https://b.github.io/t"),
            ("https://r.example.com", "https://r.example.com.evil.net/t"),
            ("https://r.example.com", "http://r.example.com/t"),
            ("https://10.0.0.1", "https://10.0.0.2/t"),
            ("https://a.svc.cluster.local", "https://b.svc.cluster.local/t"),
            ("https://com", "https://evil.com/t"),
            ("https://registry", "https://auth/t"),
        ] {
            assert!(!allowed(home, realm, &[]), "{home} {realm}");
        }
    }

    #[test]
    fn the_list_opens_single_hosts() {
        assert!(allowed("https://r.example.com", "https://login.corp.net/t", &["login.corp.net"]));
        assert!(allowed("https://r.example.com", "https://login.corp.net/t", &["LOGIN.corp.net:443"]));
        assert!(allowed("https://r.example.com", "https://login.corp.net:8443/t", &["login.corp.net:8443"]));
        assert!(!allowed("https://r.example.com", "https://login.corp.net:8443/t", &["login.corp.net:443"]));
        assert!(!allowed("https://r.example.com", "https://a.login.corp.net/t", &["login.corp.net"]));
        assert!(!allowed("https://r.example.com", "http://login.corp.net/t", &["login.corp.net"]));
    }

    #[test]
    fn no_password_goes_over_plain_http_unless_that_is_configured() {
        let home = "http://r.example.com:5000";
        let realm = "http://auth.example.com:5001/t";
        let refused = judged(home, realm, &[], false).unwrap_err();
        assert_eq!(refused, Withheld::InTheClear("auth.example.com:5001".into()));
        assert!(refused.to_string().contains("registries.<host>.tokenHosts"), "{refused}");
        assert_eq!(judged(home, "https://auth.example.com/t", &[], false), Ok(()));
        assert_eq!(
            judged(home, "http://r.example.com:5001/t", &[], false),
            Ok(()),
            "the registry's own host"
        );
        assert_eq!(judged(home, realm, &["auth.example.com"], false), Ok(()), "it is listed");
        assert_eq!(judged(home, realm, &[], true), Ok(()), "it is configured so");
        let stranger = judged(home, "http://evil.example.net/t", &[], true);
        assert_eq!(stranger, Err(Withheld::Stranger("evil.example.net".into())), "no reason to trust it");
        let downgrade =
            judged("https://r.example.com", "http://auth.example.com/t", &["auth.example.com"], true);
        assert_eq!(downgrade, Err(Withheld::InTheClear("auth.example.com".into())));
    }
}
