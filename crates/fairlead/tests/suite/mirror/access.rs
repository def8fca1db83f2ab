//! Copies of private images are offered only to namespaces that have proven access to the original.

use anyhow::{Context, Result, ensure};
use fairlead_api::fairlead::ImageLedger;
use fairlead_testkit::{Registry, RegistryConfig, Signal, eventually};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::rig::{
    Rig, SOON, change, fresh, mirror_of, pod_of, push, requests, secret, shared, wait_for_status,
};
use crate::person::Person;
use crate::route::rig::{image, pull_secrets, route};

/// A Pod that brings the pull secret `pull`.
fn with_secret(mut pod: Value) -> Value {
    pod["spec"]["imagePullSecrets"] = json!([{"name": "pull"}]);
    pod
}

/// The namespaces that the ledgers of an object say have proven access to an image.
async fn proven(rig: &Rig, object: &Value, source: &str) -> Result<Vec<String>> {
    let ledgers: Api<ImageLedger> = Api::all(rig.client().await?);
    let of_object =
        |ledger: &ImageLedger| Some(ledger.spec.owner.name.as_str()) == object["metadata"]["name"].as_str();
    let ledgers = ledgers.list(&ListParams::default()).await?.items.into_iter().filter(of_object);
    let entries = ledgers.flat_map(|ledger| ledger.spec.entries).filter(|entry| entry.source == source);
    Ok(entries.flat_map(|entry| entry.access).map(|proof| proof.namespace).collect())
}

async fn wait_for_proof(rig: &Rig, object: &Value, source: &str, namespace: &str) -> Result<Vec<String>> {
    eventually(SOON, || async {
        let proven = proven(rig, object, source).await?;
        let log = rig.operator.0.process.log_tail();
        ensure!(proven.iter().any(|one| one == namespace), "{namespace} is not among {proven:?}\n{log}");
        Ok(proven)
    })
    .await
}

/// What a kubelet would say of a Pod that runs this digest.
async fn runs(rig: &Rig, pod: &Pod, source: &Registry, digest: &str) -> Result<()> {
    let pods: Api<Pod> = Api::namespaced(rig.client().await?, &pod.namespace().context("a namespace")?);
    let container = json!({
        "name": "app", "image": image(pod), "imageID": format!("{}/team/app@{digest}", source.host()),
        "ready": true, "restartCount": 0, "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}},
    });
    let status = json!({"status": {"phase": "Running", "containerStatuses": [container]}});
    pods.patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Merge(status)).await?;
    Ok(())
}

#[tokio::test]
async fn only_namespaces_that_proved_access_get_a_private_copy_when_the_original_is_down() -> Result<()> {
    let mut rig = fresh().await?;
    let source = rig.cluster.registry(RegistryConfig::new().user("user", "reading")).await?;
    let [target] = rig.registries().await?;
    let digest = push(&source, "team/app", "1").await?;
    let (asked, copy) = (format!("{}/team/app:1", source.host()), format!("{}/team/app:1", target.host()));
    let mirror = mirror_of(&source, &json!([{"registry": target.host()}]), &json!({"access": "Proven"}));
    rig.apply(&mirror).await?;
    let (knows, ran, stranger) = (rig.namespace().await?, rig.namespace().await?, rig.namespace().await?);
    secret(&rig, &knows, "pull", &source, "reading").await?;
    let (with, without) = (with_secret(pod_of(&source, "team/app:1")), pod_of(&source, "team/app:1"));
    rig.create(&knows, &with).await?;
    wait_for_status(&rig, &mirror, |status| status["mirroredCount"] == 1).await?;
    wait_for_proof(&rig, &mirror, &asked, &knows).await?;

    // One has a Pod that runs it, as with credentials of its node. Another runs something else under that name, and a
    // record on a Pod of its says that it was given the copy.
    runs(&rig, &rig.create(&ran, &without).await?, &source, &digest).await?;
    let other = push(&source, "team/other", "1").await?;
    let mut claiming = without.clone();
    let record = json!({"v": 1, "images": {"app": {"asked": asked, "used": asked, "by": "original"}}});
    claiming["metadata"]["annotations"] = json!({"fairlead.dev/routes": record.to_string()});
    runs(&rig, &rig.create(&stranger, &claiming).await?, &source, &other).await?;
    let namespaces = wait_for_proof(&rig, &mirror, &asked, &ran).await?;
    ensure!(!namespaces.contains(&stranger), "{namespaces:?}");

    source.kill().await?;
    rig.create_until(&knows, &with, |pod| image(pod) == copy).await?;
    let given = rig.create(&ran, &without).await?;
    ensure!(image(&given) == copy, "{}: {}", image(&given), route(&given, "app"));
    let refused = rig.create(&stranger, &without).await?;
    let why = route(&refused, "app")["why"].as_str().unwrap_or_default().to_owned();
    ensure!(
        image(&refused) == asked && why.contains("has not proven access to"),
        "{}: {why}",
        image(&refused)
    );
    // Naming the copy does not make it his: the record that asks for the original is believed, and leads back to it.
    let mut named = super::rig::pod(&copy);
    let record =
        json!({"v": 1, "images": {"app": {"asked": asked, "used": copy, "by": "ClusterImageSetMirror//m"}}});
    named["metadata"]["annotations"] = json!({"fairlead.dev/routes": record.to_string()});
    ensure!(image(&rig.create(&stranger, &named).await?) == asked, "a record made the copy his");

    let explained =
        Person::new()?.explain_from(&rig.cluster.kubeconfig(), &[&asked, "-n", &stranger, "--no-probe"])?;
    let said = format!("namespace {stranger} has not proven access to {asked}");
    ensure!(explained.output.contains(&said), "{}", explained.output);

    // What was proven outlives the operator.
    rig.operator.0.process.signal(Signal::Kill).await?;
    rig.operator = rig.start_operator().await?;
    rig.create_until(&knows, &with, |pod| image(pod) == copy).await?;
    ensure!(
        image(&rig.create(&stranger, &without).await?) == asked,
        "proof was not asked for after a restart"
    );
    let namespaces = proven(&rig, &mirror, &asked).await?;
    ensure!(!namespaces.contains(&stranger), "{namespaces:?}");

    // A shared mirror serves all.
    change(&rig, &mirror, &json!({"spec": {"access": "Shared"}})).await?;
    rig.create_until(&stranger, &without, |pod| image(pod) == copy).await?;
    Ok(())
}

