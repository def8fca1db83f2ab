//! The look at everything: what objects, Pods and ledgers call for, and what follows from it at once.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use fairlead_plan::access;
use fairlead_plan::availability::MirrorLooks;
use fairlead_plan::ledger::{Foreign, ShardId, foreign_write};
use tokio::time::Instant;

use super::MirrorController;
use crate::capabilities::mirror::object_state::MirrorState;
use crate::capabilities::mirror::objects::Objects;
use crate::capabilities::mirror::proofs::{self, Opened};
use crate::capabilities::mirror::reconcile::{ReconciledMirrors, Reconciliation};
use crate::capabilities::mirror::{PUBLISH, events};
use crate::cluster::ledgers::LedgerObject;
use crate::controller::Broken;

/// The shortest time between two looks at everything, and how many times longer than itself a look has to wait: so that
/// the largest cluster spends a tenth of a processor on it.
const SHORTEST_LOOK: Duration = Duration::from_millis(200);
const LOOK_SHARE: u32 = 10;

/// Contested places that get an event in one term.
const MOST_TOLD: usize = 1000;

impl MirrorController {
    /// Compares everything that is with what should be.
    pub(super) async fn look(&mut self) -> Result<(), Broken> {
        let begun = Instant::now();
        self.look_wanted = false;
        self.note_cancelled();
        self.index = self.setup.context.policies.current();
        self.notice_foreign_writes();
        let mut objects = Objects::gather(&self.setup.context.resources, &self.index);
        let stuck = std::mem::take(&mut objects.stuck);
        // Most clusters that mirror nothing have Pods all the same.
        let pods =
            if objects.readable.is_empty() { Vec::new() } else { self.setup.context.resources.pods.all() };
        let look = Reconciliation {
            objects,
            index: Arc::clone(&self.index),
            pods,
            exclusions: self.setup.exclusions.clone(),
            manner: Arc::clone(&self.setup.manner),
            foreign: self.lists.foreign(),
            now: self.setup.context.clock.now(),
            held_back: self.wrong_clock.clone(),
            proof_lifetime: self.setup.context.config.routing.proof_lifetime(),
        };
        let (mirrors, mut unclaimed) =
            (std::mem::take(&mut self.mirrors), std::mem::take(&mut self.unclaimed));
        let looking = tokio::task::spawn_blocking(move || {
            let looked = look.run(mirrors, &mut unclaimed);
            (looked, unclaimed)
        });
        match looking.await {
            Ok((ReconciledMirrors { mirrors, gone, states, shared }, unclaimed)) => {
                (self.mirrors, self.unclaimed) = (mirrors, unclaimed);
                self.lists.update(shared, self.setup.context.clock.now());
                for mirror in self.mirrors.values().filter(|mirror| mirror.lists_wanted) {
                    let targets = mirror.object.policy.iter().flat_map(|policy| policy.targets());
                    self.lists.want(targets.map(|target| target.place));
                }
                for mirror in self.mirrors.values_mut() {
                    mirror.writes.touch();
                    if mirror.lists_wanted {
                        let targets = mirror.object.policy.iter().flat_map(|policy| policy.targets());
                        let unread = self.lists.unread(targets.map(|target| target.place));
                        mirror.failing = unread.or(mirror.failing.take());
                    }
                }
                for uid in gone {
                    let running = self.queue.forget(&uid);
                    self.cancel(running);
                }
                self.setup.metrics.count(&states);
                self.want_proofs();
                self.tell_refusals();
            }
            // The ledgers in memory are gone with the plan; those that are stored count.
            Err(error) => return Err(format!("mirrors could not be planned, which is a bug: {error}").into()),
        }
        self.resync = true;
        self.mind_finalizers().await;
        self.release(&stuck).await;
        if self.looks_published.is_none_or(|at| at.elapsed() >= PUBLISH) {
            self.looks_published = Some(Instant::now());
            let looks = MirrorLooks::of_objects(self.mirrors.values().map(MirrorState::planned), &self.index);
            // The same list is not held twice.
            self.setup.looks.send_if_modified(|published| {
                let changed = **published != looks;
                if changed {
                    *published = Arc::new(looks);
                }
                changed
            });
        }
        self.next_look = Instant::now() + SHORTEST_LOOK.max(begun.elapsed() * LOOK_SHARE);
        Ok(())
    }

    /// Has originals opened on behalf of namespaces that have not proven their access.
    fn want_proofs(&mut self) {
        let index = &self.index;
        let wanted = self.mirrors.iter().flat_map(|(uid, mirror)| {
            mirror.to_prove.iter().map(move |attempt| proofs::Order {
                owner: Arc::clone(uid),
                attempt: attempt.clone(),
                holders: mirror.planned().holders(&attempt.source),
                cause: index.cause_of(&attempt.source),
            })
        });
        self.proofs.update(wanted);
    }

    /// Namespaces have opened an original.
    pub(super) fn proven(&mut self, opened: &Opened) {
        let now = self.setup.context.clock.now();
        let Some(mirror) = self.mirrors.get_mut(&opened.owner) else { return };
        let change = access::proven(&mirror.ledger, &opened.source, &opened.namespaces, now);
        mirror.ledger.apply(change);
        mirror.writes.touch();
    }

    fn tell_refusals(&mut self) {
        let mut told = HashSet::new();
        for mirror in self.mirrors.values() {
            for refusal in &mirror.refused {
                let news = (refusal.destination.key(), refusal.why.clone());
                if told.len() < MOST_TOLD && !self.told.contains(&news) {
                    self.setup.context.events.tell(events::refused(&mirror.object.owner, refusal));
                }
                if told.len() < MOST_TOLD {
                    told.insert(news);
                }
            }
        }
        self.told = told;
    }

    /// Another writer has changed or deleted a ledger: ours is written again.
    fn notice_foreign_writes(&mut self) {
        let mut found: HashMap<Arc<str>, HashMap<ShardId, u64>> = HashMap::new();
        for LedgerObject { key, version, owner } in self.setup.context.claims.objects() {
            let Some(mirror) = self.mirrors.get(&owner.uid).filter(|mirror| mirror.object.owner == *owner)
            else {
                continue;
            };
            if let (Some((shard, _)), Ok(version)) = (mirror.ledger.by_object(&key.name), version.parse()) {
                found.entry(Arc::clone(&owner.uid)).or_default().insert(shard, version);
            }
        }
        for (uid, mirror) in self.mirrors.iter_mut().filter(|(_, mirror)| mirror.writes.is_free()) {
            let found = found.remove(uid).unwrap_or_default();
            let shards: Vec<_> = mirror.ledger.shards().collect();
            for shard in shards {
                let written = mirror.ledger.version(shard).and_then(|version| version.parse().ok());
                let (seen, unseen) = (mirror.witnessed.contains(&shard), mirror.unseen.get(&shard));
                let unseen_for = unseen.map(Instant::elapsed);
                match foreign_write(written, found.get(&shard).copied(), seen, unseen_for) {
                    Foreign::Changed(version) => mirror.ledger.lost(shard, Some(version.to_string())),
                    Foreign::Nothing => {
                        mirror.unseen.remove(&shard);
                        mirror.witnessed.insert(shard);
                    }
                    Foreign::Deleted => {
                        mirror.witnessed.remove(&shard);
                        mirror.ledger.lost(shard, None);
                    }
                    Foreign::Unknown => self.look_wanted |= unseen.is_some() && !found.contains_key(&shard),
                }
            }
        }
    }
}
