//! Arbitrary bytes into everything that reads foreign bytes: nothing may panic, hang or grow without bound.

use fairlead_domain::digest::Digest;
use fairlead_domain::keyring::{IdentityKey, Keyring, SecretKind, glob_matches};
use fairlead_domain::platform::PlatformFilter;
use fairlead_domain::reference::{AnyReference, Host, Location, Reference, Tag};
use fairlead_domain::selector::{Pattern, Selector};

use crate::random::{Random, cases};

/// Pieces that lead deep into each grammar, mixed with bytes that belong to none.
const PIECES: [&[u8]; 40] = [
    b"docker.io",
    b"/",
    b":",
    b"@",
    b"sha256:",
    b"0123456789abcdef0123456789abcdef",
    b"[::1]",
    b"..",
    b"__",
    b"-",
    b"library",
    b"(",
    b")",
    b"[",
    b"]",
    b"[^",
    b"{",
    b"}",
    b"{1,2}",
    b"*",
    b"+?",
    b"|",
    b"\\",
    b"\\p{L}",
    b"\\Q",
    b"(?i)",
    b"(?P<n>",
    b"a",
    b" in (",
    b"notin",
    b"!=",
    b",",
    b">",
    b"{\"auths\":{",
    b"\":{\"auth\":\"",
    b"\"",
    b"\\ud800",
    b"null",
    b"\xff",
    "\u{e9}".as_bytes(),
];

fn input(random: &mut Random) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..random.below(14) {
        if random.once_in(5) {
            bytes.push(u8::try_from(random.below(256)).unwrap());
        } else {
            bytes.extend_from_slice(random.pick(&PIECES));
        }
    }
    bytes
}

#[test]
fn nothing_panics() {
    let mut random = Random::new();
    let nginx = Reference::parse("nginx").unwrap();
    for _ in 0..cases(10_000) {
        let bytes = input(&mut random);
        let text = String::from_utf8_lossy(&bytes);
        let other = String::from_utf8_lossy(&input(&mut random)).into_owned();
        if let Ok(reference) = Reference::parse(&text) {
            assert_eq!(Reference::parse(reference.as_str()).unwrap(), reference);
            assert!(reference.pulled().as_str().starts_with(reference.name()));
        }
        if let Err(error) = AnyReference::parse(&text) {
            assert!(error.to_string().len() < 1000);
        }
        if let Ok(place) = Location::new(&text, &other) {
            assert_eq!(place.as_str().parse::<Location>().unwrap(), place, "{text} {other}");
            if let Ok(copy) = place.copy_of(&nginx) {
                assert!(copy.as_str().ends_with("nginx"));
            }
        }
        let _ = (Host::parse(&text).is_ok(), Tag::parse(&text).is_ok(), text.parse::<Digest>().is_ok());
        let _ = text.parse::<PlatformFilter>().is_ok();
        if let Ok(pattern) = Pattern::parse(&text) {
            pattern.matches(&other);
        }
        if let Ok(selector) = Selector::parse(&text) {
            assert_eq!(Selector::parse(&selector.to_string()).unwrap(), selector);
        }
        glob_matches(&bytes, other.as_bytes());
        let mut keyring = Keyring::new(IdentityKey::new([0; 32]));
        for kind in [SecretKind::DockerCfg, SecretKind::DockerConfigJson] {
            let _ = keyring.add(kind, &bytes).is_ok();
        }
        keyring.add_login(&text, b"u", b"p");
        keyring.lookup(&nginx.repository());
    }
}

#[test]
fn hostile_sizes_stay_cheap() {
    let long = "a".repeat(1 << 20);
    assert!(Reference::parse(&long).is_err());
    assert!(Reference::parse(&format!("{}/x", "a.".repeat(1 << 19))).is_err());
    assert!(Pattern::parse(&long).is_err());
    assert!(Selector::parse(&long).is_err());
    assert!(Selector::parse(&"a,".repeat(1 << 16)).is_err());
    let mut keyring = Keyring::new(IdentityKey::new([0; 32]));
    assert!(keyring.add(SecretKind::DockerCfg, "[".repeat(1 << 20).as_bytes()).is_err());
    let nested = format!(r#"{{"auths":{{}},"x":{}{}}}"#, "[".repeat(5000), "]".repeat(5000));
    assert!(keyring.add(SecretKind::DockerConfigJson, nested.as_bytes()).is_ok());
    // Patterns that make backtracking engines explode.
    let pattern = Pattern::parse("(a+)+(a|aa)*b").unwrap();
    assert!(!pattern.matches(&"a".repeat(10_000)));
    assert!(!glob_matches(&b"*a".repeat(200), &b"a".repeat(190)));
}
