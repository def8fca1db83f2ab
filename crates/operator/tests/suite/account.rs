//! The inventory of images against a real API server: what kubelets report is injected through the status subresource,
//! in the form of each runtime, since no released kubelet fills the field.

mod gate;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fairlead_api::fairlead::ImagePin;
use fairlead_api::names::fairlead::{ROUTES, VOLUME_DIGESTS};
use fairlead_domain::digest::Digest;
use fairlead_operator::capabilities::account::inventory::{DriftBoard, Inventory, InventorySetup};
use fairlead_operator::capabilities::account::pins::{PinKeeper, PinSetup};
use fairlead_operator::capabilities::account::{self};
use fairlead_operator::capabilities::availability::{self, AvailabilitySetup, AvailabilityWatch};
use fairlead_operator::capabilities::consistency::Consistency;
use fairlead_operator::controller::events::{EventWriter, Events};
use fairlead_operator::platform::config::Config;
use fairlead_operator::platform::telemetry::page;
use fairlead_testkit::fake_registry::{Auth, FakeRegistry};
use fairlead_testkit::images::{Image, artifact, holding, multi_platform};
use fairlead_testkit::{Cluster, Part, eventually, operator::with_registries};
use k8s_openapi::api::apps::v1::{Deployment, ReplicaSet};
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio::sync::{mpsc, watch};

use crate::candidate::Candidate;
use crate::definitions::cluster_with_definitions;

const SOON: Duration = Duration::from_mins(1);

/// Fast enough for a test.
const CONFIG: &str = "monitoring: {registries: {default: {interval: 10s, maxPerInterval: 100}}}";

struct Bench {
    cluster: Cluster,
    client: Client,
    own_namespace: String,
    shop: String,
}

impl Bench {
    /// `gate`: whether the API server keeps what kubelets report of image volumes.
    async fn new(gate: bool) -> Result<Self> {
        let cluster = Cluster::builder().audit(true).feature_gate("ImageVolumeWithDigest", gate);
        let (cluster, client) = cluster_with_definitions(cluster).await?;
        let (own_namespace, shop) = (cluster.namespace("operator").await?, cluster.namespace("shop").await?);
        Ok(Self { cluster, client, own_namespace, shop })
    }

    fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.client.clone(), &self.shop)
    }

    /// A Node that nothing runs on.
    async fn node(&self, name: &str, architecture: &str) -> Result<()> {
        let nodes: Api<Node> = Api::all(self.client.clone());
        let node = serde_json::from_value(json!({"metadata": {"name": name}}))?;
        nodes.create(&PostParams::default(), &node).await?;
        let info = json!({
            "operatingSystem": "linux", "architecture": architecture, "machineID": "", "systemUUID": "", "bootID": "",
            "kernelVersion": "", "osImage": "", "containerRuntimeVersion": "containerd://2.2.0", "kubeletVersion": "v1.36.4",
            "kubeProxyVersion": "",
        });
        let status = Patch::Merge(json!({"status": {"nodeInfo": info}}));
        nodes.patch_status(name, &PatchParams::default(), &status).await?;
        Ok(())
    }

    /// A Pod whose two containers mount an image; it was not admitted by a webhook of ours.
    async fn pod(&self, name: &str, image: &str, node: Option<&str>, annotations: Value) -> Result<Pod> {
        let container = |name: &str| {
            json!({"name": name, "image": "app.example/app:1", "volumeMounts": [
                {"name": "model", "mountPath": "/models"}, {"name": "scratch", "mountPath": "/scratch"},
            ]})
        };
        let pod = serde_json::from_value(json!({
            "metadata": {"name": name, "annotations": annotations},
            "spec": {
                "nodeName": node,
                "terminationGracePeriodSeconds": 0,
                "tolerations": [{"operator": "Exists"}],
                "containers": [container("web"), container("side")],
                "volumes": [
                    {"name": "model", "image": {"reference": image, "pullPolicy": "IfNotPresent"}},
                    {"name": "scratch", "emptyDir": {}},
                ],
            },
        }))?;
        Ok(self.pods().create(&PostParams::default(), &pod).await?)
    }

    /// Writes what a kubelet would about the mounts of one container.
    async fn report(
        &self,
        pod: &str,
        container: &str,
        volume: &str,
        path: &str,
        image_ref: &str,
    ) -> Result<Pod> {
        let status = json!({"status": {"containerStatuses": [{
            "name": container, "image": "app.example/app:1", "imageID": "", "ready": true, "restartCount": 0,
            "containerID": "containerd://1", "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
            "volumeMounts": [{"name": volume, "mountPath": path, "volumeStatus": {"image": {"imageRef": image_ref}}}],
        }]}});
        Ok(self.pods().patch_status(pod, &PatchParams::default(), &Patch::Merge(status)).await?)
    }

    async fn annotation(&self, pod: &str) -> Result<Option<Value>> {
        let pod = self.pods().get(pod).await?;
        let text = pod.annotations().get(VOLUME_DIGESTS);
        text.map(|text| Ok(serde_json::from_str(text)?)).transpose()
    }

    async fn wait_for_annotation(&self, pod: &str, expected: Option<&str>) -> Result<()> {
        let expected = expected.map(|image| json!({"model": image}));
        eventually(SOON, || async {
            let found = self.annotation(pod).await?;
            ensure!(found == expected, "{pod}: {found:?}, not {expected:?}");
            Ok(())
        })
        .await
    }

    /// How often a Pod itself was patched.
    fn patches(&self, pod: &str) -> Result<usize> {
        let events = self.cluster.audit_events()?;
        let ours = events.iter().filter(|event| event.resource == "pods" && event.subresource.is_empty());
        Ok(ours.filter(|event| event.name == pod && event.verb == "patch").count())
    }
}

