//! Pulls on the real node under all kinds of policies: random ones, some that change meanwhile, a cache as mirror, and
//! a mirror with wrong bytes.

use anyhow::{Context, Result, ensure};
use fairlead_domain::reference::Reference;
use fairlead_plan::node_config::{EndpointState, Inputs, NodeConfig, PullKind};
use fairlead_testkit::images::Image;
use fairlead_testkit::{Registry, eventually};
use fastrand::Rng;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};

use super::node::{Node, SOON, image, policy, reads, shared};

/// Seeds of the random policies, and repositories for each: one that is known to close enough, and new ones each time.
const KNOWN_SEED: (u64, usize) = (17, 8);
const NEW_SEEDS: usize = 2;
const NEW_REPOSITORIES: usize = 4;
/// Kinds of policies, the field of each with its list, and whether it can close a source.
const KINDS: [(&str, &str, bool); 4] = [
    ("ImageDigestMirrorSet", "imageDigestMirrors", true),
    ("ImageTagMirrorSet", "imageTagMirrors", true),
    ("ImageSourceDigestPolicy", "repositoryDigestMirrors", false),
    ("ImageSourceTagPolicy", "repositoryTagMirrors", false),
];

/// Applies policies and waits until the node follows all of them. Each kind is watched by itself and in order, so a
/// last policy of each, which gets a file of its own, tells that those before it have arrived.
pub(super) async fn follow(node: &Node, name: &str, policies: &[Value]) -> Result<()> {
    let marker = |kind: &str| format!("{}.{name}.test", kind.to_lowercase());
    let markers = KINDS.map(|(kind, list, _)| {
        let item = json!({"source": format!("{}/x", marker(kind)), "mirrors": ["m.test/x"]});
        policy(kind, list, &format!("{name}-marker"), &item)
    });
    for (file, items) in [("policies", policies), ("markers", markers.as_slice())] {
        let file = node.cluster.directory().join(format!("{name}-{file}.json"));
        std::fs::write(&file, json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string())?;
        node.cluster.kubectl(["apply", "--server-side", "-f", &file.display().to_string()]).await?;
    }
    eventually(SOON, || async {
        for (kind, ..) in KINDS {
            let file = node.cluster.directory().join("certs.d").join(marker(kind)).join("hosts.toml");
            ensure!(file.exists(), "{} is missing; {}", file.display(), node.agent.log_tail());
        }
        Ok(())
    })
    .await
}

/// A repository with its images, and where they are.
struct Repository {
    name: String,
    by_digest: Image,
    at: Vec<String>,
}

impl Repository {
    async fn make(
        number: &str,
        random: &mut Rng,
        source: &Registry,
        mirrors: [&Registry; 2],
    ) -> Result<Self> {
        let (by_tag, by_digest) =
            (image(&format!("random, tag {number}"))?, image(&format!("random, {number}"))?);
        let name = format!("{}/r{number}/app", source.host());
        let mut at = Vec::new();
        let places = [(source, format!("r{number}/app"), true)]
            .into_iter()
            .chain(mirrors.into_iter().map(|mirror| (mirror, format!("c{number}/app"), random.bool())));
        for (registry, repository, has_it) in places {
            if has_it {
                registry.endpoint().push(&repository, "1", &by_tag).await?;
                registry.endpoint().push(&repository, "2", &by_digest).await?;
                at.push(format!("{}/{repository}", registry.host()));
            }
        }
        Ok(Self { name, by_digest, at })
    }

    fn images(&self) -> [String; 2] {
        [format!("{}:1", self.name), format!("{}@{}", self.name, self.by_digest.digest())]
    }
}

