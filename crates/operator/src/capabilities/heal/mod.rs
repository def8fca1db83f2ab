//! Moves Pods whose images cannot be pulled to images that can be, on the lease holder alone.
//!
//! The Pod watch shows which containers wait for an image and why; [`fairlead_plan::heal`] decides what becomes of
//! them. Here registries are asked about candidates, Pods are patched at the pace that the configuration allows, and
//! what was done is reported. No Pod is read or listed for it.

mod metrics;
mod observe;
mod report;
mod treat;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use fairlead_plan::heal::evict::Evictions;
use fairlead_plan::heal::{Incidents, Move, Note, Repair};
use jiff::Timestamp;
use parking_lot::Mutex;
use tokio::time::Instant;

pub use self::metrics::Metrics;
use self::observe::{Rules, view};
use self::treat::{Outcome, Treatment};
use crate::cluster::state::{Changes, PodEntry};
use crate::context::Context;
use crate::controller::events::Notice;
use crate::controller::rate_limit::{Pace, Rate};
use crate::controller::{Broken, Controller, Inflight, wake_at};
use crate::platform::leader::Term;

/// Pods that are treated at once. Most of their time they wait for their turn to be patched.
const AT_ONCE: usize = 64;

/// A Pod of which nothing is expected is looked at again after this time.
const IDLE: jiff::SignedDuration = jiff::SignedDuration::from_mins(5);

/// A patch that was not answered is watched for, so long.
const UNANSWERED: jiff::SignedDuration = jiff::SignedDuration::from_secs(15);

/// What outlives terms.
pub struct HealSetup {
    context: Arc<Context>,
    metrics: Metrics,
    rules: Rules,
}

impl fmt::Debug for HealSetup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HealSetup").finish_non_exhaustive()
    }
}

impl HealSetup {
    pub fn new(context: Arc<Context>, metrics: Metrics) -> Self {
        let rules = Rules::from(&context.config);
        Self { context, metrics, rules }
    }
}

/// The controller.
pub struct Healing {
    setup: Arc<HealSetup>,
    term: Term,
    incidents: Incidents,
    evictions: Arc<Mutex<Evictions>>,
    /// How each Pod was when it was last looked at, and when to look again.
    looked: HashMap<Arc<str>, (Arc<PodEntry>, Timestamp)>,
    treating: Inflight<Arc<str>, Outcome>,
    /// Patches that may have been applied, since when.
    unanswered: Vec<(Timestamp, Arc<PodEntry>, Box<Repair>)>,
    /// Repairs of former leaders were reported.
    recalled: bool,
    pace: Arc<tokio::sync::Mutex<Pace>>,
}

impl fmt::Debug for Healing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Healing").field("incidents", &self.incidents).finish_non_exhaustive()
    }
}

impl Controller for Healing {
    const NAME: &'static str = "healing";
    const DEBOUNCE: Duration = Duration::from_millis(100);
    type Setup = HealSetup;

    fn waits_for(setup: &HealSetup) -> Option<String> {
        setup.context.awaits_routing()
    }

    fn changes(setup: &HealSetup) -> Vec<Changes> {
        vec![setup.context.resources.pods.failing_changes(), setup.context.policies.changes()]
    }

    async fn begin(setup: &Arc<HealSetup>, term: &Term) -> Result<Self, Broken> {
        let per_second = setup.context.config.heal.patches_per_second;
        let pace = Pace::new(Rate { per_second, burst: per_second.div_ceil(4) });
        Ok(Self {
            setup: setup.clone(),
            term: term.clone(),
            incidents: Incidents::default(),
            evictions: Arc::default(),
            looked: HashMap::new(),
            treating: Inflight::new(AT_ONCE),
            unanswered: Vec::new(),
            recalled: false,
            pace: Arc::new(tokio::sync::Mutex::new(pace)),
        })
    }

    async fn round(&mut self, _term: &Term) -> Result<Instant, Broken> {
        let (begun, now) = (Instant::now(), Timestamp::now());
        self.confirm(now);
        if !std::mem::replace(&mut self.recalled, true) {
            let HealSetup { context, .. } = &*self.setup;
            for repair in
                report::recalled(&context.resources.pods, |pod| self.setup.rules.is_in_scope(pod), now)
            {
                context.events.tell(repair);
            }
        }
        let mut failing = self.setup.context.resources.pods.failing();
        failing.retain(|pod| self.setup.rules.covers(pod));
        let present: HashSet<_> = failing.iter().map(|pod| &pod.uid).collect();
        self.incidents.retain(&present);
        self.looked.retain(|uid, _| present.contains(uid));
        let mut next: Option<Timestamp> = None;
        for pod in &failing {
            let at = match self.looked.get(&pod.uid) {
                Some((known, at)) if Arc::ptr_eq(known, pod) && *at > now => *at,
                // It is due, and every end of a treatment brings a round.
                Some((known, _)) if Arc::ptr_eq(known, pod) && self.treating.is_full() => continue,
                _ => match self.look(pod, now) {
                    Some(at) => at,
                    // There is no room; the next one that is treated makes some.
                    None => continue,
                },
            };
            next = Some(next.map_or(at, |next| next.min(at)));
        }
        self.setup.metrics.expire(now);
        Ok(wake_at(next, now, begun))
    }

