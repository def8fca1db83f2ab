//! Nothing outlives a killed test: no process, no mount, no control group, no network device, no file. And nothing of
//! the machine's network is changed meanwhile: no rule of the packet filter, no forwarding.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fairlead_testkit::eventually;
use fairlead_testkit::standing::Standing;
use serde_json::Value;

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
    // Children can have smaller numbers than their parents, so go on until none is found.
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

/// What a cluster has in places that it shares with others, by the name that its kubelet was given: a control group
/// in each hierarchy, and a network device.
fn shared_places(kubelet: &Value) -> Vec<PathBuf> {
    let name = kubelet["cgroupRoot"].as_str().unwrap_or_default().trim_start_matches('/');
    let root = Path::new("/sys/fs/cgroup");
    let hierarchies = std::fs::read_dir(root).into_iter().flatten().flatten().map(|entry| entry.path());
    let places = hierarchies.chain([root.to_owned(), PathBuf::from("/sys/class/net")]);
    places.map(|place| place.join(name)).filter(|path| path.exists()).collect()
}

/// What a node usually changes in a machine's network.
fn rules() -> Result<String> {
    let output = Command::new("/usr/sbin/iptables-save").output().context("iptables-save")?;
    ensure!(output.status.success(), "iptables-save ended with {}", output.status);
    let text = String::from_utf8(output.stdout)?;
    // Comments say when they were written, and chains count packets.
    let rules: Vec<&str> = text.lines().filter(|line| !line.starts_with(['#', ':'])).collect();
    let forwarding = std::fs::read_to_string("/proc/sys/net/ipv4/ip_forward")?;
    Ok(format!("ip_forward={forwarding}{}", rules.join("\n")))
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
    let rules_before = rules()?;
    let maker = start(&place, &["--no-fairlead"])?;
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
    let kubelet = serde_json::from_slice(&std::fs::read(place.join("run/kubelet.yaml"))?)?;
    ensure!(shared_places(&kubelet).len() >= 2, "there is nothing to be cleaned up");
    ensure!(rules()? == rules_before, "the node changed the machine's network: {}", rules()?);

    nothing_survives(&place, maker, &["kubelet", "kube-proxy", "containerd", "containerd-shim", "pause"])
        .await?;
    eventually(DEADLINE, || async {
        let left = shared_places(&kubelet);
        ensure!(left.is_empty(), "control groups or network devices are left: {left:?}");
        ensure!(rules()? == rules_before, "the machine's network is changed: {}", rules()?);
        Ok(())
    })
    .await
}
