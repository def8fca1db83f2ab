//! Which pulls start now.

use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use super::actions::{Action, Creation, Event, EventKind, Plan};
use super::image::{Attached, Clock, Image, Need, Rank, Stance};
use super::pacing::{Load, Slots, Wait, slots};
use super::pull_pod::Order;
use super::record::{Pull, Record};
use super::round::{Awaited, UNSEEN, Warming};
use super::snapshot::Snapshot;
use super::time::{after, earliest};

/// Images of one Pod: the kubelet pulls them one after another, and the Pod has one deadline.
const MOST_IN_BATCH: usize = 32;
/// How long an image waits for others that may come or change with it, to share its Pods.
const GATHERING: Duration = Duration::from_secs(1);
/// How long it waits for one of which it is not decided yet what it is pulled as.
const UNDECIDED: Duration = Duration::from_secs(15);
/// How long a new lease holder waits in batch mode with images that were there before it. A Pod that the former one
/// asked for last may come by then; it would not be met by its name, because images may be grouped in another way now.
const TAKEOVER: Duration = UNSEEN;

/// An image that may start pulls in this round.
struct Candidate {
    image: Arc<str>,
    priority: i32,
    served: u64,
    name: Arc<str>,
    slots: usize,
    /// Only onto nodes that lack it, and on which it has not failed yet.
    fresh_only: bool,
    /// Nodes up to this one have been tried.
    tried: Option<Rank>,
}

impl Candidate {
    fn may_start(&self, fresh: bool) -> bool {
        fresh || !self.fresh_only
    }
}

impl Warming {
    pub(super) fn schedule(&mut self, snapshot: &Snapshot<'_>, plan: &mut Plan) {
        let mut load = Load::default();
        let clock = self.clock(snapshot.now);
        for (node, image, active) in self.pods_under_way(clock) {
            // What hangs takes no slot, but its node gets no more Pods than others.
            if active {
                load.add(image.policy_name.as_ref(), node);
            } else {
                load.add_to_node(node);
            }
        }
        for image in self.images.values_mut() {
            let Some(due) = image.platforms_due() else { continue };
            let again = if due <= snapshot.now { after(snapshot.now, UNSEEN) } else { due };
            plan.look_again = earliest(plan.look_again, Some(again));
            if due <= snapshot.now && image.ask_for_route(snapshot.now) {
                plan.actions.push(Action::Route { image: Arc::clone(&image.uid) });
            }
        }
        let mut candidates = self.candidates(snapshot, plan);
        if self.settings.batch {
            self.gather(&mut candidates, snapshot.now, plan);
        }
        // One slot for each image, and again, until none can start any more; then those of the next priority.
        candidates.sort_by(|one, other| {
            (one.priority, one.served, &one.name).cmp(&(other.priority, other.served, &other.name))
        });
        let mut start = 0;
        while let Some(priority) = candidates.get(start).map(|candidate| candidate.priority) {
            let end = candidates.partition_point(|candidate| candidate.priority <= priority);
            let mut started = true;
            while started {
                started = false;
                for at in start..end {
                    started |= self.start_one(&mut candidates, at, &mut load, snapshot.now, plan);
                }
            }
            start = end;
        }
    }

    /// Images with something to pull and a free slot.
    fn candidates(&mut self, snapshot: &Snapshot<'_>, plan: &mut Plan) -> Vec<Candidate> {
        let clock = self.clock(snapshot.now);
        let mut candidates = Vec::new();
        for image in self.images.values_mut().filter(|image| !image.waiting.is_empty()) {
            match free_slots(image, snapshot, clock) {
                Ok(_) if image.is_outdated(snapshot.now) => {
                    if image.ask_for_route(snapshot.now) {
                        plan.actions.push(Action::Route { image: Arc::clone(&image.uid) });
                    }
                    plan.look_again = earliest(plan.look_again, Some(after(snapshot.now, UNSEEN)));
                }
                Ok(slots) => candidates.push(Candidate {
                    image: Arc::clone(&image.uid),
                    priority: image.object.spec.priority.unwrap_or(0),
                    served: image.served,
                    name: Arc::clone(&image.name),
                    slots: slots.count,
                    fresh_only: slots.fresh_only,
                    tried: None,
                }),
                Err(at) => plan.look_again = earliest(plan.look_again, at),
            }
        }
        candidates
    }

