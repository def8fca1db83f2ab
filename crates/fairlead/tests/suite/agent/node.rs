//! The agent on a real node: containerd and the kubelet pull, access logs of registries say who was asked.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fairlead_testkit::images::{Image, ImageBuilder};
use fairlead_testkit::registry::Access;
use fairlead_testkit::{Cluster, Process, Program, Registry, RegistryConfig, eventually};
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::{ListParams, PostParams};
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};
use tokio::sync::{OnceCell, OwnedSemaphorePermit, Semaphore};

use crate::kubectl::definitions_are_served;

pub(super) const SOON: Duration = Duration::from_mins(2);
/// Registries for all tests. The agent has to know at its start which of them speak plain HTTP.
const REGISTRIES: usize = 25;

pub(super) struct Node {
    pub(super) cluster: Cluster,
    pub(super) agent: Process,
    registries: Vec<Registry>,
    /// A pull-through cache, and the registry behind it.
    pub(super) cache: Registry,
    pub(super) cached: Registry,
    /// A registry of which `shut` is blocked.
    pub(super) partly_blocked: Registry,
    taken: AtomicUsize,
    /// Tests that stop the agent have it for themselves.
    using: std::sync::Arc<Semaphore>,
}

const EVERYONE: u32 = 16;

pub(super) async fn shared() -> Result<&'static Node> {
    static NODE: OnceCell<Node> = OnceCell::const_new();
    NODE.get_or_try_init(Node::start).await
}

impl Node {
    async fn start() -> Result<Self> {
        let cluster = Cluster::builder().node(true).start().await?;
        let crds = std::process::Command::new(env!("CARGO_BIN_EXE_fairlead")).arg("crds").output()?;
        let file = cluster.directory().join("crds.yaml");
        std::fs::write(&file, crds.stdout)?;
        cluster.kubectl(["apply", "--server-side", "-f", &file.display().to_string()]).await?;
        definitions_are_served(&cluster).await?;
        let start = async |config: RegistryConfig| -> Result<Registry> {
            let registry = cluster.registry(config).await?;
            // Files of the bench stand for those of an administrator, and would be left alone.
            std::fs::remove_dir_all(cluster.directory().join("certs.d").join(registry.host()))?;
            Ok(registry)
        };
        let registries = try_join_all((0..REGISTRIES).map(|_| start(RegistryConfig::new()))).await?;
        let cached = start(RegistryConfig::new()).await?;
        let cache = start(RegistryConfig::new().cache_of(cached.endpoint())).await?;
        let partly_blocked = start(RegistryConfig::new()).await?;
        let insecure = registries
            .iter()
            .chain([&cache, &cached, &partly_blocked])
            .map(|registry| format!("--insecure-registry={}", registry.host()));
        let program = Program::new(env!("CARGO_BIN_EXE_fairlead"))
            .args(["agent", "--log-format=json", "--node-name=node"])
            .arg(format!("--kubeconfig={}", cluster.kubeconfig().display()))
            .arg(format!("--config-dir={}", cluster.directory().join("certs.d").display()))
            .arg(format!("--blocked-registry={}/shut", partly_blocked.host()))
            .arg(format!("--mirror-ca={}", cluster.directory().join("mirror-ca.crt").display()))
            .arg(format!(
                "--mirror-credentials={}",
                cluster.directory().join("mirror-credentials.json").display()
            ))
            .args(insecure);
        let agent = cluster.start_beside(program, "agent").await?;
        agent.wait_for_log("\"endpoint\":\"router\"", SOON).await?;
        cluster.wait_node_ready().await?;
        let (taken, using) = (AtomicUsize::new(0), std::sync::Arc::new(Semaphore::new(EVERYONE as usize)));
        Ok(Self { cluster, agent, registries, cache, cached, partly_blocked, taken, using })
    }

