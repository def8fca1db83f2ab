//! When mirroring pauses as a whole, and when it removes nothing.

use fairlead_plan::ledger::OwnerKind;
use fairlead_plan::mirroring::{self, KnownKind};

use super::Work;
use crate::capabilities::mirror::Parts;

/// Kinds that have to be known before anything is done, with the owners of ledgers that they are.
const KINDS: [(&str, Option<OwnerKind>); 4] = [
    ("ClusterImageSetMirror", Some(OwnerKind::ClusterImageSetMirror)),
    ("ImageSetMirror", Some(OwnerKind::ImageSetMirror)),
    ("ClusterReplicatedImageSet", None),
    ("ReplicatedImageSet", None),
];

/// Without ledgers nothing can be remembered, and without Pods nothing is in use.
const NEEDED: [&str; 2] = ["Pod", "ImageLedger"];

impl Parts {
    /// What has to be waited for before anything is planned.
    pub(in crate::capabilities::mirror) fn waits_for(&self) -> Option<String> {
        let needed = NEEDED.map(|kind| KnownKind { needed: true, ..self.board.known(kind, 0) });
        let others = KINDS.map(|(kind, owner)| {
            self.board.known(kind, owner.map_or(0, |owner| self.claims.count_of(owner)))
        });
        mirroring::waits_for(needed.into_iter().chain(others))
    }
}

impl Work<'_> {
    /// Whether work has to pause: what is under way goes on, nothing is planned, begun or written.
    pub(super) fn is_paused(&mut self) -> bool {
        let waits_for = self.parts.waits_for();
        if waits_for != self.waits_for {
            if let Some(why) = &waits_for {
                tracing::warn!(why, "mirroring pauses; nothing is copied, removed or forgotten");
            } else {
                tracing::info!("mirroring goes on");
                self.look_wanted = true;
            }
            self.waits_for = waits_for;
        }
        self.waits_for.is_some()
    }

    /// Takes note of whether the clock is right.
    pub(super) fn read_clock(&mut self) {
        let complaint = self.parts.clock.read().complaint();
        if complaint.is_some() == self.wrong_clock.is_some() {
            return;
        }
        if let Some(why) = &complaint {
            tracing::warn!("{why}");
            self.parts.errors.note(why);
        } else {
            tracing::info!("the clock agrees with the API server's again; clean-up goes on");
        }
        self.wrong_clock = complaint;
        self.resync = true;
        self.look_wanted = true;
    }
}