/// A policy for a repository or for the namespace that it is in.
fn random_policy(
    number: usize,
    of: &str,
    random: &mut Rng,
    source: &Registry,
    mirrors: [&Registry; 2],
) -> Value {
    let (kind, list, can_close) = KINDS[random.usize(..KINDS.len())];
    let below = if random.bool() { "/app" } else { "" };
    let mut mirrors: Vec<String> =
        mirrors.into_iter().map(|mirror| format!("{}/c{of}{below}", mirror.host())).collect();
    random.shuffle(&mut mirrors);
    mirrors.truncate(random.usize(1..=2));
    let mut item = json!({"source": format!("{}/r{of}{below}", source.host()), "mirrors": mirrors});
    if can_close && random.u8(..3) > 0 {
        item["mirrorSourcePolicy"] = "NeverContactSource".into();
    }
    policy(kind, list, &format!("random-{of}-{number}"), &item)
}

#[tokio::test]
#[ignore = "needs root; `make test` as root runs it"]
async fn a_closed_source_is_not_asked_whatever_the_policies_are() -> Result<()> {
    let node = shared().await?;
    let _agent = node.with_agent().await?;
    let registries = node.take()?;
    let new = (0..NEW_SEEDS).map(|_| (fastrand::u64(..), NEW_REPOSITORIES));
    let mut closed = 0;
    for (round, (seed, repositories)) in std::iter::once(KNOWN_SEED).chain(new).enumerate() {
        let run = random_pulls(node, registries, round, seed, repositories);
        closed += run.await.with_context(|| format!("with seed {seed} and {repositories} repositories"))?;
    }
    ensure!(closed > 4, "too few images have a closed source: {closed}");
    Ok(())
}

/// Pulls images under random policies, and returns how many of them have a source that must not be contacted.
async fn random_pulls(
    node: &Node,
    [source, first, second]: [&Registry; 3],
    round: usize,
    seed: u64,
    count: usize,
) -> Result<usize> {
    println!("round {round}: seed {seed}");
    let mut random = Rng::with_seed(seed);
    let names: Vec<String> = (0..count).map(|number| format!("{round}x{number}")).collect();
    let mut repositories = Vec::new();
    for name in &names {
        repositories.push(Repository::make(name, &mut random, source, [first, second]).await?);
    }
    let policies: Vec<Value> = (0..2 * count)
        .map(|number| random_policy(number, &names[number % count], &mut random, source, [first, second]))
        .collect();
    follow(node, &format!("random{round}"), &policies).await?;
    let read = policies.iter().map(|object| read(object).with_context(|| object.to_string()));
    let config = NodeConfig::plan(&Inputs { policies: read.collect::<Result<_>>()?, ..Inputs::default() });

    let images: Vec<String> = repositories.iter().flat_map(Repository::images).collect();
    let outcomes = pull_all(node, &images).await?;
    let mut closed = 0;
    for (repository, (image, runs)) in
        repositories.iter().flat_map(|one| [one, one]).zip(images.iter().zip(outcomes))
    {
        let resolution = config.resolve_by_kind(&Reference::parse(image)?);
        let (_, entry) = config.entry_for(&repository.name).context("every repository has a policy")?;
        let mut asked = resolution.endpoints.iter().filter(|endpoint| endpoint.state == EndpointState::Asked);
        let is_had =
            asked.any(|endpoint| repository.at.iter().any(|place| endpoint.image.starts_with(place)));
        ensure!(
            runs == is_had,
            "{image} runs: {runs}; {resolution:?}; {:?}; {}",
            repository.at,
            node.agent.log_tail()
        );
        if [PullKind::Digest, PullKind::Tag].iter().all(|kind| entry.is_closed_for(*kind)) {
            closed += 1;
            let path = repository.name.split_once('/').context("a path")?.1;
            ensure!(reads(source, path)?.is_empty(), "{image}: {:?}", reads(source, path)?);
        }
    }
    Ok(closed)
}

/// The policy that an object is.
fn read(object: &Value) -> Result<fairlead_plan::node_config::MirrorPolicy> {
    use fairlead_api::openshift::{
        ImageDigestMirrorSet, ImageSourceDigestPolicy, ImageSourceTagPolicy, ImageTagMirrorSet,
    };
    let object = object.clone();
    Ok(match object["kind"].as_str() {
        Some("ImageDigestMirrorSet") => serde_json::from_value::<ImageDigestMirrorSet>(object)?.into(),
        Some("ImageTagMirrorSet") => serde_json::from_value::<ImageTagMirrorSet>(object)?.into(),
        Some("ImageSourceDigestPolicy") => serde_json::from_value::<ImageSourceDigestPolicy>(object)?.into(),
        _ => serde_json::from_value::<ImageSourceTagPolicy>(object)?.into(),
    })
}

