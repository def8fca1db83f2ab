//! The controller: looks at objects when they are due, and writes what was found.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use fairlead_api::conditions::{Condition, Finding, merge};
use fairlead_api::names::reef::PROXY_CACHE_FINALIZER;
use fairlead_api::reef::{OFFERED, OWNED, ProxyCache, ProxyCacheStatus, ProxyCacheType, SYNCED};
use fairlead_plan::cache::{
    Desired, Mark, Offer, Outcome, Report, Seen, SpecError, Stage, leaving, left_by_invalid, next_attempt,
    not_configured, offered, report, says, wants_finalizer,
};
use fairlead_plan::routing::{PolicyId, PolicyKind};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::access::Access;
use super::look::{Deleted, Look, Looked, Removed};
use super::{CacheSetup, events};
use crate::cluster::identity;
use crate::cluster::state::Changes;
use crate::controller::finalizers::{self, Finalized};
use crate::controller::status::{Draft, Manner, ObjectId, StatusWriter};
use crate::controller::{Broken, Controller, Inflight, wake_at};
use crate::platform::leader::Term;

const FIELD_MANAGER: &str = "fairlead-cache";
/// Objects that are looked at side by side.
const AT_ONCE: usize = 4;
/// From one attempt to set or take off a finalizer to the next.
const FINALIZER_PAUSE: SignedDuration = SignedDuration::from_secs(5);

/// The controller.
pub struct CacheController {
    setup: Arc<CacheSetup>,
    access: Arc<Access>,
    cluster: String,
    statuses: StatusWriter,
    /// By UID.
    caches: HashMap<Arc<str>, Cache>,
    running: Inflight<Arc<str>, Ended>,
}

/// One object.
struct Cache {
    object: Arc<ProxyCache>,
    name: Arc<str>,
    desired: Result<Arc<Desired>, SpecError>,
    /// Why routing does not take it.
    routing_error: Option<String>,
    /// What the last look was based on.
    basis: Basis,
    due: Timestamp,
    running: bool,
    /// Hash of the login that Harbor took.
    taken: Option<u64>,
    /// The generation for which Harbor holds nothing under a former name.
    complete: Option<i64>,
    /// Updates that Harbor refused, or removals that failed, in a row.
    failures: u32,
    /// An event has told that Harbor refuses what the object and its Secret ask for now.
    refusal_told: bool,
    /// Since when pairs of former names cannot be removed.
    stuck_since: Option<Timestamp>,
    failing: Option<String>,
    /// The object may go.
    released: bool,
    finalizer_due: Timestamp,
    /// What its status should say.
    report: Option<Report>,
    /// What its status said last, and whether Pods are offered the cache.
    said: Option<(Report, Option<Finding>)>,
    /// The type under which the gauge shows it.
    shown_as: Option<ProxyCacheType>,
}

/// A change of this is a reason to look.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Basis {
    generation: Option<i64>,
    deleting: bool,
    held: bool,
    /// Versions of the administrator's Secret and of the upstream's.
    secrets: [Option<String>; 2],
    siblings: BTreeSet<String>,
}

/// How a look ended.
enum Ended {
    Looked(Looked),
    Removed(Removed),
}

impl fmt::Debug for CacheController {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CacheController").field("caches", &self.caches.len()).finish_non_exhaustive()
    }
}

impl Controller for CacheController {
    const NAME: &'static str = "proxy caches";
    type Setup = CacheSetup;

    fn waits_for(setup: &CacheSetup) -> Option<String> {
        let board = &setup.context.board;
        let secrets: &[&str] = if setup.secrets.lock().is_some() { &["Secret"] } else { &[] };
        board.awaits_served(&["ProxyCache"]).or_else(|| board.awaits_served(secrets))
    }

    fn changes(setup: &CacheSetup) -> Vec<Changes> {
        let resources = &setup.context.resources;
        if setup.context.config.harbor.url.is_some() {
            setup.secrets.lock().get_or_insert_with(|| resources.own_secrets.keep_watched());
        }
        let problems = setup.context.secrets.problems().changes();
        vec![
            resources.proxy_caches.changes(),
            resources.own_secrets.changes(),
            problems,
            setup.skipped.listen(),
        ]
    }

