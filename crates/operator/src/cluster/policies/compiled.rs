//! What became of every policy object, and the index of those that work.
//!
//! An object is compiled once for each of its generations. When objects change, those that did not are taken over as
//! they are, and so is the whole index when none of them changed: a status that is written costs no rebuild. An object
//! that is being deleted is out of use at once: while its finalizers run, its copies of images and Secrets disappear.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use fairlead_domain::reference::HostPattern;
use fairlead_plan::policy_status::{self, Compilation, Judgement};
use fairlead_plan::routing::{Index, Policy, PolicyError, PolicyKind};

use super::kinds::{PolicyObject, View};
use crate::cluster::state::{Key, Snapshot};

/// Which object: its kind and its name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name {
    pub kind: PolicyKind,
    pub key: Key,
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.kind, self.key)
    }
}

/// What became of one object.
#[derive(Debug, Clone)]
pub(super) enum CompileState {
    Compiled(Arc<Policy>),
    Refused(Arc<PolicyError>),
    Unreadable(Arc<str>),
    /// It can be read, but not compiled, through no fault of its own.
    Crashed,
}

const CRASHED: &str = "spec: compiling it failed inside Fairlead, which is a bug to be reported";

impl CompileState {
    /// With the Secrets that it names and that cannot be used.
    pub(super) fn outcome<'a>(&'a self, secrets: &'a [String]) -> Compilation<'a> {
        match self {
            Self::Compiled(policy) => Compilation::Compiled { policy, secrets },
            Self::Refused(error) => Compilation::Refused(error),
            Self::Unreadable(error) => Compilation::Unreadable { error },
            Self::Crashed => Compilation::Unreadable { error: CRASHED },
        }
    }
}

#[derive(Debug, Clone)]
pub(super) struct CompiledObject {
    uid: Arc<str>,
    generation: Option<i64>,
    pub(super) state: CompileState,
}

impl CompiledObject {
    /// Whether it is about this version of the object. Without a generation it counts as another.
    pub(super) fn is_of(&self, uid: &str, generation: Option<i64>) -> bool {
        &*self.uid == uid && generation.is_some() && self.generation == generation
    }
}

/// A problem of one object, in words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PolicyProblem {
    pub object: Name,
    pub reason: &'static str,
    pub message: String,
}

/// All objects at one moment.
#[derive(Debug, Default)]
pub(super) struct CompiledPolicies {
    pub(super) entries: BTreeMap<Name, CompiledObject>,
    pub(super) index: Arc<Index>,
    /// How many times the index was built.
    pub(super) generation: u64,
}

impl CompiledPolicies {
    /// The policies that are there now, compiled. `self.index` is shared if the policies are the same.
    pub(super) fn next(&self, view: &View, terms: Terms<'_>) -> Self {
        let mut pages = Pages { before: &self.entries, terms, entries: BTreeMap::new(), fresh: 0, kept: 0 };
        pages.add(&view.cluster_mirrors);
        pages.add(&view.mirrors);
        pages.add(&view.cluster_sets);
        pages.add(&view.sets);
        pages.add(&view.caches);
        let Pages { entries, fresh, kept, .. } = pages;
        let same = fresh == 0 && kept == compiled(&self.entries).count();
        if same {
            return Self { entries, index: self.index.clone(), generation: self.generation };
        }
        let index = Arc::new(Index::new(compiled(&entries).cloned()));
        Self { entries, index, generation: self.generation + 1 }
    }

    /// Whether it knows every object in the version that is there now.
    pub(super) fn covers(&self, view: &View) -> bool {
        fn covered<K: PolicyObject>(compiled: &CompiledPolicies, snapshot: &Snapshot<K>) -> bool {
            let knows = |key: &Key| compiled.entries.get(&Name { kind: K::KIND, key: key.clone() });
            snapshot.malformed.keys().all(|key| knows(key).is_some())
                && snapshot.objects.iter().all(|(key, object)| {
                    let metadata = object.meta();
                    metadata.deletion_timestamp.is_some()
                        || !object.takes_part()
                        || knows(key).is_some_and(|entry| {
                            entry.is_of(metadata.uid.as_deref().unwrap_or_default(), object.version())
                        })
                })
        }
        covered(self, &view.cluster_mirrors)
            && covered(self, &view.mirrors)
            && covered(self, &view.cluster_sets)
            && covered(self, &view.sets)
            && covered(self, &view.caches)
    }

    pub(super) fn problems(&self) -> Vec<PolicyProblem> {
        let judged = self.entries.iter().map(|(name, entry)| {
            let Judgement { holds, reason, message } =
                policy_status::judge(name.kind, &entry.state.outcome(&[]));
            (!holds).then(|| PolicyProblem { object: name.clone(), reason, message })
        });
        judged.flatten().collect()
    }
}

fn compiled(entries: &BTreeMap<Name, CompiledObject>) -> impl Iterator<Item = &Arc<Policy>> {
    entries.values().filter_map(|entry| match &entry.state {
        CompileState::Compiled(policy) => Some(policy),
        CompileState::Refused(_) | CompileState::Unreadable(_) | CompileState::Crashed => None,
    })
}

/// What the configuration says about policies.
#[derive(Debug, Clone, Copy)]
pub(super) struct Terms<'a> {
    /// The registries that namespaced policies may name.
    pub(super) allowed: &'a [HostPattern],
    /// What Pods know Harbor by.
    pub(super) pull_host: Option<&'a str>,
}

/// Compiled policies while they are gathered.
struct Pages<'a> {
    before: &'a BTreeMap<Name, CompiledObject>,
    terms: Terms<'a>,
    entries: BTreeMap<Name, CompiledObject>,
    /// Policies that were compiled, and those that were taken over.
    fresh: usize,
    kept: usize,
}

impl Pages<'_> {
    fn add<K: PolicyObject>(&mut self, snapshot: &Snapshot<K>) {
        for (key, object) in &snapshot.objects {
            let metadata = object.meta();
            if metadata.deletion_timestamp.is_some() || !object.takes_part() {
                continue;
            }
            let name = Name { kind: K::KIND, key: key.clone() };
            let uid = metadata.uid.as_deref().unwrap_or_default();
            let known = self.before.get(&name).filter(|entry| {
                entry.is_of(uid, object.version()) && !matches!(entry.state, CompileState::Unreadable(_))
            });
            let entry = match known {
                Some(entry) => entry.clone(),
                None => CompiledObject {
                    uid: uid.into(),
                    generation: object.version(),
                    state: compile(&**object, self.terms),
                },
            };
            if matches!(entry.state, CompileState::Compiled(_)) {
                *(if known.is_some() { &mut self.kept } else { &mut self.fresh }) += 1;
            }
            self.entries.insert(name, entry);
        }
        for (key, malformed) in &snapshot.malformed {
            let entry = CompiledObject {
                uid: malformed.uid.as_str().into(),
                generation: malformed.generation,
                state: CompileState::Unreadable(malformed.error.as_str().into()),
            };
            self.entries.insert(Name { kind: K::KIND, key: key.clone() }, entry);
        }
    }
}

/// An object that brings the compiler down disables itself as well, and no other.
fn compile<K: PolicyObject>(object: &K, terms: Terms<'_>) -> CompileState {
    let compile = || object.compile(terms.pull_host).map(|policy| policy.restricted(terms.allowed));
    match catch_unwind(AssertUnwindSafe(compile)) {
        Ok(Ok(policy)) => CompileState::Compiled(Arc::new(policy)),
        Ok(Err(error)) => CompileState::Refused(Arc::new(error)),
        Err(_) => CompileState::Crashed,
    }
}

#[cfg(test)]
mod tests;
