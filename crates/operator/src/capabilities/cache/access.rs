//! Harbor's client, and the Secrets that hold passwords: the administrator's, and those of upstreams.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use fairlead_domain::harbor::Login;
use fairlead_harbor::{Class as HarborClass, Error, Harbor, HarborSettings};
use fairlead_plan::cache::{SecretKeys, UpstreamLogin};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::controller::name_of;
use crate::cluster::own_secrets::version_of;
use crate::context::Context;
use crate::platform::api_error::Class;
use crate::registries::secrets::OpaqueSecret;

/// The user that Harbor is administered as.
const ADMINISTRATOR: &str = "admin";
/// For one call of Harbor.
const CALL: Duration = Duration::from_secs(30);
/// How long a password that Harbor refused is not tried again: every attempt locks the user for all others.
const REFUSED_FOR: Duration = Duration::from_secs(30);

/// What one term knows of passwords.
#[derive(Debug)]
pub(super) struct Access {
    context: Arc<Context>,
    client: Mutex<Option<Known>>,
    /// Held while a password is tried.
    turn: tokio::sync::Mutex<()>,
    /// For hashes that mean something to this term only.
    hashes: RandomState,
}

#[derive(Debug, Clone)]
struct Known {
    /// Of the administrator's Secret.
    version: String,
    harbor: Arc<Harbor>,
    refused: Option<(Instant, String)>,
}

impl Access {
    pub(super) fn new(context: Arc<Context>) -> Self {
        Self {
            context,
            client: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
            hashes: RandomState::new(),
        }
    }

    pub(super) fn is_unconfigured(&self) -> bool {
        self.context.config.harbor.url.is_none()
    }

    /// A client with the administrator's password as it is now, or why there is none. A password is tried once, and
    /// only then given to all who wait for it.
    pub(super) async fn harbor(&self) -> Result<Arc<Harbor>, String> {
        if let Some(known) = self.known() {
            return known;
        }
        let _turn = self.turn.lock().await;
        if let Some(known) = self.known() {
            return known;
        }
        let config = &self.context.config.harbor;
        let secret = self.read(&config.admin_secret).await?;
        let password = self.value(&secret, &config.admin_secret, &config.admin_secret_key)?;
        let version = version_of(&secret.metadata);
        let login = Login { user: ADMINISTRATOR.to_owned(), password };
        let harbor = Arc::new(Harbor::new(self.settings(login)?).map_err(|error| error.to_string())?);
        *self.client.lock() = Some(Known { version, harbor: harbor.clone(), refused: None });
        // Any other failure says nothing about the password.
        if let Err(error) = harbor.check_login().await
            && error.class() == HarborClass::Unauthorised
        {
            self.note(&harbor, &error);
            return Err(self.refusal(&error));
        }
        Ok(harbor)
    }

    /// The client, if its password is still the one in the Secret.
    fn known(&self) -> Option<Result<Arc<Harbor>, String>> {
        let current = self.context.resources.own_secrets.version(&self.context.config.harbor.admin_secret);
        let known = self.client.lock().clone().filter(|known| Some(&known.version) == current.as_ref())?;
        match known.refused {
            None => Some(Ok(known.harbor)),
            Some((at, error)) => (at.elapsed() < REFUSED_FOR).then_some(Err(error)),
        }
    }

    /// Takes note of an error of this client: a password that Harbor refuses is not sent again and again.
    pub(super) fn note(&self, harbor: &Arc<Harbor>, error: &Error) {
        let mut client = self.client.lock();
        let Some(known) = client.as_mut().filter(|known| Arc::ptr_eq(&known.harbor, harbor)) else { return };
        if error.class() == HarborClass::Unauthorised {
            known.refused = Some((Instant::now(), self.refusal(error)));
        }
    }

    fn refusal(&self, error: &Error) -> String {
        let config = &self.context.config.harbor;
        format!("{error}; see Secret {}/{}", self.context.namespace, config.admin_secret)
    }

    /// The login of an upstream.
    pub(super) async fn upstream(&self, keys: &SecretKeys) -> Result<UpstreamLogin, String> {
        let secret = self.read(&keys.name).await?;
        let user = self.value(&secret, &keys.name, &keys.user)?;
        let password = self.value(&secret, &keys.name, &keys.password)?;
        let hash = self.hashes.hash_one((&user, &password));
        let version = keys.version(&version_of(&secret.metadata));
        Ok(UpstreamLogin { login: Login { user, password }, version, hash })
    }

    /// Another object than this one that asks for the pair of this name now, and is not being deleted.
    pub(super) fn wanted_by(&self, pair: &str, than: &str) -> Option<String> {
        let snapshot = self.context.resources.proxy_caches.snapshot();
        let mut others = snapshot.objects.values().filter(|object| {
            object.spec.name == pair
                && object.metadata.deletion_timestamp.is_none()
                && name_of(object) != than
        });
        others.next().map(|object| name_of(object).to_owned())
    }

    async fn read(&self, name: &str) -> Result<OpaqueSecret, String> {
        let namespace = &self.context.namespace;
        let read = OpaqueSecret::read(&self.context.client, namespace, name).await;
        read.map_err(|failure| match failure.class {
            Class::Absent => format!("Secret {namespace}/{name} not found"),
            _ => format!("Secret {namespace}/{name} could not be read: {failure}"),
        })
    }

    fn value(&self, secret: &OpaqueSecret, name: &str, key: &str) -> Result<String, String> {
        let namespace = &self.context.namespace;
        match secret.text(key) {
            Some(Ok(text)) => Ok(text.to_string()),
            Some(Err(())) => Err(format!("key {key} of Secret {namespace}/{name} is not a text")),
            None => Err(format!("key {key} not found in Secret {namespace}/{name}")),
        }
    }

    fn settings(&self, login: Login) -> Result<HarborSettings, String> {
        let config = &self.context.config;
        let url = config.harbor.url.as_deref().unwrap_or_default();
        let url: url::Url = url.parse().map_err(|error| format!("harbor.url cannot be used: {error}"))?;
        let port = url.port().map(|port| format!(":{port}")).unwrap_or_default();
        let options = config.registries.for_host(&format!("{}{port}", url.host_str().unwrap_or_default()));
        let read = |file| std::fs::read(&file).map_err(|error| format!("{file} cannot be read: {error}"));
        let ca = options.ca_file.map(read).transpose()?;
        let insecure_skip_verify = options.insecure_skip_verify;
        Ok(HarborSettings { url, login, ca, insecure_skip_verify, time_limit: CALL })
    }
}