    async fn begin(setup: &Arc<CacheSetup>, _term: &Term) -> Result<Self, Broken> {
        let context = &setup.context;
        if context.config.harbor.url.is_none() {
            tracing::info!("no Harbor is configured, so ProxyCache objects are left alone; see harbor.url");
        }
        Ok(Self {
            setup: setup.clone(),
            access: Arc::new(Access::new(context.clone())),
            cluster: identity::of_cluster(&context.client).await?.to_string(),
            statuses: StatusWriter::new(context.client.clone(), FIELD_MANAGER),
            caches: HashMap::new(),
            running: Inflight::new(AT_ONCE),
        })
    }

    async fn round(&mut self, term: &Term) -> Result<Instant, Broken> {
        let (begun, now) = (Instant::now(), self.setup.now());
        self.observe(now);
        self.start(term, now);
        self.mind_finalizers(term, now).await;
        self.release_malformed(term).await;
        self.write(term, begun).await;
        Ok(self.statuses.next_due(begun, self.next_look(begun, now)))
    }

    async fn progress(&mut self) -> bool {
        let (uid, ended) = self.running.next().await;
        let now = self.setup.now();
        if let Some(cache) = self.caches.get_mut(&uid) {
            cache.running = false;
            match ended {
                Some(Ended::Looked(looked)) => cache.looked(looked, &self.setup, now),
                Some(Ended::Removed(removed)) => cache.removed(removed, &self.setup, now),
                // It panicked, which was logged.
                None => cache.wait(next_attempt(u32::MAX), now),
            }
        }
        true
    }

    fn end(setup: &CacheSetup) {
        setup.metrics.rest();
        *setup.secrets.lock() = None;
    }
}

impl CacheController {
    /// Takes up new, changed and deleted objects.
    fn observe(&mut self, now: Timestamp) {
        let context = &self.setup.context;
        let snapshot = context.resources.proxy_caches.snapshot();
        let mut by_pair: HashMap<&str, BTreeSet<&str>> = HashMap::new();
        for object in snapshot.objects.values() {
            by_pair.entry(&object.spec.name).or_default().insert(name_of(object));
        }
        let admin = context.resources.own_secrets.version(&context.config.harbor.admin_secret);
        let mut present = HashSet::new();
        for object in snapshot.objects.values() {
            let uid: Arc<str> = object.metadata.uid.as_deref().unwrap_or_default().into();
            present.insert(uid.clone());
            let desired = Desired::compile(&object.spec).map(Arc::new);
            let secret = desired.as_ref().ok().and_then(|desired| desired.secret.as_ref());
            let secret = secret.and_then(|keys| context.resources.own_secrets.version(&keys.name));
            let siblings = by_pair.get(&*object.spec.name).into_iter().flatten();
            let siblings =
                siblings.filter(|name| **name != name_of(object)).map(ToString::to_string).collect();
            let basis = Basis {
                generation: object.metadata.generation,
                deleting: object.metadata.deletion_timestamp.is_some(),
                held: is_held(object),
                secrets: [admin.clone(), secret],
                siblings,
            };
            let setup = &self.setup;
            let cache = self.caches.entry(uid).or_insert_with(|| Cache::new(object, &basis, setup, now));
            cache.take_up(object, desired, basis, now, &self.setup);
        }
        self.caches.retain(|uid, cache| {
            let stays = present.contains(uid);
            if !stays {
                cache.dismiss(&self.setup);
            }
            stays
        });
    }

    /// Objects are held before anything is made for them, and until everything is removed.
    async fn mind_finalizers(&mut self, term: &Term, now: Timestamp) {
        let context = &self.setup.context;
        let configured = context.config.harbor.url.is_some();
        for cache in self.caches.values_mut() {
            let Basis { deleting, held, .. } = cache.basis;
            let released = cache.released;
            let stage = if deleting { Stage::Deleted { released } } else { Stage::Live { configured } };
            let wanted = wants_finalizer(held, stage);
            if held == wanted || cache.finalizer_due > now || !term.holds() {
                continue;
            }
            let (object, metadata) = (ObjectId::of(&*cache.object), &cache.object.metadata);
            let present = metadata.finalizers.as_deref().unwrap_or_default();
            let seen = (metadata.resource_version.as_deref(), present);
            set_finalizer(&context.client, &object, seen, wanted).await;
            // The watch brings the object as it is now; until then nothing is known.
            cache.finalizer_due = now.saturating_add(FINALIZER_PAUSE).unwrap_or(now);
        }
    }

