//! What a tenant cannot have mirrored, removed or claimed.

use anyhow::{Context, Result, ensure};
use fairlead_api::fairlead::ImageLedger;
use fairlead_testkit::{Registry, RegistryConfig, Signal, eventually};
use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicyBinding;
use kube::Api;
use kube::api::{DeleteParams, ListParams, PostParams};
use serde_json::{Value, json};

use super::rig::{
    CONFIG, Rig, SOON, delete_pod, digest_at, fresh, manifests_written, mirror_of, pod, pod_of, push,
    requests, secret, wait_for_copy, wait_for_removal, wait_for_status,
};
use crate::route::rig::image;

/// A mirror of everything in one registry for one namespace.
fn mirror_in(namespace: &str, source: &Registry, mirrors: &Value, more: &Value) -> Value {
    let mut mirror = mirror_of(source, mirrors, more);
    mirror["kind"] = "ImageSetMirror".into();
    mirror["metadata"]["namespace"] = namespace.into();
    mirror
}

/// The operator has a login for a private registry, and a cluster-wide mirror has copied from it into another. A tenant
/// who has neither login names the images in Pods of his, and mirrors them to a registry of his own.
#[tokio::test]
async fn a_namespaced_mirror_reads_nothing_with_credentials_of_the_operator() -> Result<()> {
    let fallback = "fallbackCredentialSecret: {namespace: fairlead-system, name: fallback}, ";
    let config = CONFIG.replace("default: {interval", &format!("default: {{{fallback}interval"));
    let rig = Rig::install_with(fairlead_testkit::Cluster::builder().start().await?, &config).await?;
    let source = rig.cluster.registry(RegistryConfig::new().user("user", "reading")).await?;
    let target = rig.cluster.registry(RegistryConfig::new().user("user", "writing")).await?;
    let [loot] = rig.registries().await?;
    secret(&rig, "fairlead-system", "fallback", &source, "reading").await?;
    secret(&rig, "fairlead-system", "push", &target, "writing").await?;
    let digest = push(&source, "team/app", "1").await?;
    let pinned = push(&source, "team/pinned", "1").await?;

    let secrets = json!({"name": "push", "namespace": "fairlead-system"});
    let mirrors = json!([{"registry": target.host(), "credentialSecret": secrets}]);
    let global = mirror_of(&source, &mirrors, &json!({}));
    rig.apply(&global).await?;
    let tenant = rig.namespace().await?;
    let images = ["team/app:1".to_owned(), format!("team/pinned@{pinned}")];
    for image in &images {
        rig.create(&tenant, &pod_of(&source, image)).await?;
    }
    // Cluster-scoped objects may: the fallback is for them.
    wait_for_status(&rig, &global, |status| status["mirroredCount"] == 2).await?;

    let own = mirror_in(&tenant, &source, &json!([{"registry": loot.host()}]), &json!({}));
    rig.apply(&own).await?;
    wait_for_status(&rig, &own, |status| status["failedCount"] == 2).await?;
    // With the source gone, the copies of the cluster-wide mirror are all that is left.
    source.kill().await?;
    let down = |status: &Value| status["waitingFor"][0]["registry"] == json!(source.host());
    wait_for_status(&rig, &own, |status| down(status) || status.to_string().contains("no other place"))
        .await?;
    source.start_again().await?;
    ensure!(manifests_written(&loot)?.is_empty(), "{:?}", manifests_written(&loot)?);

    // With a pull secret of his own he may.
    secret(&rig, &tenant, "pull", &source, "reading").await?;
    for image in &images {
        let mut user = pod_of(&source, image);
        user["spec"]["imagePullSecrets"] = json!([{"name": "pull"}]);
        rig.create(&tenant, &user).await?;
    }
    wait_for_copy(&loot, "team/app", "1", &digest).await?;
    wait_for_copy(&loot, "team/pinned", &pinned, &pinned).await
}

/// Lets every user write ledgers, as in a cluster without the policy that refuses it.
async fn allow_ledgers(rig: &Rig) -> Result<()> {
    let bindings: Api<ValidatingAdmissionPolicyBinding> = Api::all(rig.client().await?);
    bindings.delete_collection(&DeleteParams::default(), &ListParams::default()).await?;
    Ok(())
}

/// A copy as a forged ledger has it: source, destination, digest.
type Row = (String, String, String);

