//! Policies from the cluster: five kinds, watched.
//!
//! An agent starts from what all kinds that are served list. From then on it knows an object until it is reported as
//! deleted: an API server that has just started does not know its custom resources yet, and that must not open a source
//! that a policy closes.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use fairlead_node::agent::FollowedPolicy;
use fairlead_node::detect::DetectError;
use fairlead_node::{Runtime, RuntimeName};
use fairlead_operator::controller::backoff::Retry;
use fairlead_operator::platform::api_error::{Class, Failure};
use fairlead_plan::node_config::MirrorPolicy;
use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Node;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, ResourceExt as _};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::Policies;
use crate::nodes::policy;

/// Kinds and their plurals.
pub(crate) const KINDS: [(&str, &str, &str, &str); 5] = [
    ("config.openshift.io", "v1", "ImageSourceDigestPolicy", "imagesourcedigestpolicies"),
    ("config.openshift.io", "v1", "ImageSourceTagPolicy", "imagesourcetagpolicies"),
    ("config.openshift.io", "v1", "ImageDigestMirrorSet", "imagedigestmirrorsets"),
    ("config.openshift.io", "v1", "ImageTagMirrorSet", "imagetagmirrorsets"),
    ("operator.openshift.io", "v1alpha1", "ImageContentSourcePolicy", "imagecontentsourcepolicies"),
];
/// A kind counts as not served at the start if it was not found for so long. An API server that has just started does
/// not know its custom resources yet, and files of an agent before this one must not go because of that.
const ABSENT_AFTER: Duration = Duration::from_secs(2);
const ABSENT_AFTER_WITH_FILES: Duration = Duration::from_mins(1);
/// How often it is looked whether the node has another runtime than at the start.
const LOOK_AT_NODE_EVERY: Duration = Duration::from_mins(5);
const WATCH_SECONDS: u32 = 60;

/// Objects of one kind, by name.
type Objects = BTreeMap<String, FollowedPolicy>;

/// What is known of all kinds.
struct Known {
    /// `None` until a kind was listed.
    kinds: Mutex<[Option<Objects>; KINDS.len()]>,
    policies: watch::Sender<Option<Arc<[FollowedPolicy]>>>,
}

/// Distributions that do not start containerd with the usual configuration, by the version of the kubelet.
const DISTRIBUTIONS: [Distribution; 3] = [
    Distribution {
        mark: "+k3s",
        name: "k3s",
        place: Place::Directory("var/lib/rancher/k3s/agent/etc/containerd/certs.d"),
    },
    Distribution {
        mark: "+rke2",
        name: "RKE2",
        place: Place::Directory("var/lib/rancher/rke2/agent/etc/containerd/certs.d"),
    },
    Distribution { mark: "+k0s", name: "k0s", place: Place::Config("a file of /etc/k0s/containerd.d") },
];

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Distribution {
    mark: &'static str,
    name: &'static str,
    place: Place,
}

#[derive(Debug, PartialEq, Eq)]
enum Place {
    /// The distribution writes this one at every start. Below the root of the node's file system.
    Directory(&'static str),
    /// An administrator names a directory here.
    Config(&'static str),
}

impl Distribution {
    /// What an administrator has to do.
    pub(super) fn error(&self, root: &Path) -> DetectError {
        let distribution = self.name;
        match self.place {
            Place::Directory(below) => {
                DetectError::Distribution { distribution, directory: root.join(below) }
            }
            Place::Config(place) => DetectError::OwnConfig { distribution, place },
        }
    }
}

/// What the Node object says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(super) uid: String,
    pub(crate) runtime: Option<Runtime>,
    pub(super) distribution: Option<&'static Distribution>,
}

impl Seen {
    /// Waits for an API server that is away. `alive` is called while it is.
    pub(super) async fn wait(client: &Client, node: &str, alive: impl Fn(String)) -> Result<Self> {
        let mut retry = Retry::default();
        loop {
            let error = match Self::read(client, node).await {
                Ok(seen) => return Ok(seen),
                Err(error) => error,
            };
            let failure = error.downcast_ref::<kube::Error>().map(Failure::from);
            let is_outage = failure.is_some_and(|failure| failure.class == Class::Unavailable);
            if !is_outage {
                return Err(error);
            }
            tracing::warn!("{error:#}; trying again");
            alive(format!("{error:#}"));
            tokio::time::sleep(retry.failed()).await;
        }
    }

