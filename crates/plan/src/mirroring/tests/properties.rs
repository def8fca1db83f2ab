//! What holds whatever Pods, people and registries do, in whatever order.

use std::collections::{BTreeSet, HashMap};

use proptest::prelude::*;

use super::*;
use crate::ledger::Entry;
use crate::routing::MirrorTarget;

const IMAGES: [&str; 9] = [
    "docker.io/x/y:1",
    "quay.io/x/y:1",
    "z.io/x/y:1",
    "z.io/x/y",
    "z.io/x/y:latest",
    "a.io/x/y:latest",
    "a.io/x/y@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "b.io/x/y:2@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    "m.io/p/x/y:1",
];
/// Names that copies may have.
const COPIES: [&str; 5] = ["m.io/p/x/y:1", "m.io/x/y:1", "n.io/x/y:1", "n.io/x/y:latest", "m.io/x/y"];
const PLACES: [&str; 4] = ["m.io/p", "m.io", "n.io", "docker.io"];
const OBJECTS: [&str; 3] = ["a", "b", "team/c"];

#[derive(Debug, Clone)]
enum Step {
    /// An object's Pods use these images, given by number; even ones they asked for.
    Use(usize, BTreeSet<usize>),
    Edit(usize, Spec),
    /// What a source contains: one of three contents, or its own.
    Push(usize, u8),
    /// The tasks of an object are carried out; every so many of them fail.
    Work(usize, u8),
    /// The watch looks at everything.
    Look,
    /// Something vanishes from the registry.
    Lose(u8),
    /// Another client writes to a name in a mirror: one of three contents.
    Intrude(usize, u8),
    /// Pods name these as their images.
    Name(BTreeSet<usize>),
    Wait(i64),
}

#[derive(Debug, Clone)]
struct Spec {
    places: Vec<usize>,
    retention: Option<u32>,
    narrow: bool,
}

impl Spec {
    fn manifest(&self) -> Value {
        let places: Vec<&str> = self.places.iter().map(|place| PLACES[*place]).collect();
        let mut spec =
            self.retention.map_or_else(|| mirrors(&places), |retention| cleaned(&places, retention));
        if self.narrow {
            spec["filter"] = json!({ "include": [{ "image": "(z|a|quay).io/.*" }] });
        }
        spec
    }
}

fn spec() -> impl Strategy<Value = Spec> {
    let places = prop::sample::subsequence((0..PLACES.len()).collect::<Vec<_>>(), 0..=3);
    (places, prop::option::of(0..30u32), prop::bool::weighted(0.2))
        .prop_map(|(places, retention, narrow)| Spec { places, retention, narrow })
}

fn step() -> impl Strategy<Value = Step> {
    let object = || 0..OBJECTS.len();
    prop_oneof![
        4 => (object(), prop::collection::btree_set(0..IMAGES.len() * 2, 0..6)).prop_map(|(one, two)| Step::Use(one, two)),
        1 => (object(), spec()).prop_map(|(one, two)| Step::Edit(one, two)),
        1 => (0..IMAGES.len(), 0..5u8).prop_map(|(one, two)| Step::Push(one, two)),
        4 => (object(), 0..4u8).prop_map(|(one, two)| Step::Work(one, two)),
        1 => Just(Step::Look),
        1 => any::<u8>().prop_map(Step::Lose),
        1 => (0..COPIES.len(), 0..3u8).prop_map(|(one, two)| Step::Intrude(one, two)),
        1 => prop::collection::btree_set(0..COPIES.len(), 0..3).prop_map(Step::Name),
        2 => (0..40i64).prop_map(Step::Wait),
    ]
}

/// Registries: what sources contain, and what is in each slot of the mirrors.
struct Registries {
    sources: HashMap<String, Digest>,
    slots: HashMap<Slot, Digest>,
    /// Of which source we wrote what is there. What others wrote is not here.
    ours: HashMap<Slot, Reference>,
}

impl Registries {
    fn source(&self, source: &Reference) -> Digest {
        // A mirror may lie where sources do.
        if let Some(copied) = self.slots.get(&slot(source)) {
            return *copied;
        }
        let pulled = source.pulled();
        let pushed = source.digest().or_else(|| self.sources.get(pulled.as_str()).copied());
        pushed.unwrap_or_else(|| content(pulled.as_str()))
    }
}

struct Run {
    world: World,
    registries: Registries,
    now: i64,
}

