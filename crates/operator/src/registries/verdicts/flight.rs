//! Single-flight: a probe under way for all callers that wait for it, and for those that come later.

use fairlead_domain::verdict::Verdict;
use fairlead_registry::{Class, Context};
use tokio::sync::watch;
use tokio::time::Instant;

use super::Verdicts;
use super::cache::{BegunRefresh, Image, Progress};
use super::metrics::ProbeCause;

/// What a refresh found.
pub(super) struct Refreshed {
    pub(super) verdict: Verdict,
    /// There was no answer in time, perhaps because of our own line.
    pub(super) late: bool,
}

impl Verdicts {
    /// Begins a probe, which counts against the share of the namespace that asked first.
    pub(super) fn start_probe(&self, image: Image, namespace: &str, telling: watch::Sender<Progress>) {
        let guard = ProbeGuard::new(self, &image, &telling);
        let context = self.context(Class::Admission).on_behalf_of(namespace);
        tokio::spawn(self.clone().run_probe(image, context, telling, guard));
    }

    /// What a probe for a refresh finds. Callers join it once it is sent; before, it gives way to one that is in a
    /// hurry. `None`: another probe finds out.
    pub(super) async fn probe_for_refresh(&self, image: &Image, begun: BegunRefresh) -> Option<Refreshed> {
        let BegunRefresh { telling, gives_way, sending } = begun;
        let (mut sent, mut at) = (sending.subscribe(), None);
        let context = self.context(Class::Background);
        let context = context.telling_when_sent(sending).withdrawn_by(gives_way.clone());
        let options = self.shared.settings.options(image.cause());
        let mut probe = std::pin::pin!(self.probe(image, options, &context, ProbeCause::Refresh));
        let verdict = loop {
            tokio::select! {
                biased;
                () = gives_way.cancelled() => return None,
                verdict = &mut probe => break verdict,
                Ok(()) = sent.changed() => {
                    let now = *sent.borrow_and_update();
                    at = now.or(at);
                    telling.send_replace(progress(now));
                }
            };
        };
        let sent = at.or(*sent.borrow());
        let late = sent.is_none_or(|sent| sent.elapsed() >= self.shared.settings.patience());
        telling.send_replace(Progress::Told(verdict.clone()));
        Some(Refreshed { verdict, late })
    }

    async fn run_probe(
        self,
        image: Image,
        context: Context,
        telling: watch::Sender<Progress>,
        guard: ProbeGuard,
    ) {
        let mut guard = Some(guard);
        let health = self.health(&image);
        let (sending, mut sent) = watch::channel(None);
        let context = context.telling_when_sent(sending);
        let options = self.shared.settings.options(image.cause());
        let mut probe = std::pin::pin!(self.probe(&image, options, &context, ProbeCause::Admission));
        let mut down = std::pin::pin!(async {
            match &health {
                Some(health) => health.goes_down().await,
                None => std::future::pending().await,
            }
        });
        let verdict = loop {
            tokio::select! {
                biased;
                verdict = &mut probe => break verdict,
                down = &mut down => {
                    // Another call showed that the registry is down: all callers are released. What becomes of this
                    // call is still of use when the registry only seems to be back.
                    guard.take();
                    telling.send_replace(Progress::Told(down));
                    break probe.await;
                }
                Ok(()) = sent.changed() => {
                    telling.send_replace(progress(*sent.borrow_and_update()));
                }
            }
        };
        self.record(image.clone(), verdict.clone(), health.clone());
        drop(guard);
        telling.send_replace(Progress::Told(verdict));
    }
}

fn progress(sent: Option<Instant>) -> Progress {
    sent.map_or(Progress::InLine, Progress::Sent)
}

/// Takes a probe off the list of those under way, also when it ends by a panic.
pub(super) struct ProbeGuard {
    verdicts: Verdicts,
    image: Image,
    told: watch::Receiver<Progress>,
}

impl ProbeGuard {
    pub(super) fn new(verdicts: &Verdicts, image: &Image, telling: &watch::Sender<Progress>) -> Self {
        Self { verdicts: verdicts.clone(), image: image.clone(), told: telling.subscribe() }
    }
}

impl Drop for ProbeGuard {
    fn drop(&mut self) {
        self.verdicts.shared.cache.probe_ended(&self.image, &self.told);
    }
}
