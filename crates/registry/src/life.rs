//! Signs of life: whether a registry is still there that nobody had a reason to call for a moment.
//!
//! Who acts on what was found out earlier makes no call, and so does not notice that the registry has died since. It is
//! told when the registry has not been heard from for a while, and then has it asked, in passing: nobody waits for the
//! answer, all who are interested share one check, and a registry that nobody is interested in is never asked.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::{Duration, SystemTime},
};

use fairlead_domain::reference::Host;
use futures::{StreamExt, stream::FuturesUnordered};
use tokio::time::{Instant, sleep, timeout};
use url::Url;

use crate::{
    answer::Answer,
    client::Client,
    context::Context,
    error::{Detail, Problem},
    health::RegistryHealth,
    manners::{
        pace::{Class, Rate},
        quota::Quota,
    },
    peer::{Trial, is_sign_of_life},
    transport::http::Response,
};

/// A registry that was heard from within this time is taken to be there.
const MOST_SILENCE: Duration = Duration::from_secs(2);
/// Checks take at most one in so many of the requests that a registry may be asked, so the silence is longer where those
/// are few.
const SHARE: u32 = 10;
/// A check that does not get its turn in this time is left out: those who keep it waiting will hear from the registry.
const LONGEST_WAIT: Duration = Duration::from_millis(500);
/// Reading the rest of an answer keeps the connection for the next one, and is worth no more than this.
const READING: Duration = Duration::from_millis(500);

/// When a server was last heard from.
#[derive(Debug)]
pub(crate) struct Signs {
    /// What the moments below are counted from, in milliseconds.
    start: Instant,
    /// When it was last heard from, or somebody was last told to check.
    attended: AtomicU64,
    most_silence: u64,
    checking: AtomicBool,
    /// It has answered a check. What never did so says nothing by errors: there may be no such page.
    answers_checks: AtomicBool,
}

impl Signs {
    /// Being new counts as having been heard from: whoever knows something of the registry found it out just now.
    pub(crate) fn new(rate: Option<Rate>, now: Instant) -> Self {
        let bearable = rate.map_or(Duration::ZERO, |rate| rate.interval().saturating_mul(SHARE));
        Self {
            start: now,
            attended: AtomicU64::new(0),
            most_silence: millis(MOST_SILENCE.max(bearable)),
            checking: AtomicBool::new(false),
            answers_checks: AtomicBool::new(false),
        }
    }

    pub(crate) fn hear(&self, now: Instant) {
        self.attended.fetch_max(self.at(now), Ordering::Relaxed);
    }

    pub(crate) fn hear_check(&self, now: Instant) {
        self.answers_checks.store(true, Ordering::Relaxed);
        self.hear(now);
    }

    /// Whether an error in answer to a check, or to a trial, says something.
    pub(crate) fn answers_checks(&self) -> bool {
        self.answers_checks.load(Ordering::Relaxed)
    }

    /// Whether a check is due. True for one of those who ask at the same time.
    fn claim(&self, now: Instant) -> bool {
        let (now, last) = (self.at(now), self.attended.load(Ordering::Relaxed));
        now.saturating_sub(last) >= self.most_silence
            && self.attended.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    fn at(&self, moment: Instant) -> u64 {
        millis(moment.saturating_duration_since(self.start))
    }

    fn begin_check(&self) -> Option<Checking<'_>> {
        (!self.checking.swap(true, Ordering::Acquire)).then_some(Checking(self))
    }
}

fn millis(time: Duration) -> u64 {
    time.as_secs().saturating_mul(1000).saturating_add(u64::from(time.subsec_millis()))
}

/// A check under way.
struct Checking<'a>(&'a Signs);

impl Drop for Checking<'_> {
    fn drop(&mut self) {
        self.0.checking.store(false, Ordering::Release);
    }
}

impl RegistryHealth {
    /// Whether the registry has not been heard from for so long that it should be asked for a sign of life. Whoever is
    /// told so is to call [`Client::check`]; nobody else is told for a while. Costs next to nothing.
    pub fn wants_check(&self, now: Instant) -> bool {
        self.peer.signs.claim(now)
    }
}

