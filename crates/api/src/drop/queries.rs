//! Queries of a `DiscoveryPolicy`: raw data about images from Prometheus, Loki or a registry.

use fairlead_domain::duration::Duration;
use kube::KubeSchema;
use kube::core::Rule;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use super::reference::SecretRef;
use crate::schema;

/// Longest name of a query or a signal.
pub(super) const MAX_NAME_LENGTH: usize = 253;

/// One question to one backend.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = block_fits_type(&["prometheus", "loki", "registry"]))]
pub struct Query {
    /// Name that signals refer to, unique within the policy.
    #[schemars(length(min = 1, max = MAX_NAME_LENGTH))]
    pub name: String,
    /// Kind of backend. The block of the same name says what to ask.
    #[serde(rename = "type")]
    pub type_: QueryType,
    /// What to ask Prometheus, or whatever speaks its protocol.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prometheus: Option<PrometheusQuery>,
    /// What to ask Loki.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loki: Option<LokiQuery>,
    /// What to ask a registry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registry: Option<RegistryQuery>,
    /// Secret with what the backend wants to see. Keys: `token`, `username` and `password`, `ca.crt`, `tls.crt` and
    /// `tls.key`, `headers.<name>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretRef>,
}

/// Kinds of backend that a query can go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum QueryType {
    Prometheus,
    Loki,
    Registry,
}

/// A `PromQL` expression and the time it covers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct PrometheusQuery {
    /// Address of the server, with the path in front of `/api/v1` if there is one.
    #[schemars(schema_with = "endpoint", length(min = 1))]
    pub endpoint: String,
    /// Expression whose result carries the label `image`.
    #[schemars(length(min = 1))]
    pub query: String,
    /// `range` for all values of a time, `instant` for the present value.
    #[serde(default)]
    pub query_type: PrometheusQueryType,
    /// Time that a range query covers, up to now. Left out: 24h.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lookback: Option<Duration>,
    /// Distance between two values of a range query. Left out: 5m.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[x_kube(validation = is_a_step())]
    pub step: Option<Duration>,
}

/// How Prometheus is asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum PrometheusQueryType {
    #[default]
    Range,
    Instant,
}

/// A `LogQL` expression, the time it covers, and how to read the lines.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct LokiQuery {
    /// Address of the server, with the path in front of `/loki/api/v1` if there is one.
    #[schemars(schema_with = "endpoint", length(min = 1))]
    pub endpoint: String,
    /// Expression that selects the log lines.
    #[schemars(length(min = 1))]
    pub query: String,
    /// Always `range`: all lines of a time.
    #[serde(default)]
    pub query_type: LokiQueryType,
    /// Time that the query covers, up to now. Left out: 24h.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lookback: Option<Duration>,
    /// How lines become values. Left out: every line of a stream with the label `image` counts one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parser: Option<LokiParser>,
}

/// How Loki is asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum LokiQueryType {
    #[default]
    Range,
}

/// How log lines are read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct LokiParser {
    /// What the lines are: `kubernetesEvents` for events, of which those about finished pulls are used.
    #[serde(rename = "type")]
    pub type_: LokiParserType,
    /// Label or field with the name of the Pod. Left out: `involvedObject_name`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pod_field: Option<String>,
    /// Label or field with the reason of the event. Left out: `reason`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason_field: Option<String>,
    /// Label or field with the message of the event. Left out: `message`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message_field: Option<String>,
    /// Label or field with the image. Left out: it is read from the message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_field: Option<String>,
}

/// Forms of log lines that can be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub enum LokiParserType {
    KubernetesEvents,
}

/// Repositories whose tags are listed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct RegistryQuery {
    /// Address of the registry, without a repository: `https://registry.example.com`.
    #[schemars(schema_with = "endpoint", length(min = 1))]
    pub url: String,
    /// Repositories to list: `team/app`.
    #[schemars(schema_with = "repositories")]
    pub repositories: Vec<String>,
    /// Regular expression. Only tags that it matches somewhere are kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "pattern")]
    pub tag_filter: Option<String>,
    /// Text to begin after. Registries list tags in the order of their text, so this passes over all tags before it;
    /// it need not be a tag itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag_seek: Option<String>,
    /// Tags to keep per repository, newest first. Left out: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub top_x: Option<i32>,
    /// Tags to read per repository before any is filtered. Left out: 1000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub max_scan: Option<i32>,
    /// Regular expression whose first group is the version inside a tag. Left out: the version is looked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "pattern")]
    #[x_kube(validation = has_a_group())]
    pub version_pattern: Option<String>,
    /// Template of the references to warm, over `.Registry`, `.Repository` and `.Tag`. Left out:
    /// `{{.Registry}}/{{.Repository}}:{{.Tag}}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "image_template")]
    pub image_template: Option<String>,
}

/// Address of a backend.
pub(super) fn endpoint(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string",
        "maxLength": 2048,
        "x-kubernetes-validations": schema::rules([
            Rule::new("self == '' || self.matches('^(http|HTTP)[sS]?://[^/?# ]+[^ ]*$')")
                .message("not an address: write it with its scheme, such as https://prometheus.example.com or http://prometheus.monitoring.svc:9090"),
        ]),
    })
}

/// Repositories of a registry.
pub(super) fn repositories(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "minItems": 1,
        "maxItems": 512,
        "items": {
            "type": "string",
            "maxLength": 255,
            "x-kubernetes-validations": schema::rules([
                Rule::new("self.matches('^[a-z0-9]([a-z0-9._/-]*[a-z0-9])?$')")
                    .message("not a repository: write its path alone in lower case, such as team/app, without address, tag, digest and slash at the ends"),
                Rule::new("self.contains('://') || !self.contains('//')")
                    .message("not a repository: remove the second of two slashes"),
            ]),
        },
    })
}

/// Regular expression that is searched in a text. Empty means none.
pub(super) fn pattern(_: &mut SchemaGenerator) -> Schema {
    schema::regular_expression(1024)
}

/// Template of a reference in the notation of Go's templates.
pub(super) fn image_template(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string",
        "maxLength": 1024,
        "x-kubernetes-validations": schema::rules([
            Rule::new("self.split('{{').size() == self.split('}}').size()")
                .message("every {{ needs its }}: write {{.Registry}}, {{.Repository}} and {{.Tag}} where their values belong"),
            Rule::new(
                "!self.replace('.Registry', '').replace('.Repository', '').replace('.Tag', '')\
                 .matches('[{][{]([^}]*[ (|-])?[.][A-Za-z_]')",
            )
                .message("the template uses a value that does not exist: there are .Registry, .Repository and .Tag"),
        ]),
    })
}

/// The block that `type` names must be there, and no other.
pub(super) fn block_fits_type(types: &[&str]) -> Rule {
    let fits: Vec<_> =
        types.iter().map(|name| format!("has(self.{name}) == (self.type == '{name}')")).collect();
    Rule::new(fits.join(" && ")).message(
        format!(
            "type and block do not fit: give the block that type names and no other ({})",
            types.join(", ")
        )
        .as_str(),
    )
}

/// Prometheus refuses a step of zero.
pub(super) fn is_a_step() -> Rule {
    Rule::new("self.matches('[1-9]')").message("step must be longer than zero, such as 5m")
}

fn has_a_group() -> Rule {
    Rule::new(r"self == '' || self.matches(r'(^|[^\\])[(]([?]P?<|[^?])')").message(
        "versionPattern has no group: put the part that is the version in parentheses, such as x86_64-v(.+)",
    )
}
