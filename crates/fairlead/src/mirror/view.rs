//! What the cluster holds about mirrors, as far as it has been told: objects and their ledgers, kept up to date by
//! events.

use std::collections::{BTreeMap, HashMap};

use fairlead_api::fairlead::ImageLedgerSpec;
use fairlead_operator::cluster::ledgers::trusted;
use fairlead_plan::ledger::Owner;
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
struct Listed<T> {
    items: BTreeMap<Key, T>,
    coming: BTreeMap<Key, T>,
}

impl<T> Default for Listed<T> {
    fn default() -> Self {
        Self { items: BTreeMap::new(), coming: BTreeMap::new() }
    }
}

impl<T> Listed<T> {
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

/// One ledger with the object that it belongs to, or why it counts for nothing.
type Ledger = Result<(Owner, ImageLedgerSpec), String>;

#[derive(Debug)]
pub(crate) struct View {
    operator_namespace: String,
    objects: HashMap<&'static str, Listed<Object>>,
    ledgers: HashMap<&'static str, Listed<Ledger>>,
}

impl View {
    pub(crate) fn new(operator_namespace: &str) -> Self {
        Self {
            operator_namespace: operator_namespace.to_owned(),
            objects: HashMap::new(),
            ledgers: HashMap::new(),
        }
    }

    pub(crate) fn apply(&mut self, part: Part, event: Event<DynamicObject>) {
        match part {
            Part::Objects(kind) => {
                let known = self.objects.entry(kind.name()).or_default();
                known.apply(event, |object| Object::read(kind, object));
            }
            Part::Ledgers(kind) => {
                let known = self.ledgers.entry(kind.name()).or_default();
                known.apply(event, |object| read_ledger(object, &self.operator_namespace));
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
        let is_owner = |owner: &Owner| {
            (owner.kind.name(), owner.namespace.as_deref(), &*owner.name, &*owner.uid)
                == (object.kind.name(), object.namespace.as_deref(), &*object.name, &*object.uid)
        };
        let ledgers = known.items.values().filter_map(|ledger| ledger.as_ref().ok());
        let ours = ledgers.filter(|(owner, _)| is_owner(owner)).map(|(_, ledger)| ledger);
        let ours: Vec<&ImageLedgerSpec> = ours.collect();
        (!ours.is_empty())
            .then(|| ours.into_iter().flat_map(|ledger| &ledger.entries).map(Row::from).collect())
    }

    /// Ledgers that count for nothing, in words.
    pub(crate) fn broken_ledgers(&self) -> Vec<String> {
        let all = self.ledgers.values().flat_map(|known| &known.items);
        let mut broken: Vec<String> = all
            .filter_map(|((namespace, name), ledger)| {
                let why = ledger.as_ref().err()?;
                Some(format!("ImageLedger {namespace}/{name} is left out: {why}"))
            })
            .collect();
        broken.sort();
        broken
    }
}

fn read_ledger(object: &DynamicObject, operator_namespace: &str) -> Ledger {
    let spec = object.data.get("spec").ok_or("it cannot be read: it has no spec")?;
    let spec: ImageLedgerSpec =
        serde_path_to_error::deserialize(spec).map_err(|error| format!("it cannot be read: {error}"))?;
    let (owner, _) =
        trusted(&object.metadata, &spec.owner, operator_namespace).map_err(|why| why.to_string())?;
    Ok((owner, spec))
}