    /// Begins to look at objects that are due, the longest due first.
    fn start(&mut self, term: &Term, now: Timestamp) {
        let config = &self.setup.context.config.harbor;
        let mut due: Vec<_> = self.caches.iter_mut().filter(|(_, cache)| cache.is_due(now)).collect();
        due.sort_by_key(|(_, cache)| cache.due);
        for (uid, cache) in due {
            if config.url.is_none() && !cache.basis.deleting {
                cache.report = Some(not_configured(cache.status(), cache.basis.generation));
                cache.due = Timestamp::MAX;
                continue;
            }
            let desired = match &cache.desired {
                Ok(desired) => desired.clone(),
                Err(error) => {
                    cache.cannot_be_read(&error.to_string(), &self.setup, now);
                    continue;
                }
            };
            if self.running.is_full() || !cache.basis.held {
                continue;
            }
            let look = Look {
                access: self.access.clone(),
                term: term.clone(),
                object: cache.object.clone(),
                mark: Mark {
                    cluster: self.cluster.clone(),
                    name: cache.name.to_string(),
                    uid: Some(uid.to_string()),
                },
                desired,
                siblings: cache.basis.siblings.clone(),
                taken: cache.taken,
                is_complete: cache.complete.is_some() && cache.complete == cache.basis.generation,
                retain: config.retain_on_delete,
            };
            // What changes from now on makes it due again.
            (cache.running, cache.due) = (true, Timestamp::MAX);
            if let Some(deletion) = &cache.object.metadata.deletion_timestamp {
                let deleted = Deleted { failing: cache.failing.clone(), deletion: deletion.0, now };
                self.running.start(uid.clone(), async { Ended::Removed(look.remove_pair(deleted).await) });
            } else {
                self.running.start(uid.clone(), async { Ended::Looked(look.take().await) });
            }
        }
    }

    async fn write(&mut self, term: &Term, begun: Instant) {
        let mut drafts = Vec::new();
        for cache in self.caches.values_mut() {
            drafts.extend(cache.unsaid(&self.setup).map(|report| draft(&cache.object, &report)));
        }
        drafts.extend(Draft::of_all_malformed(&self.setup.context.resources.proxy_caches.snapshot()));
        self.statuses.write_all(drafts, term, begun).await;
    }

    /// What was made for objects that cannot be read is not known, so they go without it, and an event says so.
    async fn release_malformed(&mut self, term: &Term) {
        let context = &self.setup.context;
        for (key, malformed) in &context.resources.proxy_caches.snapshot().malformed {
            let held = malformed.finalizers.iter().any(|name| name == PROXY_CACHE_FINALIZER);
            if malformed.deleting && held && term.holds() {
                let object = ObjectId::malformed::<ProxyCache>(key, malformed);
                let seen = (Some(&*malformed.resource_version), &*malformed.finalizers);
                let gone = set_finalizer(&context.client, &object, seen, false).await;
                let status = ProxyCacheStatus {
                    conditions: malformed.conditions.clone(),
                    ..ProxyCacheStatus::default()
                };
                let left = left_by_invalid(&status, &malformed.error, context.config.harbor.retain_on_delete);
                if let Some(left) = left.filter(|_| gone) {
                    context.events.tell(events::left_behind_by(&key.name, &malformed.uid, &left));
                }
            }
        }
    }

    fn next_look(&self, begun: Instant, now: Timestamp) -> Instant {
        let waiting = self.caches.values().filter(|cache| !cache.running);
        let times = waiting.filter_map(|cache| match cache.basis.held && !cache.released {
            // All places are taken, and the end of one wakes this.
            true if cache.due <= now => None,
            true => Some(cache.due),
            false => (cache.finalizer_due > now).then_some(cache.finalizer_due),
        });
        wake_at(times.min(), now, begun)
    }
}

/// Tells whether it was written.
async fn set_finalizer(
    client: &kube::Client,
    object: &ObjectId,
    seen: (Option<&str>, &[String]),
    wanted: bool,
) -> bool {
    let ours = [PROXY_CACHE_FINALIZER];
    let written = finalizers::set(client, FIELD_MANAGER, object, seen, &ours, wanted).await;
    if let Err(failure) = &written {
        tracing::warn!(%object, error = %failure, "cannot set or remove the finalizer; trying again");
    }
    matches!(written, Ok(Finalized::Done))
}

impl Cache {
    fn new(object: &Arc<ProxyCache>, basis: &Basis, setup: &CacheSetup, now: Timestamp) -> Self {
        Self {
            object: object.clone(),
            name: name_of(object).into(),
            desired: Desired::compile(&object.spec).map(Arc::new),
            routing_error: setup.routing_error(object),
            basis: basis.clone(),
            due: now,
            running: false,
            taken: None,
            complete: None,
            failures: 0,
            refusal_told: false,
            stuck_since: None,
            failing: None,
            released: false,
            finalizer_due: now,
            report: None,
            said: None,
            shown_as: None,
        }
    }