    async fn progress(&mut self) -> bool {
        let (uid, outcome) = self.treating.next().await;
        self.looked.remove(&uid);
        self.settle(&uid, outcome.unwrap_or(Outcome::Failed { notice: None }));
        true
    }

    fn end(setup: &HealSetup) {
        setup.metrics.rest();
    }
}

impl Healing {
    /// Looks at a Pod, begins to treat it if it is time, and tells when to look again; none if there is no room.
    fn look(&mut self, pod: &Arc<PodEntry>, now: Timestamp) -> Option<Timestamp> {
        let idle = now.saturating_add(IDLE).unwrap_or(now);
        if self.treating.contains(&pod.uid) {
            return Some(idle);
        }
        let failing = view(pod);
        let look = self.incidents.look(&failing, now);
        for note in &look.notes {
            self.report(pod, &failing, note);
        }
        let at = look.next.unwrap_or(idle);
        if look.due.is_empty() && look.unpatchable.is_empty() {
            self.looked.insert(pod.uid.clone(), (pod.clone(), at));
            return Some(at);
        }
        if self.treating.is_full() {
            self.looked.insert(pod.uid.clone(), (pod.clone(), now));
            return None;
        }
        let treatment = Treatment {
            setup: self.setup.clone(),
            term: self.term.clone(),
            pod: pod.clone(),
            due: look.due,
            unpatchable: look.unpatchable,
            pace: self.pace.clone(),
            evictions: self.evictions.clone(),
        };
        self.treating.start(pod.uid.clone(), treatment.run());
        Some(at)
    }

    fn report(&self, pod: &PodEntry, failing: &fairlead_plan::heal::FailingPod<'_>, note: &Note) {
        report::note(&self.setup.context.events, pod, failing, note);
    }

    /// Takes up what became of a Pod.
    fn settle(&mut self, uid: &Arc<str>, outcome: Outcome) {
        let now = Timestamp::now();
        match outcome {
            Outcome::Patched => {
                self.unanswered.retain(|(_, pod, _)| pod.uid != *uid);
                self.incidents.patched(uid, now);
            }
            Outcome::Failed { notice } => {
                self.tell(uid, notice);
                self.incidents.failed(uid, now);
            }
            Outcome::Unanswered(pod, repair, notice) => {
                self.unanswered.push((now, pod, repair));
                // Once may be a moment in which the API server restarts.
                if !self.incidents.is_news(uid, "unanswered once") {
                    self.tell(uid, Some(notice));
                }
                self.incidents.failed(uid, now);
            }
            Outcome::Changed => {}
            Outcome::Overtaken { notice } => {
                if !self.incidents.may_repeat(uid) {
                    self.tell(uid, notice);
                    self.incidents.failed(uid, now);
                }
            }
            Outcome::Waits { notice } => {
                self.tell(uid, notice);
                self.incidents.waits(uid, now);
            }
        }
    }

    /// Reports something of a Pod, unless it was reported before.
    fn tell(&mut self, uid: &Arc<str>, notice: Option<Notice>) {
        if let Some(notice) = notice
            && self.incidents.is_news(uid, &notice.key)
        {
            self.setup.context.events.tell(notice);
        }
    }

    /// Reports repairs that the API server has made without having answered.
    fn confirm(&mut self, now: Timestamp) {
        let HealSetup { context, metrics, .. } = &*self.setup;
        let incidents = &mut self.incidents;
        self.unanswered.retain(|(since, pod, repair)| {
            let current = context.resources.pods.get(&pod.key).filter(|current| current.uid == pod.uid);
            let Some(current) = current else { return false };
            let given = |one: &Move| {
                let mut containers = current.containers.iter();
                containers.any(|container| *container.name == *one.container && *container.image == *one.to)
            };
            if repair.moves.iter().all(given) {
                report::healed(&context.events, pod, repair);
                metrics.patched(pod, repair, now);
                incidents.patched(&pod.uid, now);
                return false;
            }
            now.duration_since(*since) < UNANSWERED
        });
    }
}
