//! Keeps verdicts in use fresh without anybody waiting for it.

use std::{collections::VecDeque, time::Duration};

use fairlead_domain::verdict::Verdict;
use fairlead_registry::{Class, RegistryHealth};
use tokio::{
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval},
};

use super::{Verdicts, cache::Image, found, metrics::Source};

/// How often it is looked what is due. Short, since it is also how soon a registry that came back is believed.
const TICK: Duration = Duration::from_millis(250);
/// Refreshes under way at once. The budget of each registry bounds them further.
const MOST_AT_ONCE: usize = 32;
/// Refreshes lined up by one look.
const BATCH: usize = 1024;

pub(super) async fn run(verdicts: Verdicts) {
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut waiting = VecDeque::new();
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
            Some(_) = under_way.join_next() => {}
        }
    }
}

async fn refresh(verdicts: Verdicts, image: Image) {
    let started = Instant::now();
    let context = verdicts.context(Class::Background);
    let verdict = verdicts.probe(&image, &context, Source::Refresh).await;
    let late = started.elapsed() >= verdicts.shared.settings.patience();
    let health = verdicts.health(&image);
    let is_down = health.as_ref().is_some_and(RegistryHealth::is_down);
    let kind = verdict.kind();
    let outcome = verdicts.shared.cache.renew(&image, found(verdict, health), late, is_down);
    verdicts.shared.metrics.refreshed(outcome);
    tracing::trace!(image = %image.reference(), verdict = %kind, ?outcome, "refreshed a verdict");
}

/// What a refresh did to what was known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It is still so.
    Same,
    /// It is not so any more.
    Changed,
    /// The refresh found nothing out.
    Kept,
    /// Nobody remembers the image any more.
    Forgotten,
}

impl Outcome {
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