    fn take_up(
        &mut self,
        object: &Arc<ProxyCache>,
        desired: Result<Arc<Desired>, SpecError>,
        basis: Basis,
        now: Timestamp,
        setup: &CacheSetup,
    ) {
        self.object = object.clone();
        self.desired = desired;
        if self.basis != basis {
            if self.basis.held != basis.held {
                self.finalizer_due = now;
            }
            if !self.basis.deleting && basis.deleting {
                (self.report, self.failures) = (None, 0);
            }
            if (self.basis.generation, &self.basis.secrets) != (basis.generation, &basis.secrets) {
                self.refusal_told = false;
            }
            if self.basis.generation != basis.generation {
                (self.failures, self.stuck_since, self.said) = (0, None, None);
                self.routing_error = setup.routing_error(object);
            }
            self.basis = basis;
            self.due = now;
        }
        if let Some(kind) = self.shown_as.filter(|kind| *kind != object.spec.type_) {
            setup.metrics.forget(&self.name, kind);
            self.shown_as = None;
        }
    }

    fn is_due(&self, now: Timestamp) -> bool {
        !self.running && !self.released && self.due <= now
    }

    fn status(&self) -> Option<&ProxyCacheStatus> {
        self.object.status.as_ref()
    }

    /// What its status should say and does not. Whether Pods are offered the cache changes between two looks, too.
    fn unsaid(&mut self, setup: &CacheSetup) -> Option<Report> {
        let known = self.report.as_ref().or_else(|| self.said.as_ref().map(|(report, _)| report))?;
        let offered = self.offered(&known.status, setup);
        if self.report.is_none() {
            self.report = self.said.take_if(|(_, before)| *before != offered).map(|(report, _)| report);
        }
        let report = self.report.clone()?.and(offered.clone());
        if says(self.status(), &report) {
            self.said = self.report.take().map(|report| (report, offered));
            return None;
        }
        Some(report)
    }

    /// Whether Pods are offered the cache, if the object asks for that.
    fn offered(&self, status: &ProxyCacheStatus, setup: &CacheSetup) -> Option<Finding> {
        self.object.spec.routing.as_ref()?;
        let uid = self.object.metadata.uid.as_deref().unwrap_or_default().into();
        let (kind, name) = (PolicyKind::ProxyCache, self.name.clone());
        let mut secrets = setup.context.secrets.problems().of(&PolicyId { kind, namespace: None, name, uid });
        secrets.sort();
        Some(offered(&Offer { error: self.routing_error.as_deref(), secrets: &secrets, status }))
    }

    /// Nothing is done before that, unless something changes, or has changed since the last look began.
    fn wait(&mut self, time: Duration, now: Timestamp) {
        let time = SignedDuration::try_from(time).unwrap_or(SignedDuration::MAX);
        let due = now.saturating_add(time).unwrap_or(Timestamp::MAX);
        self.due = if self.due == Timestamp::MAX { due } else { self.due };
    }

    fn looked(&mut self, looked: Looked, setup: &CacheSetup, now: Timestamp) {
        let Looked { generation, mut outcome, taken, done } = looked;
        self.taken = taken;
        for what in &done {
            setup.context.events.tell(events::done(&self.object, what, now));
        }
        // It was edited meanwhile: this says nothing about the object as it is now, and the next look is due. What was
        // made for it is found by its mark then.
        if generation != self.basis.generation {
            return;
        }
        let mut is_stuck = false;
        if let Outcome::Seen(seen) = &mut outcome {
            self.give_up(seen, setup, now);
            is_stuck = seen.former.is_some();
        }
        let is_complete = matches!(&outcome, Outcome::Seen(seen) if seen.is_complete());
        self.complete = generation.filter(|_| is_complete);
        let (refused, is_refused) = match &outcome {
            Outcome::Seen(seen) => (seen.refused.as_deref(), seen.is_refused()),
            Outcome::Failed(_) => (None, false),
        };
        let report = report(self.status(), generation, &outcome, self.failures, now);
        if let Some(refused) = refused.filter(|_| !self.refusal_told) {
            setup.context.events.tell(events::refused(&self.object, refused, now));
        }
        self.refusal_told = refused.is_some();
        self.failures = if is_refused || is_stuck { self.failures.saturating_add(1) } else { 0 };
        setup.metrics.looked(report.settled);
        if let Some(healthy) = report.healthy {
            let kind = self.object.spec.type_;
            setup.metrics.set(&self.name, kind, healthy);
            self.shown_as = Some(kind);
        }
        self.wait(report.again, now);
        self.report = Some(report);
    }

