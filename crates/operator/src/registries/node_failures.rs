//! What nodes could not pull although its registry has it, on every replica: learnt from the Pod watch, heeded by
//! admission and healing. What counts is decided in [`fairlead_plan::node_failures`].

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fairlead_domain::keyring::{Credential, CredentialId};
use fairlead_domain::reference::Reference;
use fairlead_domain::verdict::Verdict;
use fairlead_plan::node_failures::{NodeFailure, NodeFailures as Known, teaches};
use fairlead_plan::pull_failure::PullFailure;
use fairlead_plan::routing::SecretName;
use futures::future::join_all;
use futures::{StreamExt, stream};
use jiff::Timestamp;
use parking_lot::RwLock;
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;

use super::secrets::Keys;
use crate::capabilities::heal::cause_of;
use crate::cluster::state::PodEntry;
use crate::context::Context;

/// How often changes are looked at, at most.
const DEBOUNCE: Duration = Duration::from_millis(200);
/// A registry that has just died is not known to be dead yet. What may be its fault is looked at after this time, when
/// its last answer proves nothing any more.
const DOUBT: Duration = Duration::from_secs(5);
/// Failures that wait for it, at most.
const MOST_WAITING: usize = 1024;
/// Longest time between two looks.
const IDLE: Duration = Duration::from_mins(1);
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

    pub(crate) fn learn(&self, image: &Reference, failure: NodeFailure) {
        self.known.write().learn(image, failure);
        self.any.store(true, Ordering::Relaxed);
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
    let mut waiting = VecDeque::new();
    let learning = async {
        loop {
            let (pods, now) = (&context.resources.pods, Instant::now());
            let (mut due, wait) = seen
                .news(&pods.take_failed())
                .into_iter()
                .partition::<Vec<_>, _>(|failed| !failed.failure.is_of_registry());
            waiting.extend(wait.into_iter().map(|failed| (now + DOUBT, failed)));
            while let Some((_, failed)) = waiting.pop_front_if(|(at, _)| *at <= now) {
                due.push(failed);
            }
            waiting.truncate(MOST_WAITING);
            seen.keep(&pods.failing());
            let lessons = due.into_iter().map(|failed| failed.learn(&context));
            stream::iter(lessons).buffer_unordered(AT_ONCE).collect::<()>().await;
            context.node_failures.forget();
            sleep(DEBOUNCE).await;
            let next = waiting.front().map_or_else(|| now + IDLE, |(at, _)| *at);
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
}

/// UID of a Pod, and name of a container.
type ContainerKey = (Arc<str>, Arc<str>);

/// The failures that were taken up: the image, and the kubelet's reason.
#[derive(Default)]
struct Seen(HashMap<ContainerKey, (Arc<str>, Option<Arc<str>>)>);

impl Seen {
    /// What failed since. A kubelet that waits before it tries again says nothing new; an attempt that failed does.
    fn news(&mut self, failed: &VecDeque<Arc<PodEntry>>) -> Vec<Failed> {
        let mut news = Vec::new();
        for pod in failed {
            let Some(node) = &pod.node else { continue };
            for container in &pod.containers {
                let Some(problem) = &container.pull_problem else { continue };
                let key = (pod.uid.clone(), container.name.clone());
                let state = (container.image.clone(), container.waiting.clone());
                let before = self.0.insert(key, state.clone());
                let tried = state.1.as_deref() == Some("ErrImagePull") && before.as_ref() != Some(&state);
                let is_new = before.is_none_or(|before| before.0 != state.0);
                if !(is_new || tried) || !problem.failure.is_of_location() {
                    continue;
                }
                let image = match &problem.volume {
                    Some(name) => pod.volume(name),
                    None => Some(&container.image),
                };
                let Some(Ok(image)) = image.map(|image| Reference::parse(image)) else { continue };
                news.push(Failed { pod: pod.clone(), node: node.clone(), image, failure: problem.failure });
            }
        }
        news
    }

    /// Forgets Pods that do not fail any more.
    fn keep(&mut self, failing: &[Arc<PodEntry>]) {
        let present: HashSet<_> = failing.iter().map(|pod| &pod.uid).collect();
        self.0.retain(|(uid, _), _| present.contains(uid));
    }
}

impl Failed {
    /// Asks the registry as the Pod would, and remembers the failure if the image is there.
    async fn learn(self, context: &Context) {
        let Self { pod, node, image, failure } = self;
        let deadline = Instant::now() + PATIENCE;
        let keys = pull_secrets(context, &pod, deadline).await;
        let credentials = Keys::lookup(keys.iter().map(Arc::as_ref), &image.repository());
        let verdicts = context.verdicts.caused_by(cause_of(context, &pod, &image));
        let verdict = verdicts.ask(&image, &credentials, &pod.key.namespace, deadline).await;
        if teaches(failure, &verdict) {
            tracing::info!(%image, %node, pod = %pod.key, %failure, "a node cannot pull what its registry has");
            let failure = NodeFailure {
                namespace: pod.key.namespace.clone(),
                credentials: credentials.iter().map(Credential::id).collect(),
                node,
                failure,
                at: Timestamp::now(),
            };
            context.node_failures.learn(&image, failure);
        }
    }
}

/// What is in the pull secrets of a Pod. One that cannot be read is the kubelet's to complain about.
pub(crate) async fn pull_secrets(context: &Context, pod: &PodEntry, deadline: Instant) -> Vec<Arc<Keys>> {
    let name = |name: &Arc<str>| SecretName { namespace: pod.key.namespace.clone(), name: name.clone() };
    let names: Vec<_> = pod.pull_secrets.iter().map(name).collect();
    let reads = join_all(names.iter().map(|name| context.secrets.read(name, deadline))).await;
    reads.iter().filter_map(|read| read.keys().cloned()).collect()
}
