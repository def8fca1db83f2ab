//! `ProxyCache`: a registry endpoint and a proxy-cache project in Harbor, kept as declared.
//!
//! What Harbor would refuse, or would never reach, is refused when the object is applied.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::core::Rule;
use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::conditions::Condition;
use crate::kuik::{CredentialSecret, MAX_PRIORITY, namespace_is_said};
use crate::schema;

/// Condition that says what Harbor thinks of the upstream registry.
pub const HEALTHY: &str = "Healthy";
/// Condition that says whether endpoint and project belong to this object.
pub const OWNED: &str = "Owned";
/// Condition that says whether Harbor took the values of the specification.
pub const SYNCED: &str = "Synced";
/// Condition that says whether Pods that name the upstream are offered the cache. Present where `spec.routing` is.
pub const OFFERED: &str = "Offered";

/// Upstream registry, and the name of its cache in Harbor.
#[derive(CustomResource, KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[kube(
    group = "harbor-reef.nvidia.com",
    version = "v1alpha1",
    kind = "ProxyCache",
    plural = "proxycaches",
    shortname = "hpc",
    status = "ProxyCacheStatus",
    derive = "PartialEq",
    doc = "An upstream registry that Harbor caches: an endpoint and a proxy-cache project of the same name.",
    printcolumn = r#"{"name": "Type", "type": "string", "jsonPath": ".spec.type"}"#,
    printcolumn = r#"{"name": "Phase", "type": "string", "jsonPath": ".status.phase"}"#,
    printcolumn = r#"{"name": "Health", "type": "string", "jsonPath": ".status.health"}"#,
    printcolumn = r#"{"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = needs_url(),
    validation = needs_credentials(),
    validation = needs_ecr(),
    validation = needs_pull_secret()
)]
pub struct ProxyCacheSpec {
    /// Kind of upstream: `public` needs no login, `private` has a user and a password, `aws-ecr-private` has AWS keys.
    #[serde(rename = "type")]
    pub type_: ProxyCacheType,
    /// Name of the endpoint and of the project in Harbor. It may differ from the name of this object.
    #[schemars(schema_with = "project_name")]
    pub name: String,
    /// Address of the upstream: `https://quay.io`. Without a scheme Harbor speaks plain HTTP to it, except to Docker
    /// Hub. Not used for `aws-ecr-private`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "upstream_url")]
    pub url: Option<String>,
    /// Login of a `private` upstream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials: Option<UpstreamCredentials>,
    /// Registry and keys of an `aws-ecr-private` upstream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ecr: Option<EcrUpstream>,
    /// Offers images of the upstream from this cache to Pods. Left out: the cache serves only Pods that name it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub routing: Option<CacheRouting>,
}

/// How images of the upstream are offered from the cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct CacheRouting {
    /// Place of the cache in the order of alternatives, lowest first. The original image stands at 0: a negative value
    /// puts the cache before it. At the same priority the cache comes after the upstreams of `ReplicatedImageSet`.
    #[schemars(range(min = -MAX_PRIORITY, max = MAX_PRIORITY))]
    pub priority: i64,
    /// Secret that Pods pull with from the project. Types `private` and `aws-ecr-private` need it, because Harbor asks
    /// for a login there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "pull_secret")]
    pub credential_secret: Option<CredentialSecret>,
}

/// Kinds of upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ProxyCacheType {
    Public,
    Private,
    AwsEcrPrivate,
}

/// Login of an upstream registry, from a Secret in the operator's namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct UpstreamCredentials {
    /// Name of the Secret.
    #[schemars(schema_with = "crate::schema::object_name")]
    pub secret_name: String,
    /// Key of the user name in the Secret.
    #[serde(default = "username")]
    #[schemars(schema_with = "secret_key")]
    pub username_key: String,
    /// Key of the password in the Secret.
    #[serde(default = "password")]
    #[schemars(schema_with = "secret_key")]
    pub password_key: String,
}

/// A private registry of Amazon's Elastic Container Registry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct EcrUpstream {
    /// AWS account that the registry belongs to: 12 digits.
    #[schemars(schema_with = "account_id")]
    pub account_id: String,
    /// AWS region of the registry. Left out or empty: `us-west-2`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "region")]
    pub region: Option<String>,
    /// Name of a Secret in the operator's namespace with the keys `access_key_id` and `secret_access_key`.
    #[schemars(schema_with = "crate::schema::object_name")]
    pub static_credentials_secret_name: String,
}

