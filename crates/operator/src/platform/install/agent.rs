//! The agents: a Pod on every node that makes its container runtime follow mirror policies.
//!
//! They are installed on request. An agent writes files of its node and shares its network, which Kubernetes'
//! "restricted" standard forbids, so agents have a namespace of their own. They are not privileged, have no
//! capabilities, and see the directories of the runtime's registry configuration alone.

use fairlead_api::names::fairlead::AGENT as COMPONENT_AGENT;
use fairlead_api::names::kubernetes::COMPONENT;
use k8s_openapi::api::apps::v1::{DaemonSet, DaemonSetSpec, DaemonSetUpdateStrategy, RollingUpdateDaemonSet};
use k8s_openapi::api::core::v1::{
    Capabilities, ConfigMapVolumeSource, Container, EmptyDirVolumeSource, ExecAction, HostPathVolumeSource,
    Namespace, PodSpec, PodTemplateSpec, Probe, SeccompProfile, SecretVolumeSource, SecurityContext,
    ServiceAccount, Toleration, Volume, VolumeMount,
};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, RoleRef, Subject};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::container::{amounts, own};
use super::metadata::{cluster_wide, pod_labels, selector};
use super::{AGENT, AGENT_CONTAINER, AGENT_NAMESPACE, InstallSettings, Right, agent_rights, explanation};

/// Where the file system of the node is mounted.
const HOST: &str = "/host";
const READY_FILE: &str = "/run/fairlead/ready";
const CREDENTIALS: &str = "/credentials";
/// The Secret of the kind kubernetes.io/dockerconfigjson with credentials for mirrors.
const CREDENTIALS_SECRET: &str = "fairlead-mirror-credentials";

const AUTHORITIES: &str = "/authorities";
/// The `ConfigMap` whose key `ca.crt` holds certificate authorities of mirrors.
const AUTHORITIES_CONFIG_MAP: &str = "fairlead-mirror-ca";

/// Directories of nodes, and whether agents write there. A directory that is missing is made.
const DIRECTORIES: [(&str, &str, bool); 6] = [
    ("containerd", "/etc/containerd", false),
    ("certs", "/etc/containerd/certs.d", true),
    // containerd may look there for what it does not find in its own directory.
    ("docker-certs", "/etc/docker/certs.d", false),
    ("containers", "/etc/containers", false),
    ("registries", "/etc/containers/registries.conf.d", true),
    // It says whether CRI-O reads changed files by itself.
    ("crio", "/etc/crio", false),
];

pub(super) fn namespace() -> Namespace {
    let mut metadata = of_agents(AGENT_NAMESPACE);
    let modes = ["enforce", "audit", "warn"];
    let levels = modes.map(|mode| (format!("pod-security.kubernetes.io/{mode}"), "privileged".to_owned()));
    metadata.labels.get_or_insert_default().extend(levels);
    Namespace { metadata, ..Namespace::default() }
}

pub(super) fn service_account() -> ServiceAccount {
    ServiceAccount {
        metadata: within(AGENT),
        automount_service_account_token: Some(false),
        ..ServiceAccount::default()
    }
}

pub(super) fn cluster_role() -> ClusterRole {
    let rights = agent_rights();
    ClusterRole {
        metadata: ObjectMeta { annotations: Some(explanation(&rights)), ..of_agents(AGENT) },
        rules: Some(rights.iter().map(Right::rule).collect()),
        ..ClusterRole::default()
    }
}

pub(super) fn cluster_role_binding() -> ClusterRoleBinding {
    ClusterRoleBinding {
        metadata: of_agents(AGENT),
        role_ref: RoleRef {
            api_group: Some("rbac.authorization.k8s.io".to_owned()),
            kind: "ClusterRole".to_owned(),
            name: AGENT.to_owned(),
        },
        subjects: Some(vec![Subject {
            kind: "ServiceAccount".to_owned(),
            name: AGENT.to_owned(),
            namespace: Some(AGENT_NAMESPACE.to_owned()),
            ..Subject::default()
        }]),
    }
}

pub(super) fn daemon_set(settings: &InstallSettings) -> DaemonSet {
    let mut selector = selector();
    selector.insert(COMPONENT.to_owned(), COMPONENT_AGENT.to_owned());
    let mut labels = pod_labels();
    labels.extend(selector.clone());
    DaemonSet {
        metadata: within(AGENT),
        spec: Some(DaemonSetSpec {
            selector: LabelSelector { match_labels: Some(selector), ..LabelSelector::default() },
            // The new image is on the node before the old agent ends. No port is declared, since two Pods with the
            // same one would not run on one node: the new agent waits for the addresses of the old one.
            update_strategy: Some(DaemonSetUpdateStrategy {
                type_: Some("RollingUpdate".to_owned()),
                rolling_update: Some(RollingUpdateDaemonSet {
                    max_surge: Some(IntOrString::String("10%".to_owned())),
                    max_unavailable: Some(IntOrString::Int(0)),
                }),
            }),
            template: PodTemplateSpec {
                metadata: Some(ObjectMeta { labels: Some(labels), ..ObjectMeta::default() }),
                spec: Some(pod(settings)),
            },
            ..DaemonSetSpec::default()
        }),
        ..DaemonSet::default()
    }
}

fn within(name: &str) -> ObjectMeta {
    ObjectMeta { namespace: Some(AGENT_NAMESPACE.to_owned()), ..of_agents(name) }
}

fn of_agents(name: &str) -> ObjectMeta {
    let mut metadata = cluster_wide(name);
    let labels = metadata.labels.get_or_insert_default();
    labels.insert(COMPONENT.to_owned(), COMPONENT_AGENT.to_owned());
    metadata
}

