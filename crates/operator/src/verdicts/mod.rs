//! What is known about the availability of images, for all who would otherwise ask registries the same question again.
//!
//! Admission reads it on the path of every Pod, so an answer from memory must cost next to nothing, and a registry that
//! is down must not be waited for. A verdict serves only those who would ask with the same credentials; without any,
//! everybody. How long verdicts are good is decided in [`fairlead_plan::verdict_age`].

mod cache;
mod flight;
mod metrics;
mod refresh;
mod settings;
#[cfg(test)]
mod tests;

use std::{
    sync::{Arc, OnceLock},
    time::{Duration, SystemTime},
};

use fairlead_domain::{
    digest::Digest,
    keyring::Credential,
    reference::{Host, Reference},
    verdict::Verdict,
};
use fairlead_registry::{Class, Client, Context, RegistryHealth};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use self::{
    cache::{Asked, Boarding, Cache, Found, Image, Look, Progress},
    metrics::Source,
    settings::UNTOLD_PATIENCE,
};
pub use self::{
    metrics::Metrics,
    settings::{NodeTrust, VerdictSettings, client, settings},
};

use crate::ledgers::Findings;

/// A probe that runs out of time says so itself, to everybody at once; callers give it the chance to.
const MARGIN: Duration = Duration::from_millis(25);

/// Clones share everything.
#[derive(Clone, Debug)]
pub struct Verdicts {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    client: Client,
    settings: VerdictSettings,
    cache: Cache,
    metrics: Metrics,
    heard_by: OnceLock<Findings>,
}

impl Verdicts {
    pub fn new(client: Client, settings: VerdictSettings, metrics: Metrics) -> Self {
        let cache = Cache::new(settings.capacity, settings.ages());
        Self { shared: Arc::new(Shared { client, settings, cache, metrics, heard_by: OnceLock::new() }) }
    }

    /// Lets the ledgers hear of every probe, once for all clones.
    #[must_use]
    pub fn heard_by(self, findings: Findings) -> Self {
        // Whoever listens already goes on doing so.
        let _ = self.shared.heard_by.set(findings);
        self
    }

    /// What is known without asking anybody. While a registry is down that is known of all its images, asked for before
    /// or not. Good news of a registry that was silent for a moment has it asked in the background whether it is still
    /// there; so this needs a runtime around it.
    pub fn known(&self, image: &Reference, credentials: &[Credential]) -> Option<Verdict> {
        let known = self.look(&self.shared.cache.asked(image, credentials));
        if known.is_none() {
            self.shared.metrics.missed();
        }
        known
    }

    /// The digest that an image is known to have. No registry is asked, and the verdict does not count as in use.
    pub fn known_digest(&self, image: &Reference, credentials: &[Credential]) -> Option<Digest> {
        self.shared.cache.digest(&self.shared.cache.asked(image, credentials), Instant::now())
    }

    /// What is known, or what a probe finds out before the deadline and within the time that a probe may take.
    ///
    /// The probe does not depend on its callers: however early they leave, it goes on and what it finds is kept.
    pub async fn ask(&self, image: &Reference, credentials: &[Credential], deadline: Instant) -> Verdict {
        let asked = self.shared.cache.asked(image, credentials);
        if let Some(known) = self.look(&asked) {
            return known;
        }
        let mut told = match self.shared.cache.board(&asked, Instant::now()) {
            Boarding::Known(verdict) => return verdict,
            Boarding::Joined(told) => told,
            Boarding::First(image, telling) => {
                let told = telling.subscribe();
                self.take_off(image, telling);
                told
            }
        };
        let started = Instant::now();
        loop {
            let progress = told.borrow_and_update().clone();
            // The time of a probe begins when it is sent: what is ahead of it in our own line is not the registry's fault.
            let until = match (&progress, self.shared.settings.timeout) {
                (Progress::Told(verdict), _) => return verdict.clone(),
                (Progress::Sent(at), Some(timeout)) => deadline.min(*at + timeout + MARGIN),
                (Progress::InLine | Progress::Sent(_), _) => deadline,
            };
            if !matches!(timeout_at(until, told.changed()).await, Ok(Ok(()))) {
                return no_answer(&progress, started);
            }
        }
    }

    /// Takes note of what another function found out about an image with these credentials.
    pub fn learn(&self, image: &Reference, credentials: &[Credential], verdict: Verdict) {
        let image = self.shared.cache.asked(image, credentials).own();
        let health = self.health(&image);
        self.land(image, verdict, health);
    }

    /// Refreshes verdicts in use and forgets those that nobody asks for.
    pub async fn run(self, shutdown: CancellationToken) {
        shutdown.run_until_cancelled_owned(refresh::run(self)).await;
    }

    fn look(&self, asked: &Asked<'_>) -> Option<Verdict> {
        let metrics = &self.shared.metrics;
        match self.shared.cache.look(asked, Instant::now()) {
            Look::Known(verdict) => {
                metrics.hit();
                Some(verdict)
            }
            Look::Unheard(verdict) => {
                metrics.hit();
                self.check(asked.reference().host());
                Some(verdict)
            }
            Look::Down(verdict) => {
                metrics.answered_for_registry();
                Some(verdict)
            }
            Look::Outdated => None,
            Look::Absent => {
                let down = self.shared.client.is_down(&asked.reference().host())?;
                metrics.answered_for_registry();
                Some(down)
            }
        }
    }

    /// Finds out in passing whether a registry is still there. If it is not, that is known of all its images.
    fn check(&self, host: Host) {
        let (client, patience) = (self.shared.client.clone(), self.shared.settings.check_patience());
        tokio::spawn(async move { client.check(&host, patience).await });
    }

    fn health(&self, image: &Image) -> Option<RegistryHealth> {
        self.shared.client.health(&image.reference().host())
    }

    /// Work in the background gives way; whoever admits a Pod stays in line as long as its API server waits.
    fn context(&self, class: Class) -> Context {
        let (now, patience) = (Instant::now(), self.shared.settings.patience());
        match class {
            Class::Admission => {
                Context::new(class, now + patience.max(UNTOLD_PATIENCE)).answered_within(patience)
            }
            Class::Background => Context::new(class, now + patience),
        }
    }

    async fn probe(&self, image: &Image, context: &Context, source: Source) -> Verdict {
        let Shared { client, settings, metrics, heard_by, .. } = &*self.shared;
        let started = Instant::now();
        let verdict = client.probe(image.reference(), image.credentials(), settings.options(), context).await;
        metrics.probed(image.reference().host().as_str(), source, verdict.kind(), started.elapsed());
        if let Some(findings) = heard_by.get() {
            findings.note(image.reference(), &verdict);
        }
        verdict
    }

    fn land(&self, image: Image, verdict: Verdict, health: Option<RegistryHealth>) {
        self.shared.cache.keep(image, found(verdict, health));
    }
}

fn found(verdict: Verdict, health: Option<RegistryHealth>) -> Found {
    Found { verdict, health, at: Instant::now(), wall_clock: SystemTime::now(), jitter: fastrand::f64() }
}

fn no_answer(progress: &Progress, since: Instant) -> Verdict {
    if matches!(progress, Progress::InLine) {
        let reason =
            "other requests to the registry were first in line; see registries.<host>.requestsPerSecond";
        return Verdict::Unreachable { reason: reason.into() };
    }
    let waited = Duration::from_millis(u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX));
    Verdict::Unreachable {
        reason: format!("there was no answer within {waited:?}; see routing.activeCheck.timeout").into(),
    }
}
