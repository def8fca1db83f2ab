//! The agent with a cluster's policies: how soon a change holds on the node, and what it takes while nothing happens.

use std::net::TcpListener;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fairlead_testkit::measure::{Bar, median};
use fairlead_testkit::{Cluster, Process, Program, eventually};
use serde_json::json;

use super::fairlead;

const POLICIES: usize = 100;
const CHANGES: usize = 9;
/// Most seconds until a change holds.
const LIMIT: f64 = 5.0;
/// Most memory, in mebibytes.
const MOST_MEMORY: f64 = 20.0;
const PATIENCE: Duration = Duration::from_mins(1);
const NODE: &str = "bench";

pub(super) async fn measure(idle: Duration) -> Result<Vec<Bar>> {
    println!("\nAn agent with {POLICIES} policies of a cluster");
    let cluster = Cluster::builder().audit(true).start().await?;
    let crds = std::process::Command::new(fairlead()?).arg("crds").output()?;
    apply(&cluster, "crds.yaml", &String::from_utf8(crds.stdout)?).await?;
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}});
    apply(&cluster, "node.json", &node.to_string()).await?;
    let items: Vec<_> = (0..POLICIES).map(policy).collect();
    let all = json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string();
    eventually(PATIENCE, || apply(&cluster, "policies.json", &all)).await?;

    let certs = cluster.directory().join("certs.d");
    let router = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
    let agent = Program::new(fairlead()?)
        .args(["agent", "--log-format=json", "--runtime=containerd", "--status=127.0.0.1:0"])
        .arg(format!("--node-name={NODE}"))
        .arg(format!("--kubeconfig={}", cluster.kubeconfig().display()))
        .arg(format!("--config-dir={}", certs.display()))
        .arg(format!("--router={router}"))
        .start()
        .await?;
    agent.wait_for_log("\"endpoint\":\"router\"", PATIENCE).await?;
    let mut times = Vec::new();
    for number in POLICIES..POLICIES + CHANGES {
        apply(&cluster, "change.json", &policy(number).to_string()).await?;
        let begun = Instant::now();
        holds(&certs, &router, number).await.with_context(|| agent.log_tail())?;
        times.push(begun.elapsed().as_secs_f64());
    }
    let slowest = times.iter().copied().fold(0.0, f64::max);
    println!(
        "  {CHANGES} changes hold after {:.2} s in the median and {slowest:.2} s at most",
        median(times)
    );

    let (_, position) = cluster.audit_events_from(0)?;
    tokio::time::sleep(idle).await;
    let (events, _) = cluster.audit_events_from(position)?;
    let is_write = |verb: &str| matches!(verb, "create" | "update" | "patch" | "delete");
    // Nothing but the agent has to do with these groups here.
    let is_agents = |group: &str| group == "fairlead.dev" || group.ends_with(".openshift.io");
    let writes = events.iter().filter(|event| is_agents(&event.api_group) && is_write(&event.verb)).count();
    let memory = resident(&agent)?;
    println!("  idle: {memory:.1} MiB, {writes} writes in {} s", idle.as_secs());
    Ok(vec![
        Bar::at_most("seconds until a change of policies holds on the node, at most", slowest, LIMIT),
        Bar::at_most("memory of an idle agent, MiB", memory, MOST_MEMORY),
        Bar::at_most(
            format!("writes of an idle agent to the API server in {} s", idle.as_secs()),
            f64::from(u32::try_from(writes)?),
            0.0,
        ),
    ])
}

/// Closes a registry for tags, which the router can say without asking a registry.
fn policy(number: usize) -> serde_json::Value {
    let item = json!({"source": format!("hub{number}.test/team"), "mirrors": [format!("m{number}.test/team")],
        "mirrorSourcePolicy": "NeverContactSource"});
    json!({"apiVersion": "config.openshift.io/v1", "kind": "ImageDigestMirrorSet",
        "metadata": {"name": format!("p{number}")}, "spec": {"imageDigestMirrors": [item]}})
}

pub(super) async fn apply(cluster: &Cluster, name: &str, content: &str) -> Result<()> {
    let file = cluster.directory().join(name);
    std::fs::write(&file, content)?;
    cluster.kubectl(["apply", "--server-side", "-f", &file.display().to_string()]).await?;
    Ok(())
}

/// Waits until the file leads to the router, and the router refuses.
async fn holds(certs: &Path, router: &str, number: usize) -> Result<()> {
    let client = reqwest::Client::builder().no_proxy().tls_certs_only([]).build()?;
    let file = certs.join(format!("hub{number}.test/hosts.toml"));
    let address = format!("http://{router}/v2/team/app/manifests/1?ns=hub{number}.test");
    eventually(PATIENCE, || async {
        ensure!(file.exists(), "{} is not there", file.display());
        let status = client.head(&address).send().await?.status();
        ensure!(status == 403, "{address}: {status}");
        Ok(())
    })
    .await
}

/// Memory in use now, in mebibytes.
fn resident(process: &Process) -> Result<f64> {
    let pid = process.pid().context("the agent has ended")?;
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    let kibibytes: u32 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(f64::from(kibibytes) / 1024.0)
}
