//! The Secret of a query: how its backend is authenticated to, and which certificates count.

use fairlead_domain::keyring::{Credential, Keyring};
use fairlead_domain::reference::Repository;
use fairlead_plan::warm::discovery::{Failure, FailureReason, LARGEST_BODY};
use fairlead_registry::RegistrySettings;
use fairlead_registry::http_client::{ClientCertificate, HttpSettings, ServiceAuth};
use hyper::header::{AUTHORIZATION, HeaderMap, HeaderName, HeaderValue};
use zeroize::Zeroizing;

use crate::context::Context;
use crate::platform::api_error::Class;
use crate::registries::secrets::{OpaqueSecret, identity};

/// What a Secret says about a backend.
#[derive(Debug, Default)]
pub(super) struct Access {
    auth: ServiceAuth,
    ca: Option<Vec<u8>>,
    client_certificate: Option<ClientCertificate>,
    headers: HeaderMap,
}

impl Access {
    /// Reads the Secret of a query from the namespace of pull Pods.
    pub(super) async fn read(context: &Context, secret: Option<&str>) -> Result<Self, Failure> {
        let Some(name) = secret else { return Ok(Self::default()) };
        let namespace = context.config.warm.namespace.as_deref().unwrap_or(&context.namespace);
        let unavailable = |problem: String| {
            let message = format!("Secret {namespace}/{name} {problem}");
            Failure::new(FailureReason::SecretUnavailable, message)
        };
        let secret = OpaqueSecret::read(&context.client, namespace, name).await.map_err(|failure| {
            unavailable(match failure.class {
                Class::Absent => "does not exist".to_owned(),
                _ => format!("could not be read: {failure}"),
            })
        })?;
        Self::of(&secret).map_err(|problem| unavailable(format!("cannot be used: {problem}")))
    }

    fn of(secret: &OpaqueSecret) -> Result<Self, String> {
        let data = &secret.data;
        let text = |key: &str| Some(secret.text(key)?.map_err(|()| format!("{key} is not a text")));
        let mut headers = HeaderMap::new();
        for (key, value) in data {
            let Some(name) = key.strip_prefix("headers.") else { continue };
            let header = HeaderName::from_bytes(name.as_bytes()).ok();
            let header = header.zip(HeaderValue::from_bytes(value.0.trim_ascii_end()).ok());
            let (name, mut value) = header.ok_or_else(|| format!("{key} is not a header"))?;
            value.set_sensitive(true);
            headers.insert(name, value);
        }
        let auth = match (text("username"), text("password"), text("token")) {
            _ if headers.contains_key(AUTHORIZATION) => ServiceAuth::None,
            (Some(user), Some(password), _) => {
                ServiceAuth::Basic { user: user?.to_string(), password: password? }
            }
            (_, _, Some(token)) => ServiceAuth::Bearer(token?),
            (Some(_), None, None) => return Err("it has a username and no password".to_owned()),
            (None, Some(_), None) => return Err("it has a password and no username".to_owned()),
            (None, None, None) => ServiceAuth::None,
        };
        let bytes = |key: &str| data.get(key).map(|value| value.0.clone());
        let client_certificate = match (bytes("tls.crt"), bytes("tls.key")) {
            (Some(chain), Some(key)) => Some(ClientCertificate { chain, key: Zeroizing::new(key) }),
            (None, None) => None,
            _ => return Err("tls.crt and tls.key belong together".to_owned()),
        };
        Ok(Self { auth, ca: bytes("ca.crt"), client_certificate, headers })
    }

    pub(super) fn for_http(self) -> HttpSettings {
        let Self { auth, ca, client_certificate, headers } = self;
        HttpSettings {
            auth,
            ca,
            client_certificate,
            headers,
            size_limit: LARGEST_BODY,
            ..HttpSettings::default()
        }
    }

    /// The settings of a registry that only this query has, if there are any.
    pub(super) fn for_registry(
        &self,
        configured: &RegistrySettings,
        plain_http: bool,
    ) -> Option<RegistrySettings> {
        let mut headers = self.headers.clone();
        if let ServiceAuth::Bearer(token) = &self.auth
            && let Ok(mut value) = HeaderValue::from_str(&format!("Bearer {}", **token))
        {
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        let own = RegistrySettings {
            plain_http: configured.plain_http || plain_http,
            ca: self.ca.clone(),
            client_certificate: self.client_certificate.clone(),
            headers,
            ..configured.clone()
        };
        (own != *configured).then_some(own)
    }

    /// User and password for a repository.
    pub(super) fn credentials(&self, repository: &Repository) -> Vec<Credential> {
        let ServiceAuth::Basic { user, password } = &self.auth else { return Vec::new() };
        let mut keyring = Keyring::new(identity());
        keyring.add_login(repository.host().as_str(), user.as_bytes(), password.as_bytes());
        keyring.lookup(repository)
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;

    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<Access, String> {
        let data =
            pairs.iter().map(|(key, value)| ((*key).to_owned(), ByteString(value.as_bytes().to_vec())));
        Access::of(&OpaqueSecret { data: data.collect(), ..OpaqueSecret::default() })
    }

    #[test]
    fn keys_of_a_secret_have_an_order() {
        let pair = [("username", "u"), ("password", "p\n")];
        for (data, expected) in [
            (vec![], "None"),
            (vec![("token", "t\n")], "Bearer"),
            (pair.to_vec(), "Basic"),
            ([&pair[..], &[("token", "t")]].concat(), "Basic"),
            ([&pair[..], &[("headers.Authorization", "Custom x")]].concat(), "None"),
        ] {
            assert_eq!(format!("{:?}", read(&data).unwrap().auth), expected, "{data:?}");
        }
        let ServiceAuth::Basic { password, .. } = read(&pair).unwrap().auth else { panic!("no password") };
        assert_eq!(&**password, "p");
        let access = read(&[("headers.X-Scope-OrgID", "team")]).unwrap();
        assert_eq!(access.headers.get("x-scope-orgid").unwrap(), "team");
    }

    #[test]
    fn what_cannot_be_used_is_said() {
        for (data, expected) in [
            (vec![("username", "u")], "no password"),
            (vec![("password", "u")], "no username"),
            (vec![("tls.crt", "c")], "belong together"),
            (vec![("headers.a b", "c")], "not a header"),
            (vec![("headers.X", "a\nb")], "not a header"),
        ] {
            let problem = read(&data).unwrap_err();
            assert!(problem.contains(expected), "{data:?}: {problem}");
        }
    }

    #[test]
    fn a_registry_has_settings_of_its_own_only_where_the_query_has() {
        let usual = RegistrySettings::default();
        let own = |data: &[(&str, &str)], plain| read(data).unwrap().for_registry(&usual, plain);
        assert_eq!(own(&[], false), None);
        assert_eq!(own(&[("username", "u"), ("password", "p")], false), None, "those are credentials");
        assert!(own(&[], true).unwrap().plain_http);
        assert_eq!(own(&[("ca.crt", "pem")], false).unwrap().ca.as_deref(), Some(&b"pem"[..]));
        assert!(own(&[("token", "t")], false).unwrap().headers.contains_key(AUTHORIZATION));
    }
}
