//! One pass over all Pods: shows them to the planner, and gathers what is to be done about them.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use fairlead_domain::cause::Cause;
use fairlead_domain::digest::Digest;
use fairlead_domain::platform::Platform;
use fairlead_domain::reference::Reference;
use fairlead_domain::selector::PodFacts;
use fairlead_plan::availability::{LookAccess, MirrorLook};
use fairlead_plan::credentials::Principal;
use fairlead_plan::inventory::{
    Change, ContentRead, Contents, Current, Drift, DriftFindings, Drifts, FindingKind, ImageWish, Knowledge,
    MOST_SERIES, MountMemory, NamespaceImage, Notes, PodRows, PodView, Resolutions, Role, SeenDigest, Series,
    ShownSeries, Source, State, Survey, Surveyed, Suspects, rows,
};
use fairlead_plan::pull_secrets::Selection;
use fairlead_plan::routing::Index;
use fairlead_plan::usage::Holder;
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::InventorySetup;
use crate::capabilities::account::observe::{Platforms, view};
use crate::cluster::state::{Key, PodEntry};
use crate::cluster::usage::{AnnotationsOf, LabelsOf};
use crate::context::Context;
use crate::platform::config::AccountMetrics;

/// What lasts from one pass to the next. All but what registries say of tags outlives terms: a process reads a
/// digest once.
#[derive(Debug, Default)]
pub(super) struct Known {
    pub(super) contents: Mutex<Contents>,
    pub(super) resolutions: Mutex<Resolutions>,
    /// Digests whose content could not be read.
    pub(super) unreadable: Mutex<HashMap<Digest, Unread>>,
    mounts: Mutex<MountMemory>,
    notes: Mutex<Notes>,
}

/// A digest whose content is not known although it was read.
#[derive(Debug, Clone, Copy)]
pub(super) struct Unread {
    pub(super) again: Instant,
    /// It was read, and there was no room for it.
    pub(super) no_room: bool,
}

/// What one pass came to.
#[derive(Debug, Default)]
pub(in crate::capabilities::account) struct Tally {
    pub(in crate::capabilities::account) states: BTreeMap<State, usize>,
    /// Of mounts of image volumes.
    pub(in crate::capabilities::account) sources: BTreeMap<Source, usize>,
    pub(in crate::capabilities::account) findings: BTreeMap<FindingKind, usize>,
    pub(in crate::capabilities::account) not_started: usize,
    pub(in crate::capabilities::account) drifts: Vec<Drift>,
    pub(in crate::capabilities::account) series: Vec<ShownSeries>,
    pub(in crate::capabilities::account) omitted: usize,
    /// Images that would be looked at if there were fewer.
    pub(in crate::capabilities::account) looks_omitted: usize,
    /// UIDs of all Pods.
    pub(super) present: HashSet<Arc<str>>,
    pub(super) reads: Vec<ContentWish>,
    /// Some digests are compared through an index, for which platforms have to be known.
    pub(super) compares_platforms: bool,
    pub(super) looks: Vec<MirrorLook>,
    pub(super) writes: Vec<DigestWrite>,
}

/// A digest whose content is wanted, and a Pod with whose Secrets it can be read.
#[derive(Debug)]
pub(super) struct ContentWish {
    pub(super) digest: Digest,
    /// Images in whose repositories it may be.
    pub(super) images: Vec<Reference>,
    pub(super) pod: Arc<PodEntry>,
}

/// What a Pod is to be told of its image volumes. None takes the annotation away.
#[derive(Debug)]
pub(super) struct DigestWrite {
    pub(super) pod: Arc<PodEntry>,
    pub(super) text: Option<String>,
}

/// What a pass looks at Pods with.
struct Pass<'k> {
    now: Timestamp,
    setup: &'k InventorySetup,
    policies: Arc<Index>,
    platforms: Platforms,
    contents: &'k Contents,
    resolutions: &'k Resolutions,
    unreadable: &'k HashMap<Digest, Unread>,
    /// Places that differ, by namespace and image.
    places: BTreeMap<Arc<str>, BTreeMap<Arc<str>, Vec<String>>>,
}

