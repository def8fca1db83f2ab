//! Patterns for registries, as an administrator writes them.

use std::fmt;

use super::{Host, HostKey, ReferenceError};

/// A host in which `*` stands for any characters: `reg.local:5000`, `*.example.com`, `*`. Hosts are compared as
/// everywhere, without case and default port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostPattern {
    written: Box<str>,
    key: HostKey,
}

impl HostPattern {
    pub fn parse(written: &str) -> Result<Self, ReferenceError> {
        // A digit may stand wherever a star may.
        Host::parse(&written.replace('*', "1"))?;
        Ok(Self { written: written.into(), key: HostKey::of(written) })
    }

    /// The pattern that every registry matches.
    pub fn everything() -> Self {
        Self { written: "*".into(), key: HostKey::of("*") }
    }

    pub fn matches(&self, host: &Host) -> bool {
        let host = host.key();
        let (text, mut parts) = (host.as_str(), self.key.as_str().split('*'));
        let first = parts.next().unwrap_or_default();
        let Some(mut rest) = text.strip_prefix(first) else { return false };
        let Some(last) = parts.next_back() else { return rest.is_empty() };
        for part in parts {
            match rest.split_once(part) {
                Some((_, after)) => rest = after,
                None => return false,
            }
        }
        rest.ends_with(last)
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.written)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn matches(pattern: &str, host: &str) -> bool {
        HostPattern::parse(pattern).unwrap().matches(&Host::parse(host).unwrap())
    }

    #[test]
    fn a_star_stands_for_any_characters() {
        for (pattern, host, expected) in [
            ("*", "reg.local:5000", true),
            ("reg.local", "REG.local:443", true),
            ("REG.local:443", "reg.local", true),
            ("reg.local", "reg.local:5000", false),
            ("reg.local:*", "reg.local:5000", true),
            ("reg.local:*", "reg.local", false),
            ("*.example.com", "a.b.Example.com", true),
            ("*.example.com", "example.com", false),
            ("*.example.com", "evil-example.com", false),
            ("*.example.com", "a.example.com.evil.net", false),
            ("*.example.com", "a.example.com:5000", false),
            ("reg-*.example.*", "reg-1.example.net", true),
            ("reg-*.example.*", "reg.example.net", false),
            ("a*a", "a", false),
            ("a*a", "aa", true),
            ("docker.io", "index.docker.io", true),
        ] {
            let Ok(parsed) = Host::parse(host) else { panic!("{host}") };
            assert_eq!(HostPattern::parse(pattern).unwrap().matches(&parsed), expected, "{pattern} {host}");
        }
        assert!(HostPattern::everything().matches(&Host::parse("[::1]:5000").unwrap()));
    }

    #[test]
    fn what_cannot_be_a_host_is_refused() {
        for pattern in
            ["", "https://*.example.com", "reg.local/team", r".*\.example\.com", "reg local", "a:*b"]
        {
            assert!(HostPattern::parse(pattern).is_err(), "{pattern}");
        }
    }

    proptest! {
        #[test]
        fn a_pattern_without_stars_matches_itself_alone(one in "[a-z]{1,6}\\.[a-z]{1,3}", other in "[a-z]{1,6}\\.[a-z]{1,3}") {
            prop_assert_eq!(matches(&one, &other), one == other);
            prop_assert!(matches("*", &one));
            let suffix = format!("*.{}", one.split_once('.').unwrap().1);
            prop_assert!(matches(&suffix, &one));
        }
    }
}
