//! The pull secrets that a Pod brings and those that its alternatives need.
//!
//! What counts is what the kubelet will have: a place that can only be reached with a secret that the Pod will not
//! carry is asked about without it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use fairlead_domain::keyring::Credential;
use fairlead_domain::reference::{Reference, Repository};
use fairlead_plan::admission::Planned;
use fairlead_plan::pull_secrets::{NotAdded, OfferedSecret, Receiver};
use fairlead_plan::routing::{Alternative, Alternatives, SecretName, SecretUse};
use fairlead_plan::warnings::Warnings;
use futures::future::{join, join_all};
use tokio::time::{Instant, timeout_at};

use super::Router;
use crate::admission::decide::{PodRequest, Subject};
use crate::registries::secrets::{CopyError, Keys, Read};

/// Secrets that are read for one Pod: its own, and as many of policies. Kubelets try one after the other, so more would
/// not help.
pub(super) const MOST_SECRETS: usize = 64;

/// Secrets as the kubelet will see them.
#[derive(Debug, Default)]
pub(super) struct PullSecrets {
    /// Of the Pod, in its order.
    pub(super) pod: Vec<(SecretName, Read)>,
    /// Of policies, by the Secret that the policy names.
    pub(super) policies: BTreeMap<SecretName, Read>,
    /// Of policies, and why the Pod does not get them.
    pub(super) withheld: Vec<(SecretName, NotAdded)>,
    /// Names to put on the Pod.
    pub(super) to_add: Vec<String>,
    /// For what no Secret has credentials for: those of a person who asks.
    pub(super) logins: HashMap<Repository, Vec<Credential>>,
}

impl PullSecrets {
    /// The credentials for one place, in the order in which the kubelet tries them.
    pub(super) fn credentials(&self, place: &Alternative) -> Vec<Credential> {
        let own = place.secrets.iter().filter_map(|used| self.policies.get(&used.secret));
        self.lookup(own, &place.reference)
    }

    /// The credentials of the Pod itself for an image.
    pub(super) fn own_credentials(&self, image: &Reference) -> Vec<Credential> {
        self.lookup(std::iter::empty(), image)
    }

    fn lookup<'s>(&'s self, others: impl Iterator<Item = &'s Read>, image: &Reference) -> Vec<Credential> {
        if self.pod.is_empty() && self.policies.is_empty() && self.logins.is_empty() {
            return Vec::new();
        }
        let keys = self.pod.iter().map(|(_, read)| read).chain(others).filter_map(Read::keys);
        let found = Keys::lookup(keys.map(Arc::as_ref), &image.repository());
        match self.logins.get(&image.repository()) {
            Some(login) if found.is_empty() => login.clone(),
            _ => found,
        }
    }

    /// The Secrets that may have been used for a place.
    pub(super) fn of<'a>(&'a self, place: &'a Alternative) -> impl Iterator<Item = &'a SecretName> {
        let own = place.secrets.iter().map(|used| &used.secret);
        self.pod.iter().map(|(name, _)| name).chain(own)
    }
}

/// A Secret that a policy wants a Pod to use, and the name that it has in the Pod's namespace.
struct Wanted<'a> {
    used: &'a SecretUse,
    local: String,
}

