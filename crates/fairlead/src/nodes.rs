//! Commands about the configuration of nodes: `render` and `resolve` on files or a cluster, `convert` on files.

mod cluster;
mod convert;
mod render;
mod resolve;

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::Args;
use fairlead_api::fairlead::{NodeMirrorReportSpec, ReportedSource};
use fairlead_api::openshift::{
    ImageContentSourcePolicy, ImageDigestMirrorSet, ImageSourceDigestPolicy, ImageSourceTagPolicy,
    ImageTagMirrorSet,
};
use fairlead_node::{Runtime, RuntimeName, Version};
use fairlead_plan::node_config::{Inputs, MirrorPolicy, NodeConfig, Scope};
use serde::Deserialize;
use serde_json::Value;

pub(crate) use self::convert::Convert;
pub(crate) use self::render::Render;
pub(crate) use self::resolve::Resolve;
use crate::access::warn;
use crate::connect::Server;
use crate::ending::run_to_end;
use crate::explain::files::{Manifest, Manifests, Mismatch, text_at, title, typed};

const CONFIG: &str = "config.openshift.io/v1";
const OPERATOR: &str = "operator.openshift.io/v1alpha1";

/// Where agents listen unless told otherwise.
const ROUTER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7780);

/// What decides about the configuration of nodes.
#[derive(Debug, Args)]
struct Given {
    /// File or directory with mirror policies, in place of those of the cluster; - is standard input; may be given
    /// several times
    #[arg(short, long = "filename", value_name = "FILE|DIR", conflicts_with_all = ["kubeconfig", "context", "node"])]
    files: Vec<PathBuf>,
    #[command(flatten)]
    server: Server,
    /// Node of the cluster whose runtime and version are meant, with an agent on it, whose arguments count as well
    #[arg(long, value_name = "NAME", conflicts_with_all = ["runtime", "runtime_version"])]
    node: Option<String>,
    /// Registry, or part of one, that is asked without a checked certificate or without TLS; may be given several times
    #[arg(long = "insecure-registry", value_name = "PLACE", value_parser = Scope::parse)]
    insecure: Vec<Scope>,
    /// Registry, or part of one, that is never asked; may be given several times
    #[arg(long = "blocked-registry", value_name = "PLACE", value_parser = Scope::parse)]
    blocked: Vec<Scope>,
    /// Container runtime of the nodes; podman's files are also skopeo's
    #[arg(long, value_name = "RUNTIME", value_enum, default_value_t = RuntimeArgument::Crio)]
    runtime: RuntimeArgument,
    /// Version of the runtime [default: one of today]
    #[arg(long, value_name = "VERSION")]
    runtime_version: Option<Version>,
    /// Address of the agent's router, to which containerd is then led [default: none, with --node that of its agent]
    #[arg(long, value_name = "ADDRESS:PORT")]
    router: Option<SocketAddr>,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum RuntimeArgument {
    Crio,
    Podman,
    Containerd,
}

/// Everything read and merged.
struct Planned {
    config: NodeConfig,
    runtime: Runtime,
    router: Option<SocketAddr>,
    /// Whether something of what was given is not used because it is wrong.
    has_failures: bool,
}

impl Given {
    /// Merges the policies, and says on standard error what of them does not hold.
    fn plan(&self) -> Result<Planned> {
        let name = match self.runtime {
            RuntimeArgument::Crio => RuntimeName::Crio,
            RuntimeArgument::Podman => RuntimeName::Podman,
            RuntimeArgument::Containerd => RuntimeName::Containerd,
        };
        let mut runtime = Runtime { name, version: self.runtime_version };
        let mut agent = None;
        let (objects, mut has_failures) = if self.files.is_empty() {
            let found = run_to_end(cluster::read(&self.server, self.node.as_deref()))?;
            runtime = found.runtime.unwrap_or(runtime);
            agent = found.agent;
            if agent.is_none() && found.report.is_some() {
                // An agent that is run in another way reports all the same; its arguments are not known.
                agent = Some(cluster::Arguments::default());
            } else if self.node.is_some() && agent.is_none() {
                warn(&"no agents are installed and the node reports nothing, so no router is assumed");
            }
            (found.objects, found.report.is_some_and(|report| show(&report)))
        } else {
            read(&self.files)?
        };
        let mut policies = Vec::new();
        for manifest in objects {
            match policy(&manifest.object) {
                None => {}
                Some(Ok(policy)) => policies.push(policy),
                Some(Err(mismatch)) => {
                    has_failures = true;
                    warn(&unreadable(&manifest, &mismatch));
                }
            }
        }
        ensure!(
            has_failures
                || !policies.is_empty()
                || !self.insecure.is_empty()
                || !self.blocked.is_empty()
                || self.files.is_empty(),
            "there is nothing to do: the files hold no mirror policy"
        );
        let is_routed = agent.as_ref().is_some_and(|agent| !agent.without_router);
        let agent = agent.unwrap_or_default();
        let inputs = Inputs {
            policies,
            insecure: self.insecure.iter().chain(&agent.insecure).cloned().collect(),
            blocked: self.blocked.iter().chain(&agent.blocked).cloned().collect(),
        };
        let config = NodeConfig::plan(&inputs);
        for finding in &config.findings {
            has_failures |= finding.problem.is_failure();
            warn(&format!("{}: {finding}", finding.problem.reason()));
        }
        let router = self.router.or(is_routed.then(|| agent.router.unwrap_or(ROUTER)));
        Ok(Planned { config, runtime, router, has_failures })
    }
}

/// Says what the agent of a node reports that its policies alone do not tell. True if there is something.
fn show(report: &NodeMirrorReportSpec) -> bool {
    for ReportedSource { source, message } in &report.skipped {
        warn(&format!("the node reports: {source}: {message}"));
    }
    if let Some(error) = &report.error {
        warn(&format!("the node reports: {error}"));
    }
    !report.skipped.is_empty() || report.error.is_some()
}

/// The objects of all files, and whether something in them cannot be read.
fn read(paths: &[PathBuf]) -> Result<(Vec<Manifest>, bool)> {
    let mut manifests = Manifests::default();
    for path in paths {
        manifests.read(path)?;
    }
    for broken in &manifests.broken {
        warn(broken);
    }
    Ok((manifests.objects, !manifests.broken.is_empty()))
}

pub(crate) fn unreadable(manifest: &Manifest, Mismatch { field, message }: &Mismatch) -> String {
    format!("Failed: {}: {}: {field}: {message}", manifest.place, title(&manifest.object))
}

/// The policy that an object is, if it is one.
pub(crate) fn policy(object: &Value) -> Option<Result<MirrorPolicy, Mismatch>> {
    fn as_policy<'v, T: Deserialize<'v> + Into<MirrorPolicy>>(
        object: &'v Value,
    ) -> Result<MirrorPolicy, Mismatch> {
        typed::<T>(object).map(Into::into)
    }
    let policy = match (text_at(object, &["apiVersion"])?, text_at(object, &["kind"])?) {
        (CONFIG, "ImageSourceDigestPolicy") => as_policy::<ImageSourceDigestPolicy>(object),
        (CONFIG, "ImageSourceTagPolicy") => as_policy::<ImageSourceTagPolicy>(object),
        (CONFIG, "ImageDigestMirrorSet") => as_policy::<ImageDigestMirrorSet>(object),
        (CONFIG, "ImageTagMirrorSet") => as_policy::<ImageTagMirrorSet>(object),
        (OPERATOR, "ImageContentSourcePolicy") => as_policy::<ImageContentSourcePolicy>(object),
        _ => return None,
    };
    Some(policy)
}
