//! A cluster, and replicas of the watch in this process under an election of their own.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use fairlead_api::{
    fairlead::{ImageLedger, LedgerEntry},
    kuik::{Availability, ClusterImageSetAvailability, ClusterImageSetAvailabilityStatus, MonitoredImage},
};
use fairlead_operator::capabilities::availability::{AvailabilitySetup, AvailabilityWatch, Metrics, Seen};
use fairlead_operator::controller::events::{EventWriter, Events};
use fairlead_operator::platform::config::Config;
use fairlead_operator::platform::telemetry::page;
use fairlead_operator::registries::verdicts::Verdicts;
use fairlead_plan::availability::MirrorLooks;
use fairlead_testkit::{Cluster, audit::AuditEvent, definitions, eventually, operator::with_registries};
use k8s_openapi::api::core::v1::{Event, Pod, Secret};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams},
    core::ApiResource,
};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch as channel};

use crate::candidate::Candidate;
use crate::definitions::{cluster_with_definitions, definition};

pub const SOON: Duration = Duration::from_mins(1);

/// A cluster of its own: the watch is about the whole cluster.
pub struct Bench {
    pub client: Client,
    pub own_namespace: String,
    cluster: Cluster,
}

impl Bench {
    pub async fn new() -> Result<Self> {
        let (cluster, client) = cluster_with_definitions(Cluster::builder().audit(true)).await?;
        let own_namespace = cluster.namespace("operator").await?;
        Ok(Self { client, own_namespace, cluster })
    }

    pub async fn namespace(&self, prefix: &str) -> Result<String> {
        self.cluster.namespace(prefix).await
    }

    pub fn pods(&self, namespace: &str) -> Api<Pod> {
        Api::namespaced(self.client.clone(), namespace)
    }

    pub fn objects(&self) -> Api<ClusterImageSetAvailability> {
        Api::all(self.client.clone())
    }

    /// A Pod that no node takes.
    pub async fn pod(&self, namespace: &str, name: &str, images: &[String], secrets: &[&str]) -> Result<Pod> {
        let containers: Vec<Value> = images
            .iter()
            .enumerate()
            .map(|(number, image)| json!({"name": format!("c{number}"), "image": image}))
            .collect();
        let secrets: Vec<Value> = secrets.iter().map(|name| json!({"name": name})).collect();
        let pod = serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {
                "terminationGracePeriodSeconds": 0,
                "containers": containers,
                "imagePullSecrets": secrets,
            },
        }))?;
        Ok(self.pods(namespace).create(&PostParams::default(), &pod).await?)
    }

    /// The same with an image volume.
    pub async fn mounting_pod(&self, namespace: &str, name: &str, image: &str, volume: &str) -> Result<Pod> {
        let pod = serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {
                "terminationGracePeriodSeconds": 0,
                "containers": [{
                    "name": "c0", "image": image, "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                }],
                "volumes": [{"name": "data", "image": {"reference": volume}}],
            },
        }))?;
        Ok(self.pods(namespace).create(&PostParams::default(), &pod).await?)
    }

    pub async fn delete_pod(&self, namespace: &str, name: &str) -> Result<()> {
        self.pods(namespace).delete(name, &DeleteParams::default().grace_period(0)).await?;
        Ok(())
    }

    /// A pull secret for one registry.
    pub async fn secret(
        &self,
        namespace: &str,
        name: &str,
        host: &str,
        user: &str,
        password: &str,
    ) -> Result<()> {
        let config = json!({"auths": {host: {"username": user, "password": password}}});
        let secret: Secret = serde_json::from_value(json!({
            "metadata": {"name": name},
            "type": "kubernetes.io/dockerconfigjson",
            "stringData": {".dockerconfigjson": config.to_string()},
        }))?;
        Api::<Secret>::namespaced(self.client.clone(), namespace)
            .create(&PostParams::default(), &secret)
            .await?;
        Ok(())
    }

    pub async fn watch(&self, name: &str, spec: &Value) -> Result<ClusterImageSetAvailability> {
        let object: ClusterImageSetAvailability = serde_json::from_value(json!({
            "apiVersion": "kuik.enix.io/v1alpha1", "kind": "ClusterImageSetAvailability",
            "metadata": {"name": name}, "spec": spec,
        }))?;
        eventually(SOON, || async { Ok(self.objects().create(&PostParams::default(), &object).await?) }).await
    }

    pub async fn change(&self, name: &str, spec: &Value) -> Result<()> {
        self.objects().patch(name, &PatchParams::default(), &Patch::Merge(json!({"spec": spec}))).await?;
        Ok(())
    }

    fn raw_objects(&self) -> Api<DynamicObject> {
        Api::all_with(self.client.clone(), &ApiResource::erase::<ClusterImageSetAvailability>(&()))
    }

    /// The object, whether it makes sense or not.
    pub async fn raw(&self, name: &str) -> Result<Value> {
        Ok(serde_json::to_value(self.raw_objects().get(name).await?)?)
    }

    /// Changes the object once the API server lets it.
    pub async fn change_raw(&self, name: &str, spec: &Value) -> Result<()> {
        let patch = Patch::Merge(json!({"spec": spec}));
        eventually(SOON, || async {
            self.raw_objects().patch(name, &PatchParams::default(), &patch).await?;
            Ok(())
        })
        .await
    }

    /// Defines the kind anew, without its rules or with them.
    pub async fn define(&self, loose: bool) -> Result<()> {
        let crd = definition("ClusterImageSetAvailability")?;
        let crd = if loose { definitions::without_rules(crd)? } else { crd };
        definitions::install(&self.client, &crd).await
    }

    pub async fn status(&self, name: &str) -> Result<ClusterImageSetAvailabilityStatus> {
        self.objects().get(name).await?.status.context("no status yet")
    }

    /// Waits until the status lists the image with this state.
    pub async fn wait_for(&self, name: &str, image: &str, wanted: Availability) -> Result<MonitoredImage> {
        eventually(SOON, || async {
            let status = self.status(name).await?;
            let found = status.images.into_iter().find(|one| one.image == image);
            let found = found.with_context(|| format!("{image} is not listed"))?;
            ensure!(found.status == wanted, "{image} is {:?}: {}", found.status, found.last_error);
            Ok(found)
        })
        .await
    }

    pub async fn ledgers(&self) -> Result<Vec<ImageLedger>> {
        let ledgers: Api<ImageLedger> = Api::namespaced(self.client.clone(), &self.own_namespace);
        Ok(ledgers.list(&ListParams::default()).await?.items)
    }

    pub async fn ledger_entries(&self) -> Result<Vec<LedgerEntry>> {
        Ok(self.ledgers().await?.into_iter().flat_map(|ledger| ledger.spec.entries).collect())
    }

    /// How often ledgers and statuses were written so far.
    pub fn writes(&self) -> Result<usize> {
        let is_write = |verb: &str| ["create", "update", "patch", "delete"].contains(&verb);
        let ours = |event: &&AuditEvent| {
            event.resource == "imageledgers"
                || event.resource == "clusterimagesetavailabilities" && event.subresource == "status"
        };
        let events = self.cluster.audit_events()?;
        Ok(events.iter().filter(ours).filter(|event| is_write(&event.verb)).count())
    }

    /// Events about images, as namespace, object and reason, in order.
    pub async fn events(&self) -> Result<Vec<(String, String, String)>> {
        let events: Api<Event> = Api::all(self.client.clone());
        let found = events.list(&ListParams::default().fields("source=fairlead")).await?.items;
        let mut told: Vec<_> = found
            .into_iter()
            .filter(|event| event.reason.as_deref().is_some_and(|reason| reason.starts_with("Image")))
            .map(|event| {
                let (namespace, about) = (event.namespace().unwrap_or_default(), event.involved_object);
                let object = format!("{}/{}", about.kind.unwrap_or_default(), about.name.unwrap_or_default());
                (namespace, object, event.reason.unwrap_or_default())
            })
            .collect();
        told.sort();
        Ok(told)
    }
}

