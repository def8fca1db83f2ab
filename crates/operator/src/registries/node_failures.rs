//! What nodes could not pull although its registry has it, on every replica: learnt from the Pod watch, heeded by
//! admission and healing. What counts is decided in [`fairlead_plan::node_failures`].

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fairlead_api::names::fairlead::HEALED;
use fairlead_api::names::reef::{PATCHED, PATCHED_CONTAINERS};
use fairlead_domain::keyring::{Credential, CredentialId};
use fairlead_domain::reference::Reference;
use fairlead_domain::verdict::Verdict;
use fairlead_plan::heal::Written;
use fairlead_plan::node_failures::{NodeFailure, NodeFailures as Known, teaches};
use fairlead_plan::pull_failure::PullFailure;
use futures::{StreamExt, stream};
use jiff::Timestamp;
use parking_lot::{Mutex, RwLock};
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::cluster::state::{Container, Key, PodEntry, Pods, PullProblem, Role};
use crate::context::Context;

/// How often changes are looked at, at most.
const DEBOUNCE: Duration = Duration::from_millis(200);
/// What may be the fault of the registry counts if that answers at once and after this time, on new connections: one
/// that has just died is not known to be dead yet, and one that restarts is back soon.
const DOUBT: Duration = Duration::from_secs(5);
/// The same question is not asked anew before. Shorter, so that the second time it is.
const ASKED: Duration = Duration::from_secs(2);
/// Failures that wait for it, at most.
const MOST_WAITING: usize = 1024;
/// Longest time between two looks.
const IDLE: Duration = Duration::from_mins(1);
/// The same while a Pod that failed is about to start.
const START: Duration = Duration::from_secs(5);
/// Images that registries are asked about at once, and the time for one.
const AT_ONCE: usize = 8;
const PATIENCE: Duration = Duration::from_secs(5);

/// Clones share everything.
#[derive(Debug, Clone, Default)]
pub struct NodeFailures {
    known: Arc<RwLock<Known>>,
    /// Read before the lock: most of the time nothing is known.
    any: Arc<AtomicBool>,
}

impl NodeFailures {
    /// A verdict in the light of what nodes could not pull.
    pub fn judge(
        &self,
        image: &Reference,
        namespace: &str,
        credentials: &[Credential],
        verdict: Verdict,
    ) -> Verdict {
        if !self.any.load(Ordering::Relaxed) {
            return verdict;
        }
        let credentials: Vec<CredentialId> = credentials.iter().map(Credential::id).collect();
        self.known.read().judge(image, namespace, &credentials, Timestamp::now(), verdict)
    }

    pub fn learn(&self, image: &Reference, failure: NodeFailure) {
        self.known.write().learn(image, failure);
        self.any.store(true, Ordering::Relaxed);
    }

    /// Takes up a failure, and tells whether it counts.
    fn observe(&self, image: &Reference, failure: NodeFailure, well: bool) -> bool {
        let counts = self.known.write().observe(image, failure, well);
        self.any.store(true, Ordering::Relaxed);
        counts
    }

    fn pulled(&self, image: &Reference, namespace: &str, node: &str) {
        if self.any.load(Ordering::Relaxed) {
            self.known.write().pulled(image, namespace, node);
        }
    }

    fn forget(&self) {
        if self.any.load(Ordering::Relaxed) {
            let mut known = self.known.write();
            known.forget(Timestamp::now());
            self.any.store(!known.is_empty(), Ordering::Relaxed);
        }
    }
}

/// Learns from the Pod watch until the end.
pub async fn learn(context: Arc<Context>, stop: CancellationToken) {
    let mut changes = context.resources.pods.failing_changes();
    let mut seen = Seen::default();
    let (mut waiting, asked) = (VecDeque::new(), AskedAnew::default());
    let learning = async {
        loop {
            let (pods, now) = (&context.resources.pods, Instant::now());
            let (mut due, wait) = seen
                .news(&pods.take_failed(), Timestamp::now())
                .into_iter()
                .partition::<Vec<_>, _>(|failed| !failed.failure.is_of_registry());
            let wait = stream::iter(wait.into_iter().map(|failed| failed.doubted(&context, &asked)));
            let wait: Vec<_> = wait.buffer_unordered(AT_ONCE).collect().await;
            waiting.extend(wait.into_iter().map(|failed| (now + DOUBT, failed)));
            while let Some((_, failed)) = waiting.pop_front_if(|(at, _)| *at <= now) {
                due.push(failed);
            }
            waiting.truncate(MOST_WAITING);
            for (pod, image) in seen.over(pods) {
                let node = pod.node.as_deref().unwrap_or_default();
                context.node_failures.pulled(&image, &pod.key.namespace, node);
            }
            let lessons = due.into_iter().map(|failed| failed.learn(&context, &asked));
            stream::iter(lessons).buffer_unordered(AT_ONCE).collect::<()>().await;
            context.node_failures.forget();
            asked.forget();
            sleep(DEBOUNCE).await;
            let idle = now + if seen.awaits_start { START } else { IDLE };
            let next = waiting.front().map_or(idle, |(at, _)| idle.min(*at));
            // Either way it is time to look.
            let _ = timeout_at(next, changes.next()).await;
        }
    };
    stop.run_until_cancelled(learning).await;
}

