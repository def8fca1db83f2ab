//! A probe under way on behalf of everybody who waits for it, and of those who will ask later.

use fairlead_registry::{Class, Context};
use tokio::sync::watch;

use super::{
    Verdicts,
    cache::{Image, Progress},
    metrics::Source,
};

impl Verdicts {
    /// Begins a probe, which counts against the share of the namespace that asked first.
    pub(super) fn take_off(&self, image: Image, namespace: &str, telling: watch::Sender<Progress>) {
        let landing = Landing { verdicts: self.clone(), image: image.clone() };
        let context = self.context(Class::Admission).on_behalf_of(namespace);
        tokio::spawn(self.clone().fly(image, context, telling, landing));
    }

    async fn fly(self, image: Image, context: Context, telling: watch::Sender<Progress>, landing: Landing) {
        let mut landing = Some(landing);
        let health = self.health(&image);
        let (sending, mut sent) = watch::channel(None);
        let context = context.telling_when_sent(sending);
        let options = self.shared.settings.options(image.cause());
        let mut probe = std::pin::pin!(self.probe(&image, options, &context, Source::Admission));
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
                    // Somebody else's call showed that the registry is down: nobody waits any longer. What becomes of
                    // this call is still of use when the registry only seems to be back.
                    landing.take();
                    telling.send_replace(Progress::Told(down));
                    break probe.await;
                }
                Ok(()) = sent.changed() => {
                    let sent = *sent.borrow_and_update();
                    telling.send_replace(sent.map_or(Progress::InLine, Progress::Sent));
                }
            }
        };
        self.land(image.clone(), verdict.clone(), health.clone());
        drop(landing);
        telling.send_replace(Progress::Told(verdict));
    }
}

/// Takes a probe off the list of those under way, also when it ends by a panic.
struct Landing {
    verdicts: Verdicts,
    image: Image,
}

impl Drop for Landing {
    fn drop(&mut self) {
        self.verdicts.shared.cache.landed(&self.image);
    }
}
