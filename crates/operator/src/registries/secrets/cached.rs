//! What was read of one Secret. `fairlead_plan::secret_ttl` decides how long it is believed.

use std::time::Duration;

use fairlead_plan::secret_ttl::{ReadOutcome, Reading, Standing};
use tokio::time::Instant;

use super::Read;
use crate::controller::backoff::Backoff;

const RETRY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(30)).with_jitter(0.25);

#[derive(Debug, Clone)]
pub(super) struct CachedSecret {
    read: Read,
    /// When it was read.
    since: Instant,
    /// No attempt to read it before.
    retry: Instant,
    failures: u32,
    distrusted: bool,
}

impl CachedSecret {
    /// What is to be believed after a read: after a failure that may be what was read before.
    pub(super) fn after(before: Option<&Self>, read: Read, now: Instant, chance: f64) -> Self {
        let fresh = Self { read, since: now, retry: now, failures: 0, distrusted: false };
        if !matches!(fresh.read, Read::Failed(_)) {
            return fresh;
        }
        let failures = before.map_or(0, |before| before.failures);
        let retry = now + RETRY.pause(failures, chance);
        let believed = before.filter(|before| before.reading(now).outlives_failure()).unwrap_or(&fresh);
        Self { retry, failures: failures.saturating_add(1), distrusted: false, ..believed.clone() }
    }

    /// What it has to say, and whether it serves.
    pub(super) fn serve(&self, now: Instant) -> (Standing, Read) {
        (self.reading(now).standing(), self.read.clone())
    }

    /// A registry refused what the Secret holds: it may have changed since.
    pub(super) fn distrust(&mut self, now: Instant) {
        self.distrusted |= self.reading(now).may_be_outdated();
    }

    /// Roughly the memory that it takes.
    pub(super) fn weight(&self) -> usize {
        self.read.keys().map_or(0, |keys| keys.weight())
    }

    fn reading(&self, now: Instant) -> Reading {
        Reading {
            outcome: match self.read {
                Read::Keys(_) | Read::Unusable(_) => ReadOutcome::Content,
                Read::Missing => ReadOutcome::Missing,
                Read::Failed(_) => ReadOutcome::Failed,
            },
            age: now.saturating_duration_since(self.since),
            may_retry: now >= self.retry,
            distrusted: self.distrusted,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn content() -> Read {
        Read::Unusable("its type is Opaque".into())
    }

    fn failed() -> Read {
        Read::Failed("away".into())
    }

    #[derive(Default)]
    struct Cached(Option<CachedSecret>);

    impl Cached {
        fn settle(&mut self, read: Read, now: Instant) {
            self.0 = Some(CachedSecret::after(self.0.as_ref(), read, now, 0.5));
        }

        fn told(&self, now: Instant) -> &'static str {
            match self.0.as_ref().map(|cached| cached.serve(now)) {
                None | Some((Standing::Gone, _)) => "nothing",
                Some((Standing::Good, Read::Unusable(_))) => "fresh content",
                Some((Standing::Renew, Read::Unusable(_))) => "aging content",
                Some((Standing::Good, Read::Missing)) => "missing",
                Some((Standing::Good, Read::Failed(_))) => "failed",
                Some(_) => "something else",
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn ages() {
        let start = Instant::now();
        let mut cached = Cached::default();
        let mut at = |read: Option<Read>, seconds: u32| {
            let now = start + seconds * SECOND;
            if let Some(read) = read {
                cached.settle(read, now);
            }
            cached.told(now)
        };
        assert_eq!(at(None, 0), "nothing");
        assert_eq!(at(Some(content()), 0), "fresh content");
        assert_eq!((at(None, 59), at(None, 60)), ("fresh content", "aging content"));
        // The API server is away: attempts become rare, and what is known serves for five minutes.
        assert_eq!((at(Some(failed()), 60), at(None, 61)), ("fresh content", "aging content"));
        assert_eq!(
            (at(Some(failed()), 61), at(None, 62), at(None, 63)),
            ("fresh content", "fresh content", "aging content")
        );
        assert_eq!((at(None, 299), at(None, 300)), ("aging content", "nothing"));
        assert_eq!((at(Some(failed()), 300), at(None, 303), at(None, 304)), ("failed", "failed", "nothing"));
        assert_eq!(
            (at(Some(Read::Missing), 310), at(None, 314), at(None, 315)),
            ("missing", "missing", "nothing")
        );
        assert_eq!(at(Some(content()), 316), "fresh content");
        assert_eq!(at(Some(Read::Missing), 317), "missing", "an answer replaces what was known");
    }

    #[tokio::test(start_paused = true)]
    async fn distrust_leads_to_one_read_in_a_while() {
        let start = Instant::now();
        let mut cached = Cached::default();
        cached.settle(content(), start);
        let mut distrust = |seconds: u32| {
            let now = start + seconds * SECOND;
            cached.0.iter_mut().for_each(|cached| cached.distrust(now));
            cached.told(now)
        };
        assert_eq!(distrust(9), "fresh content", "it was read just now");
        assert_eq!(distrust(10), "nothing");
        cached.settle(failed(), start + 10 * SECOND);
        assert_eq!(cached.told(start + 10 * SECOND), "fresh content");
    }
}
