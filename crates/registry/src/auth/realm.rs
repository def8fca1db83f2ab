//! Who may be given a password.
//!
//! A registry names the server that issues its tokens. If any name would do, a registry (or whoever answers in its place)
//! could collect the passwords of its users by naming a server of its choice, so a password goes only to the registry's
//! own host, to a host under the same registrable domain, or to one the administrator listed.
//!
//! What a registrable domain is cannot be told from the name: `a.co.uk` and `b.co.uk` are strangers, `a.example.com` and
//! `b.example.com` are not. The Public Suffix List knows; it is compiled in. Under suffixes that the list does not know
//! (private zones such as `svc.cluster.local`) only the same host counts, because there nothing says who owns what.

use reqwest::Url;
use url::Host;

/// Docker Hub's token server, which its registry names.
const DOCKER_HUB_TOKENS: &str = "auth.docker.io";

/// Whether the token server at `realm` may be given a password meant for the registry at `home`.
pub fn may_have_password(home: &Url, realm: &Url, token_hosts: &[String]) -> bool {
    if realm.scheme() == "http" && home.scheme() == "https" {
        return false;
    }
    let (Some(registry), Some(server)) = (home.host(), realm.host()) else {
        return false;
    };
    registry == server || listed(realm, token_hosts) || related(&registry, &server)
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

    fn allowed(home: &str, realm: &str, listed: &[&str]) -> bool {
        let listed: Vec<String> = listed.iter().map(|host| (*host).to_owned()).collect();
        may_have_password(&Url::parse(home).unwrap(), &Url::parse(realm).unwrap(), &listed)
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
}
