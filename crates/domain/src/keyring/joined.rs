//! Several keyrings searched as if they were one.
//!
//! A Pod names several Secrets, and the kubelet puts them all into one keyring. Here each Secret is read once and kept
//! on its own, because many Pods share it with different neighbours; the order that one keyring would have given is
//! made when an image is looked up.

use super::{Credential, CredentialScope, DOCKER_HUB_KEY, Keyring, is_default_registry};
use crate::reference::Repository;

impl Keyring {
    /// What [`Keyring::lookup`] finds in one keyring to which the content of these was added in their order. All must
    /// have the same identity key, or equal credentials count as different ones.
    pub fn lookup_joined(keyrings: &[&Self], image: &Repository) -> Vec<Credential> {
        let mut found = Vec::new();
        if let Some(target) = CredentialScope::parse(image.as_str().as_bytes()) {
            for keyring in keyrings {
                let covering = keyring
                    .entries
                    .iter()
                    .filter(|(_, entry)| entry.scope.as_ref().is_some_and(|scope| scope.covers(&target)));
                found.extend(covering.map(|(key, entry)| (key, &entry.credentials)));
            }
        }
        // Keys backwards, as in one keyring; the sort is stable, so one key keeps the order of the keyrings.
        found.sort_by(|(left, _), (right, _)| right.cmp(left));
        if found.is_empty() && is_default_registry(image.host_text()) {
            let of_hub = keyrings.iter().filter_map(|keyring| keyring.entries.get_key_value(DOCKER_HUB_KEY));
            found.extend(of_hub.map(|(key, entry)| (key, &entry.credentials)));
        }
        found.into_iter().flat_map(|(_, credentials)| credentials.iter().cloned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::keyring::IdentityKey;
    use crate::reference::Reference;

    const LOCATIONS: [&str; 16] = [
        "r.example.com",
        "https://r.example.com/v2/",
        "r.example.com/team",
        "r.example.com/team/app",
        "r.example.com/te",
        "*.example.com",
        "*.example.com/team",
        "r*.example.com",
        "r.example.com:5000",
        "docker.io",
        "docker.io/library",
        "index.docker.io",
        "https://index.docker.io/v1/",
        "index.docker.io/library",
        "localhost",
        "a:b:c",
    ];
    const IMAGES: [&str; 8] = [
        "r.example.com/team/app",
        "r.example.com/x",
        "s.example.com/team/app",
        "r.example.com:5000/x",
        "nginx",
        "bitnami/redis",
        "localhost/x",
        "quay.io/x/y",
    ];

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]
        #[test]
        fn joined_keyrings_are_one_keyring(
            secrets in prop::collection::vec(prop::collection::vec((0..LOCATIONS.len(), 0..4_u8), 0..6), 0..5)
        ) {
            let new = || Keyring::new(IdentityKey::new([7; 32]));
            let mut whole = new();
            let mut parts = Vec::new();
            for secret in &secrets {
                let mut part = new();
                for (location, user) in secret {
                    for keyring in [&mut whole, &mut part] {
                        keyring.add_login(LOCATIONS[*location], &[b'a' + user], b"x");
                    }
                }
                parts.push(part);
            }
            for image in IMAGES {
                let image = Reference::parse(image).unwrap().repository();
                prop_assert_eq!(Keyring::lookup_joined(&parts.iter().collect::<Vec<_>>(), &image), whole.lookup(&image));
            }
        }
    }
}
