//! With whose credentials a registry is read on behalf of an object, in which order, and why.
//!
//! The rule is about isolation. What a namespaced object copies ends up where its owner can read it, so it is read only
//! with what that owner could use himself: Secrets of the object's own namespace. Credentials of the configuration and
//! of cluster-scoped objects serve cluster-scoped objects alone, also where a copy of such a Secret lies in the
//! namespace.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use fairlead_domain::cause::Cause;

use crate::pull_secrets::may_be_copy;
use crate::routing::{SecretName, SecretUse};
use crate::usage::Holder;

/// Holders whose Secrets are read in one round. Each Secret may cost a request to the API server.
pub const MOST_HOLDERS_READ: usize = 256;

/// Logins that are tried in one round. Each may cost a request to the registry.
pub const MOST_LOGINS: usize = 8;

/// On whose behalf a registry is asked.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Principal {
    /// A cluster-scoped object.
    Cluster,
    /// An object of this namespace.
    Namespace(Arc<str>),
}

impl Principal {
    pub fn of_namespace(namespace: Option<&Arc<str>>) -> Self {
        namespace.map_or(Self::Cluster, |namespace| Self::Namespace(Arc::clone(namespace)))
    }

    /// Who answers for the registries that it names.
    pub fn cause(&self) -> Cause {
        match self {
            Self::Cluster => Cause::Administrator,
            Self::Namespace(_) => Cause::Tenant,
        }
    }

    fn may_use(&self, secret: &SecretName) -> bool {
        match self {
            Self::Cluster => true,
            Self::Namespace(own) => secret.namespace == *own && !may_be_copy(&secret.name),
        }
    }

    /// Whether copies that another object has made may serve as a source, read with that object's Secret. An object
    /// never reads with the Secret of a stranger, and a cluster-scoped one never takes what a tenant put into a
    /// registry.
    pub fn may_read_copies_of(&self, other: &Self) -> bool {
        self == other
    }

    /// Whether it may act on what a registry answered another principal. A cluster-scoped object could have asked
    /// with the same Secrets.
    pub fn may_learn_from(&self, other: &Self) -> bool {
        *self == Self::Cluster || self == other
    }
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cluster => f.write_str("cluster-scoped objects"),
            Self::Namespace(namespace) => write!(f, "objects of namespace {namespace}"),
        }
    }
}

/// The Secrets that may open a place, by where they are named.
#[derive(Debug, Clone, Copy, Default)]
pub struct Offered<'a> {
    /// By the mirror that the place lies in.
    pub mirror: Option<&'a SecretName>,
    /// By the Pods that use the image.
    pub holders: &'a [Holder],
    /// By replicated sets, for the place.
    pub upstreams: &'a [SecretUse],
    /// By the configuration, for the registry.
    pub configuration: Option<&'a SecretName>,
}

/// One login to try: the Secrets that hold it, joined as a kubelet joins the pull secrets of a Pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    pub secrets: Vec<SecretName>,
    pub reason: Reason,
}

/// Why these Secrets are tried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reason {
    Mirror,
    Pod { namespace: Arc<str>, pod: Arc<str> },
    Upstream { policy: String },
    Configuration,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mirror => f.write_str("credentialSecret of the mirror"),
            Self::Pod { namespace, pod } => write!(f, "pull secrets of Pod {namespace}/{pod}"),
            Self::Upstream { policy } => write!(f, "credentialSecret of an upstream of {policy}"),
            Self::Configuration => f.write_str("fallbackCredentialSecret of the configuration"),
        }
    }
}