impl Run {
    fn work(&mut self, object: usize, fails: u8) -> Result<(), TestCaseError> {
        for (number, task) in self.world.to_do(object).into_iter().enumerate() {
            let fails = fails > 0 && number % 4 < usize::from(fails);
            let finding = match (task.work, fails) {
                (Work::Copy, true) if number % 2 == 0 => unreadable("not found"),
                (Work::Copy, true) => failed("down"),
                (Work::Copy, false) => self.copy(object, &task)?,
                (Work::Delete, true) => Finding::DeletionFailed { error: "down".to_owned() },
                (Work::Delete, false) => self.delete(object, &task)?,
                (Work::Compare, true) => Finding::CompareFailed,
                (Work::Compare, false) => {
                    let digest = self.registries.source(&task.source);
                    Finding::Compared { digest, source_digest: digest }
                }
                (Work::Identify, _) => unreachable!("nothing was taken over"),
            };
            let ledger = &mut self.world.objects[object].ledger;
            enter_finding(ledger, &task.source, Some(&task.destination), finding, self.now);
        }
        Ok(())
    }

    /// Never puts another image under a name that a Pod has.
    fn copy(&mut self, object: usize, task: &Task) -> Result<Finding, TestCaseError> {
        let digest = self.registries.source(&task.source);
        let place = slot(&task.destination);
        if self.registries.slots.get(&place) == Some(&digest) {
            return Ok(Finding::Copied { digest, source_digest: digest, written: false });
        }
        let (index, namespace) = (self.world.index(), &self.world.objects[object].policy.id().namespace);
        if let Some(before) = self.registries.ours.insert(place.clone(), task.source.clone()) {
            let same = index.are_replicas(&before, &task.source, namespace.as_deref());
            prop_assert!(
                same || self.world.direct.by(&task.destination, []).is_none(),
                "{} replaces {} at {}, which a Pod names",
                task.source,
                before,
                task.destination
            );
        }
        self.registries.slots.insert(place, digest);
        Ok(written(digest))
    }

    /// Only what we wrote, only while it is there, and never what a Pod names.
    fn delete(&mut self, object: usize, task: &Task) -> Result<Finding, TestCaseError> {
        let row = self.world.objects[object].ledger.get(&task.source);
        let row = row.and_then(|entry| entry.copy_at(&task.destination)).expect("a task has a row");
        prop_assert!(self.world.direct.by(&task.destination, []).is_none(), "{} is named", task.destination);
        let place = slot(&task.destination);
        let Some(found) = self.registries.slots.get(&place).copied() else { return Ok(Finding::Deleted) };
        match confirm(&row.written.to_vec(), found) {
            Ok(()) => {
                prop_assert!(
                    self.registries.ours.remove(&place).is_some(),
                    "{} is not ours",
                    task.destination
                );
                self.registries.slots.remove(&place);
                Ok(Finding::Deleted)
            }
            Err(veto) => Ok(Finding::Kept { why: veto.to_string(), foreign: Some(found) }),
        }
    }

    fn look(&mut self) {
        for object in &mut self.world.objects {
            let mut seen = HashMap::new();
            for (source, entry) in object.ledger.iter() {
                seen.insert(source.key(), Sighting::Digest(self.registries.source(source)));
                for copy in &entry.copies {
                    let there = self.registries.slots.get(&slot(&copy.destination));
                    seen.insert(
                        copy.destination.key(),
                        there.map_or(Sighting::Gone, |digest| Sighting::Digest(*digest)),
                    );
                }
            }
            let observed = observe(&object.ledger, &seen, at(self.now));
            object.ledger.apply(observed.changes);
        }
    }

    fn step(&mut self, step: Step) -> Result<(), TestCaseError> {
        match step {
            Step::Use(object, images) => {
                let policy = Arc::clone(&self.world.objects[object].policy);
                let texts: Vec<String> = images
                    .into_iter()
                    .filter(|number| policy.takes(&image(IMAGES[number / 2])))
                    .map(|number| format!("{}{}", if number % 2 == 0 { "" } else { "~" }, IMAGES[number / 2]))
                    .collect();
                let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
                self.world.uses(object, &texts);
            }
            Step::Edit(object, spec) => {
                self.world.edit(object, &spec.manifest());
                let Object { policy, used, .. } = &mut self.world.objects[object];
                used.retain(|used| policy.takes(&used.image));
            }
            Step::Push(source, content_number) => {
                let pulled = image(IMAGES[source]).pulled().to_string();
                let digest = content(&format!("content {content_number}"));
                self.registries.sources.insert(pulled, digest);
            }
            Step::Work(object, fails) => return self.work(object, fails),
            Step::Intrude(copy, number) => {
                let place = slot(&image(COPIES[copy]));
                // Of what is the same already it cannot be known who wrote it.
                let digest = content(&format!("intruder {number}"));
                self.registries.ours.remove(&place);
                self.registries.slots.insert(place, digest);
            }
            Step::Name(copies) => {
                let names: Vec<&str> = copies.into_iter().map(|copy| COPIES[copy]).collect();
                self.world.names(&names);
            }
            Step::Look => self.look(),
            Step::Lose(number) => {
                let mut slots: Vec<Slot> = self.registries.slots.keys().cloned().collect();
                slots.sort();
                if let Some(slot) = slots.get(usize::from(number) % slots.len().max(1)) {
                    self.registries.slots.remove(slot);
                    self.registries.ours.remove(slot);
                }
            }
            Step::Wait(seconds) => self.now += seconds,
        }
        Ok(())
    }

