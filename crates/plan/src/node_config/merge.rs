//! From objects to entries: sets are checked one by one, collected by source, ordered, and handed down.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use super::alias::Aliases;
use super::order::Ordered;
use super::scope::enclosing;
use super::{
    Closing, Entry, Finding, Inputs, ListedBy, Location, Mirror, MirrorPolicy, Mirrors, NodeConfig, PolicyId,
    Problem, PullKind, Scope, Set, order,
};

/// Longest list that is searched from its beginning.
const FEW: usize = 16;

/// What all objects together say about one source.
#[derive(Default)]
struct MergedSource<'a> {
    digest: Vec<Listed<'a>>,
    tag: Vec<Listed<'a>>,
    closed_by: BTreeSet<&'a PolicyId>,
    left_open_by: BTreeSet<&'a PolicyId>,
}

struct Listed<'a> {
    by: &'a PolicyId,
    /// Each can be read as a location.
    mirrors: Vec<&'a str>,
}

/// Texts that can be read as locations. Most sets name the same few mirrors.
type KnownMirrors<'a> = HashSet<&'a str>;

/// The same with the lists merged.
#[derive(Clone)]
struct Merged {
    digest: MergedList,
    tag: MergedList,
    /// `None`: the source may be contacted.
    closed_by: Option<Arc<BTreeSet<PolicyId>>>,
    policies: Arc<BTreeSet<PolicyId>>,
    /// No policy names the source like this: it is another name of one that they name.
    is_alias: bool,
}

#[derive(Clone)]
struct MergedList {
    mirrors: Vec<Location>,
    listed_by: ListedBy,
}

impl Merged {
    fn list(&self, kind: PullKind) -> &MergedList {
        match kind {
            PullKind::Digest => &self.digest,
            PullKind::Tag => &self.tag,
        }
    }

    fn closing(&self, source: &Scope) -> Option<Closing> {
        self.closed_by.clone().map(|by| Closing { source: source.clone(), by })
    }
}

pub(super) fn merge(inputs: &Inputs) -> NodeConfig {
    let mut findings = Vec::new();
    let mut sources: BTreeMap<Scope, MergedSource<'_>> = BTreeMap::new();
    let mut known = KnownMirrors::new();
    for policy in &inputs.policies {
        for set in &policy.sets {
            collect(policy, set, &mut known, &mut sources, &mut findings);
        }
    }
    let sources = sources
        .into_iter()
        .map(|(scope, source)| {
            let merged = source.merge(&scope, &mut findings);
            (scope, merged)
        })
        .collect();
    let mut config = NodeConfig { entries: entries(sources, inputs), findings };
    let closed = config.mirrors_in_closed_scopes(&inputs.policies);
    config.findings.extend(closed);
    config.findings.sort();
    // A set that serves both kinds of pulls would report its mirrors twice.
    config.findings.dedup();
    config
}

impl NodeConfig {
    /// Runtimes look every mirror up before they ask it, so one in a closed scope is passed over.
    fn mirrors_in_closed_scopes(&self, policies: &[MirrorPolicy]) -> Vec<Finding> {
        let mut findings = Vec::new();
        if !self.entries.values().any(Entry::is_closed) {
            return findings;
        }
        // Most sets name the same few mirrors.
        let mut known: HashMap<&str, Option<(&Scope, &Entry)>> = HashMap::new();
        let sets = policies.iter().flat_map(|policy| policy.sets.iter().map(move |set| (&policy.id, set)));
        for (policy, set) in sets.filter(|(_, set)| self.entries.contains_key(set.source.as_str())) {
            for mirror in &set.mirrors {
                let found = *known.entry(mirror).or_insert_with(|| self.entry_for(mirror));
                let Some((scope, entry)) = found else { continue };
                let is_closed = policy.kind.serves().iter().any(|kind| entry.is_closed_for(*kind));
                if let (true, Ok(mirror)) =
                    (is_closed && scope.as_str() != set.source, Location::parse(mirror))
                {
                    let problem = Problem::MirrorInClosedScope { mirror, scope: scope.clone() };
                    findings.push(Finding { policy: policy.clone(), source: set.source.clone(), problem });
                }
            }
        }
        findings
    }
}

/// Takes up one set, or says why not.
fn collect<'a>(
    policy: &'a MirrorPolicy,
    set: &'a Set,
    known: &mut KnownMirrors<'a>,
    sources: &mut BTreeMap<Scope, MergedSource<'a>>,
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
    if let Some(name) = scope.taken_for() {
        report(Problem::NoImage { name });
    }
    let mirrors = read_mirrors(&scope, set, known);
    let has_mirror = |mirrors: &[&str]| mirrors.iter().any(|mirror| *mirror != scope.as_str());
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
fn read_mirrors<'a>(
    scope: &Scope,
    set: &'a Set,
    known: &mut KnownMirrors<'a>,
) -> Result<Vec<&'a str>, Problem> {
    let never = set.never_contact_source;
    let read = |text: &str| Location::parse(text).map_err(|error| Problem::unreadable(&error, never));
    let mut mirrors: Vec<&str> = Vec::with_capacity(set.mirrors.len());
    let mut seen = HashSet::new();
    for text in set.mirrors.iter().map(String::as_str) {
        if !known.contains(text) {
            read(text)?;
            known.insert(text);
        }
        if never && scope.covers(text) {
            return Err(Problem::MirrorInSource { mirror: read(text)? });
        }
        let is_new = if set.mirrors.len() > FEW { seen.insert(text) } else { !mirrors.contains(&text) };
        if is_new {
            mirrors.push(text);
        }
    }
    Ok(mirrors)
}

