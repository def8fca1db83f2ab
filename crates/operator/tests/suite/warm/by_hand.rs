//! A node whose kubelet is the test: what it says of pull Pods comes when it is to be said.

use anyhow::{Context as _, Result, ensure};
use fairlead_api::conditions::{find, types};
use fairlead_api::drop::{CachedImage, PullPolicy};
use fairlead_testkit::cluster::simulated_node;
use fairlead_testkit::images::holding;
use fairlead_testkit::{Cluster, Registry, eventually};
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use super::{Bench, SOON, insecure};

/// On nodes with this beginning, simulated pulls fail for ever.
const BAD: &str = "bad-";
const LONGEST_NAME: usize = 253;

/// Everything that needs it, on a cluster that has simulated nodes.
pub(super) async fn tests(cluster: (Cluster, Client), registry: &Registry) -> Result<()> {
    registry.endpoint().push("team/web", "2", &holding("web 2")?).await?;
    let node = format!("{BAD}{}", "n".repeat(LONGEST_NAME - BAD.len()));
    join(&cluster.1, &node).await?;
    // A second is over before anything leads.
    let setting = ", method: batch, gateDeadline: 1s";
    let bench = Bench::start_with(cluster, setting, &insecure(&[registry])).await?;
    let hand = Hand { bench, image: format!("{}/team/web", registry.host()) };
    hand.a_gate_that_nothing_leads_for_opens_in_the_end(&node).await?;
    hand.a_batch_goes_on_without_an_image_that_is_deleted().await?;
    hand.edits_act_during_and_after_a_pull().await?;
    hand.a_registry_that_dies_gets_no_new_pulls(registry).await?;
    hand.bench.replica.stop().await
}

/// A node that waits behind the gate for an image.
async fn join(client: &Client, name: &str) -> Result<()> {
    let mut node = simulated_node(name)?;
    let labels = node.metadata.labels.get_or_insert_default();
    labels.insert("kubernetes.io/hostname".to_owned(), "hand".to_owned());
    let taints = json!([{"key": "fairlead.dev/warming", "effect": "NoSchedule"}]);
    node.spec.get_or_insert_default().taints = serde_json::from_value(taints)?;
    Api::<Node>::all(client.clone()).create(&PostParams::default(), &node).await?;
    Ok(())
}

struct Hand {
    bench: Bench,
    image: String,
}

impl Hand {
    /// An image for the node, with more in its specification.
    async fn want(&self, name: &str, more: Value) -> Result<()> {
        let mut spec = json!({
            "image": self.image, "tag": "1", "nodeSelector": {"kubernetes.io/hostname": "hand"},
            "policyRef": {"name": "patient"},
        });
        for (key, value) in more.as_object().context("fields")? {
            spec[key] = value.clone();
        }
        self.bench.create("CachedImage", name, spec).await
    }

