//! From objects to entries: sets are checked one by one, collected by source, ordered, and handed down.

use std::collections::{BTreeMap, BTreeSet};

use super::scope::enclosing;
use super::{
    Entry, Finding, Inputs, Location, Mirror, MirrorPolicy, Mirrors, NodeConfig, PolicyId, Problem, PullKind,
    Scope, Set, order,
};

/// What all objects together say about one source.
#[derive(Default)]
struct Source<'a> {
    digest: Vec<Listed<'a>>,
    tag: Vec<Listed<'a>>,
    closed_by: BTreeSet<&'a PolicyId>,
    left_open_by: BTreeSet<&'a PolicyId>,
}

struct Listed<'a> {
    by: &'a PolicyId,
    mirrors: Vec<Location>,
}

/// The same with the lists merged.
struct Merged<'a> {
    digest: Vec<Location>,
    tag: Vec<Location>,
    never: bool,
    policies: BTreeSet<&'a PolicyId>,
}

impl Merged<'_> {
    fn mirrors(&self, kind: PullKind) -> &[Location] {
        match kind {
            PullKind::Digest => &self.digest,
            PullKind::Tag => &self.tag,
        }
    }
}

pub(super) fn merge(inputs: &Inputs) -> NodeConfig {
    let mut findings = Vec::new();
    let mut sources: BTreeMap<Scope, Source<'_>> = BTreeMap::new();
    for policy in &inputs.policies {
        for set in &policy.sets {
            collect(policy, set, &mut sources, &mut findings);
        }
    }
    let sources = sources
        .into_iter()
        .map(|(scope, source)| {
            let merged = source.merge(&scope, &mut findings);
            (scope, merged)
        })
        .collect();
    findings.sort();
    // A set that serves both kinds of pulls would report its mirrors twice.
    findings.dedup();
    NodeConfig { entries: entries(&sources, inputs), findings }
}

/// Takes up one set, or says why not.
fn collect<'a>(
    policy: &'a MirrorPolicy,
    set: &Set,
    sources: &mut BTreeMap<Scope, Source<'a>>,
    findings: &mut Vec<Finding>,
) {
    let mut report = |problem| {
        let (policy, source) = (policy.id.clone(), set.source.clone());
        findings.push(Finding { policy, source, problem });
    };
    let never = set.never_contact_source;
    let scope = match Scope::parse(&set.source) {
        Ok(scope) => scope,
        Err(error) => return report(Problem::unreadable(&error, false)),
    };
    if set.mirrors.is_empty() {
        return report(Problem::NoMirror);
    }
    let mirrors = read_mirrors(&scope, set);
    let has_mirror = |mirrors: &[Location]| mirrors.iter().any(|mirror| mirror.as_str() != scope.as_str());
    match mirrors {
        Ok(mirrors) if has_mirror(&mirrors) => {
            let source = sources.entry(scope).or_default();
            let stance = if never { &mut source.closed_by } else { &mut source.left_open_by };
            stance.insert(&policy.id);
            for kind in policy.id.kind.serves() {
                let lists = match kind {
                    PullKind::Digest => &mut source.digest,
                    PullKind::Tag => &mut source.tag,
                };
                lists.push(Listed { by: &policy.id, mirrors: mirrors.clone() });
            }
        }
        Ok(_) => report(Problem::NoMirror),
        Err(problem) => {
            report(problem);
            if never {
                sources.entry(scope).or_default().closed_by.insert(&policy.id);
            }
        }
    }
}

/// The mirrors of a set, each at its first place.
fn read_mirrors(scope: &Scope, set: &Set) -> Result<Vec<Location>, Problem> {
    let never = set.never_contact_source;
    let mut seen = BTreeSet::new();
    let mut mirrors = Vec::with_capacity(set.mirrors.len());
    for text in &set.mirrors {
        let mirror = Location::parse(text).map_err(|error| Problem::unreadable(&error, never))?;
        if never && scope.covers(&mirror) {
            return Err(Problem::MirrorInSource { mirror });
        }
        if seen.insert(text) {
            mirrors.push(mirror);
        }
    }
    Ok(mirrors)
}