impl Router {
    /// `resolves`: a registry is asked about the Pod's images even if there is only one place for each.
    pub(super) async fn pull_secrets(
        &self,
        request: &PodRequest<'_>,
        planned: &[Planned],
        resolves: bool,
        deadline: Instant,
        warnings: &mut Warnings,
    ) -> PullSecrets {
        let places: Vec<_> = planned
            .iter()
            .filter_map(|image| self.scope.to_ask(image))
            .flat_map(Alternatives::list)
            .collect();
        // Most Pods are about no policy and have nothing to resolve: nothing is read for them.
        if places.is_empty() && !resolves || !self.scope.registries {
            return PullSecrets::default();
        }
        let (mut secrets, mut unsaid) = (PullSecrets::default(), Warnings::default());
        let warnings = if self.scope.every_place { &mut unsaid } else { warnings };
        let present: Vec<&str> = request.pod.pull_secrets().take(MOST_SECRETS).collect();
        let wanted = self.wanted(request, &places, &present, &mut secrets.withheld, warnings);
        if present.is_empty() && wanted.is_empty() && self.scope.login.is_none() {
            return secrets;
        }
        let namespace: Arc<str> = request.namespace.into();
        let of_pod = present.iter().map(|name| {
            let name = SecretName { namespace: Arc::clone(&namespace), name: (*name).into() };
            async move {
                let read = self.read(request, &name, deadline).await;
                (name, read)
            }
        });
        let of_policies = wanted.iter().map(|wanted| async move {
            let reading = self.read(request, &wanted.used.secret, deadline);
            let (read, copied) = join(reading, self.copied(request, wanted, deadline)).await;
            (wanted, read, copied)
        });
        let (of_pod, of_policies) = join(join_all(of_pod), join_all(of_policies)).await;

        for (name, read) in of_pod {
            if let Some(problem) = read.problem() {
                warnings.add(format!("pull secret {} {problem}", name.name));
            }
            // The Pod may carry it under a policy's name too; it counts once, in the Pod's order.
            secrets.pod.push((name, read));
        }
        for (wanted, read, copied) in of_policies {
            if let Err(error) = &copied {
                warnings.add(told(wanted, error));
                // The others may still come about, and a Pod cannot be given a secret later.
                let never = matches!(
                    error,
                    CopyError::Foreign { .. } | CopyError::Source { .. } | CopyError::LeftOut { .. }
                );
                if never {
                    continue;
                }
            }
            if !present.contains(&wanted.local.as_str()) && !secrets.to_add.contains(&wanted.local) {
                secrets.to_add.push(wanted.local.clone());
            }
            // The author of the Pod need not learn what Secrets other namespaces hold.
            if let Some(problem) = read.problem() {
                warnings.add(format!("the pull secret of {} {problem}", wanted.used.by));
            }
            secrets.policies.insert(wanted.used.secret.clone(), read);
        }
        self.add_logins(&places, &mut secrets).await;
        secrets
    }

    /// Reads a Secret within the share of the Pod's namespace.
    pub(super) async fn read(&self, request: &PodRequest<'_>, name: &SecretName, deadline: Instant) -> Read {
        let _turn = timeout_at(deadline, request.share.reads.acquire()).await;
        self.context.secrets.read(name, deadline).await
    }

    /// The Secrets of policies that the Pod can have, each once.
    fn wanted<'a>(
        &self,
        request: &PodRequest<'_>,
        places: &[&'a Alternative],
        present: &[&str],
        withheld: &mut Vec<(SecretName, NotAdded)>,
        warnings: &mut Warnings,
    ) -> Vec<Wanted<'a>> {
        let mut wanted: Vec<Wanted<'a>> = Vec::new();
        let account = request.pod.service_account();
        let permitted = self.context.accounts.permitted(request.namespace, account);
        let exists = matches!(request.subject, Subject::EphemeralContainers { .. });
        let receiver = Receiver { present, exists, permitted: permitted.as_deref() };
        let needed = places.iter().flat_map(|place| &place.secrets);
        for OfferedSecret { used, local, given } in
            self.context.copies.offered(needed, request.namespace, &receiver)
        {
            if wanted.len() == MOST_SECRETS {
                warnings.add(format!("only the first {MOST_SECRETS} pull secrets of policies are added"));
                break;
            }
            withheld.extend(given.err().map(|why| (used.secret.clone(), why)));
            match (given, local) {
                (Ok(()), Ok(local)) => wanted.push(Wanted { used, local }),
                (Err(NotAdded::NotPermitted), Ok(local)) => warnings.add(format!(
                    "service account {account} permits only the secrets it lists, so pull secret {local} of {} is not added; list it there",
                    used.by
                )),
                // Where copies are turned off, Pods and nodes get their credentials by other means.
                _ => {}
            }
        }
        wanted
    }

    /// Sees to it that the Secret is in the Pod's namespace.
    async fn copied(
        &self,
        request: &PodRequest<'_>,
        wanted: &Wanted<'_>,
        deadline: Instant,
    ) -> Result<(), CopyError> {
        if request.dry_run {
            return Ok(());
        }
        self.context.copies.ensure(wanted.used, request.namespace, deadline).await.map(drop)
    }
}

/// The warning to the author of the Pod, who need not learn what Secrets other namespaces hold.
fn told(wanted: &Wanted<'_>, error: &CopyError) -> String {
    let what = match error {
        CopyError::Foreign { .. } => {
            format!("cannot be copied: {} is there and is no copy; rename or delete it", wanted.local)
        }
        CopyError::Source { problem, .. } => format!("{problem}"),
        CopyError::TimeIsUp { .. } => "could not be copied in time".to_owned(),
        CopyError::LeftOut { .. } => "is not copied to namespaces that the webhook leaves out".to_owned(),
        CopyError::Unselected { .. } => "is copied once its namespace is known".to_owned(),
        CopyError::Failed { .. } | CopyError::Disabled { .. } | CopyError::NamespacedOwner { .. } => {
            "could not be copied; the operator's log has more".to_owned()
        }
    };
    format!("the pull secret of {} {what}", wanted.used.by)
}
