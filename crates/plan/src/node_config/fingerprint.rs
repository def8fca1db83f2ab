//! Hashes by which agents and the operator tell each other what they follow, without repeating it.
//!
//! The same policies have the same hash in every process, whatever the order in which they came, so the form that is
//! hashed is written out here and depends on no machine.

use std::collections::{BTreeMap, VecDeque};
use std::hash::Hasher as _;
use std::sync::Arc;

use twox_hash::XxHash64;

use super::{Inputs, MirrorPolicy, Mirrors, NodeConfig, PolicyId};

/// Sets of policies that are remembered: a node that is further behind than this counts as knowing none of them.
const REMEMBERED: usize = 16;

#[derive(Default)]
struct Form(XxHash64);

impl Form {
    fn text(&mut self, text: &str) {
        self.0.write(text.as_bytes());
        // No byte of UTF-8, so that two texts are not one.
        self.0.write(&[0xff]);
    }

    fn texts<T: AsRef<str>>(&mut self, texts: impl IntoIterator<Item = T>) {
        for text in texts {
            self.text(text.as_ref());
        }
        self.0.write(&[0xfe]);
    }

    fn flag(&mut self, flag: bool) {
        self.0.write(&[flag.into()]);
    }

    fn policy(&mut self, policy: &MirrorPolicy) {
        self.text(&policy.id.to_string());
        for set in &policy.sets {
            self.text(&set.source);
            self.texts(&set.mirrors);
            self.flag(set.never_contact_source);
        }
        self.0.write(&[0xfe]);
    }

    fn mirrors(&mut self, mirrors: &Mirrors) {
        for mirror in &mirrors.list {
            self.text(mirror.location.as_str());
            self.flag(mirror.insecure);
        }
        self.0.write(&[0xfe]);
        self.flag(mirrors.closed.is_some());
    }

    fn end(&self) -> String {
        format!("{:016x}", self.0.finish())
    }
}

impl Inputs {
    /// The same for the same policies and lists of registries.
    pub fn hash(&self) -> String {
        let mut form = Form::default();
        let mut policies: Vec<&MirrorPolicy> = self.policies.iter().collect();
        policies.sort_by(|one, other| one.id.cmp(&other.id));
        for policy in policies {
            form.policy(policy);
        }
        form.texts(self.insecure.iter().map(super::Scope::as_str));
        form.texts(self.blocked.iter().map(super::Scope::as_str));
        form.end()
    }
}

impl NodeConfig {
    /// The same for the same entries, whichever objects they come from.
    pub fn hash(&self) -> String {
        let mut form = Form::default();
        for (scope, entry) in &self.entries {
            form.text(scope.as_str());
            form.mirrors(&entry.digest);
            form.mirrors(&entry.tag);
            for flag in [entry.never, entry.blocked, entry.insecure] {
                form.flag(flag);
            }
        }
        form.end()
    }
}

/// What each policy said in the latest sets of policies, by their hash: a node that is behind still follows the
/// policies that have not changed since.
#[derive(Clone, Debug, Default)]
pub struct History {
    known: VecDeque<(String, Contents)>,
}

/// Hashes of single policies.
pub(super) type Contents = Arc<BTreeMap<PolicyId, String>>;

impl History {
    /// Takes up the policies of the present. Returns their hash.
    pub fn note(&mut self, inputs: &Inputs) -> String {
        let hash = inputs.hash();
        if self.known.back().is_none_or(|(latest, _)| *latest != hash) {
            self.known.retain(|(known, _)| *known != hash);
            let content = |policy: &MirrorPolicy| {
                let mut form = Form::default();
                form.policy(policy);
                (policy.id.clone(), form.end())
            };
            self.known.push_back((hash.clone(), Arc::new(inputs.policies.iter().map(content).collect())));
            if self.known.len() > REMEMBERED {
                self.known.pop_front();
            }
        }
        hash
    }

    /// What the policies with this hash said, if that is remembered.
    pub(super) fn contents(&self, hash: &str) -> Option<&Contents> {
        self.known.iter().rev().find(|(known, _)| known == hash).map(|(_, contents)| contents)
    }
}
