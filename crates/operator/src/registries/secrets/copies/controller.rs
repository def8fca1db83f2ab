//! Renews and removes copies while this replica leads.

use std::{fmt, sync::Arc, time::Duration};

use kube::Client;
use tokio::time::MissedTickBehavior;

use super::{Copies, work::Work};
use crate::cluster::watch::{Board, Resources};
use crate::platform::leader::Term;

/// How often policies and Pods are compared with what is known of the copies.
const LOOK: Duration = Duration::from_secs(2);

/// Kinds whose objects may own copies.
const OWNERS: [&str; 2] = ["ClusterImageSetMirror", "ClusterReplicatedImageSet"];
/// Kinds that say where copies may be. They are watched only while there is copying.
const SELECTING: [&str; 2] = ["Namespace", "MutatingWebhookConfiguration"];

/// The leader's part of copying. To be run with [`crate::platform::leader::Leader::while_leading`].
#[derive(Clone)]
pub struct Controller {
    client: Client,
    copies: Copies,
    resources: Resources,
    board: Arc<Board>,
}

impl fmt::Debug for Controller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Controller").field("copies", &self.copies).finish_non_exhaustive()
    }
}

impl Controller {
    pub fn new(client: Client, copies: Copies, resources: Resources, board: Arc<Board>) -> Self {
        Self { client, copies, resources, board }
    }

    /// Works until the term ends. What was learnt is forgotten with it: others may act after that.
    pub async fn run(self, term: Term) {
        let mut ticks = tokio::time::interval(LOOK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut work = Work::new(self.client.clone(), self.copies.clone(), self.resources.clone());
        let ended = term.token().clone();
        loop {
            tokio::select! {
                biased;
                () = ended.cancelled() => return,
                _ = ticks.tick() => {}
            }
            let selecting: &[&str] = if self.copies.enabled() { &SELECTING } else { &[] };
            // A policy whose kind is not served just now is not gone, and its copies are not orphans.
            if !self.board.lists_pods_and(&[&OWNERS, selecting].concat()) {
                continue;
            }
            // On the heap: what a pass keeps between requests would be carried by everything around it.
            if ended.run_until_cancelled(Box::pin(work.pass(&term))).await.is_none() {
                return;
            }
        }
    }
}
