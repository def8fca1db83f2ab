//! `fairlead warm status` against a real API server: statuses and ledgers as the operator writes them, and rights of
//! people who may see less.

use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fairlead_testkit::{Cluster, eventually, unique};
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::kubectl;
use crate::mirror_status::{interrupt, read_along, read_until, terminal};
use crate::person::{Outcome, Person};

const SOON: Duration = Duration::from_secs(30);

fn named(kind: &str, name: &str) -> Value {
    let mut object = json!({
        "apiVersion": "drop.corewire.io/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": {},
    });
    if kind == "CachedImage" {
        object["spec"] =
            json!({"image": "registry.example.com/team/app", "tag": "v1", "policyRef": {"name": name}});
    }
    object
}

fn condition(status: &str, reason: &str, message: &str) -> Value {
    json!([{
        "type": "Ready", "status": status, "reason": reason, "message": message, "observedGeneration": 1,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }])
}

async fn write_status(cluster: &Cluster, kind: &str, name: &str, status: &Value) -> Result<()> {
    let patch = json!({ "status": status }).to_string();
    let plural = format!("{}s.drop.corewire.io", kind.to_lowercase());
    let arguments = ["patch", &plural, name, "--subresource=status", "--type=merge", "--patch", &patch];
    cluster.kubectl(arguments).await.map(drop)
}

/// The ledger of an image on three nodes, one of which has failed three times, two minutes ago at last.
async fn ledger(cluster: &Cluster, image: &str, namespace: &str) -> Result<Value> {
    let stored = kubectl::get(cluster, &named("CachedImage", image)).await?;
    let uid = stored["metadata"]["uid"].as_str().unwrap().to_owned();
    let id: String = uid.chars().filter(char::is_ascii_alphanumeric).take(8).collect();
    let digest = format!("sha256:{}", "a".repeat(64));
    let failed = Timestamp::now() - SignedDuration::from_mins(2);
    Ok(json!({
        "apiVersion": "fairlead.dev/v1alpha1", "kind": "WarmLedger",
        "metadata": {"name": format!("warm-{image}-{id}-0"), "namespace": namespace, "ownerReferences": [
            {"apiVersion": "drop.corewire.io/v1alpha1", "kind": "CachedImage", "name": image, "uid": uid},
        ]},
        "spec": {
            "owner": {"name": image, "uid": uid}, "reference": "registry.example.com/team/app:v1", "digest": digest,
            "nodes": [
                {"uid": "1", "name": "node-1", "attempt": 1, "pulledAt": "2026-01-01T00:00:00Z"},
                {"uid": "2", "name": "node-2", "attempt": 1, "pulledAt": "2026-01-01T00:00:00Z"},
                {"uid": "3", "name": "node-3", "attempt": 3, "failures": 3, "failedAt": failed.to_string(),
                 "reason": "ErrImagePull", "message": "image not found"},
            ],
        },
        "status": {"nodeCount": 3, "failedCount": 1},
    }))
}

/// A `CachedImage` with a policy of the same name, of which one node fails.
async fn failing_image(cluster: &Cluster, namespace: &str) -> Result<String> {
    let name = unique("app");
    let mut policy = named("PullPolicy", &name);
    policy["spec"] = json!({"failureBackoff": {"initial": "1h", "max": "12h"}});
    kubectl::create(cluster, &[named("CachedImage", &name), policy], &[]).await?;
    let status = json!({
        "observedGeneration": 1, "phase": "Degraded", "ready": "2/3", "nodesTargeted": 3, "nodesReady": 2,
        "consecutiveFailures": 3, "lastPulledAt": "2026-01-01T00:00:00Z",
        "conditions": condition("False", "ErrImagePull", "2 of 3 nodes hold the image; node node-3: image not found"),
    });
    write_status(cluster, "CachedImage", &name, &status).await?;
    kubectl::create(cluster, &[ledger(cluster, &name, namespace).await?], &[]).await?;
    Ok(name)
}

