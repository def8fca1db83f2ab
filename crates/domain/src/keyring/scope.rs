//! The registries and repositories that a credential is valid for.
//!
//! Entries of a docker configuration are read as URLs, with the rules of the kubelet's URL parser, because they decide
//! which entries match: it refuses brackets that hold no IPv6 address, cuts at `?` and `#` (so the only wildcard that
//! can work in a host is `*`), and decodes percent signs.

use std::net::Ipv6Addr;

use super::glob;

/// Limit of one label of a DNS name.
const LONGEST_LABEL: usize = 63;

/// The key under which an entry is stored: host and path without scheme, user and API version. `None` for a location
/// that is no URL; the kubelet ignores such entries.
pub(super) fn key(location: &str) -> Option<Vec<u8>> {
    let address = ["https://", "http://"]
        .into_iter()
        .find_map(|scheme| location.strip_prefix(scheme))
        .unwrap_or(location);
    let Url { host, path } = Url::parse(address.as_bytes())?;
    let versioned = path.starts_with(b"/v1/") || path.starts_with(b"/v2/");
    let path = if versioned { path.get(3..)? } else { &path };
    let mut key = host;
    if path != b"/" {
        key.extend_from_slice(path);
    }
    Some(key)
}

/// A location for a message: the registry alone, and only where it looks like one. Users, queries and whatever
/// else was written there by mistake may be secret; tokens have dots as well, but capitals and long words between them.
pub fn shown(location: &str) -> String {
    let key = key(location).and_then(|key| String::from_utf8(key).ok()).unwrap_or_default();
    let host = key.split('/').next().unwrap_or_default();
    let number = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    let (name, port) = host.rsplit_once(':').filter(|(_, port)| number(port)).unwrap_or((host, ""));
    let word = |label: &str| {
        let usual = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-*".contains(&byte);
        (1..=LONGEST_LABEL).contains(&label.len()) && label.bytes().all(usual)
    };
    let is_name = name.split('.').all(word);
    let is_address = name.starts_with('[') && !name.contains('%');
    if is_address || is_name && (name == "localhost" || name.contains('.')) {
        host.chars().take(100).collect()
    } else if is_name && !port.is_empty() {
        // A user and a password may look like this; the number is left out.
        name.to_owned()
    } else {
        "…".to_owned()
    }
}

/// A host pattern, split for comparison, and a path.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct CredentialScope {
    labels: Vec<Vec<u8>>,
    port: Vec<u8>,
    path: Vec<u8>,
}

impl CredentialScope {
    pub(super) fn parse(address: &[u8]) -> Option<Self> {
        let Url { host, path } = Url::parse(address)?;
        let (name, port) = split_port(&host).unwrap_or((&host, &[]));
        let labels = name.split(|byte| *byte == b'.').map(<[u8]>::to_vec).collect();
        Some(Self { labels, port: port.to_vec(), path })
    }

    /// Same port, as many labels, each matching its pattern, and the path a prefix of the target's, as text.
    pub(super) fn covers(&self, target: &Self) -> bool {
        self.port == target.port
            && self.labels.len() == target.labels.len()
            && target.path.starts_with(&self.path)
            && self.labels.iter().zip(&target.labels).all(|(pattern, label)| glob::matches(pattern, label))
    }
}

/// Host with port, and the decoded path, of an address without its scheme.
struct Url {
    host: Vec<u8>,
    path: Vec<u8>,
}

impl Url {
    fn parse(address: &[u8]) -> Option<Self> {
        let (address, fragment) = cut(address, b'#');
        decoded(fragment, Part::Other)?;
        if address.iter().any(u8::is_ascii_control) {
            return None;
        }
        let (address, _query) = cut(address, b'?');
        let slash = address.iter().position(|byte| *byte == b'/').unwrap_or(address.len());
        let (authority, path) = address.split_at_checked(slash)?;
        let host = match authority.iter().rposition(|byte| *byte == b'@') {
            None => authority,
            Some(at) => {
                let (user, host) = authority.split_at_checked(at)?;
                let allowed =
                    |byte: &u8| byte.is_ascii_alphanumeric() || b"-._:~!$&'()*+,;=%@".contains(byte);
                if !user.iter().all(allowed) {
                    return None;
                }
                decoded(user, Part::Other)?;
                host.get(1..)?
            }
        };
        Some(Self { host: decoded_host(host)?, path: decoded(path, Part::Other)? })
    }
}

/// What comes before and after the first such byte; nothing comes after one that is not there.
fn cut(text: &[u8], at: u8) -> (&[u8], &[u8]) {
    let mut pieces = text.splitn(2, |byte| *byte == at);
    (pieces.next().unwrap_or_default(), pieces.next().unwrap_or_default())
}

fn decoded_host(host: &[u8]) -> Option<Vec<u8>> {
    match host.iter().rposition(|byte| *byte == b'[') {
        Some(0) => decoded_ipv6(host),
        Some(_) => None,
        None => {
            if let Some(colon) = host.iter().position(|byte| *byte == b':') {
                is_port(host.get(colon..)?).then_some(())?;
            }
            decoded(host, Part::Host)
        }
    }
}

fn decoded_ipv6(host: &[u8]) -> Option<Vec<u8>> {
    let close = host.iter().rposition(|byte| *byte == b']')?;
    let port = host.get(close + 1..)?;
    is_port(port).then_some(())?;
    let inside = host.get(1..close)?;
    let zone_at = inside.windows(3).position(|three| three == b"%25").unwrap_or(inside.len());
    let (address, zone) = inside.split_at_checked(zone_at)?;
    let mut literal = decoded(address, Part::Host)?;
    literal.extend(decoded(zone, Part::Zone)?);

    let text = std::str::from_utf8(&literal).ok()?;
    let address = match text.split_once('%') {
        Some((_, "")) => return None,
        Some((address, _zone)) => address,
        None => text,
    };
    address.parse::<Ipv6Addr>().ok()?;

    let mut whole = vec![b'['];
    whole.extend(literal);
    whole.push(b']');
    whole.extend(decoded(port, Part::Host)?);
    Some(whole)
}