impl<'a> Source<'a> {
    fn merge(self, scope: &Scope, findings: &mut Vec<Finding>) -> Merged<'a> {
        let mut report = |by: &PolicyId, problem| {
            findings.push(Finding { policy: by.clone(), source: scope.to_string(), problem });
        };
        let closing = self.closed_by.first().copied();
        if let (Some(closing), Some(opening)) = (closing, self.left_open_by.first()) {
            for policy in &self.closed_by {
                report(policy, Problem::Contradicted { by: (*opening).clone(), is_closing: true });
            }
            for policy in &self.left_open_by {
                report(policy, Problem::Contradicted { by: closing.clone(), is_closing: false });
            }
        }
        let mut merged = |lists: Vec<Listed<'a>>| {
            let mut usable = Vec::with_capacity(lists.len());
            for Listed { by, mut mirrors } in lists {
                if let Some(closing) = closing {
                    for mirror in mirrors.extract_if(.., |mirror| scope.covers(mirror)) {
                        report(by, Problem::MirrorInClosedSource { mirror, by: closing.clone() });
                    }
                }
                usable.push(mirrors);
            }
            order::order(scope, &usable)
        };
        let (digest, tag) = (merged(self.digest), merged(self.tag));
        let policies = self.closed_by.union(&self.left_open_by).copied().collect();
        Merged { digest, tag, never: closing.is_some(), policies }
    }
}

/// An entry for each source, and for each scope that is insecure or blocked.
fn entries(sources: &BTreeMap<Scope, Merged<'_>>, inputs: &Inputs) -> BTreeMap<Scope, Entry> {
    let scopes: BTreeSet<&Scope> = sources.keys().chain(&inputs.insecure).chain(&inputs.blocked).collect();
    scopes.into_iter().map(|scope| (scope.clone(), entry(scope, sources, inputs))).collect()
}

fn entry(scope: &Scope, sources: &BTreeMap<Scope, Merged<'_>>, inputs: &Inputs) -> Entry {
    let own = sources.get(scope);
    let nearest = |is_wanted: &dyn Fn(&Merged<'_>) -> bool| {
        enclosing(scope.as_str())
            .find_map(|text| sources.get_key_value(text.as_ref()).filter(|(_, source)| is_wanted(source)))
    };
    // A scope of its own has its own word about the source; one without follows the source that it lies in.
    let never = match own {
        Some(own) => own.never,
        None => nearest(&|_| true).is_some_and(|(_, source)| source.never),
    };
    let mirrors = |kind| {
        let Some((from, source)) = nearest(&|source| !source.mirrors(kind).is_empty()) else {
            return Mirrors { never, ..Mirrors::default() };
        };
        let suffix = from.suffix(scope.as_str());
        let list = source.mirrors(kind).iter().map(|mirror| {
            let location = mirror.join(suffix);
            Mirror { insecure: is_listed(&inputs.insecure, location.as_str()), location }
        });
        let inherited_from = (from != scope).then(|| from.clone());
        Mirrors { inherited_from, list: list.collect(), never: never || source.never }
    };
    let (digest, tag) = (mirrors(PullKind::Digest), mirrors(PullKind::Tag));
    Entry {
        never: digest.never || tag.never,
        digest,
        tag,
        blocked: is_listed(&inputs.blocked, scope.as_str()),
        insecure: is_listed(&inputs.insecure, scope.as_str()),
        policies: own.map(|own| own.policies.iter().copied().cloned().collect()).unwrap_or_default(),
    }
}

fn is_listed(scopes: &BTreeSet<Scope>, place: &str) -> bool {
    !scopes.is_empty() && enclosing(place).any(|text| scopes.contains(text.as_ref()))
}
