//! Makes one node follow mirror policies: its router at once, its files after it.
//!
//! The router knows new entries before a file leads to it, and a file that stays wrong leads to a router that does
//! right. Everything that is not as the policies say is logged when it begins.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use fairlead_plan::node_config::{Finding, ForeignFile, Inputs, MirrorPolicy, NodeConfig, Scope};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use thiserror::Error;

use crate::detect::{DetectError, foreign_prefixes};
use crate::files::{ConfigDir, FileError, RealDisk};
use crate::router::Router;
use crate::runtime::{Runtime, RuntimeError, RuntimeName};
use crate::{Inexact, Rendered, render};

#[derive(Clone, Debug)]
pub struct AgentSettings {
    pub directory: ConfigDir,
    pub runtime: Runtime,
    /// Where the file system of the node is mounted.
    pub host_root: PathBuf,
    /// Where the runtime reaches the router.
    pub router: SocketAddr,
    pub insecure: BTreeSet<Scope>,
    pub blocked: BTreeSet<Scope>,
}

#[derive(Debug, Error)]
pub enum AgentError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    #[error(transparent)]
    Detect(#[from] DetectError),
}

#[derive(Debug)]
pub struct NodeAgent {
    settings: AgentSettings,
    router: Arc<Router>,
    config: Arc<NodeConfig>,
    reported: BTreeSet<String>,
    metrics: Metrics,
}

#[derive(Debug, Default)]
struct Metrics {
    applied: Gauge,
    policies: Gauge,
    sources: Gauge,
    problems: Family<Kind, Gauge>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Kind {
    kind: &'static str,
}

impl NodeAgent {
    pub fn new(settings: AgentSettings, router: Arc<Router>, registry: &mut Registry) -> Self {
        let metrics = Metrics::default();
        let Metrics { applied, policies, sources, problems } = &metrics;
        registry.register(
            "fairlead_agent_applied",
            "1 while the files of the node are current",
            applied.clone(),
        );
        registry.register(
            "fairlead_agent_policies",
            "Mirror policies that the node follows",
            policies.clone(),
        );
        registry.register("fairlead_agent_sources", "Sources with an entry of their own", sources.clone());
        registry.register(
            "fairlead_agent_problems",
            "What is not as the policies say: wrong policies, what the files cannot express, files of others",
            problems.clone(),
        );
        Self { settings, router, config: Arc::default(), reported: BTreeSet::new(), metrics }
    }

    /// Follows these policies from now on.
    pub fn follow(&mut self, policies: Vec<MirrorPolicy>) -> Result<(), AgentError> {
        let (insecure, blocked) = (self.settings.insecure.clone(), self.settings.blocked.clone());
        gauge(&self.metrics.policies, policies.len());
        self.config = Arc::new(NodeConfig::plan(&Inputs { policies, insecure, blocked }));
        gauge(&self.metrics.sources, self.config.entries.len());
        self.router.follow(Arc::clone(&self.config));
        self.repair()
    }

    /// Brings the files in line again, whatever has happened to them.
    pub fn repair(&mut self) -> Result<(), AgentError> {
        let outcome = self.write();
        self.metrics.applied.set(outcome.is_ok().into());
        outcome
    }

    fn write(&mut self) -> Result<(), AgentError> {
        let (config, elsewhere) = self.without_foreign_prefixes()?;
        let Rendered { files, inexact } =
            render(&config, &self.settings.runtime, Some(self.settings.router))?;
        let applied = self.settings.directory.apply(&files, &mut RealDisk)?;
        if !applied.written.is_empty() || !applied.removed.is_empty() {
            let (written, removed) = (applied.written.join(", "), applied.removed.join(", "));
            tracing::info!(written, removed, "the files of the runtime have changed");
        }
        let foreign = applied.foreign.into_iter().chain(elsewhere).collect();
        self.report(&config.findings, &inexact, foreign);
        Ok(())
    }

    /// A drop-in replaces whole tables of other files, so sources that have one there are left out.
    fn without_foreign_prefixes(&self) -> Result<(NodeConfig, Vec<ForeignFile>), DetectError> {
        let mut config = NodeConfig::clone(&self.config);
        if self.settings.directory.runtime == RuntimeName::Containerd {
            return Ok((config, Vec::new()));
        }
        let prefixes = foreign_prefixes(&self.settings.host_root)?;
        let taken = config.entries.extract_if(.., |scope, _| prefixes.contains(scope.as_str()));
        let foreign = taken.map(|(scope, _)| ForeignFile {
            path: scope.to_string(),
            found: format!("a table for {scope} in another file of registries.conf"),
        });
        let foreign = foreign.collect();
        Ok((config, foreign))
    }

    /// Logs what is new.
    fn report(&mut self, findings: &[Finding], inexact: &[Inexact], foreign: Vec<ForeignFile>) {
        let counts = [("policy", findings.len()), ("inexact", inexact.len()), ("foreign", foreign.len())];
        for (kind, count) in counts {
            gauge(&self.metrics.problems.get_or_create(&Kind { kind }), count);
        }
        let findings = findings.iter().map(|finding| format!("{}: {finding}", finding.problem.reason()));
        let inexact = inexact.iter().map(|one| format!("not exact: {}: {}", one.source, one.message));
        let foreign = foreign.into_iter().map(|ForeignFile { path, found }| {
            format!("{path} is not written, because {found} is not Fairlead's; remove that to have policies followed")
        });
        let all: BTreeSet<String> = findings.chain(inexact).chain(foreign).collect();
        for message in all.difference(&self.reported) {
            tracing::warn!("{message}");
        }
        self.reported = all;
    }
}

fn gauge(gauge: &Gauge, count: usize) {
    gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
}
