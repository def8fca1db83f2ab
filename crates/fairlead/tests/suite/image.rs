//! The image of the Containerfile, around the static program, on a real node: it is pulled, runs under the restricted
//! security context of the plain manifests, connects the way Pods do, and becomes ready.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, TcpListener},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use fairlead_operator::install::{DEFAULT_NAMESPACE, LEASE, NAME};
use fairlead_testkit::{
    Cluster, Registry, RegistryConfig, eventually,
    images::{Image, ImageBuilder},
};
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{ContainerStatus, Pod},
};
use kube::{Api, ResourceExt, api::ListParams};
use serde_json::{Value, json};

use crate::{install::manifests, kubectl, yaml::repository};

const TARGET: &str = "x86_64-unknown-linux-musl";
const DEADLINE: Duration = Duration::from_mins(2);

#[tokio::test]
#[ignore = "needs root, runc, CNI plugins and musl-tools: run as root with --include-ignored"]
async fn the_image_runs_on_a_real_node_and_becomes_ready() {
    let image = tokio::task::spawn_blocking(image).await.unwrap().unwrap();
    let cluster = Cluster::builder().node(true).start().await.unwrap();
    let registry = Registry::start(RegistryConfig::new()).await.unwrap();
    registry.endpoint().push("fairlead/fairlead", "test", &image).await.unwrap();
    let reference = format!("{}/fairlead/fairlead:test", registry.host());

    let mut objects = manifests(&["--replicas=1", "--image", &reference]).unwrap();
    onto_the_host_network(&cluster, &mut objects).unwrap();
    kubectl::apply(&cluster, &objects, &[]).await.unwrap();

    let pod = ready_pod(&cluster).await.unwrap();
    let status = operator_status(&pod).unwrap();
    assert!(status.image_id.ends_with(&image.digest()), "{} runs, not {}", status.image_id, image.digest());
    assert_eq!(status.restart_count, 0);
    leads(&cluster, &pod.name_any()).await.unwrap();
}

