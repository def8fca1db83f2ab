//! Controllers that do not want the images of their Pods rewritten, and controllers that merely replace Pods.

use anyhow::{Context, Result, ensure};
use fairlead_testkit::{Operator, Registry, RegistryConfig, eventually, unique};
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::rig::{self, SOON, image, mirror, pod, pull_secrets, route, shared};
use crate::kubectl;
use crate::person::Person;

/// An image that is rewritten, what it is rewritten to, and the registries that hold both.
async fn rewritten_image(holds: &str) -> Result<(String, String, [Registry; 2])> {
    let rig = shared().await?;
    let (source, target) = rig.copied(RegistryConfig::new(), holds).await?;
    rig.apply(&mirror(&source, &target)).await?;
    let copy = format!("{}/copies/team/app:1", target.host());
    let asked = format!("{}/team/app:1", source.host());
    Ok((asked, copy, [source, target]))
}

/// An object of a kind that operators bring along, as its Pods name their owner.
pub async fn owner(namespace: &str, group: &str, kind: &str) -> Result<Value> {
    let rig = shared().await?;
    let (singular, plural) = (kind.to_lowercase(), format!("{}s", kind.to_lowercase()));
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{group}")},
        "spec": {
            "group": group, "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural, "singular": singular, "listKind": format!("{kind}List")},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
            }],
        },
    });
    kubectl::apply(&rig.cluster, &[definition], &[]).await?;
    kubectl::definitions_are_served(&rig.cluster).await?;
    let object = json!({
        "apiVersion": format!("{group}/v1"), "kind": kind,
        "metadata": {"name": unique("owner"), "namespace": namespace},
    });
    // A definition that was made just now may not be served yet.
    eventually(SOON, || kubectl::apply(&rig.cluster, std::slice::from_ref(&object), &[])).await?;
    let stored = kubectl::get(&rig.cluster, &object).await?;
    Ok(json!({
        "apiVersion": object["apiVersion"], "kind": kind, "controller": true,
        "name": object["metadata"]["name"], "uid": stored["metadata"]["uid"],
    }))
}

fn owned(image: &str, owner: &Value) -> Value {
    let mut pod = pod(image);
    pod["metadata"]["ownerReferences"] = json!([owner]);
    pod
}

