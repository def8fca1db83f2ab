//! Refreshes verdicts in use in the background.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use fairlead_domain::reference::HostKey;
use fairlead_domain::verdict::Verdict;
use fairlead_plan::named_registries::{self, Named};
use fairlead_registry::RegistryHealth;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::cache::Image;
use super::flight::{ProbeGuard, Refreshed};
use super::{Verdicts, found};

/// How often it is looked what is due. Short, since it is also how soon a registry that came back is believed.
const TICK: Duration = Duration::from_millis(250);
/// How often registries are looked for that there is no reason to know any more. Short, so that a policy is seen which
/// is deleted soon after a Pod was created.
const SWEEP: Duration = Duration::from_millis(250);
/// Refreshes under way at once. The budget of each registry bounds them further, and most of their time they wait for
/// that.
const MOST_AT_ONCE: usize = 128;
/// Refreshes lined up by one look.
const BATCH: usize = 1024;

pub(super) async fn run(verdicts: Verdicts, mut named: impl FnMut() -> Arc<Named>) {
    let [mut ticks, mut sweeps] = [TICK, SWEEP].map(interval);
    for timer in [&mut ticks, &mut sweeps] {
        timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
    }
    let mut sweeper = Sweeper::default();
    let mut waiting: VecDeque<Image> = VecDeque::new();
    let mut under_way = JoinSet::new();
    loop {
        while under_way.len() < MOST_AT_ONCE
            && let Some(image) = waiting.pop_front()
        {
            under_way.spawn(refresh(verdicts.clone(), image));
        }
        tokio::select! {
            _ = ticks.tick(), if waiting.is_empty() => {
                let due = verdicts.shared.cache.tidy(Instant::now(), BATCH);
                verdicts.shared.metrics.kept(due.kept);
                waiting.extend(due.images);
            }
            _ = sweeps.tick() => {
                let forgotten = sweeper.sweep(&verdicts, named());
                waiting.retain(|image| !image.is_of(&forgotten));
            }
            Some(_) = under_way.join_next() => {}
        }
    }
}

async fn refresh(verdicts: Verdicts, image: Image) {
    let health = verdicts.health(&image);
    let Some(begun) = verdicts.shared.cache.begin_refresh(&image) else { return };
    // Until what it found is recorded.
    let _guard = ProbeGuard::new(&verdicts, &image, &begun.telling);
    let Some(Refreshed { verdict, late }) = verdicts.probe_for_refresh(&image, begun).await else { return };
    let is_down = health.as_ref().is_some_and(RegistryHealth::is_down);
    let kind = verdict.kind();
    let outcome = verdicts.shared.cache.renew(&image, found(verdict, health), late, is_down);
    verdicts.shared.metrics.refreshed(outcome);
    tracing::trace!(image = %image.reference(), verdict = %kind, ?outcome, "refreshed a verdict");
}

/// Forgets registries that there is no reason to know any more.
#[derive(Debug, Default)]
struct Sweeper {
    /// What is named now.
    named: Arc<Named>,
    /// Registries that were named at some time since they were last forgotten.
    ever_named: HashSet<Arc<str>>,
}

impl Sweeper {
    /// Returns the registries that were forgotten.
    fn sweep(&mut self, verdicts: &Verdicts, named: Arc<Named>) -> HashSet<HostKey> {
        let (client, metrics) = (&verdicts.shared.client, &verdicts.shared.metrics);
        if !Arc::ptr_eq(&self.named, &named) {
            metrics.reserve(&named);
            let hosts = named.by_administrators().chain(named.by_tenants().map(|(host, _)| host));
            self.ever_named.extend(hosts.cloned());
            self.named = named;
        }
        let now = Instant::now();
        let is_forgotten = |host: &str, health: &RegistryHealth| {
            let (is_named, was_named) = (self.named.contains(host), self.ever_named.contains(host));
            named_registries::is_forgotten(is_named, was_named, health.idle(now))
        };
        let forgotten: HashSet<HostKey> = client
            .healths()
            .into_iter()
            .filter(|(host, health)| is_forgotten(host.as_str(), health))
            .map(|(host, _)| host)
            .collect();
        if !forgotten.is_empty() {
            // Verdicts first: a refresh of one would make the registry known again.
            verdicts.shared.cache.forget(&forgotten);
            for host in &forgotten {
                tracing::debug!(registry = %host, "forgetting a registry that nothing names or uses");
                client.forget(host);
                metrics.free(host.as_str());
                self.ever_named.remove(host.as_str());
            }
        }
        forgotten
    }
}

/// What a refresh did to what was known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RefreshOutcome {
    /// It is still so.
    Same,
    /// It is not so any more.
    Changed,
    /// The refresh found nothing out.
    Kept,
    /// The image has left the cache.
    Forgotten,
}

impl RefreshOutcome {
    pub(super) const ALL: [Self; 4] = [Self::Same, Self::Changed, Self::Kept, Self::Forgotten];

    pub(super) fn of(known: &Verdict, found: &Verdict) -> Self {
        if known.kind() == found.kind() && known.digest() == found.digest() {
            Self::Same
        } else {
            Self::Changed
        }
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Same => "same",
            Self::Changed => "changed",
            Self::Kept => "kept",
            Self::Forgotten => "forgotten",
        }
    }
}
