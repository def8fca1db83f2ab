//! Everything an installation puts into a cluster, built from Kubernetes' own types.
//!
//! There is one truth: `fairlead manifests`, `deploy/manifests.yaml` and the Helm chart all show these objects (the
//! chart's defaults are compared with them object by object in a test). The names used here are the names the program
//! looks for at run time; they are taken from the modules that use them.

mod agent;
mod cert_manager;
mod container;
pub mod guard;
mod metadata;
mod network;
mod rights;
mod roles;
mod webhook;
mod workload;
mod yaml;

use serde::Serialize;
use serde_json::Value;
use thiserror::Error;

use crate::platform::certificates;
use crate::platform::config::Config;
use metadata::VERSION;

pub use rights::{
    RARELY_USED, Right, agent_rights, cluster_rights, deletion_rights, eviction_rights, explanation,
    migration_rights, namespaced_rights, warm_rights,
};
pub use yaml::render;

pub use crate::platform::settings::LEASE;

/// The name of the Deployment, the `ServiceAccount`, both roles, their bindings, and the webhook configuration.
///
/// One installation per cluster: the roles and the webhook are cluster-wide, and two operators that answer the same
/// Pods would undo each other's work. With fixed names a second one cannot stand beside the first: Helm refuses it, and
/// plain manifests in another namespace take the first one's rights and webhook over.
pub const NAME: &str = "fairlead";
/// The name of the role, and of its binding, in the namespace of pull Pods.
pub const WARM_ROLE: &str = "fairlead-warm";
/// The name of the agents' `DaemonSet`, `ServiceAccount`, role and binding.
pub const AGENT: &str = "fairlead-agent";
pub const AGENT_CONTAINER: &str = "agent";
/// Fixed, because admission policies and the operator know agents by it.
pub const AGENT_NAMESPACE: &str = "fairlead-nodes";
pub const DEFAULT_NAMESPACE: &str = "fairlead-system";
pub const WEBHOOK_SERVICE: &str = certificates::Settings::SERVICE;
const METRICS_SERVICE: &str = "fairlead-metrics";
pub const CERTIFICATE_SECRET: &str = certificates::Settings::SECRET;
pub const PATH_SECRET: &str = certificates::Settings::PATH_SECRET;
pub const CONFIG_MAP: &str = "fairlead-config";
pub const CONFIG_KEY: &str = "config.yaml";
pub const WEBHOOK_NAME: &str = "pods.fairlead.dev";
const IMAGE_REPOSITORY: &str = "ghcr.io/fairlead/fairlead";
const WEBHOOK_PORT: i32 = 9443;
const METRICS_PORT: i32 = 8080;
const HEALTH_PORT: i32 = 8081;

/// What a person chooses when installing from plain manifests. Everything else has one right answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InstallSettings {
    pub namespace: String,
    pub image: String,
    pub replicas: i32,
    pub certificates: Certificates,
    /// Whether nodes follow mirror policies.
    pub agents: bool,
    /// Agents see the processes of their node, to have a CRI-O that does not watch its files read changed ones.
    pub agents_signal_crio: bool,
    /// Agents send containerd to mirrors for layers, instead of passing them on.
    pub agents_redirect: bool,
    /// The text of the configuration file, already checked.
    pub configuration: Option<String>,
}

/// Who makes the certificate that the API server sees when it calls the webhook.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Certificates {
    /// The program itself, in one Secret that also holds the token of the webhook's path.
    Own,
    /// cert-manager, in a Secret of its own. The program keeps the token in another.
    CertManager,
}

/// What becomes of the pull secrets that cluster-scoped policies name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PullSecrets {
    /// They are copied to the namespaces of Pods that need them.
    Copied,
    /// They stay where they are, and the program gets no right to write Secrets.
    Kept,
}

impl Default for InstallSettings {
    fn default() -> Self {
        Self {
            namespace: DEFAULT_NAMESPACE.to_owned(),
            image: format!("{IMAGE_REPOSITORY}:{VERSION}"),
            replicas: 2,
            certificates: Certificates::Own,
            agents: false,
            agents_signal_crio: false,
            agents_redirect: false,
            configuration: None,
        }
    }
}

/// One object, and why it is there: the comment above it in the printed YAML.
#[derive(Debug, Clone, PartialEq)]
pub struct Manifest {
    pub why: &'static str,
    pub object: Value,
}

#[derive(Debug, Error)]
pub enum InstallError {
    #[error(
        "namespace {0:?} is no legal name: use at most 63 lower-case letters, digits and dashes, beginning and ending with a letter or digit"
    )]
    Namespace(String),
    #[error(
        "the image reference is empty: name the image of the operator, for example {IMAGE_REPOSITORY}:{VERSION}"
    )]
    Image,
    #[error("writing the {what} as YAML failed: {message}")]
    Render { what: String, message: String },
}

impl InstallSettings {
    /// As the configuration says. One that cannot be read is not installed in the first place.
    fn pull_secrets(&self) -> PullSecrets {
        let copied = self.config().routing.pull_secrets.copy;
        if copied { PullSecrets::Copied } else { PullSecrets::Kept }
    }

    /// The namespace of pull Pods.
    fn warm_namespace(&self) -> String {
        self.config().warm.namespace.unwrap_or_else(|| self.namespace.clone())
    }