    fn ledgers(&self) -> Vec<String> {
        (0..self.world.objects.len()).map(|object| self.world.shows(object)).collect()
    }

    fn round(&mut self) -> Result<(), TestCaseError> {
        let first = self.world.round(self.now);
        let before = self.ledgers();
        let second = self.world.round(self.now);
        prop_assert_eq!(self.ledgers(), before, "a second round changes nothing");
        prop_assert_eq!(first.len(), second.len());
        for (one, two) in first.iter().zip(&second) {
            prop_assert_eq!(one.next, two.next);
            // Of replicas that come up in the same second the first may turn out to be another one.
            let places = |outcome: &Reconciled| -> Vec<(Reference, Reference)> {
                outcome.refused.iter().map(|one| (one.source.clone(), one.destination.clone())).collect()
            };
            prop_assert_eq!(places(one), places(two));
        }
        self.check()
    }

    fn check(&self) -> Result<(), TestCaseError> {
        let index = self.world.index();
        let loops = Loops::of(&index);
        let mut writers: HashMap<Slot, Reference> = HashMap::new();
        let mut needed: BTreeSet<Slot> = BTreeSet::new();
        let mut hopeful: Vec<(Slot, &Reference)> = Vec::new();
        for object in &self.world.objects {
            let used = |source: &Reference| object.used.iter().find(|used| used.image == *source);
            for wanted in object.used.iter().filter(|used| used.original) {
                if loops.excludes(object.policy.id(), &wanted.image) {
                    continue;
                }
                let entry = object.ledger.get(&wanted.image);
                for target in object.policy.targets() {
                    let destination = target.place.copy_of(&wanted.image).unwrap();
                    let rows = entry.map_or(0, |entry| {
                        entry.copies.iter().filter(|copy| copy.destination == destination).count()
                    });
                    prop_assert_eq!(rows, 1, "{} has one row at {}", wanted.image, destination);
                }
            }
            for (source, entry) in object.ledger.iter() {
                prop_assert_eq!(entry.unused_since.is_none(), used(source).is_some());
                let own = |copy: &Copy| {
                    let mut places = object.policy.targets().into_iter();
                    places.any(|target| target.place.copy_of(source).is_ok_and(|own| own == copy.destination))
                };
                for copy in &entry.copies {
                    if used(source).is_some() && own(copy) {
                        prop_assert!(copy.state != CopyState::Deleting, "{} is in use", copy.destination);
                        if entry.uncopyable && copy.state != CopyState::Mirrored {
                            hopeful.push((slot(&copy.destination), source));
                        } else {
                            needed.insert(slot(&copy.destination));
                        }
                    }
                    let fills =
                        matches!(copy.state, CopyState::Pending | CopyState::Failed | CopyState::Mirrored);
                    let pinned = copy.destination.digest().is_some();
                    if own(copy) && fills && !is_shared(copy) && !pinned && used(source).is_some() {
                        let owner = writers.entry(slot(&copy.destination)).or_insert_with(|| source.clone());
                        let namespace = object.policy.id().namespace.as_deref();
                        prop_assert!(
                            index.are_replicas(owner, source, namespace),
                            "{owner} and {source} both write to {}",
                            copy.destination
                        );
                    }
                }
            }
        }
        for (number, object) in self.world.objects.iter().enumerate() {
            let mut destinations = BTreeSet::new();
            for task in self.world.to_do(number) {
                let own = |target: MirrorTarget<'_>| target.place.contains(&task.destination);
                prop_assert!(
                    object.policy.targets().into_iter().any(own),
                    "{} is no mirror",
                    task.destination
                );
                prop_assert!(destinations.insert(task.destination.clone()), "one task for each destination");
                let place = slot(&task.destination);
                // An image that cannot be copied needs a copy of itself, and no other.
                let hoped_for = hopeful.iter().any(|(at, source)| {
                    *at == place && (place.is_pinned() || same_source(source, &task.source))
                });
                let deletes_needed = task.work == Work::Delete && (hoped_for || needed.contains(&place));
                prop_assert!(!deletes_needed, "{} is needed", task.destination);
            }
        }
        Ok(())
    }

