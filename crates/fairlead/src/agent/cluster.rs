//! Policies from the cluster: five kinds, watched.
//!
//! An agent starts from what all kinds that are served list. From then on it knows an object until it is reported as
//! deleted: an API server that has just started does not know its custom resources yet, and that must not open a source
//! that a policy closes.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::{Context, Result};
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

use super::Policies;
use crate::nodes::policy;

/// Kinds and their plurals.
const KINDS: [(&str, &str, &str, &str); 5] = [
    ("config.openshift.io", "v1", "ImageSourceDigestPolicy", "imagesourcedigestpolicies"),
    ("config.openshift.io", "v1", "ImageSourceTagPolicy", "imagesourcetagpolicies"),
    ("config.openshift.io", "v1", "ImageDigestMirrorSet", "imagedigestmirrorsets"),
    ("config.openshift.io", "v1", "ImageTagMirrorSet", "imagetagmirrorsets"),
    ("operator.openshift.io", "v1alpha1", "ImageContentSourcePolicy", "imagecontentsourcepolicies"),
];
/// A kind counts as not served at the start after this many requests in a row that did not find it.
const ABSENT_AFTER: u32 = 3;
const WATCH_SECONDS: u32 = 60;

/// What is known of all kinds.
struct Known {
    /// By kind and name; `None` until a kind was listed.
    kinds: Mutex<[Option<BTreeMap<String, MirrorPolicy>>; KINDS.len()]>,
    policies: watch::Sender<Option<Arc<[MirrorPolicy]>>>,
}

/// The runtime that the kubelet of a node reports: `containerd://2.2.0`.
pub(super) async fn runtime_of(client: &Client, node: &str) -> Result<Option<Runtime>> {
    let nodes: Api<Node> = Api::all(client.clone());
    let node = nodes.get(node).await.with_context(|| format!("cannot read Node {node}"))?;
    let reported = node.status.and_then(|status| status.node_info).map(|info| info.container_runtime_version);
    Ok(reported.as_deref().and_then(runtime))
}

fn runtime(reported: &str) -> Option<Runtime> {
    let (name, version) = reported.split_once("://")?;
    let name = match name {
        "containerd" => RuntimeName::Containerd,
        "cri-o" => RuntimeName::Crio,
        _ => return None,
    };
    Some(Runtime { name, version: version.parse().ok() })
}

pub(super) fn follow(client: &Client) -> Policies {
    let (policies, receiver) = watch::channel(None);
    let known = Arc::new(Known { kinds: Mutex::default(), policies });
    for (index, (group, version, kind, plural)) in KINDS.into_iter().enumerate() {
        let names = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural);
        let api = Api::all_with(client.clone(), &names);
        tokio::spawn(follow_kind(api, kind, index, Arc::clone(&known)));
    }
    receiver
}

async fn follow_kind(api: Api<DynamicObject>, kind: &'static str, index: usize, known: Arc<Known>) {
    let config = watcher::Config::default().timeout(WATCH_SECONDS);
    let mut events = Box::pin(watcher(api, config));
    let mut retry = Retry::default();
    let mut listed = BTreeMap::new();
    let (mut absent, mut last_class) = (0, None);
    while let Some(event) = events.next().await {
        match event {
            Ok(event) => {
                if !matches!(event, Event::Init) {
                    (absent, last_class) = (0, None);
                    retry.reset();
                }
                known.take(index, event, &mut listed);
            }
            Err(error) => {
                let failure = Failure::from(&error);
                absent = if failure.class == Class::Absent { absent + 1 } else { 0 };
                if absent == ABSENT_AFTER && known.is_absent(index) {
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
    fn take(&self, index: usize, event: Event<DynamicObject>, listed: &mut BTreeMap<String, MirrorPolicy>) {
        match event {
            Event::Init => listed.clear(),
            Event::InitApply(object) => {
                let name = object.name_any();
                // What cannot be read any more stays as it was.
                let former = || self.kinds.lock().get(index)?.as_ref()?.get(&name).cloned();
                if let Some(policy) = read(object).or_else(former) {
                    listed.insert(name, policy);
                }
            }
            Event::InitDone => self.change(index, |objects| *objects = std::mem::take(listed)),
            Event::Apply(object) => {
                let name = object.name_any();
                if let Some(policy) = read(object) {
                    self.change(index, |objects| _ = objects.insert(name, policy));
                }
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

    fn change(&self, index: usize, change: impl FnOnce(&mut BTreeMap<String, MirrorPolicy>)) {
        let mut kinds = self.kinds.lock();
        if let Some(kind) = kinds.get_mut(index) {
            change(kind.get_or_insert_default());
        }
        if kinds.iter().all(Option::is_some) {
            let all = kinds.iter().flatten().flat_map(BTreeMap::values).cloned();
            let all: Arc<[MirrorPolicy]> = all.collect();
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
