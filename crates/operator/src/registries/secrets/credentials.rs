//! A Secret, read: its registry credentials, or why there are none.

use std::fmt;
use std::hash::BuildHasher as _;
use std::sync::{Arc, OnceLock};

use fairlead_domain::keyring::{Credential, IdentityKey, Keyring, SecretKind};
use fairlead_domain::reference::Repository;
use fairlead_plan::pull_secrets::Content;
use k8s_openapi::api::core::v1::Secret;
use sha2::{Digest as _, Sha256};
use zeroize::Zeroizing;

/// What reading a Secret led to.
#[derive(Debug, Clone)]
pub enum Read {
    Keys(Arc<Keys>),
    Missing,
    /// It is there and does not hold registry credentials: another type, or malformed.
    Unusable(Arc<str>),
    /// It could not be read: the API server refused or did not answer in time.
    Failed(Arc<str>),
}

impl Read {
    pub fn keys(&self) -> Option<&Arc<Keys>> {
        match self {
            Self::Keys(keys) => Some(keys),
            Self::Missing | Self::Unusable(_) | Self::Failed(_) => None,
        }
    }

    /// What is wrong, as the end of a sentence that begins with the name of the Secret.
    pub fn problem(&self) -> Option<String> {
        match self {
            Self::Keys(_) => None,
            Self::Missing => Some("does not exist".to_owned()),
            Self::Unusable(why) => Some(format!("cannot be used: {why}")),
            Self::Failed(why) => Some(format!("could not be read: {why}")),
        }
    }
}

/// The credentials of one Secret.
pub struct Keys {
    keyring: Keyring,
    kind: SecretKind,
    data: Zeroizing<Vec<u8>>,
    content: Content,
}

impl Keys {
    /// Credentials for an image, in the order in which the kubelet would try those of all these Secrets.
    pub fn lookup<'k>(keys: impl IntoIterator<Item = &'k Self>, image: &Repository) -> Vec<Credential> {
        let keyrings: Vec<&Keyring> = keys.into_iter().map(|keys| &keys.keyring).collect();
        Keyring::lookup_joined(&keyrings, image)
    }

    /// Tells versions of a Secret apart within this process.
    pub fn content(&self) -> Content {
        self.content
    }

    pub(super) fn kind(&self) -> SecretKind {
        self.kind
    }

    /// The type of such a Secret.
    pub(super) fn type_name(&self) -> &'static str {
        match self.kind {
            SecretKind::DockerConfigJson => "kubernetes.io/dockerconfigjson",
            SecretKind::DockerCfg => "kubernetes.io/dockercfg",
        }
    }

    pub(super) fn data(&self) -> &[u8] {
        &self.data
    }

    /// Roughly the memory that it takes.
    pub(super) fn weight(&self) -> usize {
        self.data.len().saturating_mul(2)
    }

    /// Reads a Secret; the error says why it holds no registry credentials, and nothing of what it holds.
    pub(super) fn of(mut secret: Secret) -> Result<Self, String> {
        let kind = secret.type_.as_deref().unwrap_or("Opaque");
        let kind = SecretKind::of_type(kind).ok_or_else(|| {
            format!(
                "its type is {kind}; registry credentials are in Secrets of type kubernetes.io/dockerconfigjson or \
                 kubernetes.io/dockercfg"
            )
        })?;
        let value = secret.data.as_mut().and_then(|data| data.remove(kind.data_key()));
        let data = Zeroizing::new(value.ok_or_else(|| format!("it has no key {}", kind.data_key()))?.0);
        let mut keyring = Keyring::new(identity());
        keyring.add(kind, &data).map_err(|error| error.to_string())?;
        let content = content(kind, &data);
        Ok(Self { keyring, kind, data, content })
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keys").field("kind", &self.kind).finish_non_exhaustive()
    }
}

/// Tells data apart within this process. Outside it means nothing, so that it cannot be tested against guesses.
pub(super) fn content(kind: SecretKind, data: &[u8]) -> Content {
    static SALT: OnceLock<[u8; 32]> = OnceLock::new();
    let mut hasher = Sha256::new();
    hasher.update(SALT.get_or_init(random));
    hasher.update(kind.data_key());
    hasher.update([0]);
    hasher.update(data);
    Content(hasher.finalize().into())
}

/// The one key of this process for the identities of credentials, so that equal ones are equal wherever they were read.
pub fn identity() -> IdentityKey {
    static IDENTITY: OnceLock<IdentityKey> = OnceLock::new();
    IDENTITY.get_or_init(|| IdentityKey::new(random())).clone()
}

fn random() -> [u8; 32] {
    let mut bytes = [0; 32];
    if rustls::crypto::ring::default_provider().secure_random.fill(&mut bytes).is_err() {
        // Without the system's random numbers no TLS connection could be made either; what the standard library drew
        // for its hash tables is the best that is left.
        let state = std::hash::RandomState::new();
        for (index, chunk) in bytes.chunks_mut(8).enumerate() {
            chunk.copy_from_slice(&state.hash_one(index).to_be_bytes());
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use fairlead_domain::reference::Reference;
    use serde_json::json;

    use super::*;

    fn read(value: serde_json::Value) -> Result<Keys, String> {
        Keys::of(serde_json::from_value(value).expect("a Secret"))
    }

    fn dockercfg(text: &str) -> serde_json::Value {
        use base64::Engine as _;
        use base64::prelude::BASE64_STANDARD;
        json!({"type": "kubernetes.io/dockercfg", "data": {".dockercfg": BASE64_STANDARD.encode(text)}})
    }

    #[test]
    fn secrets_without_credentials_say_why_and_show_nothing() {
        for (secret, why) in [
            (json!({"data": {"password": "cGE1NQ=="}}), "its type is Opaque"),
            (json!({"type": "kubernetes.io/tls"}), "its type is kubernetes.io/tls"),
            (json!({"type": "kubernetes.io/dockercfg"}), "it has no key .dockercfg"),
            (dockercfg("pa55"), "not valid JSON"),
            (dockercfg(r#"{"r.io": "pa55"}"#), "wrong type"),
            (dockercfg(r#"{"r.io": {"auth": "pa55-"}}"#), "must be the base64 of user:password"),
        ] {
            let error = read(secret).expect_err(why);
            assert!(error.contains(why), "{error}");
            assert!(!error.contains("pa55") && !error.contains("cGE1NQ"), "{error}");
        }
    }

    #[test]
    fn equal_content_is_equal_and_shows_nothing() {
        let text = r#"{"r.io": {"username": "us3r", "password": "pa55"}}"#;
        let (one, same, other) = (read(dockercfg(text)), read(dockercfg(text)), read(dockercfg("{}")));
        let [one, same, other] = [one, same, other].map(|keys| keys.expect("a keyring"));
        assert_eq!(one.content(), same.content());
        assert_ne!(one.content(), other.content());
        let image = Reference::parse("r.io/x").expect("a reference").repository();
        assert_eq!(Keys::lookup([&other, &one], &image), Keys::lookup([&same], &image));
        let printed = format!("{one:?} {:?}", Read::Keys(Arc::new(same)));
        assert!(!printed.contains("us3r") && !printed.contains("pa55"), "{printed}");
    }
}