/// A test cluster has no network between Pods and the API server, which listens on loopback. So the Pod gets the host's
/// network, on ports that nobody else has, and the namespace has to admit that; everything else stays as installed.
fn onto_the_host_network(cluster: &Cluster, objects: &mut [Value]) -> Result<()> {
    let api_server = cluster.api_server()?;
    for object in objects {
        match object["kind"].as_str() {
            Some("Namespace") => {
                object["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] = json!("privileged");
            }
            Some("Deployment") => {
                let pod = &mut object["spec"]["template"]["spec"];
                pod["hostNetwork"] = json!(true);
                let container = &mut pod["containers"][0];
                let mut arguments = vec![json!("--listen=127.0.0.1")];
                for port in container["ports"].as_array_mut().context("no ports")? {
                    let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port();
                    port["containerPort"] = json!(free);
                    arguments
                        .push(json!(format!("--{}-port={free}", port["name"].as_str().context("no name")?)));
                }
                container["args"].as_array_mut().context("no arguments")?.extend(arguments);
                container["env"].as_array_mut().context("no environment")?.extend([
                    json!({ "name": "KUBERNETES_SERVICE_HOST", "value": api_server.ip().to_string() }),
                    json!({ "name": "KUBERNETES_SERVICE_PORT", "value": api_server.port().to_string() }),
                ]);
            }
            _ => {}
        }
    }
    Ok(())
}

async fn ready_pod(cluster: &Cluster) -> Result<Pod> {
    let pods: Api<Pod> = Api::namespaced(cluster.client().await?, DEFAULT_NAMESPACE);
    eventually(DEADLINE, || async {
        let pod =
            pods.list(&ListParams::default()).await?.items.into_iter().next().context("there is no Pod")?;
        let ready = operator_status(&pod).is_some_and(|status| status.ready);
        if !ready {
            let logs = cluster.kubectl(["logs", "--namespace", DEFAULT_NAMESPACE, &pod.name_any()]).await;
            bail!(
                "the Pod is not ready: {}\n{}",
                json!(pod.status),
                logs.unwrap_or_else(|error| error.to_string())
            );
        }
        Ok(pod)
    })
    .await
}

fn operator_status(pod: &Pod) -> Option<&ContainerStatus> {
    pod.status.as_ref()?.container_statuses.as_ref()?.first()
}

async fn leads(cluster: &Cluster, pod: &str) -> Result<()> {
    let leases: Api<Lease> = Api::namespaced(cluster.client().await?, DEFAULT_NAMESPACE);
    eventually(DEADLINE, || async {
        let holder = leases.get(LEASE).await?.spec.and_then(|spec| spec.holder_identity);
        ensure!(holder.as_deref() == Some(pod), "the Lease is held by {holder:?}, not by {pod}");
        Ok(())
    })
    .await
}

/// What the Containerfile describes, made without the tools that usually read it.
fn image() -> Result<Image> {
    let file = Containerfile::read()?;
    let program = static_program()?;
    let mut builder = ImageBuilder::new().executable(&file.destination, &program)?.user(&file.user);
    for (name, value) in &file.labels {
        builder = builder.label(name, value);
    }
    let entrypoint = file.entrypoint.iter().map(String::as_str).collect::<Vec<_>>();
    builder.entrypoint(&entrypoint).build()
}

/// Built without optimisation: a release takes minutes more and differs in nothing that is tested here.
fn static_program() -> Result<PathBuf> {
    let cargo = std::env::var_os("CARGO").context("CARGO is not set: run this by `cargo test`")?;
    let status = Command::new(cargo)
        .args(["build", "--locked", "--package", NAME, "--bin", NAME, "--target", TARGET])
        // Symbols are half of it, and every byte is hashed several times on its way to the node.
        .args(["--config", "profile.dev.strip=\"symbols\""])
        .current_dir(repository())
        .status()?;
    ensure!(
        status.success(),
        "building the static program failed, as said above; it needs `rustup target add {TARGET}` and Debian's musl-tools"
    );
    let profile =
        Path::new(env!("CARGO_BIN_EXE_fairlead")).parent().context("the program has no directory")?;
    let target = profile.parent().context("the profile has no directory")?;
    Ok(target.join(TARGET).join("debug").join(NAME))
}

/// The instructions of the Containerfile.
struct Containerfile {
    destination: String,
    user: String,
    entrypoint: Vec<String>,
    labels: BTreeMap<String, String>,
}

impl Containerfile {
    fn read() -> Result<Self> {
        let text = std::fs::read_to_string(repository().join("Containerfile"))?;
        let text = text.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>().join("\n");
        let mut file = Self {
            destination: String::new(),
            user: String::new(),
            entrypoint: Vec::new(),
            labels: BTreeMap::new(),
        };
        for line in text.replace("\\\n", " ").lines().map(str::trim).filter(|line| !line.is_empty()) {
            let (instruction, rest) = line.split_once(' ').context("an instruction without arguments")?;
            match instruction {
                "FROM" => ensure!(rest == "scratch", "there is no base image to be had: {line}"),
                "ARG" => {}
                "COPY" => {
                    let destination = rest.split(' ').next_back().context("no destination")?;
                    destination.clone_into(&mut file.destination);
                }
                "USER" => rest.clone_into(&mut file.user),
                "ENTRYPOINT" => file.entrypoint = serde_json::from_str(rest)?,
                "LABEL" => file.labels = labels(rest)?,
                _ => bail!("this test does not understand {line:?}: teach it"),
            }
        }
        Ok(file)
    }
}

fn labels(text: &str) -> Result<BTreeMap<String, String>> {
    let mut labels = BTreeMap::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let (name, after) = rest.split_once("=\"").context("a label is not NAME=\"VALUE\"")?;
        let (value, after) = after.split_once('"').context("a label has no end")?;
        labels.insert(name.to_owned(), value.to_owned());
        rest = after.trim_start();
    }
    Ok(labels)
}
