//! The two objects in the cluster: the Secret and the webhook configuration. Both are read by name, never listed, and
//! written only where nobody else has written in between.

use std::{future::Future, time::Duration};

use k8s_openapi::api::{admissionregistration::v1::MutatingWebhookConfiguration, core::v1::Secret};
use kube::{
    Api, Client,
    api::{Patch, PatchParams, PostParams},
};
use serde_json::json;

use super::Settings;
use crate::failure::{Class, Failure, within};

const FIELD_MANAGER: &str = "fairlead-certificates";

/// Webhooks of ours are named below this domain; an entry of somebody else in the same configuration is left alone.
const OWN_DOMAIN: &str = ".fairlead.dev";

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

/// The bundles that API servers are told to trust, one for each webhook of ours.
pub(super) struct Configuration {
    pub(super) bundles: Vec<(String, Vec<u8>)>,
    version: Option<String>,
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
        let bundles: Vec<_> = found
            .webhooks
            .unwrap_or_default()
            .into_iter()
            .filter(|webhook| webhook.name.ends_with(OWN_DOMAIN))
            .map(|webhook| (webhook.name, webhook.client_config.ca_bundle.unwrap_or_default().0))
            .collect();
        Ok((!bundles.is_empty())
            .then_some(Configuration { bundles, version: found.metadata.resource_version }))
    }

    /// Writes the bundle into every webhook of ours, if the configuration is still the one that was read.
    pub(super) async fn trust(
        &self,
        configuration: &Configuration,
        bundle: &[u8],
    ) -> Result<(), ClusterError> {
        use base64::{Engine as _, prelude::BASE64_STANDARD};

        let bundle = BASE64_STANDARD.encode(bundle);
        let webhooks: Vec<_> = configuration
            .bundles
            .iter()
            .map(|(name, _)| json!({"name": name, "clientConfig": {"caBundle": bundle}}))
            .collect();
        let patch = Patch::Strategic(json!({
            "metadata": {"resourceVersion": configuration.version},
            "webhooks": webhooks,
        }));
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let write = self.configurations.patch(&self.configuration, &params, &patch);
        self.attempt("writing the CA bundle of", &self.configuration_text(), write).await.map(drop)
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