    /// Leaves out images that others are about to join: what starts alone now is not pulled together later.
    fn gather(&self, candidates: &mut Vec<Candidate>, now: Timestamp, plan: &mut Plan) {
        let taken_over = self.began.map_or(Timestamp::MIN, |began| after(began, TAKEOVER));
        let ends = self.images.values().map(|image| {
            let inherited = if image.inherited { taken_over } else { Timestamp::MIN };
            (image, gathers_until(image).max(inherited))
        });
        let gathering: Vec<_> = ends.filter(|(_, end)| *end > now).collect();
        candidates.retain(|candidate| {
            let Some(image) = self.images.get(&candidate.image) else { return false };
            let others = gathering.iter().filter(|(other, _)| is_alike(image, other));
            let end = others.map(|(_, end)| *end).max();
            plan.look_again = earliest(plan.look_again, end);
            end.is_none()
        });
    }

    /// Starts a pull of one candidate; in a batch, with what others have for the same node.
    fn start_one(
        &mut self,
        candidates: &mut [Candidate],
        at: usize,
        load: &mut Load,
        now: Timestamp,
        plan: &mut Plan,
    ) -> bool {
        let Some(candidate) = candidates.get_mut(at).filter(|candidate| candidate.slots > 0) else {
            return false;
        };
        let Some(image) = self.images.get(&candidate.image) else { return false };
        let policy = image.policy_name.as_ref();
        let most = policy.zip(image.pace.pulls);
        if !load.has_room(&self.settings.caps, most) {
            return false;
        }
        let caps = self.settings.caps;
        let from = candidate.tried.as_ref().map_or(Bound::Unbounded, Bound::Excluded);
        let mut untried = image.waiting.range((from, Bound::Unbounded));
        let suits = |rank: &&Rank| candidate.may_start(rank.is_fresh()) && !load.is_full(&caps, &rank.node);
        let Some(rank) = untried.find(suits).cloned() else {
            candidate.slots = 0;
            return false;
        };
        candidate.tried = Some(rank.clone());
        let mut together = vec![at];
        if self.settings.batch {
            let fits = |candidate: &Candidate| {
                let other = self.images.get(&candidate.image).filter(|_| candidate.slots > 0);
                let needed = other.filter(|other| is_alike(image, other));
                needed
                    .and_then(|other| needed_pull(other, &rank.node))
                    .is_some_and(|fresh| candidate.may_start(fresh))
            };
            let others =
                candidates.iter().enumerate().filter(|(other, candidate)| *other != at && fits(candidate));
            together.extend(others.map(|(other, _)| other).take(MOST_IN_BATCH - 1));
        }
        for at in &together {
            if let Some(candidate) = candidates.get_mut(*at) {
                candidate.slots -= 1;
            }
        }
        let mut images: Vec<Arc<str>> = together
            .iter()
            .filter_map(|at| candidates.get(*at))
            .map(|candidate| Arc::clone(&candidate.image))
            .collect();
        // The name of the Pod must not depend on whose turn it is.
        images.sort_unstable();
        load.add(policy, &rank.node);
        self.start(&images, &rank.node, now, plan);
        true
    }

