//! Reports of many nodes at once: how often the operator writes the status of a policy, and how soon it says all of it.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fairlead_testkit::measure::Bar;
use fairlead_testkit::{Cluster, Operator, eventually};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use jiff::Timestamp;
use kube::Api;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, PostParams};
use serde_json::{Value, json};

use super::agent::apply;
use super::fairlead;

const NODES: usize = 1000;
const POLICIES: usize = 3;
/// Reports that are written at once.
const AT_ONCE: usize = 16;
const NAMESPACE: &str = "fairlead-system";
const PATIENCE: Duration = Duration::from_mins(5);
/// Most writes of one status in a second, and most seconds until it says what was reported last.
const RATE: f64 = 1.0;
const LIMIT: f64 = 5.0;

pub(super) async fn measure() -> Result<Vec<Bar>> {
    println!("\n{NODES} reports, {POLICIES} policies");
    let cluster = Cluster::builder().audit(true).start().await?;
    let manifests = std::process::Command::new(fairlead()?).args(["manifests", "--agents"]).output()?;
    ensure!(manifests.status.success(), "{}", String::from_utf8_lossy(&manifests.stderr));
    // What would run as Pods beside the operator, and what keeps strangers from writing reports, is left out.
    let documents = String::from_utf8(manifests.stdout)?;
    let is_kept = |document: &&str| {
        let is = |line: &str| document.lines().any(|one| one == line);
        !is("kind: Deployment")
            && !is("kind: MutatingWebhookConfiguration")
            && !is("  name: fairlead-reports")
    };
    let installed: Vec<&str> = documents.split("\n---\n").filter(is_kept).collect();
    let installed = installed.join("\n---\n");
    eventually(PATIENCE, || apply(&cluster, "installed.yaml", &installed)).await?;
    cluster.start_kwok(None).await?;
    let nodes = cluster.simulated_nodes("many", NODES).await?;
    let operator = Operator::of(fairlead()?).namespace(NAMESPACE).start_installed(&cluster).await?;
    operator.wait_until_ready(PATIENCE).await?;
    let items: Vec<Value> = (0..POLICIES).map(policy).collect();
    let all = json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string();
    eventually(PATIENCE, || apply(&cluster, "policies.json", &all)).await?;
    let begins = format!("0 of {NODES} nodes");
    for number in 0..POLICIES {
        says(&cluster, number, &begins).await.with_context(|| operator.process.log_tail())?;
    }

    let (_, position) = cluster.audit_events_from(0)?;
    let kind = GroupVersionKind::gvk("fairlead.dev", "v1alpha1", "NodeMirrorReport");
    let kind = ApiResource::from_gvk(&kind);
    let reports: Api<DynamicObject> = Api::all_with(cluster.client().await?, &kind);
    let begun = Instant::now();
    let written = stream::iter(nodes.iter().enumerate()).map(|(number, name)| {
        let report = json!({"apiVersion": "fairlead.dev/v1alpha1", "kind": "NodeMirrorReport",
            "metadata": {"name": name}, "spec": {"error": format!("error {number}")}});
        let reports = reports.clone();
        async move {
            let report: DynamicObject = serde_json::from_value(report)?;
            reports.create(&PostParams::default(), &report).await?;
            anyhow::Ok(())
        }
    });
    written.buffer_unordered(AT_ONCE).try_collect::<()>().await?;
    let reported = begun.elapsed();
    let last = Instant::now();
    let gauge = "fairlead_mirror_policy_nodes{state=\"failing\"}";
    #[allow(clippy::cast_precision_loss, reason = "a thousand nodes")]
    operator.wait_for_metric(gauge, Some(NODES as f64), PATIENCE).await?;
    for number in 0..POLICIES {
        says(&cluster, number, &format!("and {} more", NODES - 3)).await?;
    }
    let until_said = last.elapsed().as_secs_f64();

    let (events, _) = cluster.audit_events_from(position)?;
    let mut fastest = 0.0_f64;
    let mut most = 0;
    for number in 0..POLICIES {
        let name = name(number);
        let is_write = |event: &&fairlead_testkit::audit::AuditEvent| {
            event.verb == "patch" && event.subresource == "status" && event.name == name
        };
        let times: Vec<Timestamp> = events.iter().filter(is_write).map(|event| event.received).collect();
        let (Some(first), Some(last)) = (times.iter().min(), times.iter().max()) else { continue };
        most = most.max(times.len());
        let after_first = f64::from(u32::try_from(times.len() - 1)?);
        if after_first > 0.0 {
            fastest = fastest.max(after_first / last.duration_since(*first).as_secs_f64());
        }
    }
    ensure!(most > 0, "no status was written");
    println!(
        "  reported within {:.1} s, said after {until_said:.1} s more: {most} writes of one status at most",
        reported.as_secs_f64()
    );
    Ok(vec![
        Bar::at_most(format!("{NODES} reports: writes of one status in a second"), fastest, RATE),
        Bar::at_most(
            format!("{NODES} reports: seconds until conditions say the last one"),
            until_said,
            LIMIT,
        ),
    ])
}

fn name(number: usize) -> String {
    format!("p{number}")
}

fn policy(number: usize) -> Value {
    let item = json!({"source": format!("hub{number}.test"), "mirrors": ["mirror.test/copies"]});
    json!({"apiVersion": "config.openshift.io/v1", "kind": "ImageSourceTagPolicy",
        "metadata": {"name": name(number)}, "spec": {"repositoryTagMirrors": [item]}})
}

/// Waits until the condition of a policy has this in its message.
async fn says(cluster: &Cluster, number: usize, wanted: &str) -> Result<()> {
    let path = r#"jsonpath={.status.conditions[?(@.type=="Applied")].message}"#;
    let name = name(number);
    eventually(PATIENCE, || async {
        let message = cluster.kubectl(["get", "imagesourcetagpolicies", &name, "-o", path]).await?;
        ensure!(message.contains(wanted), "{name}: {message}");
        Ok(())
    })
    .await
}
