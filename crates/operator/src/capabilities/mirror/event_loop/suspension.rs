//! When mirroring pauses as a whole, and when it removes nothing.

use fairlead_plan::ledger::OwnerKind;
use fairlead_plan::mirroring::{self, KnownKind};

use super::MirrorController;
use crate::capabilities::mirror::MirrorSetup;
use crate::context::Context;

/// Kinds that have to be known before anything is done, with the owners of ledgers that they are.
const KINDS: [(&str, Option<OwnerKind>); 4] = [
    ("ClusterImageSetMirror", Some(OwnerKind::ClusterImageSetMirror)),
    ("ImageSetMirror", Some(OwnerKind::ImageSetMirror)),
    ("ClusterReplicatedImageSet", None),
    ("ReplicatedImageSet", None),
];

/// Without ledgers nothing can be remembered, and without Pods nothing is in use.
const NEEDED: [&str; 2] = ["Pod", "ImageLedger"];

impl MirrorSetup {
    /// What has to be waited for before anything is planned. An object that is not compiled yet would look like an
    /// invalid one.
    pub(super) fn waits_for(&self) -> Option<String> {
        let Context { board, claims, policies, .. } = &*self.context;
        let needed = NEEDED.map(|kind| KnownKind { needed: true, ..board.known(kind, 0) });
        let others =
            KINDS.map(|(kind, owner)| board.known(kind, owner.map_or(0, |owner| claims.count_of(owner))));
        let unread = || (!claims.listed()).then(|| "ledgers are not listed yet".to_owned());
        let uncompiled = || (!policies.is_up_to_date()).then(|| "policies are being compiled".to_owned());
        mirroring::waits_for(needed.into_iter().chain(others)).or_else(unread).or_else(uncompiled)
    }
}

impl MirrorController {
    /// Takes note of whether the clock is right.
    pub(super) fn read_clock(&mut self) {
        let complaint = self.setup.context.clock.read().complaint();
        if complaint.is_some() == self.wrong_clock.is_some() {
            return;
        }
        if let Some(why) = &complaint {
            tracing::warn!("{why}");
            self.setup.context.errors.note(why);
        } else {
            tracing::info!("the clock agrees with the API server's again; clean-up goes on");
        }
        self.wrong_clock = complaint;
        self.resync = true;
        self.look_wanted = true;
    }
}
