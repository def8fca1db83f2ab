//! One cluster with simulated nodes and two operators for all tests of warming. Each test has nodes, an image and a
//! policy of its own. Those that break something that all use have the cluster to themselves.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fairlead_api::drop::{CachedImage, CachedImageSet, CachedImageStatus, PullPolicy};
use fairlead_operator::platform::install::{DEFAULT_NAMESPACE, LEASE};
use fairlead_testkit::images::ImageBuilder;
use fairlead_testkit::{Cluster, Operator, Part, Registry, RegistryConfig, cluster, eventually, unique};
use futures::future::try_join_all;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Node, Pod, Taint};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;
use tokio::sync::{OnceCell, RwLock};

use crate::install::manifests;
use crate::kubectl;
use crate::replica::SOON;

/// Label by which the image of a test finds its nodes.
const POOL: &str = "example.com/pool";
const PULL: Duration = Duration::from_millis(300);
/// An API server that has just started refuses everything, and a kind that may not be written is left alone for a
/// minute.
const TOLD: Duration = Duration::from_mins(2);
const CONFIG: &str = "warm: {maxPullsPerNode: 10}\n";

pub struct Rig {
    pub cluster: Cluster,
    /// Holds `team/app:1`.
    registry: Registry,
    operators: [Operator; 2],
    /// Held alone by tests that break something.
    pub whole: RwLock<()>,
}

pub async fn shared() -> Result<&'static Rig> {
    static RIG: OnceCell<Rig> = OnceCell::const_new();
    RIG.get_or_try_init(Rig::set_up).await
}

impl Rig {
    async fn set_up() -> Result<Self> {
        let cluster = Cluster::builder().audit(true).start().await?;
        // No other Pods are created here, so there is nothing to admit.
        let left_out = ["Deployment", "MutatingWebhookConfiguration"];
        let mut installed = manifests(&[])?;
        installed.retain(|object| !left_out.iter().any(|kind| object["kind"] == *kind));
        kubectl::apply(&cluster, &installed, &[]).await?;
        kubectl::definitions_are_served(&cluster).await?;
        // Pull Pods name their nodes.
        cluster.kill(Part::Scheduler).await?;
        cluster.start_kwok(Some(&cluster::pull_stages(PULL))).await?;
        let registry = cluster.registry(RegistryConfig::new()).await?;
        registry.endpoint().push("team/app", "1", &ImageBuilder::pause()?.build()?).await?;
        let config = cluster.directory().join("config.yaml");
        std::fs::write(&config, CONFIG)?;
        let start = || async {
            let operator = Operator::of(env!("CARGO_BIN_EXE_fairlead")).namespace(DEFAULT_NAMESPACE);
            let operator = operator.config(&config).start_installed(&cluster).await?;
            operator.wait_until_ready(SOON).await?;
            anyhow::Ok(operator)
        };
        let operators = [start().await?, start().await?];
        Ok(Self { cluster, registry, operators, whole: RwLock::default() })
    }

    /// Kills the operator that leads. Another takes over, and the killed one comes back.
    pub async fn kill_leader(&self) -> Result<()> {
        let leases: Api<Lease> = Api::namespaced(self.cluster.client().await?, DEFAULT_NAMESPACE);
        let holder = leases.get(LEASE).await?.spec.and_then(|spec| spec.holder_identity);
        let mut operators = self.operators.iter();
        let leader = operators.find(|operator| Some(&operator.identity) == holder.as_ref());
        let leader = leader.with_context(|| format!("{holder:?} leads"))?;
        leader.process.kill().await?;
        eventually(SOON, || async {
            let now = leases.get(LEASE).await?.spec.and_then(|spec| spec.holder_identity);
            ensure!(now.is_some() && now != holder, "{now:?} leads");
            Ok(())
        })
        .await?;
        leader.process.start_again().await
    }
}

/// Nodes, and an image that they should hold.
pub struct Pool {
    pub rig: &'static Rig,
    /// Of the pool, the image and the policy.
    pub name: String,
    pub nodes: Api<Node>,
    images: Api<CachedImage>,
}

impl Pool {
    /// A pool without nodes, whose image so many may pull at once.
    pub async fn new(rig: &'static Rig, name: &str, at_once: usize) -> Result<Self> {
        let client = rig.cluster.client().await?;
        let name = unique(name);
        let policy: PullPolicy = serde_json::from_value(json!({
            "apiVersion": "drop.corewire.io/v1alpha1", "kind": "PullPolicy", "metadata": {"name": name},
            "spec": {
                "maxConcurrentNodes": at_once, "minDelayBetweenPulls": "100ms",
                "failureBackoff": {"initial": "1h", "max": "1h"},
            },
        }))?;
        Api::<PullPolicy>::all(client.clone()).create(&PostParams::default(), &policy).await?;
        Ok(Self { rig, name, nodes: Api::all(client.clone()), images: Api::all(client) })
    }

    /// Asks for the image on all nodes of the pool.
    pub async fn want(&self) -> Result<()> {
        let image: CachedImage = serde_json::from_value(json!({
            "apiVersion": "drop.corewire.io/v1alpha1", "kind": "CachedImage", "metadata": {"name": self.name},
            "spec": {
                "image": format!("{}/team/app", self.rig.registry.host()), "tag": "1",
                "nodeSelector": {POOL: self.name}, "policyRef": {"name": self.name},
            },
        }))?;
        self.images.create(&PostParams::default(), &image).await?;
        Ok(())
    }

