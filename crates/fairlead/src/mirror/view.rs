//! What the cluster holds about mirrors, as far as it has been told: objects and their ledgers, kept up to date by events.

use std::collections::{BTreeMap, HashMap};

use fairlead_api::fairlead::ImageLedgerSpec;
use kube::api::DynamicObject;
use kube::runtime::watcher::Event;

use super::object::{Kind, Object};
use super::rows::Row;

/// What is followed. Ledgers lie beside namespaced objects, and those of cluster-wide ones in the operator's namespace;
/// nowhere else are they believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Part {
    Objects(Kind),
    Ledgers(Kind),
}

/// Namespace and name.
type Key = (String, String);

/// Things by key; a new list replaces the old one when it is whole.
#[derive(Debug)]
struct Known<T> {
    items: BTreeMap<Key, T>,
    coming: BTreeMap<Key, T>,
}

impl<T> Default for Known<T> {
    fn default() -> Self {
        Self { items: BTreeMap::new(), coming: BTreeMap::new() }
    }
}

impl<T> Known<T> {
    fn apply(&mut self, event: Event<DynamicObject>, read: impl Fn(&DynamicObject) -> T) {
        match event {
            Event::Init => self.coming.clear(),
            Event::InitApply(object) => {
                self.coming.insert(key(&object), read(&object));
            }
            Event::InitDone => self.items = std::mem::take(&mut self.coming),
            Event::Apply(object) => {
                self.items.insert(key(&object), read(&object));
            }
            Event::Delete(object) => {
                self.items.remove(&key(&object));
            }
        }
    }
}

fn key(object: &DynamicObject) -> Key {
    let metadata = &object.metadata;
    (metadata.namespace.clone().unwrap_or_default(), metadata.name.clone().unwrap_or_default())
}

/// One ledger, or why it cannot be read.
type Ledger = Result<ImageLedgerSpec, String>;

#[derive(Debug, Default)]
pub(crate) struct View {
    objects: HashMap<&'static str, Known<Object>>,
    ledgers: HashMap<&'static str, Known<Ledger>>,
}

impl View {
    pub(crate) fn apply(&mut self, part: Part, event: Event<DynamicObject>) {
        match part {
            Part::Objects(kind) => {
                let known = self.objects.entry(kind.name()).or_default();
                known.apply(event, |object| Object::read(kind, object));
            }
            Part::Ledgers(kind) => {
                self.ledgers.entry(kind.name()).or_default().apply(event, read_ledger);
            }
        }
    }

    /// Those of the cluster first, then by namespace and name.
    pub(crate) fn objects(&self) -> impl Iterator<Item = &Object> {
        [Kind::ClusterImageSetMirror, Kind::ImageSetMirror]
            .into_iter()
            .filter_map(|kind| self.objects.get(kind.name()))
            .flat_map(|known| known.items.values())
    }

    /// What the ledgers of an object say; none where it has no ledger.
    pub(crate) fn rows(&self, object: &Object) -> Option<Vec<Row<'_>>> {
        let known = self.ledgers.get(object.kind.name())?;
        let ours = known.items.iter().filter_map(|((namespace, _), ledger)| {
            let ledger = ledger.as_ref().ok()?;
            let beside = object.namespace.as_ref().is_none_or(|own| own == namespace);
            (beside && ledger.owner.uid == object.uid && ledger.owner.kind == object.kind.name())
                .then_some(ledger)
        });
        let ours: Vec<&ImageLedgerSpec> = ours.collect();
        (!ours.is_empty())
            .then(|| ours.into_iter().flat_map(|ledger| &ledger.entries).map(Row::from).collect())
    }

    /// Ledgers that cannot be read, in words.
    pub(crate) fn broken_ledgers(&self) -> Vec<String> {
        let all = self.ledgers.values().flat_map(|known| &known.items);
        let mut broken: Vec<String> = all
            .filter_map(|((namespace, name), ledger)| {
                let why = ledger.as_ref().err()?;
                Some(format!("ImageLedger {namespace}/{name} is left out, because it cannot be read: {why}"))
            })
            .collect();
        broken.sort();
        broken
    }
}

fn read_ledger(object: &DynamicObject) -> Ledger {
    let spec = object.data.get("spec").ok_or("it has no spec")?;
    serde_path_to_error::deserialize(spec).map_err(|error| error.to_string())
}