fn pod(settings: &InstallSettings) -> PodSpec {
    PodSpec {
        service_account_name: Some(AGENT.to_owned()),
        automount_service_account_token: Some(true),
        enable_service_links: Some(false),
        // The runtime reaches the router on the loopback address of its node.
        host_network: Some(true),
        host_pid: settings.agents_signal_crio.then_some(true),
        // Mirrors have the names that the runtime would ask for.
        dns_policy: Some("Default".to_owned()),
        node_selector: Some([("kubernetes.io/os".to_owned(), "linux".to_owned())].into()),
        // What pulls images on a node needs its configuration, whatever the node is for.
        tolerations: Some(vec![Toleration { operator: Some("Exists".to_owned()), ..Toleration::default() }]),
        // For requests at hand when an agent ends.
        termination_grace_period_seconds: Some(30),
        containers: vec![container(settings)],
        volumes: Some(volumes()),
        ..PodSpec::default()
    }
}

fn container(settings: &InstallSettings) -> Container {
    let config = settings.config().nodes;
    let mut args = vec![
        "agent".to_owned(),
        "--log-level=info".to_owned(),
        format!("--host-root={HOST}"),
        format!("--ready-file={READY_FILE}"),
        format!("--mirror-credentials={CREDENTIALS}/.dockerconfigjson"),
        format!("--mirror-ca={AUTHORITIES}/ca.crt"),
        format!("--own-image={}", settings.image),
    ];
    args.extend(config.insecure_registries.iter().map(|place| format!("--insecure-registry={place}")));
    args.extend(config.blocked_registries.iter().map(|place| format!("--blocked-registry={place}")));
    if !config.router {
        args.push("--without-router".to_owned());
    } else if settings.agents_redirect {
        args.push("--redirect".to_owned());
    }
    let probe = |more: &[&str]| {
        let command =
            ["/fairlead", "agent", "ready", READY_FILE].iter().chain(more).map(|&part| part.to_owned());
        Some(ExecAction { command: Some(command.collect()) })
    };
    Container {
        name: AGENT_CONTAINER.to_owned(),
        image: Some(settings.image.clone()),
        image_pull_policy: Some("IfNotPresent".to_owned()),
        args: Some(args),
        env: Some(vec![own("NODE_NAME", "spec.nodeName")]),
        // An agent that does nothing any more is started again; one that cannot write waits and says why.
        liveness_probe: Some(Probe {
            exec: probe(&["--alive"]),
            initial_delay_seconds: Some(60),
            period_seconds: Some(30),
            timeout_seconds: Some(5),
            failure_threshold: Some(4),
            ..Probe::default()
        }),
        readiness_probe: Some(Probe {
            exec: probe(&[]),
            period_seconds: Some(10),
            timeout_seconds: Some(5),
            ..Probe::default()
        }),
        resources: Some(k8s_openapi::api::core::v1::ResourceRequirements {
            requests: Some(amounts(&[("cpu", "10m"), ("memory", "32Mi")])),
            limits: Some(amounts(&[("memory", "128Mi")])),
            ..Default::default()
        }),
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(false),
            capabilities: Some(Capabilities {
                drop: Some(vec!["ALL".to_owned()]),
                ..Capabilities::default()
            }),
            privileged: Some(false),
            read_only_root_filesystem: Some(true),
            // The files of runtimes belong to root.
            run_as_user: Some(0),
            run_as_group: Some(0),
            seccomp_profile: Some(SeccompProfile {
                type_: "RuntimeDefault".to_owned(),
                ..SeccompProfile::default()
            }),
            ..SecurityContext::default()
        }),
        volume_mounts: Some(mounts()),
        ..Container::default()
    }
}

fn mounts() -> Vec<VolumeMount> {
    let mount = |name: &str, path: String, read_only: bool| VolumeMount {
        name: name.to_owned(),
        mount_path: path,
        read_only: read_only.then_some(true),
        ..VolumeMount::default()
    };
    let mut mounts = Vec::from(
        DIRECTORIES.map(|(name, path, is_written)| mount(name, format!("{HOST}{path}"), !is_written)),
    );
    mounts.push(mount("run", "/run/fairlead".to_owned(), false));
    mounts.push(mount("credentials", CREDENTIALS.to_owned(), true));
    mounts.push(mount("authorities", AUTHORITIES.to_owned(), true));
    mounts
}

fn volumes() -> Vec<Volume> {
    let mut volumes = Vec::from(DIRECTORIES.map(|(name, path, _)| Volume {
        name: name.to_owned(),
        host_path: Some(HostPathVolumeSource {
            path: path.to_owned(),
            type_: Some("DirectoryOrCreate".to_owned()),
        }),
        ..Volume::default()
    }));
    volumes.push(Volume {
        name: "run".to_owned(),
        empty_dir: Some(EmptyDirVolumeSource {
            medium: Some("Memory".to_owned()),
            size_limit: Some(Quantity("1Mi".to_owned())),
        }),
        ..Volume::default()
    });
    volumes.push(Volume {
        name: "credentials".to_owned(),
        secret: Some(SecretVolumeSource {
            secret_name: Some(CREDENTIALS_SECRET.to_owned()),
            // It can be added later without touching the DaemonSet.
            optional: Some(true),
            default_mode: Some(0o400),
            ..SecretVolumeSource::default()
        }),
        ..Volume::default()
    });
    volumes.push(Volume {
        name: "authorities".to_owned(),
        config_map: Some(ConfigMapVolumeSource {
            name: AUTHORITIES_CONFIG_MAP.to_owned(),
            optional: Some(true),
            ..ConfigMapVolumeSource::default()
        }),
        ..Volume::default()
    });
    volumes
}
