//! The Pods of the operator and what they stand on: namespace, identity, configuration, disruption budget.

use fairlead_api::names::fairlead::WARMING;
use k8s_openapi::api::apps::v1::{Deployment, DeploymentSpec, DeploymentStrategy, RollingUpdateDeployment};
use k8s_openapi::api::core::v1::{
    ConfigMap, Namespace, PodSpec, PodTemplateSpec, ServiceAccount, Toleration, TopologySpreadConstraint,
};
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use sha2::{Digest, Sha256};

use super::metadata::{cluster_wide, namespaced, pod_labels, selector};
use super::{CONFIG_KEY, CONFIG_MAP, InstallSettings, NAME, container};

/// Covers the wait before stopping (`container::DRAIN_SECONDS`), the requests in flight and the release of the Lease.
const TERMINATION_SECONDS: i64 = 30;

pub(super) fn namespace(settings: &InstallSettings) -> Namespace {
    let mut metadata = cluster_wide(&settings.namespace);
    metadata.labels.get_or_insert_default().extend(
        ["enforce", "audit", "warn"]
            .map(|mode| (format!("pod-security.kubernetes.io/{mode}"), "restricted".to_owned())),
    );
    Namespace { metadata, ..Namespace::default() }
}

pub(super) fn service_account(settings: &InstallSettings) -> ServiceAccount {
    ServiceAccount {
        metadata: namespaced(settings, NAME),
        // Only the operator's own Pods ask for the token: nothing else that runs under this account gets one by
        // accident.
        automount_service_account_token: Some(false),
        ..ServiceAccount::default()
    }
}

pub(super) fn config_map(settings: &InstallSettings, text: &str) -> ConfigMap {
    ConfigMap {
        metadata: namespaced(settings, CONFIG_MAP),
        data: Some([(CONFIG_KEY.to_owned(), text.to_owned())].into()),
        ..ConfigMap::default()
    }
}

/// With a single replica a budget would forbid draining its node for ever, so there is none.
pub(super) fn disruption_budget(settings: &InstallSettings) -> Option<PodDisruptionBudget> {
    (settings.replicas > 1).then(|| PodDisruptionBudget {
        metadata: namespaced(settings, NAME),
        spec: Some(PodDisruptionBudgetSpec {
            min_available: Some(IntOrString::Int(1)),
            selector: Some(own_pods()),
            // A replica that is not ready serves no request; a drain need not wait for it.
            unhealthy_pod_eviction_policy: Some("AlwaysAllow".to_owned()),
            ..PodDisruptionBudgetSpec::default()
        }),
        ..PodDisruptionBudget::default()
    })
}

pub(super) fn deployment(settings: &InstallSettings) -> Deployment {
    Deployment {
        metadata: namespaced(settings, NAME),
        spec: Some(DeploymentSpec {
            replicas: Some(settings.replicas),
            selector: own_pods(),
            // A new replica is ready before an old one goes, so admission is answered throughout.
            strategy: Some(DeploymentStrategy {
                type_: Some("RollingUpdate".to_owned()),
                rolling_update: Some(RollingUpdateDeployment {
                    max_surge: Some(IntOrString::Int(1)),
                    max_unavailable: Some(IntOrString::Int(0)),
                }),
            }),
            template: PodTemplateSpec {
                metadata: Some(template_metadata(settings)),
                spec: Some(pod(settings)),
            },
            ..DeploymentSpec::default()
        }),
        ..Deployment::default()
    }
}

fn template_metadata(settings: &InstallSettings) -> ObjectMeta {
    let annotations = settings.configuration.as_ref().map(|text| {
        // The file is read once at start: a change of it must start new Pods. Its layout does not count: the chart
        // makes the same sum of its values, so that moving to it starts none.
        let content = serde_saphyr::from_str::<serde_json::Value>(text).map(|content| content.to_string());
        let digest = Sha256::digest(content.as_ref().unwrap_or(text).as_bytes());
        let sum = digest.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"));
        [("checksum/config".to_owned(), sum)].into()
    });
    ObjectMeta { labels: Some(pod_labels()), annotations, ..ObjectMeta::default() }
}

fn pod(settings: &InstallSettings) -> PodSpec {
    PodSpec {
        service_account_name: Some(NAME.to_owned()),
        automount_service_account_token: Some(true),
        enable_service_links: Some(false),
        node_selector: Some([("kubernetes.io/os".to_owned(), "linux".to_owned())].into()),
        security_context: Some(container::pod_security()),
        termination_grace_period_seconds: Some(TERMINATION_SECONDS),
        // Who opens new nodes must be able to run on them.
        tolerations: Some(vec![Toleration {
            key: Some(WARMING.to_owned()),
            operator: Some("Exists".to_owned()),
            ..Toleration::default()
        }]),
        topology_spread_constraints: Some(
            ["kubernetes.io/hostname", "topology.kubernetes.io/zone"].map(spread_over).into(),
        ),
        volumes: Some(container::volumes(settings)),
        containers: vec![container::operator(settings)],
        ..PodSpec::default()
    }
}

/// A wish, not a demand: on a cluster of one node, or while another replica is being replaced, running beats spreading.
fn spread_over(topology_key: &str) -> TopologySpreadConstraint {
    TopologySpreadConstraint {
        topology_key: topology_key.to_owned(),
        max_skew: 1,
        when_unsatisfiable: "ScheduleAnyway".to_owned(),
        label_selector: Some(own_pods()),
        match_label_keys: Some(vec!["pod-template-hash".to_owned()]),
        ..TopologySpreadConstraint::default()
    }
}

fn own_pods() -> LabelSelector {
    LabelSelector { match_labels: Some(selector()), ..LabelSelector::default() }
}