struct Replica {
    registry: Mutex<Registry>,
    candidate: Candidate,
}

impl Replica {
    fn start(bench: &Bench, identity: &str, config: &str) -> Result<Self> {
        let config = Config::parse(&with_registries(config))?.config;
        let mut candidate = Candidate::start(&bench.client, &bench.own_namespace, identity);
        let mut registry = Registry::default();
        let (context, queues) = candidate.context(config.clone(), &mut registry);
        let context = Arc::new(context);
        let stop = candidate.stopping();
        candidate.spawn(context.policies.clone().run(stop));
        candidate.control::<EventWriter>(Arc::new(Events::new(context.clone(), queues.events)));
        let (mirrors, published) = watch::channel(Arc::default());
        let (sender, mut seen) = mpsc::channel(16);
        // There are no mirrors that could take it.
        candidate.spawn(async move { while seen.recv().await.is_some() {} });
        let (wishes, accounts) = watch::channel(Arc::default());
        let (finding, found) = mpsc::channel(16);
        let metrics = availability::Metrics::register(&mut registry, &config);
        let looks = AvailabilitySetup::new(context.clone(), published, sender, metrics)
            .with_accounts(accounts, finding);
        candidate.control::<AvailabilityWatch>(Arc::new(looks));
        let metrics = account::Metrics::register(&mut registry);
        let board = Arc::<DriftBoard>::default();
        let pins = PinSetup::new(context.clone()).with_board(board.clone());
        candidate.control::<PinKeeper>(Arc::new(pins));
        let consistency = Arc::new(Consistency::new(context.clone()));
        let inventory = InventorySetup::new(context, metrics, wishes, found).beside(consistency, board);
        candidate.control::<Inventory>(Arc::new(inventory));
        drop(mirrors);
        Ok(Self { registry: Mutex::new(registry), candidate })
    }

    fn metric(&self, line: &str) -> Result<Option<f64>> {
        let page = page::text(&self.registry.lock().expect("no test panics with it"))?;
        let found = page.lines().find_map(|found| found.strip_prefix(line)?.trim().parse().ok());
        Ok(found)
    }

    async fn wait_for(&self, line: &str, value: f64) -> Result<()> {
        eventually(SOON, || async {
            let found = self.metric(line)?;
            ensure!(found == Some(value), "{line} is {found:?}, not {value}");
            Ok(())
        })
        .await
    }
}

