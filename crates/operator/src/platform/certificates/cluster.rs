//! The two objects in the cluster: the Secret and the webhook configuration. Both are read by name, never listed, and
//! written only if they have not changed in between.

use std::future::Future;
use std::time::Duration;

use axum::http::Uri;
use k8s_openapi::api::admissionregistration::v1::{MutatingWebhook, MutatingWebhookConfiguration};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use super::{Settings, Token};
use crate::platform::api_error::{Class, Failure, within};

const FIELD_MANAGER: &str = "fairlead-certificates";

/// Webhooks of ours are named below this domain; other entries of the same configuration are left alone.
const OWN_DOMAIN: &str = ".fairlead.dev";

/// Whether a webhook in a configuration is ours.
pub(crate) fn is_own_webhook(name: &str) -> bool {
    name.ends_with(OWN_DOMAIN)
}

/// One request never holds up the next look for longer.
const LIMIT: Duration = Duration::from_secs(5);

/// A request about the certificates failed.
#[derive(Debug, thiserror::Error)]
#[error("{attempt} {object} failed: {failure}")]
pub struct ClusterError {
    attempt: &'static str,
    object: String,
    failure: Failure,
}

impl ClusterError {
    pub(super) fn is_conflict(&self) -> bool {
        self.failure.class == Class::Conflict
    }
}

/// What the configuration says about each webhook of ours.
pub(super) struct Configuration {
    webhooks: Vec<Webhook>,
    version: Option<String>,
}

struct Webhook {
    name: String,
    bundle: Vec<u8>,
    address: Address,
}

/// How API servers reach a webhook.
enum Address {
    Service {
        path: Option<String>,
    },
    /// The path is part of it.
    Url(String),
}

impl Configuration {
    /// The authorities that API servers have to trust, as text, for each webhook.
    pub(super) fn bundles(&self) -> impl Iterator<Item = &[u8]> {
        self.webhooks.iter().map(|webhook| webhook.bundle.as_slice())
    }

    /// A token that API servers use.
    pub(super) fn token(&self) -> Option<Token> {
        self.webhooks.iter().find_map(Webhook::token)
    }

    /// Whether API servers use this token for every webhook.
    pub(super) fn calls_only(&self, token: &Token) -> bool {
        self.webhooks.iter().all(|webhook| webhook.token().as_ref() == Some(token))
    }
}

impl Webhook {
    fn of(webhook: MutatingWebhook) -> Self {
        let config = webhook.client_config;
        let address = match config.url {
            Some(url) => Address::Url(url),
            None => Address::Service { path: config.service.and_then(|service| service.path) },
        };
        Self { name: webhook.name, bundle: config.ca_bundle.unwrap_or_default().0, address }
    }

    fn token(&self) -> Option<Token> {
        match &self.address {
            Address::Service { path } => Token::in_path(path.as_deref()?),
            Address::Url(url) => Token::in_path(url.parse::<Uri>().ok()?.path()),
        }
    }

    /// The client configuration with another path.
    fn with_path(&self, path: &str) -> Value {
        match &self.address {
            Address::Service { .. } => json!({"service": {"path": path}}),
            Address::Url(url) => json!({"url": format!("{}{path}", origin(url))}),
        }
    }
}

/// Scheme, host and port of a URL.
fn origin(url: &str) -> &str {
    let host = url.find("://").map_or(0, |at| at + 3);
    let end = url.get(host..).and_then(|rest| rest.find('/')).map_or(url.len(), |at| host + at);
    url.get(..end).unwrap_or(url)
}

pub(super) struct Cluster {
    secrets: Api<Secret>,
    configurations: Api<MutatingWebhookConfiguration>,
    secret: String,
    configuration: String,
}

impl Cluster {
    pub(super) fn new(client: Client, settings: &Settings) -> Self {
        Self {
            secrets: Api::namespaced(client.clone(), &settings.namespace),
            configurations: Api::all(client),
            secret: settings.secret.clone(),
            configuration: settings.configuration.clone(),
        }
    }

    pub(super) async fn secret(&self) -> Result<Option<Secret>, ClusterError> {
        self.attempt("reading", &format!("Secret {}", self.secret), self.secrets.get_opt(&self.secret)).await
    }

