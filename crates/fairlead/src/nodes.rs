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
use serde::Serialize;
use serde::de::DeserializeOwned;
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
            let read = if self.files.is_empty() { policy } else { policy_in_file };
            match read(&manifest.object) {
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

/// The policy that an object of a cluster is, if it is one.
pub(crate) fn policy(object: &Value) -> Option<Result<MirrorPolicy, Mismatch>> {
    read_as_kind(object, false)
}

/// The policy that an object in a file is. No API server has checked it, so a field that its kind does not have is a
/// mistake: without it, a source that should be closed would be open.
pub(crate) fn policy_in_file(object: &Value) -> Option<Result<MirrorPolicy, Mismatch>> {
    read_as_kind(object, true)
}

fn read_as_kind(object: &Value, is_strict: bool) -> Option<Result<MirrorPolicy, Mismatch>> {
    fn read<T: DeserializeOwned + Serialize + Into<MirrorPolicy>>(
        object: &Value,
        is_strict: bool,
    ) -> Result<MirrorPolicy, Mismatch> {
        let policy = typed::<T>(object)?;
        if is_strict && let (Some(given), Ok(known)) = (object.get("spec"), serde_json::to_value(&policy)) {
            check_fields(given, known.get("spec"), "spec")?;
        }
        Ok(policy.into())
    }
    let (version, read): (_, fn(&Value, bool) -> _) = match text_at(object, &["kind"])? {
        "ImageSourceDigestPolicy" => (CONFIG, read::<ImageSourceDigestPolicy>),
        "ImageSourceTagPolicy" => (CONFIG, read::<ImageSourceTagPolicy>),
        "ImageDigestMirrorSet" => (CONFIG, read::<ImageDigestMirrorSet>),
        "ImageTagMirrorSet" => (CONFIG, read::<ImageTagMirrorSet>),
        "ImageContentSourcePolicy" => (OPERATOR, read::<ImageContentSourcePolicy>),
        _ => return None,
    };
    let given = text_at(object, &["apiVersion"])?;
    if given != version {
        let message = format!("{given} is not known: write {version}");
        return Some(Err(Mismatch { field: "apiVersion".to_owned(), message }));
    }
    Some(read(object, is_strict))
}

/// Compares what is given with what was understood of it. What is empty says nothing, and is not written.
fn check_fields(given: &Value, known: Option<&Value>, place: &str) -> Result<(), Mismatch> {
    match given {
        Value::Object(fields) => fields.iter().try_for_each(|(name, given)| {
            let (field, known) = (format!("{place}.{name}"), known.and_then(|known| known.get(name)));
            let is_empty = given.is_null() || given.as_array().is_some_and(Vec::is_empty);
            if known.is_none() && !is_empty {
                return Err(Mismatch { field, message: "this kind has no such field".to_owned() });
            }
            check_fields(given, known, &field)
        }),
        Value::Array(items) => items.iter().enumerate().try_for_each(|(number, given)| {
            check_fields(given, known.and_then(|known| known.get(number)), &format!("{place}[{number}]"))
        }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn said(object: &Value) -> Option<String> {
        match policy_in_file(object)? {
            Ok(policy) => Some(format!("{} sets", policy.sets.len())),
            Err(Mismatch { field, message }) => Some(format!("{field}: {message}")),
        }
    }

    fn object(version: &str, kind: &str, spec: &Value) -> Value {
        json!({"apiVersion": version, "kind": kind, "metadata": {"name": "a"}, "spec": spec, "status": {"x": 1}})
    }

    #[test]
    fn fields_that_a_kind_does_not_have_are_named() {
        let set =
            |policy: &str| json!({"source": "hub.test", "mirrors": ["m.test"], policy: "NeverContactSource"});
        let no_field = |field: &str| Some(format!("{field}: this kind has no such field"));
        for (kind, spec, expected) in [
            (
                "ImageTagMirrorSet",
                json!({"imageTagMirrors": [set("mirrorSourcePolicy")]}),
                Some("1 sets".to_owned()),
            ),
            // As it was written for another kind.
            (
                "ImageTagMirrorSet",
                json!({"imageDigestMirrors": [set("mirrorSourcePolicy")]}),
                no_field("spec.imageDigestMirrors"),
            ),
            (
                "ImageTagMirrorSet",
                json!({"imageTagMirrors": [{"source": "a.test"}, set("mirrorsourcepolicy")]}),
                no_field("spec.imageTagMirrors[1].mirrorsourcepolicy"),
            ),
            (
                "ImageSourceTagPolicy",
                json!({"repositoryTagMirrors": [set("mirrorSourcePolicy")]}),
                no_field("spec.repositoryTagMirrors[0].mirrorSourcePolicy"),
            ),
            // What is empty says nothing.
            (
                "ImageTagMirrorSet",
                json!({"imageTagMirrors": [{"source": "a.test", "mirrors": [], "mirrorSourcePolicy": null}], "other": []}),
                Some("1 sets".to_owned()),
            ),
            ("ImageTagMirrorSet", json!({}), Some("0 sets".to_owned())),
        ] {
            assert_eq!(said(&object(CONFIG, kind, &spec)), expected, "{spec}");
        }
        // A cluster that has newer definitions may know more.
        let newer = object(CONFIG, "ImageTagMirrorSet", &json!({"newer": true}));
        assert!(policy(&newer).is_some_and(|read| read.is_ok()));
    }

    #[test]
    fn kinds_of_another_version_are_named_and_other_kinds_are_not() {
        let said = |version, kind| said(&object(version, kind, &json!({})));
        assert_eq!(
            said("config.openshift.io/v1", "ImageContentSourcePolicy").unwrap(),
            "apiVersion: config.openshift.io/v1 is not known: write operator.openshift.io/v1alpha1"
        );
        assert_eq!(
            said("operator.openshift.io/v1alpha1", "ImageDigestMirrorSet").unwrap(),
            "apiVersion: operator.openshift.io/v1alpha1 is not known: write config.openshift.io/v1"
        );
        assert_eq!(said("config.openshift.io/v1", "Image"), None);
        assert_eq!(said("v1", "ConfigMap"), None);
    }
}
