//! What a registry is to be like, and the files that make it so.

use std::fmt::Write;
use std::net::SocketAddrV4;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::Endpoint;
use crate::fake_registry::Issuer;
use crate::pki::{self, Authority};
use crate::workdir;

/// The cheapest hash the registry accepts: tests check that it asks for passwords, not how hard they are to guess.
const BCRYPT_COST: u32 = 4;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Release {
    /// distribution 3.
    #[default]
    V3,
    /// distribution 2.8 as Debian packages it.
    V2,
}

/// Choices for a registry; the default is anonymous, plain HTTP, writable, with deletion refused.
#[derive(Clone, Debug, Default)]
pub struct RegistryConfig {
    pub(super) release: Release,
    users: Vec<(String, String)>,
    tls: Option<Certificate>,
    delete: bool,
    read_only_from: Option<PathBuf>,
    cache_of: Option<String>,
    tokens: Option<Tokens>,
}

#[derive(Clone, Copy, Debug)]
enum Certificate {
    ByAuthority,
    ByItself,
}

/// Whose tokens are believed, and where to get them.
#[derive(Clone, Debug)]
struct Tokens {
    realm: String,
    issuer: String,
    certificate: String,
}

pub(super) struct Written {
    pub file: PathBuf,
    pub endpoint: Endpoint,
}

impl RegistryConfig {
    pub fn new() -> Self {
        Self::default()
    }

    #[must_use]
    pub fn release(mut self, release: Release) -> Self {
        self.release = release;
        self
    }

    /// Only this user gets in, and every other one named this way.
    #[must_use]
    pub fn user(mut self, name: &str, password: &str) -> Self {
        self.users.push((name.to_owned(), password.to_owned()));
        self
    }

    /// Only those get in who bring a token of this issuer, to be had from `realm`.
    #[must_use]
    pub fn tokens(mut self, realm: &str, issuer: &Issuer) -> Self {
        self.tokens = Some(Tokens {
            realm: realm.to_owned(),
            issuer: issuer.name().to_owned(),
            certificate: issuer.certificate().to_owned(),
        });
        self
    }

    /// Speaks TLS with a certificate for its address and localhost by an authority of its own.
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.tls = Some(Certificate::ByAuthority);
        self
    }

    /// Speaks TLS with a certificate for its address and localhost that is its own authority.
    #[must_use]
    pub fn self_signed(mut self) -> Self {
        self.tls = Some(Certificate::ByItself);
        self
    }

    /// Manifests and blobs can be deleted.
    #[must_use]
    pub fn delete(mut self) -> Self {
        self.delete = true;
        self
    }

    /// Serves what another registry holds in its [`super::Registry::directory`], and refuses to be written to.
    #[must_use]
    pub fn read_only(mut self, other: &Path) -> Self {
        self.read_only_from = Some(other.join("storage"));
        self
    }

    /// A pull-through cache of the registry at this address.
    #[must_use]
    pub fn cache_of(mut self, other: &Endpoint) -> Self {
        self.cache_of = Some(other.url());
        self
    }

    pub(super) fn write(&self, directory: &Path, address: SocketAddrV4) -> Result<Written> {
        let own_storage = directory.join("storage");
        let storage = self.read_only_from.as_ref().unwrap_or(&own_storage);
        let mut http = json!({"addr": address, "secret": "shared by nobody"});
        let mut endpoint = Endpoint::at(address);
        if let Some(signed) = self.tls {
            let ip = address.ip().to_string();
            let names = [ip.as_str(), "localhost"];
            let (identity, authority) = match signed {
                Certificate::ByAuthority => {
                    let authority = Authority::new("fairlead-test-registry")?;
                    (authority.issue(&names)?, authority.certificate().to_owned())
                }
                Certificate::ByItself => {
                    let identity = pki::self_signed(&names)?;
                    let authority = identity.certificate.clone();
                    (identity, authority)
                }
            };
            let (certificate, key) = (directory.join("tls.crt"), directory.join("tls.key"));
            workdir::write(&certificate, identity.certificate)?;
            workdir::write(&key, identity.key)?;
            set(&mut http, "tls", json!({"certificate": certificate, "key": key}))?;
            endpoint.authority = Some(authority);
            endpoint.self_signed = matches!(signed, Certificate::ByItself);
        }
        let mut config = json!({
            "version": "0.1",
            // Who asked for what is in the access log; more would be several lines for each request.
            "log": {"level": "error", "accesslog": {"disabled": false}},
            "storage": {
                "filesystem": {"rootdirectory": storage},
                "delete": {"enabled": self.delete},
                "maintenance": {
                    "uploadpurging": {"enabled": false},
                    "readonly": {"enabled": self.read_only_from.is_some()},
                },
            },
            "http": http,
        });
        if let Some(remote) = &self.cache_of {
            set(&mut config, "proxy", json!({"remoteurl": remote}))?;
        }
        if !self.users.is_empty() {
            let passwords = directory.join("htpasswd");
            workdir::write(&passwords, self.htpasswd()?)?;
            set(&mut config, "auth", json!({"htpasswd": {"realm": "fairlead-test", "path": passwords}}))?;
            endpoint.credentials = self.users.first().cloned();
        }
        if let Some(Tokens { realm, issuer, certificate }) = &self.tokens {
            let bundle = directory.join("tokens.crt");
            workdir::write(&bundle, certificate)?;
            let token =
                json!({"realm": realm, "service": "registry", "issuer": issuer, "rootcertbundle": bundle});
            set(&mut config, "auth", json!({"token": token}))?;
        }
        let file = directory.join("config.yml");
        // JSON is YAML, too.
        workdir::write(&file, serde_json::to_vec_pretty(&config)?)?;
        Ok(Written { file, endpoint })
    }

    fn htpasswd(&self) -> Result<String> {
        let mut lines = String::new();
        for (name, password) in &self.users {
            writeln!(lines, "{name}:{}", bcrypt::hash(password, BCRYPT_COST)?)?;
        }
        Ok(lines)
    }
}

fn set(object: &mut Value, field: &str, value: Value) -> Result<()> {
    let fields = object.as_object_mut().context("the configuration is an object")?;
    fields.insert(field.to_owned(), value);
    Ok(())
}
