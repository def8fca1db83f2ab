//! `make demo`: Fairlead at work on a real control plane, told step by step. Everything listens on loopback and ends with this program.
#![allow(clippy::print_stdout, reason = "talking to a person is what this program is for")]

mod operator;
mod story;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use fairlead_testkit::registry::{Registry, RegistryConfig};
use fairlead_testkit::service::Service;
use fairlead_testkit::{Cluster, eventually, images};

use operator::Replica;
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
    let program = program()?;
    let mut story = Story::begin();

    story.step("A real Kubernetes control plane: etcd, API server, controller manager, scheduler");
    let cluster = Cluster::builder().start().await?;
    Story::say(cluster.kubectl(["version"]).await?);

    story.step("Two image registries, with the same image in both");
    let mut registries = Vec::new();
    for _ in 0..2 {
        let registry = Registry::start(RegistryConfig::new()).await?;
        let image = images::pause()?;
        let digest = registry.endpoint().push("demo/app", "1", &image).await?;
        Story::say(format!("{}/demo/app:1  {digest}", registry.host()));
        registries.push(registry);
    }
    let image = format!("{}/demo/app:1", registries.first().context("a registry")?.host());

    story.step("Install Fairlead: `fairlead manifests | kubectl apply --server-side -f -`");
    install(&cluster, &program).await?;

    story.step("Two replicas of the operator, under exactly the rights that were installed");
    let first = Replica::start(&cluster, &program, "replica-1").await?;
    let second = Replica::start(&cluster, &program, "replica-2").await?;
    let service = Service::start(vec![first.webhook().await?, second.webhook().await?]).await?;
    point_webhook_at(&cluster, &service).await?;
    first.wait_until_ready().await?;
    second.wait_until_ready().await?;
    Story::say(cluster.kubectl(["-n", NAMESPACE, "get", "lease,secret"]).await?);

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

    story.step("A Pod is created, and admission leaves its record on it");
    let record = eventually(SOON, || create_pod(&cluster, &image)).await?;
    Story::say(record);

    story.step("The leader is stopped; the other replica takes over, and Pods go on being admitted");
    let (leader, standby) = if first.leads().await? { (first, second) } else { (second, first) };
    let stopped = std::time::Instant::now();
    leader.stop().await?;
    eventually(SOON, || async {
        anyhow::ensure!(standby.leads().await?, "it does not lead yet");
        Ok(())
    })
    .await?;
    Story::say(format!("{} leads after {:.1} s", standby.identity(), stopped.elapsed().as_secs_f64()));
    create_pod(&cluster, &image).await?;
    Story::say("a Pod created now carries its record, too");

    story.end(&[
        "make cluster        leaves a cluster like this running, with a node when you are root",
        "examples/           the manifests that were applied",
        "docs/operations.md  health, leadership, certificates, metrics",
        "docs/install.md     installing into your own cluster",
    ]);
    Ok(())
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The program beside this one.
fn program() -> Result<PathBuf> {
    let here = std::env::current_exe().context("cannot tell where this program is")?;
    let program = here.parent().context("this program is in no directory")?.join("fairlead");
    if !program.exists() {
        bail!(
            "{} is not there: run `cargo build --bin fairlead` first, or use `make demo`",
            program.display()
        );
    }
    Ok(program)
}

async fn install(cluster: &Cluster, program: &Path) -> Result<()> {
    let output = tokio::process::Command::new(program).arg("manifests").output().await?;
    anyhow::ensure!(
        output.status.success(),
        "fairlead manifests: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let file = cluster.directory().join("manifests.yaml");
    std::fs::write(&file, output.stdout)?;
    let applied = cluster.kubectl(["apply", "--server-side", "-f", &file.display().to_string()]).await?;
    Story::say(applied);
    Ok(())
}

/// The API server of this cluster cannot reach Services, so it is given an address.
async fn point_webhook_at(cluster: &Cluster, service: &Service) -> Result<()> {
    let patch = format!(
        r#"[{{"op":"remove","path":"/webhooks/0/clientConfig/service"}},
            {{"op":"add","path":"/webhooks/0/clientConfig/url","value":"https://{}/mutate/pods"}}]"#,
        service.address()
    );
    cluster
        .kubectl(["patch", "mutatingwebhookconfiguration", "fairlead", "--type=json", "--patch", &patch])
        .await?;
    Ok(())
}

async fn refusal(cluster: &Cluster) -> Result<String> {
    let file = cluster.directory().join("mistaken.yaml");
    std::fs::write(&file, MISTAKE)?;
    match cluster.kubectl(["apply", "--server-side", "-f", &file.display().to_string()]).await {
        Ok(accepted) => bail!("the mistaken manifest was accepted: {accepted}"),
        // The first line names the command, which the reader has just seen.
        Err(error) => Ok(error.to_string().lines().skip(1).collect::<Vec<_>>().join("\n")),
    }
}

async fn create_pod(cluster: &Cluster, image: &str) -> Result<String> {
    let name = fairlead_testkit::unique("demo");
    let image = format!("--image={image}");
    cluster.kubectl(["run", &name, &image]).await?;
    let path = r"jsonpath={.metadata.annotations.fairlead\.dev/routes}";
    let record = cluster.kubectl(["get", "pod", &name, "-o", path]).await?;
    anyhow::ensure!(!record.is_empty(), "Pod {name} was admitted without a record");
    Ok(format!("Pod {name}\n  fairlead.dev/routes: {record}"))
}