    async fn edit(&self, name: &str, spec: Value) -> Result<()> {
        let patch = Patch::Merge(json!({"spec": spec}));
        self.bench.images().patch(name, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    /// The only Pod, once it has so many containers with this image, and as long as the kubelet tries.
    async fn pod(&self, containers: usize, image: &str) -> Result<Pod> {
        eventually(SOON, || async {
            let pods = self.bench.pods().list(&ListParams::default()).await?.items;
            let [pod] = &pods[..] else { anyhow::bail!("{} Pods", pods.len()) };
            let spec = pod.spec.as_ref().context("a specification")?;
            let of_image = spec.containers.iter().filter(|one| one.image.as_deref() == Some(image));
            ensure!(of_image.count() == containers && spec.containers.len() == containers, "{spec:?}");
            // From here on only the test says something.
            let said = serde_json::to_value(&pod.status)?;
            let reason = &said["containerStatuses"][0]["state"]["waiting"]["reason"];
            ensure!(reason == "ImagePullBackOff", "{said}");
            Ok(pod.clone())
        })
        .await
    }

    /// Says something about each container, in their order.
    async fn say(&self, pod: &Pod, states: &[Value]) -> Result<()> {
        let containers = &pod.spec.as_ref().context("a specification")?.containers;
        let statuses = containers.iter().zip(states).map(|(container, state)| {
            json!({
                "name": container.name, "image": container.image, "imageID": "", "ready": false, "restartCount": 0,
                "state": state,
            })
        });
        let patch = json!({"status": {"containerStatuses": statuses.collect::<Vec<_>>()}});
        let params = PatchParams::default();
        self.bench.pods().patch_status(&pod.name_any(), &params, &Patch::Merge(patch)).await?;
        Ok(())
    }

    async fn message(&self, name: &str) -> Result<String> {
        let status = self.bench.images().get(name).await?.status.context("no status yet")?;
        let ready = find(&status.conditions, types::READY).context("no condition yet")?;
        Ok(ready.message.clone())
    }

    async fn a_gate_that_nothing_leads_for_opens_in_the_end(&self, node: &str) -> Result<()> {
        let patient =
            json!({"minDelayBetweenPulls": "10ms", "failureBackoff": {"initial": "1h", "max": "1h"}});
        self.bench.create("PullPolicy", "patient", patient).await?;
        self.want("gate", json!({"gate": true})).await?;
        let nodes: Api<Node> = Api::all(self.bench.client.clone());
        eventually(SOON, || async {
            let taints = nodes.get(node).await?.spec.and_then(|spec| spec.taints).unwrap_or_default();
            ensure!(taints.is_empty(), "{taints:?}");
            Ok(())
        })
        .await?;
        self.bench.images().delete("gate", &DeleteParams::default()).await?;
        self.bench.no_pull_pod_is_left().await
    }

    /// In a namespace for which the strictest level of Pod security is enforced, with the longest names that there are.
    async fn a_batch_goes_on_without_an_image_that_is_deleted(&self) -> Result<()> {
        let namespaces: Api<Namespace> = Api::all(self.bench.client.clone());
        let level = json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}});
        namespaces.patch(&self.bench.namespace, &PatchParams::default(), &Patch::Merge(level)).await?;
        let long = "i".repeat(LONGEST_NAME);
        for name in [&*long, "missing", "deleted"] {
            self.want(name, json!({})).await?;
        }
        let image = format!("{}:1", self.image);
        let pod = self.pod(3, &image).await?;
        ensure!(pod.owner_references().len() == 3, "{:?}", pod.owner_references());
        self.bench.images().delete("deleted", &DeleteParams::default()).await?;
        eventually(SOON, || async {
            let owners = self.bench.pods().get(&pod.name_any()).await?.owner_references().len();
            ensure!(owners == 2, "the garbage collector has not been here yet: {owners} owners");
            Ok(())
        })
        .await?;
        let pulled = json!({"terminated": {"exitCode": 0, "reason": "Completed"}});
        let missing = json!({"waiting": {"reason": "ImagePullBackOff", "message": "manifest unknown"}});
        let images = self.bench.images().list(&ListParams::default()).await?.items;
        let is_missing = |container: &str| {
            let of = images.iter().find(|image| container.ends_with(&image.uid().unwrap_or_default()));
            of.is_some_and(|image| image.name_any() == "missing")
        };
        let containers = &pod.spec.as_ref().context("a specification")?.containers;
        let states = containers.iter().map(|one| if is_missing(&one.name) { &missing } else { &pulled });
        self.say(&pod, &states.cloned().collect::<Vec<_>>()).await?;
        self.bench.status(&long, "Cached", "1/1").await?;
        self.bench.status("missing", "ImagePullBackOff", "0/1").await?;
        self.bench.no_pull_pod_is_left().await?;
        let ledgers = self.bench.ledgers().await?;
        let mut nodes = ledgers.iter().flat_map(|ledger| &ledger.spec.nodes);
        ensure!(nodes.all(|node| node.attempt == 1), "an image was pulled twice: {ledgers:?}");
        self.bench.images().delete(&long, &DeleteParams::default()).await?;
        Ok(())
    }

    /// The next try after the failure would come in an hour.
    async fn edits_act_during_and_after_a_pull(&self) -> Result<()> {
        self.edit("missing", json!({"imagePullSecrets": [{"name": "login"}]})).await?;
        let first = self.pod(1, &format!("{}:1", self.image)).await?;
        self.edit("missing", json!({"tag": "2"})).await?;
        let second = self.pod(1, &format!("{}:2", self.image)).await?;
        ensure!(first.name_any() != second.name_any());
        let policies: Api<PullPolicy> = Api::all(self.bench.client.clone());
        policies.delete("patient", &DeleteParams::default()).await?;
        eventually(SOON, || async {
            let message = self.message("missing").await?;
            ensure!(message.contains("PullPolicy patient is missing"), "{message}");
            Ok(())
        })
        .await?;
        self.say(&second, &[json!({"terminated": {"exitCode": 0, "reason": "Completed"}})]).await?;
        self.bench.status("missing", "Cached", "1/1").await?;
        self.bench.no_pull_pod_is_left().await?;
        self.bench.images().delete("missing", &DeleteParams::default()).await?;
        Ok(())
    }

    async fn a_registry_that_dies_gets_no_new_pulls(&self, registry: &Registry) -> Result<()> {
        let hasty = json!({"minDelayBetweenPulls": "10ms", "failureBackoff": {"initial": "1s", "max": "1s"}});
        self.bench.create("PullPolicy", "hasty", hasty).await?;
        self.want("orphan", json!({"policyRef": {"name": "hasty"}})).await?;
        let image = format!("{}:1", self.image);
        let pod = self.pod(1, &image).await?;
        registry.kill().await?;
        let message =
            format!("failed to do request: Head \"http://{}/v2/\": connect: connection refused", self.image);
        self.say(&pod, &[json!({"waiting": {"reason": "ImagePullBackOff", "message": message}})]).await?;
        let host = registry.host();
        eventually(SOON, || async {
            let message = self.message("orphan").await?;
            ensure!(message.contains(&format!("no new pulls while registry {host} is down")), "{message}");
            Ok(())
        })
        .await?;
        self.bench.no_pull_pod_is_left().await?;
        registry.start_again().await?;
        let pod = self.pod(1, &image).await?;
        self.say(&pod, &[json!({"terminated": {"exitCode": 0, "reason": "Completed"}})]).await?;
        self.bench.status("orphan", "Cached", "1/1").await?;
        let orphan: CachedImage = self.bench.images().get("orphan").await?;
        ensure!(orphan.status.is_some_and(|status| status.last_pulled_at.is_some()), "it was pulled");
        Ok(())
    }
}