/// Goes through all Pods.
pub(super) fn gather(setup: &InventorySetup, known: &Known, now: Timestamp) -> Tally {
    let context = &*setup.context;
    let pods = context.resources.pods.all();
    let present: HashSet<Arc<str>> = pods.iter().map(|pod| Arc::clone(&pod.uid)).collect();
    let mut contents = known.contents.lock();
    let (mut resolutions, mut unreadable) = (known.resolutions.lock(), known.unreadable.lock());
    let (mut mounts, mut notes) = (known.mounts.lock(), known.notes.lock());
    mounts.keep(&present);
    notes.keep(&present);
    let pass = Pass {
        now,
        setup,
        policies: context.policies.current(),
        platforms: platforms(context),
        contents: &contents,
        resolutions: &resolutions,
        unreadable: &unreadable,
        places: setup.consistency.as_ref().map(|known| known.compared()).unwrap_or_default(),
    };
    let mut tally = Tally { present, ..Tally::default() };
    let mut survey = Survey::new(&resolutions, now, !contents.has_room());
    pass.survey(&pods, &mut mounts, &mut notes, &mut survey, &mut tally);
    let wanted = survey.wanted();
    let (looks, looks_omitted) = survey.looks();
    tally.looks_omitted = looks_omitted;
    tally.looks = pass.looks(looks);
    let due = |digest: &Digest| {
        let is_time = |unread: &Unread| unread.again <= Instant::now();
        contents.get(digest).is_none() && unreadable.get(digest).is_none_or(is_time)
    };
    let asked: HashSet<Digest> = survey.reads().copied().collect();
    tally.reads = survey
        .readings(due)
        .into_iter()
        .map(|(digest, ContentRead { images, pod })| ContentWish { digest, images, pod })
        .collect();
    tally.states = std::mem::take(&mut survey.states);
    tally.sources = std::mem::take(&mut survey.sources);
    tally.findings = std::mem::take(&mut survey.findings);
    (tally.not_started, tally.compares_platforms) = (survey.not_started, survey.compares_platforms);
    let in_use = survey.in_use().cloned();
    unreadable.retain(|digest, _| asked.contains(digest));
    contents.keep_absent(|digest| asked.contains(digest));
    resolutions.keep(|key| wanted.contains(key));
    if let Some(in_use) = in_use {
        contents.make_room(&in_use);
    }
    tally
}

fn platforms(context: &Context) -> Platforms {
    let platform = |os: &str, architecture: &str| Platform {
        os: os.to_owned(),
        architecture: architecture.to_owned(),
        variant: String::new(),
    };
    let nodes = context.resources.nodes.all();
    nodes.iter().map(|(node, _)| (Arc::clone(&node.name), platform(&node.os, &node.architecture))).collect()
}

/// Pods that admission leaves alone are not annotated either, nor are those of namespaces that it is not asked about.
fn is_left_alone(setup: &InventorySetup, pod: &PodEntry) -> bool {
    let (labels, annotations) = (LabelsOf(&pod.labels), AnnotationsOf(&pod.annotations));
    let (context, namespace) = (&setup.context, &*pod.key.namespace);
    let facts = PodFacts { namespace, labels: &labels, annotations: &annotations };
    setup.exclusions.left_alone(&facts, &context.namespace).is_some()
        || context.resources.namespaces.selection(namespace) == Selection::LeftOut
}

fn is_running(pod: &PodEntry) -> bool {
    !pod.deleting && pod.pulls.is_none() && !pod.has_ended()
}

