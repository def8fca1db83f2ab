//! Policy objects on a real API server: what routing uses of them, and what their statuses say.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fairlead_testkit::definitions::{install, without_rules};
use fairlead_testkit::{Cluster, eventually};
use futures::{StreamExt, TryStreamExt, stream};
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::definitions::{cluster_with_definitions, definition};
use crate::leading::{Leading, SOON};

const GROUP: &str = "kuik.enix.io";
const PLURALS: [(&str, &str); 4] = [
    ("ClusterImageSetMirror", "clusterimagesetmirrors"),
    ("ImageSetMirror", "imagesetmirrors"),
    ("ClusterReplicatedImageSet", "clusterreplicatedimagesets"),
    ("ReplicatedImageSet", "replicatedimagesets"),
];

/// A cluster of its own: objects without a namespace are seen by every replica, and definitions change here.
struct Bench {
    cluster: Cluster,
    client: Client,
    own_namespace: String,
    namespace: String,
}

impl Bench {
    async fn new() -> Result<Self> {
        let (cluster, client) = cluster_with_definitions(Cluster::builder()).await?;
        let own_namespace = cluster.namespace("operator").await?;
        let namespace = cluster.namespace("team").await?;
        Ok(Self { cluster, client, own_namespace, namespace })
    }

    fn api(&self, kind: &str) -> Api<DynamicObject> {
        let plural = PLURALS.iter().find(|(name, _)| *name == kind).map_or("", |(_, plural)| plural);
        let resource =
            ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(GROUP, "v1alpha1", kind), plural);
        if kind.starts_with("Cluster") {
            Api::all_with(self.client.clone(), &resource)
        } else {
            Api::namespaced_with(self.client.clone(), &self.namespace, &resource)
        }
    }

    async fn create(&self, kind: &str, name: &str, spec: &Value) -> Result<()> {
        let object: DynamicObject = serde_json::from_value(json!({
            "apiVersion": "kuik.enix.io/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec,
        }))?;
        eventually(SOON, || async {
            self.api(kind).create(&PostParams::default(), &object).await?;
            Ok(())
        })
        .await
    }

    async fn change(&self, kind: &str, name: &str, spec: &Value) -> Result<()> {
        let patch = Patch::Merge(json!({"spec": spec}));
        self.api(kind).patch(name, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    async fn get(&self, kind: &str, name: &str) -> Result<Value> {
        Ok(serde_json::to_value(self.api(kind).get(name).await?)?)
    }

    /// Waits until a condition says this, and returns the object.
    async fn wait_for(&self, kind: &str, name: &str, wanted: (&str, &str, &str)) -> Result<Value> {
        eventually(SOON, || async {
            let object = self.get(kind, name).await?;
            let found = condition(&object, wanted.0).context("no such condition")?;
            ensure!(found["status"] == wanted.1 && found["reason"] == wanted.2, "{kind} {name}: {found}");
            ensure!(found["observedGeneration"] == object["metadata"]["generation"], "of an older version");
            Ok(object)
        })
        .await
    }
}

fn condition<'a>(object: &'a Value, type_: &str) -> Option<&'a Value> {
    object["status"]["conditions"].as_array()?.iter().find(|one| one["type"] == type_)
}

fn message<'a>(object: &'a Value, type_: &str) -> &'a str {
    condition(object, type_).and_then(|one| one["message"].as_str()).unwrap_or_default()
}

fn mirrors() -> Value {
    json!({
        "filter": {"include": [{"image": "docker.io/.+"}]},
        "mirrors": [{"registry": "mirror.example", "path": "/copies"}],
    })
}

fn upstreams() -> Value {
    json!({"upstreams": [
        {"registry": "docker.io", "path": "/library", "imageFilter": {"include": ["/library/.+"]}},
        {"registry": "quay.io", "path": "/library"},
    ]})
}

fn used(replica: &Leading) -> BTreeSet<String> {
    replica.policies.current().policies().map(|policy| policy.id().to_string()).collect()
}

