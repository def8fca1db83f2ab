//! `make demo`: Fairlead at work on a real control plane, told step by step. Only this machine reaches it, and it ends
//! with this program.
#![allow(
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "talking to a person is what this program is for"
)]

mod story;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, bail};
use fairlead_testkit::cluster::node;
use fairlead_testkit::images::ImageBuilder;
use fairlead_testkit::operator::point_webhook_at;
use fairlead_testkit::registry::{Registry, RegistryConfig};
use fairlead_testkit::service::Service;
use fairlead_testkit::{Cluster, Operator, eventually, installation};

use story::Story;

const NAMESPACE: &str = "fairlead-system";
const SOON: Duration = Duration::from_mins(1);

/// What a person might write by mistake, and what it should have been.
const MISTAKE: &str = "\
apiVersion: kuik.enix.io/v1alpha1
kind: ClusterImageSetMirror
metadata:
  name: mistaken
spec:
  cleanup:
    enabled: true
    retention: 7d
  imageFilter:
    include: [.*]
  mirrors:
    - registry: https://registry.example.com
      path: /mirror
";

#[tokio::main]
async fn main() -> std::process::ExitCode {
    match show().await {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("\nThe demo could not go on: {error:#}");
            std::process::ExitCode::FAILURE
        }
    }
}

async fn show() -> Result<()> {
    fairlead_testkit::install_crypto();
    let program = installation::program()?;
    let mut story = Story::begin();

    story.step(
        "A real Kubernetes: etcd, API server, controller manager, scheduler, and a node where root allows it",
    );
    let no_node = node::missing();
    let cluster = Cluster::builder().node(no_node.is_none()).start().await?;
    Story::say(cluster.kubectl(["version"]).await?);
    match &no_node {
        None => Story::say(cluster.kubectl(["get", "nodes", "-o", "wide"]).await?),
        Some(reason) => Story::say(format!("without a node, so Pods are admitted and do not run: {reason}")),
    }

    story.step("Two image registries, with the same image in both");
    let (first, second) =
        (cluster.registry(RegistryConfig::new()).await?, cluster.registry(RegistryConfig::new()).await?);
    let app = ImageBuilder::pause()?.label("for", "the demo").build()?;
    for registry in [&first, &second] {
        let digest = registry.endpoint().push("demo/app", "1", &app).await?;
        Story::say(format!("{}/demo/app:1  {digest}", registry.host()));
    }
    let image = format!("{}/demo/app:1", first.host());

    story.step(
        "Install Fairlead: `fairlead manifests --config config.yaml | kubectl apply --server-side -f -`",
    );
    let config = cluster.directory().join("config.yaml");
    std::fs::write(&config, installation::plain_http([&first, &second])?)?;
    install(&cluster, &program, &config).await?;

    story.step("Two replicas of the operator, under exactly the rights that were installed");
    let replica = |name: &str| Operator::of(&program).identity(name).config(&config);
    let one = replica("replica-1").start_installed(&cluster).await?;
    let other = replica("replica-2").start_installed(&cluster).await?;
    let service = Service::start(vec![one.webhook, other.webhook]).await?;
    point_webhook_at(&cluster, service.address()).await?;
    one.wait_until_ready(SOON).await?;
    other.wait_until_ready(SOON).await?;
    Story::say(cluster.kubectl(["-n", NAMESPACE, "get", "lease,secret"]).await?);

    story.step("Say that both registries hold the same images");
    let policy = policy(&first, &second);
    Story::say(&policy);
    apply(&cluster, "replicas.yaml", &policy).await?;
    cluster.kubectl(["wait", "--for=condition=Ready", "clusterreplicatedimagesets/demo"]).await?;

    story.step(
        "A Pod is created: its image is there, so it stays as it is, and the Pod carries the record of that",
    );
    let pod = eventually(SOON, || run(&cluster, &image, &image)).await?;
    Story::say(record(&cluster, &pod).await?);

    story.step("The first registry dies. The next Pod is given the second one");
    first.kill().await?;
    let survivor = format!("{}/demo/app:1", second.host());
    let pod = eventually(SOON, || run(&cluster, &image, &survivor)).await?;
    Story::say(record(&cluster, &pod).await?);
    if no_node.is_none() {
        cluster.kubectl(["wait", "--for=condition=Ready", "--timeout=60s", &format!("pod/{pod}")]).await?;
        Story::say(cluster.kubectl(["get", "pod", &pod, "-o", "wide"]).await?);
        let running = r"jsonpath=running {.status.containerStatuses[0].imageID}";
        Story::say(cluster.kubectl(["get", "pod", &pod, "-o", running]).await?);
    }

    story.step(&format!("Why? `fairlead explain pod/{pod}`"));
    Story::say(explain(&cluster, &program, &pod).await?);

    story.step("Every example is accepted as it is: `kubectl apply -f examples/`");
    // One example is about the namespace of a team.
    cluster.kubectl(["create", "namespace", "my-app"]).await?;
    let examples = repository().join("examples").display().to_string();
    let applied = cluster.kubectl(["apply", "--server-side", "--recursive", "-f", &examples]).await?;
    Story::say(format!("{} objects, for instance:", applied.lines().count()));
    Story::say(cluster.kubectl(["get", "cism,cris,cachedimages,proxycaches,idms"]).await?);

    story.step("A mistake is answered with the field and the remedy");
    Story::say(MISTAKE);
    Story::say(refusal(&cluster).await?);

    story.step("The leader is stopped; the other replica takes over, and Pods go on being admitted");
    let (leader, standby) = if one.leads().await? { (one, other) } else { (other, one) };
    let stopped = std::time::Instant::now();
    leader.stop().await?;
    standby.wait_to_lead(SOON).await?;
    Story::say(format!("{} leads after {:.1} s", standby.identity, stopped.elapsed().as_secs_f64()));
    let pod = run(&cluster, &image, &survivor).await?;
    Story::say(format!("Pod {pod}, created now, was routed, too"));

    story.end(&[
        "make cluster        leaves a cluster like this running, with a node when you are root",
        "docs/explain.md     why a Pod was rewritten, or was not",
        "examples/           the manifests that were applied",
        "docs/operations.md  health, leadership, certificates, metrics",
        "docs/install.md     installing into your own cluster",
    ]);
    Ok(())
}

