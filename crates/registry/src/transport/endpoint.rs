//! The address of a registry's API, and its scheme.
//!
//! TLS, except where plain HTTP is configured and on loopback hosts. A loopback registry may speak either, so the first
//! handshake decides: if the server does not speak TLS, plain HTTP is used from then on. For other hosts such a
//! fallback would let an attacker on the path switch encryption off, so the settings have to ask for it.

use std::sync::atomic::{AtomicBool, Ordering};

use fairlead_domain::reference::Host;
use url::Url;

#[derive(Debug)]
pub struct Endpoint {
    secure: Url,
    plain: Url,
    use_plain: AtomicBool,
    may_fall_back: bool,
}

impl Endpoint {
    /// `None` if the host is not a valid address, for example because of a port beyond 65535.
    pub fn new(host: &Host, plain_http: bool, may_fall_back: bool) -> Option<Self> {
        let at = |scheme: &str| Url::parse(&format!("{scheme}://{}/", host.endpoint())).ok();
        Some(Self {
            secure: at("https")?,
            plain: at("http")?,
            use_plain: AtomicBool::new(plain_http),
            may_fall_back: may_fall_back && !plain_http,
        })
    }

    pub fn base(&self) -> &Url {
        if self.use_plain.load(Ordering::Relaxed) { &self.plain } else { &self.secure }
    }

    /// The plain HTTP address, while it is not known which scheme the registry speaks.
    pub fn other_scheme(&self) -> Option<&Url> {
        (self.may_fall_back && !self.use_plain.load(Ordering::Relaxed)).then_some(&self.plain)
    }

    /// Switches to plain HTTP after a server did not speak TLS. False where that is not allowed.
    pub fn fall_back(&self) -> bool {
        if self.may_fall_back {
            self.use_plain.store(true, Ordering::Relaxed);
        }
        self.may_fall_back
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(host: &str, plain_http: bool, may_fall_back: bool) -> Endpoint {
        Endpoint::new(&Host::parse(host).unwrap(), plain_http, may_fall_back).unwrap()
    }

    #[test]
    fn tls_unless_configured() {
        assert_eq!(endpoint("docker.io", false, false).base().as_str(), "https://registry-1.docker.io/");
        assert_eq!(
            endpoint("r.example.com:5000", false, false).base().as_str(),
            "https://r.example.com:5000/"
        );
        assert_eq!(endpoint("r.example.com:5000", true, false).base().as_str(), "http://r.example.com:5000/");
        assert_eq!(endpoint("[::1]:5000", false, true).base().as_str(), "https://[::1]:5000/");
        assert!(Endpoint::new(&Host::parse("r.example.com:99999").unwrap(), false, false).is_none());
    }

    #[test]
    fn plain_http_is_fallen_back_to_only_where_that_is_allowed() {
        let open = endpoint("r.example.com:5000", false, true);
        assert!(open.fall_back());
        assert_eq!(open.base().scheme(), "http");
        let strict = endpoint("r.example.com:5000", false, false);
        assert!(!strict.fall_back());
        assert_eq!(strict.base().scheme(), "https");
    }
}
