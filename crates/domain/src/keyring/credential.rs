//! A user and a password that are hard to leak: never printed, wiped when dropped, and logged by an identity from which
//! neither can be computed.

use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest as _, Sha256};
use zeroize::{Zeroize, Zeroizing};

use super::config::Login;

/// A secret of the process that turns credentials into identities. Without it an identity could be reversed by
/// guessing passwords. It must be drawn at random, once.
#[derive(Clone)]
pub struct IdentityKey([u8; 32]);

impl IdentityKey {
    pub fn new(random: [u8; 32]) -> Self {
        Self(random)
    }
}

impl Drop for IdentityKey {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

impl fmt::Debug for IdentityKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("IdentityKey(…)")
    }
}

/// Identifies a credential in caches and in logs. Equal for equal user and password, wherever they came from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CredentialId([u8; 32]);

impl fmt::Display for CredentialId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().take(4).try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for CredentialId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CredentialId({self})")
    }
}

/// A user and a password for a registry. Clones share the one copy in memory.
#[derive(Clone)]
pub struct Credential(Arc<Inner>);

struct Inner {
    login: Login,
    id: CredentialId,
}

impl Credential {
    pub(super) fn new(key: &IdentityKey, login: Login) -> Self {
        let mut hasher = Sha256::new();
        hasher.update(key.0);
        // The length keeps `a` + `bc` and `ab` + `c` apart.
        hasher.update((login.username.len() as u64).to_be_bytes());
        hasher.update(&*login.username);
        hasher.update(&*login.password);
        let id = CredentialId(hasher.finalize().into());
        Self(Arc::new(Inner { login, id }))
    }

    pub fn id(&self) -> CredentialId {
        self.0.id
    }

    /// Bytes, because a configuration may hold a password in any encoding and registries compare bytes.
    pub fn username(&self) -> &[u8] {
        &self.0.login.username
    }

    pub fn password(&self) -> &[u8] {
        &self.0.login.password
    }

    /// Whether neither user nor password is set, as entries that only name a registry leave them.
    pub fn is_blank(&self) -> bool {
        self.username().is_empty() && self.password().is_empty()
    }

    /// What follows `Basic ` in an `Authorization` header.
    pub fn basic(&self) -> Zeroizing<String> {
        let mut pair = Zeroizing::new(Vec::with_capacity(self.username().len() + self.password().len() + 1));
        pair.extend_from_slice(self.username());
        pair.push(b':');
        pair.extend_from_slice(self.password());
        Zeroizing::new(STANDARD.encode(&*pair))
    }
}

impl PartialEq for Credential {
    fn eq(&self, other: &Self) -> bool {
        self.id() == other.id()
    }
}

impl Eq for Credential {}

impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Credential({})", self.id())
    }
}