/// Writes a ledger in the name of a policy object, with its owner reference, that says of each destination that
/// Fairlead wrote it, of an unused image.
async fn forge(rig: &Rig, namespace: &str, object: &Value, name: &str, rows: &[Row]) -> Result<()> {
    let kind = object["kind"].as_str().context("a kind")?;
    let owner = object["metadata"]["name"].as_str().context("a name")?;
    let uid = rig.policies(object).await?.get(owner).await?.metadata.uid.context("a UID")?;
    let entries: Vec<Value> = rows
        .iter()
        .map(|(source, destination, digest)| {
            json!({"source": source, "unusedSince": "2020-01-01T00:00:00Z", "mirrors": [{
                "destination": destination, "state": "Mirrored", "since": "2020-01-01T00:00:00Z",
                "digest": digest, "written": [digest],
            }]})
        })
        .collect();
    let short: String = uid.chars().filter(char::is_ascii_alphanumeric).take(8).collect();
    let ledger: ImageLedger = serde_json::from_value(json!({
        "apiVersion": "fairlead.dev/v1alpha1", "kind": "ImageLedger",
        "metadata": {
            "name": format!("{name}-{owner}-{short}-7"), "namespace": namespace,
            "labels": {"fairlead.dev/owner-kind": kind, "fairlead.dev/owner-uid": uid},
            "ownerReferences": [{
                "apiVersion": "kuik.enix.io/v1alpha1", "kind": kind, "name": owner, "uid": uid,
            }],
        },
        "spec": {"owner": {"kind": kind, "name": owner, "uid": uid}, "entries": entries},
    }))?;
    // A policy of the API server lets the operator alone write ledgers; this is about what happens without it.
    let operator = rig.cluster.client_as("fairlead-system", "fairlead").await?;
    let ledgers: Api<ImageLedger> = Api::namespaced(operator, namespace);
    eventually(SOON, || async {
        ledgers.create(&PostParams::default(), &ledger).await?;
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_forged_ledger_removes_nothing_and_claims_nothing() -> Result<()> {
    let mut rig = fresh().await?;
    allow_ledgers(&rig).await?;
    let (shop, tenant) = (rig.namespace().await?, rig.namespace().await?);
    let [source] = rig.registries().await?;
    let removable = || rig.cluster.registry(RegistryConfig::new().delete());
    let (target, victim, own) = (removable().await?, removable().await?, removable().await?);
    for name in ["kept", "used", "gone"] {
        push(&source, &format!("team/{name}"), "1").await?;
    }
    // Copies that another program made: one in a mirror, two in a registry that no mirror names.
    let placed = push(&target, "team/placed", "1").await?;
    let precious = push(&victim, "team/precious", "1").await?;
    let treasure = push(&victim, "team/treasure", "1").await?;

    let cleanup = json!({"cleanup": {"enabled": true}});
    let global = mirror_of(&source, &json!([{"registry": target.host()}]), &cleanup);
    rig.apply(&global).await?;
    let theirs = mirror_in(&tenant, &source, &json!([{"registry": own.host()}]), &cleanup);
    rig.apply(&theirs).await?;
    rig.create(&shop, &pod_of(&source, "team/used:1")).await?;
    let gone = rig.create(&shop, &pod_of(&source, "team/gone:1")).await?;
    wait_for_status(&rig, &global, |status| status["mirroredCount"] == 2).await?;

    let row = |from: &str, at: &Registry, name: &str, digest: &str| {
        (format!("{from}/team/{name}:1"), format!("{}/team/{name}:1", at.host()), digest.to_owned())
    };
    let host = source.host();
    let used = digest_at(&target, "team/used", "1").await?.context("it was copied")?;
    let global_rows = [
        row("evil.example", &target, "placed", &placed),
        row(&host, &victim, "precious", &precious),
        row(&host, &target, "used", &used),
    ];
    forge(&rig, &tenant, &global, "cism", &global_rows).await?;
    // In its right place, but about registries that are none of the object's mirrors.
    let own_rows = [row(&host, &victim, "treasure", &treasure), row(&host, &target, "placed", &placed)];
    forge(&rig, &tenant, &theirs, "ism", &own_rows).await?;
    rig.operator.0.wait_to_say("ImageLedger counts for nothing; delete it", SOON).await?;

    // No ledger claims what lies in the mirror, so it serves.
    let given = rig.create(&shop, &pod_of(&source, "team/placed:1")).await?;
    ensure!(image(&given) == format!("{}/team/placed:1", target.host()), "{}", image(&given));

    // Another operator reads all ledgers, and cleans up what is to be.
    rig.operator.0.process.signal(Signal::Kill).await?;
    rig.operator = rig.start_operator().await?;
    delete_pod(&rig, &gone).await?;
    wait_for_removal(&target, "team/gone", "1").await?;
    rig.create(&shop, &pod_of(&source, "team/kept:1")).await?;
    wait_for_status(&rig, &global, |status| status["mirroredCount"] == 2 && status["imageCount"] == 3)
        .await?;
    for (registry, name) in [(&victim, "precious"), (&victim, "treasure"), (&target, "used")] {
        ensure!(digest_at(registry, &format!("team/{name}"), "1").await?.is_some(), "{name} was removed");
    }
    ensure!(digest_at(&target, "team/placed", "1").await? == Some(placed), "it was removed or overwritten");
    let removals = |registry: &Registry| -> Result<usize> {
        Ok(requests(registry)?.iter().filter(|one| one.method == "DELETE").count())
    };
    ensure!(removals(&victim)? == 0 && removals(&own)? == 0, "something was tried");
    Ok(())
}

/// Pods of many namespaces use an image: most have no pull secret, or one for another registry, or a wrong one; the
/// last has the right one.
#[tokio::test]
async fn a_login_is_found_however_many_namespaces_have_none() -> Result<()> {
    let rig = super::rig::shared().await?;
    let source = rig.cluster.registry(RegistryConfig::new().user("user", "reading")).await?;
    let [target, elsewhere] = rig.registries().await?;
    let digest = push(&source, "team/app", "1").await?;
    let mut namespaces = Vec::new();
    for _ in 0..23 {
        namespaces.push(rig.namespace().await?);
    }
    namespaces.sort();
    for (number, namespace) in namespaces.iter().enumerate() {
        let mut user = pod(&format!("{}/team/app:1", source.host()));
        match number {
            0..10 => {}
            10..20 => secret(rig, namespace, "pull", &elsewhere, "reading").await?,
            20..22 => secret(rig, namespace, "pull", &source, "wrong").await?,
            _ => secret(rig, namespace, "pull", &source, "reading").await?,
        }
        if number >= 10 {
            user["spec"]["imagePullSecrets"] = json!([{"name": "pull"}]);
        }
        rig.create(namespace, &user).await?;
    }
    let mirror = mirror_of(&source, &json!([{"registry": target.host()}]), &json!({}));
    rig.apply(&mirror).await?;
    wait_for_copy(&target, "team/app", "1", &digest).await
}
