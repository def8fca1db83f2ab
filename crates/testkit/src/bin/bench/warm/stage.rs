//! What the measurements of warming share: a control plane that writes down every request, simulated nodes, a registry,
//! and an operator with the rights it is installed with.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fairlead_testkit::audit::AuditEvent;
use fairlead_testkit::fake_registry::FakeRegistry;
use fairlead_testkit::images::ImageBuilder;
use fairlead_testkit::{Cluster, Operator, Part, cluster, eventually, installation};
use futures::{StreamExt, TryStreamExt, stream};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use super::load::{BETWEEN_STARTS, Load, NODES_AT_ONCE};
use super::witness::LABEL;
use crate::mirror::stage::{HOME, install};

/// Of the loop that creates Pods without an operator.
const BARE_ACCOUNT: &str = "bare";
const POLICY: &str = "bench";
const REPOSITORY: &str = "team/app";
const SOON: Duration = Duration::from_mins(1);
const AT_ONCE: usize = 8;

pub(crate) struct Stage {
    pub(crate) cluster: Cluster,
    pub(crate) client: Client,
    pub(crate) nodes: Vec<String>,
    /// UID of the policy, which also owns the Pods that no operator creates.
    pub(crate) policy_uid: String,
    bare_namespace: String,
    registry: FakeRegistry,
    program: PathBuf,
    /// How far the audit log was read.
    position: AtomicU64,
}

/// One image that is wanted on all nodes.
pub(crate) struct Wanted {
    /// Name of the object.
    pub(crate) name: String,
    pub(crate) reference: String,
}

impl Stage {
    /// A cluster for loads of so many nodes and images, with pulls of this length.
    pub(crate) async fn set_up(load: &Load) -> Result<Self> {
        let program = installation::program()?;
        let cluster = Cluster::builder().audit(true).calm_nodes(true).start().await?;
        install(&cluster, &program).await?;
        // Pull Pods name their nodes.
        cluster.kill(Part::Scheduler).await?;
        cluster.start_kwok(Some(&cluster::pull_stages(load.pull))).await?;
        let nodes = cluster.simulated_nodes("node", load.nodes).await?;
        let client = cluster.client().await?;
        until_nodes_are_ready(&client, nodes.len()).await?;
        let registry = FakeRegistry::start().await?;
        let image = ImageBuilder::new().label("bench", "warm").build()?;
        for number in 0..load.images {
            registry.hold(REPOSITORY, &tag(number), &image);
        }
        let bare_namespace = bare_account(&cluster).await?;
        let policy_uid = create_policy(&client).await?;
        Ok(Self {
            cluster,
            client,
            nodes,
            policy_uid,
            bare_namespace,
            registry,
            program,
            position: AtomicU64::default(),
        })
    }

    /// What the API server was asked since the last call.
    pub(crate) fn asked(&self) -> Result<Vec<AuditEvent>> {
        let (events, position) = self.cluster.audit_events_from(self.position.load(Ordering::Relaxed))?;
        self.position.store(position, Ordering::Relaxed);
        Ok(events)
    }

    pub(crate) fn reference(&self, number: usize) -> String {
        format!("{}/{REPOSITORY}:{}", self.registry.host(), tag(number))
    }

    /// Where and as whom Pods are created without an operator. The API server lets no account have what is the
    /// operator's, and an administrator would be served before others.
    pub(crate) async fn bare(&self) -> Result<(Client, &str)> {
        Ok((self.cluster.client_as(&self.bare_namespace, BARE_ACCOUNT).await?, &self.bare_namespace))
    }

    /// An operator that leads and knows all nodes. No limit but that of the policy binds it.
    pub(crate) async fn operator(&self, load: &Load) -> Result<Operator> {
        let method = if load.batch { "batch" } else { "run" };
        let config = self.cluster.directory().join(format!("config-{method}.yaml"));
        std::fs::write(&config, format!("warm: {{method: {method}, maxPullsPerNode: 100}}\n"))?;
        let operator = Operator::of(&self.program)
            .namespace(HOME)
            .config(&config)
            .start_installed(&self.cluster)
            .await?;
        operator.wait_until_ready(SOON).await?;
        operator.wait_to_lead(SOON).await?;
        eventually(SOON, || async {
            let known = operator.metric("fairlead_watched_objects{kind=\"Node\"}").await?.unwrap_or_default();
            let nodes = self.nodes.len();
            ensure!(known >= f64::from(u32::try_from(nodes)?), "the operator knows {known} of {nodes} nodes");
            Ok(())
        })
        .await?;
        Ok(operator)
    }

    fn images(&self) -> Api<DynamicObject> {
        objects(&self.client, "CachedImage", "cachedimages")
    }