/// The digest of an image's configuration: the only blob of its type.
fn config_digest(image: &Image, manifest: usize) -> Result<String> {
    let manifest = image.manifests().get(manifest).unwrap_or(image.root());
    let manifest: Value = serde_json::from_slice(&manifest.bytes)?;
    Ok(manifest["config"]["digest"].as_str().context("a configuration")?.to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn digests_of_image_volumes_are_noted_once_and_give_way_to_the_kubelet() -> Result<()> {
    let bench = Bench::new(true).await?;
    let registry = FakeRegistry::start().await?;
    let image = multi_platform(&["amd64", "arm64"])?;
    let digest = registry.hold("models", "1", &image);
    let named = format!("{}/models:1", registry.host());
    let noted = format!("{}/models@{digest}", registry.host());
    for (node, architecture) in [("node-1", "amd64"), ("node-2", "arm64")] {
        bench.node(node, architecture).await?;
    }
    let forged = json!({VOLUME_DIGESTS: json!({"model": format!("{}/models@{}", registry.host(), Digest::sha256(b"evil"))}).to_string()});
    bench.pod("plain", &named, None, json!({})).await?;
    bench.pod("forged", &named, None, forged).await?;
    let by_admission = json!({
        ROUTES: json!({"v": 1, "images": {"volume:model": {
            "asked": named, "used": named, "by": "original", "digest": digest,
        }}}).to_string(),
        VOLUME_DIGESTS: json!({"model": noted}).to_string(),
    });
    bench.pod("admitted", &named, None, by_admission).await?;
    let replica = Replica::start(&bench, "first", CONFIG)?;

    bench.wait_for_annotation("plain", Some(&noted)).await?;
    bench.wait_for_annotation("forged", Some(&noted)).await?;
    replica.wait_for("fairlead_image_volumes{source=\"expected\"}", 6.0).await?;
    ensure!(bench.patches("plain")? == 1, "written once");
    ensure!(bench.patches("admitted")? == 0, "admission has written it");
    ensure!(registry.count("GET", "/manifests/") == 0, "nothing had to be compared");

    // What is forged later does not count, even if the registry has it; see below.
    let evil = registry.hold("models", "evil", &holding("evil")?);
    let evil = json!({"model": format!("{}/models@{evil}", registry.host())}).to_string();
    let forgery = Patch::Merge(json!({"metadata": {"annotations": {VOLUME_DIGESTS: evil}}}));
    bench.pods().patch("plain", &PatchParams::default(), &forgery).await?;

    // Each runtime has a form of its own, and all of them name the image that is expected on their node.
    let config = config_digest(&image, 0)?;
    let hexadecimal = config_digest(&image, 1)?.replace("sha256:", "");
    let on_amd64 = format!("elsewhere.example/models@{}", image.manifests()[0].digest());
    for (name, node, form) in [
        ("containerd", "node-1", config.as_str()),
        ("crio-id", "node-2", &hexadecimal),
        ("crio", "node-1", &on_amd64),
        ("index", "node-2", &format!("docker-pullable://{noted}")),
    ] {
        bench.pod(name, &named, Some(node), json!({})).await?;
        bench.wait_for_annotation(name, Some(&noted)).await?;
        let stored = bench.report(name, "web", "model", "/models", form).await?;
        let kept = serde_json::to_value(&stored)?;
        let path = "/status/containerStatuses/0/volumeMounts/0/volumeStatus/image/imageRef";
        ensure!(kept.pointer(path) == Some(&json!(form)), "{kept}");
        bench.wait_for_annotation(name, None).await?;
        ensure!(bench.patches(name)? == 2, "written once and taken away once");
    }
    replica.wait_for("fairlead_image_volumes{source=\"kubelet\"}", 4.0).await?;
    replica.wait_for("fairlead_inventory_images{state=\"matching\"}", 4.0).await?;
    replica.wait_for("fairlead_inventory_images{state=\"differing\"}", 0.0).await?;
    ensure!(registry.count("GET", &digest) == 1, "the index is read once");
    for manifest in image.manifests() {
        ensure!(registry.count("GET", &manifest.digest()) <= 1, "and its images as well");
    }

    // What is no image volume is a finding, and nothing else; so are containers that mount different content.
    bench.report("plain", "web", "scratch", "/scratch", &noted).await?;
    replica.wait_for("fairlead_image_volume_findings{finding=\"misplaced\"}", 1.0).await?;
    bench.report("forged", "web", "model", "/elsewhere", &noted).await?;
    replica.wait_for("fairlead_image_volume_findings{finding=\"misplaced\"}", 2.0).await?;
    ensure!(bench.annotation("plain").await?.is_some(), "nothing is reported of the image volume");
    let other = format!("{}/models@{}", registry.host(), Digest::sha256(b"other"));
    bench.report("crio", "web", "model", "/models", &other).await?;
    replica.wait_for("fairlead_inventory_images{state=\"matching\"}", 3.0).await?;
    // The registry has no such digest, so it is not another name of the same image.
    replica.wait_for("fairlead_inventory_images{state=\"differing\"}", 1.0).await?;

    // By now the forgery is put right: soon, and not at once, in case that another client writes it again.
    bench.wait_for_annotation("plain", Some(&noted)).await?;

    // An empty value is refused by the API server; the operator does not notice.
    ensure!(bench.report("forged", "web", "model", "/models", "").await.is_err());
    bench.wait_for_annotation("forged", Some(&noted)).await?;
    replica.candidate.stop().await?;

    // The next one to lead writes nothing again: what is noted is borne out by the registry.
    let before = (bench.patches("plain")?, bench.patches("forged")?);
    registry.hold("models", "1", &holding("moved")?);
    let next = Replica::start(&bench, "second", CONFIG)?;
    next.wait_for("fairlead_image_volumes{source=\"expected\"}", 10.0).await?;
    ensure!(
        bench.annotation("plain").await? == Some(json!({"model": noted})),
        "it was resolved before the tag moved"
    );
    ensure!((bench.patches("plain")?, bench.patches("forged")?) == before);
    next.candidate.stop().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_gate_or_a_secret_and_for_artifacts_nothing_breaks() -> Result<()> {
    let bench = Bench::new(false).await?;
    let registry = FakeRegistry::start().await?;
    let digest = registry.hold("artifact", "1", &artifact("application/vnd.example.model", b"weights")?);
    let named = format!("{}/artifact:1", registry.host());
    let noted = format!("{}/artifact@{digest}", registry.host());
    let private = FakeRegistry::start().await?;
    private.hold("secret", "1", &holding("secret")?);
    private.require(Auth::Basic([("u".to_owned(), "p".to_owned())].into()));
    bench.pod("artifact", &named, None, json!({})).await?;
    bench.pod("private", &format!("{}/secret:1", private.host()), None, json!({})).await?;
    let replica = Replica::start(&bench, "only", CONFIG)?;
    bench.wait_for_annotation("artifact", Some(&noted)).await?;
    replica.wait_for("fairlead_image_volumes{source=\"unknown\"}", 2.0).await?;

    // The API server takes the field away, so the annotation stays.
    let empty = Digest::sha256(b"{}").to_string();
    let stored = serde_json::to_value(bench.report("artifact", "web", "model", "/models", &empty).await?)?;
    ensure!(stored.pointer("/status/containerStatuses/0/volumeMounts/0/volumeStatus").is_none(), "{stored}");
    bench.report("private", "web", "model", "/models", &empty).await?;
    replica.wait_for("fairlead_image_volumes{source=\"kubelet\"}", 0.0).await?;
    ensure!(bench.annotation("artifact").await? == Some(json!({"model": noted})));
    ensure!(bench.annotation("private").await?.is_none());
    ensure!(bench.patches("artifact")? == 1 && bench.patches("private")? == 0);
    replica.candidate.stop().await?;

    // Switched off, nothing is written and no series is shown.
    bench.pod("quiet", &named, None, json!({})).await?;
    let off = format!("{CONFIG}\naccount: {{annotate: false, metrics: off}}");
    let replica = Replica::start(&bench, "quiet", &off)?;
    replica.wait_for("fairlead_image_volumes{source=\"expected\"}", 4.0).await?;
    ensure!(bench.patches("quiet")? == 0);
    let page = page::text(&replica.registry.lock().expect("no test panics with it"))?;
    ensure!(!page.contains("fairlead_image_info{"), "{page}");
    replica.candidate.stop().await?;
    gate::switches_act_alone(&bench, &named, &noted).await?;
    gate::turns_on_off_and_on(&bench, &named, &noted).await
}

/// A Pod of a controller that runs an image, and mounts one that no container runs.
fn replica_of(
    owner: &Value,
    name: &str,
    (asked, used, runs): (&str, &str, &str),
    volume: Option<(&str, &str)>,
    differs: &Value,
) -> (Value, Value) {
    let (_, digest) = runs.split_once('@').expect("a digest");
    let mut images = json!({"web": {
        "asked": asked, "used": used, "by": "original", "digest": digest, "differs": differs,
    }});
    let (mut volumes, mut mounts) = (json!([]), json!([]));
    if let Some((image, digest)) = volume {
        images["volume:model"] = json!({"asked": image, "used": image, "by": "original", "digest": digest});
        volumes = json!([{"name": "model", "image": {"reference": image}}]);
        mounts = json!([{"name": "model", "mountPath": "/models"}]);
    }
    let routes = json!({"v": 1, "images": images});
    let pod = json!({
        "metadata": {
            "name": name, "annotations": {ROUTES: routes.to_string()}, "ownerReferences": [owner],
            "labels": {"pod-template-hash": "6d4f7"},
        },
        "spec": {
            "schedulerName": "nobody", "volumes": volumes,
            "containers": [{"name": "web", "image": used, "volumeMounts": mounts}],
        },
    });
    let status = json!({"status": {"containerStatuses": [{
        "name": "web", "image": used, "imageID": runs, "ready": true, "restartCount": 0,
        "containerID": "containerd://1", "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
    }]}});
    (pod, status)
}

/// A Deployment with its `ReplicaSet`, as the owner of Pods, and the UID of the Deployment.
async fn deployment(bench: &Bench) -> Result<(Value, String)> {
    let template = json!({
        "metadata": {"labels": {"app": "shop"}},
        "spec": {"containers": [{"name": "web", "image": "app.example/app:1"}]},
    });
    let spec = json!({"selector": {"matchLabels": {"app": "shop"}}, "template": template});
    let create = PostParams::default();
    let deployments: Api<Deployment> = Api::namespaced(bench.client.clone(), &bench.shop);
    let object = serde_json::from_value(json!({"metadata": {"name": "shop"}, "spec": spec}))?;
    let uid = deployments.create(&create, &object).await?.uid().context("a UID")?;
    let above = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "name": "shop", "uid": uid, "controller": true,
    });
    let sets: Api<ReplicaSet> = Api::namespaced(bench.client.clone(), &bench.shop);
    let metadata = json!({"name": "shop-6d4f7", "ownerReferences": [above]});
    let object = serde_json::from_value(json!({"metadata": metadata, "spec": spec}))?;
    let set = sets.create(&create, &object).await?.uid().context("a UID")?;
    let owner = json!({
        "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "shop-6d4f7", "uid": set, "controller": true,
    });
    Ok((owner, uid))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn drift_is_counted_and_told_on_the_workload() -> Result<()> {
    let bench = Bench::new(true).await?;
    let registry = FakeRegistry::start().await?;
    let (old, new) = (holding("old")?, holding("new")?);
    let (model, moved) = (holding("old model")?, holding("new model")?);
    for (tag, image) in [("1", &old), ("1", &new)] {
        registry.hold("app", tag, image);
    }
    for image in [&model, &moved] {
        registry.hold("llm", "1", image);
    }
    let host = registry.host();
    let (image, llm) = (format!("{host}/app:1"), format!("{host}/llm:1"));
    // It would collect Pods whose owner does not exist.
    bench.cluster.kill(Part::ControllerManager).await?;
    let stateful_set = json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "web", "controller": true,
        "uid": "00000000-0000-4000-8000-000000000001",
    });
    let (replica_set, deployment) = deployment(&bench).await?;
    let differs =
        json!([{"image": "mirror.example/app:1", "digest": old.digest(), "by": "ClusterImageSetMirror//m"}]);
    let [runs_old, runs_new] = [&old, &new].map(|image| format!("{host}/app@{}", image.digest()));
    let pinned = format!("{image}@{}", old.digest());
    let (models, none) = ([model.digest(), moved.digest()], json!([]));
    for (pod, status) in [
        replica_of(&stateful_set, "web-0", (&image, &image, &runs_old), Some((&llm, &models[0])), &differs),
        replica_of(&stateful_set, "web-1", (&image, &image, &runs_new), Some((&llm, &models[1])), &differs),
        replica_of(&replica_set, "shop-6d4f7-0", (&image, &pinned, &runs_old), None, &none),
    ] {
        let created = bench.pods().create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
        let (params, status) = (PatchParams::default(), Patch::Merge(status));
        bench.pods().patch_status(&created.name_any(), &params, &status).await?;
    }
    let pins: Api<ImagePin> = Api::namespaced(bench.client.clone(), &bench.shop);
    let mut workload = replica_set.clone();
    workload.as_object_mut().context("an owner")?.remove("controller");
    let pin = json!({"apiVersion": "fairlead.dev/v1alpha1", "kind": "ImagePin", "metadata": {"name": "shop"}, "spec": {
        "workload": workload, "revision": "6d4f7",
        "images": [{"asked": image, "digest": old.digest(), "resolvedAt": "2026-01-01T00:00:00Z"}],
    }});
    pins.create(&PostParams::default(), &serde_json::from_value(pin)?).await?;

    let replica = Replica::start(&bench, "only", CONFIG)?;
    // Of the container and of the volume, though no container runs what the volume holds.
    replica.wait_for("fairlead_image_drift{kind=\"replicas\"}", 2.0).await?;
    replica.wait_for("fairlead_image_drift{kind=\"mirror\"}", 1.0).await?;
    // Of both containers, and of the volume: what the tags name now runs as well, or nowhere.
    replica.wait_for("fairlead_image_drift{kind=\"upstream\"}", 3.0).await?;
    for digest in [old.digest(), new.digest(), model.digest(), moved.digest()] {
        ensure!(registry.count("GET", &digest) <= 1, "{digest} is read once");
    }
    let events: Api<Event> = Api::namespaced(bench.client.clone(), &bench.shop);
    eventually(SOON, || async {
        let found = events.list(&ListParams::default()).await?.items;
        let told = |kind: &str, uid: &str, reason: &str| {
            let about = |event: &&Event| {
                let object = &event.involved_object;
                event.reason.as_deref() == Some(reason)
                    && (object.kind.as_deref(), object.uid.as_deref()) == (Some(kind), Some(uid))
            };
            found.iter().filter(about).count()
        };
        let set = stateful_set["uid"].as_str().context("a UID")?;
        for (reason, count) in [("ReplicasDiffer", 2), ("MirrorDiffers", 1), ("TagMoved", 2)] {
            let times = told("StatefulSet", set, reason);
            ensure!(times == count, "{reason} was told {times} times: {found:?}");
        }
        ensure!(told("Deployment", &deployment, "TagMoved") == 1, "{found:?}");
        Ok(())
    })
    .await?;
    let current = async || -> Result<(String, String)> {
        let pin = serde_json::to_value(pins.get("shop").await?)?;
        let conditions = pin["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let current = conditions.into_iter().find(|one| one["type"] == "Current").unwrap_or_default();
        let text = |field: &str| current[field].as_str().unwrap_or_default().to_owned();
        Ok((text("status"), text("reason")))
    };
    eventually(SOON, || async {
        let found = current().await?;
        ensure!(found == ("False".to_owned(), "TagMoved".to_owned()), "{found:?}");
        Ok(())
    })
    .await?;
    let page = page::text(&replica.registry.lock().expect("no test panics with it"))?;
    let series = page.lines().filter(|line| line.starts_with("fairlead_image_info{")).count();
    ensure!(series == 5, "{page}");

    // The tag is back where it was.
    registry.hold("app", "1", &old);
    replica.wait_for("fairlead_image_drift{kind=\"upstream\"}", 2.0).await?;
    eventually(SOON, || async {
        let found = current().await?;
        ensure!(found == ("True".to_owned(), "DigestsAgree".to_owned()), "{found:?}");
        Ok(())
    })
    .await?;
    replica.candidate.stop().await
}
