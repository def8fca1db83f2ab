//! References for comparing: `REG.local`, `reg.local` and `reg.local:443` are one registry.
//!
//! Hosts keep the spelling they were written in, because runtimes, filters and the kubelet's credential rules use that
//! text. Only this module decides whether two texts name the same registry. A key is never written into a Pod.
//!
//! `:80` stays a registry of its own: whether a registry is spoken to over plain HTTP is not known from its name.

use std::borrow::{Borrow, Cow};
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::net::Ipv6Addr;
use std::sync::Arc;

use super::{Reference, parse};

/// The port that a registry has when none is written.
const DEFAULT_PORT: &str = "443";

/// A registry, whatever spelling of its host was used: lower case, without the default port.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HostKey(Arc<str>);

impl HostKey {
    /// The key of a host as it is written in a reference. Idempotent.
    pub fn of(host: &str) -> Self {
        Self(folded(host).into())
    }

    pub(super) fn shared(host: &Arc<str>) -> Self {
        match folded(host) {
            Cow::Borrowed(text) if text.len() == host.len() => Self(Arc::clone(host)),
            text => Self(text.into()),
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn to_shared(&self) -> Arc<str> {
        Arc::clone(&self.0)
    }
}

/// Lets a map of keys be searched with the text of one.
impl Borrow<str> for HostKey {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for HostKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for HostKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostKey({:?})", &*self.0)
    }
}

/// A registry, or a path in it, whatever spelling of its host was used.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PlaceKey<'a>(Cow<'a, str>);

impl<'a> PlaceKey<'a> {
    /// From a host, and a path with its leading slash or nothing; `text` is both.
    pub(super) fn new(text: &'a str, host_end: usize) -> Self {
        let (host, path) = text.split_at_checked(host_end).unwrap_or((text, ""));
        Self(match folded(host) {
            Cow::Borrowed(folded) if folded.len() == host.len() => Cow::Borrowed(text),
            folded => Cow::Owned(folded.into_owned() + path),
        })
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn into_owned(self) -> PlaceKey<'static> {
        PlaceKey(Cow::Owned(self.0.into_owned()))
    }

    /// The registry alone.
    pub fn host(&self) -> &str {
        self.0.split('/').next().unwrap_or_default()
    }

    /// The places that it lies in, from its registry down to itself.
    pub fn ancestors(&self) -> impl Iterator<Item = PlaceKey<'_>> {
        let text = self.as_str();
        let above = text.match_indices('/').filter_map(|(at, _)| text.get(..at));
        above.chain(std::iter::once(text)).map(|text| PlaceKey(Cow::Borrowed(text)))
    }
}

/// What a runtime pulls for a reference, whatever spelling of its host was used: the digest if there is one, else the
/// tag, else `latest`.
#[derive(Clone)]
pub struct ImageKey(Reference);

impl ImageKey {
    pub(super) fn new(reference: Reference) -> Self {
        Self(reference)
    }

    /// The reference that it was made of.
    pub fn reference(&self) -> &Reference {
        &self.0
    }

    /// In the order of their texts: host, path, and what is pulled.
    fn parts(&self) -> (PlaceKey<'_>, &str) {
        (self.0.place(), self.0.pulled_suffix())
    }
}

impl PartialEq for ImageKey {
    fn eq(&self, other: &Self) -> bool {
        self.0.is_same_image(&other.0)
    }
}

impl Eq for ImageKey {}

impl Hash for ImageKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.parts().hash(state);
    }
}

impl PartialOrd for ImageKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ImageKey {
    fn cmp(&self, other: &Self) -> Ordering {
        self.parts().cmp(&other.parts())
    }
}

impl fmt::Display for ImageKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (place, pulled) = self.parts();
        write!(f, "{}{pulled}", place.as_str())
    }
}

impl fmt::Debug for ImageKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ImageKey({self})")
    }
}

/// Whether two hosts are one registry.
pub(super) fn is_same_host(one: &str, other: &str) -> bool {
    one == other || folded(one) == folded(other)
}

/// A host in the one spelling that stands for all of them.
fn folded(host: &str) -> Cow<'_, str> {
    let after_address = host.rfind(']').map_or(0, |at| at + 1);
    let port_at = host.get(after_address..).and_then(|rest| rest.find(':')).map(|at| after_address + at);
    let (name, port) = match port_at {
        Some(at) => (host.get(..at).unwrap_or(host), host.get(at + 1..)),
        None => (host, None),
    };
    // Dialling reads a port as a number: `0443` is 443.
    let port = port.map(|port| port.trim_start_matches('0')).filter(|port| *port != DEFAULT_PORT);
    let name = folded_name(name);
    match (name, port) {
        (name, None) => name,
        (Cow::Borrowed(name), Some(port)) if name.len() + 1 + port.len() == host.len() => Cow::Borrowed(host),
        (name, Some(port)) => Cow::Owned(format!("{name}:{port}")),
    }
}

