//! Everything that is needed to carry a task out, gathered from the ledgers of all objects.

use std::sync::Arc;

use fairlead_api::fairlead::CopyState;
use fairlead_plan::mirroring::{self, Task, Work as Kind};

use super::Work;
use crate::mirror::carry::{Order, Other, Publishing};
use crate::mirror::desk::Desk;

impl Work<'_> {
    /// Everything that is needed to carry a task out.
    pub(super) fn order(&self, uid: &Arc<str>, task: &Task) -> Option<Order> {
        let desk = self.desks.get(uid)?;
        let row = desk.copy(&task.source, &task.destination)?;
        let mut order = Order {
            source: task.source.clone(),
            destination: task.destination.clone(),
            work: task.work,
            holders: desk.holders(&task.source),
            secrets: desk.secrets_for(&task.destination),
            source_answers: self.parts.client.is_down(&task.source.host()).is_none(),
            others: Vec::new(),
            named: self.index.upstream_secrets(&task.source, desk.object.owner.namespace.as_deref()),
            needed: Vec::new(),
            written: row.written.clone(),
            publishing: Publishing::default(),
        };
        match task.work {
            Kind::Copy => order.others = self.others(desk, task),
            Kind::Compare | Kind::Identify => {}
            Kind::Delete => {
                let ledgers = self.desks.values().map(|desk| &desk.ledger);
                order.needed = mirroring::needed_digests(ledgers, &row.destination);
            }
        }
        Some(order)
    }

    /// Where else an image is that is known by its digest: other copies of it, and the places of replicated sets.
    fn others(&self, desk: &Desk, task: &Task) -> Vec<Other> {
        let entry = desk.ledger.get(&task.source);
        let digest = (task.source.digest())
            .or_else(|| entry.and_then(|entry| entry.source_digest))
            .or_else(|| desk.running(&task.source));
        let Some(digest) = digest else { return Vec::new() };
        let mut others = Vec::new();
        // A namespaced object sees its own copies and those of cluster-scoped ones.
        let visible = |other: &&Desk| {
            let namespace = &other.object.owner.namespace;
            desk.object.owner.namespace.is_none()
                || namespace.is_none()
                || *namespace == desk.object.owner.namespace
        };
        for other in self.desks.values().filter(visible) {
            let copies = other.ledger.get(&task.source).map(|entry| &*entry.copies).unwrap_or_default();
            for copy in copies.iter().filter(|copy| copy.destination != task.destination) {
                if let (CopyState::Mirrored, Some(held)) = (copy.state, copy.digest) {
                    others.push(Other {
                        reference: copy.destination.without_tag().with_digest(&held),
                        secret: other.secrets_for(&copy.destination).into_iter().next(),
                        is_copy: true,
                    });
                }
            }
        }
        let upstreams = self.index.upstreams_of(&task.source, desk.object.owner.namespace.as_deref());
        others.extend(upstreams.into_iter().map(|(reference, secret)| Other {
            reference: reference.without_tag().with_digest(&digest),
            secret,
            is_copy: false,
        }));
        others
    }
}