impl Client {
    /// Asks a registry for a sign of life. If there is none within the given time, and at a second attempt, the registry
    /// is down as it is after any call that was left unanswered. Does nothing while another check is under way.
    pub async fn check(&self, host: &Host, patience: Duration) {
        let Ok(registry) = self.shared.registries.get(host) else { return };
        let peer = &registry.peer;
        let Some(_checking) = peer.signs.begin_check() else { return };
        let context = Context::new(Class::Background, Instant::now() + LONGEST_WAIT);
        let Ok(permit) = peer.enter(None, &context).await else { return };
        let (trial, started) = (registry.trial(), Instant::now());
        let sign = timeout(patience, trial.seek_sign(patience / 2)).await;
        match sign.unwrap_or(Err(Missing::silent())) {
            Ok(response) => {
                let quota = Quota::read(response.headers(), SystemTime::now());
                peer.gave_sign(response.status(), &quota);
                let context = Context::new(Class::Background, Instant::now() + READING);
                Answer::new(response, quota, permit, context.deadline, None).into_permit(&context).await;
            }
            Err(missing) if missing.is_error && !peer.signs.answers_checks() => {}
            Err(missing) => peer.gave_no_sign(&missing.problem, started, || trial),
        }
    }
}

/// Why there was no sign of life.
struct Missing {
    problem: Problem,
    /// Something answered, with an error of its own.
    is_error: bool,
}

impl Missing {
    fn silent() -> Self {
        Self { problem: Problem::TimedOut(Detail::none()), is_error: false }
    }
}

impl Trial {
    /// Asks, and once more when that failed or is not answered by `next`: a connection that was not used for a moment may
    /// be broken although the server is well.
    async fn seek_sign(&self, next: Duration) -> Result<Response, Missing> {
        let mut attempts = FuturesUnordered::new();
        attempts.push(self.ask());
        let mut next = std::pin::pin!(sleep(next));
        let mut is_last = false;
        loop {
            tokio::select! {
                Some(outcome) = attempts.next() => match outcome {
                    Err(missing) if is_last && attempts.is_empty() => return Err(missing),
                    Err(_) if is_last => {}
                    Err(_) => {
                        is_last = true;
                        attempts.push(self.ask());
                    }
                    Ok(response) => return Ok(response),
                },
                () = &mut next, if !is_last => {
                    is_last = true;
                    attempts.push(self.ask());
                }
            }
        }
    }

    async fn ask(&self) -> Result<Response, Missing> {
        let ask = async |url: &Url| match self.get(url).await {
            Ok(response) if is_sign_of_life(response.status()) => Ok(response),
            Ok(response) => {
                let told = format!("it answered with status {}", response.status());
                Err(Missing { problem: Problem::Unreachable(told.into()), is_error: true })
            }
            Err(failure) => Err(Missing { problem: Problem::of_failure(failure), is_error: false }),
        };
        match (ask(&self.url).await, &self.other_scheme) {
            (Err(missing), Some(other)) => ask(other).await.map_err(|_| missing),
            (outcome, _) => outcome,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;

    fn after(start: Instant, millis: u64) -> Instant {
        start + Duration::from_millis(millis)
    }

    #[test]
    fn one_of_many_is_told_and_only_after_silence() {
        let start = Instant::now();
        let signs = Signs::new(None, start);
        assert!(!signs.claim(after(start, 1999)));
        signs.hear(after(start, 1000));
        assert!(!signs.claim(after(start, 2999)));
        let told = (0..50).filter(|_| signs.claim(after(start, 3000))).count();
        assert_eq!(told, 1);
        assert!(!signs.claim(after(start, 4999)) && signs.claim(after(start, 5000)));
        signs.hear(after(start, 4000));
        assert!(!signs.claim(after(start, 6999)), "an old answer brings nothing forward");
    }

    #[test]
    fn a_registry_that_may_seldom_be_asked_is_seldom_checked() {
        let start = Instant::now();
        let signs = Signs::new(Some(Rate::per_second(0.5, NonZeroU32::MIN)), start);
        assert!(!signs.claim(after(start, 19_999)));
        assert!(signs.claim(after(start, 20_000)));
    }

    #[test]
    fn there_is_one_check_at_a_time() {
        let signs = Signs::new(None, Instant::now());
        let first = signs.begin_check();
        assert!(first.is_some() && signs.begin_check().is_none());
        drop(first);
        assert!(signs.begin_check().is_some());
    }
}