    /// Registries that no other test has.
    pub(super) fn take<const COUNT: usize>(&self) -> Result<[&Registry; COUNT]> {
        let first = self.taken.fetch_add(COUNT, Ordering::Relaxed);
        let own: Option<Vec<&Registry>> =
            (first..first + COUNT).map(|index| self.registries.get(index)).collect();
        own.context("there are too few registries")?.try_into().ok().context("as many as were asked for")
    }

    pub(super) async fn with_agent(&self) -> Result<OwnedSemaphorePermit> {
        Ok(std::sync::Arc::clone(&self.using).acquire_owned().await?)
    }

    pub(super) async fn alone(&self) -> Result<OwnedSemaphorePermit> {
        Ok(std::sync::Arc::clone(&self.using).acquire_many_owned(EVERYONE).await?)
    }

    /// Applies a policy and waits until the node follows it: the file of the source says so.
    pub(super) async fn apply(&self, policy: &Value, source: &Registry) -> Result<()> {
        let name = format!("{}.json", policy["metadata"]["name"].as_str().context("a name")?);
        let file = self.cluster.directory().join(name);
        std::fs::write(&file, policy.to_string())?;
        self.cluster.kubectl(["apply", "--server-side", "-f", &file.display().to_string()]).await?;
        let hosts = source.host().replace(':', "_") + "_";
        let hosts = self.cluster.directory().join("certs.d").join(hosts).join("hosts.toml");
        let begun = Instant::now();
        eventually(SOON, || async {
            let text = std::fs::read_to_string(&hosts).unwrap_or_default();
            ensure!(text.contains("127.0.0.1:7780"), "{text}; {}", self.agent.log_tail());
            Ok(())
        })
        .await?;
        println!("the node follows {} after {:?}", policy["metadata"]["name"], begun.elapsed());
        Ok(())
    }

    pub(super) async fn pull(&self, image: &str) -> Result<Pull> {
        let namespace = self.cluster.namespace("agent").await?;
        let pods: Api<Pod> = Api::namespaced(self.cluster.client().await?, &namespace);
        let pod = serde_json::from_value(json!({
            "metadata": {"name": "pull"},
            "spec": {
                "terminationGracePeriodSeconds": 0,
                "containers": [{"name": "app", "image": image, "imagePullPolicy": "Always"}],
            },
        }))?;
        pods.create(&PostParams::default(), &pod).await?;
        Ok(Pull { pods, namespace, image: image.to_owned() })
    }
}

pub(super) struct Pull {
    pods: Api<Pod>,
    namespace: String,
    image: String,
}

impl Pull {
    pub(super) async fn runs(&self, node: &Node) -> Result<()> {
        eventually(SOON, || async {
            let pod = self.pods.get("pull").await?;
            let status = pod.status.clone().unwrap_or_default();
            ensure!(
                status.phase.as_deref() == Some("Running"),
                "{}: {:?}\n{}",
                self.image,
                status.container_statuses,
                node.agent.log_tail()
            );
            Ok(())
        })
        .await
    }

    /// What the kubelet says of a pull that failed.
    pub(super) async fn fails(&self, node: &Node) -> Result<String> {
        let events: Api<Event> = Api::namespaced(node.cluster.client().await?, &self.namespace);
        eventually(SOON, || async {
            let events = events.list(&ListParams::default()).await?;
            let failed = events.iter().filter(|event| event.reason.as_deref() == Some("Failed"));
            let failed = failed.filter_map(|event| event.message.clone()).find(|text| text.contains("pull"));
            failed.with_context(|| events.iter().map(Event::name_any).collect::<Vec<_>>().join(", "))
        })
        .await
    }
}

pub(super) fn image(label: &str) -> Result<Image> {
    // The node keeps layers of images that it pulled before.
    ImageBuilder::pause()?.file("/of", label.as_bytes(), 0o644)?.build()
}

