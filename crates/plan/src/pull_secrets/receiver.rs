//! Which Secrets of policies a Pod gets, and under which names.

use std::collections::{BTreeSet, HashSet};
use std::fmt;

use super::copy_name;
use crate::routing::SecretUse;

/// Why a Secret of another namespace has no copy in the Pod's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotCopied {
    /// Only the Secrets of cluster-scoped policies cross namespaces.
    NamespacedPolicy,
    /// `routing.pullSecrets.copy` is false.
    CopyingIsOff,
    /// The webhook leaves the namespace out.
    NamespaceLeftOut,
}

/// The name under which a Pod of a namespace finds a Secret, or would find it once it is copied.
pub fn local_name(
    used: &SecretUse,
    namespace: &str,
    copying: bool,
    is_left_out: impl FnOnce() -> bool,
) -> Result<String, NotCopied> {
    if *namespace == *used.secret.namespace {
        Ok(used.secret.name.to_string())
    } else if !used.by.is_cluster_scoped() {
        Err(NotCopied::NamespacedPolicy)
    } else if !copying {
        Err(NotCopied::CopyingIsOff)
    } else if is_left_out() {
        Err(NotCopied::NamespaceLeftOut)
    } else {
        Ok(copy_name(&used.secret, &used.by.uid))
    }
}

/// A Pod that Secrets may be added to.
#[derive(Debug, Clone, Copy)]
pub struct Receiver<'a, S> {
    /// Names of the Secrets that it has.
    pub present: &'a [S],
    /// It runs already: an ephemeral container is added.
    pub exists: bool,
    /// The only Secrets that its service account permits, if it is that strict.
    pub permitted: Option<&'a BTreeSet<String>>,
}

/// A Secret that a policy wants a Pod to pull with, and what becomes of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OfferedSecret<'a> {
    pub used: &'a SecretUse,
    /// Its name in the Pod's namespace, or why it has none there.
    pub local: Result<String, NotCopied>,
    /// Whether the Pod has it, or gets it.
    pub given: Result<(), NotAdded>,
}

/// Why a Pod does not get a Secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotAdded {
    NotCopied(NotCopied),
    PodExists,
    NotPermitted,
}

impl<S: AsRef<str>> Receiver<'_, S> {
    /// What becomes of the Secrets that places need, each once and in their order. Admission goes by it, warming for
    /// its own Pods, and healing for the Pod that would come after one that is evicted. `local` is as in
    /// [`local_name`].
    pub fn offered<'a>(
        &self,
        needed: impl IntoIterator<Item = &'a SecretUse>,
        local: impl Fn(&SecretUse) -> Result<String, NotCopied>,
    ) -> impl Iterator<Item = OfferedSecret<'a>> {
        let mut known = HashSet::new();
        let each_once = needed.into_iter().filter(move |used| known.insert((&used.secret, &used.by)));
        each_once.map(move |used| {
            let local = local(used);
            let given = self.takes(&local);
            OfferedSecret { used, local, given }
        })
    }

    /// Whether the Pod has the Secret of this name, or gets it.
    fn takes(&self, local: &Result<String, NotCopied>) -> Result<(), NotAdded> {
        let name = local.as_ref().map_err(|why| NotAdded::NotCopied(*why))?;
        if self.present.iter().any(|present| present.as_ref() == name) {
            Ok(())
        } else if self.exists {
            Err(NotAdded::PodExists)
        } else if self.permitted.is_some_and(|permitted| !permitted.contains(name)) {
            Err(NotAdded::NotPermitted)
        } else {
            Ok(())
        }
    }
}

impl fmt::Display for NotAdded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotCopied(NotCopied::NamespacedPolicy) => {
                "a policy of one namespace uses its own Secrets only"
            }
            Self::NotCopied(NotCopied::CopyingIsOff) => "routing.pullSecrets.copy is false",
            Self::NotCopied(NotCopied::NamespaceLeftOut) => "the webhook leaves its namespace out",
            Self::PodExists => "no Secret can be added to a Pod that exists",
            Self::NotPermitted => "its service account permits only the Secrets that it lists",
        })
    }
}