/// A replica that watches.
pub struct Replica {
    pub mirrors: channel::Sender<Arc<MirrorLooks>>,
    pub seen: mpsc::Receiver<Seen>,
    pub verdicts: Verdicts,
    registry: Mutex<Registry>,
    candidate: Candidate,
}

impl Replica {
    pub async fn start(bench: &Bench, identity: &str, config: &str) -> Result<Self> {
        let config = Config::parse(&with_registries(config))?.config;
        let client = bench.cluster.client().await?;
        let mut candidate = Candidate::start(&client, &bench.own_namespace, identity);
        let mut registry = Registry::default();
        let (context, queues) = candidate.context(config.clone(), &mut registry);
        let context = Arc::new(context);
        let verdicts = context.verdicts.clone();
        candidate.control::<EventWriter>(Arc::new(Events::new(context.clone(), queues.events)));
        let (mirrors, published) = channel::channel(Arc::default());
        let (sender, seen) = mpsc::channel(16);
        let metrics = Metrics::register(&mut registry, &config);
        let watch = AvailabilitySetup::new(context, published, sender, metrics);
        candidate.control::<AvailabilityWatch>(Arc::new(watch));
        Ok(Self { mirrors, seen, verdicts, registry: Mutex::new(registry), candidate })
    }

    pub fn page(&self) -> Result<String> {
        Ok(page::text(&self.registry.lock().expect("no test panics with it"))?)
    }

    /// The sum of the lines of the metrics page that begin so.
    pub fn metric(&self, line: &str) -> Result<f64> {
        let page = self.page()?;
        let values = page.lines().filter(|found| found.starts_with(line));
        Ok(values.filter_map(|found| found.rsplit(' ').next()?.parse::<f64>().ok()).sum())
    }

    /// Ends it where it stands, as a crash would: the lease has to run out.
    pub fn kill(self) {
        self.candidate.kill();
    }

    /// Gives leadership back and waits until everything has ended.
    pub async fn stop(self) -> Result<()> {
        self.candidate.stop().await
    }
}
