//! `fairlead pin` on the command line.

use anyhow::{Result, ensure};
use fairlead_testkit::images::multi_platform;
use fairlead_testkit::{Registry, RegistryConfig, unique};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::{asked, owned, owner, pinned, pods_of, retag};
use crate::person::Person;
use crate::route::rig::shared;

fn manifests(image: &str, selector: &str) -> String {
    format!(
        "# kept: {image}\napiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: web # as it is\nspec:\n  \
         selector:\n    matchLabels: {{app: {selector}}}\n  template:\n    metadata: {{labels: {{app: {selector}}}}}\n    \
         spec:\n      containers:\n        - name: app\n          image: '{image}'   # the tag\n      volumes:\n        \
         - {{name: data, image: {{reference: {image}}}}}\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: c}}\n\
         data: {{image: '{image}'}}\n"
    )
}

#[tokio::test]
async fn manifests_are_pinned_to_what_the_registry_serves() -> Result<()> {
    let registry = Registry::start(RegistryConfig::new()).await?;
    let digest = retag(&registry, "served").await?;
    let (person, image) = (Person::new()?, asked(&registry));
    let text = manifests(&image, "web");
    let file = person.write("web.yaml", &text)?;
    let file = file.display().to_string();
    let outcome = person.run(&["pin", "-f", &file, "--from", "registry"], "")?;
    let expected = text
        .replacen(&format!("'{image}'   # the tag"), &format!("'{image}@{digest}'   # the tag"), 1)
        .replacen(&format!("reference: {image}"), &format!("reference: {image}@{digest}"), 1);
    assert_eq!(outcome.is(0).output, expected);
    let again = person.run(&["pin", "-f", "-", "--from", "registry"], &expected)?;
    assert_eq!(again.is(0).output, expected, "what has a digest stays");

    let report = person.run(&["pin", "-f", &file, "--from", "registry", "-o", "json"], "")?;
    let report: Value = serde_json::from_str(&report.is(0).output)?;
    ensure!(report["version"] == 1 && report["from"] == "registry", "{report}");
    let first = &report["images"][0];
    ensure!(first["pinned"] == format!("{image}@{digest}") && first["state"] == "pinned", "{first}");
    ensure!(first["field"] == "spec.template.spec.containers[0].image" && first["document"] == 1, "{first}");

    // What cannot be pinned is named by file, document and field, and the rest is pinned all the same.
    let missing = format!("{}/team/none:1", registry.host());
    let partly =
        person.run(&["pin", "-f", "-", "--from", "registry"], &text.replacen(&image, &missing, 2))?;
    let told = &partly.is(3).errors;
    ensure!(
        told.contains(
            "standard input:14 (document 1, Deployment/web) spec.template.spec.containers[0].image: "
        ) && told.contains(&format!("{missing} is not pinned: it is not-found")),
        "{told}"
    );
    ensure!(partly.output.contains(&format!("reference: {image}@{digest}")), "{}", partly.output);
    let broken = person.run(&["pin", "-f", "-", "--from", "registry"], "a: [1\nb: 2\n")?;
    ensure!(
        broken.is(2).errors.contains("standard input: line ") && broken.output.is_empty(),
        "{}",
        broken.errors
    );
    Ok(())
}