/// Pulls images as containers of one Pod, and says of each whether it runs.
async fn pull_all(node: &Node, images: &[String]) -> Result<Vec<bool>> {
    let namespace = node.cluster.namespace("agent").await?;
    let pods: Api<Pod> = Api::namespaced(node.cluster.client().await?, &namespace);
    let containers: Vec<Value> = images
        .iter()
        .enumerate()
        .map(|(number, image)| json!({"name": format!("c{number}"), "image": image, "imagePullPolicy": "Always"}))
        .collect();
    let spec = json!({"terminationGracePeriodSeconds": 0, "containers": containers});
    let pod = serde_json::from_value(json!({"metadata": {"name": "pull"}, "spec": spec}))?;
    pods.create(&PostParams::default(), &pod).await?;
    eventually(SOON, || async {
        let status = pods.get("pull").await?.status.unwrap_or_default();
        let outcome = |name: String| {
            let all = status.container_statuses.iter().flatten();
            let state = all.into_iter().find(|one| one.name == name)?.state.as_ref()?;
            let has_failed = state.waiting.as_ref().is_some_and(|waiting| {
                let [reason, message] =
                    [&waiting.reason, &waiting.message].map(|text| text.as_deref().unwrap_or(""));
                // The kubelet has its own limit, and tries again.
                matches!(reason, "ErrImagePull" | "ImagePullBackOff")
                    && !message.contains("pull QPS exceeded")
            });
            if has_failed { Some(false) } else { state.running.is_some().then_some(true) }
        };
        let outcomes: Option<Vec<bool>> =
            (0..images.len()).map(|number| outcome(format!("c{number}"))).collect();
        outcomes.with_context(|| format!("{:?}", status.container_statuses))
    })
    .await
}

#[tokio::test]
#[ignore = "needs root; `make test` as root runs it"]
async fn pulls_go_on_while_policies_change() -> Result<()> {
    let node = shared().await?;
    let _agent = node.with_agent().await?;
    let [source, mirror] = node.take()?;
    let item = |never: bool, path: &str| {
        let policy = if never { "NeverContactSource" } else { "AllowContactingSource" };
        json!({"source": format!("{}/moving", source.host()), "mirrors": [format!("{}/{path}", mirror.host())],
            "mirrorSourcePolicy": policy})
    };
    let made = |item| policy("ImageTagMirrorSet", "imageTagMirrors", "moving", &item);
    node.apply(&made(item(false, "one")), source).await?;
    let mut pulls = Vec::new();
    for number in 0..6 {
        let image = image(&format!("moving {number}"))?;
        for (registry, path) in [(source, "moving"), (mirror, "one"), (mirror, "two")] {
            registry.endpoint().push(&format!("{path}/app{number}"), "1", &image).await?;
        }
        pulls.push(node.pull(&format!("{}/moving/app{number}:1", source.host())).await?);
        // Each change meets pulls that are under way.
        let path = if number % 2 == 0 { "two" } else { "one" };
        node.apply(&made(item(number % 3 == 1, path)), source).await?;
    }
    for pull in &pulls {
        pull.runs(node).await?;
    }
    let last = image("moving, closed at last")?;
    source.endpoint().push("moving/last", "1", &last).await?;
    mirror.endpoint().push("one/last", "1", &last).await?;
    follow(node, "moving", &[made(item(true, "one"))]).await?;
    node.pull(&format!("{}/moving/last:1", source.host())).await?.runs(node).await?;
    ensure!(reads(source, "moving/last")?.is_empty(), "{:?}", reads(source, "moving/last")?);
    Ok(())
}