    /// Gives up pairs of former names that could not be removed for too long.
    fn give_up(&mut self, seen: &mut Seen, setup: &CacheSetup, now: Timestamp) {
        self.stuck_since = seen.former.as_ref().map(|_| self.stuck_since.unwrap_or(now));
        if let Some(left) = self.stuck_since.and_then(|since| seen.give_up(since, now)) {
            tracing::warn!(proxycache = &*self.name, left, "objects of a former name remain in Harbor");
            setup.context.events.tell(events::left_behind(&self.object, &left));
            self.stuck_since = None;
        }
    }

    fn removed(&mut self, removed: Removed, setup: &CacheSetup, now: Timestamp) {
        match removed {
            Removed::Done { left } => {
                if let Some(left) = &left {
                    tracing::warn!(
                        proxycache = &*self.name,
                        left,
                        "a ProxyCache is deleted, and objects of it remain in Harbor"
                    );
                    setup.context.events.tell(events::left_behind(&self.object, left));
                }
                self.dismiss(setup);
                (self.released, self.report) = (true, None);
                self.finalizer_due = now;
            }
            Removed::Failed(why) => {
                self.report = Some(leaving(self.status(), self.basis.generation, &why));
                self.failing = Some(why);
                self.wait(next_attempt(self.failures), now);
                self.failures = self.failures.saturating_add(1);
            }
        }
    }

    /// The object is invalid: what it would stand for is not known, so nothing goes with it.
    fn cannot_be_read(&mut self, error: &str, setup: &CacheSetup, now: Timestamp) {
        if self.basis.deleting {
            let retain = setup.context.config.harbor.retain_on_delete;
            let left = self.status().and_then(|status| left_by_invalid(status, error, retain));
            return self.removed(Removed::Done { left }, setup, now);
        }
        let outcome = Outcome::Failed(error.to_owned());
        self.report = Some(report(self.status(), self.basis.generation, &outcome, 0, now));
        self.due = Timestamp::MAX;
    }

    /// The object is gone, or about to go.
    fn dismiss(&mut self, setup: &CacheSetup) {
        if let Some(kind) = self.shown_as.take() {
            setup.metrics.forget(&self.name, kind);
        }
    }
}

fn draft(object: &ProxyCache, report: &Report) -> Draft {
    let stored = object.status.as_ref().map(|status| &*status.conditions).unwrap_or_default();
    let all = merge(stored, &report.findings, object.metadata.generation, Timestamp::now());
    // While Harbor cannot be asked, what was known of it stays.
    let observed = report.findings.iter().any(|finding| finding.type_ == OWNED);
    let ours = |one: &Condition| {
        let said = report.findings.iter().any(|finding| finding.type_ == one.type_);
        said || (!observed && [OWNED, SYNCED].contains(&&*one.type_))
    };
    let (conditions, others): (Vec<_>, Vec<_>) = all.into_iter().partition(ours);
    let is_over = |one: &Condition| [OWNED, SYNCED, OFFERED].contains(&&*one.type_);
    let others: Vec<_> = others.into_iter().filter(|one| !is_over(one)).collect();
    let mut status = json!(ProxyCacheStatus { conditions: Vec::new(), ..report.status.clone() });
    let manner = manner(object, &mut status);
    Draft::new(ObjectId::of(object), manner, status, &conditions, &others)
}

/// What harbor-reef-operator wrote is not ours to leave out, so it has to be taken away.
fn manner(object: &ProxyCache, status: &mut Value) -> Manner {
    let stored = json!(object.status.clone().unwrap_or_default());
    let (Some(stored), Some(status)) = (stored.as_object(), status.as_object_mut()) else {
        return Manner::Apply;
    };
    let gone: Vec<_> =
        stored.keys().filter(|key| *key != "conditions" && !status.contains_key(*key)).cloned().collect();
    if gone.is_empty() {
        return Manner::Apply;
    }
    status.extend(gone.into_iter().map(|key| (key, Value::Null)));
    Manner::Replace { version: object.metadata.resource_version.clone().unwrap_or_default() }
}

pub(super) fn name_of(object: &ProxyCache) -> &str {
    object.metadata.name.as_deref().unwrap_or_default()
}

fn is_held(object: &ProxyCache) -> bool {
    object.metadata.finalizers.iter().flatten().any(|name| name == PROXY_CACHE_FINALIZER)
}
