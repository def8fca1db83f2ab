//! What mirroring promises: every rule by example, and what holds whatever happens.

mod adopting;
mod cleaning;
mod conflicts;
mod copying;
mod deleting;
mod findings;
mod jobs;
mod properties;
mod reporting;
mod routing;
mod scale;
mod sources;
mod spellings;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Arc;

use fairlead_api::fairlead::CopyState;
use fairlead_domain::digest::Digest;
use fairlead_domain::reference::{ImageKey, Reference};
use jiff::Timestamp;
use serde_json::{Value, json};

use super::*;
use crate::ledger::{Digests, Ledger, Owner, OwnerKind};
use crate::routing::{Index, Policy, PolicyId};
use crate::usage::{DirectUses, Used};
use crate::usage_list::Withheld;

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

fn image(text: &str) -> Reference {
    Reference::parse(text).unwrap()
}

/// What a source of that name contains unless a test says otherwise.
fn content(text: &str) -> Digest {
    Digest::sha256(text.as_bytes())
}

/// A copy of this content was made.
fn written(digest: Digest) -> Finding {
    Finding::Copied { digest, source_digest: digest, written: true }
}

fn failed(error: &str) -> Finding {
    Finding::CopyFailed { error: error.to_owned(), fault: Fault::Destination }
}

fn unreadable(error: &str) -> Finding {
    Finding::CopyFailed { error: error.to_owned(), fault: Fault::Source }
}

/// A mirror object: `name`, or `namespace/name` for one of a namespace.
fn policy(name: &str, spec: &Value) -> Arc<Policy> {
    let (namespace, short) = name.split_once('/').map_or((None, name), |(one, two)| (Some(one), two));
    let mut object = json!({
        "apiVersion": "kuik.enix.io/v1alpha1",
        "kind": if namespace.is_some() { "ImageSetMirror" } else { "ClusterImageSetMirror" },
        "metadata": { "name": short, "namespace": namespace, "uid": format!("uid-{short}") },
    });
    object["spec"] = spec.clone();
    let compiled = match namespace {
        Some(_) => Policy::mirror(&serde_json::from_value(object).unwrap()),
        None => Policy::cluster_mirror(&serde_json::from_value(object).unwrap()),
    };
    Arc::new(compiled.unwrap())
}

/// All images, to places written as `registry/path`.
fn mirrors(places: &[&str]) -> Value {
    let place = |place: &&str| {
        let (registry, path) = place.split_once('/').unwrap_or((place, ""));
        json!({ "registry": registry, "path": path })
    };
    json!({ "filter": { "include": [{ "image": ".*" }] }, "mirrors": places.iter().map(place).collect::<Vec<_>>() })
}

/// The same with clean-up after so many seconds.
fn cleaned(places: &[&str], retention: u32) -> Value {
    let mut spec = mirrors(places);
    spec["cleanup"] = json!({ "enabled": true, "retention": format!("{retention}s") });
    spec
}

/// Sources declared to be the same image: `docker.io/…` and `quay.io/…`.
fn replicated() -> Arc<Policy> {
    let upstream =
        |registry: &str| json!({ "registry": registry, "path": "", "imageFilter": { "include": [".*"] } });
    let object = json!({
        "apiVersion": "kuik.enix.io/v1alpha1", "kind": "ClusterReplicatedImageSet",
        "metadata": { "name": "r", "uid": "uid-r" },
        "spec": { "upstreams": [upstream("docker.io"), upstream("quay.io")] },
    });
    Arc::new(Policy::cluster_replicated(&serde_json::from_value(object).unwrap()).unwrap())
}

/// No other cluster uses the mirrors.
#[allow(clippy::unnecessary_wraps, reason = "planning asks for an answer that may be a refusal")]
fn alone(_: &Reference) -> Result<(), Withheld> {
    Ok(())
}

/// Records a finding and applies what follows.
fn enter_finding(
    ledger: &mut Ledger,
    source: &Reference,
    destination: Option<&Reference>,
    finding: Finding,
    second: i64,
) {
    let change = record(ledger, source, destination, finding, at(second));
    ledger.apply(change);
}

/// One mirror object with its ledger and the images that Pods use under it.
struct Object {
    policy: Arc<Policy>,
    ledger: Ledger,
    used: Vec<Used>,
}

/// All mirror objects of a cluster.
struct World {
    objects: Vec<Object>,
    others: Vec<Arc<Policy>>,
    /// What Pods name as their images.
    direct: DirectUses,
    /// Copies that another cluster uses.
    used_elsewhere: Vec<String>,
}

impl World {
    fn new(objects: &[(&str, Value)]) -> Self {
        let object = |(name, spec): &(&str, Value)| {
            let policy = policy(name, spec);
            let PolicyId { kind, namespace, name, uid } = (**policy.id()).clone();
            let kind = OwnerKind::parse(kind.name()).unwrap();
            let ledger = Ledger::new(Owner { kind, namespace, name, uid });
            Object { policy, ledger, used: Vec::new() }
        };
        Self {
            objects: objects.iter().map(object).collect(),
            others: Vec::new(),
            direct: DirectUses::default(),
            used_elsewhere: Vec::new(),
        }
    }

    /// One object called `m` that mirrors everything to these places.
    fn one(spec: Value) -> Self {
        Self::new(&[("m", spec)])
    }

    /// What Pods ask for under an object from now on; with a leading `~`, what they were only given.
    fn uses(&mut self, object: usize, images: &[&str]) -> &mut Self {
        let used = |text: &&str| {
            let used = Used {
                image: image(text.trim_start_matches('~')),
                original: !text.starts_with('~'),
                holders: Arc::default(),
                running: None,
                ran: Arc::default(),
            };
            (used.image.to_string(), used)
        };
        let sorted: BTreeMap<String, Used> = images.iter().map(used).collect();
        self.objects[object].used = sorted.into_values().collect();
        self
    }

