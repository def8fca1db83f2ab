//! A probe under way on behalf of everybody who waits for it, and of those who will ask later.

use fairlead_domain::verdict::Verdict;
use fairlead_registry::Class;
use tokio::sync::watch;

use super::{Verdicts, cache::Image, metrics::Source};

impl Verdicts {
    pub(super) fn take_off(&self, image: Image, telling: watch::Sender<Option<Verdict>>) {
        let landing = Landing { verdicts: self.clone(), image: image.clone() };
        tokio::spawn(self.clone().fly(image, telling, landing));
    }

    async fn fly(self, image: Image, telling: watch::Sender<Option<Verdict>>, landing: Landing) {
        let mut landing = Some(landing);
        let health = self.health(&image);
        let mut probe = std::pin::pin!(self.probe(&image, Class::Admission, Source::Admission));
        let down = async {
            match &health {
                Some(health) => health.goes_down().await,
                None => std::future::pending().await,
            }
        };
        let verdict = tokio::select! {
            biased;
            verdict = &mut probe => verdict,
            down = down => {
                // Somebody else's call showed that the registry is down: nobody waits any longer. What becomes of this
                // call is still of use when the registry only seems to be back.
                landing.take();
                telling.send_replace(Some(down));
                probe.await
            }
        };
        self.land(image.clone(), verdict.clone(), health);
        drop(landing);
        telling.send_replace(Some(verdict));
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
