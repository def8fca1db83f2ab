//! Docker configurations in Secrets, read as the kubelet reads them.
//!
//! Go's decoder ignores the case of field names, lets the last of several equal keys win and takes `null` for absence;
//! so does this one. Errors name the registry and never quote the value.

use std::collections::BTreeMap;
use std::{fmt, mem};

use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use base64::{Engine as _, alphabet};
use serde::de::{self, DeserializeSeed, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use thiserror::Error;
use zeroize::Zeroizing;

use super::SecretKind;
use super::scope::shown;
use crate::json::{self, is_field};

/// Why a Secret's data is not a usable docker configuration.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ConfigError {
    #[error("the docker configuration is not valid JSON: see line {line}, column {column}")]
    Syntax { line: usize, column: usize },
    #[error(
        "the docker configuration has a value of the wrong type before line {line}, column {column}: entries are \
         objects, and username, password, email and auth are texts"
    )]
    Type { line: usize, column: usize },
    #[error("the entry for {location:?}: \"auth\" must be the base64 of user:password")]
    Auth { location: String },
}

/// A user and a password, wiped when dropped.
pub(super) struct Login {
    pub(super) username: Zeroizing<Vec<u8>>,
    pub(super) password: Zeroizing<Vec<u8>>,
}

impl Login {
    pub(super) fn new(username: &[u8], password: &[u8]) -> Self {
        Self { username: Zeroizing::new(username.to_vec()), password: Zeroizing::new(password.to_vec()) }
    }
}

type Logins = BTreeMap<String, Login>;

/// The entries of a configuration, ordered by their location as written.
pub(super) fn read(kind: SecretKind, data: &[u8]) -> Result<Logins, ConfigError> {
    let text = json::tidied(data);
    let mut state = ParsedConfig::default();
    let mut decoder = serde_json::Deserializer::from_str(&text);
    let outcome = match kind {
        SecretKind::DockerConfigJson => Config(&mut state).deserialize(&mut decoder),
        SecretKind::DockerCfg => Entries(&mut state).deserialize(&mut decoder),
    };
    match (outcome.and_then(|()| decoder.end()), state.refused.take()) {
        (Ok(()), _) => Ok(state.logins),
        (Err(_), Some(location)) => Err(ConfigError::Auth { location }),
        (Err(error), None) => {
            let (line, column) = (error.line(), error.column());
            // The decoder's own words are dropped: they quote the value.
            Err(if error.is_data() {
                ConfigError::Type { line, column }
            } else {
                ConfigError::Syntax { line, column }
            })
        }
    }
}

#[derive(Default)]
struct ParsedConfig {
    logins: Logins,
    /// The entry whose `auth` could not be decoded.
    refused: Option<String>,
}

/// The whole `.dockerconfigjson`.
struct Config<'s>(&'s mut ParsedConfig);

impl<'de> DeserializeSeed<'de> for Config<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Config<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with \"auths\"")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            if is_field(&key, "auths") {
                map.next_value_seed(Entries(self.0))?;
            } else if is_field(&key, "HttpHeaders") {
                // Not used; but a Secret that has it wrong is refused by the kubelet as a whole.
                map.next_value::<Option<BTreeMap<String, Text>>>()?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(())
    }
}

/// Entries by location. Given twice they are merged; given as `null` they are forgotten.
struct Entries<'s>(&'s mut ParsedConfig);

impl<'de> DeserializeSeed<'de> for Entries<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Entries<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of registries")
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        self.0.logins.clear();
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(location) = map.next_key::<String>()? {
            let entry: Option<AuthEntry> = map.next_value()?;
            let Some(login) = entry.unwrap_or_default().login() else {
                self.0.refused = Some(shown(&location));
                return Err(de::Error::custom("auth"));
            };
            self.0.logins.insert(location, login);
        }
        Ok(())
    }
}

/// A text, or `null`, which leaves things as they are.
#[derive(Default)]
struct Text(Option<Zeroizing<String>>);

impl<'de> Deserialize<'de> for Text {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Option::<String>::deserialize(deserializer).map(|text| Self(text.map(Zeroizing::new)))
    }
}

/// One entry as written.
#[derive(Default)]
struct AuthEntry {
    username: Text,
    password: Text,
    auth: Text,
}

impl<'de> Deserialize<'de> for AuthEntry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Self::default())
    }
}

impl<'de> Visitor<'de> for AuthEntry {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with username, password or auth")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Self, A::Error> {
        while let Some(key) = map.next_key::<String>()? {
            let fields = [
                ("username", &mut self.username),
                ("password", &mut self.password),
                ("auth", &mut self.auth),
            ];
            if let Some((_, field)) = fields.into_iter().find(|(name, _)| is_field(&key, name)) {
                let text: Text = map.next_value()?;
                if text.0.is_some() {
                    *field = text;
                }
            } else if is_field(&key, "email") {
                // Not used either, and checked for the same reason as the headers.
                map.next_value::<Text>()?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(self)
    }
}

impl AuthEntry {
    /// `auth` wins over user and password. `None` if it is there and cannot be decoded.
    fn login(mut self) -> Option<Login> {
        let take = |text: &mut Text| text.0.take().map(|mut text| mem::take(&mut *text)).unwrap_or_default();
        match self.auth.0.as_deref() {
            Some(auth) if !auth.is_empty() => decode(auth),
            _ => Some(Login {
                username: Zeroizing::new(take(&mut self.username).into_bytes()),
                password: Zeroizing::new(take(&mut self.password).into_bytes()),
            }),
        }
    }
}

/// Bits that a last digit carries too much are ignored, as Go ignores them.
const fn base64(padding: DecodePaddingMode) -> GeneralPurpose {
    let config =
        GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true).with_decode_padding_mode(padding);
    GeneralPurpose::new(&alphabet::STANDARD, config)
}

const PADDED: GeneralPurpose = base64(DecodePaddingMode::RequireCanonical);
const UNPADDED: GeneralPurpose = base64(DecodePaddingMode::RequireNone);

fn decode(auth: &str) -> Option<Login> {
    let engine = if auth.trim_end().ends_with('=') { PADDED } else { UNPADDED };
    let mut digits = Zeroizing::new(Vec::with_capacity(auth.len()));
    digits.extend(auth.bytes().filter(|byte| !matches!(byte, b'\r' | b'\n')));
    let pair = Zeroizing::new(engine.decode(&*digits).ok()?);
    let at = pair.iter().position(|byte| *byte == b':')?;
    let (username, password) = pair.split_at_checked(at)?;
    Some(Login::new(username, password.get(1..)?))
}
