//! Makes one node follow mirror policies: its router at once, its files after it.
//!
//! The router knows new entries before a file leads to it, and a file that stays wrong leads to a router that does
//! right. Everything that is not as the policies say is logged when it begins.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use fairlead_domain::reference::Reference;
use fairlead_plan::node_config::report::InForce;
use fairlead_plan::node_config::{Entry, Finding, ForeignFile, Inputs, MirrorPolicy, NodeConfig, Scope};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use thiserror::Error;

use crate::containerd;
use crate::crio::{Crio, ReloadError};
use crate::detect::{DetectError, foreign_prefixes};
use crate::files::{Applied, ConfigDir, FileError, RealDisk};
use crate::router::{CanaryError, Router, canary, is_free_for_router};
use crate::runtime::{Runtime, RuntimeError, RuntimeName};
use crate::{DROP_IN, File, Inexact, Rendered, registries_conf, render};

/// A policy that an agent follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FollowedPolicy {
    pub policy: MirrorPolicy,
    /// False if the object cannot be read any more: then this is what it said before. What cannot be read must not open
    /// a source that a policy closed.
    pub is_current: bool,
}

impl From<MirrorPolicy> for FollowedPolicy {
    fn from(policy: MirrorPolicy) -> Self {
        Self { policy, is_current: true }
    }
}

#[derive(Clone, Debug)]
pub struct AgentSettings {
    pub directory: ConfigDir,
    pub runtime: Runtime,
    /// Where the file system of the node is mounted.
    pub host_root: PathBuf,
    /// Where the runtime reaches the router; without one, files say as much as they can.
    pub router: Option<SocketAddr>,
    pub insecure: BTreeSet<Scope>,
    pub blocked: BTreeSet<Scope>,
    /// The image that agents are started from, which has to be pulled before an agent can route anything.
    pub own_image: Option<Reference>,
}

