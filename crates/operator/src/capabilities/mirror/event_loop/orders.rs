//! Everything that is needed to carry a task out, gathered from the ledgers of all objects.

use fairlead_plan::copy_queue::Key;
use fairlead_plan::mirroring::{self, CopySource, Task, Work};

use super::MirrorController;
use crate::capabilities::mirror::credentials::Reader;
use crate::capabilities::mirror::executor::{Order, Publishing};
use crate::capabilities::mirror::object_state::MirrorState;

impl MirrorController {
    pub(super) fn order(&self, key: &Key, task: &Task) -> Option<Order> {
        let mirror = self.mirrors.get(&key.owner)?;
        let row = mirror.ledger.get(&task.source)?.copy_at(&task.destination)?;
        let object = mirror.planned();
        let objects = || self.mirrors.values().map(MirrorState::planned);
        let sources = match task.work {
            Work::Copy => {
                let answers = self.setup.context.registries.is_down(&task.source.host()).is_none();
                mirroring::copy_sources(task, &object, objects(), &self.index, answers)
            }
            Work::Compare => {
                let namespace = object.namespace().map(AsRef::as_ref);
                vec![CopySource::original(&task.source, namespace, &self.index)]
            }
            Work::Identify | Work::Delete => Vec::new(),
        };
        let needed = match task.work {
            Work::Delete => {
                mirroring::needed_digests(objects().map(|object| object.ledger), &row.destination)
            }
            Work::Copy | Work::Compare | Work::Identify => Vec::new(),
        };
        let principal = object.principal();
        Some(Order {
            task: task.clone(),
            sources,
            destination_cause: principal.cause(),
            reader: Reader {
                principal,
                holders: object.holders(&task.source),
                round: self.queue.failures(key),
            },
            secret: object.policy.and_then(|policy| policy.push_secret(&task.destination)).cloned(),
            needed,
            written: row.written.to_vec(),
            publishing: Publishing::default(),
        })
    }
}
