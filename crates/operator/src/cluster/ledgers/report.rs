//! Tells the lease holder what probes found, on whichever replica that was.
//!
//! On the lease holder itself it is handed to the controller. Another replica writes it onto a ledger that has the
//! image, as an annotation, where the lease holder's own watch finds it; the next write of the ledger takes it away.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use fairlead_api::fairlead::ImageLedger;
use fairlead_domain::reference::Reference;
use futures::{StreamExt, stream};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, timeout};
use tokio_util::sync::CancellationToken;

use super::index::Head;
use super::lean::annotation;
use super::{Findings, Missed};
use crate::cluster::state::Key;
use crate::platform::api_error::{Failure, within};
use crate::platform::leader::Leader;

const FIELD_MANAGER: &str = "fairlead-findings";

/// How soon a replica that has become the lease holder looks for what was written for its predecessor.
const LOOK: Duration = Duration::from_secs(1);

/// What was handed over in one term.
#[derive(Debug, Default)]
struct Handed {
    term: Option<i32>,
    /// The versions of ledgers whose annotation was handed over.
    ledgers: HashMap<Key, Arc<str>>,
}

impl Findings {
    /// Tells what is noted until `shutdown`. What the controller has no room for in time is dropped; it will be noted
    /// again.
    pub async fn run(
        self,
        client: Client,
        leader: Leader,
        to_controller: mpsc::Sender<Missed>,
        shutdown: CancellationToken,
    ) {
        let mut changes = self.shared.claims.changes();
        let mut ticks = tokio::time::interval(LOOK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut handed = Handed::default();
        loop {
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return,
                () = self.shared.noted.notified() => {}
                () = changes.next() => {}
                _ = ticks.tick() => {}
            }
            let term = leader.term().map(|term| term.number());
            let asking =
                if term.is_some() { handed.fresh(term, self.shared.claims.asking()) } else { Vec::new() };
            let noted = self.take();
            if noted.is_empty() && asking.is_empty() {
                continue;
            }
            let telling = async {
                if term.is_some() {
                    let noted = noted.into_iter().map(|reference| Missed { reference, owner: None });
                    self.hand_over(&to_controller, asking.into_iter().chain(noted)).await;
                } else {
                    self.write_down(&client, noted).await;
                }
            };
            if shutdown.run_until_cancelled(telling).await.is_none() {
                return;
            }
        }
    }

    async fn hand_over(
        &self,
        to_controller: &mpsc::Sender<Missed>,
        found: impl Iterator<Item = Missed> + Send,
    ) {
        for missed in found {
            let reference = missed.reference.clone();
            if !matches!(timeout(self.shared.timeout, to_controller.send(missed)).await, Ok(Ok(()))) {
                tracing::debug!(image = %reference, "the queue of findings is full; a later probe finds it again");
                self.forget(&reference);
            }
        }
    }

    async fn write_down(&self, client: &Client, images: Vec<Reference>) {
        let mut ledgers = BTreeMap::<Key, Vec<Reference>>::new();
        for image in images {
            // It may have changed since it was noted.
            for (key, asked) in self.shared.claims.holders(&image) {
                let all = ledgers.entry(key).or_insert_with(|| asked.to_vec());
                all.retain(|known| *known != image);
                all.insert(0, image.clone());
            }
        }
        let writing =
            stream::iter(ledgers).for_each_concurrent(self.shared.at_once, |(key, images)| async move {
                if let Err(failure) = self.annotate(client, &key, &images).await {
                    tracing::warn!(
                        ledger = %key, error = %failure,
                        "cannot ask the lease holder to look at copies again; the next probe tries again"
                    );
                    for image in &images {
                        self.forget(image);
                    }
                }
            });
        writing.await;
    }

    async fn annotate(&self, client: &Client, key: &Key, images: &[Reference]) -> Result<(), Failure> {
        let api: Api<ImageLedger> = Api::namespaced(client.clone(), &key.namespace);
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let patch = Patch::Merge(annotation(images));
        within(self.shared.timeout, api.patch_metadata(&key.name, &params, &patch)).await.map(drop)
    }
}

impl Handed {
    /// What ledgers ask for that was not handed over in this term.
    fn fresh(&mut self, term: Option<i32>, asking: Vec<(Key, Head)>) -> Vec<Missed> {
        if self.term != term {
            *self = Self { term, ledgers: HashMap::new() };
        }
        let mut fresh = Vec::new();
        let mut ledgers = HashMap::with_capacity(asking.len());
        for (key, Head { version, owner, look_again }) in asking {
            if self.ledgers.get(&key) != Some(&version) {
                let asked = look_again.iter().cloned();
                let owner = Some(Arc::clone(&owner.uid));
                fresh.extend(asked.map(|reference| Missed { reference, owner: owner.clone() }));
            }
            ledgers.insert(key, version);
        }
        self.ledgers = ledgers;
        fresh
    }
}