    /// Asks for images on all nodes.
    pub(crate) async fn want(&self, load: &Load, prefix: &str) -> Result<Vec<Wanted>> {
        let wanted = (0..load.images)
            .map(|number| Wanted { name: format!("{prefix}-{number}"), reference: self.reference(number) });
        let wanted: Vec<Wanted> = wanted.collect();
        let api = self.images();
        let create = async |wanted: &Wanted| {
            let (image, tag) = wanted.reference.rsplit_once(':').context("a reference without a tag")?;
            let object = json!({
                "apiVersion": "drop.corewire.io/v1alpha1", "kind": "CachedImage", "metadata": {"name": wanted.name},
                "spec": {"image": image, "tag": tag, "policyRef": {"name": POLICY}},
            });
            api.create(&PostParams::default(), &serde_json::from_value(object)?).await?;
            anyhow::Ok(())
        };
        stream::iter(&wanted).map(create).buffer_unordered(AT_ONCE).try_collect::<()>().await?;
        Ok(wanted)
    }

    /// On how many nodes images are missing, by what their statuses say.
    pub(crate) async fn missing(&self, wanted: &[Wanted]) -> Result<usize> {
        let mut missing = 0;
        let listed = self.images().list(&ListParams::default()).await?;
        for wanted in wanted {
            let object = listed.iter().find(|object| object.name_any() == wanted.name);
            let ready =
                object.and_then(|object| object.data.pointer("/status/ready")).and_then(Value::as_str);
            let ready = ready.and_then(|ready| ready.split_once('/'));
            let here: usize = match ready {
                Some((here, of)) if of.parse() == Ok(self.nodes.len()) => here.parse()?,
                _ => 0,
            };
            missing += self.nodes.len().saturating_sub(here);
        }
        Ok(missing)
    }

    /// Removes the objects. What nodes hold stays.
    pub(crate) async fn forget(&self, wanted: &[Wanted]) -> Result<()> {
        let api = self.images();
        for wanted in wanted {
            api.delete(&wanted.name, &DeleteParams::default()).await?;
        }
        eventually(SOON, || async {
            let left = api.list(&ListParams::default()).await?.items.len();
            ensure!(left == 0, "{left} CachedImages are still there");
            Ok(())
        })
        .await
    }

    /// Pull Pods of the operator that are there.
    pub(crate) async fn pull_pods(&self) -> Result<usize> {
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), HOME);
        Ok(pods.list(&ListParams::default().labels(&format!("{}={}", LABEL.0, LABEL.1))).await?.items.len())
    }
}

fn tag(number: usize) -> String {
    format!("v{number}")
}

fn objects(client: &Client, kind: &str, plural: &str) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("drop.corewire.io", "v1alpha1", kind);
    Api::all_with(client.clone(), &ApiResource::from_gvk_with_plural(&kind, plural))
}

async fn create_policy(client: &Client) -> Result<String> {
    let policy = json!({
        "apiVersion": "drop.corewire.io/v1alpha1", "kind": "PullPolicy", "metadata": {"name": POLICY},
        "spec": {
            "maxConcurrentNodes": NODES_AT_ONCE,
            "minDelayBetweenPulls": format!("{}ms", BETWEEN_STARTS.as_millis()),
        },
    });
    let api = objects(client, "PullPolicy", "pullpolicies");
    let created = api.create(&PostParams::default(), &serde_json::from_value(policy)?).await?;
    created.uid().context("an object without a UID")
}

/// An account that may do with Pods what it wants, in a namespace of its own.
async fn bare_account(cluster: &Cluster) -> Result<String> {
    let namespace = cluster.namespace("bare").await?;
    let home = format!("--namespace={namespace}");
    let create = async |arguments: &[&str]| {
        cluster.kubectl([&["create", &home][..], arguments].concat()).await.map(drop)
    };
    create(&["serviceaccount", BARE_ACCOUNT]).await?;
    create(&["role", BARE_ACCOUNT, "--verb=*", "--resource=pods"]).await?;
    let account = format!("--serviceaccount={namespace}:{BARE_ACCOUNT}");
    create(&["rolebinding", BARE_ACCOUNT, "--role=bare", &account]).await?;
    Ok(namespace)
}

/// Ready, and without the taints of a node that has just joined.
async fn until_nodes_are_ready(client: &Client, count: usize) -> Result<()> {
    let nodes: Api<Node> = Api::all(client.clone());
    eventually(SOON, || async {
        let listed = nodes.list(&ListParams::default()).await?;
        let is_open =
            |node: &&Node| node.spec.as_ref().and_then(|spec| spec.taints.as_ref()).is_none_or(Vec::is_empty);
        let open = listed.iter().filter(is_open).count();
        ensure!(open == count, "{open} of {count} nodes are ready");
        Ok(())
    })
    .await
}