    pub(crate) async fn read(client: &Client, node: &str) -> Result<Self> {
        let nodes: Api<Node> = Api::all(client.clone());
        let node = nodes.get(node).await.with_context(|| format!("cannot read Node {node}"))?;
        let info = node.status.and_then(|status| status.node_info);
        let distribution = info.as_ref().and_then(|info| {
            DISTRIBUTIONS.iter().find(|distribution| info.kubelet_version.contains(distribution.mark))
        });
        let runtime = info.and_then(|info| runtime(&info.container_runtime_version));
        Ok(Self { uid: node.metadata.uid.unwrap_or_default(), runtime, distribution })
    }
}

/// Ends the agent when the node has another runtime, or another version of it, than at the start: what it can read, and
/// where, may be different. The agent is started again.
pub(super) async fn end_after_upgrade(client: Client, node: String, seen: Seen, stop: CancellationToken) {
    loop {
        tokio::select! {
            () = tokio::time::sleep(LOOK_AT_NODE_EVERY) => {}
            () = stop.cancelled() => return,
        }
        if let Ok(now) = Seen::read(&client, &node).await
            && now.runtime.is_some()
            && now != seen
        {
            tracing::info!(before = ?seen.runtime, now = ?now.runtime, "another runtime; ending to start anew");
            stop.cancel();
        }
    }
}

/// As the kubelet reports it: `containerd://2.2.0`.
fn runtime(reported: &str) -> Option<Runtime> {
    let (name, version) = reported.split_once("://")?;
    let name = match name {
        "containerd" => RuntimeName::Containerd,
        "cri-o" => RuntimeName::Crio,
        _ => return None,
    };
    Some(Runtime { name, version: version.parse().ok() })
}

/// Follows all kinds. `is_new`: no agent has written files on this node before.
pub(super) fn follow(client: &Client, is_new: bool) -> Policies {
    let absent_after = if is_new { ABSENT_AFTER } else { ABSENT_AFTER_WITH_FILES };
    let (policies, receiver) = watch::channel(None);
    let known = Arc::new(Known { kinds: Mutex::default(), policies });
    for (index, (group, version, kind, plural)) in KINDS.into_iter().enumerate() {
        let names = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural);
        let api = Api::all_with(client.clone(), &names);
        tokio::spawn(follow_kind(api, kind, index, Arc::clone(&known), absent_after));
    }
    receiver
}

async fn follow_kind(
    api: Api<DynamicObject>,
    kind: &'static str,
    index: usize,
    known: Arc<Known>,
    absent_after: Duration,
) {
    let config = watcher::Config::default().timeout(WATCH_SECONDS);
    let mut events = Box::pin(watcher(api, config));
    let mut retry = Retry::default();
    let mut listed = BTreeMap::new();
    let (mut absent_since, mut last_class): (Option<Instant>, _) = (None, None);
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => {
                if !matches!(event, Event::Init) {
                    (absent_since, last_class) = (None, None);
                    retry.reset();
                }
                known.take(index, event, &mut listed);
            }
            Err(error) => {
                let failure = Failure::from(&error);
                absent_since = match absent_since {
                    _ if failure.class != Class::Absent => None,
                    None => Some(Instant::now()),
                    since => since,
                };
                let is_absent = absent_since.is_some_and(|since| since.elapsed() >= absent_after);
                if is_absent && known.is_absent(index) {
                    tracing::info!(kind, "the cluster does not serve this kind; it is looked for further");
                } else if failure.class != Class::Absent
                    && last_class.replace(failure.class) != Some(failure.class)
                {
                    tracing::warn!(kind, %failure, "policies cannot be watched; those known so far stay in force");
                }
                tokio::time::sleep(retry.failed()).await;
            }
        }
    }
}

impl Known {
    fn take(&self, index: usize, event: Event<DynamicObject>, listed: &mut Objects) {
        match event {
            Event::Init => listed.clear(),
            Event::InitApply(object) => {
                let name = object.name_any();
                let known = || self.kinds.lock().get(index)?.as_ref()?.get(&name).cloned();
                let former = || known().map(|known| FollowedPolicy { is_current: false, ..known });
                if let Some(policy) = read(object).map(FollowedPolicy::from).or_else(former) {
                    listed.insert(name, policy);
                }
            }
            Event::InitDone => self.change(index, |objects| *objects = std::mem::take(listed)),
            Event::Apply(object) => {
                let name = object.name_any();
                let policy = read(object);
                self.change(index, |objects| match (policy, objects.get_mut(&name)) {
                    (Some(policy), _) => _ = objects.insert(name, policy.into()),
                    (None, Some(known)) => known.is_current = false,
                    (None, None) => {}
                });
            }
            Event::Delete(object) => self.change(index, |objects| _ = objects.remove(&object.name_any())),
        }
    }

    /// Takes a kind that was never listed for one that has no objects. False if it was listed before.
    fn is_absent(&self, index: usize) -> bool {
        let is_new = self.kinds.lock().get(index).is_some_and(Option::is_none);
        if is_new {
            self.change(index, |_| {});
        }
        is_new
    }

    fn change(&self, index: usize, change: impl FnOnce(&mut Objects)) {
        let mut kinds = self.kinds.lock();
        if let Some(kind) = kinds.get_mut(index) {
            change(kind.get_or_insert_default());
        }
        if kinds.iter().all(Option::is_some) {
            let all = kinds.iter().flatten().flat_map(BTreeMap::values).cloned();
            let all: Arc<[FollowedPolicy]> = all.collect();
            self.policies.send_if_modified(|known| {
                let is_new = known.as_ref() != Some(&all);
                *known = Some(all);
                is_new
            });
        }
    }
}

/// The policy that an object is. One that cannot be read is logged.
fn read(object: DynamicObject) -> Option<MirrorPolicy> {
    let name = object.name_any();
    let object: Value = serde_json::to_value(object).ok()?;
    match policy(&object)? {
        Ok(policy) => Some(policy),
        Err(mismatch) => {
            let kind = object.get("kind").and_then(Value::as_str).unwrap_or_default();
            tracing::warn!(
                kind,
                name,
                field = mismatch.field,
                "a policy cannot be read: {}",
                mismatch.message
            );
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_runtime_of_a_node_is_read() {
        let containerd = runtime("containerd://2.2.0-k3s1").unwrap();
        assert_eq!((containerd.name, containerd.version), (RuntimeName::Containerd, "2.2.0".parse().ok()));
        assert_eq!(runtime("cri-o://1.34.1").map(|crio| crio.name), Some(RuntimeName::Crio));
        assert_eq!(runtime("docker://20.10"), None);
    }
}