    /// Creates the Pod that pulls these images onto a node.
    fn start(&mut self, images: &[Arc<str>], node: &Arc<str>, now: Timestamp, plan: &mut Plan) {
        let Some(known) = self.nodes.get(node).cloned() else { return };
        let pulls = images.iter().filter_map(|image| {
            let image = self.images.get(image)?;
            Some(Pull {
                image: Arc::clone(&image.name),
                uid: Arc::clone(&image.uid),
                reference: image.reference()?.as_str().into(),
                attempt: image.next_attempt(node),
            })
        });
        let record = Arc::new(Record {
            node: Arc::clone(&known.node.uid),
            volumes: self.settings.runner.is_some(),
            pulls: pulls.collect(),
        });
        let first = record.pulls.first().and_then(|pull| self.images.get(&pull.uid));
        let Some(first) = first else { return };
        let order = Order {
            namespace: Arc::clone(&self.settings.namespace),
            node: Arc::clone(&known.node),
            record: Arc::clone(&record),
            like: Arc::clone(&first.object),
            pull_secrets: first
                .routed
                .as_ref()
                .map(|routed| Arc::clone(&routed.pull_secrets))
                .unwrap_or_default(),
            deadline: self.settings.pull_deadline,
            runner: self.settings.runner.clone(),
        };
        let name: Arc<str> = record.pod_name().into();
        let creation = Creation { name: Arc::clone(&name), order };
        plan.actions.push(Action::Create(creation.clone()));
        for pull in &record.pulls {
            let Some(image) = self.images.get_mut(&pull.uid) else { continue };
            let attached = Attached {
                pod: Arc::clone(&name),
                attempt: pull.attempt,
                reference: Arc::clone(&pull.reference),
                created: now,
                seen: false,
                acknowledged: false,
                stuck: None,
            };
            image.pods.insert(Arc::clone(node), attached);
            image.memory.started(now);
            self.turn += 1;
            image.served = self.turn;
            let (image, name, node_name) =
                (Arc::clone(&image.uid), Arc::clone(&image.name), Arc::clone(&known.node.name));
            let kind = EventKind::Started;
            plan.actions.push(Action::Tell(Event { image: Arc::clone(&image), name, node: node_name, kind }));
            self.look(&image, node, now);
        }
        self.awaited.insert(name, Awaited { creation, answered: None, doubts: 0 });
    }
}

/// How many pulls of the image may start, or when that may change by itself.
fn free_slots(image: &Image, snapshot: &Snapshot<'_>, clock: Clock) -> Result<Slots, Option<Timestamp>> {
    let refused = image.refused.as_ref().map(|refused| refused.until);
    if let Some(until) = refused.filter(|until| *until > snapshot.now) {
        return Err(Some(until));
    }
    if let Some(trouble) = snapshot.troubles.get(&image.uid) {
        return Err(trouble.until);
    }
    slots(&image.pace, image.progress(clock), clock.now).map_err(|wait| match wait {
        Wait::Nodes => None,
        Wait::Delay(until) => Some(until),
    })
}

fn gathers_until(image: &Image) -> Timestamp {
    let undecided = image.route_asked.or_else(|| image.routed.is_none().then_some(image.renewed));
    let undecided = undecided.map(|since| after(since, UNDECIDED));
    after(image.renewed, GATHERING).max(undecided.unwrap_or(Timestamp::MIN))
}

/// Whether a node that needs a pull now lacks the image, and has not failed to pull it.
fn needed_pull(image: &Image, node: &str) -> Option<bool> {
    match image.stance(node) {
        Some(Stance::Target { need: Need::Pull { again, .. }, .. }) => Some(!again),
        _ => None,
    }
}

/// Whether one Pod can pull both.
fn is_alike(one: &Image, other: &Image) -> bool {
    let (a, b) = (&one.object.spec, &other.object.spec);
    a.policy_ref == b.policy_ref
        && a.tolerations == b.tolerations
        && a.image_pull_secrets == b.image_pull_secrets
        && a.image_pull_policy == b.image_pull_policy
        && routed_secrets(one) == routed_secrets(other)
}

fn routed_secrets(image: &Image) -> &[Arc<str>] {
    image.routed.as_ref().map_or(&[][..], |routed| &routed.pull_secrets)
}
