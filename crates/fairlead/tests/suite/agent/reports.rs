//! Agents and the operator on the real control plane, with simulated nodes: policies, reports, conditions.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fairlead_api::crds;
use fairlead_api::fairlead::NodeMirrorReport;
use fairlead_operator::platform::install::{AGENT, AGENT_NAMESPACE, DEFAULT_NAMESPACE};
use fairlead_testkit::definitions::{install, without_rules};
use fairlead_testkit::{
    Cluster, Operator, Process, Program, Registry, RegistryConfig, eventually, installation, unique,
};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::node::reads;
use crate::install::manifests;
use crate::route::rig::{pod, push};
use crate::{kubectl, rights};

const SOON: Duration = Duration::from_mins(2);
const PROGRAM: &str = env!("CARGO_BIN_EXE_fairlead");

/// Everything installed but what would run as Pods.
async fn installed(left_out: &[&str]) -> Result<Cluster> {
    let cluster = Cluster::builder().audit(true).start().await?;
    let mut installed = manifests(&["--agents"])?;
    installed.retain(|object| {
        let is_left_out = |what: &&str| object["kind"] == **what || object["metadata"]["name"] == **what;
        !["Deployment", "MutatingWebhookConfiguration"].iter().chain(left_out).any(is_left_out)
    });
    kubectl::apply(&cluster, &installed, &[]).await?;
    kubectl::definitions_are_served(&cluster).await?;
    // Simulated nodes run the Pods of agents in no time, without agents in them.
    cluster.start_kwok(None).await?;
    Ok(cluster)
}

async fn operator(cluster: &Cluster, config: &str) -> Result<Operator> {
    let file = cluster.directory().join("operator.yaml");
    std::fs::write(&file, config)?;
    let operator = Operator::of(PROGRAM).namespace(DEFAULT_NAMESPACE).config(&file);
    let operator = operator.start_installed(cluster).await?;
    operator.wait_until_ready(SOON).await?;
    Ok(operator)
}

struct Rig {
    cluster: Cluster,
    operator: Operator,
}

/// A real agent, as the Pod on a simulated node would run it.
struct Agent {
    process: Process,
    files: TempDir,
}

impl Agent {
    async fn start(cluster: &Cluster, node: &str) -> Result<Self> {
        let files = TempDir::new()?;
        let kubeconfig = cluster.kubeconfig_on_node(AGENT_NAMESPACE, AGENT, node).await?;
        let process = Program::new(PROGRAM)
            .args(["agent", "--log-format=json", "--status=127.0.0.1:0", "--without-router"])
            .arg(format!("--node-name={node}"))
            .arg(format!("--kubeconfig={}", kubeconfig.display()))
            .arg(format!("--config-dir={}", files.path().join("certs.d").display()))
            .start()
            .await?;
        Ok(Self { process, files })
    }

    fn has(&self, registry: &str) -> bool {
        self.files.path().join("certs.d").join(registry).join("hosts.toml").exists()
    }
}

fn policy(name: &str, source: &str) -> Value {
    policy_of("ImageSourceTagPolicy", "repositoryTagMirrors", name, source)
}

fn policy_of(kind: &str, list: &str, name: &str, source: &str) -> Value {
    json!({
        "apiVersion": "config.openshift.io/v1", "kind": kind, "metadata": {"name": name},
        "spec": {list: [{"source": source, "mirrors": ["mirror.test/copies"]}]},
    })
}

fn icsp(name: &str, source: &str) -> Value {
    json!({
        "apiVersion": "operator.openshift.io/v1alpha1", "kind": "ImageContentSourcePolicy",
        "metadata": {"name": name, "labels": {"team": "a"}},
        "spec": {"repositoryDigestMirrors": [{"source": source, "mirrors": ["mirror.test/copies"]}]},
    })
}