/// A pull that failed, with its Pod.
struct Failed {
    pod: Arc<PodEntry>,
    node: Arc<str>,
    image: Reference,
    failure: PullFailure,
    /// The registry answered when the failure was seen.
    well: bool,
}

/// An image, with the namespace and the pull secrets that it was asked about with.
type AskedKey = (Reference, Arc<str>, Arc<[Arc<str>]>);

/// What registries were asked about anew, and when. In a wave of failures each question is asked once.
#[derive(Default)]
struct AskedAnew(Mutex<HashMap<AskedKey, Instant>>);

impl AskedAnew {
    /// Whether it is time to ask anew. What was found out a moment ago is in memory.
    fn is_due(&self, failed: &Failed) -> bool {
        let Failed { pod, image, .. } = failed;
        let key = (image.pulled(), pod.key.namespace.clone(), pod.pull_secrets.clone());
        let now = Instant::now();
        let mut asked = self.0.lock();
        let is_due = asked.get(&key).is_none_or(|at| *at + ASKED <= now);
        if is_due {
            asked.insert(key, now);
        }
        is_due
    }

    fn forget(&self) {
        let now = Instant::now();
        self.0.lock().retain(|_, at| *at + ASKED > now);
    }
}

/// UID of a Pod, and name of a container.
type ContainerKey = (Arc<str>, Arc<str>);

/// The failures that were taken up: the image, and the kubelet's reason.
#[derive(Default)]
struct Seen {
    containers: HashMap<ContainerKey, SeenContainer>,
    /// Some Pod fails no more and has not started either.
    awaits_start: bool,
}

struct SeenContainer {
    pod: Key,
    /// What the container names, and the kubelet's reason.
    state: (Arc<str>, Option<Arc<str>>),
    /// What could not be pulled.
    failed: Option<Reference>,
}

impl Seen {
    /// What failed since. A kubelet that waits before it tries again says nothing new; an attempt that failed does.
    fn news(&mut self, failed: &VecDeque<Arc<PodEntry>>, now: Timestamp) -> Vec<Failed> {
        let mut news = Vec::new();
        for pod in failed {
            let Some(node) = &pod.node else { continue };
            for container in &pod.containers {
                let Some(problem) = &container.pull_problem else { continue };
                if is_old_news(pod, container, now) {
                    continue;
                }
                let key = (pod.uid.clone(), container.name.clone());
                let state = (container.image.clone(), container.waiting.clone());
                let failed = failed_image(pod, container, problem);
                let seen =
                    SeenContainer { pod: pod.key.clone(), state: state.clone(), failed: failed.clone() };
                let before = self.containers.insert(key, seen).map(|before| before.state);
                let tried = state.1.as_deref() == Some("ErrImagePull") && before.as_ref() != Some(&state);
                let is_new = before.is_none_or(|before| before.0 != state.0);
                if !(is_new || tried) || !problem.failure.is_of_location() {
                    continue;
                }
                let Some(image) = failed else { continue };
                let (pod, node, failure) = (pod.clone(), node.clone(), problem.failure);
                news.push(Failed { pod, node, image, failure, well: false });
            }
        }
        news
    }

