//! How others reach the operator: the API server at the webhook, Prometheus at the metrics, the kubelet at the probes.

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::api::networking::v1::{
    NetworkPolicy, NetworkPolicyIngressRule, NetworkPolicyPort, NetworkPolicySpec,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::metadata::{namespaced, selector};
use super::{InstallSettings, METRICS_SERVICE, NAME, WEBHOOK_SERVICE};

pub(super) const POLICY_REASON: &str = "\
Only the three ports that the operator serves can be reached. They are open to every source, because neither the API
server nor the kubelet is a Pod that a policy could select. What leaves is not limited: the operator talks to the API
server and to whichever registries the images of the cluster come from, and no policy can name those in advance.";

pub(super) fn webhook_service(settings: &InstallSettings) -> Service {
    service(settings, WEBHOOK_SERVICE, 443, "webhook")
}

pub(super) fn metrics_service(settings: &InstallSettings) -> Service {
    service(settings, METRICS_SERVICE, super::METRICS_PORT, "metrics")
}

fn service(settings: &InstallSettings, name: &str, port: i32, target: &str) -> Service {
    Service {
        metadata: namespaced(settings, name),
        spec: Some(ServiceSpec {
            selector: Some(selector()),
            ports: Some(vec![ServicePort {
                name: Some(target.to_owned()),
                port,
                protocol: Some("TCP".to_owned()),
                target_port: Some(IntOrString::String(target.to_owned())),
                ..ServicePort::default()
            }]),
            ..ServiceSpec::default()
        }),
        ..Service::default()
    }
}

pub(super) fn policy(settings: &InstallSettings) -> NetworkPolicy {
    let port = |name: &str| NetworkPolicyPort {
        port: Some(IntOrString::String(name.to_owned())),
        protocol: Some("TCP".to_owned()),
        ..NetworkPolicyPort::default()
    };
    NetworkPolicy {
        metadata: namespaced(settings, NAME),
        spec: Some(NetworkPolicySpec {
            pod_selector: Some(LabelSelector { match_labels: Some(selector()), ..LabelSelector::default() }),
            policy_types: Some(vec!["Ingress".to_owned()]),
            ingress: Some(vec![
                NetworkPolicyIngressRule { ports: Some(vec![port("webhook"), port("health")]), from: None },
                NetworkPolicyIngressRule { ports: Some(vec![port("metrics")]), from: None },
            ]),
            egress: None,
        }),
    }
}