    /// An object that goes takes along what no other object needs, and nothing else.
    fn leave(&mut self) -> Result<(), TestCaseError> {
        let claims = self.world.claims_when(&[0], self.now);
        let mut needed: BTreeSet<Slot> = BTreeSet::new();
        for other in &self.world.objects[1..] {
            let rows =
                other.ledger.iter().flat_map(|(_, entry)| entry.copies.iter().map(move |copy| (entry, copy)));
            // A copy on a mirror that an object no longer names is not kept for it, nor is one that it could not make
            // and no longer uses.
            let idle = |entry: &Entry, copy: &Copy| {
                let failed = copy.is_unmade() || entry.uncopyable && copy.state != CopyState::Mirrored;
                entry.unused_since.is_some() && failed
            };
            let claimed = rows.filter(|(entry, copy)| copy.kept.is_none() && !idle(entry, copy));
            let claimed = claimed.map(|(_, copy)| copy);
            needed.extend(claimed.map(|copy| slot(&copy.destination)));
        }
        let Object { policy, ledger, .. } = &self.world.objects[0];
        let cleaned = policy.cleanup().is_some();
        let direct = &self.world.direct;
        let rows: Vec<Copy> = ledger.iter().flat_map(|(_, entry)| entry.copies.clone()).collect();
        let goes = |copy: &Copy| !copy.written.is_empty() && copy.kept.is_none();
        let named = |copy: &Copy| direct.by(&copy.destination, copy.written.iter()).is_some();
        let something = cleaned
            && rows
                .iter()
                .any(|copy| goes(copy) && !named(copy) && !needed.contains(&slot(&copy.destination)));
        let (deletion, now) = (at(self.now), at(self.now));
        let leaving = DeletedMirror {
            policy: Some(policy),
            claims: &claims,
            direct,
            other_clusters: &alone,
            deletion,
            tried_since: deletion,
            failing: None,
            now,
        };
        match finalization(ledger, &leaving).0 {
            Finalization::Done { left } => {
                prop_assert!(!something);
                prop_assert!(left.is_none() || rows.iter().any(named), "{left:?}");
            }
            Finalization::Clean { tasks, .. } => {
                prop_assert!(cleaned);
                let mentioned = |task: &Task| direct.by(&task.destination, []).is_some();
                prop_assert!(!tasks.iter().any(mentioned), "a Pod names it");
                for task in tasks {
                    prop_assert!(
                        !needed.contains(&slot(&task.destination)),
                        "{} is needed",
                        task.destination
                    );
                }
            }
        }
        Ok(())
    }

    /// When nothing happens any more, everything comes to rest, and what is recorded is what is there.
    fn settle(&mut self) -> Result<(), TestCaseError> {
        for _ in 0..40 {
            self.now += 100;
            self.look();
            self.round()?;
            if (0..OBJECTS.len()).all(|object| self.world.to_do(object).is_empty()) {
                break;
            }
            for object in 0..OBJECTS.len() {
                self.work(object, 0)?;
            }
        }
        self.look();
        self.round()?;
        for (number, object) in self.world.objects.iter().enumerate() {
            prop_assert!(self.world.to_do(number).is_empty(), "{:?}", self.world.to_do(number));
            for (source, entry) in object.ledger.iter() {
                for copy in &entry.copies {
                    if copy.kept.is_some() {
                        continue;
                    }
                    let there = self.registries.slots.get(&slot(&copy.destination)).copied();
                    if entry.unused_since.is_none() {
                        prop_assert!(matches!(copy.state, CopyState::Mirrored | CopyState::Refused));
                    }
                    if copy.state == CopyState::Mirrored {
                        prop_assert_eq!(copy.digest, there, "{} is at {}", source, copy.destination);
                        if entry.unused_since.is_none() && !is_shared(copy) {
                            prop_assert_eq!(there, Some(self.registries.source(source)));
                        }
                    }
                }
            }
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn of_any_history(
        specs in prop::collection::vec(spec(), OBJECTS.len()),
        replicas: bool,
        steps in prop::collection::vec(step(), 0..30),
    ) {
        let objects: Vec<(&str, Value)> =
            OBJECTS.iter().zip(&specs).map(|(name, spec)| (*name, spec.manifest())).collect();
        let mut world = World::new(&objects);
        if replicas {
            world.others.push(replicated());
        }
        let registries = Registries { sources: HashMap::new(), slots: HashMap::new(), ours: HashMap::new() };
        let mut run = Run { world, registries, now: 1 };
        for step in steps {
            run.step(step)?;
            run.round()?;
        }
        run.settle()?;
        run.leave()?;
    }
}