/// What Harbor has. Conditions: `Ready`, `Healthy`, `Owned`, `Synced`, `Offered`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProxyCacheStatus {
    /// Generation of the object that this status was found for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Summary in one word: `Pending`, `Ready` or `Error`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phase: Option<ProxyCachePhase>,
    /// What Harbor thinks of the upstream: `healthy`, `unhealthy` or `unknown`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<ProxyCacheHealth>,
    /// Number of the endpoint in Harbor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registry_id: Option<i64>,
    /// Whether the project is there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub project_created: Option<bool>,
    /// Version of the upstream's Secret that Harbor last took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials_version: Option<String>,
    /// What is wrong, and what to do about it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// When Harbor was last found or made as declared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::timestamp")]
    pub last_reconciled: Option<Time>,
    /// What holds of this object, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::conditions::list")]
    pub conditions: Vec<Condition>,
}

/// Where a `ProxyCache` stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ProxyCachePhase {
    Pending,
    Ready,
    Error,
}

/// What Harbor thinks of an upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum ProxyCacheHealth {
    Healthy,
    Unhealthy,
    Unknown,
}

fn username() -> String {
    "username".to_owned()
}

fn password() -> String {
    "password".to_owned()
}

fn needs_url() -> Rule {
    Rule::new("self.type == 'aws-ecr-private' || (has(self.url) && self.url != '')")
        .field_path(".url")
        .message("url is missing: types public and private need the address of the upstream, such as https://quay.io")
}

fn needs_credentials() -> Rule {
    Rule::new("self.type != 'private' || has(self.credentials)")
        .field_path(".credentials")
        .message("credentials are missing: type private needs credentials.secretName, a Secret in the operator's namespace (or set type to public)")
}

fn needs_ecr() -> Rule {
    Rule::new("self.type != 'aws-ecr-private' || has(self.ecr)").field_path(".ecr").message(
        "ecr is missing: type aws-ecr-private needs ecr.accountId and ecr.staticCredentialsSecretName",
    )
}

fn needs_pull_secret() -> Rule {
    Rule::new("self.type == 'public' || !has(self.routing) || has(self.routing.credentialSecret)")
        .field_path(".routing")
        .message("routing.credentialSecret is missing: the project of a private upstream is private, so Pods need a Secret to pull from it")
}

/// A cluster-wide object has no namespace of its own.
fn pull_secret(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = CredentialSecret::json_schema(generator);
    namespace_is_said(&mut schema);
    schema
}

/// Harbor allows 64 characters for an endpoint, and this form for a project.
fn project_name(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string",
        "maxLength": 64,
        "x-kubernetes-validations": schema::rules([
            Rule::new("self.matches('^[a-z0-9]+([._-][a-z0-9]+)*$')")
                .message("name is not one that Harbor takes: write lower-case letters and digits, with single ., _ or - between them"),
        ]),
    })
}

/// Harbor trims blanks around the address, and reads one without a scheme as plain HTTP.
fn upstream_url(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string",
        "maxLength": 1024,
        "x-kubernetes-validations": schema::rules([
            Rule::new("self == '' || self.matches('^ *([hH][tT][tT][pP][sS]?://)?([a-zA-Z0-9._-]+|[[][a-fA-F0-9:.]+[]])(:[0-9]+)?(/[^ ?#]*)? *$')")
                .message("url is not the address of a registry: write https:// and the host, such as https://quay.io"),
        ]),
    })
}

fn secret_key(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string",
        "maxLength": schema::MAX_NAME_LENGTH,
        "x-kubernetes-validations": schema::rules([
            Rule::new("self.matches('^[-._a-zA-Z0-9]*$')")
                .message("not a key of a Secret: write letters, digits, -, _ and ."),
        ]),
    })
}

fn account_id(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string",
        "maxLength": 64,
        "x-kubernetes-validations": schema::rules([
            Rule::new("self.matches('^[0-9]{12}$')")
                .message("accountId is not an AWS account: write its 12 digits in quotes, such as \"123456789012\""),
        ]),
    })
}

fn region(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string",
        "maxLength": 64,
        "x-kubernetes-validations": schema::rules([
            Rule::new("self == '' || self.matches('^[a-z]+(-[a-z]+)+-[0-9]+$')")
                .message("region is not an AWS region: write it in lower case, such as eu-central-1"),
        ]),
    })
}
