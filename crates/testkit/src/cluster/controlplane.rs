//! Flags and files of etcd, the API server, the controller manager and the scheduler.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::Result;

use super::health::Health;
use super::network::{API_SERVICE, SERVICES};
use super::{ClusterBuilder, Network, Part, node};
use crate::assets::{Assets, COLLECT_RARELY};
use crate::pki::{self, Authority};
use crate::{Program, audit, kubeconfig, ports, unique, workdir};

/// Beside its own address the API server is known by loopback, where a proxy may stand in front of it, and by the
/// names that clients inside a cluster use.
const SERVING_NAMES: [&str; 6] =
    ["127.0.0.1", "localhost", API_SERVICE, "kubernetes", "kubernetes.default", "kubernetes.default.svc"];
const KUBELET_CLIENT: (&str, &str) = ("kube-apiserver-kubelet-client", "system:masters");
pub(super) const ADMIN: &str = "fairlead-test-admin";
/// The user that changes simulated nodes and their Pods.
pub const KWOK: &str = "fairlead-test-kwok";

/// Tokens are simpler than client certificates, and each part keeps the user name that RBAC and the audit log know it
/// by.
const USERS: [(&str, &str); 6] = [
    (ADMIN, "system:masters"),
    ("system:kube-controller-manager", ""),
    ("system:kube-scheduler", ""),
    (node::USER, "system:nodes"),
    (node::PROXY_USER, ""),
    (KWOK, "system:masters"),
];

pub(super) struct ControlPlane<'a> {
    builder: &'a ClusterBuilder,
    assets: &'a Assets,
    directory: &'a Path,
    network: Network,
    pub authority: String,
    pub api_port: u16,
    etcd_port: u16,
    etcd_health_port: u16,
    etcd_peer_port: u16,
    controller_manager_port: u16,
    scheduler_port: u16,
}