async fn remove(cluster: &Cluster, name: &str) -> Result<()> {
    kubectl::delete(cluster, &["CachedImage", "PullPolicy", "CachedImageSet"].map(|kind| named(kind, name)))
        .await
}

fn status(kubeconfig: &std::path::Path, more: &[&str]) -> Result<Outcome> {
    let arguments = [&["warm", "status", "--kubeconfig", kubeconfig.to_str().unwrap()], more].concat();
    Person::new()?.run(&arguments, "")
}

fn find<'a>(found: &'a Value, list: &str, name: &str) -> &'a Value {
    let items = found[list].as_array().unwrap();
    items.iter().find(|item| item["name"] == name).unwrap_or_else(|| panic!("no {name} in {found}"))
}

#[tokio::test]
async fn one_image_is_shown_with_its_nodes_and_the_time_of_the_next_try() -> Result<()> {
    let cluster = kubectl::shared_with_definitions().await?;
    let namespace = cluster.namespace("warm-status").await?;
    let name = failing_image(cluster, &namespace).await?;
    let all = cluster.kubeconfig();

    let outcome = status(&all, &[&name, "--operator-namespace", &namespace, "--limit", "2"])?;
    let table = &outcome.is(3).output;
    for part in [
        &format!("CachedImage/{name}: not ready for "),
        ", ErrImagePull: 2 of 3 nodes hold the image; node node-3: image not found\n",
        "  image    registry.example.com/team/app:v1\n",
        "  nodes    2 of 3 hold it, 0 pulling, 1 failing\n",
        "    node-3  -",
        "  in 3h  ErrImagePull  image not found\n",
        "    node-1  ",
        "    and 1 more: --limit shows them",
    ] {
        assert!(table.contains(part), "{part:?} is not in:\n{table}");
    }
    assert_eq!(outcome.errors, "", "nothing is hidden from somebody with all rights");

    // Ledgers elsewhere are not the operator's.
    let elsewhere = cluster.namespace("warm-other").await?;
    let outcome = status(&all, &[&name, "--operator-namespace", &elsewhere, "-o", "json"])?;
    let found: Value = serde_json::from_str(&outcome.is(3).output)?;
    assert_eq!(found["images"][0]["nodes"], json!([]));

    let outcome = status(&all, &["nobody"])?;
    assert!(outcome.is(1).errors.contains("there is no CachedImage nobody"), "{}", outcome.errors);
    remove(cluster, &name).await
}

#[tokio::test]
async fn all_images_and_sets_are_listed_and_nodes_that_fail_are_counted() -> Result<()> {
    let cluster = kubectl::shared_with_definitions().await?;
    let namespace = cluster.namespace("warm-status").await?;
    let name = failing_image(cluster, &namespace).await?;
    kubectl::create(cluster, &[named("CachedImageSet", &name)], &[]).await?;
    let ready = json!({
        "observedGeneration": 1, "phase": "Ready", "imagesManaged": 4, "imagesReady": 4,
        "conditions": condition("True", "Ready", "4 of 4 images are on all their nodes"),
    });
    write_status(cluster, "CachedImageSet", &name, &ready).await?;
    let all = cluster.kubeconfig();
    let outcome = status(&all, &["--operator-namespace", &namespace, "-o", "json"])?;
    let found: Value = serde_json::from_str(&outcome.is(3).output)?;
    let image = find(&found, "images", &name);
    assert_eq!((&image["holding"], &image["targeted"], &image["failing"]), (&json!(2), &json!(3), &json!(1)));
    assert_eq!(find(&found, "sets", &name)["imagesReady"], json!(4));

    let outcome = status(&all, &["--operator-namespace", &namespace])?;
    let rows = outcome.is(3).rows();
    let row = rows.iter().find(|row| row.first() == Some(&&*name)).unwrap();
    assert_eq!(row[1..6], ["registry.example.com/team/app:v1", &name, "2/3", "0", "1"], "{}", outcome.output);
    assert!(outcome.output.contains("  4/4 "), "{}", outcome.output);
    remove(cluster, &name).await
}