    /// A set of the image that holds Pods back from nodes of the pool until it is there.
    pub async fn gate(&self) -> Result<Api<CachedImageSet>> {
        let set: CachedImageSet = serde_json::from_value(json!({
            "apiVersion": "drop.corewire.io/v1alpha1", "kind": "CachedImageSet", "metadata": {"name": self.name},
            "spec": {
                "images": [{"image": format!("{}/team/app", self.rig.registry.host()), "tag": "1"}],
                "nodeSelector": {POOL: self.name}, "policyRef": {"name": self.name}, "gate": true,
            },
        }))?;
        let sets: Api<CachedImageSet> = Api::all(self.rig.cluster.client().await?);
        sets.create(&PostParams::default(), &set).await?;
        Ok(sets)
    }

    /// The images of its set.
    pub async fn children(&self) -> Result<Vec<CachedImage>> {
        let mut all = self.images.list(&ListParams::default()).await?.items;
        let is_of_set = |image: &CachedImage| {
            image
                .owner_references()
                .iter()
                .any(|owner| owner.kind == "CachedImageSet" && owner.name == self.name)
        };
        all.retain(is_of_set);
        Ok(all)
    }

    /// A node that joins the pool. Its name begins with `prefix`.
    pub async fn join(&self, prefix: &str, taints: &[Taint]) -> Result<String> {
        let name = unique(prefix);
        self.join_as(&name, taints).await?;
        Ok(name)
    }

    pub async fn join_as(&self, name: &str, taints: &[Taint]) -> Result<()> {
        let mut node = cluster::simulated_node(name)?;
        node.metadata.labels.get_or_insert_default().insert(POOL.to_owned(), self.name.clone());
        node.spec.get_or_insert_default().taints = Some(taints.to_vec());
        self.nodes.create(&PostParams::default(), &node).await?;
        // Ready, and without the taints of a node that has just joined.
        eventually(SOON, || async {
            let spec = self.nodes.get(name).await?.spec.unwrap_or_default();
            let left = spec.taints.unwrap_or_default();
            ensure!(left.len() <= taints.len(), "{name} has the taints {left:?}");
            Ok(())
        })
        .await
    }

    /// So many nodes.
    pub async fn join_all(&self, prefix: &str, count: usize) -> Result<Vec<String>> {
        try_join_all((0..count).map(|_| self.join(prefix, &[]))).await
    }

    pub async fn leave(&self, node: &str) -> Result<()> {
        self.nodes.delete(node, &DeleteParams::default()).await?;
        Ok(())
    }

    /// How often each Pod for the image was created, by the API server's own log.
    pub fn created(&self) -> Result<BTreeMap<String, usize>> {
        let mut created = BTreeMap::new();
        let prefix = format!("pull-{}-", self.name);
        for event in self.rig.cluster.audit_events()? {
            let is_pod = event.resource == "pods" && event.subresource.is_empty();
            if is_pod && event.verb == "create" && event.code == 201 && event.name.starts_with(&prefix) {
                *created.entry(event.name).or_default() += 1;
            }
        }
        Ok(created)
    }

    /// Waits until so many Pods were created.
    pub async fn until_created(&self, count: usize) -> Result<()> {
        eventually(SOON, || async {
            let created = self.created()?.len();
            ensure!(created >= count, "{created} of {count} Pods were created");
            Ok(())
        })
        .await
    }

    /// Waits for a status.
    pub async fn until(&self, wanted: impl Fn(&CachedImageStatus) -> bool) -> Result<()> {
        eventually(TOLD, || async {
            let status = self.images.get(&self.name).await?.status;
            ensure!(status.as_ref().is_some_and(&wanted), "{} is at {status:?}\n{}", self.name, self.logs());
            Ok(())
        })
        .await
    }

    /// Waits until so many of so many nodes hold the image.
    pub async fn until_ready(&self, ready: &str) -> Result<()> {
        self.until(|status| status.ready.as_deref() == Some(ready)).await
    }

    fn logs(&self) -> String {
        self.rig.operators.iter().map(|operator| operator.process.log_tail()).collect()
    }

    /// Since every node that is ready had a Pod, as many Pods as nodes are exactly one for each. And they are gone.
    pub async fn had_exactly(&self, count: usize) -> Result<()> {
        let pods: Api<Pod> = Api::namespaced(self.rig.cluster.client().await?, DEFAULT_NAMESPACE);
        let ours = ListParams::default().labels(&format!("drop.corewire.io/cachedimage={}", self.name));
        eventually(SOON, || async {
            let left = pods.list(&ours).await?.items.len();
            ensure!(left == 0, "{left} Pods are left\n{}", self.logs());
            Ok(())
        })
        .await?;
        let created = self.created()?;
        ensure!(created.values().all(|times| *times == 1), "a Pod was created twice: {created:#?}");
        ensure!(created.len() == count, "{} Pods instead of {count}: {created:#?}", created.len());
        Ok(())
    }
}