#[tokio::test]
async fn the_first_pod_of_a_namespace_proves_its_access_with_its_own_secrets_alone() -> Result<()> {
    let rig = shared().await?;
    let vault = rig.cluster.namespace("vault").await?;
    let source = rig.cluster.registry(RegistryConfig::new().user("user", "reading")).await?;
    let target = rig.cluster.registry(RegistryConfig::new().user("user", "writing")).await?;
    push(&source, "team/app", "1").await?;
    secret(rig, &vault, "mirror", &target, "writing").await?;
    let named = json!({"name": "mirror", "namespace": vault});
    let mirror = mirror_of(
        &source,
        &json!([{"registry": target.host(), "credentialSecret": named}]),
        &json!({"access": "Proven", "priority": -1}),
    );
    rig.apply(&mirror).await?;
    let (asked, copy) = (format!("{}/team/app:1", source.host()), format!("{}/team/app:1", target.host()));
    let (first, second, stranger) = (rig.namespace().await?, rig.namespace().await?, rig.namespace().await?);
    for namespace in [&first, &second] {
        secret(rig, namespace, "pull", &source, "reading").await?;
    }
    secret(rig, &stranger, "pull", &source, "guessed").await?;
    let with = with_secret(pod_of(&source, "team/app:1"));
    rig.create_until(&first, &with, |pod| image(pod) == copy).await?;
    let given = rig.create(&second, &with).await?;
    ensure!(
        image(&given) == copy && pull_secrets(&given).len() == 2,
        "{}: {}",
        image(&given),
        route(&given, "app")
    );
    wait_for_proof(rig, &mirror, &asked, &second).await?;

    // With a wrong secret or none, neither the copy nor the mirror's Secret is given.
    for pod in [&with, &pod_of(&source, "team/app:1")] {
        let refused = rig.create(&stranger, pod).await?;
        let added = pull_secrets(&refused).into_iter().any(|name| name != "pull");
        ensure!(image(&refused) == asked && !added, "{}: {:?}", image(&refused), pull_secrets(&refused));
    }
    let namespaces = proven(rig, &mirror, &asked).await?;
    ensure!(!namespaces.contains(&stranger), "{namespaces:?}");
    ensure!(requests(&source)?.iter().any(|one| one.status == 200), "the original was never opened");
    Ok(())
}

/// A registry of a tenant's own has his image under the name of a private one, and says that it has the private digest.
#[tokio::test]
async fn another_registry_proves_nothing_about_an_image_of_the_same_name() -> Result<()> {
    let rig = shared().await?;
    let source = rig.cluster.registry(RegistryConfig::new().user("user", "reading")).await?;
    let [own, target] = rig.registries().await?;
    let digest = push(&source, "team/app", "1").await?;
    push(&own, "team/app", "1").await?;
    let (owner, tenant) = (rig.namespace().await?, rig.namespace().await?);
    secret(rig, &owner, "pull", &source, "reading").await?;
    let mirror = mirror_of(
        &source,
        &json!([{"registry": target.host()}]),
        &json!({
            "access": "Proven", "priority": -1,
            "imageFilter": {"include": [format!("({}|{})/.*", source.host(), own.host())]},
        }),
    );
    rig.apply(&mirror).await?;
    let pinned = with_secret(pod_of(&source, &format!("team/app@{digest}")));
    let copy = format!("{}/team/app@{digest}", target.host());
    rig.create_until(&owner, &pinned, |pod| image(pod) == copy).await?;

    // He knows the digest alone. The mirror has it, so a copy of his image is found there; it is not offered to him.
    let asked = format!("{}/team/app@{digest}", own.host());
    for _ in 0..3 {
        let refused = rig.create(&tenant, &pod_of(&own, &format!("team/app@{digest}"))).await?;
        ensure!(image(&refused) == asked, "{}", image(&refused));
        wait_for_status(rig, &mirror, |status| status["imageCount"] == 2 && status["mirroredCount"] == 2)
            .await?;
    }
    let namespaces = proven(rig, &mirror, &asked).await?;
    ensure!(namespaces.is_empty(), "{namespaces:?}");
    Ok(())
}