/// What nodes and routers asked for; pushing an image asks, too.
pub(super) fn reads(registry: &Registry, repository: &str) -> Result<Vec<Access>> {
    let path = format!("/v2/{repository}/");
    let is_pull = |access: &Access| {
        access.path.starts_with(&path)
            && (access.user_agent.contains("containerd") || access.user_agent.contains("fairlead"))
    };
    Ok(registry.accesses()?.into_iter().filter(is_pull).collect())
}

pub(super) fn policy(kind: &str, list: &str, name: &str, item: &Value) -> Value {
    json!({"apiVersion": "config.openshift.io/v1", "kind": kind, "metadata": {"name": name}, "spec": {list: [item]}})
}

#[tokio::test]
#[ignore = "needs root; `make test` as root runs it"]
async fn a_repository_is_pulled_from_its_mirror_and_from_the_source_when_that_is_down() -> Result<()> {
    let node = shared().await?;
    let _agent = node.with_agent().await?;
    let [source, mirror] = node.take()?;
    let (first, second) = (image("seed, first")?, image("seed, second")?);
    mirror.endpoint().push("copies/app", "1", &first).await?;
    source.endpoint().push("team/app", "1", &image("seed, another under the same tag")?).await?;
    source.endpoint().push("team/app", "2", &second).await?;
    let (from, to) = (format!("{}/team/app", source.host()), format!("{}/copies/app", mirror.host()));
    let item = json!({"source": from, "mirrors": [to]});
    node.apply(&policy("ImageSourceTagPolicy", "repositoryTagMirrors", "seed", &item), source).await?;

    node.pull(&format!("{from}:1")).await?.runs(node).await?;
    node.pull(&format!("{from}@{}", first.digest())).await?.runs(node).await?;
    ensure!(reads(source, "team/app")?.is_empty(), "{:?}", reads(source, "team/app")?);
    ensure!(reads(mirror, "copies/app")?.iter().any(|access| access.path.contains("/blobs/")));

    mirror.kill().await?;
    let begun = Instant::now();
    node.pull(&format!("{from}:2")).await?.runs(node).await?;
    println!("with the mirror down, a Pod runs after {:?}", begun.elapsed());
    node.pull(&format!("{from}@{}", second.digest())).await?.runs(node).await?;
    ensure!(!reads(source, "team/app")?.is_empty());
    let logged = node.agent.logs()?;
    ensure!(
        logged.lines().any(|line| line.contains("a mirror serves the image") && line.contains(&to)),
        "{logged}"
    );
    Ok(())
}

#[tokio::test]
#[ignore = "needs root; `make test` as root runs it"]
async fn a_source_that_must_not_be_contacted_is_not_and_the_event_names_the_policy() -> Result<()> {
    let node = shared().await?;
    let _agent = node.with_agent().await?;
    let [source, mirror] = node.take()?;
    let wanted = image("never")?;
    for (registry, repository) in [(source, "shut/app"), (mirror, "copies/app"), (source, "open/app")] {
        registry.endpoint().push(repository, "1", &wanted).await?;
    }
    let missing = image("never, on the source alone")?;
    source.endpoint().push("shut/app", "2", &missing).await?;
    let (from, to) = (format!("{}/shut", source.host()), format!("{}/copies", mirror.host()));
    let item = json!({"source": from, "mirrors": [to], "mirrorSourcePolicy": "NeverContactSource"});
    node.apply(&policy("ImageDigestMirrorSet", "imageDigestMirrors", "never", &item), source).await?;

    node.pull(&format!("{from}/app@{}", wanted.digest())).await?.runs(node).await?;
    let by_tag = node.pull(&format!("{from}/app:1")).await?.fails(node).await?;
    println!("{by_tag}");
    let named = format!("NeverContactSource for {from} in ImageDigestMirrorSet never");
    ensure!(by_tag.contains(&named) && by_tag.contains("no mirror of it can be used for tags"), "{by_tag}");
    let by_digest = node.pull(&format!("{from}/app@{}", missing.digest())).await?.fails(node).await?;
    ensure!(
        by_digest.contains(&named) && by_digest.contains(&format!("{to}/app: it is not there")),
        "{by_digest}"
    );
    ensure!(reads(source, "shut/app")?.is_empty(), "{:?}", reads(source, "shut/app")?);
    // What the policy is not about is pulled from the same registry.
    node.pull(&format!("{}/open/app:1", source.host())).await?.runs(node).await?;
    Ok(())
}