#[tokio::test]
async fn manifests_are_pinned_to_what_runs() -> Result<()> {
    let rig = shared().await?;
    let (cluster, namespace) = (&rig.cluster, rig.namespace().await?);
    let registry = rig.registry(RegistryConfig::new(), "runs").await?;
    let digest = retag(&registry, "runs").await?;
    let (image, app) = (asked(&registry), unique("app"));
    let mut pod = owned(pinned(&image), &owner(cluster, &namespace).await?, &json!({"app": app}));
    pod["spec"]["volumes"] = json!([{"name": "data", "image": {"reference": image}}]);
    rig.create(&namespace, &pod).await?;
    let moved = retag(&registry, "runs, moved").await?;
    let (person, text) = (Person::new()?, manifests(&image, &app));
    let kubeconfig = cluster.kubeconfig().display().to_string();
    let arguments = ["pin", "-f", "-", "-n", &namespace, "--kubeconfig", &kubeconfig];
    let held = format!("{image}@{digest}");
    let outcome = person.run(&arguments, &text)?;
    ensure!(outcome.is(0).output.contains(&format!("'{held}'   # the tag")), "{}", outcome.output);
    ensure!(outcome.output.contains(&format!("reference: {held}")), "{}", outcome.output);

    // A Pod without a pin says what it runs by its status; two that differ are an error.
    let mut plain = pod.clone();
    plain["metadata"]["annotations"] = json!({"fairlead.dev/pin": "false"});
    let plain = rig.create(&namespace, &plain).await?;
    let pods: Api<Pod> = Api::namespaced(rig.client().await?, &namespace);
    let other = format!("{}/team/app@{moved}", registry.host());
    let report = async |phase: &str| {
        let status = json!({"status": {"phase": phase, "containerStatuses": [{
            "name": "app", "image": image, "imageID": other, "ready": true, "restartCount": 0,
            "state": {"running": {}},
        }]}});
        pods.patch_status(&plain.name_any(), &PatchParams::default(), &Patch::Merge(status)).await
    };
    report("Failed").await?;
    pods_of(cluster, &namespace, &format!("app={app}"), 2).await?;
    let outcome = person.run(&arguments, &text)?;
    ensure!(outcome.is(0).output.contains(&held), "a Pod that failed counts: {}", outcome.output);
    // A ReplicationController has labels where a Deployment has a selector.
    let controller = text.replacen("kind: Deployment", "kind: ReplicationController", 1).replacen(
        &format!("matchLabels: {{app: {app}}}"),
        &format!("app: {app}"),
        1,
    );
    let outcome = person.run(&arguments, &controller)?;
    ensure!(outcome.is(0).output.contains(&held), "{}", outcome.output);
    report("Running").await?;
    let outcome = person.run(&arguments, &text)?;
    let told = &outcome.is(3).errors;
    ensure!(
        told.contains("its Pods run different digests: sha256:") && told.contains(&plain.name_any()),
        "{told}"
    );
    Ok(())
}

/// CRI-O reports the manifest of its platform. Of a Pod without a record only the registry knows the index it is from.
#[tokio::test]
async fn a_bare_pod_is_pinned_to_the_index_whose_image_it_runs() -> Result<()> {
    let rig = shared().await?;
    let namespace = rig.namespace().await?;
    let registry = rig.cluster.registry(RegistryConfig::new()).await?;
    let index = multi_platform(&["amd64", "arm64"])?;
    let digest = registry.endpoint().push("team/app", "1", &index).await?;
    let (image, name) = (asked(&registry), unique("bare"));
    let mut pod = crate::route::rig::pod(&image);
    pod["metadata"] = json!({"name": name});
    rig.create(&namespace, &pod).await?;
    let pods: Api<Pod> = Api::namespaced(rig.client().await?, &namespace);
    let runs = format!("{}/team/app@{}", registry.host(), index.manifests()[0].digest());
    let status = json!({"status": {"phase": "Running", "containerStatuses": [{
        "name": "app", "image": image, "imageID": runs, "ready": true, "restartCount": 0, "state": {"running": {}},
    }]}});
    pods.patch_status(&name, &PatchParams::default(), &Patch::Merge(status)).await?;

    let text = format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec:\n  containers:\n    - name: app\n      \
         image: {image} # the tag\n"
    );
    let text = text.replace('\n', "\r\n");
    let (person, kubeconfig) = (Person::new()?, rig.cluster.kubeconfig().display().to_string());
    let arguments = ["pin", "-f", "-", "-n", &namespace, "--kubeconfig", &kubeconfig];
    let outcome = person.run(&arguments, &text)?;
    assert_eq!(outcome.is(0).output, text.replacen(&image, &format!("{image}@{digest}"), 1));

    registry.endpoint().push("team/app", "1", &multi_platform(&["s390x"])?).await?;
    let outcome = person.run(&arguments, &text)?;
    ensure!(outcome.is(3).errors.contains("which is not part of that index"), "{}", outcome.errors);
    ensure!(outcome.output == text, "{}", outcome.output);
    drop(registry);
    let outcome = person.run(&arguments, &text)?;
    let told = &outcome.is(3).errors;
    ensure!(
        told.contains("may be the image of one platform") && told.contains("use --from registry"),
        "{told}"
    );
    Ok(())
}
