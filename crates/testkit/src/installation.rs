//! Fairlead as its users run it: its own manifests as they are, an image from a registry, Pods of a Deployment behind
//! a Service.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use tokio::process::Command;

use crate::images::Image;
use crate::{Cluster, Registry, workdir};

const NAMESPACE: &str = "fairlead-system";

/// The program `fairlead` of the same build as this one.
pub fn program() -> Result<PathBuf> {
    let here = std::env::current_exe().context("cannot tell where this program is")?;
    let program = here.parent().context("this program is in no directory")?.join("fairlead");
    ensure!(program.exists(), "{} is not there: run `cargo build --bin fairlead` first", program.display());
    Ok(program)
}

/// What `fairlead manifests ARGUMENTS` prints.
pub async fn manifests(program: &Path, arguments: &[&str]) -> Result<String> {
    let output = Command::new(program).arg("manifests").args(arguments).output().await?;
    ensure!(
        output.status.success(),
        "{} manifests: {}",
        program.display(),
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8(output.stdout)?)
}

/// A configuration for registries that speak plain HTTP, which is not to be expected off loopback.
pub fn plain_http<'a>(registries: impl IntoIterator<Item = &'a Registry>) -> Result<String> {
    let mut text = "registries:\n".to_owned();
    for registry in registries {
        writeln!(text, "  \"{}\":\n    plainHttp: true", registry.host())?;
    }
    Ok(text)
}

/// Installs Fairlead on the node of a cluster and waits until its replicas are ready. The image goes to `registry`,
/// from where the node gets it under the name that the manifests give it.
pub async fn install(
    cluster: &Cluster,
    program: &Path,
    (image, registry): (&Image, &Registry),
    config: &str,
) -> Result<()> {
    let file = cluster.directory().join("fairlead-config.yaml");
    workdir::write(&file, config)?;
    let manifests = manifests(program, &["--config", &file.display().to_string()]).await?;
    let reference = manifests.lines().find_map(|line| line.trim().strip_prefix("image: "));
    let (host, name) =
        reference.and_then(|text| text.split_once('/')).context("no image in the manifests")?;
    let (repository, tag) = name.rsplit_once(':').context("the image in the manifests has no tag")?;
    registry.endpoint().push(repository, tag, image).await?;
    cluster.pull_from(host, registry.endpoint())?;
    let file = cluster.directory().join("fairlead.yaml");
    workdir::write(&file, &manifests)?;
    cluster.kubectl(["apply", "--server-side", "--filename", &file.display().to_string()]).await?;
    let status = ["rollout", "status", "deployment/fairlead", "--namespace", NAMESPACE, "--timeout=120s"];
    if let Err(error) = cluster.kubectl(status).await {
        let logs =
            ["logs", "--namespace", NAMESPACE, "--selector=app.kubernetes.io/name=fairlead", "--prefix"];
        let events = ["events", "--namespace", NAMESPACE];
        let (logs, events) = (cluster.kubectl(logs).await, cluster.kubectl(events).await);
        return Err(error.context(format!("{}\n{}", events.unwrap_or_default(), logs.unwrap_or_default())));
    }
    Ok(())
}
