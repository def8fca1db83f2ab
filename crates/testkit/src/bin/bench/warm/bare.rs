//! What the same pulls cost without an operator: a loop that creates the Pods, watches them and deletes them, as fast
//! as the policy allows, and remembers nothing.

use std::collections::{HashMap, VecDeque};
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{DeleteParams, PostParams};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::load::{BETWEEN_STARTS, Load, NODES_AT_ONCE};
use super::stage::Stage;
use super::witness::{LABEL, Seen, Sight, State, Witness, pull_pods};

/// Requests at once. More would only queue in the API server.
const REQUESTS: usize = 32;
/// As long as a UID.
const UID: &str = "00000000-0000-4000-8000-000000000000";

/// How long it took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bare {
    /// Until the last pull was seen to be done.
    pub(crate) pulled: Duration,
    /// Until the last Pod was seen to be gone.
    pub(crate) gone: Duration,
}

/// Pods that share a limit.
struct Group {
    number: usize,
    images: Vec<String>,
    /// Nodes that are not served yet.
    waiting: VecDeque<String>,
    pulling: usize,
    last_start: Option<Instant>,
}

impl Group {
    /// Nodes that are served now, and else when to look again.
    fn next(&mut self, now: Instant) -> Result<Vec<String>, Option<Instant>> {
        let free = NODES_AT_ONCE.saturating_sub(self.pulling).min(self.waiting.len());
        let earliest = self.last_start.map(|start| start + BETWEEN_STARTS);
        if free == 0 {
            return Err(None);
        }
        if let Some(earliest) = earliest.filter(|earliest| *earliest > now) {
            return Err(Some(earliest));
        }
        self.pulling += free;
        self.last_start = Some(now);
        Ok(self.waiting.drain(..free).collect())
    }
}

/// Requests under way.
struct Requests {
    pods: Api<Pod>,
    turns: Arc<Semaphore>,
    tasks: JoinSet<Result<()>>,
}

impl Requests {
    fn create(&mut self, pod: Pod) {
        let (pods, turns) = (self.pods.clone(), Arc::clone(&self.turns));
        self.tasks.spawn(async move {
            let _turn = turns.acquire().await?;
            pods.create(&PostParams::default(), &pod).await.context("a Pod cannot be created")?;
            Ok(())
        });
    }

    fn delete(&mut self, name: String) {
        let (pods, turns) = (self.pods.clone(), Arc::clone(&self.turns));
        self.tasks.spawn(async move {
            let _turn = turns.acquire().await?;
            pods.delete(&name, &DeleteParams::default()).await.context("a Pod cannot be deleted")?;
            Ok(())
        });
    }
}

pub(crate) async fn run(stage: &Stage, load: &Load) -> Result<Bare> {
    let (client, namespace) = stage.bare().await?;
    // The operator is measured by a watch beside its own, which takes the API server and this program as long as one
    // more controller would. The same watch is there for the loop, so that it is in both times.
    let _witness = Witness::start(stage.client.clone(), namespace).await?;
    let mut sights = pin!(pull_pods(client.clone(), namespace));
    while !matches!(sights.next().await.context("the watch ended")??, Sight::Listed) {}
    let mut requests = Requests {
        pods: Api::namespaced(client, namespace),
        turns: Arc::new(Semaphore::new(REQUESTS)),
        tasks: JoinSet::new(),
    };
    let mut groups = groups(stage, load);
    let mut owners: HashMap<String, usize> = HashMap::new();
    let total = groups.iter().map(|group| group.waiting.len()).sum::<usize>();
    let (begun, mut pulled, mut gone) = (Instant::now(), Duration::ZERO, 0);
    while gone < total {
        let elapsed = begun.elapsed();
        ensure!(elapsed < load.deadline(), "{gone} of {total} Pods are through after {elapsed:?}");
        let mut wake = Instant::now() + Duration::from_secs(1);
        for group in &mut groups {
            match group.next(Instant::now()) {
                Ok(nodes) => {
                    for node in nodes {
                        let pod = pod(stage, group, &node);
                        let name = pod.metadata.name.clone().unwrap_or_default();
                        owners.insert(name, group.number);
                        requests.create(pod);
                    }
                }
                Err(at) => wake = at.map_or(wake, |at| at.min(wake)),
            }
        }
        tokio::select! {
            sight = sights.next() => {
                let Sight::Pod(Seen { name, state, .. }) = sight.context("the watch ended")?? else { continue };
                match state {
                    State::Pulling => {}
                    // Deleting a Pod is no further news of its pull.
                    State::Pulled => if let Some(group) = owners.remove(&name) {
                        pulled = begun.elapsed();
                        if let Some(group) = groups.get_mut(group) {
                            group.pulling -= 1;
                        }
                        requests.delete(name);
                    },
                    State::Gone => gone += 1,
                }
            }
            Some(ended) = requests.tasks.join_next() => ended??,
            () = tokio::time::sleep_until(wake.into()) => {}
        }
    }
    Ok(Bare { pulled, gone: begun.elapsed() })
}