/// What may be tried in one round, in order. If none of these Secrets has an entry for the registry, it is asked
/// anonymously; where one has, anonymous access is not tried after it, as a kubelet would not.
///
/// Holders take turns by namespace, so that a namespace with many different Pods gets one namespace's share. If there
/// are more than one round can read, `round` decides whose Secrets are read: in successive rounds all are.
pub fn attempts(principal: &Principal, offered: &Offered<'_>, round: u32) -> Attempts {
    let mirror = offered
        .mirror
        .filter(|secret| principal.may_use(secret))
        .map(|secret| Attempt { secrets: vec![secret.clone()], reason: Reason::Mirror });
    let mut users: Vec<Attempt> = in_turns(principal, offered.holders);
    users.extend(offered.upstreams.iter().filter_map(|used| {
        let by_equal = *principal == Principal::Cluster || !used.by.is_cluster_scoped();
        (by_equal && principal.may_use(&used.secret)).then(|| Attempt {
            secrets: vec![used.secret.clone()],
            reason: Reason::Upstream { policy: used.by.to_string() },
        })
    }));
    let windows = users.len().div_ceil(MOST_HOLDERS_READ).max(1);
    let round = usize::try_from(round).unwrap_or(usize::MAX);
    let skipped = (round % windows) * MOST_HOLDERS_READ;
    let users = users.into_iter().skip(skipped).take(MOST_HOLDERS_READ).collect();
    let configuration = offered.configuration.filter(|_| *principal == Principal::Cluster);
    let configuration =
        configuration.map(|secret| Attempt { secrets: vec![secret.clone()], reason: Reason::Configuration });
    Attempts { mirror, users, configuration, slice: round / windows }
}

/// The attempts of one round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempts {
    mirror: Option<Attempt>,
    users: Vec<Attempt>,
    configuration: Option<Attempt>,
    /// Which of those whose Secrets match have their turn, where there are too many.
    slice: usize,
}

impl Attempts {
    /// All of them, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Attempt> {
        self.mirror.iter().chain(&self.users).chain(&self.configuration)
    }

    /// Those that hold a login for the registry, with that login, and at most [`MOST_LOGINS`] of those that Pods and
    /// upstreams bring; the others have their turn in the next rounds. Equal logins are tried once.
    pub fn matching<L: PartialEq>(self, mut login: impl FnMut(&Attempt) -> Option<L>) -> Vec<(Attempt, L)> {
        let mut found: Vec<(Attempt, L)> = Vec::new();
        let mut add = |found: &mut Vec<(Attempt, L)>, attempt: Attempt| {
            if let Some(login) = login(&attempt)
                && found.iter().all(|(_, known)| *known != login)
            {
                found.push((attempt, login));
            }
        };
        self.mirror.into_iter().for_each(|attempt| add(&mut found, attempt));
        let first = found.len();
        self.users.into_iter().for_each(|attempt| add(&mut found, attempt));
        let users = found.len() - first;
        if users > MOST_LOGINS
            && let Some(users) = found.get_mut(first..)
        {
            let start = self.slice.wrapping_mul(MOST_LOGINS) % users.len();
            users.rotate_left(start);
            found.truncate(first + MOST_LOGINS);
        }
        self.configuration.into_iter().for_each(|attempt| add(&mut found, attempt));
        found
    }
}

/// One attempt for each holder with pull secrets: the first of each namespace, then the second of each, and so on.
fn in_turns(principal: &Principal, holders: &[Holder]) -> Vec<Attempt> {
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    let mut turns: Vec<(usize, Attempt)> = Vec::new();
    for holder in holders {
        let named = holder
            .pull_secrets
            .iter()
            .map(|name| SecretName { namespace: Arc::clone(&holder.namespace), name: Arc::clone(name) });
        let secrets: Vec<SecretName> = named.filter(|secret| principal.may_use(secret)).collect();
        if secrets.is_empty() {
            continue;
        }
        let turn = seen.entry(&holder.namespace).or_default();
        let reason = Reason::Pod { namespace: Arc::clone(&holder.namespace), pod: Arc::clone(&holder.pod) };
        turns.push((*turn, Attempt { secrets, reason }));
        *turn += 1;
    }
    turns.sort_by_key(|(turn, _)| *turn);
    turns.into_iter().map(|(_, attempt)| attempt).collect()
}
