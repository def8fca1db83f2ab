//! Everything that is needed to carry a task out, gathered from the ledgers of all objects.

use fairlead_api::fairlead::CopyState;
use fairlead_plan::copy_queue::Key;
use fairlead_plan::mirroring::{self, Task, Work as Kind};

use super::Mirrors;
use crate::capabilities::mirror::credentials::Reader;
use crate::capabilities::mirror::executor::{Order, Other, Publishing};
use crate::capabilities::mirror::object_state::Desk;

impl Mirrors {
    /// Everything that is needed to carry a task out.
    pub(super) fn order(&self, key: &Key, task: &Task) -> Option<Order> {
        let desk = self.desks.get(&key.owner)?;
        let row = desk.copy(&task.source, &task.destination)?;
        let namespace = desk.object.owner.namespace.as_deref();
        let mut order = Order {
            source: task.source.clone(),
            destination: task.destination.clone(),
            work: task.work,
            source_cause: self.index.cause_of(&task.source),
            destination_cause: desk.principal().cause(),
            reader: Reader {
                principal: desk.principal(),
                holders: desk.holders(&task.source),
                round: self.queue.failures(key),
            },
            secret: desk.secret_for(&task.destination).cloned(),
            source_answers: self.parts.context.registries.is_down(&task.source.host()).is_none(),
            others: Vec::new(),
            upstreams: self.index.upstream_secrets(&task.source, namespace),
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
        let principal = desk.principal();
        let readable = |other: &&Desk| principal.may_read_copies_of(&other.principal());
        for other in self.desks.values().filter(readable) {
            let copies = other.ledger.get(&task.source).map(|entry| &*entry.copies).unwrap_or_default();
            let copies = copies.iter().filter(|copy| !copy.destination.is_same_image(&task.destination));
            for copy in copies.filter(|copy| other.keeps(&copy.destination)) {
                if let (CopyState::Mirrored, Some(held)) = (copy.state, copy.digest) {
                    others.push(Other {
                        reference: copy.destination.without_tag().with_digest(&held),
                        mirror: other.secret_for(&copy.destination).cloned(),
                        upstreams: Vec::new(),
                        cause: other.principal().cause(),
                        is_copy: true,
                    });
                }
            }
        }
        let upstreams = self.index.upstreams_of(&task.source, desk.object.owner.namespace.as_deref());
        others.extend(upstreams.into_iter().map(|(reference, upstreams)| Other {
            cause: self.index.cause_of(&reference),
            reference: reference.without_tag().with_digest(&digest),
            mirror: None,
            upstreams,
            is_copy: false,
        }));
        others
    }
}
