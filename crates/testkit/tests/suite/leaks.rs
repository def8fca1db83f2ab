//! Nothing outlives a killed test: no process, no mount, no control group, no network device, no file.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fairlead_testkit::eventually;
use fairlead_testkit::standing::Standing;

const DEADLINE: Duration = Duration::from_secs(10);

/// A process, told apart from later ones of the same number by its start time.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Identity {
    pid: u32,
    started: String,
}

struct Stat {
    identity: Identity,
    parent: u32,
    name: String,
}

fn stat(pid: u32) -> Option<Stat> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name is in parentheses and may hold anything, spaces and parentheses included.
    let (head, tail) = text.rsplit_once(')')?;
    let fields: Vec<&str> = tail.split_whitespace().collect();
    let identity = Identity { pid, started: (*fields.get(19)?).to_owned() };
    let name = head.split_once('(')?.1.to_owned();
    Some(Stat { identity, parent: fields.get(1)?.parse().ok()?, name })
}

fn all_processes() -> Vec<Stat> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| stat(entry.file_name().to_str()?.parse().ok()?)).collect()
}

fn descendants(ancestor: u32) -> Vec<Stat> {
    let mut all = all_processes();
    let mut family = BTreeSet::from([ancestor]);
    // Children can have smaller numbers than their parents, so go on until nobody is found.
    loop {
        let before = family.len();
        family.extend(
            all.iter()
                .filter(|process| family.contains(&process.parent))
                .map(|process| process.identity.pid)
                .collect::<Vec<_>>(),
        );
        if family.len() == before {
            break;
        }
    }
    family.remove(&ancestor);
    all.retain(|process| family.contains(&process.identity.pid));
    all
}

fn control_groups() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let hierarchies =
        std::fs::read_dir("/sys/fs/cgroup").into_iter().flatten().flatten().map(|entry| entry.path());
    for directory in hierarchies.chain([Path::new("/sys/fs/cgroup").to_owned()]) {
        let containers = std::fs::read_dir(directory.join("k8s.io")).into_iter().flatten().flatten();
        found.extend(
            containers.filter(|entry| entry.path().is_dir()).map(|entry| entry.path().display().to_string()),
        );
    }
    found
}

fn network_devices() -> BTreeSet<String> {
    let entries = std::fs::read_dir("/sys/class/net").into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Starts `cluster up --foreground` in a place of its own and waits until it is up.
fn start(place: &Path, arguments: &[&str]) -> Result<Child> {
    let mut child = Command::new(env!("CARGO_BIN_EXE_cluster"))
        .args(["up", "--foreground"])
        .args(arguments)
        .env("FAIRLEAD_CLUSTER_DIR", place)
        .stdout(Stdio::piped())
        .spawn()?;
    let output = child.stdout.take().context("no output")?;
    let ready = BufReader::new(output).lines().map_while(Result::ok).any(|line| line.contains("Ctrl-C"));
    ensure!(ready, "the cluster did not come up");
    Ok(child)
}

/// Kills the maker of a cluster and looks for remains. `expected` are names of processes that must have been there.
async fn nothing_survives(place: &Path, mut maker: Child, expected: &[&str]) -> Result<()> {
    let family = descendants(maker.id());
    for name in expected {
        ensure!(family.iter().any(|process| process.name == *name), "{name} did not run");
    }
    maker.kill()?;
    maker.wait()?;
    eventually(DEADLINE, || async {
        let living: BTreeSet<Identity> =
            all_processes().into_iter().map(|process| process.identity).collect();
        let left: Vec<_> = family
            .iter()
            .filter(|process| living.contains(&process.identity))
            .map(|process| &process.name)
            .collect();
        ensure!(left.is_empty(), "still running: {left:?}");
        let mounts = std::fs::read_to_string("/proc/self/mounts")?;
        let left: Vec<_> =
            mounts.lines().filter(|line| line.contains(&place.display().to_string())).collect();
        ensure!(left.is_empty(), "still mounted: {left:?}");
        ensure!(!place.join("run").exists(), "{} still exists", place.join("run").display());
        Ok(())
    })
    .await
}

#[tokio::test]
async fn nothing_survives_a_killed_maker_of_a_control_plane() -> Result<()> {
    let temporary = tempfile::tempdir()?;
    let place = temporary.path().join("cluster");
    let maker = start(&place, &["--no-node"])?;
    nothing_survives(&place, maker, &["etcd", "kube-apiserver", "registry"]).await?;
    assert!(!Standing::at(place).is_running()?);
    Ok(())
}

#[tokio::test]
#[ignore = "needs root; `make test` as root runs it"]
async fn nothing_survives_a_killed_maker_of_a_node() -> Result<()> {
    let temporary = tempfile::tempdir()?;
    let place = temporary.path().join("cluster");
    let (groups, devices) = (control_groups(), network_devices());
    let maker = start(&place, &[])?;
    let guide = Standing::at(place.clone()).guide()?;
    let image =
        guide.lines().find_map(|line| line.split_once("--image=")).context("no image in the guide")?.1;
    let programs = guide.lines().find_map(|line| line.split_once("PATH=")).context("no PATH in the guide")?.1;
    let kubectl = Path::new(programs.split(':').next().unwrap_or_default()).join("kubectl");
    let kubectl = |arguments: &[&str]| {
        let output =
            Command::new(&kubectl).args(arguments).env("KUBECONFIG", place.join("kubeconfig")).output()?;
        ensure!(
            output.status.success(),
            "kubectl {arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(())
    };
    eventually(DEADLINE, || async { kubectl(&["get", "serviceaccount", "default"]) }).await?;
    kubectl(&["run", "hello", "--image", image])?;
    kubectl(&["wait", "pod/hello", "--for=condition=Ready", "--timeout=60s"])?;
    ensure!(
        control_groups() != groups && network_devices() != devices,
        "the Pod left no trace to be cleaned up"
    );

    nothing_survives(&place, maker, &["kubelet", "containerd", "containerd-shim", "pause"]).await?;
    eventually(DEADLINE, || async {
        let left: Vec<_> = control_groups().difference(&groups).cloned().collect();
        ensure!(left.is_empty(), "control groups are left: {left:?}");
        let left: Vec<_> = network_devices().difference(&devices).cloned().collect();
        ensure!(left.is_empty(), "network devices are left: {left:?}");
        Ok(())
    })
    .await
}
