//! What is known about the availability of images, for all who would otherwise ask registries the same question again.
//!
//! Admission reads it on the path of every Pod, so an answer from memory must cost next to nothing, and a registry that
//! is down must not be waited for. A verdict serves only those who would ask with the same credentials; without any, it
//! serves all. How long verdicts are good is decided in [`fairlead_plan::verdict_ttl`].

mod cache;
mod flight;
mod last_digests;
mod metrics;
mod refresh;
mod settings;
#[cfg(test)]
mod tests;

use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use fairlead_domain::cause::Cause;
use fairlead_domain::digest::Digest;
use fairlead_domain::keyring::Credential;
use fairlead_domain::reference::Reference;
use fairlead_domain::verdict::Verdict;
use fairlead_plan::named_registries::Named;
use fairlead_plan::verdict_ttl::{self, Standing};
use fairlead_registry::{Class, Client, Context, ProbeOptions, RegistryHealth};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use self::cache::{Asked, Cache, CacheLookup, FoundVerdict, Image, ProbeTicket, Progress};
pub use self::metrics::Metrics;
use self::metrics::ProbeCause;
use self::settings::UNTOLD_PATIENCE;
pub use self::settings::{NodeTrust, VerdictSettings, client, settings};

use crate::cluster::ledgers::Findings;

/// A probe that runs out of time says so itself, to all callers at once; they give it the chance to.
const MARGIN: Duration = Duration::from_millis(25);

/// How long a refresh stays in line.
const IN_LINE: Duration = Duration::from_secs(5);

/// What is known of an image without waiting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KnownVerdict {
    Verdict(Verdict),
    /// A positive verdict, which serves after a liveness check of its registry.
    Unproven(Verdict),
    Nothing,
}