    fn config(&self) -> Config {
        let parsed = self.configuration.as_deref().and_then(|text| Config::parse(text).ok());
        parsed.map(|parsed| parsed.config).unwrap_or_default()
    }

    pub fn check(&self) -> Result<(), InstallError> {
        let legal = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
        let name = self.namespace.as_bytes();
        let ends_legal = name.first().copied().is_some_and(legal) && name.last().copied().is_some_and(legal);
        if name.len() > 63 || !ends_legal || !name.iter().all(|&byte| legal(byte) || byte == b'-') {
            return Err(InstallError::Namespace(self.namespace.clone()));
        }
        if self.image.trim().is_empty() {
            return Err(InstallError::Image);
        }
        Ok(())
    }
}

/// The Namespace, apart from the rest: Helm and `--without-namespace` leave it to the person who installs.
pub fn namespace(settings: &InstallSettings) -> Result<Manifest, InstallError> {
    manifest(
        "The namespace admits only Pods that meet Kubernetes' \"restricted\" standard; the operator's own do.",
        &workload::namespace(settings),
    )
}

/// The objects of an installation in the order to apply them, without the Namespace and the custom resource
/// definitions.
pub fn objects(settings: &InstallSettings) -> Result<Vec<Manifest>, InstallError> {
    settings.check()?;
    let mut objects = vec![
        manifest("Who the operator is to the API server.", &workload::service_account(settings))?,
        manifest(
            "What the operator may do in the whole cluster. Its annotation gives the reason of each rule.",
            &roles::cluster_role(settings),
        )?,
        manifest("Gives the operator the rights above.", &roles::cluster_role_binding(settings))?,
        manifest(
            "What the operator may do in its own namespace. Its annotation gives the reason of each rule.",
            &roles::role(settings),
        )?,
        manifest("Gives the operator the rights above.", &roles::role_binding(settings))?,
        manifest(
            "What the operator may do in the namespace of Pods that pull images onto nodes.",
            &roles::warm_role(settings),
        )?,
        manifest("Gives the operator the rights above.", &roles::warm_role_binding(settings))?,
    ];
    let operator = guard::Account { namespace: &settings.namespace, name: NAME };
    let (limited, deletions) = (guard::of_operator(operator), guard::of_deletions(operator));
    let (records, reports) = (guard::of_records(operator), guard::of_reports());
    objects.extend([
        manifest("Limits what the operator may write further than a role can say it.", &limited.policy)?,
        manifest("Puts the limits above in force.", &limited.binding)?,
        manifest(
            "Keeps the operator from deleting Pods other than those that pull images.",
            &deletions.policy,
        )?,
        manifest("Puts the rule above in force.", &deletions.binding)?,
        manifest("Lets only the operator write the records that it acts on.", &records.policy)?,
        manifest("Puts the rule above in force.", &records.binding)?,
        manifest("Lets only the agent on a node report about it.", &reports.policy)?,
        manifest("Puts the rule above in force.", &reports.binding)?,
    ]);
    if let Some(text) = &settings.configuration {
        objects.push(manifest(
            "The configuration file of the operator.",
            &workload::config_map(settings, text),
        )?);
    }
    if settings.certificates == Certificates::CertManager {
        objects.push(manifest("Signs the certificate below with itself.", &cert_manager::issuer(settings))?);
        objects.push(manifest(
            "The webhook's certificate, made by cert-manager.",
            &cert_manager::certificate(settings),
        )?);
    }
    objects.push(manifest("Where the API server finds the webhook.", &network::webhook_service(settings))?);
    objects.push(manifest("Where Prometheus finds the metrics.", &network::metrics_service(settings))?);
    objects.push(manifest(network::POLICY_REASON, &network::policy(settings))?);
    objects.push(manifest(
        "Every replica answers the webhook; the one that holds the Lease also writes to the cluster.",
        &workload::deployment(settings),
    )?);
    if let Some(budget) = workload::disruption_budget(settings) {
        objects.push(manifest("Draining nodes never takes away the last replica.", &budget)?);
    }
    if settings.agents {
        objects.extend([
            manifest(
                "Agents write files of their nodes and share their network, which needs a namespace of its own.",
                &agent::namespace(),
            )?,
            manifest("Who agents are to the API server.", &agent::service_account())?,
            manifest(
                "What agents may do. Its annotation gives the reason of each rule.",
                &agent::cluster_role(),
            )?,
            manifest("Gives agents the rights above.", &agent::cluster_role_binding())?,
            manifest(
                "On every node, makes the container runtime follow mirror policies.",
                &agent::daemon_set(settings),
            )?,
        ]);
    }
    objects.push(manifest(
        "Asks the operator about every new Pod, and lets the Pod through when it does not answer. Last, so that the operator runs before it is asked.",
        &webhook::configuration(settings),
    )?);
    Ok(objects)
}

fn manifest<K: Serialize>(why: &'static str, object: &K) -> Result<Manifest, InstallError> {
    let object = serde_json::to_value(object).map_err(|error| InstallError::Render {
        what: format!("object ({why})"),
        message: error.to_string(),
    })?;
    Ok(Manifest { why, object })
}

#[cfg(test)]
mod tests;
