//! `cluster up` leaves a cluster behind, and `cluster down` leaves nothing.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};

fn cluster(place: &Path, arguments: &[&str]) -> Result<String> {
    let output = Command::new(env!("CARGO_BIN_EXE_cluster"))
        .args(arguments)
        .env("FAIRLEAD_CLUSTER_DIR", place)
        .output()?;
    let (text, errors) = (String::from_utf8(output.stdout)?, String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "cluster {arguments:?} ended with {}: {text}{errors}", output.status);
    Ok(text)
}

#[test]
fn a_cluster_stands_until_it_is_taken_down() -> Result<()> {
    let temporary = tempfile::tempdir()?;
    let place = temporary.path().join("cluster");
    assert!(cluster(&place, &["status"])?.contains("No cluster is running"));
    let first = cluster(&place, &["up", "--no-node"])?;
    let outcome = used_and_found_again(&place, &first);
    assert!(cluster(&place, &["down"])?.contains("has ended"));
    outcome?;
    assert!(!place.exists(), "{} still exists", place.display());
    assert!(cluster(&place, &["down"])?.contains("No cluster was running"));
    Ok(())
}

fn used_and_found_again(place: &Path, guide: &str) -> Result<()> {
    let kubeconfig = place.join("kubeconfig");
    ensure!(guide.contains(&format!("export KUBECONFIG={}", kubeconfig.display())), "{guide}");
    let again = cluster(place, &["up", "--no-node"])?;
    ensure!(again.contains("already up") && again.contains(guide), "{again}");
    ensure!(cluster(place, &["status"])? == guide, "status and up differ");
    let programs =
        guide.lines().find_map(|line| line.split_once("PATH=")).map(|(_, path)| path).unwrap_or_default();
    let kubectl = Path::new(programs.split(':').next().unwrap_or_default()).join("kubectl");
    let output = Command::new(kubectl).args(["get", "namespaces"]).env("KUBECONFIG", kubeconfig).output()?;
    ensure!(String::from_utf8_lossy(&output.stdout).contains("kube-system"), "{output:?}");
    Ok(())
}
