//! Which namespaces the webhook's selector covers: no pull secret is copied to the others, but to that of pull Pods.
//! And which of them want the tags of their Pods pinned.
//!
//! The labels of all Namespaces and the operator's own webhook configuration are watched, since an administrator may
//! change either at any time. The selector is the one that is in force in the cluster, not the one that was installed.

mod lean;
mod sinks;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use fairlead_api::names::fairlead::PIN;
use fairlead_plan::pinning::Said;
use fairlead_plan::pull_secrets::Selection;
use kube::api::ObjectMeta;
use kube::core::{Selector, SelectorExt};
use parking_lot::Mutex;
use tokio::time::{Instant, timeout_at};

use crate::cluster::state::{Bell, Changes};

pub(crate) use self::lean::{LeanNamespace, LeanWebhooks};
pub(crate) use self::sinks::{NamespaceSink, WebhookSink};

/// A Pod may be admitted before the watch has told of its new namespace. Longer than that takes a watch that is broken.
const LONGEST_WAIT: Duration = Duration::from_secs(1);
/// Namespaces that are waited for, or were in vain. Of more, the one that was asked about first is forgotten.
const MOST_UNKNOWN: usize = 1024;

/// What is known of one namespace.
#[derive(Debug, Default)]
struct NamespaceFacts {
    labels: BTreeMap<String, String>,
    /// Its annotation `fairlead.dev/pin`.
    pin: Option<String>,
}

/// Namespaces with their labels, and the selectors of the webhook. Written by their watches alone.
#[derive(Debug, Clone, Default)]
pub struct Namespaces {
    shared: Arc<NamespacesInner>,
}

#[derive(Debug, Default)]
struct NamespacesInner {
    facts: ArcSwap<HashMap<Arc<str>, Arc<NamespaceFacts>>>,
    /// None while there is no webhook of ours.
    selectors: ArcSwapOption<Vec<Selector>>,
    /// That of pull Pods, whose images are routed before they are created: they need copies although no webhook sees
    /// them.
    of_pull_pods: OnceLock<Arc<str>>,
    /// When each namespace that is not known was first asked about. Only requests up to [`LONGEST_WAIT`] later wait: a
    /// watch that is broken would hold up every Pod else.
    unknown: Mutex<HashMap<Arc<str>, Instant>>,
    bell: Bell,
}

impl Namespaces {
    /// Whether the webhook's selector covers the namespace.
    pub fn selection(&self, namespace: &str) -> Selection {
        if self.shared.of_pull_pods.get().is_some_and(|covered| **covered == *namespace) {
            return Selection::Covered;
        }
        let (facts, selectors) = (self.shared.facts.load(), self.shared.selectors.load());
        match (facts.get(namespace), &*selectors) {
            (Some(facts), Some(selectors)) if selectors.iter().any(|one| one.matches(&facts.labels)) => {
                Selection::Covered
            }
            (Some(_), Some(_)) => Selection::LeftOut,
            _ => Selection::Unknown,
        }
    }

    /// The same, after waiting a moment for a namespace that is not known yet.
    pub async fn selection_by(&self, namespace: &str, deadline: Instant) -> Selection {
        let mut waiting: Option<(Changes, Instant)> = None;
        loop {
            let selection = self.selection(namespace);
            if selection != Selection::Unknown {
                return selection;
            }
            match &mut waiting {
                // It may have come to be known in between.
                None => waiting = Some((self.shared.bell.listen(), self.patience(namespace, deadline))),
                Some((changes, until)) => {
                    if timeout_at(*until, changes.next()).await.is_err() {
                        return selection;
                    }
                }
            }
        }
    }

    /// What `judge` makes of what the namespace says about pinning, after waiting a moment for one that is not known
    /// yet. One that stays unknown says nothing.
    pub(crate) async fn on_pinning<T>(
        &self,
        namespace: &str,
        deadline: Instant,
        judge: impl Fn(Said<'_>) -> T,
    ) -> T {
        let mut waiting: Option<(Changes, Instant)> = None;
        loop {
            {
                let facts = self.shared.facts.load();
                if let Some(facts) = facts.get(namespace) {
                    let label = facts.labels.get(PIN).map(String::as_str);
                    return judge(Said { annotation: facts.pin.as_deref(), label });
                }
                // Without any namespace there is no watch to wait for.
                if facts.is_empty() {
                    return judge(Said::default());
                }
            }
            match &mut waiting {
                // It may have come to be known in between.
                None => waiting = Some((self.shared.bell.listen(), self.patience(namespace, deadline))),
                Some((changes, until)) => {
                    if timeout_at(*until, changes.next()).await.is_err() {
                        return judge(Said::default());
                    }
                }
            }
        }
    }

    /// Until when a request waits for a namespace that is not known.
    fn patience(&self, namespace: &str, deadline: Instant) -> Instant {
        let mut unknown = self.shared.unknown.lock();
        if let Some(since) = unknown.get(namespace) {
            return deadline.min(*since + LONGEST_WAIT);
        }
        let oldest = || unknown.iter().min_by_key(|(_, since)| **since).map(|(name, _)| name.clone());
        if unknown.len() >= MOST_UNKNOWN
            && let Some(oldest) = oldest()
        {
            unknown.remove(&oldest);
        }
        let now = Instant::now();
        unknown.insert(namespace.into(), now);
        deadline.min(now + LONGEST_WAIT)
    }

    /// Names the namespace of pull Pods, once.
    pub(crate) fn cover_pull_pods(&self, namespace: &str) {
        self.shared.of_pull_pods.get_or_init(|| namespace.into());
    }

    /// The names of all namespaces.
    pub(crate) fn names(&self) -> Vec<Arc<str>> {
        let mut names: Vec<_> = self.shared.facts.load().keys().cloned().collect();
        names.sort_unstable();
        names
    }

    /// Takes a namespace as it is stored, where no watch runs.
    pub fn learn(&self, metadata: ObjectMeta) {
        let mut facts = HashMap::clone(&self.shared.facts.load());
        sinks::insert(&mut facts, metadata);
        self.set_facts(facts);
    }

    fn set_facts(&self, facts: HashMap<Arc<str>, Arc<NamespaceFacts>>) {
        self.shared.facts.store(Arc::new(facts));
        self.changed();
    }

    fn set_selectors(&self, selectors: Option<Vec<Selector>>) {
        self.shared.selectors.store(selectors.map(Arc::new));
        self.changed();
    }

    /// A namespace that came to be known is waited for again if it goes and comes back.
    fn changed(&self) {
        let (facts, selectors) = (self.shared.facts.load(), self.shared.selectors.load());
        self.shared.unknown.lock().retain(|name, _| selectors.is_none() || !facts.contains_key(name));
        self.shared.bell.ring();
    }
}