impl<'a> ControlPlane<'a> {
    /// Writes all files and chooses the ports; nothing is started.
    pub(super) fn prepare(
        builder: &'a ClusterBuilder,
        assets: &'a Assets,
        directory: &'a Path,
        network: Network,
    ) -> Result<Self> {
        let authority = Authority::new("fairlead-test")?;
        let plane = Self {
            builder,
            assets,
            directory,
            network,
            authority: authority.certificate().to_owned(),
            api_port: ports::free()?,
            etcd_port: ports::free()?,
            etcd_health_port: ports::free()?,
            etcd_peer_port: ports::free()?,
            controller_manager_port: ports::free()?,
            scheduler_port: ports::free()?,
        };
        let address = network.cluster.to_string();
        let names: Vec<&str> = [address.as_str()].into_iter().chain(SERVING_NAMES).collect();
        let serving = authority.issue(&names)?;
        let (user, group) = KUBELET_CLIENT;
        let client = authority.issue_to_client(user, group)?;
        workdir::write(&plane.file("pki/kubelet-client.crt"), client.certificate)?;
        workdir::write(&plane.file("pki/kubelet-client.key"), client.key)?;
        workdir::write(&plane.file("pki/ca.crt"), authority.certificate())?;
        workdir::write(&plane.file("pki/serving.crt"), serving.certificate)?;
        workdir::write(&plane.file("pki/serving.key"), serving.key)?;
        let (private, public) = pki::key_pair()?;
        workdir::write(&plane.file("pki/service-account.key"), private)?;
        workdir::write(&plane.file("pki/service-account.pub"), public)?;
        workdir::write(&plane.file("audit-policy.yaml"), audit::POLICY)?;
        let server = format!("https://{address}:{}", plane.api_port);
        let mut tokens = String::new();
        for (user, group) in USERS {
            let token = unique("token") + &unique("");
            writeln!(tokens, "{token},{user},{user},\"{group}\"")?;
            let text = kubeconfig::render(&server, &plane.authority, user, &token);
            workdir::write(&kubeconfig_of(directory, user), text)?;
        }
        workdir::write(&plane.file("tokens.csv"), tokens)?;
        Ok(plane)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn path(&self, name: &str) -> String {
        self.file(name).display().to_string()
    }

    pub(super) fn audit_log(&self) -> Option<PathBuf> {
        self.builder.audit.then(|| self.file("audit.log"))
    }

    fn program(&self, part: Part) -> Result<Program> {
        let (name, value) = COLLECT_RARELY;
        let program = Program::new(self.assets.program(part.name())?).env(name, value);
        Ok(match part {
            Part::Etcd => program,
            _ => program.args(self.builder.feature_gate_flag()),
        })
    }

    fn finish(&self, part: Part, program: Program) -> Program {
        program.args(self.builder.flags_of(part))
    }

    fn health(&self, scheme: &str, port: u16, path: &str) -> Health {
        let url = format!("{scheme}://{}:{port}{path}", self.network.cluster);
        Health::Http { url, authority: self.authority.clone() }
    }

    /// Its data is open to all who reach it, so it stays on loopback. Only its health is to be seen from elsewhere.
    pub(super) fn etcd(&self) -> Result<(Program, Health)> {
        let client = format!("http://127.0.0.1:{}", self.etcd_port);
        let peer = format!("http://127.0.0.1:{}", self.etcd_peer_port);
        let program = self.program(Part::Etcd)?.args([
            format!("--data-dir={}", self.path("etcd")),
            format!("--listen-client-urls={client}"),
            format!("--advertise-client-urls={client}"),
            format!("--listen-peer-urls={peer}"),
            format!("--initial-advertise-peer-urls={peer}"),
            format!("--initial-cluster=default={peer}"),
            format!("--listen-metrics-urls=http://{}:{}", self.network.cluster, self.etcd_health_port),
            // Data outlives a killed process, not a lost machine: enough for tests, and several times as fast.
            "--unsafe-no-fsync".to_owned(),
            "--quota-backend-bytes=8589934592".to_owned(),
            "--log-level=warn".to_owned(),
        ]);
        Ok((self.finish(Part::Etcd, program), self.health("http", self.etcd_health_port, "/health")))
    }

    pub(super) fn api_server(&self) -> Result<(Program, Health)> {
        let mut program = self.program(Part::ApiServer)?.args([
            format!("--etcd-servers=http://127.0.0.1:{}", self.etcd_port),
            format!("--bind-address={}", self.network.cluster),
            format!("--advertise-address={}", self.network.cluster),
            format!("--secure-port={}", self.api_port),
            format!("--tls-cert-file={}", self.path("pki/serving.crt")),
            format!("--tls-private-key-file={}", self.path("pki/serving.key")),
            format!("--token-auth-file={}", self.path("tokens.csv")),
            "--authorization-mode=Node,RBAC".to_owned(),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            format!("--service-account-key-file={}", self.path("pki/service-account.pub")),
            format!("--service-account-signing-key-file={}", self.path("pki/service-account.key")),
            format!("--service-cluster-ip-range={SERVICES}"),
            "--allow-privileged=true".to_owned(),
            "--kubelet-preferred-address-types=InternalIP".to_owned(),
            format!("--kubelet-client-certificate={}", self.path("pki/kubelet-client.crt")),
            format!("--kubelet-client-key={}", self.path("pki/kubelet-client.key")),
            "--shutdown-delay-duration=0s".to_owned(),
        ]);
        if self.network == Network::LOOPBACK {
            // An address on loopback may not be an endpoint of the Service `kubernetes`.
            program = program.arg("--endpoint-reconciler-type=none");
        }
        if let Some(log) = self.audit_log() {
            program = program.args([
                format!("--audit-policy-file={}", self.path("audit-policy.yaml")),
                format!("--audit-log-path={}", log.display()),
                // A client that has the answer to a request finds it in the log.
                "--audit-log-mode=blocking-strict".to_owned(),
                // The default would begin a new file after 100 MB.
                "--audit-log-maxsize=100000".to_owned(),
            ]);
        }
        Ok((self.finish(Part::ApiServer, program), self.health("https", self.api_port, "/readyz")))
    }

    pub(super) fn controller_manager(&self) -> Result<(Program, Health)> {
        let part = Part::ControllerManager;
        let program = self
            .client_program(part, "system:kube-controller-manager", self.controller_manager_port)?
            .args([
                format!("--root-ca-file={}", self.path("pki/ca.crt")),
                format!("--service-account-private-key-file={}", self.path("pki/service-account.key")),
                "--use-service-account-credentials=true".to_owned(),
            ]);
        Ok((self.finish(part, program), self.health("https", self.controller_manager_port, "/healthz")))
    }

    pub(super) fn scheduler(&self) -> Result<(Program, Health)> {
        let part = Part::Scheduler;
        let program = self.client_program(part, "system:kube-scheduler", self.scheduler_port)?;
        Ok((self.finish(part, program), self.health("https", self.scheduler_port, "/healthz")))
    }

    /// What the controller manager and the scheduler have in common.
    fn client_program(&self, part: Part, user: &str, secure_port: u16) -> Result<Program> {
        Ok(self.program(part)?.args([
            format!("--kubeconfig={}", kubeconfig_of(self.directory, user).display()),
            "--leader-elect=false".to_owned(),
            format!("--bind-address={}", self.network.cluster),
            format!("--secure-port={secure_port}"),
            format!("--tls-cert-file={}", self.path("pki/serving.crt")),
            format!("--tls-private-key-file={}", self.path("pki/serving.key")),
            // The defaults would spread the start over seconds and thousands of Pods over minutes.
            "--kube-api-qps=2000".to_owned(),
            "--kube-api-burst=4000".to_owned(),
            // Only the health page is asked for, and that needs no login.
            "--authentication-skip-lookup=true".to_owned(),
        ]))
    }
}

/// Kubeconfig file of one of the users above.
pub(super) fn kubeconfig_of(directory: &Path, user: &str) -> PathBuf {
    directory.join("kubeconfigs").join(format!("{}.yaml", user.replace(':', "-")))
}
