//! Helpers of the unit tests.

use fairlead_domain::keyring::{Credential, IdentityKey, Keyring};
use fairlead_domain::reference::Reference;

/// A credential of its own for each user name.
pub(crate) fn credential(user: &str) -> Credential {
    let mut keyring = Keyring::new(IdentityKey::new([7; 32]));
    assert!(keyring.add_login("r.example", user.as_bytes(), b"password"));
    let image = Reference::parse("r.example/a").unwrap();
    keyring.lookup(&image.repository()).remove(0)
}
