//! What the lease holder does with pins: it says whether they hold, and removes those of revisions that are gone.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use fairlead_api::fairlead::ImagePin;
use fairlead_operator::capabilities::account::pins::{PinKeeper, PinSetup};
use fairlead_operator::platform::config::Config;
use fairlead_testkit::{Cluster, eventually};
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::api::{DeleteParams, PostParams};
use kube::{Api, Client, ResourceExt};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};

use crate::candidate::Candidate;
use crate::definitions::cluster_with_definitions;

const SOON: Duration = Duration::from_secs(30);

fn digest(digit: &str) -> String {
    format!("sha256:{}", digit.repeat(64))
}

/// A workload of a namespace, and what belongs to it.
struct Workload {
    client: Client,
    namespace: String,
    uid: String,
}

impl Workload {
    async fn create(client: &Client, namespace: &str) -> Result<Self> {
        // No controller looks after it, so Pods and revisions are what this test makes them.
        let owner: ConfigMap = serde_json::from_value(json!({"metadata": {"name": "db"}}))?;
        let set = Api::namespaced(client.clone(), namespace).create(&PostParams::default(), &owner).await?;
        Ok(Self { client: client.clone(), namespace: namespace.to_owned(), uid: set.uid().context("a UID")? })
    }

    fn owner(&self) -> Value {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "db", "uid": self.uid})
    }

    async fn make<K>(&self, object: Value) -> Result<K>
    where
        K: kube::Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>
            + Clone
            + std::fmt::Debug
            + serde::Serialize
            + serde::de::DeserializeOwned,
    {
        let object: K = serde_json::from_value(object)?;
        Ok(Api::namespaced(self.client.clone(), &self.namespace)
            .create(&PostParams::default(), &object)
            .await?)
    }

    async fn pin(&self, revision: &str) -> Result<ImagePin> {
        let image = json!({"asked": "docker.io/library/postgres:18", "digest": digest("a"), "resolvedAt": "2026-01-01T00:00:00Z"});
        let workload = self.owner();
        self.make(json!({
            "apiVersion": "fairlead.dev/v1alpha1", "kind": "ImagePin",
            "metadata": {"name": format!("db-{revision}"), "ownerReferences": [self.owner()]},
            "spec": {"workload": workload, "revision": revision, "images": [image]},
        }))
        .await
    }

    async fn revision(&self, name: &str) -> Result<()> {
        let metadata = json!({"name": name, "ownerReferences": [self.owner()]});
        self.make::<ControllerRevision>(json!({"metadata": metadata, "revision": 7, "data": {}}))
            .await
            .map(drop)
    }

    async fn pod(&self, name: &str, revision: &str, image: &str) -> Result<()> {
        let mut owner = self.owner();
        owner["controller"] = json!(true);
        let route = json!({"asked": "postgres:18", "used": image, "by": "original"});
        let record = json!({"v": 1, "images": {"db": route}}).to_string();
        self.make::<Pod>(json!({
            "metadata": {
                "name": name, "ownerReferences": [owner], "annotations": {"fairlead.dev/routes": record},
                "labels": {"controller-revision-hash": revision},
            },
            "spec": {"containers": [{"name": "db", "image": image}]},
        }))
        .await
        .map(drop)
    }

    async fn ready(&self, revision: &str, status: &str, says: &str) -> Result<()> {
        let pins: Api<ImagePin> = Api::namespaced(self.client.clone(), &self.namespace);
        eventually(SOON, || async {
            let found = pins.get(&format!("db-{revision}")).await?.status.unwrap_or_default();
            let ready = found.conditions.iter().find(|one| one.type_ == "Ready").context("no condition")?;
            ensure!(format!("{:?}", ready.status) == status && ready.message.contains(says), "{ready:?}");
            ensure!(found.image_count == Some(1), "{found:?}");
            Ok(())
        })
        .await
    }

    async fn pins(&self, expected: &[&str]) -> Result<()> {
        let pins: Api<ImagePin> = Api::namespaced(self.client.clone(), &self.namespace);
        eventually(SOON, || async {
            let mut names: Vec<_> = pins
                .list(&kube::api::ListParams::default())
                .await?
                .iter()
                .map(|pin| pin.spec.revision.clone())
                .collect();
            names.sort();
            ensure!(names == expected, "{names:?}");
            Ok(())
        })
        .await
    }

    async fn delete<K>(&self, name: &str) -> Result<()>
    where
        K: kube::Resource<Scope = kube::core::NamespaceResourceScope, DynamicType = ()>
            + Clone
            + std::fmt::Debug
            + serde::de::DeserializeOwned,
    {
        let api: Api<K> = Api::namespaced(self.client.clone(), &self.namespace);
        api.delete(name, &DeleteParams::default().grace_period(0)).await?;
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pins_say_whether_they_hold_and_go_with_their_revisions() -> Result<()> {
    let (cluster, client) = cluster_with_definitions(Cluster::builder()).await?;
    let (own, team) = (cluster.namespace("operator").await?, cluster.namespace("team").await?);
    let mut replica = Candidate::start(&client, &own, "one");
    let (context, _) = replica.context(Config::default(), &mut Registry::default());
    let workload = Workload::create(&client, &team).await?;
    workload.revision("db-kept").await?;
    for revision in ["db-kept", "db-used", "db-gone"] {
        workload.pin(revision).await?;
    }
    let held = format!("postgres:18@{}", digest("a"));
    workload.pod("db-0", "db-used", &held).await?;
    // Watches are independent of each other. Without a grace period a pin that is seen before its Pod would go.
    eventually(SOON, || async {
        ensure!(
            context.resources.pods.select(|pod| &*pod.key.name == "db-0").len() == 1,
            "db-0 is not seen yet"
        );
        Ok(())
    })
    .await?;
    replica.control::<PinKeeper>(Arc::new(PinSetup::new(Arc::new(context)).with_grace(0)));

    workload.pins(&["db-kept", "db-used"]).await?;
    workload.ready("db-used", "True", "1 Pod runs what is pinned").await?;
    workload.ready("db-kept", "True", "the revision has no Pod").await?;
    workload.pod("db-1", "db-used", "postgres:18").await?;
    workload.ready("db-used", "False", "1 of 2 Pods were admitted without the pinned digests: db-1").await?;

    for pod in ["db-0", "db-1"] {
        workload.delete::<Pod>(pod).await?;
    }
    workload.pins(&["db-kept"]).await?;
    workload.delete::<ControllerRevision>("db-kept").await?;
    workload.pins(&[]).await?;
    replica.stop().await
}