#[derive(Debug, Error)]
pub enum AgentError {
    #[error(transparent)]
    File(#[from] FileError),
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    #[error(transparent)]
    Detect(#[from] DetectError),
    #[error(transparent)]
    Reload(#[from] ReloadError),
    #[error(transparent)]
    Canary(#[from] CanaryError),
}

#[derive(Debug)]
pub struct NodeAgent {
    settings: AgentSettings,
    crio: Option<Crio>,
    router: Arc<Router>,
    config: Arc<NodeConfig>,
    /// What the entries come to without the sources of others, since these or the entries last changed.
    rendered: Option<(Foreign, Rendered)>,
    /// Hashes of what the node should follow.
    hashes: (String, String),
    in_force: InForce,
    reported: BTreeSet<String>,
    /// Files as they were before the last change, until that is verified.
    before: Option<Vec<File>>,
    metrics: Metrics,
}

/// What files of other owners in `registries.conf` decide about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Foreign {
    sources: Vec<ForeignFile>,
    /// Sources that are not followed as a whole, each with what is said about it.
    parts: Vec<(Scope, String)>,
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
        let is_crio = settings.runtime.name == RuntimeName::Crio;
        Self {
            crio: is_crio.then(|| Crio::new(&settings.host_root, settings.runtime)),
            settings,
            router,
            config: Arc::default(),
            rendered: None,
            hashes: Default::default(),
            in_force: InForce::default(),
            reported: BTreeSet::new(),
            before: None,
            metrics,
        }
    }

    /// Follows these policies from now on: the router does at once, the files after [`Self::repair`].
    ///
    /// The report covers the objects that can be read now. Only this agent knows that it still has an earlier version
    /// of another one, so what is reported of other policies must not depend on that version.
    pub fn follow(&mut self, policies: Vec<FollowedPolicy>) {
        gauge(&self.metrics.policies, policies.len());
        let (current, former): (Vec<_>, Vec<_>) = policies.into_iter().partition(|policy| policy.is_current);
        let mut inputs = Inputs {
            policies: current.into_iter().map(|followed| followed.policy).collect(),
            insecure: self.settings.insecure.clone(),
            blocked: self.settings.blocked.clone(),
        };
        let config = NodeConfig::plan(&inputs);
        self.hashes = (inputs.hash(), config.hash());
        self.config = Arc::new(if former.is_empty() {
            config
        } else {
            inputs.policies.extend(former.into_iter().map(|followed| followed.policy));
            NodeConfig::plan(&inputs)
        });
        self.rendered = None;
        gauge(&self.metrics.sources, self.config.named().count());
        self.router.follow(Arc::clone(&self.config));
    }

    /// Asks the router's address before files lead there, so that containerd is never led to another program.
    pub async fn check_address(&self) -> Result<(), AgentError> {
        let Some(router) = self.leads_to() else { return Ok(()) };
        let answered = is_free_for_router(router).await;
        if answered.is_err() {
            self.metrics.applied.set(0);
        }
        Ok(answered?)
    }

    /// Brings the files in line again, whatever has happened to them.
    pub fn repair(&mut self) -> Result<(), AgentError> {
        let outcome = self.write();
        self.metrics.applied.set(outcome.is_ok().into());
        if outcome.is_ok() {
            self.router.files_follow(Arc::clone(&self.config));
        }
        outcome
    }

    /// Asks the router as the runtime would, if files lead to it. If another program answers, the files of before the
    /// last change come back.
    pub async fn verify(&mut self) -> Result<(), AgentError> {
        let answered = match self.leads_to() {
            Some(router) => canary(router).await,
            None => Ok(()),
        };
        match &answered {
            Ok(()) => self.before = None,
            Err(CanaryError::Stranger(_)) => {
                if let Some(before) = self.before.take() {
                    self.settings.directory.apply(&before, &mut RealDisk)?;
                }
            }
            Err(CanaryError::Silent(_)) => {}
        }
        self.metrics.applied.set(answered.is_ok().into());
        Ok(answered?)
    }

    /// Where files lead, if they lead anywhere.
    fn leads_to(&self) -> Option<SocketAddr> {
        let is_led = self.settings.runtime.name == RuntimeName::Containerd && !self.config.entries.is_empty();
        self.settings.router.filter(|_| is_led)
    }

    /// What the files hold since the last call that succeeded.
    pub fn in_force(&self) -> &InForce {
        &self.in_force
    }

    fn write(&mut self) -> Result<(), AgentError> {
        let elsewhere = self.foreign_prefixes()?;
        let Rendered { files, mut inexact, .. } = self.render(&elsewhere)?;
        inexact.extend(self.own_image_in_closed_place());
        let applied = match &mut self.crio {
            Some(crio) => crio.apply(&self.settings.directory, &files)?,
            None => self.settings.directory.apply(&files, &mut RealDisk)?,
        };
        if applied.has_changes() {
            let (written, removed) = (applied.written.join(", "), applied.removed.join(", "));
            tracing::info!(written, removed, "the files of the runtime have changed");
            self.before.get_or_insert(applied.before.clone());
        }
        inexact.extend(self.hides_default(&files, &applied));
        let mut hidden = self.hidden_from_domains(&applied);
        hidden.extend(elsewhere.parts);
        let foreign: Vec<ForeignFile> = applied.foreign.into_iter().chain(elsewhere.sources).collect();
        let (policies, config_hash) = self.hashes.clone();
        self.in_force = InForce {
            policies,
            config: config_hash,
            skipped: foreign.iter().flat_map(|file| self.skipped(file)).chain(hidden.clone()).collect(),
            inexact: inexact.iter().map(|one| (one.source.clone(), one.message.clone())).collect(),
        };
        let config = Arc::clone(&self.config);
        self.report(&config.findings, &inexact, foreign, &hidden);
        Ok(())
    }

    /// Sources in registries for which a file of ours takes the place of another owner's file for all registries.
    /// containerd reads the first directory alone, so that file no longer counts for images that no policy is about.
    fn hides_default(&self, files: &[File], applied: &Applied) -> Vec<Inexact> {
        let Some(default) = &applied.default_of_others else { return Vec::new() };
        let is_written = |file: &&File| !applied.foreign.iter().any(|foreign| foreign.path == file.path);
        let directories = files.iter().filter(is_written).filter_map(|file| file.path.split('/').next());
        let registries = directories.map(containerd::host_of);
        let undecided = registries.filter(|registry| !self.config.decides_all_of(registry));
        let sources = undecided.flat_map(|registry| {
            let message = format!(
                "images of {registry} that no policy names mirrors for do not follow {default} any more, which is not \
                 Fairlead's: containerd reads no more than one directory for a registry; name its mirrors in a policy \
                 for {registry}"
            );
            let named = self.config.entries_of(&registry).filter(|(_, entry)| !entry.is_alias);
            let named = named.map(|(scope, _)| Inexact { source: scope.clone(), message: message.clone() });
            named.collect::<Vec<_>>()
        });
        sources.collect()
    }

    /// Domains whose file containerd does not look at for a host, because that has a directory of another owner.
    fn hidden_from_domains(&self, applied: &Applied) -> Vec<(Scope, String)> {
        let is_led = self.leads_to().is_some();
        let directories = applied.of_others.iter().filter(|_| is_led);
        let hidden = directories.filter_map(|directory| {
            let host = containerd::host_of(directory);
            let (scope, entry) = self.config.entry_for(&host).filter(|(scope, _)| scope.domain().is_some())?;
            let counts = entry.has_mirrors() || entry.is_closed();
            counts.then(|| {
                let message = format!(
                    "{host} is left alone, because {directory} in the directory of containerd's files is not Fairlead's"
                );
                (scope.clone(), message)
            })
        });
        hidden.collect()
    }

    /// A registry that has a closed part is pulled from through the agent alone. If the agent's own image is there, a
    /// node that has lost it, or never had it, cannot start an agent again.
    fn own_image_in_closed_place(&self) -> Option<Inexact> {
        let image = self.settings.own_image.as_ref().filter(|_| self.leads_to().is_some())?;
        let registry = image.host();
        if !self.config.leads_to_router_only(registry.as_str()) {
            return None;
        }
        let is_closed = |scope: &Scope, entry: &Entry| {
            entry.is_closed() && (scope.host() == registry.as_str() || scope.domain().is_some())
        };
        let source = self.config.entries.iter().find(|(scope, entry)| is_closed(scope, entry))?.0.clone();
        let message = format!(
            "the agent's own image, {image}, is pulled from there: a node without it cannot start an agent, and \
             without an agent it cannot be pulled; have it elsewhere, or on the nodes from the start"
        );
        Some(Inexact { source, message })
    }

    /// The sources that a file of another owner decides about.
    fn skipped(&self, ForeignFile { path, found }: &ForeignFile) -> Vec<(Scope, String)> {
        let directory = path.split('/').next().unwrap_or_default();
        let is_concerned = |scope: &&Scope| match self.settings.directory.runtime {
            RuntimeName::Containerd => containerd::directory_of(scope) == directory,
            RuntimeName::Crio | RuntimeName::Podman => path == DROP_IN || scope.as_str() == path,
        };
        let message = format!("it is left alone, because {found} on the node is not Fairlead's");
        let scopes = self.config.entries.keys().filter(is_concerned);
        scopes.map(|scope| (scope.clone(), message.clone())).collect()
    }

    /// What other files of `registries.conf` have tables for. A drop-in replaces whole tables, so sources that have one
    /// there are left out; and readers follow the table with the longest name, so a part of a source that has one there
    /// is not treated as the source.
    fn foreign_prefixes(&self) -> Result<Foreign, DetectError> {
        let mut foreign = Foreign::default();
        if self.settings.directory.runtime == RuntimeName::Containerd {
            return Ok(foreign);
        }
        for prefix in foreign_prefixes(&self.settings.host_root)? {
            let hidden = self.config.named().filter(|scope| registries_conf::hides(&prefix, scope));
            foreign.parts.extend(hidden.map(|scope| {
                let message = format!(
                    "another file of registries.conf has a table for {prefix}, which is of the same length and counts \
                     before it"
                );
                (scope.clone(), message)
            }));
            let Some((scope, entry)) = self.config.entry_for(&prefix) else { continue };
            if scope.as_str() == prefix {
                let found = format!("a table for {scope} in another file of registries.conf");
                foreign.sources.push(ForeignFile { path: prefix, found });
            } else if entry.has_mirrors() || entry.is_closed() {
                let message = format!(
                    "{prefix} is left alone, because another file of registries.conf has a table for it"
                );
                foreign.parts.push((scope.clone(), message));
            }
        }
        Ok(foreign)
    }

    fn render(&mut self, foreign: &Foreign) -> Result<Rendered, RuntimeError> {
        if let Some((_, rendered)) = self.rendered.as_ref().filter(|(known, _)| known == foreign) {
            return Ok(rendered.clone());
        }
        let AgentSettings { runtime, router, .. } = &self.settings;
        let rendered = if foreign.sources.is_empty() {
            render(&self.config, runtime, *router)?
        } else {
            let mut config = NodeConfig::clone(&self.config);
            let taken: BTreeSet<&str> = foreign.sources.iter().map(|one| one.path.as_str()).collect();
            config.entries.retain(|scope, _| !taken.contains(scope.as_str()));
            render(&config, runtime, *router)?
        };
        self.rendered = Some((foreign.clone(), rendered.clone()));
        Ok(rendered)
    }

    /// Logs what is new.
    fn report(
        &mut self,
        findings: &[Finding],
        inexact: &[Inexact],
        foreign: Vec<ForeignFile>,
        hidden: &[(Scope, String)],
    ) {
        let of_others = foreign.len() + hidden.len();
        let counts = [("policy", findings.len()), ("inexact", inexact.len()), ("foreign", of_others)];
        for (kind, count) in counts {
            gauge(&self.metrics.problems.get_or_create(&Kind { kind }), count);
        }
        let findings = findings.iter().map(|finding| format!("{}: {finding}", finding.problem.reason()));
        let inexact = inexact.iter().map(|one| format!("not exact: {}: {}", one.source, one.message));
        let foreign = foreign.into_iter().map(|ForeignFile { path, found }| {
            format!("{path} is not written, because {found} is not Fairlead's; remove that to have policies followed")
        });
        let hidden = hidden.iter().map(|(scope, message)| format!("not followed: {scope}: {message}"));
        let all: BTreeSet<String> = findings.chain(inexact).chain(foreign).chain(hidden).collect();
        for message in all.difference(&self.reported) {
            tracing::warn!("{message}");
        }
        self.reported = all;
    }
}

fn gauge(gauge: &Gauge, count: usize) {
    gauge.set(i64::try_from(count).unwrap_or(i64::MAX));
}
