//! The operator's container: how it is started, probed, stopped, and how little it is allowed.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Capabilities, ConfigMapVolumeSource, Container, ContainerPort, EnvVar, EnvVarSource, HTTPGetAction,
    Lifecycle, LifecycleHandler, ObjectFieldSelector, PodSecurityContext, Probe, ResourceRequirements,
    SeccompProfile, SecretVolumeSource, SecurityContext, SleepAction, Volume, VolumeMount,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::{
    CERTIFICATE_SECRET, CONFIG_MAP, Certificates, HEALTH_PORT, InstallSettings, METRICS_PORT, WEBHOOK_PORT,
    cert_manager,
};

/// How long a Pod goes on serving after its end was decided: until every API server has heard that its address is gone.
const DRAIN_SECONDS: i64 = 5;
/// The user the image runs as; any number but 0 would do.
const USER: i64 = 65532;
const CONFIG_DIRECTORY: &str = "/etc/fairlead";

pub(super) fn operator(settings: &InstallSettings) -> Container {
    Container {
        name: "operator".to_owned(),
        image: Some(settings.image.clone()),
        image_pull_policy: Some("IfNotPresent".to_owned()),
        args: Some(arguments(settings)),
        env: Some(vec![own("POD_NAME", "metadata.name"), own("POD_NAMESPACE", "metadata.namespace")]),
        ports: Some(vec![
            port("webhook", WEBHOOK_PORT),
            port("metrics", METRICS_PORT),
            port("health", HEALTH_PORT),
        ]),
        liveness_probe: Some(probe("/healthz", 10, 6)),
        readiness_probe: Some(probe("/readyz", 5, 2)),
        lifecycle: Some(Lifecycle {
            pre_stop: Some(LifecycleHandler {
                sleep: Some(SleepAction { seconds: DRAIN_SECONDS }),
                ..LifecycleHandler::default()
            }),
            ..Lifecycle::default()
        }),
        resources: Some(resources()),
        security_context: Some(security()),
        volume_mounts: Some(mounts(settings)),
        ..Container::default()
    }
}

fn arguments(settings: &InstallSettings) -> Vec<String> {
    let mut arguments = vec!["operator".to_owned(), "--log-level=info".to_owned()];
    if settings.certificates == Certificates::CertManager {
        arguments.push(format!("--certificates-dir={}", cert_manager::DIRECTORY));
    }
    arguments
}

pub(super) fn own(name: &str, field_path: &str) -> EnvVar {
    EnvVar {
        name: name.to_owned(),
        value_from: Some(EnvVarSource {
            // The version is the default, but left out it would look like a change each time this is applied again.
            field_ref: Some(ObjectFieldSelector {
                api_version: Some("v1".to_owned()),
                field_path: field_path.to_owned(),
            }),
            ..EnvVarSource::default()
        }),
        ..EnvVar::default()
    }
}

fn port(name: &str, container_port: i32) -> ContainerPort {
    ContainerPort {
        name: Some(name.to_owned()),
        container_port,
        protocol: Some("TCP".to_owned()),
        ..ContainerPort::default()
    }
}

fn probe(path: &str, period_seconds: i32, failure_threshold: i32) -> Probe {
    Probe {
        http_get: Some(HTTPGetAction {
            path: Some(path.to_owned()),
            port: IntOrString::String("health".to_owned()),
            ..HTTPGetAction::default()
        }),
        period_seconds: Some(period_seconds),
        failure_threshold: Some(failure_threshold),
        timeout_seconds: Some(3),
        ..Probe::default()
    }
}

/// Memory is bounded so that a fault stays here; the processor is not, since throttling would slow every Pod's
/// admission.
fn resources() -> ResourceRequirements {
    ResourceRequirements {
        requests: Some(amounts(&[("cpu", "50m"), ("memory", "64Mi")])),
        limits: Some(amounts(&[("memory", "512Mi")])),
        ..ResourceRequirements::default()
    }
}

pub(super) fn amounts(pairs: &[(&str, &str)]) -> BTreeMap<String, Quantity> {
    pairs.iter().map(|(name, amount)| ((*name).to_owned(), Quantity((*amount).to_owned()))).collect()
}

pub(super) fn pod_security() -> PodSecurityContext {
    PodSecurityContext {
        run_as_non_root: Some(true),
        run_as_user: Some(USER),
        run_as_group: Some(USER),
        fs_group: Some(USER),
        seccomp_profile: Some(SeccompProfile {
            type_: "RuntimeDefault".to_owned(),
            ..SeccompProfile::default()
        }),
        ..PodSecurityContext::default()
    }
}

fn security() -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(false),
        capabilities: Some(Capabilities { drop: Some(vec!["ALL".to_owned()]), ..Capabilities::default() }),
        read_only_root_filesystem: Some(true),
        ..SecurityContext::default()
    }
}

fn mounts(settings: &InstallSettings) -> Vec<VolumeMount> {
    let mount = |name: &str, path: &str| VolumeMount {
        name: name.to_owned(),
        mount_path: path.to_owned(),
        read_only: Some(true),
        ..VolumeMount::default()
    };
    let mut mounts = vec![mount("config", CONFIG_DIRECTORY)];
    if settings.certificates == Certificates::CertManager {
        mounts.push(mount("certificates", cert_manager::DIRECTORY));
    }
    mounts
}

pub(super) fn volumes(settings: &InstallSettings) -> Vec<Volume> {
    let mut volumes = vec![Volume {
        name: "config".to_owned(),
        config_map: Some(ConfigMapVolumeSource {
            name: CONFIG_MAP.to_owned(),
            // No ConfigMap means the defaults, and one can be added later without touching the Deployment.
            optional: Some(true),
            ..ConfigMapVolumeSource::default()
        }),
        ..Volume::default()
    }];
    if settings.certificates == Certificates::CertManager {
        volumes.push(Volume {
            name: "certificates".to_owned(),
            secret: Some(SecretVolumeSource {
                secret_name: Some(CERTIFICATE_SECRET.to_owned()),
                // Readable by the group alone, which is the operator's own (fsGroup).
                default_mode: Some(0o440),
                ..SecretVolumeSource::default()
            }),
            ..Volume::default()
        });
    }
    volumes
}