#[tokio::test]
#[ignore = "needs root; `make test` as root runs it"]
async fn mirrors_for_digests_are_not_asked_for_tags_nor_the_other_way_round() -> Result<()> {
    let node = shared().await?;
    let _agent = node.with_agent().await?;
    let [source, digests, tags] = node.take()?;
    let (by_digest, by_tag) = (image("apart, by digest")?, image("apart, by tag")?);
    for registry in [digests, tags] {
        registry.endpoint().push("copies/app", "1", &by_tag).await?;
        registry.endpoint().push("copies/app", "2", &by_digest).await?;
    }
    let from = format!("{}/team/app", source.host());
    for (kind, list, name, mirror) in [
        ("ImageDigestMirrorSet", "imageDigestMirrors", "apart-digests", digests),
        ("ImageTagMirrorSet", "imageTagMirrors", "apart-tags", tags),
    ] {
        let item = json!({"source": from, "mirrors": [format!("{}/copies/app", mirror.host())],
            "mirrorSourcePolicy": "NeverContactSource"});
        // The second policy does not change the file. A Pod that comes before it is refused, and tried again.
        node.apply(&policy(kind, list, name, &item), source).await?;
    }
    node.pull(&format!("{from}:1")).await?.runs(node).await?;
    ensure!(reads(digests, "copies/app")?.is_empty(), "{:?}", reads(digests, "copies/app")?);
    let before = reads(tags, "copies/app")?.len();
    node.pull(&format!("{from}@{}", by_digest.digest())).await?.runs(node).await?;
    ensure!(reads(tags, "copies/app")?.len() == before, "{:?}", reads(tags, "copies/app")?);
    ensure!(reads(source, "team/app")?.is_empty());
    Ok(())
}

#[tokio::test]
#[ignore = "needs root; `make test` as root runs it"]
async fn while_the_agent_is_down_closed_registries_are_closed_and_others_open() -> Result<()> {
    let node = shared().await?;
    let _agent = node.alone().await?;
    let [closed, open, mirror] = node.take()?;
    let wanted = image("without an agent")?;
    closed.endpoint().push("shut/app", "1", &wanted).await?;
    open.endpoint().push("team/app", "1", &wanted).await?;
    mirror.endpoint().push("copies/app", "1", &wanted).await?;
    let item = |registry: &Registry, path: &str, policy: &str| {
        json!({"source": format!("{}/{path}", registry.host()), "mirrors": [format!("{}/copies", mirror.host())],
            "mirrorSourcePolicy": policy})
    };
    let (kind, list) = ("ImageTagMirrorSet", "imageTagMirrors");
    node.apply(&policy(kind, list, "down-closed", &item(closed, "shut", "NeverContactSource")), closed)
        .await?;
    node.apply(&policy(kind, list, "down-open", &item(open, "team", "AllowContactingSource")), open).await?;
    node.agent.kill().await?;
    node.pull(&format!("{}/team/app:1", open.host())).await?.runs(node).await?;
    let refused = node.pull(&format!("{}/shut/app:1", closed.host())).await?;
    let said = refused.fails(node).await?;
    ensure!(said.contains("connection refused"), "{said}");
    ensure!(reads(closed, "shut/app")?.is_empty(), "{:?}", reads(closed, "shut/app")?);
    node.agent.start_again().await?;
    refused.runs(node).await?;
    ensure!(reads(closed, "shut/app")?.is_empty());
    Ok(())
}
