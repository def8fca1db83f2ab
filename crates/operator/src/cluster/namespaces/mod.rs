//! Which namespaces the webhook's selector covers: no pull secret is copied to the others, but to that of pull Pods.
//!
//! The labels of all Namespaces and the operator's own webhook configuration are watched, since an administrator may
//! change either at any time. The selector is the one that is in force in the cluster, not the one that was installed.

mod lean;
mod sinks;

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, OnceLock},
    time::Duration,
};

use arc_swap::{ArcSwap, ArcSwapOption};
use fairlead_plan::pull_secrets::Selection;
use kube::core::{Selector, SelectorExt};
use tokio::time::{Instant, timeout_at};

use crate::cluster::state::Bell;

pub(crate) use self::{
    lean::{LeanNamespace, LeanWebhooks},
    sinks::{NamespaceSink, WebhookSink},
};

/// A Pod may be admitted before the watch has told of its new namespace. Longer than that takes a watch that is broken.
const LONGEST_WAIT: Duration = Duration::from_secs(1);

type Labels = BTreeMap<String, String>;

/// Namespaces with their labels, and the selectors of the webhook. Written by their watches alone.
#[derive(Debug, Clone, Default)]
pub struct Namespaces {
    shared: Arc<NamespacesInner>,
}

#[derive(Debug, Default)]
struct NamespacesInner {
    labels: ArcSwap<HashMap<Arc<str>, Arc<Labels>>>,
    /// None while there is no webhook of ours.
    selectors: ArcSwapOption<Vec<Selector>>,
    /// That of pull Pods, whose images are routed before they are created: they need copies although no webhook sees
    /// them.
    of_pull_pods: OnceLock<Arc<str>>,
    bell: Bell,
}

impl Namespaces {
    /// Whether the webhook's selector covers the namespace.
    pub fn selection(&self, namespace: &str) -> Selection {
        if self.shared.of_pull_pods.get().is_some_and(|covered| **covered == *namespace) {
            return Selection::Covered;
        }
        let (labels, selectors) = (self.shared.labels.load(), self.shared.selectors.load());
        match (labels.get(namespace), &*selectors) {
            (Some(labels), Some(selectors)) if selectors.iter().any(|one| one.matches(&**labels)) => {
                Selection::Covered
            }
            (Some(_), Some(_)) => Selection::LeftOut,
            _ => Selection::Unknown,
        }
    }

    /// The same, after waiting a moment for a namespace that is not known yet.
    pub async fn selection_by(&self, namespace: &str, deadline: Instant) -> Selection {
        let deadline = deadline.min(Instant::now() + LONGEST_WAIT);
        let mut changes = self.shared.bell.listen();
        loop {
            let selection = self.selection(namespace);
            if selection != Selection::Unknown || timeout_at(deadline, changes.next()).await.is_err() {
                return selection;
            }
        }
    }

    /// Names the namespace of pull Pods, once.
    pub(crate) fn cover_pull_pods(&self, namespace: &str) {
        self.shared.of_pull_pods.get_or_init(|| namespace.into());
    }

    /// The names of all namespaces.
    pub(crate) fn names(&self) -> Vec<Arc<str>> {
        let mut names: Vec<_> = self.shared.labels.load().keys().cloned().collect();
        names.sort_unstable();
        names
    }

    fn set_labels(&self, labels: HashMap<Arc<str>, Arc<Labels>>) {
        self.shared.labels.store(Arc::new(labels));
        self.shared.bell.ring();
    }

    fn set_selectors(&self, selectors: Option<Vec<Selector>>) {
        self.shared.selectors.store(selectors.map(Arc::new));
        self.shared.bell.ring();
    }
}