/// Nothing, or a colon and any number of digits.
fn is_port(text: &[u8]) -> bool {
    match text {
        [] => true,
        [b':', digits @ ..] => digits.iter().all(u8::is_ascii_digit),
        _ => false,
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Host,
    Zone,
    Other,
}

fn is_host_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_.~!$&'()*+,;=:[]<>\"".contains(&byte)
}

/// Percent-decoding, with the restrictions that hosts have.
fn decoded(text: &[u8], part: Part) -> Option<Vec<u8>> {
    let mut output = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [byte, tail @ ..] = rest {
        if *byte != b'%' {
            if part != Part::Other && byte.is_ascii() && !is_host_byte(*byte) {
                return None;
            }
            output.push(*byte);
            rest = tail;
            continue;
        }
        let [high, low, after @ ..] = tail else {
            return None;
        };
        let digit = |digit: u8| char::from(digit).to_digit(16).and_then(|value| u8::try_from(value).ok());
        let value = digit(*high)? << 4 | digit(*low)?;
        let percent = value == b'%';
        let fine = match part {
            Part::Host => percent || !value.is_ascii(),
            Part::Zone => percent || value == b' ' || is_host_byte(value),
            Part::Other => true,
        };
        if !fine {
            return None;
        }
        output.push(value);
        rest = after;
    }
    Some(output)
}

/// Host and port of `host:port` or `[host]:port`; `None` where there is no port or no telling.
fn split_port(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let colon = text.iter().rposition(|byte| *byte == b':')?;
    let (before, port) = (text.get(..colon)?, text.get(colon + 1..)?);
    let bracket = |byte: &u8| matches!(byte, b'[' | b']');
    let host = match before {
        [b'[', inside @ .., b']'] => inside,
        _ if before.contains(&b':') => return None,
        _ => before,
    };
    (!host.iter().chain(port).any(bracket)).then_some((host, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keyed(location: &str) -> Option<String> {
        key(location).map(|key| String::from_utf8(key).unwrap())
    }

    #[test]
    fn keys_lose_scheme_user_and_version() {
        for (location, expected) in [
            ("https://index.docker.io/v1/", Some("index.docker.io")),
            ("http://r.example.com/v2/team", Some("r.example.com/team")),
            ("r.example.com:5000/", Some("r.example.com:5000")),
            ("user:p%40ss@r.example.com/team", Some("r.example.com/team")),
            ("r.example.com/v1", Some("r.example.com/v1")),
            ("r.example.com?x=1", Some("r.example.com")),
            ("r[ab].example.com", None),
            ("r.example.com/%zz", None),
            ("r example.com", None),
            ("a:b:c", None),
            ("[::1]:5000", Some("[::1]:5000")),
            ("[1.2.3.4]", None),
            ("[::1", None),
            ("", Some("")),
        ] {
            assert_eq!(keyed(location).as_deref(), expected, "{location}");
        }
    }

    #[test]
    fn messages_name_registries_and_nothing_else() {
        for (location, expected) in [
            ("https://ada:hunter2@r.example.com/x", "r.example.com"),
            ("r.example.com:5000/hunter2", "r.example.com:5000"),
            ("https://r.example.com/?token=hunter2", "r.example.com"),
            ("r.example.com#hunter2", "r.example.com"),
            ("*.example.com", "*.example.com"),
            ("localhost:5000", "localhost:5000"),
            ("127.0.0.1:5000", "127.0.0.1:5000"),
            ("[::1]:5000", "[::1]:5000"),
            ("[::1]", "[::1]"),
            ("registry:5000", "registry"),
            ("robot:1234", "robot"),
            ("robot:hunter2", "…"),
            ("robot:hunter2%40r.example.com", "…"),
            ("cm9ib3Q6aHVudGVyMg==", "…"),
            ("cm9ib3Q6aHVudGVyMg", "…"),
            ("eyJhbGciOiJub25lIn0.eyJzdWIiOiJyb2JvdCJ9.", "…"),
            ("[fe80::1%25hunter2]", "…"),
            ("hunter2", "…"),
            ("r example.com", "…"),
            ("", "…"),
        ] {
            assert_eq!(shown(location), expected, "{location}");
        }
    }

    #[test]
    fn places_cover_by_label_port_and_path() {
        let covers = |place: &str, image: &str| {
            CredentialScope::parse(place.as_bytes())
                .unwrap()
                .covers(&CredentialScope::parse(image.as_bytes()).unwrap())
        };
        for (place, image, expected) in [
            ("r.example.com", "r.example.com/a/b", true),
            ("*.example.com", "r.example.com/a/b", true),
            ("*.example.com", "a.b.example.com/a/b", false),
            ("*.example.com", "example.com/a/b", false),
            ("r*.example.com", "r1.example.com/a", true),
            ("r.example.com:5000", "r.example.com/a", false),
            ("r.example.com", "r.example.com:5000/a", false),
            ("*.example.com:5000", "r.example.com:5000/a", true),
            ("r.example.com/team", "r.example.com/team/a", true),
            ("r.example.com/team", "r.example.com/teams/a", true),
            ("r.example.com/team/", "r.example.com/teams/a", false),
            ("R.example.com", "r.example.com/a", false),
            ("[::1]:5000", "[::1]:5000/a", true),
        ] {
            assert_eq!(covers(place, image), expected, "{place} for {image}");
        }
    }
}