impl<'a> MergedSource<'a> {
    fn merge(self, scope: &Scope, findings: &mut Vec<Finding>) -> Merged {
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
        // In order, as a union of sets is.
        let named_by: Vec<&PolicyId> = self.closed_by.union(&self.left_open_by).copied().collect();
        let policies = Arc::new(named_by.iter().copied().cloned().collect());
        let mut merged = |lists: Vec<Listed<'a>>| {
            let (mut usable, mut by_whom) =
                (Vec::with_capacity(lists.len()), Vec::with_capacity(lists.len()));
            for Listed { by, mut mirrors } in lists {
                if let Some(closing) = closing {
                    let inside = mirrors.extract_if(.., |mirror| scope.covers(mirror));
                    for mirror in inside.filter_map(|text| Location::parse(text).ok()) {
                        report(by, Problem::MirrorInClosedSource { mirror, by: closing.clone() });
                    }
                }
                usable.push(mirrors);
                by_whom.push(named_by.binary_search(&by).ok());
            }
            let Ordered { mirrors, listed } = order::order(scope, &usable);
            let policy = |list: usize| by_whom.get(list).copied().flatten();
            let pairs = listed.into_iter().filter_map(|(mirror, list)| Some((mirror, policy(list)?)));
            MergedList { mirrors, listed_by: ListedBy::new(&policies, pairs.collect()) }
        };
        let (digest, tag) = (merged(self.digest), merged(self.tag));
        let closed_by = closing.map(|_| Arc::new(self.closed_by.into_iter().cloned().collect()));
        Merged { digest, tag, closed_by, policies, is_alias: false }
    }
}

/// An entry for each source, and for each scope that is insecure or blocked.
fn entries(mut sources: BTreeMap<Scope, Merged>, inputs: &Inputs) -> BTreeMap<Scope, Entry> {
    let mut lists = Lists { insecure: inputs.insecure.clone(), blocked: inputs.blocked.clone() };
    let closed = sources.iter().filter(|(_, source)| source.closed_by.is_some()).map(|(scope, _)| scope);
    let aliases = Aliases::new(closed.chain(&inputs.blocked));
    aliases.extend(&mut sources, |source| Merged { is_alias: true, ..source.clone() });
    for list in [&mut lists.insecure, &mut lists.blocked] {
        let added: Vec<Scope> = list.iter().flat_map(|scope| aliases.of(scope)).collect();
        list.extend(added);
    }
    let is_named = |scope| inputs.insecure.contains(scope) || inputs.blocked.contains(scope);
    let own = sources.iter().map(|(scope, source)| (scope, Some(source)));
    let listed = lists.insecure.union(&lists.blocked).filter(|scope| !sources.contains_key(*scope));
    own.chain(listed.map(|scope| (scope, None)))
        .map(|(scope, own)| {
            let is_alias = own.is_none_or(|own| own.is_alias) && !is_named(scope);
            (scope.clone(), Entry { is_alias, ..entry(scope, own, &sources, &lists) })
        })
        .collect()
}

/// Places that an administrator lists.
struct Lists {
    insecure: BTreeSet<Scope>,
    blocked: BTreeSet<Scope>,
}

/// The entry of a scope. `own` is what policies say of this very scope.
fn entry(scope: &Scope, own: Option<&Merged>, sources: &BTreeMap<Scope, Merged>, lists: &Lists) -> Entry {
    let nearest = |is_wanted: &dyn Fn(&Merged) -> bool| {
        let around = enclosing(scope.as_str()).skip(1);
        let mut around = around.filter_map(|text| sources.get_key_value(text.as_ref()));
        let own = own.filter(|own| is_wanted(own)).map(|own| (scope, own));
        own.or_else(|| around.find(|(_, source)| is_wanted(source)))
    };
    // A scope of its own has its own word about the source; one without follows the source that it lies in.
    let closed = match own {
        Some(own) => own.closing(scope),
        None => nearest(&|_| true).and_then(|(from, source)| source.closing(from)),
    };
    let mirrors = |kind| {
        let Some((from, source)) = nearest(&|source| !source.list(kind).mirrors.is_empty()) else {
            return Mirrors { closed: closed.clone(), ..Mirrors::default() };
        };
        let suffix = from.suffix(scope.as_str());
        let MergedList { mirrors, listed_by } = source.list(kind);
        let list = mirrors.iter().map(|mirror| {
            let location = mirror.join(suffix);
            Mirror { insecure: is_listed(&lists.insecure, location.as_str()), location }
        });
        let inherited_from = (from != scope).then(|| from.clone());
        let closed = closed.clone().or_else(|| source.closing(from));
        Mirrors { inherited_from, list: list.collect(), listed_by: listed_by.clone(), closed }
    };
    let (digest, tag) = (mirrors(PullKind::Digest), mirrors(PullKind::Tag));
    Entry {
        never: digest.closed.is_some() || tag.closed.is_some(),
        digest,
        tag,
        blocked: is_listed(&lists.blocked, scope.as_str()),
        insecure: is_listed(&lists.insecure, scope.as_str()),
        policies: own.map(|own| Arc::clone(&own.policies)).unwrap_or_default(),
        is_alias: false,
    }
}

fn is_listed(scopes: &BTreeSet<Scope>, place: &str) -> bool {
    !scopes.is_empty() && enclosing(place).any(|text| scopes.contains(text.as_ref()))
}