/// One condition of an object: status, reason and message.
async fn condition(cluster: &Cluster, object: &Value, wanted: &str) -> Result<String> {
    let found = kubectl::get(cluster, object).await?;
    let conditions = found["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let found = conditions.iter().find(|one| one["type"] == wanted).with_context(|| format!("{found}"))?;
    let text = |field: &str| found[field].as_str().unwrap_or_default().to_owned();
    Ok(format!("{} {}: {}", text("status"), text("reason"), text("message")))
}

async fn says(rig: &Rig, object: &Value, wanted: &str, begins: &str) -> Result<()> {
    eventually(SOON, || async {
        let said = condition(&rig.cluster, object, wanted).await?;
        ensure!(said.starts_with(begins), "{wanted} is {said}; {}", rig.operator.process.log_tail());
        Ok(())
    })
    .await
}

async fn has_event(cluster: &Cluster, name: &str, reason: &str) -> Result<()> {
    let events: Api<Event> = Api::namespaced(cluster.client().await?, "default");
    eventually(SOON, || async {
        let all = events.list(&ListParams::default()).await?;
        let is_wanted = |event: &&Event| {
            event.involved_object.name.as_deref() == Some(name) && event.reason.as_deref() == Some(reason)
        };
        ensure!(all.iter().any(|event| is_wanted(&event)), "no event {reason} on {name}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn policies_are_followed_and_reported_and_nodes_and_objects_come_and_go() -> Result<()> {
    let cluster = installed(&[]).await?;
    cluster.simulated_nodes("node", 2).await?;
    let source = Registry::start(RegistryConfig::new()).await?;
    let mirror = Registry::start(RegistryConfig::new()).await?;
    let config = installation::plain_http([&source, &mirror])?;
    let rig = &Rig { operator: operator(&cluster, &config).await?, cluster };
    let cluster = &rig.cluster;
    let good = policy("good", "hub.test");
    let bad = icsp("bad", "HUB.test/UPPER");
    kubectl::apply(cluster, &[good.clone(), bad.clone()], &[]).await?;
    says(rig, &good, "Applied", "False Progressing: 0 of 2 nodes").await?;

    let first = Agent::start(cluster, "node-0").await?;
    says(rig, &good, "Applied", "False Progressing: 1 of 2 nodes; not on node-1").await?;
    let second = Agent::start(cluster, "node-1").await?;
    says(rig, &good, "Accepted", "True Merged").await?;
    says(rig, &good, "Applied", "True Applied: 2 of 2 nodes").await?;
    says(rig, &good, "Exact", "True Exact").await?;
    ensure!(first.has("hub.test") && second.has("hub.test"));

    // A wrong object reports itself only.
    says(rig, &bad, "Accepted", "False Failed: source \"HUB.test/UPPER\"").await?;
    says(rig, &bad, "Applied", "False Failed").await?;
    says(rig, &bad, "Upgradeable", "False NotConvertible").await?;
    has_event(cluster, "bad", "MirrorPolicyFailed").await?;
    rig.operator.process.wait_for_log("MirrorPolicyFailed", SOON).await?;
    says(rig, &good, "Applied", "True Applied: 2 of 2 nodes").await?;
    let nodes = |state: &str| format!("fairlead_mirror_policy_nodes{{state=\"{state}\"}}");
    rig.operator.wait_for_metric(&nodes("applied"), Some(2.0), SOON).await?;

    // The other kinds.
    for (kind, list) in [
        ("ImageSourceDigestPolicy", "repositoryDigestMirrors"),
        ("ImageDigestMirrorSet", "imageDigestMirrors"),
        ("ImageTagMirrorSet", "imageTagMirrors"),
    ] {
        let other = policy_of(kind, list, "other", "other.test");
        kubectl::apply(cluster, std::slice::from_ref(&other), &[]).await?;
        says(rig, &other, "Applied", "True Applied: 2 of 2 nodes").await?;
    }

    tags_are_compared(rig, &source, &mirror).await?;
    what_cannot_be_read_concerns_itself(rig, &good).await?;

    // What containerd's files cannot express without a router is not exact.
    let inexact = policy("inexact", "hub.test/team");
    kubectl::apply(cluster, std::slice::from_ref(&inexact), &[]).await?;
    says(rig, &inexact, "Applied", "True Applied").await?;
    says(rig, &inexact, "Exact", "False NotExpressed: hub.test/team: ").await?;

    // A file that the agent did not write.
    let taken = policy("taken", "taken.test");
    let foreign = first.files.path().join("certs.d/taken.test");
    std::fs::create_dir_all(&foreign)?;
    std::fs::write(foreign.join("hosts.toml"), "server = \"https://taken.test\"\n")?;
    kubectl::apply(cluster, std::slice::from_ref(&taken), &[]).await?;
    says(rig, &taken, "Applied", "False Failed: 1 of 2 nodes; not on node-0: taken.test: ").await?;
    says(rig, &good, "Applied", "True Applied: 2 of 2 nodes").await?;

    // A node that joins later, and one that goes with its report.
    cluster.simulated_nodes("late", 1).await?;
    says(rig, &good, "Applied", "False Progressing: 2 of 3 nodes; not on late-0").await?;
    let late = Agent::start(cluster, "late-0").await?;
    says(rig, &good, "Applied", "True Applied: 3 of 3 nodes").await?;
    let reports: Api<NodeMirrorReport> = Api::all(cluster.client().await?);
    ensure!(reports.get("late-0").await?.spec.runtime == "containerd 2.2.0");
    drop(late);
    Api::<Node>::all(cluster.client().await?).delete("late-0", &DeleteParams::default()).await?;
    says(rig, &good, "Applied", "True Applied: 2 of 2 nodes").await?;
    eventually(SOON, || async {
        ensure!(reports.get_opt("late-0").await?.is_none(), "the report is still there");
        Ok(())
    })
    .await?;

    // A report is not written again by an agent that starts anew, and is when policies change.
    let version_of = async |node: &str| anyhow::Ok(reports.get(node).await?.metadata.resource_version);
    let version = || version_of("node-1");
    let (before, first_before) = (version().await?, version_of("node-0").await?);
    first.process.kill().await?;
    first.process.start_again().await?;
    first.process.wait_for_log("\"endpoint\":\"status\"", SOON).await?;
    ensure!(version_of("node-0").await? == first_before, "the report was written without a change");
    kubectl::delete(cluster, std::slice::from_ref(&good)).await?;
    eventually(SOON, || async {
        ensure!(!second.has("hub.test"), "the file is still there");
        Ok(())
    })
    .await?;
    eventually(SOON, || async {
        ensure!(version().await? != before, "the policies are others, and the report is not");
        Ok(())
    })
    .await?;

    rights::check_cases(cluster, DEFAULT_NAMESPACE, &["there is no mirror policy for nodes"]).await?;
    rights::check_role(cluster, AGENT_NAMESPACE, AGENT).await
}

/// A tag that a mirror holds with another digest than its source, for an image that a Pod uses.
async fn tags_are_compared(rig: &Rig, source: &Registry, mirror: &Registry) -> Result<()> {
    push(source, "open/app", "as the source has it").await?;
    push(mirror, "open/app", "as the mirror has it").await?;
    push(source, "shut/app", "closed").await?;
    push(mirror, "shut/app", "closed, on the mirror").await?;
    let set = |name: &str, path: &str, policy: &str| {
        let [source, mirror] = [source, mirror].map(|registry| format!("{}/{path}", registry.host()));
        let item = json!({"source": source, "mirrors": [mirror], "mirrorSourcePolicy": policy});
        super::node::policy("ImageTagMirrorSet", "imageTagMirrors", name, &item)
    };
    let compared = set("compared", "open", "AllowContactingSource");
    let closed = set("closed", "shut", "NeverContactSource");
    kubectl::apply(&rig.cluster, &[compared.clone(), closed.clone()], &[]).await?;
    let namespace = rig.cluster.namespace("compared").await?;
    let pods: Api<Pod> = Api::namespaced(rig.cluster.client().await?, &namespace);
    for path in ["open", "shut"] {
        let pod = serde_json::from_value(pod(&format!("{}/{path}/app:1", source.host())))?;
        pods.create(&PostParams::default(), &pod).await?;
    }
    let image = format!("{}/open/app:1", source.host());
    eventually(SOON, || async {
        let said = condition(&rig.cluster, &compared, "Consistent").await?;
        ensure!(said.starts_with("False DigestsDiffer") && said.contains(&image), "{said}");
        Ok(())
    })
    .await?;
    has_event(&rig.cluster, "compared", "MirrorDiffers").await?;
    let series = "fairlead_mirror_policy_condition{kind=\"ImageTagMirrorSet\",name=\"compared\",condition=\"Consistent\"}";
    rig.operator.wait_for_metric(series, Some(0.0), SOON).await?;
    let asked = reads(source, "shut/app")?;
    ensure!(asked.is_empty(), "a closed source is asked: {asked:?}");
    ensure!(condition(&rig.cluster, &closed, "Consistent").await.is_err(), "nothing is compared");
    kubectl::delete(&rig.cluster, &[compared, closed]).await
}

/// A version of an object that cannot be read: its last one stays in force, and other policies are as they were.
async fn what_cannot_be_read_concerns_itself(rig: &Rig, good: &Value) -> Result<()> {
    let cluster = &rig.cluster;
    let client = cluster.client().await?;
    let kept = icsp("kept", "kept.test");
    kubectl::apply(cluster, std::slice::from_ref(&kept), &[]).await?;
    says(rig, &kept, "Applied", "True Applied: 2 of 2 nodes").await?;
    let crd = crds::all().into_iter().find(|crd| crd.spec.names.kind == "ImageContentSourcePolicy");
    let crd = crd.context("a kind of ours")?;
    install(&client, &without_rules(crd.clone())?).await?;
    let patch = r#"--patch={"spec":{"repositoryDigestMirrors":"none"}}"#;
    let broken = ["patch", "imagecontentsourcepolicies", "kept", "--type=merge", patch];
    eventually(SOON, || async { cluster.kubectl(broken).await.map(drop) }).await?;
    says(rig, &kept, "Accepted", "False Failed: the object cannot be read: ").await?;
    says(rig, &kept, "Applied", "False Failed: the object cannot be read: ").await?;
    says(rig, &kept, "Exact", "Unknown Failed").await?;
    says(rig, &kept, "Upgradeable", "False NotConvertible").await?;
    // Operator and agents agree about all others afterwards, also an operator that never knew what it said before.
    let operator = &rig.operator.process;
    operator.kill().await?;
    operator.start_again().await?;
    let after = policy("after", "after.test");
    kubectl::apply(cluster, std::slice::from_ref(&after), &[]).await?;
    says(rig, &after, "Applied", "True Applied: 2 of 2 nodes").await?;
    says(rig, good, "Applied", "True Applied: 2 of 2 nodes").await?;
    // A file cannot express mirrors for digests alone, which agents go on reporting.
    let reports: Api<NodeMirrorReport> = Api::all(client.clone());
    for node in ["node-0", "node-1"] {
        let inexact = reports.get(node).await?.spec.inexact;
        ensure!(inexact.iter().any(|one| one.source == "kept.test"), "{node} dropped it: {inexact:?}");
    }
    kubectl::delete(cluster, &[kept, after]).await?;
    install(&client, &crd).await
}

#[tokio::test]
async fn only_the_agent_on_a_node_reports_about_it() -> Result<()> {
    // A cluster of its own: refused requests of agents are what another test looks for.
    let cluster = installed(&[]).await?;
    let admin = cluster.client().await?;
    for name in ["guarded-0", "guarded-1"] {
        let node = serde_json::from_value(json!({"metadata": {"name": name}}))?;
        Api::<Node>::all(admin.clone()).create(&PostParams::default(), &node).await?;
    }
    let own = cluster.client_on_node(AGENT_NAMESPACE, AGENT, "guarded-0").await?;
    let unbound = cluster.client_as(AGENT_NAMESPACE, AGENT).await?;
    let write = |client: &Client, name: &'static str, text: &str| {
        let reports: Api<NodeMirrorReport> = Api::all(client.clone());
        let report = json!({
            "apiVersion": "fairlead.dev/v1alpha1", "kind": "NodeMirrorReport", "metadata": {"name": name},
            "spec": {"agent": text},
        });
        async move { reports.patch(name, &PatchParams::apply("test").force(), &Patch::Apply(report)).await }
    };
    // Policies are in force a moment after they were applied. What changes nothing is not refused.
    eventually(SOON, || async {
        ensure!(write(&admin, "guarded-1", &unique("forged")).await.is_err(), "not in force yet");
        Ok(())
    })
    .await?;
    Api::<NodeMirrorReport>::all(admin.clone()).delete("guarded-1", &DeleteParams::default()).await.ok();
    write(&own, "guarded-0", "mine").await?;
    for (who, client, name) in [
        ("another agent", &own, "guarded-1"),
        ("no node", &unbound, "guarded-0"),
        ("admin", &admin, "guarded-0"),
    ] {
        let refused =
            write(client, name, "forged").await.err().with_context(|| format!("{who} may write"))?;
        ensure!(refused.to_string().contains("only the agent on the node of this name"), "{who}: {refused}");
    }
    let label = Patch::Merge(json!({"metadata": {"labels": {"a": "b"}}}));
    let relabel = |client: &Client| {
        let (reports, label) = (Api::<NodeMirrorReport>::all(client.clone()), label.clone());
        async move { reports.patch("guarded-0", &PatchParams::default(), &label).await }
    };
    // Another agent could have a report collected by giving it an owner that does not exist.
    let other = cluster.client_on_node(AGENT_NAMESPACE, AGENT, "guarded-1").await?;
    for (who, client) in [("another agent", &other), ("no node", &unbound)] {
        let refused = relabel(client).await.err().with_context(|| format!("{who} may change metadata"))?;
        ensure!(refused.to_string().contains("only the agent on the node of this name"), "{who}: {refused}");
    }
    relabel(&own).await?;
    relabel(&admin).await?;
    Api::<NodeMirrorReport>::all(admin).delete("guarded-0", &DeleteParams::default()).await?;
    Ok(())
}

/// The definition of a kind as a cluster has it that owns it: its status knows no conditions.
async fn definition_without_conditions(cluster: &Cluster) -> Result<()> {
    let definitions = crate::yaml::documents(&crate::yaml::fairlead(&["crds"])?)?;
    let mut definition = definitions
        .into_iter()
        .find(|one| one["metadata"]["name"] == "imagedigestmirrorsets.config.openshift.io")
        .context("no definition")?;
    let status = definition
        .pointer_mut("/spec/versions/0/schema/openAPIV3Schema/properties/status")
        .context("no status")?;
    *status = json!({"type": "object"});
    kubectl::apply(cluster, &[definition], &["--force-conflicts"]).await
}

#[tokio::test]
async fn old_objects_are_migrated_and_definitions_of_others_cause_no_loop_of_writes() -> Result<()> {
    const NODES: usize = 100;
    let cluster = installed(&["fairlead-reports"]).await?;
    definition_without_conditions(&cluster).await?;
    let names = cluster.simulated_nodes("many", NODES).await?;
    let config = "nodes: {migrateICSP: ImageSourceDigestPolicy, deleteMigratedICSP: true}\n";
    let mut role = manifests(&["--without-crds", &config_file(&cluster, config)?])?;
    role.retain(|object| object["kind"] == "ClusterRole");
    kubectl::apply(&cluster, &role, &["--force-conflicts"]).await?;
    let rig = Rig { operator: operator(&cluster, config).await?, cluster };
    let cluster = &rig.cluster;

    let (old, bad) = (icsp("old", "old.test"), icsp("bad", "old.test/UPPER"));
    kubectl::apply(cluster, &[old.clone(), bad.clone()], &[]).await?;
    let new = json!({
        "apiVersion": "config.openshift.io/v1", "kind": "ImageSourceDigestPolicy", "metadata": {"name": "old"},
    });
    eventually(SOON, || async {
        let made = kubectl::get(cluster, &new).await?;
        let expected = json!([{"source": "old.test", "mirrors": ["mirror.test/copies"]}]);
        ensure!(made["spec"]["repositoryDigestMirrors"] == expected, "{made}");
        ensure!(made["metadata"]["labels"]["team"] == "a", "{made}");
        ensure!(kubectl::get(cluster, &old).await.is_err(), "the old object is still there");
        Ok(())
    })
    .await?;
    says(&rig, &bad, "Upgradeable", "False NotConvertible").await?;
    let series = "fairlead_mirror_policy_condition{kind=\"ImageContentSourcePolicy\",name=\"bad\",condition=\"Upgradeable\"}";
    rig.operator.wait_for_metric(series, Some(0.0), SOON).await?;

    let pruned = json!({
        "apiVersion": "config.openshift.io/v1", "kind": "ImageDigestMirrorSet", "metadata": {"name": "pruned"},
        "spec": {"imageDigestMirrors": [{"source": "pruned.test", "mirrors": ["mirror.test/copies"]}]},
    });
    kubectl::apply(cluster, &[pruned], &[]).await?;
    has_event(cluster, "pruned", "MirrorPolicyNotApplied").await?;
    let series = "fairlead_mirror_policy_conditions_unstored{kind=\"ImageDigestMirrorSet\"}";
    rig.operator.wait_for_metric(series, Some(1.0), SOON).await?;

    // Reports of many nodes at once.
    let watched = policy("watched", "watched.test");
    kubectl::apply(cluster, std::slice::from_ref(&watched), &[]).await?;
    says(&rig, &watched, "Applied", &format!("False Progressing: 0 of {NODES} nodes")).await?;
    let begun = std::time::Instant::now();
    let reports: Api<NodeMirrorReport> = Api::all(cluster.client().await?);
    for (number, name) in names.iter().enumerate() {
        let report: NodeMirrorReport = serde_json::from_value(json!({
            "apiVersion": "fairlead.dev/v1alpha1", "kind": "NodeMirrorReport", "metadata": {"name": name},
            "spec": {"error": format!("error {number}")},
        }))?;
        reports.create(&PostParams::default(), &report).await?;
    }
    says(&rig, &watched, "Applied", &format!("False Failed: 0 of {NODES} nodes; not on many-0: error 0"))
        .await?;
    eventually(SOON, || async {
        let said = condition(cluster, &watched, "Applied").await?;
        ensure!(said.ends_with(&format!("and {} more", NODES - 3)), "{said}");
        Ok(())
    })
    .await?;
    let events = cluster.audit_events()?;
    let writes = |resource: &str, name: &str| {
        let is_one = |event: &&fairlead_testkit::audit::AuditEvent| {
            event.verb == "patch"
                && event.subresource == "status"
                && event.resource == resource
                && event.name == name
        };
        events.iter().filter(is_one).count()
    };
    let (written, most) = (writes("imagesourcetagpolicies", "watched"), begun.elapsed().as_secs() + 5);
    println!("{NODES} reports in {:?}: {written} writes of the status", begun.elapsed());
    ensure!(written as u64 <= most, "{written} writes in {:?}", begun.elapsed());
    let written = writes("imagedigestmirrorsets", "pruned");
    ensure!(written == 1, "{written} writes of a status that is not stored");
    remove_everywhere(cluster, NODES).await
}

/// The agents of all nodes are made to remove their files.
async fn remove_everywhere(cluster: &Cluster, nodes: usize) -> Result<()> {
    let removal = tokio::process::Command::new(PROGRAM)
        .args(["agent", "remove", "--every-node"])
        .arg(format!("--kubeconfig={}", cluster.kubeconfig().display()))
        .output()
        .await?;
    let said = String::from_utf8_lossy(&removal.stderr).into_owned();
    ensure!(removal.status.success() && said.contains(&format!("removed from {nodes} nodes")), "{said}");
    let agents: Api<DaemonSet> = Api::namespaced(cluster.client().await?, AGENT_NAMESPACE);
    let pod = agents.get(AGENT).await?.spec.context("no spec")?.template.spec.context("no Pod")?;
    let arguments = pod.containers.into_iter().next().and_then(|container| container.args);
    let expected = ["agent", "remove", "--stay", "--host-root=/host", "--ready-file=/run/fairlead/ready"];
    ensure!(arguments.as_deref().is_some_and(|all| all == expected), "{arguments:?}");
    Ok(())
}

fn config_file(cluster: &Cluster, config: &str) -> Result<String> {
    let file = cluster.directory().join("manifests.yaml");
    std::fs::write(&file, config)?;
    Ok(format!("--config={}", file.display()))
}
