//! What probes say against the ledgers: a copy that is gone, a tag that has another digest now.
//!
//! A probe is on the path of a Pod, so noting something takes no longer than looking a name up, and nothing waits for
//! it. What was noted is reported elsewhere. The same image is reported less and less often as long as nothing comes of
//! it: some registries say "not found" where they mean "not for you".

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use fairlead_domain::reference::Reference;
use fairlead_domain::verdict::Verdict;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::Claims;
use super::index::name_of;
use crate::controller::backoff::Backoff;
use crate::platform::config::StaleMirrorCleanup;

/// Findings that wait to be reported. More would mean that a whole registry was emptied, which the watch finds out as
/// well.
const QUEUE: usize = 1024;
/// Images that are remembered as told.
const REMEMBERED: usize = 4096;
/// An image is not told of again within this time, nor after the second time within twice as long, and so on.
const PAUSES: Backoff = Backoff::new(Duration::from_secs(30), Duration::from_hours(1));

/// An image that is not as a ledger has it, to be looked at again: a copy or a source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Missed {
    pub reference: Reference,
    /// UID of the only object that it concerns: its own ledger asks for it. `None`: a probe of this replica found it.
    pub owner: Option<Arc<str>>,
}

/// Takes what probes of this replica find. Clones share everything.
#[derive(Debug, Clone)]
pub struct Findings {
    pub(super) shared: Arc<FindingsInner>,
}

#[derive(Debug)]
pub(super) struct FindingsInner {
    pub(super) claims: Claims,
    /// Writes at once; 0 turns everything off.
    pub(super) at_once: usize,
    /// For one image.
    pub(super) timeout: Duration,
    pub(super) noted: Notify,
    memory: Mutex<Memory>,
}

#[derive(Debug, Default)]
struct Memory {
    waiting: Vec<Reference>,
    told: HashMap<u64, Told>,
}

/// When an image was last told of, and how often so far.
#[derive(Debug, Clone, Copy)]
struct Told {
    at: Instant,
    times: u32,
}

impl Told {
    fn pause(&self) -> Duration {
        PAUSES.pause(self.times.saturating_sub(1), 0.5)
    }

    /// After twice the pause it is a new story.
    fn is_forgotten(&self, now: Instant) -> bool {
        now.duration_since(self.at) > 2 * self.pause()
    }
}

impl Findings {
    pub fn new(claims: Claims, settings: &StaleMirrorCleanup) -> Self {
        let shared = FindingsInner {
            claims,
            at_once: usize::try_from(settings.max_concurrent).unwrap_or(usize::MAX),
            timeout: settings.timeout.as_std(),
            noted: Notify::new(),
            memory: Mutex::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Takes note of what a probe found. Only what a ledger has otherwise is kept, once.
    pub fn note(&self, image: &Reference, verdict: &Verdict) {
        let FindingsInner { claims, at_once, noted, .. } = &*self.shared;
        if *at_once == 0 {
            return;
        }
        let news = match verdict {
            Verdict::NotFound { .. } => claims.is_copy(image),
            Verdict::Available { digest: Some(digest) } => claims.contradict(image, digest),
            _ => false,
        };
        if news && self.memory().remember(image, Instant::now()) {
            tracing::debug!(%image, found = %verdict.kind(), "a probe contradicts the ledger");
            noted.notify_one();
        }
    }

    pub(crate) fn take(&self) -> Vec<Reference> {
        std::mem::take(&mut self.memory().waiting)
    }

    /// It could not be reported: the next probe may note it again at once.
    pub(super) fn forget(&self, image: &Reference) {
        self.memory().told.remove(&name_of(image));
    }

    fn memory(&self) -> MutexGuard<'_, Memory> {
        self.shared.memory.lock()
    }
}

impl Memory {
    /// Whether this is news.
    fn remember(&mut self, image: &Reference, now: Instant) -> bool {
        let name = name_of(image);
        let before = self.told.get(&name).copied().filter(|told| !told.is_forgotten(now));
        if self.waiting.len() >= QUEUE
            || before.is_some_and(|told| now.duration_since(told.at) < told.pause())
        {
            return false;
        }
        if self.told.len() >= REMEMBERED {
            self.told.retain(|_, told| !told.is_forgotten(now));
        }
        if self.told.len() >= REMEMBERED {
            return false;
        }
        let times = before.map_or(1, |told| told.times.saturating_add(1));
        self.told.insert(name, Told { at: now, times });
        self.waiting.push(image.clone());
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::ledgers::tests::{MIRRORED, claims, digest, ledger, reference};

    fn findings() -> Findings {
        Findings::new(claims([ledger("one", MIRRORED)]), &StaleMirrorCleanup::default())
    }

    fn not_found() -> Verdict {
        Verdict::NotFound { reason: "manifest unknown".into() }
    }

    fn noted(findings: &Findings) -> Vec<String> {
        findings.take().iter().map(ToString::to_string).collect()
    }

    #[tokio::test]
    async fn only_what_a_ledger_has_otherwise_is_noted() {
        let findings = findings();
        let (copy, source) = (reference("m.io/hub/library/nginx:1"), reference("nginx:1"));
        findings.note(&copy, &Verdict::Available { digest: Some(digest(1)) });
        findings.note(&copy, &Verdict::Available { digest: None });
        findings.note(&copy, &Verdict::Unreachable { reason: "timeout".into() });
        findings.note(&source, &Verdict::Available { digest: Some(digest(1)) });
        findings.note(&source, &not_found());
        findings.note(&reference("m.io/hub/library/other:1"), &not_found());
        assert!(noted(&findings).is_empty());
        findings.note(&copy, &not_found());
        findings.note(&copy, &Verdict::Available { digest: Some(digest(2)) });
        findings.note(&source, &Verdict::Available { digest: Some(digest(2)) });
        assert_eq!(noted(&findings), ["m.io/hub/library/nginx:1", "docker.io/library/nginx:1"], "each once");
    }

    #[tokio::test(start_paused = true)]
    async fn the_same_is_told_less_and_less_often() {
        let findings = findings();
        let copy = reference("m.io/hub/library/nginx:1");
        let mut told = Vec::new();
        for second in 0..3600 {
            findings.note(&copy, &not_found());
            if !findings.take().is_empty() {
                told.push(second);
            }
            tokio::time::advance(Duration::from_secs(1)).await;
        }
        assert_eq!(told, [0, 30, 90, 210, 450, 930, 1890]);
        tokio::time::advance(Duration::from_hours(3)).await;
        for _ in 0..2 {
            findings.note(&copy, &not_found());
            assert_eq!(findings.take().len(), 1, "a new story, told as soon as the first was");
            tokio::time::advance(Duration::from_secs(30)).await;
        }
    }

    #[tokio::test]
    async fn what_could_not_be_told_is_noted_again() {
        let findings = findings();
        let copy = reference("m.io/hub/library/nginx:1");
        for _ in 0..2 {
            findings.note(&copy, &not_found());
            assert_eq!(findings.take().len(), 1);
            findings.forget(&copy);
        }
    }

    #[tokio::test]
    async fn nothing_is_noted_where_it_is_turned_off() {
        let off = StaleMirrorCleanup { max_concurrent: 0, ..StaleMirrorCleanup::default() };
        let findings = Findings::new(claims([ledger("one", MIRRORED)]), &off);
        findings.note(&reference("m.io/hub/library/nginx:1"), &not_found());
        assert!(findings.take().is_empty());
    }
}