fn folded_name(name: &str) -> Cow<'_, str> {
    if let Some(address) = name.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'))
        && let Ok(address) = address.parse::<Ipv6Addr>()
    {
        let text = format!("[{address}]");
        return if text == name { Cow::Borrowed(name) } else { Cow::Owned(text) };
    }
    if name.bytes().any(|byte| byte.is_ascii_uppercase()) {
        let lower = name.to_ascii_lowercase();
        return Cow::Owned(parse::canonical_host(&lower).to_owned());
    }
    Cow::Borrowed(parse::canonical_host(name))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::reference::{Host, Location};

    fn reference(text: &str) -> Reference {
        Reference::parse(text).unwrap()
    }

    #[test]
    fn a_registry_is_the_same_in_every_spelling() {
        for (spelling, key) in [
            ("reg.local", "reg.local"),
            ("REG.local", "reg.local"),
            ("reg.local:443", "reg.local"),
            ("Reg.Local:443", "reg.local"),
            ("reg.local:0443", "reg.local"),
            ("reg.local:5000", "reg.local:5000"),
            ("REG.local:05000", "reg.local:5000"),
            ("reg.local:80", "reg.local:80"),
            ("reg.local:4430", "reg.local:4430"),
            ("REG", "reg"),
            ("docker.io", "docker.io"),
            ("Docker.io:443", "docker.io"),
            ("Index.docker.io", "docker.io"),
            ("127.0.0.1:443", "127.0.0.1"),
            ("[::1]:443", "[::1]"),
            ("[0:0::1]:5000", "[::1]:5000"),
            ("[FE80::ABCD]", "[fe80::abcd]"),
            ("[fd00::443]", "[fd00::443]"),
        ] {
            assert_eq!(HostKey::of(spelling).as_str(), key, "{spelling}");
            assert_eq!(HostKey::of(key).as_str(), key, "a key is its own key");
            let host = Host::parse(spelling).unwrap();
            assert_eq!(host.key().as_str(), key);
            if spelling != "Index.docker.io" {
                assert_eq!(host.as_str(), spelling, "a host keeps its spelling");
            }
        }
    }

    #[test]
    fn images_are_compared_by_what_is_pulled_from_which_registry() {
        let digest = format!("sha256:{}", "a".repeat(64));
        for (one, other, same) in [
            ("reg.local/a/b:1", "REG.local:443/a/b:1", true),
            ("reg.local/a/b", "Reg.local/a/b:latest", true),
            (&*format!("reg.local/a:1@{digest}"), &*format!("reg.local:443/a@{digest}"), true),
            ("reg.local/a/b:1", "reg.local/a/b:2", false),
            ("reg.local/a/b:1", "reg.local:80/a/b:1", false),
            ("reg.local/a/b:1", "reg.local:5000/a/b:1", false),
            ("reg.local/a/b:v1", "reg.local/a/b:V1", false),
            ("reg.local/a/b:1", "other.local/a/b:1", false),
        ] {
            let (one, other) = (reference(one), reference(other));
            assert_eq!(one.key() == other.key(), same, "{one} {other}");
            assert_eq!(one.key().cmp(&other.key()).is_eq(), same, "{one} {other}");
            assert_eq!(one.key().to_string() == other.key().to_string(), same, "{one} {other}");
            assert!(one != other, "as texts they differ");
        }
    }

    #[test]
    fn an_image_lies_in_a_place_in_every_spelling() {
        let image = reference("REG.local:443/team/app:1");
        let places: Vec<String> = image.place().ancestors().map(|place| place.as_str().to_owned()).collect();
        assert_eq!(places, ["reg.local", "reg.local/team", "reg.local/team/app"]);
        assert_eq!(image.place().host(), "reg.local");
        for (registry, path, inside) in [
            ("reg.local", "", true),
            ("Reg.LOCAL", "team", true),
            ("reg.local:443", "team/app", true),
            ("reg.local", "tea", false),
            ("reg.local:5000", "team", false),
            ("reg.local", "Team", false),
        ] {
            let Ok(place) = Location::new(registry, path) else { continue };
            assert_eq!(place.contains(&image), inside, "{place}");
            assert_eq!(image.place().ancestors().any(|one| one == place.key()), inside, "{place}");
        }
    }

    proptest! {
        #[test]
        fn folding_changes_nothing_but_case_and_default_port(host in "[a-zA-Z][a-zA-Z0-9.-]{0,20}(:[0-9]{1,5})?") {
            let key = HostKey::of(&host);
            prop_assert_eq!(&HostKey::of(key.as_str()), &key);
            prop_assert_eq!(&HostKey::of(&host.to_ascii_uppercase()), &key);
            if !host.contains(':') {
                prop_assert_eq!(&HostKey::of(&format!("{host}:443")), &key);
                prop_assert_ne!(&HostKey::of(&format!("{host}:80")), &key);
            }
        }
    }
}