    /// Forgets Pods that are gone, were given another image, or have started; the last with what they pulled after all.
    fn over(&mut self, pods: &Pods) -> Vec<(Arc<PodEntry>, Reference)> {
        let (mut pulled, mut awaits_start) = (Vec::new(), false);
        self.containers.retain(|(uid, name), seen| {
            let Some(pod) = pods.get(&seen.pod).filter(|pod| pod.uid == *uid && !pod.deleting) else {
                return false;
            };
            let container = pod.containers.iter().find(|one| one.name == *name && one.role != Role::Volume);
            let Some(container) = container.filter(|one| one.image == seen.state.0) else { return false };
            let waits = container.pull_problem.is_some() || !container.created;
            awaits_start |= waits && container.pull_problem.is_none();
            if !waits && let Some(image) = seen.failed.take() {
                pulled.push((pod.clone(), image));
            }
            waits
        });
        self.awaits_start = awaits_start;
        pulled
    }
}

/// Whether what the kubelet says of a container may be about the image that it had before it was healed.
pub(crate) fn is_old_news(pod: &PodEntry, container: &Container, now: Timestamp) -> bool {
    let vague = container.pull_problem.as_ref().filter(|problem| !problem.names_image);
    let Some(waiting) = container.waiting.as_deref().filter(|_| vague.is_some()) else { return false };
    let text = |key: &str| pod.annotation(key).map(|text| &**text);
    let (patched, patched_containers) = (text(PATCHED), text(PATCHED_CONTAINERS));
    let written = Written { patched, patched_containers, ..Written::default() };
    written.old_news_until(&container.name, waiting, now).is_some()
}

/// The image that could not be pulled: the container's, or that of a volume of it.
fn failed_image(pod: &PodEntry, container: &Container, problem: &PullProblem) -> Option<Reference> {
    let image = match &problem.volume {
        Some(name) => pod.volume(name)?,
        None => &container.image,
    };
    Reference::parse(image).ok()
}

/// What a node could not pull for a Pod: now, or before healing gave it other images.
pub fn failed_pulls(pod: &PodEntry) -> Vec<(Reference, PullFailure, Timestamp)> {
    let written = Written { healed: pod.annotation(HEALED).map(|text| &**text), ..Written::default() };
    let tried = written.tried(&pod.uid);
    let before = tried
        .failures()
        .filter_map(|(image, failure, at)| Some((Reference::parse(image).ok()?, failure, at)));
    let now = pod.containers.iter().filter_map(|container| {
        let (problem, now) = (container.pull_problem.as_ref()?, Timestamp::now());
        let image = failed_image(pod, container, problem).filter(|_| !is_old_news(pod, container, now))?;
        Some((image, problem.failure, now))
    });
    before.chain(now).filter(|(_, failure, _)| failure.is_of_location()).collect()
}

impl Failed {
    /// Notes whether the registry is well for others now.
    async fn doubted(self, context: &Context, asked: &AskedAnew) -> Self {
        let answer = self.ask(context, asked).await;
        Self { well: answer.is_some_and(|(_, verdict)| verdict.is_available()), ..self }
    }

    /// Asks the registry as the Pod would, and remembers the failure if the image is there.
    async fn learn(self, context: &Context, asked: &AskedAnew) {
        let Some((credentials, verdict)) = self.ask(context, asked).await else { return };
        let Self { pod, node, image, failure, well } = self;
        if teaches(failure, &verdict) {
            let learnt = NodeFailure {
                namespace: pod.key.namespace.clone(),
                credentials: credentials.iter().map(Credential::id).collect(),
                node: node.clone(),
                failure,
                at: Timestamp::now(),
            };
            if context.node_failures.observe(&image, learnt, well) {
                tracing::info!(%image, %node, pod = %pod.key, %failure, "a node cannot pull what its registry has");
            }
        }
    }

    /// What the registry says; none if it is not known what the node asked with. What may be the fault of the registry
    /// takes an answer of this moment on a new connection, as a node would open one.
    async fn ask(&self, context: &Context, asked: &AskedAnew) -> Option<(Vec<Credential>, Verdict)> {
        let Self { pod, image, .. } = self;
        let deadline = Instant::now() + PATIENCE;
        let keys = context.secrets.of_pod(pod, deadline).await;
        if !keys.is_complete() {
            return None;
        }
        let credentials = keys.credentials(image);
        let verdicts = context.verdicts.caused_by(context.cause_of(pod, image));
        let namespace = &pod.key.namespace;
        let verdict = if self.failure.is_of_registry() && asked.is_due(self) {
            verdicts.ask_as_node(image, &credentials, namespace, deadline).await
        } else {
            verdicts.ask(image, &credentials, namespace, deadline).await
        };
        Some((credentials, verdict))
    }
}
