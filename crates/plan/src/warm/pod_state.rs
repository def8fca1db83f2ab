//! How far a pull is, by what the kubelet says of its container.
//!
//! The kubelet pulls before it creates, so a container that was created, or that failed in any later step, has its
//! image on the node. Whether it ran does not matter: most images of interest have no `true`, and some no shell at all.

use std::sync::Arc;

use fairlead_api::fairlead::MAX_FAILURE_MESSAGE;
use fairlead_domain::{digest::Digest, reference::Reference};
use jiff::Timestamp;

use super::record::{Pull, Record};
use crate::pull_failure::PullFailure;

/// What the kubelet calls containers of a Pod that it has lost, or that ended before they were created.
const NEVER_CREATED: &str = "ContainerStatusUnknown";

/// Characters of a reason. Nothing in Kubernetes has longer ones.
const MAX_REASON: usize = 64;

/// How far a Pod has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    Pending,
    Running,
    Succeeded,
    Failed,
    Unknown,
}

/// A pull Pod as it is observed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PullPod {
    pub name: Arc<str>,
    pub created: Timestamp,
    pub phase: Phase,
    /// Why the Pod as a whole failed, `Evicted` for instance.
    pub reason: Option<Arc<str>>,
    /// What it pulls: see [`Record::read`].
    pub record: Arc<Record>,
    /// Number of image volumes that the stored Pod has.
    pub volumes: usize,
    pub containers: Box<[PullContainer]>,
}

/// A container of a pull Pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PullContainer {
    pub name: Arc<str>,
    pub image_id: Option<Arc<str>>,
    /// The runtime has made a container of it.
    pub created: bool,
    /// Why it waits, `ImagePullBackOff` for instance.
    pub waiting: Option<Arc<str>>,
    /// A pull that failed, with the end of the kubelet's message.
    pub problem: Option<(PullFailure, Arc<str>)>,
    /// Why it ended.
    pub terminated: Option<Arc<str>>,
}

/// How far the pull of one image is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PullState {
    Pulling,
    /// It failed, and the kubelet's next try may succeed. It takes no slot meanwhile.
    Stuck(Failure),
    /// The image is on the node.
    Present {
        digest: Option<Digest>,
    },
    Failed(Failure),
}

/// Why a pull failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// One word, the kubelet's where it has one.
    pub reason: Arc<str>,
    pub message: Arc<str>,
    /// Another node would meet the same.
    pub of_image: bool,
}

impl Failure {
    pub fn new(reason: &str, message: impl AsRef<str>) -> Self {
        let cut =
            |text: &str, most: usize| text.get(..text.floor_char_boundary(most)).unwrap_or_default().into();
        let message = cut(message.as_ref(), MAX_FAILURE_MESSAGE);
        Self { reason: cut(reason, MAX_REASON), message, of_image: false }
    }
}

impl PullPod {
    /// Whether the node's kubelet has said anything about the Pod.
    pub(super) fn is_acknowledged(&self) -> bool {
        let said = |one: &PullContainer| {
            one.created || one.image_id.is_some() || one.waiting.is_some() || one.terminated.is_some()
        };
        self.phase != Phase::Pending || self.containers.iter().any(said)
    }
}

/// The state of one pull of a Pod.
pub fn pull_state(pod: &PullPod, pull: &Pull) -> PullState {
    let by_volume = pod.record.volumes;
    if by_volume && pod.volumes == 0 {
        let message = "the API server dropped the image volume: Kubernetes is too old, or the feature is off";
        return PullState::Failed(Failure::new("ImageVolumeDropped", message));
    }
    let name = pod.record.container(pull);
    let container = pod.containers.iter().find(|container| *container.name == *name);
    if let Some(container) = container {
        if is_past_the_pull(container, by_volume) {
            // For an image volume the identifier is that of the runner.
            let digest = container.image_id.as_deref().filter(|_| !by_volume).and_then(digest_of);
            return PullState::Present { digest };
        }
        if let Some(state) = failing(container) {
            return state;
        }
    }
    match pod.phase {
        Phase::Succeeded => PullState::Present { digest: None },
        Phase::Failed => {
            let reason = pod.reason.as_deref().unwrap_or("PodFailed");
            PullState::Failed(Failure::new(reason, format!("the Pod failed: {reason}")))
        }
        Phase::Pending | Phase::Running | Phase::Unknown => PullState::Pulling,
    }
}

fn is_past_the_pull(container: &PullContainer, by_volume: bool) -> bool {
    let ended = container.terminated.as_deref().is_some_and(|reason| reason != NEVER_CREATED);
    let started_badly = matches!(
        container.waiting.as_deref(),
        Some("PreStartHookError" | "RunContainerError" | "CrashLoopBackOff" | "PostStartHookError")
    );
    // Mounting an image volume is part of creating the container.
    let created_badly = !by_volume
        && matches!(
            container.waiting.as_deref(),
            Some("CreateContainerConfigError" | "PreCreateHookError" | "CreateContainerError")
        );
    container.created
        || ended
        || started_badly
        || created_badly
        || (!by_volume && container.image_id.is_some())
}

fn failing(container: &PullContainer) -> Option<PullState> {
    let reason = container.waiting.as_deref().unwrap_or_default();
    let Some((cause, text)) = &container.problem else {
        // Reached for image volumes only.
        return (reason == "CreateContainerError").then(|| {
            PullState::Failed(Failure::new(
                reason,
                "the image volume cannot be mounted: see the events of the Pod",
            ))
        });
    };
    let message = if text.is_empty() { cause.to_string() } else { format!("{cause}: {text}") };
    let failure = Failure { of_image: is_of_image(*cause), ..Failure::new(reason, message) };
    match cause {
        // The kubelet's own limit: it tries again by itself.
        PullFailure::TooManyPulls => None,
        PullFailure::Network
        | PullFailure::Resolver
        | PullFailure::RateLimited
        | PullFailure::Inspect
        | PullFailure::Unknown => Some(PullState::Stuck(failure)),
        PullFailure::NotFound
        | PullFailure::Denied
        | PullFailure::ConnectionRefused
        | PullFailure::NoSuchHost
        | PullFailure::Unavailable
        | PullFailure::Certificate
        | PullFailure::DiskFull
        | PullFailure::Platform
        | PullFailure::Signature
        | PullFailure::Content
        | PullFailure::Corrupt
        | PullFailure::NeverPull
        | PullFailure::InvalidName => Some(PullState::Failed(failure)),
    }
}

/// Whether other nodes would meet the same, because it has to do with the image or with its registry. Where only the
/// node is to blame, pulls on other nodes succeed meanwhile.
fn is_of_image(cause: PullFailure) -> bool {
    matches!(
        cause,
        PullFailure::NotFound
            | PullFailure::Denied
            | PullFailure::InvalidName
            | PullFailure::RateLimited
            | PullFailure::ConnectionRefused
            | PullFailure::NoSuchHost
            | PullFailure::Unavailable
            | PullFailure::Network
    )
}

/// The digest in a runtime's identifier. One without a repository names a configuration, which no registry serves.
fn digest_of(image_id: &str) -> Option<Digest> {
    let image_id = image_id.rsplit_once("://").map_or(image_id, |(_, id)| id);
    Reference::parse(image_id).ok()?.digest()
}
