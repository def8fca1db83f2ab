//! Warming on a real API server: on simulated nodes, where kwok does what a kubelet would, and on a real one.

mod by_hand;
mod places;

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use fairlead_api::conditions::{find, types};
use fairlead_api::drop::{CachedImage, CachedImageSet, CachedImageStatus, PullPolicy};
use fairlead_api::fairlead::WarmLedger;
use fairlead_operator::capabilities::warm::images::ImageWarming;
use fairlead_operator::capabilities::warm::sets::SetKeeper;
use fairlead_operator::capabilities::warm::{Metrics, WarmSetup};
use fairlead_operator::platform::api_error::{Class, Failure};
use fairlead_operator::platform::config::Config;
use fairlead_testkit::cluster::pull_stages;
use fairlead_testkit::images::{self, ImageBuilder, holding};
use fairlead_testkit::{Cluster, Registry, RegistryConfig, definitions, eventually};
use k8s_openapi::api::core::v1::{Node, Pod, ResourceQuota, Secret};
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams,
};
use kube::{Api, Client, ResourceExt};
use prometheus_client::registry::Registry as Page;
use serde_json::{Value, json};

use crate::candidate::Candidate;
use crate::definitions::cluster_with_definitions;

const SOON: Duration = Duration::from_mins(1);
/// Time that a simulated pull takes.
const PULL: Duration = Duration::from_millis(500);

/// Pods on simulated nodes end at once, as those do whose image has no `true`: its image is there all the same.
const STAGES: &str = include_str!("warm/stages.yaml");

/// A replica that warms nodes.
struct Bench {
    cluster: Cluster,
    client: Client,
    /// Where pull Pods run.
    namespace: String,
    own: String,
    page: Page,
    replica: Candidate,
}

impl Bench {
    async fn start(cluster: (Cluster, Client), config: &str) -> Result<Self> {
        Self::start_with(cluster, "", config).await
    }

    /// With another setting of warming.
    async fn start_with(cluster: (Cluster, Client), setting: &str, config: &str) -> Result<Self> {
        let (cluster, client) = cluster;
        let (own, namespace) = (cluster.namespace("operator").await?, cluster.namespace("pulls").await?);
        let mut replica = Candidate::start(&client, &own, "one");
        let config = format!("warm: {{namespace: {namespace}, maxPullsPerNode: 10{setting}}}\n{config}");
        let mut page = Page::default();
        let (context, _) = replica.context(Config::parse(&config)?.config, &mut Page::default());
        let context = Arc::new(context);
        replica.spawn(context.policies.clone().run(replica.stopping()));
        let setup = Arc::new(WarmSetup::new(context, Metrics::register(&mut page)));
        replica.control::<ImageWarming>(setup.clone());
        replica.control::<SetKeeper>(setup);
        Ok(Self { cluster, client, namespace, own, page, replica })
    }

    async fn create(&self, kind: &str, name: &str, spec: Value) -> Result<()> {
        let group = if kind.contains("Replicated") { "kuik.enix.io" } else { "drop.corewire.io" };
        let kind = GroupVersionKind::gvk(group, "v1alpha1", kind);
        let resource = ApiResource::from_gvk(&kind);
        let mut object = DynamicObject::new(name, &resource);
        object.data = json!({"spec": spec});
        Api::all_with(self.client.clone(), &resource).create(&PostParams::default(), &object).await?;
        Ok(())
    }

    fn images(&self) -> Api<CachedImage> {
        Api::all(self.client.clone())
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Waits until an image has this reason, and this many nodes of how many.
    async fn status(&self, name: &str, reason: &str, ready: &str) -> Result<CachedImageStatus> {
        eventually(SOON, || async {
            let image = self.images().get(name).await?;
            let status = image.status.with_context(|| format!("{name} has no status yet"))?;
            let condition = find(&status.conditions, types::READY).context("no condition yet")?;
            let is = (condition.reason.as_str(), status.ready.as_deref().unwrap_or_default());
            ensure!(is == (reason, ready), "{name}: {status:?}");
            Ok(status)
        })
        .await
    }

    async fn no_pull_pod_is_left(&self) -> Result<()> {
        eventually(SOON, || async {
            let pods = self.pods().list(&ListParams::default()).await?.items;
            ensure!(pods.is_empty(), "{:?}", pods.iter().map(ResourceExt::name_any).collect::<Vec<_>>());
            Ok(())
        })
        .await
    }

    fn metrics(&self) -> Result<String> {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &self.page)?;
        Ok(text)
    }