    /// The images that specifications of Pods name from now on, whatever was asked for.
    fn names(&mut self, images: &[&str]) -> &mut Self {
        self.direct = DirectUses::of(images.iter().map(|image| ("shop", "web", *image)));
        self
    }

    fn edit(&mut self, object: usize, spec: &Value) -> &mut Self {
        let id = Arc::clone(self.objects[object].policy.id());
        let name = id.namespace.as_ref().map_or(id.name.to_string(), |own| format!("{own}/{}", id.name));
        self.objects[object].policy = policy(&name, spec);
        self
    }

    fn index(&self) -> Index {
        let own = self.objects.iter().map(|object| &object.policy);
        Index::new(own.chain(&self.others).map(Arc::clone))
    }

    fn claims_when(&self, leaving: &[usize], second: i64) -> DestinationOwners {
        let loops = Loops::of(&self.index());
        let planned = |number| MirrorObject { leaving: leaving.contains(&number), ..self.planned(number) };
        let objects: Vec<_> = (0..self.objects.len()).map(planned).collect();
        DestinationOwners::gather(&objects, &loops, &self.direct, at(second))
    }

    fn planned(&self, object: usize) -> MirrorObject<'_> {
        let Object { policy, ledger, used } = &self.objects[object];
        MirrorObject { ledger, policy: Some(policy), used, leaving: false }
    }

    fn claims(&self, second: i64) -> DestinationOwners {
        self.claims_when(&[], second)
    }

    /// One round over all objects.
    fn round(&mut self, second: i64) -> Vec<Reconciled> {
        let index = self.index();
        let loops = Loops::of(&index);
        let claims = self.claims(second);
        let mut outcomes = Vec::new();
        for object in &mut self.objects {
            let namespace = object.policy.id().namespace.clone();
            let replicas =
                |one: &Reference, other: &Reference| index.are_replicas(one, other, namespace.as_deref());
            let inputs = Inputs {
                policy: &object.policy,
                used: &object.used,
                loops: &loops,
                claims: &claims,
                direct: &self.direct,
                other_clusters: &|copy| {
                    let used = self.used_elsewhere.contains(&copy.to_string());
                    if used { Err(Withheld::Used { cluster: "east".into() }) } else { Ok(()) }
                },
                replicas: &replicas,
                now: at(second),
            };
            let outcome = reconcile(&object.ledger, &inputs);
            object.ledger.apply(outcome.changes.clone());
            outcomes.push(outcome);
        }
        outcomes
    }

    fn tasks(&self, object: usize) -> Vec<String> {
        let word = |work| match work {
            Work::Copy => "copy",
            Work::Compare => "compare",
            Work::Delete => "delete",
            Work::Identify => "identify",
        };
        let line = |task: Task| format!("{} {} {}", word(task.work), task.source, task.destination);
        self.to_do(object).into_iter().map(line).collect()
    }

    fn to_do(&self, object: usize) -> Vec<Task> {
        let Object { policy, ledger, used } = &self.objects[object];
        tasks(ledger, policy, used)
    }

    fn record(&mut self, object: usize, source: &str, destination: &str, finding: Finding, second: i64) {
        let destination = image(destination);
        enter_finding(&mut self.objects[object].ledger, &image(source), Some(&destination), finding, second);
    }

    /// The copy succeeds.
    fn copied(&mut self, object: usize, source: &str, destination: &str, second: i64) -> &mut Self {
        let digest = content(image(source).pulled().as_str());
        self.record(object, source, destination, written(digest), second);
        self
    }

    /// All copies and deletions of an object succeed.
    fn work(&mut self, object: usize, second: i64) -> &mut Self {
        for task in self.to_do(object) {
            let digest = content(task.source.pulled().as_str());
            let finding = match task.work {
                Work::Copy => written(digest),
                Work::Identify => Finding::Identified { digest: Some(digest) },
                Work::Compare => Finding::Compared { digest, source_digest: digest },
                Work::Delete => Finding::Deleted,
            };
            let ledger = &mut self.objects[object].ledger;
            enter_finding(ledger, &task.source, Some(&task.destination), finding, second);
        }
        self
    }

    /// The ledger of an object, one line for each entry and row.
    fn shows(&self, object: usize) -> String {
        let mut lines = String::new();
        for (source, entry) in self.objects[object].ledger.iter() {
            let unused = match entry.unused_since {
                None => String::new(),
                Some(since) => format!(" unused since {}", since.as_second()),
            };
            writeln!(lines, "{source}{unused}").unwrap();
            for copy in &entry.copies {
                let shared = if is_shared(copy) { " (shared)" } else { "" };
                let kept = if copy.kept.is_some() { " kept" } else { "" };
                let since = copy.since.as_second();
                writeln!(lines, "  {} {:?}{shared} {since}{kept}", copy.destination, copy.state).unwrap();
            }
        }
        lines
    }

    fn state(&self, object: usize, source: &str, destination: &str) -> Option<CopyState> {
        let entry = self.objects[object].ledger.get(&image(source))?;
        entry.copy_at(&image(destination)).map(|copy| copy.state)
    }
}

/// Compares with lines that may be indented in the source.
#[track_caller]
fn assert_shows(world: &World, object: usize, expected: &str) {
    let lines = expected.lines().map(|line| line.strip_prefix("            ").unwrap_or(line).trim_end());
    let expected: Vec<&str> = lines.filter(|line| !line.is_empty()).collect();
    assert_eq!(world.shows(object).lines().collect::<Vec<_>>(), expected);
}
