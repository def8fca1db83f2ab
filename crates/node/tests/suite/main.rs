//! Files for runtimes, compared with those in `tests/golden` and judged by skopeo.
#![allow(
    clippy::indexing_slicing,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a test that fails may do so by any means"
)]

mod agent;
mod corrected;
mod files;
mod golden;
mod readers;
mod reference;
mod router;
mod router_midway;
mod skopeo;
mod versions;

use fairlead_node::{Rendered, Runtime, RuntimeName, render};
use fairlead_plan::node_config::{Inputs, MirrorPolicy, NodeConfig, PolicyId, PolicyKind, Scope, Set};

/// One object with one set.
fn policy(kind: PolicyKind, source: &str, mirrors: &[&str], never_contact_source: bool) -> MirrorPolicy {
    let mirrors = mirrors.iter().map(|&mirror| mirror.to_owned()).collect();
    let set = Set { source: source.to_owned(), mirrors, never_contact_source };
    MirrorPolicy { id: PolicyId { kind, name: source.to_owned() }, sets: vec![set] }
}

fn digest(source: &str, mirrors: &[&str]) -> MirrorPolicy {
    policy(PolicyKind::ImageSourceDigestPolicy, source, mirrors, false)
}

fn digest_never(source: &str, mirrors: &[&str]) -> MirrorPolicy {
    policy(PolicyKind::ImageDigestMirrorSet, source, mirrors, true)
}

fn tag(source: &str, mirrors: &[&str]) -> MirrorPolicy {
    policy(PolicyKind::ImageTagMirrorSet, source, mirrors, false)
}

fn tag_never(source: &str, mirrors: &[&str]) -> MirrorPolicy {
    policy(PolicyKind::ImageTagMirrorSet, source, mirrors, true)
}

fn both(source: &str, mirrors: &[&str]) -> MirrorPolicy {
    policy(PolicyKind::ImageSourceTagPolicy, source, mirrors, false)
}

fn plan(policies: Vec<MirrorPolicy>, insecure: &[&str], blocked: &[&str]) -> NodeConfig {
    let scopes = |list: &[&str]| list.iter().map(|text| Scope::parse(text).unwrap()).collect();
    NodeConfig::plan(&Inputs { policies, insecure: scopes(insecure), blocked: scopes(blocked) })
}

fn rendered(config: &NodeConfig, name: RuntimeName, version: Option<&str>) -> Rendered {
    let version = version.map(|text| text.parse().unwrap());
    render(config, &Runtime { name, version }, None).unwrap()
}

/// The files of a node with a router.
fn routed(config: &NodeConfig) -> Rendered {
    let runtime = Runtime { name: RuntimeName::Containerd, version: None };
    render(config, &runtime, Some("127.0.0.1:7780".parse().unwrap())).unwrap()
}

/// What is said of every host without a port.
const OTHER_PORTS: [&str; 2] =
    ["images that are named with a port keep the port", "other ports of the host are closed as well"];

/// What is reported of one source, but for its other ports.
fn reported<'a>(rendered: &'a Rendered, source: &str) -> Vec<&'a str> {
    let is_of_ports = |message: &&str| {
        !source.starts_with('*') && OTHER_PORTS.iter().any(|about_ports| message.starts_with(about_ports))
    };
    let of_source = rendered.inexact.iter().filter(|one| one.source.as_str() == source);
    of_source.map(|one| one.message.as_str()).filter(|message| !is_of_ports(message)).collect()
}