    /// References that pull Pods asked for, with the nodes they ran on.
    async fn ledgers(&self) -> Result<Vec<WarmLedger>> {
        let ledgers: Api<WarmLedger> = Api::namespaced(self.client.clone(), &self.own);
        Ok(ledgers.list(&ListParams::default()).await?.items)
    }
}

fn insecure(registries: &[&Registry]) -> String {
    let hosts: Vec<_> =
        registries.iter().map(|registry| format!("  '{}': {{plainHttp: true}}", registry.host())).collect();
    format!("registries:\n{}\n", hosts.join("\n"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_set_is_warmed_on_every_node_under_the_names_that_pods_will_ask_for() -> Result<()> {
    let cluster = cluster_with_definitions(Cluster::builder()).await?;
    let [first, second] =
        [Registry::start(RegistryConfig::new()).await?, Registry::start(RegistryConfig::new()).await?];
    for registry in [&first, &second] {
        registry.endpoint().push("team/web", "1", &holding("web")?).await?;
    }
    first.endpoint().push("other/tool", "1", &images::multi_platform(&["amd64"])?).await?;
    let bench = Bench::start(cluster, &insecure(&[&first, &second])).await?;
    bench.cluster.start_kwok(Some(STAGES)).await?;
    bench.cluster.simulated_nodes("n", 6).await?;
    let upstream = |registry: &Registry| json!({"registry": registry.host(), "path": "/team", "imageFilter": {"include": ["/team/.*"]}});
    bench
        .create(
            "ClusterReplicatedImageSet",
            "mirrors",
            json!({"priority": -1, "upstreams": [upstream(&second), upstream(&first)]}),
        )
        .await?;
    bench
        .create("PullPolicy", "fast", json!({"maxConcurrentNodes": 3, "minDelayBetweenPulls": "10ms"}))
        .await?;
    bench
        .create(
            "CachedImageSet",
            "base",
            json!({"policyRef": {"name": "fast"}, "images": [
                {"image": format!("{}/team/web", first.host()), "tag": "1"},
                {"image": format!("{}/other/tool", first.host()), "tag": "1"},
            ]}),
        )
        .await?;
    let children = eventually(SOON, || async {
        let images = bench.images().list(&ListParams::default()).await?.items;
        ensure!(images.len() == 2, "{} children", images.len());
        Ok(images)
    })
    .await?;
    for child in &children {
        bench.status(&child.name_any(), "Cached", "6/6").await?;
    }
    bench.no_pull_pod_is_left().await?;
    let ledgers = bench.ledgers().await?;
    let references: Vec<_> = ledgers.iter().map(|ledger| ledger.spec.reference.as_str()).collect();
    let routed = format!("{}/team/web:1", second.host());
    assert!(references.contains(&&*routed), "{references:?}");
    assert!(ledgers.iter().all(|ledger| ledger.spec.nodes.len() == 6
        && ledger.spec.nodes.iter().all(|node| node.attempt == 1 && node.pulled_at.is_some())));

    eventually(SOON, || async {
        let set: CachedImageSet = Api::all(bench.client.clone()).get("base").await?;
        let status = set.status.context("the set has no status yet")?;
        ensure!((status.images_managed, status.images_ready) == (Some(2), Some(2)), "{status:?}");
        let policy: PullPolicy = Api::all(bench.client.clone()).get("fast").await?;
        ensure!(policy.status.and_then(|status| status.user_count) == Some(2), "the policy has two users");
        Ok(())
    })
    .await?;
    let metrics = eventually(SOON, || async {
        let metrics = bench.metrics()?;
        for line in
            ["drop_active_pulls 0", "drop_reconcile_total{controller=\"cachedimageset\",result=\"success\"}"]
        {
            ensure!(metrics.contains(line), "{line} is missing:\n{metrics}");
        }
        Ok(metrics)
    })
    .await?;
    assert_eq!(metrics.matches("drop_images_cached_total{").count(), 12, "{metrics}");

    an_edit_meets_edits_and_no_statuses(&bench, &children[0].name_any()).await?;

    // A node that joins is warmed, and one that is replaced under its name is warmed again.
    let nodes: Api<Node> = Api::all(bench.client.clone());
    nodes.delete("n-0", &DeleteParams::default()).await?;
    bench.cluster.simulated_nodes("late", 1).await?;
    bench.cluster.simulated_nodes("n", 1).await?;
    for child in &children {
        bench.status(&child.name_any(), "Cached", "7/7").await?;
    }
    let set: Api<CachedImageSet> = Api::all(bench.client.clone());
    let fewer = json!({"spec": {"images": [{"image": format!("{}/team/web", first.host()), "tag": "1"}]}});
    set.patch("base", &PatchParams::default(), &Patch::Merge(fewer)).await?;
    eventually(SOON, || async {
        ensure!(bench.images().list(&ListParams::default()).await?.items.len() == 1);
        Ok(())
    })
    .await?;
    a_gate_opens_once_the_images_are_there(&bench, &children[0].spec.image).await?;
    policies_about_other_images_have_nothing_pulled_again(&bench, &first, &second).await?;
    bench.replica.stop().await
}

/// Even if a registry is down just then, so that Pods would be sent elsewhere.
async fn policies_about_other_images_have_nothing_pulled_again(
    bench: &Bench,
    first: &Registry,
    second: &Registry,
) -> Result<()> {
    second.kill().await?;
    let upstream =
        |path: &str| json!({"registry": first.host(), "path": path, "imageFilter": {"include": [path]}});
    let others = json!({"upstreams": [upstream("/others"), upstream("/elsewhere")]});
    bench.create("ClusterReplicatedImageSet", "others", others).await?;
    // By the time that this one is there, all others have been looked at.
    let tool = format!("{}/other/tool", first.host());
    bench
        .create("CachedImage", "late", json!({"image": tool, "tag": "1", "policyRef": {"name": "fast"}}))
        .await?;
    bench.status("late", "Cached", "8/8").await?;
    let ledgers = bench.ledgers().await?;
    let of_mirror = format!("{}/team/web:1", second.host());
    ensure!(ledgers.iter().any(|ledger| ledger.spec.reference == of_mirror), "{ledgers:?}");
    let mut nodes = ledgers.iter().flat_map(|ledger| &ledger.spec.nodes);
    ensure!(nodes.all(|node| node.attempt == 1), "something was pulled again: {ledgers:?}");
    Ok(())
}

/// A child is replaced as it was seen, however often its status was written since.
async fn an_edit_meets_edits_and_no_statuses(bench: &Bench, child: &str) -> Result<()> {
    let (images, params) = (bench.images(), PatchParams::default());
    let seen = images.get(child).await?;
    let attempted = json!({"status": {"lastAttemptedAt": "2026-01-01T00:00:00Z"}});
    images.patch_status(child, &params, &Patch::Merge(attempted)).await?;
    let replace = async |generation: Option<i64>, spec: Value| {
        let patch = json!([
            {"op": "test", "path": "/metadata/uid", "value": seen.metadata.uid},
            {"op": "test", "path": "/metadata/generation", "value": generation},
            {"op": "replace", "path": "/spec", "value": spec},
        ]);
        let patch: Patch<()> = Patch::Json(serde_json::from_value(patch)?);
        let patched = images.patch(child, &params, &patch).await;
        anyhow::Ok(patched.map(drop).map_err(|error| Failure::from(&error).class))
    };
    let (generation, spec) = (seen.metadata.generation, json!(seen.spec));
    ensure!(replace(generation, spec.clone()).await? == Ok(()), "the status was taken for an edit");
    let older = generation.map(|generation| generation - 1);
    ensure!(replace(older, spec).await? == Err(Class::Conflict), "an edit was overwritten");
    ensure!(replace(generation, json!({})).await? == Err(Class::Rejected), "no image is no conflict");
    Ok(())
}

/// A node with the taint gets its images first, and is opened then.
async fn a_gate_opens_once_the_images_are_there(bench: &Bench, image: &str) -> Result<()> {
    let nodes: Api<Node> = Api::all(bench.client.clone());
    bench
        .create(
            "CachedImage",
            "gate",
            json!({"image": image, "tag": "1", "gate": true, "policyRef": {"name": "fast"}}),
        )
        .await?;
    bench.status("gate", "Cached", "7/7").await?;
    let node = json!({
        "metadata": {"name": "gated", "labels": {
            "kwok.x-k8s.io/node": "fake", "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
        }},
        "spec": {"taints": [
            {"key": "example.com/other", "effect": "PreferNoSchedule"},
            {"key": "fairlead.dev/warming", "effect": "NoSchedule"},
        ]},
    });
    nodes.create(&PostParams::default(), &serde_json::from_value(node)?).await?;
    eventually(SOON, || async {
        let taints = nodes.get("gated").await?.spec.and_then(|spec| spec.taints).unwrap_or_default();
        let keys: Vec<_> = taints.iter().map(|taint| taint.key.as_str()).collect();
        ensure!(!keys.contains(&"fairlead.dev/warming"), "{keys:?}");
        ensure!(keys.contains(&"example.com/other"), "{keys:?}");
        Ok(())
    })
    .await?;
    let status = bench.status("gate", "Cached", "8/8").await?;
    ensure!(status.cached_nodes.contains(&"gated".to_owned()), "{status:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_that_a_quota_refuses_are_tried_again_and_every_metric_moves() -> Result<()> {
    let cluster = cluster_with_definitions(Cluster::builder()).await?;
    let registry = Registry::start(RegistryConfig::new()).await?;
    registry.endpoint().push("team/web", "1", &holding("web")?).await?;
    let bench = Bench::start(cluster, &insecure(&[&registry])).await?;
    let quotas: Api<ResourceQuota> = Api::namespaced(bench.client.clone(), &bench.namespace);
    let quota = json!({"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}});
    quotas.create(&PostParams::default(), &serde_json::from_value(quota)?).await?;
    eventually(SOON, || async {
        let status = quotas.get("none").await?.status;
        ensure!(status.is_some_and(|status| status.hard.is_some()), "nothing counts the Pods yet");
        Ok(())
    })
    .await?;
    bench.cluster.start_kwok(Some(&pull_stages(PULL))).await?;
    bench.cluster.simulated_nodes("n", 2).await?;
    bench.cluster.simulated_nodes("bad", 1).await?;
    let image = format!("{}/team/web", registry.host());
    let spec = json!({"image": image, "tag": "1", "policyRef": {"name": "quick"}});
    let quick = json!({"maxConcurrentNodes": 3, "minDelayBetweenPulls": "10ms"});
    bench.create("PullPolicy", "quick", quick).await?;
    bench.create("CachedImage", "web", spec).await?;
    let status = bench.status("web", "Forbidden", "0/3").await?;
    let ready = find(&status.conditions, types::READY).context("it has the condition")?;
    assert!(ready.message.contains("exceeded quota: none"), "{ready:?}");
    assert_eq!(status.consecutive_failures, None, "no node is to blame");

    quotas.delete("none", &DeleteParams::default()).await?;
    eventually(SOON, || async {
        let metrics = bench.metrics()?;
        ensure!(metrics.contains("\ndrop_active_pulls 3\n"), "{metrics}");
        Ok(())
    })
    .await?;
    // The kubelet of the third node gets some time to succeed by itself.
    bench.status("web", "ImagePullBackOff", "2/3").await?;
    let of_image = format!("image=\"{image}\"");
    eventually(SOON, || async {
        let metrics = bench.metrics()?;
        for line in [
            &*format!("drop_images_cached_total{{{of_image},node=\"n-0\"}} 1"),
            &*format!("drop_images_cached_total{{{of_image},node=\"n-1\"}} 1"),
            &*format!("drop_pull_errors_total{{{of_image},node=\"bad-0\"}} 1"),
            &*format!("drop_pull_duration_seconds_count{{{of_image}}} 2"),
            "drop_active_pulls 0",
            "drop_nodes_targeted{cachedimage=\"web\"} 3",
            "drop_nodes_cached{cachedimage=\"web\"} 2",
            &*format!("drop_consecutive_failures{{cachedimage=\"web\",{of_image}}} 1"),
            "drop_reconcile_total{controller=\"cachedimage\",result=\"error\"}",
            "drop_reconcile_total{controller=\"cachedimage\",result=\"success\"}",
            "drop_reconcile_total{controller=\"pullpolicy\",result=\"success\"}",
        ] {
            ensure!(metrics.contains(line), "{line} is missing:\n{metrics}");
        }
        Ok(())
    })
    .await?;
    bench.images().delete("web", &DeleteParams::default()).await?;
    eventually(SOON, || async {
        let metrics = bench.metrics()?;
        ensure!(!metrics.contains("cachedimage=\"web\""), "gauges go with their object:\n{metrics}");
        Ok(())
    })
    .await?;
    bench.replica.stop().await?;
    by_hand::tests((bench.cluster, bench.client), &registry).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs root; `make test` as root runs it"]
async fn a_real_node_gets_images_of_every_kind() -> Result<()> {
    let cluster = cluster_with_definitions(Cluster::builder().node(true)).await?;
    let registry = cluster.0.registry(RegistryConfig::new()).await?;
    let private = cluster.0.registry(RegistryConfig::new().user("reader", "pa55")).await?;
    let endpoint = registry.endpoint();
    let digest = endpoint.push("run", "1", &images::succeed()?).await?;
    endpoint.push("scratch", "1", &holding("no shell, and nothing to run")?).await?;
    private.endpoint().push("private", "1", &ImageBuilder::pause()?.label("for", "warming").build()?).await?;
    let bench = Bench::start(cluster, &insecure(&[&registry, &private])).await?;
    let secrets: Api<Secret> = Api::namespaced(bench.client.clone(), &bench.namespace);
    let login = json!({"auths": {private.host(): {"username": "reader", "password": "pa55"}}}).to_string();
    let secret = json!({
        "metadata": {"name": "login"}, "type": "kubernetes.io/dockerconfigjson",
        "stringData": {".dockerconfigjson": login},
    });
    secrets.create(&PostParams::default(), &serde_json::from_value(secret)?).await?;
    let image =
        |registry: &Registry, name: &str| json!({"image": format!("{}/{name}", registry.host()), "tag": "1"});
    bench.create("CachedImage", "run", image(&registry, "run")).await?;
    bench.create("CachedImage", "scratch", image(&registry, "scratch")).await?;
    bench.create("CachedImage", "missing", image(&registry, "missing")).await?;
    let mut with_login = image(&private, "private");
    with_login["imagePullSecrets"] = json!([{"name": "login"}]);
    bench.create("CachedImage", "private", with_login).await?;
    bench.create("CachedImage", "locked", image(&private, "private")).await?;

    let status = bench.status("run", "Cached", "1/1").await?;
    assert_eq!(status.resolved_digest, Some(digest));
    bench.status("scratch", "Cached", "1/1").await?;
    bench.status("private", "Cached", "1/1").await?;
    for failing in ["missing", "locked"] {
        eventually(SOON, || async {
            let status = bench.images().get(failing).await?.status.context("no status yet")?;
            let ready = find(&status.conditions, types::READY).context("no condition yet")?;
            ensure!(
                ["ErrImagePull", "ImagePullBackOff"].contains(&ready.reason.as_str()),
                "{failing}: {status:?}"
            );
            Ok(())
        })
        .await?;
    }
    // It is there later, and found with the next attempt.
    registry.endpoint().push("missing", "1", &holding("here I am")?).await?;
    bench.status("missing", "Cached", "1/1").await?;
    bench.replica.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs root; `make test` as root runs it"]
async fn a_registry_that_dies_during_a_pull_costs_a_node_nothing_but_time() -> Result<()> {
    let cluster = cluster_with_definitions(Cluster::builder().node(true)).await?;
    let registry = cluster.0.registry(RegistryConfig::new()).await?;
    let (wire, endpoint) = cluster.0.wire_to(&registry).await?;
    let bytes: Vec<u8> = std::iter::repeat_with(|| fastrand::u8(..)).take(16 << 20).collect();
    let large = ImageBuilder::pause()?.file("/large", &bytes, 0o644)?.build()?;
    let digest = registry.endpoint().push("large", "1", &large).await?;
    let config = format!("registries:\n  '{}': {{plainHttp: true}}\n", endpoint.host());
    let bench = Bench::start(cluster, &config).await?;
    bench.create("PullPolicy", "quick", json!({"failureBackoff": {"initial": "1s", "max": "2s"}})).await?;
    let image = format!("{}/large", endpoint.host());
    let spec = json!({"image": image, "tag": "1", "policyRef": {"name": "quick"}});
    // Manifests and configuration are much smaller, so this is in the middle of the layer.
    let (created, stalled) =
        tokio::join!(bench.create("CachedImage", "large", spec), wire.stall_after(8 << 20));
    created.and(stalled)?;
    wire.kill();
    // A connection that breaks is left to the kubelet for 20 s, which tries again after 10 s, and later after 20 more.
    eventually(2 * SOON, || async {
        let status = bench.images().get("large").await?.status.context("no status yet")?;
        let ready = find(&status.conditions, types::READY).context("no condition yet")?;
        ensure!(["ErrImagePull", "ImagePullBackOff"].contains(&ready.reason.as_str()), "{status:?}");
        Ok(())
    })
    .await?;
    wire.heal();
    let status = bench.status("large", "Cached", "1/1").await?;
    assert_eq!(status.resolved_digest, Some(digest));
    bench.no_pull_pod_is_left().await?;
    bench.replica.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs root; `make test` as root runs it"]
async fn a_real_node_gets_images_as_volumes() -> Result<()> {
    let cluster = cluster_with_definitions(Cluster::builder().node(true)).await?;
    let registry = cluster.0.registry(RegistryConfig::new()).await?;
    registry.endpoint().push("run", "1", &images::succeed()?).await?;
    registry.endpoint().push("data", "1", &holding("nothing that could be run")?).await?;
    let runner = format!(", runner: '{}/run:1'", registry.host());
    let bench = Bench::start_with(cluster, &runner, &insecure(&[&registry])).await?;
    let spec = json!({"image": format!("{}/data", registry.host()), "tag": "1"});
    bench.create("CachedImage", "data", spec).await?;
    bench.status("data", "Cached", "1/1").await?;
    bench.no_pull_pod_is_left().await?;
    let pulled = registry.accesses()?;
    let by_node =
        pulled.iter().any(|one| one.user_agent.contains("containerd") && one.path.contains("/data/blobs/"));
    assert!(by_node, "the node has not pulled it: {pulled:?}");
    bench.replica.stop().await
}

/// As stored by a cluster whose definitions were others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_that_cannot_be_read_say_so_and_hold_no_other_up() -> Result<()> {
    let registry = Registry::start(RegistryConfig::new()).await?;
    registry.endpoint().push("web", "1", &holding("web")?).await?;
    let cluster = cluster_with_definitions(Cluster::builder()).await?;
    let bench = Bench::start(cluster, &insecure(&[&registry])).await?;
    bench.cluster.start_kwok(Some(STAGES)).await?;
    bench.cluster.simulated_nodes("n", 1).await?;
    let kinds = ["CachedImage", "CachedImageSet", "PullPolicy"];
    let definitions = fairlead_api::crds::all();
    for crd in definitions.into_iter().filter(|crd| kinds.contains(&&*crd.spec.names.kind)) {
        definitions::install(&bench.client, &definitions::without_rules(crd)?).await?;
    }
    let odd = json!({"image": 5, "images": 5, "maxConcurrentNodes": "many"});
    for kind in kinds {
        eventually(SOON, || bench.create(kind, "odd", odd.clone())).await?;
    }
    for kind in kinds {
        let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("drop.corewire.io", "v1alpha1", kind));
        let api: Api<DynamicObject> = Api::all_with(bench.client.clone(), &resource);
        eventually(SOON, || async {
            let object = api.get("odd").await?;
            let ready = &object.data["status"]["conditions"][0];
            ensure!(ready["type"] == "Ready" && ready["reason"] == "InvalidSpec", "{kind}: {}", object.data);
            Ok(())
        })
        .await?;
    }
    let good = json!({"image": format!("{}/web", registry.host()), "tag": "1"});
    bench.create("CachedImage", "good", good).await?;
    bench.status("good", "Cached", "1/1").await?;
    bench.replica.stop().await
}