    /// Creates or replaces the Secret, depending on whether it carries a version.
    pub(super) async fn write_secret(&self, secret: &Secret) -> Result<(), ClusterError> {
        let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        let object = format!("Secret {}", self.secret);
        if secret.metadata.resource_version.is_some() {
            self.attempt("updating", &object, self.secrets.replace(&self.secret, &params, secret)).await?;
        } else {
            self.attempt("creating", &object, self.secrets.create(&params, secret)).await?;
        }
        Ok(())
    }

    /// None if there is no configuration, or no webhook of ours in it.
    pub(super) async fn configuration(&self) -> Result<Option<Configuration>, ClusterError> {
        let read = self.configurations.get_opt(&self.configuration);
        let Some(found) = self.attempt("reading", &self.configuration_text(), read).await? else {
            return Ok(None);
        };
        let webhooks: Vec<_> = found
            .webhooks
            .unwrap_or_default()
            .into_iter()
            .filter(|webhook| is_own_webhook(&webhook.name))
            .map(Webhook::of)
            .collect();
        Ok((!webhooks.is_empty())
            .then_some(Configuration { webhooks, version: found.metadata.resource_version }))
    }

    /// Writes the bundle into every webhook of ours, if the configuration is still the one that was read.
    pub(super) async fn trust(
        &self,
        configuration: &Configuration,
        bundle: &[u8],
    ) -> Result<(), ClusterError> {
        use base64::Engine as _;
        use base64::prelude::BASE64_STANDARD;

        let bundle = BASE64_STANDARD.encode(bundle);
        self.write("writing the CA bundle of", configuration, |_| json!({"caBundle": bundle})).await
    }

    /// Writes the token into the path of every webhook of ours, if the configuration is still the one that was read.
    pub(super) async fn register(
        &self,
        configuration: &Configuration,
        token: &Token,
    ) -> Result<(), ClusterError> {
        let path = token.path();
        let written =
            self.write("writing the path of", configuration, |webhook| webhook.with_path(&path)).await;
        // The API server repeats a value that it refuses.
        written.map_err(|error| ClusterError { failure: error.failure.without(token.secret()), ..error })
    }

    async fn write(
        &self,
        attempt: &'static str,
        configuration: &Configuration,
        client_config: impl Fn(&Webhook) -> Value,
    ) -> Result<(), ClusterError> {
        let webhooks: Vec<_> = configuration
            .webhooks
            .iter()
            .map(|webhook| json!({"name": webhook.name, "clientConfig": client_config(webhook)}))
            .collect();
        let patch = Patch::Strategic(json!({
            "metadata": {"resourceVersion": configuration.version},
            "webhooks": webhooks,
        }));
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let write = self.configurations.patch(&self.configuration, &params, &patch);
        self.attempt(attempt, &self.configuration_text(), write).await.map(drop)
    }

    pub(super) fn configuration_text(&self) -> String {
        format!("MutatingWebhookConfiguration {}", self.configuration)
    }

    async fn attempt<T>(
        &self,
        attempt: &'static str,
        object: &str,
        request: impl Future<Output = kube::Result<T>>,
    ) -> Result<T, ClusterError> {
        let failed = |failure| ClusterError { attempt, object: object.to_owned(), failure };
        within(LIMIT, request).await.map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn webhook(client_config: &Value) -> Webhook {
        let webhook = json!({
            "name": "pods.fairlead.dev", "admissionReviewVersions": ["v1"], "sideEffects": "None",
            "clientConfig": client_config,
        });
        Webhook::of(serde_json::from_value(webhook).unwrap())
    }

    #[test]
    fn a_path_is_read_and_written_in_both_forms() {
        let token = Token::generate().unwrap();
        let service =
            |path| json!({"service": {"name": "fairlead-webhook", "namespace": "ns", "path": path}});
        let url = |path: &str| json!({"url": format!("https://[::1]:9443{path}")});
        for without in [service(None), service(Some("/mutate/pods")), url(""), url("/"), url("/mutate/pods")]
        {
            assert_eq!(webhook(&without).token(), None, "{without}");
        }
        let path = token.path();
        for with in [service(Some(&path)), url(&path)] {
            assert_eq!(webhook(&with).token(), Some(token.clone()), "{with}");
        }
        assert_eq!(webhook(&service(None)).with_path(&path), json!({"service": {"path": path}}));
        for before in ["", "/", "/a/b"] {
            assert_eq!(webhook(&url(before)).with_path(&path), url(&path));
        }
    }
}
