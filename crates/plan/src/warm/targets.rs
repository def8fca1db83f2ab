//! Onto which nodes an image is pulled, and why not onto the others.
//!
//! A pull Pod names its node, so the scheduler is not asked: what it would look at is looked at here.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use fairlead_api::drop::{CachedImageSpec, PullPolicySpec};
use fairlead_api::names::fairlead::WARMING;
use fairlead_domain::platform::Platform;
use k8s_openapi::api::core::v1::Toleration;

use crate::node::{Node, Taint};

const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";
const DISK_PRESSURE: &str = "node.kubernetes.io/disk-pressure";

/// Taints that go away by themselves while a node starts or recovers.
const PASSING_DOMAINS: [&str; 6] = [
    "node.kubernetes.io/",
    "node.cloudprovider.kubernetes.io/",
    "startup-taint.cluster-autoscaler.kubernetes.io/",
    "status-taint.cluster-autoscaler.kubernetes.io/",
    "ignore-taint.cluster-autoscaler.kubernetes.io/",
    "readiness.k8s.io/",
];
/// `node.cilium.io/agent-not-ready` and `karpenter.sh/unregistered`, for instance. No list can be complete: these are
/// the words that such taints have in common.
const PASSING_WORDS: [&str; 7] =
    ["startup", "not-ready", "notready", "unready", "unregistered", "uninitialized", "initializing"];

/// Why an image is not pulled onto a node.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Skip {
    /// Labels that the image or its policy asks for are missing.
    Selector,
    /// The image has no variant for the node.
    Platform {
        os: Arc<str>,
        architecture: Arc<str>,
    },
    /// A taint that is not tolerated.
    Taint {
        key: Arc<str>,
    },
    NotReady,
    DiskPressure,
    Cordoned,
}

impl Skip {
    /// Whether it stays so until something is edited. What passes is waited for: pulls go on, and a gate stays
    /// closed.
    pub fn is_lasting(&self) -> bool {
        match self {
            Self::Selector | Self::Platform { .. } => true,
            Self::Taint { key } => !is_passing(key),
            Self::NotReady | Self::DiskPressure | Self::Cordoned => false,
        }
    }
}

impl fmt::Display for Skip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Selector => f.write_str("labels do not match"),
            Self::Platform { os, architecture } => {
                write!(f, "the image has no variant for {os}/{architecture}")
            }
            Self::Taint { key } => write!(f, "taint {key} is not tolerated"),
            Self::NotReady => f.write_str("not ready"),
            Self::DiskPressure => f.write_str("disk pressure"),
            Self::Cordoned => f.write_str("cordoned"),
        }
    }
}

/// What an image and its policy ask of nodes.
#[derive(Debug, Clone, Copy)]
pub struct Targets<'a> {
    selectors: [Option<&'a BTreeMap<String, String>>; 2],
    tolerations: &'a [Toleration],
    /// Of the policy. None: it says nothing about taints.
    also_tolerated: Option<&'a [Toleration]>,
    platforms: &'a [Platform],
}

impl<'a> Targets<'a> {
    /// Without `platforms`, the image is taken to be for all of them.
    pub fn new(
        image: &'a CachedImageSpec,
        policy: Option<&'a PullPolicySpec>,
        platforms: &'a [Platform],
    ) -> Self {
        Self {
            selectors: [Some(&image.node_selector), policy.map(|policy| &policy.node_selector)],
            tolerations: &image.tolerations,
            also_tolerated: policy.map(|policy| &*policy.tolerations).filter(|given| !given.is_empty()),
            platforms,
        }
    }

    /// None: the node should hold the image. What lasts is found before what passes.
    pub fn skip(&self, node: &Node) -> Option<Skip> {
        let mut wanted = self.selectors.into_iter().flatten().flatten();
        if !wanted.all(|(key, value)| node.label(key) == Some(value)) {
            return Some(Skip::Selector);
        }
        if !self.platforms.is_empty() && !self.platforms.iter().any(|platform| fits(platform, node)) {
            let (os, architecture) = (Arc::clone(&node.os), Arc::clone(&node.architecture));
            return Some(Skip::Platform { os, architecture });
        }
        let mut taints = node.taints.iter().filter(|taint| !self.is_tolerated(taint));
        let first = taints.clone().next();
        if let Some(taint) = taints.find(|taint| !is_passing(&taint.key)) {
            return Some(Skip::Taint { key: Arc::clone(&taint.key) });
        }
        if !node.ready {
            return Some(Skip::NotReady);
        }
        if node.disk_pressure || first.is_some_and(|taint| &*taint.key == DISK_PRESSURE) {
            return Some(Skip::DiskPressure);
        }
        // The taint follows the field, a moment later.
        let cordon = || Taint { key: UNSCHEDULABLE.into(), value: "".into(), effect: "NoSchedule".into() };
        if node.unschedulable && !self.is_tolerated(&cordon()) {
            return Some(Skip::Cordoned);
        }
        first.map(|taint| Skip::Taint { key: Arc::clone(&taint.key) })
    }

    fn is_tolerated(&self, taint: &Taint) -> bool {
        let repels = matches!(&*taint.effect, "NoSchedule" | "NoExecute") && &*taint.key != WARMING;
        let by = |tolerations: &[Toleration]| tolerations.iter().any(|one| tolerates(one, taint));
        !repels || (by(self.tolerations) && self.also_tolerated.is_none_or(by))
    }
}

/// Taints of a node that starts, recovers or is being taken out of service.
fn is_passing(key: &str) -> bool {
    PASSING_DOMAINS.iter().any(|domain| key.starts_with(domain))
        || PASSING_WORDS.iter().any(|word| key.contains(word))
}

/// What is not known of either fits. containerd also takes what the processor can run besides.
fn fits(platform: &Platform, node: &Node) -> bool {
    let same = |one: &str, other: &str| one.is_empty() || other.is_empty() || one == other;
    let runs = matches!((&*node.architecture, &*platform.architecture), ("amd64", "386") | ("arm64", "arm"));
    let also = runs && node.runtime.starts_with("containerd:");
    same(&platform.os, &node.os) && (also || same(&platform.architecture, &node.architecture))
}

/// Whether a toleration is about a taint, as Kubernetes has it.
pub fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    fn text(field: Option<&String>) -> &str {
        field.map_or("", String::as_str)
    }
    let (key, effect) = (text(toleration.key.as_ref()), text(toleration.effect.as_ref()));
    let (value, operator) = (text(toleration.value.as_ref()), text(toleration.operator.as_ref()));
    if !effect.is_empty() && effect != &*taint.effect {
        return false;
    }
    if key.is_empty() {
        return operator == "Exists";
    }
    let number = |text: &str| text.parse::<i64>().ok();
    key == &*taint.key
        && match operator {
            "Exists" => true,
            "" | "Equal" => value == &*taint.value,
            "Lt" => number(&taint.value).zip(number(value)).is_some_and(|(taint, bound)| taint < bound),
            "Gt" => number(&taint.value).zip(number(value)).is_some_and(|(taint, bound)| taint > bound),
            _ => false,
        }
}