impl Pass<'_> {
    /// Goes through all Pods, and once more where some images may have drifted.
    fn survey(
        &self,
        pods: &[Arc<PodEntry>],
        mounts: &mut MountMemory,
        notes: &mut Notes,
        survey: &mut Survey<'_, Arc<PodEntry>>,
        tally: &mut Tally,
    ) {
        let given_up = |digest: &Digest| self.given_up(digest);
        let now = |namespace: &str, image: &str| self.now(namespace, image);
        let places =
            |namespace: &str, image: &str| self.places.get(namespace).and_then(|of| of.get(image)).cloned();
        let current = Current { contents: self.contents, given_up: &given_up, now: &now, places: &places };
        let config = &self.setup.context.config.account;
        let (mut series, mut suspects) = (Series::default(), Suspects::default());
        for pod in pods.iter().filter(|pod| is_running(pod)) {
            let view = self.view(pod, mounts);
            let found = self.rows(pod, &view, notes);
            for row in &found.rows {
                suspects.add(&view, row, &current);
                if let Some(expected) = row.expected.as_ref().filter(|_| row.role == Role::Volume) {
                    notes.note(&pod.uid, row.name, expected);
                }
            }
            if config.metrics != AccountMetrics::Off {
                series.add(&view, &found.rows, config.metrics == AccountMetrics::Workload);
            }
            let holder = Holder {
                namespace: Arc::clone(&pod.key.namespace),
                pull_secrets: Arc::clone(&pod.pull_secrets),
                pod: Arc::clone(&pod.key.name),
            };
            let surveyed = Surveyed { pod, view: &view, found: &found, holder: &holder };
            survey.add(&surveyed);
            if config.annotate && !is_left_alone(self.setup, pod) {
                let text = match survey.annotation(&surveyed) {
                    Change::Leave => continue,
                    Change::Write(text) => Some(text),
                    Change::Remove => None,
                };
                tally.writes.push(DigestWrite { pod: Arc::clone(pod), text });
            }
        }
        (tally.series, tally.omitted) = series.shown(MOST_SERIES);
        if suspects.is_empty() {
            return;
        }
        let mut drifts = Drifts::default();
        for pod in pods.iter().filter(|pod| is_running(pod)) {
            let view = self.view(pod, mounts);
            self.rows(pod, &view, notes).rows.iter().for_each(|row| drifts.add(&view, row, &suspects));
        }
        let DriftFindings { drifts, reads, .. } = drifts.finish(&current);
        tally.drifts = drifts;
        for read in reads {
            let key = Key { namespace: read.namespace.into(), name: read.pod.into() };
            if let (Ok(image), Some(pod)) =
                (Reference::parse(&read.image), self.setup.context.resources.pods.get(&key))
            {
                survey.read(read.digest, vec![image], &pod);
            }
        }
    }

    fn view<'p>(&'p self, pod: &'p PodEntry, mounts: &mut MountMemory) -> PodView<'p> {
        let mounts = RefCell::new(mounts);
        view(pod, &self.platforms, |mount| {
            let (container, path, id) = (&mount.container, &mount.path, mount.container_id);
            mounts.borrow_mut().look(&pod.uid, container, path, id, mount.reported.as_ref())
        })
    }

    fn rows<'p>(&self, pod: &PodEntry, view: &PodView<'p>, notes: &Notes) -> PodRows<'p> {
        let (namespace, resolutions) = (&pod.key.namespace, self.resolutions);
        let given_up = |digest: &Digest| self.given_up(digest);
        let known = |view: &PodView<'_>, volume: &str| notes.of(view.uid, volume);
        let later = |view: &PodView<'_>, image: &str| {
            resolutions.since(namespace, &Reference::parse(image).ok()?, view.created)
        };
        let now = |view: &PodView<'_>, image: &str| Some(self.now(view.namespace, image)?.digest);
        let proven = |view: &PodView<'_>, image: &str| {
            resolutions.has(namespace, &Reference::parse(image).ok()?, view.created)
        };
        let knowledge = Knowledge {
            contents: self.contents,
            given_up: &given_up,
            noted: &known,
            later: &later,
            now: &now,
            proven: Some(&proven),
        };
        rows(view, &knowledge)
    }

    /// Digests that will not be read. Of those that there is no room for nothing is concluded.
    fn given_up(&self, digest: &Digest) -> bool {
        self.unreadable.get(digest).is_some_and(|unread| !unread.no_room)
    }

    /// What a registry last said that an image of a namespace is, however long ago. An answer that needed no
    /// credentials may be used for every namespace.
    fn now(&self, namespace: &str, image: &str) -> Option<SeenDigest> {
        let image = Reference::parse(image).ok()?;
        let cause = self.policies.cause_of(&image);
        let told = self.setup.context.verdicts.caused_by(cause).last_seen(&image, &[]);
        let told = told.map(|(digest, age)| {
            // Whole seconds, so that it does not look newer than it is.
            let age = i64::try_from(age.as_secs()).unwrap_or(i64::MAX).saturating_add(1);
            SeenDigest { digest, at: self.now.as_second().saturating_sub(age) }
        });
        let looked = self.resolutions.last_seen(&Arc::from(namespace), &image);
        looked.into_iter().chain(told).max_by_key(|seen| seen.at)
    }

    fn looks(&self, wishes: Vec<(NamespaceImage, ImageWish)>) -> Vec<MirrorLook> {
        let mut access: HashMap<(Arc<str>, Cause), Arc<LookAccess>> = HashMap::new();
        let look = |((namespace, _), wish): (NamespaceImage, ImageWish)| {
            let ImageWish { image: reference, holders, last } = wish;
            let cause = self.policies.cause_of(&reference);
            let of = || {
                let principal = Principal::Namespace(Arc::clone(&namespace));
                Arc::new(LookAccess { principal, secret: None, cause })
            };
            let access = Arc::clone(access.entry((Arc::clone(&namespace), cause)).or_insert_with(of));
            let last = last.unwrap_or(Timestamp::UNIX_EPOCH);
            MirrorLook { reference, last, holders: holders.into(), access }
        };
        wishes.into_iter().map(look).collect()
    }
}
