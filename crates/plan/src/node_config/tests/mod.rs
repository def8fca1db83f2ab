//! Tables of merged policies, and properties that hold for all of them.

mod comparing;
mod migrating;
mod properties;
mod reporting;
mod resolving;
mod routing;
mod scopes;
mod sorting;
mod validation;
mod worked;

use std::fmt::Write;

use super::{Entry, Inputs, MirrorPolicy, NodeConfig, PolicyId, PolicyKind, Scope, Set};

pub(super) const NEVER: bool = true;

fn one(
    kind: PolicyKind,
    name: &str,
    source: &str,
    mirrors: &[&str],
    never_contact_source: bool,
) -> MirrorPolicy {
    let mirrors = mirrors.iter().map(|&mirror| mirror.to_owned()).collect();
    let set = Set { source: source.to_owned(), mirrors, never_contact_source };
    MirrorPolicy { id: PolicyId { kind, name: name.to_owned() }, sets: vec![set] }
}

/// Objects of one kind each, named after their kind and source.
pub(super) fn idms(source: &str, mirrors: &[&str]) -> MirrorPolicy {
    one(PolicyKind::ImageDigestMirrorSet, source, source, mirrors, false)
}

pub(super) fn idms_never(source: &str, mirrors: &[&str]) -> MirrorPolicy {
    one(PolicyKind::ImageDigestMirrorSet, source, source, mirrors, NEVER)
}

pub(super) fn itms(source: &str, mirrors: &[&str]) -> MirrorPolicy {
    one(PolicyKind::ImageTagMirrorSet, source, source, mirrors, false)
}

pub(super) fn itms_never(source: &str, mirrors: &[&str]) -> MirrorPolicy {
    one(PolicyKind::ImageTagMirrorSet, source, source, mirrors, NEVER)
}

pub(super) fn icsp(source: &str, mirrors: &[&str]) -> MirrorPolicy {
    one(PolicyKind::ImageContentSourcePolicy, source, source, mirrors, false)
}

pub(super) fn isdp(source: &str, mirrors: &[&str]) -> MirrorPolicy {
    one(PolicyKind::ImageSourceDigestPolicy, source, source, mirrors, false)
}

pub(super) fn istp(source: &str, mirrors: &[&str]) -> MirrorPolicy {
    one(PolicyKind::ImageSourceTagPolicy, source, source, mirrors, false)
}

pub(super) fn inputs(policies: Vec<MirrorPolicy>, insecure: &[&str], blocked: &[&str]) -> Inputs {
    let scopes = |list: &[&str]| list.iter().map(|text| Scope::parse(text).unwrap()).collect();
    Inputs { policies, insecure: scopes(insecure), blocked: scopes(blocked) }
}

pub(super) fn plan(policies: Vec<MirrorPolicy>) -> NodeConfig {
    NodeConfig::plan(&inputs(policies, &[], &[]))
}

/// One line for each entry with its flags, one for each mirror below it.
pub(super) fn shown(config: &NodeConfig) -> String {
    let mut text = String::new();
    for (scope, entry) in config.entries.iter().filter(|(_, entry)| !entry.is_alias) {
        let Entry { digest, tag, never, blocked, insecure, .. } = entry;
        let flags = [(*never || *blocked, " blocked"), (*insecure, " insecure")];
        let flags: String = flags.into_iter().filter(|(is_set, _)| *is_set).map(|(_, flag)| flag).collect();
        writeln!(text, "{scope}{flags}").unwrap();
        for (mirrors, kind) in [(digest, "digest"), (tag, "tag")] {
            for mirror in &mirrors.list {
                let insecure = if mirror.insecure { " insecure" } else { "" };
                writeln!(text, "  {} {kind}{insecure}", mirror.location).unwrap();
            }
        }
    }
    text
}

/// What is said about the objects, as their conditions would.
pub(super) fn told(config: &NodeConfig) -> Vec<String> {
    config.findings.iter().map(|finding| format!("{} {finding}", finding.problem.reason())).collect()
}