#[tokio::test]
async fn on_a_terminal_the_view_follows_the_status() -> Result<()> {
    let cluster = kubectl::shared_with_definitions().await?;
    let namespace = cluster.namespace("warm-status").await?;
    let name = failing_image(cluster, &namespace).await?;
    let (terminal, screen) = terminal(20, 100)?;
    let kubeconfig = cluster.kubeconfig();
    let child = Command::new(env!("CARGO_BIN_EXE_fairlead"))
        .args(["warm", "status", &name, "--operator-namespace", &namespace])
        .env_clear()
        .env("TERM", "xterm")
        .env("KUBECONFIG", kubeconfig)
        .stdin(Stdio::null())
        .stdout(screen)
        .stderr(Stdio::null())
        .spawn()?;
    let pieces = read_along(terminal);
    let first = read_until(&pieces, "2 of 3 hold it")?;
    assert!(first.contains("\x1b[?1049h"), "{first:?}");
    let ready = json!({
        "observedGeneration": 1, "phase": "Ready", "ready": "3/3", "nodesTargeted": 3, "nodesReady": 3,
        "conditions": condition("True", "Ready", "3 of 3 nodes hold the image"),
    });
    write_status(cluster, "CachedImage", &name, &ready).await?;
    read_until(&pieces, "3 of 3 hold it")?;
    let ending = tokio::task::spawn_blocking(move || interrupt(child));
    let rest: String = std::iter::from_fn(|| pieces.recv_timeout(SOON).ok()).collect();
    let (_, last) = rest.split_once("\x1b[?1049l").with_context(|| format!("no way back in {rest:?}"))?;
    assert!(last.contains("3 of 3 hold it") && !last.contains('\x1b'), "{last:?}");
    assert_eq!(ending.await??, Some(0));
    remove(cluster, &name).await
}

/// Who may not see ledgers and sets still learns what the statuses of images say.
#[tokio::test]
async fn who_may_see_less_is_told_what_is_left_out() -> Result<()> {
    let cluster = kubectl::shared_with_definitions().await?;
    let namespace = cluster.namespace("warm-status").await?;
    let name = failing_image(cluster, &namespace).await?;
    let object = |kind: &str| json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": {"name": name}});
    let (mut role, mut binding) = (object("ClusterRole"), object("ClusterRoleBinding"));
    role["rules"] =
        json!([{"apiGroups": ["drop.corewire.io"], "resources": ["cachedimages"], "verbs": ["get", "list"]}]);
    binding["roleRef"] =
        json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name});
    binding["subjects"] = json!([{"kind": "ServiceAccount", "name": "default", "namespace": namespace}]);
    kubectl::create(cluster, &[role.clone(), binding.clone()], &[]).await?;
    let kubeconfig = cluster.kubeconfig_as(&namespace, "default").await?;
    // The authoriser sees new rights a moment after they are stored.
    let outcome = eventually(SOON, || async {
        let outcome = status(&kubeconfig, &["--operator-namespace", &namespace])?;
        ensure!(outcome.status == Some(3), "{}{}", outcome.output, outcome.errors);
        Ok(outcome)
    })
    .await?;
    for told in ["you may not see objects of kind CachedImageSet", "nothing is known of single nodes"] {
        assert!(outcome.errors.contains(told), "{}", outcome.errors);
    }
    let rows = outcome.rows();
    let row = rows.iter().find(|row| row.first() == Some(&&*name)).unwrap();
    assert_eq!(row[3..6], ["2/3", "0", "-"], "{}", outcome.output);

    let outcome = status(&kubeconfig, &[&name, "--operator-namespace", &namespace])?;
    let told = "the times of the next tries are those of the defaults";
    assert!(outcome.is(3).errors.contains(told), "{}", outcome.errors);
    kubectl::delete(cluster, &[role, binding]).await?;
    remove(cluster, &name).await
}
