//! Finds controllers that recreate rewritten Pods over and over.
//!
//! Replacements are counted in rounds: a round begins with the first Pod that comes after a rewritten Pod *of the round
//! before* was deleted without having started. So one pass over many Pods, such as a rollout, a scale-down followed by
//! a scale-up or a drained node, is one round, however many Pods it replaces, while a controller that is not content
//! with what it gets begins round after round.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;

use crate::fair_share::make_room;

use super::{Controller, MOST_REPLACEMENTS, PAUSE_SECONDS, WINDOW_SECONDS};

/// Controllers that are kept in mind, and those that are paused.
const MOST_OWNERS: usize = 1024;

/// Pods of one round that are kept in mind; deletions of others do not count.
const MOST_PODS: usize = 256;

/// A controller. The namespace is that of its Pods: a user who may create Pods can write any owner reference, so
/// what happens in one namespace must not count in another.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OwnerKey {
    pub namespace: Arc<str>,
    pub uid: Arc<str>,
}

/// A controller whose Pods are not rewritten for a while.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pause {
    pub until: Timestamp,
    pub api_version: Arc<str>,
    pub kind: Arc<str>,
    pub name: Arc<str>,
}

impl Pause {
    fn of(controller: &Controller<'_>, until: Timestamp) -> Self {
        Self {
            until,
            api_version: controller.api_version.into(),
            kind: controller.kind.into(),
            name: controller.name.into(),
        }
    }
}

/// What one controller did lately.
#[derive(Debug, Default)]
struct Rounds {
    /// When each round of the last ten minutes began.
    begun: Vec<i64>,
    /// Pods that came since the latest round began.
    pods: BTreeSet<Arc<str>>,
    /// A Pod of the latest round is gone without having started.
    broken: bool,
    /// The latest of all this.
    changed: i64,
}

/// Everything that was seen. Built from the Pod watch of each replica.
#[derive(Debug, Default)]
pub struct Recreations {
    owners: BTreeMap<OwnerKey, Rounds>,
    paused: BTreeMap<OwnerKey, Pause>,
}

impl Recreations {
    /// A rewritten Pod was deleted, and none of its containers had ever started.
    pub fn deleted(&mut self, owner: &OwnerKey, pod: &str, now: Timestamp) {
        if self.paused_until(owner, now).is_some() {
            return;
        }
        let now = now.as_second();
        if !self.owners.contains_key(owner) {
            self.owners.retain(|_, rounds| now - rounds.changed <= WINDOW_SECONDS);
            make_room(&mut self.owners, MOST_OWNERS, |owner| &owner.namespace, |rounds| rounds.changed);
        }
        let rounds = self.owners.entry(owner.clone()).or_default();
        rounds.forget_old(now);
        if rounds.begun.is_empty() || rounds.pods.contains(pod) {
            rounds.broken = true;
            rounds.changed = now;
        }
    }

    /// A Pod was created. Returns the pause that begins with it.
    pub fn created(
        &mut self,
        owner: &OwnerKey,
        controller: &Controller<'_>,
        pod: &Arc<str>,
        now: Timestamp,
    ) -> Option<Pause> {
        let rounds = self.owners.get_mut(owner)?;
        let second = now.as_second();
        if rounds.broken {
            rounds.forget_old(second);
            rounds.begun.push(second);
            rounds.pods.clear();
            rounds.broken = false;
            rounds.changed = second;
        }
        if rounds.begun.len() <= MOST_REPLACEMENTS {
            if rounds.pods.len() < MOST_PODS {
                rounds.pods.insert(pod.clone());
            }
            return None;
        }
        self.owners.remove(owner);
        let until = Timestamp::from_second(second + PAUSE_SECONDS).ok()?;
        Some(self.pause(owner, Pause::of(controller, until), now))
    }

    /// A Pod says that another replica, or this one before it was restarted, paused rewriting for its controller. A
    /// user who may edit the Pod can write that, so it never counts for longer than a pause of our own.
    pub fn adopt(
        &mut self,
        owner: &OwnerKey,
        controller: &Controller<'_>,
        until: Timestamp,
        now: Timestamp,
    ) -> Option<Pause> {
        let latest = Timestamp::from_second(now.as_second() + PAUSE_SECONDS).ok()?;
        let until = until.min(latest);
        let is_news = until > now && self.paused_until(owner, now).is_none_or(|known| known < until);
        is_news.then(|| self.pause(owner, Pause::of(controller, until), now))
    }

    fn pause(&mut self, owner: &OwnerKey, pause: Pause, now: Timestamp) -> Pause {
        self.paused.retain(|_, pause| pause.until > now);
        if !self.paused.contains_key(owner) {
            make_room(
                &mut self.paused,
                MOST_OWNERS,
                |owner| &owner.namespace,
                |pause| pause.until.as_second(),
            );
        }
        self.paused.insert(owner.clone(), pause.clone());
        pause
    }

    /// Whether nothing is paused.
    pub fn is_idle(&self) -> bool {
        self.paused.is_empty()
    }

    /// Whether, and until when, Pods of a controller are not rewritten.
    pub fn paused_until(&self, owner: &OwnerKey, now: Timestamp) -> Option<Timestamp> {
        self.paused.get(owner).map(|pause| pause.until).filter(|until| *until > now)
    }

    /// All pauses in force.
    pub fn paused(&self, now: Timestamp) -> impl Iterator<Item = (&OwnerKey, &Pause)> {
        self.paused.iter().filter(move |(_, pause)| pause.until > now)
    }
}

impl Rounds {
    fn forget_old(&mut self, now: i64) {
        self.begun.retain(|begun| now - begun < WINDOW_SECONDS);
        if self.begun.is_empty() {
            self.pods.clear();
        }
    }
}
