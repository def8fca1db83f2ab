//! What an object asks for, in Harbor's terms.

use fairlead_api::reef::{ProxyCacheSpec, ProxyCacheType};
use thiserror::Error;

const DOCKER_HUB: &str = "https://registry-1.docker.io";
const DEFAULT_REGION: &str = "us-west-2";

/// The pair that an object asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Desired {
    pub name: String,
    pub adapter: &'static str,
    /// As Harbor stores it.
    pub url: String,
    pub public: bool,
    /// Where the login of the upstream is.
    pub secret: Option<SecretKeys>,
}

/// A Secret of the operator's namespace, and the keys of user and password in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretKeys {
    pub name: String,
    pub user: String,
    pub password: String,
}

impl SecretKeys {
    /// What tells one login from another without showing it: the version of the Secret, and the keys that are read. No
    /// key has a slash in it.
    pub fn version(&self, secret: &str) -> String {
        format!("{secret}/{}/{}", self.user, self.password)
    }
}

/// What makes an object invalid. The API server refuses it, unless the object is older than the rule.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SpecError {
    #[error(
        "spec.url is missing: types public and private need the address of the upstream, such as https://quay.io"
    )]
    NoUrl,
    #[error("spec.credentials is missing: type private needs credentials.secretName")]
    NoCredentials,
    #[error(
        "spec.ecr is missing: type aws-ecr-private needs ecr.accountId and ecr.staticCredentialsSecretName"
    )]
    NoEcr,
    #[error(
        "spec.name is {0:?}, which Harbor does not take: write lower-case letters and digits, with single ., _ or - \
         between them, at most 64"
    )]
    Name(String),
}

impl Desired {
    pub fn compile(spec: &ProxyCacheSpec) -> Result<Self, SpecError> {
        let name = spec.name.clone();
        if !is_name(&name) {
            return Err(SpecError::Name(name));
        }
        let address = || spec.url.as_deref().and_then(stored_url).ok_or(SpecError::NoUrl);
        let (adapter, url, secret) = match spec.type_ {
            ProxyCacheType::Public => ("docker-registry", address()?, None),
            ProxyCacheType::Private => {
                let login = spec.credentials.as_ref().ok_or(SpecError::NoCredentials)?;
                let secret = SecretKeys {
                    name: login.secret_name.clone(),
                    user: default_key(&login.username_key, "username"),
                    password: default_key(&login.password_key, "password"),
                };
                ("docker-registry", address()?, Some(secret))
            }
            ProxyCacheType::AwsEcrPrivate => {
                let ecr = spec.ecr.as_ref().ok_or(SpecError::NoEcr)?;
                let region = ecr.region.as_deref().filter(|region| !region.is_empty());
                let secret = SecretKeys {
                    name: ecr.static_credentials_secret_name.clone(),
                    user: "access_key_id".to_owned(),
                    password: "secret_access_key".to_owned(),
                };
                ("aws-ecr", ecr_url(&ecr.account_id, region.unwrap_or(DEFAULT_REGION)), Some(secret))
            }
        };
        Ok(Self { name, adapter, url, public: spec.type_ == ProxyCacheType::Public, secret })
    }

    /// Host, and path below it, that Harbor fetches images from, as references name it.
    pub fn upstream(&self) -> Option<String> {
        let url = url::Url::parse(&self.url).ok()?;
        let host = url.host_str()?;
        if is_docker_hub(host) {
            return Some("docker.io".to_owned());
        }
        let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
        Some(format!("{host}{port}{}", url.path().trim_end_matches('/')))
    }
}

/// A key of a Secret; an empty one means the usual.
pub fn default_key(key: &str, usual: &str) -> String {
    if key.is_empty() { usual } else { key }.to_owned()
}

/// The address as Harbor stores it, none if it is blank. All names of Docker Hub mean the host that serves its images.
fn stored_url(url: &str) -> Option<String> {
    let url = url.trim().trim_end_matches('/');
    if url.is_empty() {
        return None;
    }
    let (scheme, rest) = url.split_once("://").unwrap_or(("http", url));
    let host = rest.split(['/', ':']).next().unwrap_or_default();
    if is_docker_hub(host) {
        return Some(DOCKER_HUB.to_owned());
    }
    Some(format!("{}://{rest}", scheme.to_ascii_lowercase()))
}

fn is_docker_hub(host: &str) -> bool {
    let host = host.to_ascii_lowercase();
    host == "docker.io" || host.ends_with(".docker.io") || host == "hub.docker.com"
}