/// Deletes a Pod as an operator does, and waits until it is gone.
async fn delete(namespace: &str, name: &str) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(shared().await?.client().await?, namespace);
    pods.delete(name, &DeleteParams::default().grace_period(0)).await?;
    eventually(SOON, || async {
        ensure!(pods.get_opt(name).await?.is_none(), "{name} is still there");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_controller_that_recreates_rewritten_pods_is_left_alone_for_an_hour() -> Result<()> {
    let rig = shared().await?;
    let namespace = rig.namespace().await?;
    let (asked, copy, _registries) = rewritten_image("recreated").await?;
    let comparing = owner(&namespace, "db.example.com", "Database").await?;
    let content = owner(&namespace, "db.example.com", "Database").await?;

    // The controller deletes every Pod that does not have the image of its own specification, and makes another.
    let mut replaced = 0;
    let kept = loop {
        let pod = rig.create(&namespace, &owned(&asked, &comparing)).await?;
        if image(&pod) == asked {
            break pod;
        }
        ensure!(image(&pod) == copy, "{}", image(&pod));
        ensure!(replaced < 30, "it is replaced for ever");
        delete(&namespace, &pod.name_any()).await?;
        replaced += 1;
    };
    ensure!(replaced > 5, "rewriting stopped after {replaced} replacements");

    let recorded = route(&kept, "app");
    ensure!(recorded["by"] == "original" && recorded["pausedUntil"].is_string(), "{recorded}");
    let why = recorded["why"].as_str().context("a reason")?;
    ensure!(
        why.starts_with("rewriting is paused until 2") && why.contains("Database.db.example.com/"),
        "{why}"
    );

    // It says so on the controller and in the explanation of one of its Pods.
    let events: Api<Event> = Api::namespaced(rig.client().await?, &namespace);
    let uid = comparing["uid"].as_str().context("a UID")?;
    eventually(SOON, || async {
        let about = ListParams::default().fields(&format!("involvedObject.uid={uid}"));
        let about = events.list(&about).await?.items;
        let fits = |event: &Event| {
            event.reason.as_deref() == Some("RewritingPaused")
                && event.involved_object.kind.as_deref() == Some("Database")
                && (event.message.as_ref())
                    .is_some_and(|text| text.contains("add db.example.com to routing.skipOwners"))
        };
        ensure!(about.len() == 1 && about.iter().all(fits), "{about:?}");
        Ok(())
    })
    .await?;
    let (person, kubeconfig) = (Person::new()?, rig.cluster.kubeconfig());
    let name = format!("pod/{}", kept.name_any());
    let explained = person.explain_from(&kubeconfig, &[&name, "-n", &namespace])?;
    ensure!(explained.is(0).output.contains("why     rewriting is paused until 2"), "{}", explained.output);

    // A Pod of the controller that knows nothing of it is explained by what another one says.
    let unaware = rig.create(&namespace, &owned(&asked, &comparing)).await?;
    let pods: Api<Pod> = Api::namespaced(rig.client().await?, &namespace);
    let without = json!({"metadata": {"annotations": {"fairlead.dev/routes": null}}});
    pods.patch(&unaware.name_any(), &PatchParams::default(), &Patch::Merge(without)).await?;
    let name = format!("pod/{}", unaware.name_any());
    let explained = person.explain_from(&kubeconfig, &[&name, "-n", &namespace])?;
    ensure!(explained.is(0).output.contains("why     rewriting is paused until 2"), "{}", explained.output);

    // Other controllers are not concerned, nor are Pods of another namespace that name this one.
    let other = rig.create(&namespace, &owned(&asked, &content)).await?;
    ensure!(image(&other) == copy, "{}", image(&other));
    let elsewhere = rig.namespace().await?;
    let pretended = rig.create(&elsewhere, &owned(&asked, &comparing)).await?;
    ensure!(image(&pretended) == copy, "{}", image(&pretended));

    // Another replica, or this one after a restart, learns it from the Pods.
    let second = Operator::of(env!("CARGO_BIN_EXE_fairlead"))
        .namespace(&rig.operator.0.namespace)
        .identity("another")
        .start_installed(&rig.cluster)
        .await?;
    let known = "rewriting is paused for the Pods of a controller, as a Pod's record says";
    let said = second.wait_to_say(known, SOON).await?;
    ensure!(said["namespace"] == namespace.as_str(), "{said}");
    Ok(())
}

#[tokio::test]
async fn pods_of_known_operators_are_not_rewritten() -> Result<()> {
    let rig = shared().await?;
    let namespace = rig.namespace().await?;
    let (asked, copy, _registries) = rewritten_image("skipped").await?;
    let cluster = owner(&namespace, "postgresql.cnpg.io", "Cluster").await?;

    let skipped = rig.create(&namespace, &owned(&asked, &cluster)).await?;
    ensure!(image(&skipped) == asked && pull_secrets(&skipped).is_empty(), "{}", image(&skipped));
    let recorded = route(&skipped, "app");
    let why = recorded["why"].as_str().context("a reason")?;
    ensure!(recorded["by"] == "original" && why.contains("routing.skipOwners"), "{recorded}");
    let (person, kubeconfig) = (Person::new()?, rig.cluster.kubeconfig());
    let name = format!("pod/{}", skipped.name_any());
    let explained = person.explain_from(&kubeconfig, &[&name, "-n", &namespace])?;
    ensure!(
        explained.is(0).output.contains("routing.skipOwners has its API group postgresql.cnpg.io"),
        "{}",
        explained.output
    );

    // An owner that is not the controller does not count.
    let mut mere_owner = cluster.clone();
    mere_owner["controller"] = json!(false);
    let rewritten = rig.create(&namespace, &owned(&asked, &mere_owner)).await?;
    ensure!(image(&rewritten) == copy, "{}", image(&rewritten));
    Ok(())
}

#[tokio::test]
async fn controllers_that_replace_pods_for_other_reasons_are_not_taken_for_a_loop() -> Result<()> {
    let rig = shared().await?;
    let namespace = rig.namespace().await?;
    let (asked, copy, _registries) = rewritten_image("rolled").await?;
    let template = json!({
        "metadata": {"labels": {"app": "rolled"}},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "app", "image": asked, "imagePullPolicy": "IfNotPresent"}],
        },
    });
    let selector = json!({"matchLabels": {"app": "rolled"}});
    let pods: Api<Pod> = Api::namespaced(rig.client().await?, &namespace);
    let labelled = ListParams::default().labels("app=rolled");
    // The Pod that is there now and was not among these.
    let next = async |known: &[String]| {
        eventually(SOON, || async {
            let all = pods.list(&labelled).await?.items;
            let fresh = |pod: &&Pod| {
                pod.metadata.deletion_timestamp.is_none() && !known.contains(&pod.uid().unwrap_or_default())
            };
            all.iter().find(fresh).cloned().context("there is no new Pod yet")
        })
        .await
    };

    // No node runs these Pods, so none of them ever starts, and yet rollouts are no loop.
    let deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "rolled", "namespace": namespace},
        "spec": {"replicas": 1, "selector": selector, "template": template, "strategy": {"type": "Recreate"}},
    });
    kubectl::apply(&rig.cluster, std::slice::from_ref(&deployment), &[]).await?;
    let mut known = Vec::new();
    for rollout in 0..8 {
        let pod = next(&known).await?;
        ensure!(image(&pod) == copy, "rollout {rollout}: {}", image(&pod));
        known.push(pod.uid().unwrap_or_default());
        let restarted = json!({"metadata": {"annotations": {"restarted": rollout.to_string()}}});
        let patch = json!({"spec": {"template": restarted}}).to_string();
        rig.cluster.kubectl(["patch", "deployment/rolled", "-n", &namespace, "--patch", &patch]).await?;
    }
    kubectl::delete(&rig.cluster, &[deployment]).await?;

    // Pods of a StatefulSet that ran and are deleted one after the other.
    let set = json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet",
        "metadata": {"name": "rolled", "namespace": namespace},
        "spec": {"serviceName": "rolled", "replicas": 1, "selector": selector, "template": template},
    });
    kubectl::apply(&rig.cluster, &[set], &[]).await?;
    for restart in 0..8 {
        let pod = eventually(SOON, || async {
            let pod = pods.get_opt("rolled-0").await?.context("there is no Pod yet")?;
            ensure!(!known.contains(&pod.uid().unwrap_or_default()), "it is still the old one");
            Ok(pod)
        })
        .await?;
        ensure!(rig::image(&pod) == copy, "restart {restart}: {}", image(&pod));
        known.push(pod.uid().unwrap_or_default());
        let runs = json!({"status": {"phase": "Running", "containerStatuses": [{
            "name": "app", "image": copy, "imageID": "", "ready": true, "restartCount": 0,
            "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
        }]}});
        pods.patch_status("rolled-0", &PatchParams::default(), &Patch::Merge(runs)).await?;
        pods.delete("rolled-0", &DeleteParams::default().grace_period(0)).await?;
    }
    Ok(())
}