/// Two places that hold the same images.
fn policy(first: &Registry, second: &Registry) -> String {
    let upstream = |registry: &Registry| {
        format!(
            "    - registry: {}\n      path: /demo\n      imageFilter:\n        include: [/demo/.+]\n",
            registry.host()
        )
    };
    format!(
        "apiVersion: kuik.enix.io/v1alpha1\nkind: ClusterReplicatedImageSet\nmetadata:\n  name: demo\nspec:\n  upstreams:\n{}{}",
        upstream(first),
        upstream(second)
    )
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

async fn install(cluster: &Cluster, program: &Path, config: &Path) -> Result<()> {
    // The operator of this demo runs beside the cluster, from this build and not from an image.
    let manifests = installation::manifests(program, &["--config", &config.display().to_string()]).await?;
    let documents: Vec<&str> =
        manifests.split("\n---\n").filter(|document| !document.contains("\nkind: Deployment\n")).collect();
    let applied = apply(cluster, "manifests.yaml", &documents.join("\n---\n")).await?;
    Story::say(applied);
    Ok(())
}

async fn apply(cluster: &Cluster, name: &str, text: &str) -> Result<String> {
    let file = cluster.directory().join(name);
    std::fs::write(&file, text)?;
    cluster.kubectl(["apply", "--server-side", "-f", &file.display().to_string()]).await
}

async fn refusal(cluster: &Cluster) -> Result<String> {
    match apply(cluster, "mistaken.yaml", MISTAKE).await {
        Ok(accepted) => bail!("the mistaken manifest was accepted: {accepted}"),
        // The first line names the command, which the reader has just seen.
        Err(error) => Ok(error.to_string().lines().skip(1).collect::<Vec<_>>().join("\n")),
    }
}

/// Creates a Pod and returns its name, if it was given the image that is expected.
async fn run(cluster: &Cluster, image: &str, expected: &str) -> Result<String> {
    let name = fairlead_testkit::unique("demo");
    cluster.kubectl(["run", &name, &format!("--image={image}")]).await?;
    let path = "jsonpath={.spec.containers[0].image}";
    let used = cluster.kubectl(["get", "pod", &name, "-o", path]).await?;
    anyhow::ensure!(used == expected, "Pod {name} was given {used}");
    record(cluster, &name).await?;
    Ok(name)
}

async fn record(cluster: &Cluster, pod: &str) -> Result<String> {
    let path = r"jsonpath={.metadata.annotations.fairlead\.dev/routes}";
    let record = cluster.kubectl(["get", "pod", pod, "-o", path]).await?;
    anyhow::ensure!(!record.is_empty(), "Pod {pod} was admitted without a record");
    let record: serde_json::Value = serde_json::from_str(&record)?;
    Ok(format!("Pod {pod}, fairlead.dev/routes:\n{}", serde_json::to_string_pretty(&record)?))
}

async fn explain(cluster: &Cluster, program: &Path, pod: &str) -> Result<String> {
    let output = tokio::process::Command::new(program)
        .args(["explain", &format!("pod/{pod}"), "--kubeconfig"])
        .arg(cluster.kubeconfig())
        .output()
        .await?;
    anyhow::ensure!(output.status.success(), "fairlead explain: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