#[tokio::test]
#[ignore = "needs root; `make test` as root runs it"]
async fn a_cache_serves_for_a_closed_source_and_wrong_bytes_of_a_mirror_do_not_arrive() -> Result<()> {
    let node = shared().await?;
    let _agent = node.with_agent().await?;
    let behind = image("behind a cache")?;
    node.cached.endpoint().push("team/app", "1", &behind).await?;
    let item = json!({"source": format!("{}/team", node.cached.host()),
        "mirrors": [format!("{}/team", node.cache.host())], "mirrorSourcePolicy": "NeverContactSource"});
    node.apply(&policy("ImageTagMirrorSet", "imageTagMirrors", "cached", &item), &node.cached).await?;
    node.pull(&format!("{}/team/app:1", node.cached.host())).await?.runs(node).await?;
    let by_node = reads(&node.cached, "team/app")?;
    ensure!(by_node.is_empty(), "the cache alone asks there: {by_node:?}");

    let [source, mirror] = node.take()?;
    let wanted = image("spoiled in the mirror")?;
    source.endpoint().push("team/app", "1", &wanted).await?;
    mirror.endpoint().push("copies/app", "1", &wanted).await?;
    for blob in wanted.blobs() {
        let hex = blob.digest().trim_start_matches("sha256:").to_owned();
        let stored = format!("storage/docker/registry/v2/blobs/sha256/{}/{hex}/data", &hex[..2]);
        let path = mirror.directory().join(stored);
        let spoiled: Vec<u8> = std::fs::read(&path)?.iter().map(|byte| byte ^ 1).collect();
        std::fs::write(path, spoiled)?;
    }
    let item = json!({"source": format!("{}/team/app", source.host()),
        "mirrors": [format!("{}/copies/app", mirror.host())]});
    node.apply(&policy("ImageSourceTagPolicy", "repositoryTagMirrors", "spoiled", &item), source).await?;
    node.pull(&format!("{}/team/app:1", source.host())).await?.runs(node).await?;
    ensure!(reads(mirror, "copies/app")?.iter().any(|access| access.path.contains("/blobs/")));
    ensure!(reads(source, "team/app")?.iter().any(|access| access.path.contains("/blobs/")));
    Ok(())
}

#[tokio::test]
#[ignore = "needs root; `make test` as root runs it"]
async fn commands_take_policies_from_the_cluster_and_the_runtime_from_a_node() -> Result<()> {
    let node = shared().await?;
    let _agent = node.with_agent().await?;
    let item = json!({"source": "listed.test/team", "mirrors": ["m.test/team"]});
    follow(node, "listed", &[policy("ImageSourceTagPolicy", "repositoryTagMirrors", "listed", &item)])
        .await?;
    let kubeconfig = format!("--kubeconfig={}", node.cluster.kubeconfig().display());
    let run = |arguments: &[&str]| -> Result<String> {
        let program = std::process::Command::new(env!("CARGO_BIN_EXE_fairlead"))
            .args(arguments)
            .arg(&kubeconfig)
            .output()?;
        Ok([program.stdout, program.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat())
    };
    let resolved = run(&["resolve", "listed.test/team/app:1", "--node=node"])?;
    let mirror = "1  m.test/team/app:1       mirror of listed.test/team, by ImageSourceTagPolicy listed";
    ensure!(resolved.contains(mirror) && resolved.contains("2  listed.test/team/app:1"), "{resolved}");
    ensure!(!resolved.contains("not exact"), "the router makes it exact: {resolved}");
    let rendered = run(&["render", "--node=node"])?;
    let file = node.cluster.directory().join("certs.d/listed.test/hosts.toml");
    let written = format!("# listed.test/hosts.toml\n{}", std::fs::read_to_string(file)?);
    ensure!(rendered.contains(&written), "the same as the agent's: {rendered}");
    let rendered = run(&["render", "--runtime=crio"])?;
    ensure!(rendered.contains("location = \"listed.test/team\"\n\n  [[registry.mirror]]"), "{rendered}");
    let unknown = run(&["resolve", "listed.test/team/app:1", "--node=nobody"])?;
    ensure!(unknown.contains("cannot read Node nobody"), "{unknown}");
    Ok(())
}