/// A pattern that the API server takes and the engine of filters does not.
const BROKEN: &str = "app in (web";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_kind_says_whether_it_is_used_and_a_broken_one_changes_nothing_for_the_others() -> Result<()> {
    let bench = Bench::new().await?;
    let replica = Leading::start_with(&bench.client, &bench.own_namespace, "one", |policy| {
        let missing = &*policy.name == "set" && policy.is_cluster_scoped();
        missing.then(|| "Secret shop/pull does not exist: create it".to_owned()).into_iter().collect()
    });
    replica.wait_ready().await?;

    bench.create("ClusterImageSetMirror", "mirror", &mirrors()).await?;
    bench.create("ImageSetMirror", "mirror", &mirrors()).await?;
    bench.create("ClusterReplicatedImageSet", "set", &upstreams()).await?;
    bench.create("ReplicatedImageSet", "set", &upstreams()).await?;
    let object = bench.wait_for("ReplicatedImageSet", "set", ("Ready", "True", "Ready")).await?;
    ensure!(
        object["status"]["upstreamCount"] == 2 && object["status"]["observedGeneration"] == 1,
        "{object}"
    );
    ensure!(condition(&object, "Accepted").is_none(), "{object}");
    let object =
        bench.wait_for("ClusterReplicatedImageSet", "set", ("Ready", "False", "SecretUnavailable")).await?;
    ensure!(message(&object, "Ready").contains("Secret shop/pull does not exist"), "{object}");
    let namespace = &bench.namespace;
    let all = BTreeSet::from([
        "ClusterImageSetMirror/mirror".to_owned(),
        format!("ImageSetMirror/{namespace}/mirror"),
        "ClusterReplicatedImageSet/set".to_owned(),
        format!("ReplicatedImageSet/{namespace}/set"),
    ]);
    eventually(SOON, || async {
        ensure!(used(&replica) == all, "{:?}", used(&replica));
        Ok(())
    })
    .await?;
    // The mirror controller reports mirrors that work, and it does not run here.
    for kind in ["ClusterImageSetMirror", "ImageSetMirror"] {
        let object = bench.get(kind, "mirror").await?;
        ensure!(object["status"].is_null(), "{object}");
    }

    // One breaks. It alone says so; the API server takes it, since only the definition's loose form lets it in.
    let strict = definition("ImageSetMirror")?;
    install(&bench.client, &without_rules(strict.clone())?).await?;
    let before: Vec<_> = replica.policies.current().policies().cloned().collect();
    let broken = json!({"filter": {"include": [{"label": BROKEN}]}});
    eventually(SOON, || bench.change("ImageSetMirror", "mirror", &broken)).await?;
    let object = bench.wait_for("ImageSetMirror", "mirror", ("Ready", "False", "InvalidFilter")).await?;
    bench.wait_for("ImageSetMirror", "mirror", ("Accepted", "False", "InvalidFilter")).await?;
    ensure!(message(&object, "Ready").contains("spec.filter.include[0].label: "), "{object}");
    let left = replica.policies.current();
    ensure!(left.policies().count() == 3, "{:?}", used(&replica));
    for policy in left.policies() {
        ensure!(before.iter().any(|one| std::sync::Arc::ptr_eq(one, policy)), "{} was touched", policy.id());
    }
    let object = bench.get("ReplicatedImageSet", "set").await?;
    ensure!(condition(&object, "Ready").is_some_and(|ready| ready["status"] == "True"), "{object}");
    let problems = replica.policies.problems();
    ensure!(problems.len() == 1 && problems[0].reason == "InvalidFilter", "{problems:?}");

    // Another is stored in a form that its kind does not have.
    let nonsense = json!({"priority": "first", "mirrors": []});
    bench.create("ImageSetMirror", "odd", &nonsense).await?;
    let object = bench.wait_for("ImageSetMirror", "odd", ("Ready", "False", "InvalidSpec")).await?;
    ensure!(message(&object, "Ready").contains("spec.priority: "), "{object}");
    // Under the real definition, too, and conditions of others stay.
    let foreign = json!({"status": {"conditions": [{
        "type": "Copied", "status": "True", "reason": "Done", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
    }]}});
    install(&bench.client, &strict).await?;
    bench
        .api("ImageSetMirror")
        .patch_status("odd", &PatchParams::default(), &Patch::Merge(foreign))
        .await
        .context("the status of an object that does not fit the definition")?;
    let object = bench.wait_for("ImageSetMirror", "odd", ("Accepted", "False", "InvalidSpec")).await?;
    bench.wait_for("ImageSetMirror", "odd", ("Ready", "False", "InvalidSpec")).await?;
    ensure!(condition(&object, "Copied").is_some(), "{object}");

    // Repaired, both are used again.
    bench
        .change("ImageSetMirror", "mirror", &json!({"filter": {"include": [{"image": "quay.io/.+"}]}}))
        .await?;
    let whole = json!({"priority": 1, "mirrors": mirrors()["mirrors"], "filter": mirrors()["filter"]});
    bench.change("ImageSetMirror", "odd", &whole).await?;
    eventually(SOON, || async {
        ensure!(used(&replica).len() == 5 && replica.policies.problems().is_empty(), "{:?}", used(&replica));
        Ok(())
    })
    .await?;

    // Gone is gone.
    for (kind, name) in [("ImageSetMirror", "odd"), ("ClusterReplicatedImageSet", "set")] {
        bench.api(kind).delete(name, &DeleteParams::default()).await?;
    }
    eventually(SOON, || async {
        ensure!(used(&replica).len() == 3, "{:?}", used(&replica));
        Ok(())
    })
    .await?;
    replica.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_policies_at_once_cost_few_rebuilds_and_one_write_each() -> Result<()> {
    const COUNT: usize = 1000;
    let bench = Bench::new().await?;
    let replica = Leading::start(&bench.cluster, &bench.own_namespace, "one").await?;
    replica.wait_ready().await?;

    let api = bench.api("ReplicatedImageSet");
    let begun = std::time::Instant::now();
    stream::iter(0..COUNT)
        .map(|number| {
            let api = api.clone();
            async move {
                let object = serde_json::from_value(json!({
                    "apiVersion": "kuik.enix.io/v1alpha1", "kind": "ReplicatedImageSet",
                    "metadata": {"name": format!("set-{number}")}, "spec": upstreams(),
                }))?;
                api.create(&PostParams::default(), &object).await?;
                anyhow::Ok(())
            }
        })
        .buffer_unordered(16)
        .try_collect::<Vec<()>>()
        .await?;
    let burst = begun.elapsed();
    eventually(SOON, || async {
        let found = replica.policies.current().policies().count();
        ensure!(found == COUNT, "{found} policies");
        Ok(())
    })
    .await?;
    // At most one in a tenth of a second, while they came and a little longer.
    let most = u64::try_from(begun.elapsed().as_millis() / 100)? + 2;
    let rebuilds = replica.policies.generation();
    ensure!(rebuilds <= most, "{rebuilds} rebuilds in a burst of {burst:?}");

    let all_told = || async {
        let objects = api.list(&ListParams::default()).await?;
        let told = objects.items.iter().filter(|object| object.data["status"]["upstreamCount"] == 2).count();
        ensure!(told == COUNT, "{told} are told");
        Ok(())
    };
    eventually(Duration::from_mins(2), all_told).await?;
    eventually(SOON, || async {
        ensure!(replica.policy_metrics.written() >= COUNT as u64);
        Ok(())
    })
    .await?;
    ensure!(replica.policies.generation() == rebuilds, "statuses that are written are no reason to rebuild");
    let written = replica.policy_metrics.written();
    ensure!(written == COUNT as u64, "{written} writes");

    // A second replica knows them all, and when it leads it finds that everything is said.
    let other = Leading::start(&bench.cluster, &bench.own_namespace, "two").await?;
    other.wait_ready().await?;
    replica.stop().await?;
    let broken = json!({"filter": {"include": [{"label": "app"}]}, "upstreams": [{"registry": "gone.example", "path": "/"}]});
    bench.create("ReplicatedImageSet", "after", &broken).await?;
    bench.wait_for("ReplicatedImageSet", "after", ("Ready", "True", "Ready")).await?;
    ensure!(other.policy_metrics.written() == 1, "{} writes", other.policy_metrics.written());
    ensure!(other.policies.current().policies().count() == COUNT + 1);
    other.stop().await
}

/// The wire breaks while a hundred statuses are being written and while one object breaks. When it is mended,
/// everything is said, and said once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_while_the_api_server_cannot_be_reached() -> Result<()> {
    const COUNT: usize = 150;
    let bench = Bench::new().await?;
    let (replica, wire) = Leading::start_behind_wire(&bench.cluster, &bench.own_namespace, "one").await?;
    replica.wait_ready().await?;
    for number in 0..COUNT {
        bench.create("ReplicatedImageSet", &format!("set-{number}"), &upstreams()).await?;
        if number == COUNT / 2 {
            wire.cut();
        }
    }
    bench
        .change(
            "ReplicatedImageSet",
            "set-0",
            &json!({"upstreams": [{"registry": "new.example", "path": "/"}]}),
        )
        .await?;
    ensure!(replica.policies.current().policies().count() < COUNT, "the wire is not cut");
    wire.heal();

    let told = bench.wait_for("ReplicatedImageSet", "set-0", ("Ready", "True", "Ready")).await?;
    ensure!(told["status"]["upstreamCount"] == 1, "{told}");
    let api = bench.api("ReplicatedImageSet");
    eventually(Duration::from_mins(1), || async {
        let objects = api.list(&ListParams::default()).await?.items;
        let told = objects.iter().filter(|one| one.data["status"]["upstreamCount"].is_number()).count();
        ensure!(told == COUNT, "{told} are told");
        Ok(())
    })
    .await?;
    ensure!(replica.policies.current().policies().count() == COUNT);
    replica.stop().await
}