fn groups(stage: &Stage, load: &Load) -> Vec<Group> {
    let group = |number: usize, images: Vec<String>| {
        // Images go through the nodes in different orders, so that they rarely meet on one.
        let mut waiting: VecDeque<String> = stage.nodes.iter().cloned().collect();
        waiting.rotate_left(number * load.nodes / load.images.max(1));
        Group { number, images, waiting, pulling: 0, last_start: None }
    };
    let images = (0..load.images).map(|number| stage.reference(number));
    if load.batch {
        vec![group(0, images.collect())]
    } else {
        images.enumerate().map(|(number, image)| group(number, vec![image])).collect()
    }
}

/// A Pod of the same size as the operator's.
fn pod(stage: &Stage, group: &Group, node: &str) -> Pod {
    let several = group.images.len() > 1;
    let image_names: Vec<String> = (0..group.images.len()).map(|number| format!("bare-{number}")).collect();
    let containers: Vec<Value> = group
        .images
        .iter()
        .enumerate()
        .map(|(number, image)| {
            json!({
                "name": if several { format!("pull-{number:036}") } else { "pull".to_owned() },
                "image": image,
                "imagePullPolicy": "Always",
                "command": ["true"],
                "resources": {"requests": {"cpu": "1m", "memory": "8Mi"}, "limits": {"memory": "64Mi"}},
                "securityContext": {
                    "allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]},
                    "readOnlyRootFilesystem": true, "runAsNonRoot": true,
                },
            })
        })
        .collect();
    let pulls: Vec<Value> = group
        .images
        .iter()
        .zip(&image_names)
        .map(|(image, name)| json!({"image": name, "uid": UID, "reference": image, "attempt": 1}))
        .collect();
    let pod = json!({
        "metadata": {
            "name": format!("pull-bare-{}-{node}", group.number),
            "labels": {
                LABEL.0: LABEL.1,
                "drop.corewire.io/cachedimage": format!("bare-{}", group.number),
                "drop.corewire.io/node": node,
            },
            "annotations": {"fairlead.dev/pulls": json!({"node": UID, "pulls": pulls}).to_string()},
            "ownerReferences": [{
                "apiVersion": "drop.corewire.io/v1alpha1", "kind": "PullPolicy", "name": "bench",
                "uid": stage.policy_uid,
            }],
        },
        "spec": {
            "activeDeadlineSeconds": 1800,
            "automountServiceAccountToken": false,
            "containers": containers,
            "enableServiceLinks": false,
            "nodeName": node,
            "restartPolicy": "Never",
            "securityContext": {
                "runAsNonRoot": true, "runAsUser": 65_534, "runAsGroup": 65_534, "fsGroup": 65_534,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "terminationGracePeriodSeconds": 0,
            "tolerations": [{"key": "fairlead.dev/warming", "operator": "Exists"}],
        },
    });
    serde_json::from_value(pod).unwrap_or_default()
}
