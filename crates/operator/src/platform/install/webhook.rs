//! The configuration that has the API server ask the operator about Pods. Every field here leans towards letting a Pod
//! through.

use k8s_openapi::api::admissionregistration::v1::{
    MatchCondition, MutatingWebhook, MutatingWebhookConfiguration, RuleWithOperations, ServiceReference,
    WebhookClientConfig,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};

use super::metadata::cluster_wide;
use super::{
    AGENT_NAMESPACE, Certificates, InstallSettings, NAME, WEBHOOK_NAME, WEBHOOK_SERVICE, cert_manager,
};

/// Longer than the slowest honest answer, short enough that a dead operator does not hold up a rollout.
const TIMEOUT_SECONDS: i32 = 5;

/// A mirror Pod is the API server's picture of a static Pod: the kubelet runs what its file says, whatever is written
/// here.
const NOT_A_MIRROR_POD: &str =
    "!has(object.metadata.annotations) || !('kubernetes.io/config.mirror' in object.metadata.annotations)";

pub(super) fn configuration(settings: &InstallSettings) -> MutatingWebhookConfiguration {
    let mut metadata = cluster_wide(NAME);
    if settings.certificates == Certificates::CertManager {
        metadata.annotations = Some(cert_manager::inject_annotation(settings));
    }
    MutatingWebhookConfiguration { metadata, webhooks: Some(vec![pods(settings)]) }
}

fn rule(operation: &str, resource: &str) -> RuleWithOperations {
    let one = |text: &str| Some(vec![text.to_owned()]);
    RuleWithOperations {
        api_groups: one(""),
        api_versions: one("v1"),
        operations: one(operation),
        resources: one(resource),
        scope: Some("Namespaced".to_owned()),
    }
}

fn pods(settings: &InstallSettings) -> MutatingWebhook {
    MutatingWebhook {
        name: WEBHOOK_NAME.to_owned(),
        admission_review_versions: vec!["v1".to_owned()],
        client_config: WebhookClientConfig {
            service: Some(ServiceReference {
                name: WEBHOOK_SERVICE.to_owned(),
                namespace: settings.namespace.clone(),
                // Written by the operator, since it carries a secret; applying this file again must not take it away.
                path: None,
                port: Some(443),
            }),
            // Written by what makes the certificate, and not taken away either.
            ca_bundle: None,
            url: None,
        },
        failure_policy: Some("Ignore".to_owned()),
        match_conditions: Some(vec![MatchCondition {
            name: "not-a-mirror-pod".to_owned(),
            expression: NOT_A_MIRROR_POD.to_owned(),
        }]),
        match_policy: Some("Equivalent".to_owned()),
        namespace_selector: Some(LabelSelector {
            match_expressions: Some(vec![LabelSelectorRequirement {
                key: "kubernetes.io/metadata.name".to_owned(),
                operator: "NotIn".to_owned(),
                // Agents have to start without the operator.
                values: Some(vec![settings.namespace.clone(), AGENT_NAMESPACE.to_owned()]),
            }]),
            ..LabelSelector::default()
        }),
        reinvocation_policy: Some("IfNeeded".to_owned()),
        rules: Some(vec![rule("CREATE", "pods"), rule("UPDATE", "pods/ephemeralcontainers")]),
        side_effects: "NoneOnDryRun".to_owned(),
        timeout_seconds: Some(TIMEOUT_SECONDS),
        ..MutatingWebhook::default()
    }
}