/// Clones share everything but the cause.
#[derive(Clone, Debug)]
pub struct Verdicts {
    shared: Arc<Shared>,
    /// On whose account registries are asked. A verdict serves only callers of the same cause: an administrator may get
    /// an answer from an address that is off limits for tenants.
    cause: Cause,
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
        let shared = Shared { client, settings, cache, metrics, heard_by: OnceLock::new() };
        Self { shared: Arc::new(shared), cause: Cause::Administrator }
    }

    /// The same on this account.
    #[must_use]
    pub fn caused_by(&self, cause: Cause) -> Self {
        Self { shared: Arc::clone(&self.shared), cause }
    }

    /// Lets the ledgers hear of every probe, once for all clones.
    #[must_use]
    pub fn heard_by(self, findings: Findings) -> Self {
        // Listeners stay subscribed.
        let _ = self.shared.heard_by.set(findings);
        self
    }

    /// What is known without waiting. While a registry is down that is known of all its images, asked for before or
    /// not. May begin a liveness check in the background; so this needs a runtime around it.
    pub fn known(&self, image: &Reference, credentials: &[Credential]) -> KnownVerdict {
        let known = self.look(&self.shared.cache.asked(image, credentials, self.cause));
        if matches!(known, KnownVerdict::Nothing) {
            self.shared.metrics.missed();
        }
        known
    }

    /// The digest that an image is known to have. No registry is asked, and the verdict does not count as in use.
    pub fn known_digest(&self, image: &Reference, credentials: &[Credential]) -> Option<Digest> {
        let cache = &self.shared.cache;
        cache.digest(&cache.asked(image, credentials, self.cause), Instant::now())
    }

    /// The digest that an image was last seen to have, however long ago, unless its registry has said since that it is
    /// gone or refuses access.
    pub fn last_digest(&self, image: &Reference, credentials: &[Credential]) -> Option<Digest> {
        self.last_seen(image, credentials).map(|(digest, _)| digest)
    }

    /// The same, with the age of the answer.
    pub fn last_seen(&self, image: &Reference, credentials: &[Credential]) -> Option<(Digest, Duration)> {
        let cache = &self.shared.cache;
        let (digest, seen) = cache.last_digest(&cache.asked(image, credentials, self.cause))?;
        Some((digest, seen.elapsed()))
    }

    /// What is known, or what a probe finds out before the deadline and within the time that a probe may take. A
    /// positive verdict is returned only while the registry is proven to accept new connections: if need be, a liveness
    /// check runs first, within the time of a probe.
    ///
    /// Probes and checks do not depend on their callers: however early those leave, they go on and what they find is
    /// kept.
    ///
    /// `namespace` is that of the Pod: on its account the registry gets a label in metrics, and against its share of
    /// the registry a probe counts.
    pub async fn ask(
        &self,
        image: &Reference,
        credentials: &[Credential],
        namespace: &str,
        deadline: Instant,
    ) -> Verdict {
        let asked = self.shared.cache.asked(image, credentials, self.cause);
        let verdict = match self.look(&asked) {
            KnownVerdict::Verdict(known) => return known,
            KnownVerdict::Unproven(verdict) => verdict,
            KnownVerdict::Nothing => self.find_out(&asked, namespace, deadline).await,
        };
        if verdict.is_available() { self.once_alive(&asked, verdict, deadline).await } else { verdict }
    }

    /// The same without proof that the registry is alive: for comparing images, not for choosing one.
    pub async fn recall(
        &self,
        image: &Reference,
        credentials: &[Credential],
        namespace: &str,
        deadline: Instant,
    ) -> Verdict {
        let asked = self.shared.cache.asked(image, credentials, self.cause);
        match self.look(&asked) {
            KnownVerdict::Verdict(verdict) | KnownVerdict::Unproven(verdict) => verdict,
            KnownVerdict::Nothing => self.find_out(&asked, namespace, deadline).await,
        }
    }

    /// The same, where good news is no older than `age`: for what is noted once and kept. It serves at any age while
    /// its registry does not answer.
    pub async fn recall_within(
        &self,
        image: &Reference,
        credentials: &[Credential],
        namespace: &str,
        age: Duration,
        deadline: Instant,
    ) -> Verdict {
        let Shared { cache, settings, metrics, .. } = &*self.shared;
        let asked = cache.asked(image, credentials, self.cause);
        let known = match self.look(&asked) {
            KnownVerdict::Verdict(known) | KnownVerdict::Unproven(known) => known,
            KnownVerdict::Nothing => return self.find_out(&asked, namespace, deadline).await,
        };
        if !known.is_available() || cache.is_younger(&asked, age, Instant::now()) {
            return known;
        }
        metrics.name(image.host().as_str(), namespace);
        let image = asked.own();
        let limit = settings.timeout.unwrap_or(UNTOLD_PATIENCE);
        let context = Context::new(Class::Admission, deadline).answered_within(limit).on_behalf_of(namespace);
        let options = settings.options(image.cause());
        let found = self.probe(&image, options, &context, ProbeCause::Admission).await;
        let health = self.health(&image);
        let is_down = health.as_ref().is_some_and(RegistryHealth::is_down);
        // This answer is needed sooner than one for routing, so that it is late says nothing.
        if !verdict_ttl::replaces(&known, &found, true, is_down) {
            return known;
        }
        self.record(image, found.clone(), health);
        found
    }

    /// What the registry says now, whatever is known: for what is decided once and kept.
    pub async fn ask_anew(
        &self,
        image: &Reference,
        credentials: &[Credential],
        namespace: &str,
        deadline: Instant,
    ) -> Verdict {
        self.shared.metrics.name(image.host().as_str(), namespace);
        let settings = &self.shared.settings;
        let image = self.shared.cache.asked(image, credentials, self.cause).own();
        let limit = settings.timeout.unwrap_or(UNTOLD_PATIENCE);
        let context = Context::new(Class::Admission, deadline).answered_within(limit).on_behalf_of(namespace);
        let verdict =
            self.probe(&image, settings.options(image.cause()), &context, ProbeCause::Admission).await;
        let health = self.health(&image);
        self.record(image, verdict.clone(), health);
        verdict
    }

    /// What the registry says now on a new connection, unless it is known to be down: for what only nodes may fail at.
    pub async fn ask_as_node(
        &self,
        image: &Reference,
        credentials: &[Credential],
        namespace: &str,
        deadline: Instant,
    ) -> Verdict {
        if let Some(down) = self.shared.client.is_down(&image.host()) {
            return down;
        }
        self.shared.metrics.name(image.host().as_str(), namespace);
        let asked = self.shared.cache.asked(image, credentials, self.cause);
        self.probe_anew(&asked, Class::Background, deadline).await
    }

    async fn find_out(&self, asked: &Asked<'_>, namespace: &str, deadline: Instant) -> Verdict {
        self.shared.metrics.name(asked.reference().host().as_str(), namespace);
        let mut told = match self.shared.cache.join(asked, Instant::now()) {
            ProbeTicket::Known(verdict) => return verdict,
            ProbeTicket::Joined(told) => told,
            ProbeTicket::First(image, telling) => {
                let told = telling.subscribe();
                self.start_probe(image, namespace, telling);
                told
            }
        };
        let started = Instant::now();
        loop {
            let progress = told.borrow_and_update().clone();
            // The time of a probe begins when it is sent: what is ahead of it in our own line is not the registry's
            // fault.
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

    /// A positive verdict, after proof that its registry is alive; or why it is not used.
    async fn once_alive(&self, asked: &Asked<'_>, verdict: Verdict, deadline: Instant) -> Verdict {
        let Shared { client, settings, metrics, cache, .. } = &*self.shared;
        let (host, started) = (asked.reference().host(), Instant::now());
        // Without settings that can be used there is nothing to check: the probe says what is wrong with them.
        let Some(health) = client.health(&host) else {
            return self.probe_anew(asked, Class::Admission, deadline).await;
        };
        // As of now, however long the check takes.
        let is_proven = || verdict_ttl::proof(health.proof_age(started), cache.ages()) != Standing::Gone;
        if is_proven() {
            return verdict;
        }
        metrics.checked();
        let limit = settings.timeout.unwrap_or(UNTOLD_PATIENCE) + MARGIN;
        if let Some(check) = client.check(&host, asked.cause(), settings.check_patience()) {
            tokio::select! {
                down = health.goes_down() => return down,
                ended = check.ended(limit, deadline) => if !ended {
                    return no_answer(&Progress::Sent(started), started);
                }
            }
        }
        match health.down() {
            Some(down) => down,
            None if is_proven() => verdict,
            // The registry answers a check with an error and may have no such page.
            None => self.probe_anew(asked, Class::Admission, deadline).await,
        }
    }

    /// Probes over a new connection, so that the answer is proof enough.
    async fn probe_anew(&self, asked: &Asked<'_>, class: Class, deadline: Instant) -> Verdict {
        let settings = &self.shared.settings;
        let image = asked.own();
        let options = ProbeOptions { new_connection: true, ..settings.options(image.cause()) };
        let limit = settings.timeout.unwrap_or(UNTOLD_PATIENCE);
        let context = Context::new(class, deadline).answered_within(limit);
        let verdict = self.probe(&image, options, &context, ProbeCause::Admission).await;
        // Work in the background may have been in line for too long, which is no news about the image.
        if class == Class::Admission || verdict.is_available() {
            let health = self.health(&image);
            self.record(image, verdict.clone(), health);
        }
        verdict
    }

    /// Takes note of what another function found out about an image with these credentials.
    pub fn learn(&self, image: &Reference, credentials: &[Credential], verdict: Verdict) {
        let image = self.shared.cache.asked(image, credentials, self.cause).own();
        let health = self.health(&image);
        self.record(image, verdict, health);
    }

    /// Refreshes verdicts in use, forgets those that are not, and forgets registries that are neither `named` nor in
    /// use.
    pub async fn run(self, named: impl FnMut() -> Arc<Named>, shutdown: CancellationToken) {
        shutdown.run_until_cancelled_owned(refresh::run(self, named)).await;
    }

    fn look(&self, asked: &Asked<'_>) -> KnownVerdict {
        let metrics = &self.shared.metrics;
        match self.shared.cache.look(asked, Instant::now()) {
            CacheLookup::Known(verdict) => {
                metrics.hit();
                KnownVerdict::Verdict(verdict)
            }
            CacheLookup::Ageing(verdict) => {
                metrics.hit();
                let (host, patience) = (asked.reference().host(), self.shared.settings.check_patience());
                drop(self.shared.client.check(&host, asked.cause(), patience));
                KnownVerdict::Verdict(verdict)
            }
            CacheLookup::Unproven(verdict) => KnownVerdict::Unproven(verdict),
            CacheLookup::Down(verdict) => {
                metrics.answered_for_registry();
                KnownVerdict::Verdict(verdict)
            }
            CacheLookup::Outdated => KnownVerdict::Nothing,
            CacheLookup::Absent => match self.shared.client.is_down(&asked.reference().host()) {
                Some(down) => {
                    metrics.answered_for_registry();
                    KnownVerdict::Verdict(down)
                }
                None => KnownVerdict::Nothing,
            },
        }
    }

    fn health(&self, image: &Image) -> Option<RegistryHealth> {
        self.shared.client.health(&image.reference().host())
    }

    /// Work in the background gives way; admission stays in line as long as its API server waits.
    fn context(&self, class: Class) -> Context {
        let (now, patience) = (Instant::now(), self.shared.settings.patience());
        match class {
            Class::Admission => {
                Context::new(class, now + patience.max(UNTOLD_PATIENCE)).answered_within(patience)
            }
            // What is sent has its full time, or the request would be wasted.
            Class::Background => Context::new(class, now + IN_LINE + patience)
                .answered_within(patience)
                .waiting_at_most(patience),
        }
    }

    async fn probe(
        &self,
        image: &Image,
        options: ProbeOptions,
        context: &Context,
        source: ProbeCause,
    ) -> Verdict {
        let Shared { client, metrics, heard_by, .. } = &*self.shared;
        let started = Instant::now();
        let verdict = client.probe(image.reference(), image.credentials(), options, context).await;
        metrics.probed(image.reference().host().as_str(), source, verdict.kind(), started.elapsed());
        if let Some(findings) = heard_by.get() {
            findings.note(image.reference(), &verdict);
        }
        verdict
    }

    fn record(&self, image: Image, verdict: Verdict, health: Option<RegistryHealth>) {
        self.shared.cache.keep(image, found(verdict, health));
    }
}

fn found(verdict: Verdict, health: Option<RegistryHealth>) -> FoundVerdict {
    FoundVerdict {
        verdict,
        health,
        at: Instant::now(),
        wall_clock: SystemTime::now(),
        jitter: fastrand::f64(),
    }
}

fn no_answer(progress: &Progress, since: Instant) -> Verdict {
    if matches!(progress, Progress::InLine) {
        let reason =
            "the queue of requests to the registry is too long; see registries.<host>.requestsPerSecond";
        return Verdict::Unreachable { reason: reason.into() };
    }
    let waited = Duration::from_millis(u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX));
    Verdict::Unreachable {
        reason: format!("there was no answer within {waited:?}; see routing.activeCheck.timeout").into(),
    }
}