/// Registries in China have another domain.
fn ecr_url(account: &str, region: &str) -> String {
    let domain = if region.starts_with("cn-") { "amazonaws.com.cn" } else { "amazonaws.com" };
    format!("https://{account}.dkr.ecr.{region}.{domain}")
}

fn is_name(name: &str) -> bool {
    let part = |part: &str| {
        !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
    };
    name.len() <= 64 && name.split(['.', '_', '-']).all(part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_as_harbor_stores_them() {
        for (written, stored) in [
            ("https://quay.io", Some("https://quay.io")),
            (" https://quay.io// ", Some("https://quay.io")),
            ("quay.io", Some("http://quay.io")),
            ("HTTPS://quay.io/path/", Some("https://quay.io/path")),
            ("docker.io", Some(DOCKER_HUB)),
            ("https://index.docker.io/v1/", Some(DOCKER_HUB)),
            ("https://registry-1.docker.io:443", Some(DOCKER_HUB)),
            ("https://hub.docker.com", Some(DOCKER_HUB)),
            ("https://docker.io.example.com", Some("https://docker.io.example.com")),
            ("https://mirror.example/docker.io", Some("https://mirror.example/docker.io")),
            ("https://mydocker.io", Some("https://mydocker.io")),
            ("https://[::1]:5000", Some("https://[::1]:5000")),
            ("", None),
            (" / ", None),
        ] {
            assert_eq!(stored_url(written).as_deref(), stored, "{written:?}");
        }
    }

    #[test]
    fn registries_of_amazon_have_a_region() {
        let spec = |ecr: serde_json::Value| -> ProxyCacheSpec {
            serde_json::from_value(serde_json::json!({"type": "aws-ecr-private", "name": "ecr", "ecr": ecr}))
                .unwrap()
        };
        let ecr = |region: &str| serde_json::json!({"accountId": "123456789012", "region": region, "staticCredentialsSecretName": "aws"});
        for (region, url) in [
            ("", "https://123456789012.dkr.ecr.us-west-2.amazonaws.com"),
            ("eu-central-1", "https://123456789012.dkr.ecr.eu-central-1.amazonaws.com"),
            ("cn-north-1", "https://123456789012.dkr.ecr.cn-north-1.amazonaws.com.cn"),
        ] {
            let desired = Desired::compile(&spec(ecr(region))).unwrap();
            assert_eq!((&*desired.url, desired.adapter, desired.public), (url, "aws-ecr", false));
            let secret = desired.secret.unwrap();
            assert_eq!((&*secret.user, &*secret.password), ("access_key_id", "secret_access_key"));
        }
        assert_eq!(Desired::compile(&spec(serde_json::Value::Null)), Err(SpecError::NoEcr));
    }

    #[test]
    fn what_is_missing_is_named() {
        let compile = |spec: serde_json::Value| Desired::compile(&serde_json::from_value(spec).unwrap());
        let json = serde_json::json!({"type": "public", "name": "a"});
        assert_eq!(compile(json), Err(SpecError::NoUrl));
        let json = serde_json::json!({"type": "private", "name": "a", "url": "https://q"});
        assert_eq!(compile(json), Err(SpecError::NoCredentials));
        for name in ["", "A", "a--b", "-a", &"a".repeat(65)] {
            let json = serde_json::json!({"type": "public", "name": name, "url": "https://q"});
            assert_eq!(compile(json), Err(SpecError::Name(name.to_owned())));
        }
        let json = serde_json::json!({
            "type": "private", "name": "007", "url": "https://q",
            "credentials": {"secretName": "s", "usernameKey": "", "passwordKey": "token"},
        });
        let secret = compile(json).unwrap().secret.unwrap();
        assert_eq!((&*secret.user, &*secret.password), ("username", "token"));
        assert_eq!(secret.version("uid/7"), "uid/7/username/token");
    }

    #[test]
    fn an_upstream_is_named_as_references_name_it() {
        let of = |url: &str| {
            let spec = serde_json::json!({"type": "public", "name": "a", "url": url});
            Desired::compile(&serde_json::from_value(spec).unwrap()).unwrap().upstream()
        };
        assert_eq!(of("https://hub.docker.com").as_deref(), Some("docker.io"));
        assert_eq!(of("https://quay.io/").as_deref(), Some("quay.io"));
        assert_eq!(of("http://r.example:5000/team").as_deref(), Some("r.example:5000/team"));
    }
}
