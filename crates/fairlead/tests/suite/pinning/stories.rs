use anyhow::{Context, Result, ensure};
use fairlead_testkit::{RegistryConfig, eventually, unique};
use k8s_openapi::api::apps::v1::Deployment;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::{
    asked, create_with_warnings, held, images, is_ready, owned, owner, pinned, pins, pods_of, retag,
};
use crate::kubectl;
use crate::person::Person;
use crate::route::owners;
use crate::route::rig::{self, SOON, image, push, replicas, route, shared};

fn deployment(name: &str, image: &str, replicas: usize) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
        "spec": {
            "replicas": replicas, "selector": {"matchLabels": {"app": name}},
            "strategy": {"rollingUpdate": {"maxSurge": "100%", "maxUnavailable": "100%"}},
            "template": {
                "metadata": {"labels": {"app": name}, "annotations": {"fairlead.dev/pin": "true"}},
                "spec": {"terminationGracePeriodSeconds": 0, "containers": [{"name": "app", "image": image}]},
            },
        },
    })
}

#[tokio::test]
async fn a_revision_keeps_its_digest_and_a_rollback_takes_it_up_again() -> Result<()> {
    let rig = shared().await?;
    let (cluster, namespace) = (&rig.cluster, rig.namespace().await?);
    let registry = rig.registry(RegistryConfig::new(), "first").await?;
    let first = retag(&registry, "first").await?;
    let (asked, name) = (asked(&registry), unique("web"));
    let deployments: Api<Deployment> = Api::namespaced(rig.client().await?, &namespace);
    let object: Deployment = serde_json::from_value(deployment(&name, &asked, 2))?;
    deployments.create(&PostParams::default(), &object).await?;
    let selector = format!("app={name}");
    let pods = pods_of(cluster, &namespace, &selector, 2).await?;
    let of_first = format!("{asked}@{first}");
    ensure!(images(&pods) == [&of_first, &of_first], "{:?}", images(&pods));
    let recorded = route(&pods[0], "app");
    ensure!(recorded["asked"] == asked.as_str() && recorded["used"] == of_first.as_str(), "{recorded}");
    ensure!(recorded["digest"] == first.as_str() && recorded["by"] == "original", "{recorded}");
    let policy = pods[0].spec.as_ref().and_then(|spec| spec.containers[0].image_pull_policy.as_deref());
    ensure!(policy == Some("IfNotPresent"), "{policy:?}");
    is_ready(cluster, &namespace).await?;

    // The tag moves; Pods that join the revision do not notice.
    let second = retag(&registry, "second").await?;
    let change =
        async |patch: Value| deployments.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await;
    change(json!({"spec": {"replicas": 4}})).await?;
    let pods = pods_of(cluster, &namespace, &selector, 4).await?;
    ensure!(images(&pods).iter().all(|image| *image == of_first), "{:?}", images(&pods));

    // A new revision looks the tag up, and a rollback takes up the old pin.
    let template =
        |which: Value| json!({"spec": {"template": {"metadata": {"annotations": {"revision": which}}}}});
    for (revision, digest, pin_count) in [(json!("2"), &second, 2), (Value::Null, &first, 2)] {
        change(template(revision.clone())).await?;
        eventually(SOON, || async {
            let pods = pods_of(cluster, &namespace, &selector, 4).await?;
            let expected = format!("{asked}@{digest}");
            ensure!(images(&pods).iter().all(|image| **image == expected), "{revision}: {:?}", images(&pods));
            Ok(())
        })
        .await?;
        let all = pins(cluster, &namespace).await?;
        ensure!(all.len() == pin_count, "{revision}: {} pins", all.len());
    }
    deployments.delete(&name, &DeleteParams::default()).await?;
    eventually(SOON, || async {
        let left = pins(cluster, &namespace).await?;
        ensure!(left.is_empty(), "{} pins are left", left.len());
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_migrated_virtual_machine_runs_the_same_bytes() -> Result<()> {
    let rig = shared().await?;
    let namespace = rig.namespace().await?;
    let registry = rig.registry(RegistryConfig::new(), "vm").await?;
    let digest = retag(&registry, "vm").await?;
    let machine = owners::owner(&namespace, "machines.example.com", "VirtualMachineInstance").await?;
    let launcher = |name: &str| {
        let mut pod = owned(pinned(&asked(&registry)), &machine, &json!({"vm": name}));
        pod["spec"]["volumes"] = json!([{"name": "disk", "image": {"reference": asked(&registry)}}]);
        pod
    };
    let volume = |pod: &k8s_openapi::api::core::v1::Pod| {
        let volumes = pod.spec.as_ref().and_then(|spec| spec.volumes.clone()).unwrap_or_default();
        volumes.into_iter().find_map(|volume| volume.image).unwrap_or_default()
    };
    let source = rig.create(&namespace, &launcher("source")).await?;
    let moved = retag(&registry, "vm, moved").await?;
    let target = rig.create(&namespace, &launcher("target")).await?;
    let held_image = format!("{}@{digest}", asked(&registry));
    for pod in [&source, &target] {
        ensure!(image(pod) == held_image, "{}", image(pod));
        ensure!(volume(pod).reference.as_ref() == Some(&held_image), "{:?}", volume(pod));
        ensure!(volume(pod).pull_policy.as_deref() == Some("IfNotPresent"), "{:?}", volume(pod));
    }
    let all = pins(&rig.cluster, &namespace).await?;
    ensure!(all.len() == 1 && held(&all[0]) == [(&*asked(&registry), &*digest)], "{all:?}");
    ensure!(all[0].spec.workload.kind == "VirtualMachineInstance", "{:?}", all[0].spec);

    // A further Pod of it is explained as it would be admitted.
    let person = Person::new()?;
    let mut further = launcher("further");
    (further["apiVersion"], further["kind"]) = (json!("v1"), json!("Pod"));
    let file = person.write("pod.json", &further.to_string())?;
    let arguments = ["-f", file.to_str().context("a path in plain text")?, "-n", &namespace, "-o", "json"];
    let explained = person.explain_from(&rig.cluster.kubeconfig(), &arguments)?.is(0).json();
    let by = format!("ImagePin {namespace}/{}", all[0].name_any());
    for place in 0..2 {
        let image = &explained["images"][place];
        ensure!(image["choice"]["image"] == held_image, "{image}");
        ensure!(image["pinned"] == json!({"digest": digest, "by": by}), "{image}");
    }

    // Another machine is another workload.
    let other = owners::owner(&namespace, "machines.example.com", "VirtualMachineInstance").await?;
    let pod = rig.create(&namespace, &owned(pinned(&asked(&registry)), &other, &json!({}))).await?;
    ensure!(image(&pod) == format!("{}@{moved}", asked(&registry)), "{}", image(&pod));

    // Its pin goes with it.
    let address = json!({
        "apiVersion": machine["apiVersion"], "kind": machine["kind"],
        "metadata": {"name": machine["name"], "namespace": namespace},
    });
    kubectl::delete(&rig.cluster, &[address]).await?;
    eventually(SOON, || async {
        let left = pins(&rig.cluster, &namespace).await?;
        ensure!(left.len() == 1 && left[0].spec.workload.uid == other["uid"], "{left:?}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn pods_without_controller_are_pinned_without_an_object() -> Result<()> {
    let rig = shared().await?;
    let (cluster, namespace) = (&rig.cluster, rig.namespace().await?);
    let registry = rig.registry(RegistryConfig::new(), "bare").await?;
    let digest = retag(&registry, "bare").await?;
    let held_image = format!("{}@{digest}", asked(&registry));
    let bare = rig.create(&namespace, &pinned(&asked(&registry))).await?;
    ensure!(image(&bare) == held_image, "{}", image(&bare));

    // What has a digest, and what is not pulled, stays.
    let mut various = pinned(&held_image);
    let container = |name: &str, image: &str, policy: &str| json!({"name": name, "image": image, "imagePullPolicy": policy});
    various["spec"]["initContainers"] = json!([container("setup", &asked(&registry), "Always")]);
    various["spec"]["containers"].as_array_mut().context("a list")?.push(container(
        "local",
        &asked(&registry),
        "Never",
    ));
    let various = rig.create(&namespace, &various).await?;
    let spec = various.spec.as_ref().context("a specification")?;
    let names: Vec<_> =
        spec.init_containers.iter().flatten().chain(&spec.containers).map(|one| &one.image).collect();
    ensure!(names == [&Some(held_image.clone()), &Some(held_image), &Some(asked(&registry))], "{names:?}");

    let unpinned = rig.create(&namespace, &rig::pod(&asked(&registry))).await?;
    ensure!(image(&unpinned) == asked(&registry), "{}", image(&unpinned));
    let (stays, told) =
        create_with_warnings(cluster, &namespace, &pinned(&format!("{}/team/none:1", registry.host())), &[])
            .await?;
    ensure!(!image(&stays).contains('@'), "{}", image(&stays));
    ensure!(told.contains("is not pinned: its digest could not be looked up"), "{told}");
    ensure!(pins(cluster, &namespace).await?.is_empty(), "a pin was made");

    let moved = retag(&registry, "bare, moved").await?;
    let next = rig.create(&namespace, &pinned(&asked(&registry))).await?;
    ensure!(image(&next) == format!("{}@{moved}", asked(&registry)), "{} is not asked anew", image(&next));
    Ok(())
}

#[tokio::test]
async fn a_dry_run_shows_the_digest_and_writes_nothing() -> Result<()> {
    let rig = shared().await?;
    let (cluster, namespace) = (&rig.cluster, rig.namespace().await?);
    let registry = rig.registry(RegistryConfig::new(), "dry").await?;
    let digest = retag(&registry, "dry").await?;
    let owner = owner(cluster, &namespace).await?;
    let pod = owned(pinned(&asked(&registry)), &owner, &json!({}));
    let (shown, _) = create_with_warnings(cluster, &namespace, &pod, &["--dry-run=server"]).await?;
    ensure!(image(&shown) == format!("{}@{digest}", asked(&registry)), "{}", image(&shown));
    ensure!(pins(cluster, &namespace).await?.is_empty(), "a pin was made");
    Ok(())
}

#[tokio::test]
async fn a_namespace_asks_for_all_its_pods_and_a_pod_may_decline() -> Result<()> {
    let rig = shared().await?;
    let registry = rig.registry(RegistryConfig::new(), "namespace").await?;
    let digest = retag(&registry, "namespace").await?;
    for verb in ["label", "annotate"] {
        let namespace = rig.namespace().await?;
        rig.cluster.kubectl([verb, "namespace", &namespace, "fairlead.dev/pin=true"]).await?;
        let held_image = format!("{}@{digest}", asked(&registry));
        rig.create_until(&namespace, &rig::pod(&asked(&registry)), |pod| image(pod) == held_image).await?;
        let mut declining = rig::pod(&asked(&registry));
        declining["metadata"]["labels"] = json!({"fairlead.dev/pin": "false"});
        let pod = rig.create(&namespace, &declining).await?;
        ensure!(image(&pod) == asked(&registry), "{verb}: {}", image(&pod));
    }
    Ok(())
}

#[tokio::test]
async fn a_pinned_image_comes_from_a_place_that_has_its_digest() -> Result<()> {
    let rig = shared().await?;
    let (cluster, namespace) = (&rig.cluster, rig.namespace().await?);
    let [source, other] = rig.registries().await?;
    let digest = push(&source, "team/app", "routed").await?;
    push(&other, "team/app", "routed").await?;
    let mut set = replicas(&other, &source);
    set["spec"]["priority"] = json!(-1);
    rig.apply(&set).await?;
    let (at_source, at_other) = (asked(&source), asked(&other));
    let revision =
        async || anyhow::Ok(owned(pinned(&at_source), &owner(cluster, &namespace).await?, &json!({})));
    let first = revision().await?;
    let routed = rig.create(&namespace, &first).await?;
    let held_image = format!("{at_other}@{digest}");
    ensure!(image(&routed) == held_image, "{}", image(&routed));
    let recorded = route(&routed, "app");
    ensure!(recorded["asked"] == at_source.as_str() && recorded["used"] == held_image.as_str(), "{recorded}");
    ensure!(recorded["alternatives"] == json!([format!("{at_source}@{digest}")]), "{recorded}");

    // The tag moves where it comes from: the other place has another digest under it, and is passed over.
    let moved = retag(&source, "routed, moved").await?;
    let next = rig.create(&namespace, &revision().await?).await?;
    ensure!(image(&next) == format!("{at_source}@{moved}"), "{}", image(&next));
    let again = rig.create(&namespace, &first).await?;
    ensure!(image(&again) == held_image, "the first revision stays: {}", image(&again));

    // The registry is gone. A workload that was not looked up before gets what can be had.
    source.kill().await?;
    let late = rig.create_until(&namespace, &revision().await?, |pod| image(pod).contains('@')).await?;
    ensure!(image(&late) == held_image, "{}", image(&late));
    let all = pins(cluster, &namespace).await?;
    let from: Vec<_> = all.iter().filter_map(|pin| pin.spec.images[0].resolved_from.as_deref()).collect();
    ensure!(all.len() == 3 && from == [at_other.as_str()], "{} pins, {from:?}", all.len());
    Ok(())
}

#[tokio::test]
async fn the_last_known_digest_serves_while_the_registry_is_away() -> Result<()> {
    let rig = shared().await?;
    let (cluster, namespace) = (&rig.cluster, rig.namespace().await?);
    let registry = rig.registry(RegistryConfig::new(), "away").await?;
    let digest = retag(&registry, "away").await?;
    let (asked, name) = (asked(&registry), unique("away"));
    let deployments: Api<Deployment> = Api::namespaced(rig.client().await?, &namespace);
    let object: Deployment = serde_json::from_value(deployment(&name, &asked, 1))?;
    deployments.create(&PostParams::default(), &object).await?;
    let selector = format!("app={name}");
    pods_of(cluster, &namespace, &selector, 1).await?;
    registry.kill().await?;
    // Another revision of the same workload, while the registry is down.
    let patch = json!({"spec": {"template": {"metadata": {"annotations": {"revision": "2"}}}}});
    deployments.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await?;
    eventually(SOON, || async {
        let all = pins(cluster, &namespace).await?;
        ensure!(all.len() == 2, "{:?}", all.iter().map(ResourceExt::name_any).collect::<Vec<_>>());
        ensure!(all.iter().all(|pin| held(pin) == [(&*asked, &*digest)]), "{all:?}");
        Ok(())
    })
    .await
}
