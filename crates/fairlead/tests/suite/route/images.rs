//! Which images are routed, and what is recorded about them.

use anyhow::{Context, Result, ensure};
use fairlead_testkit::{RegistryConfig, eventually};
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::rig::{SOON, annotation, image, mirror, pod, pull_secrets, push, replicas, route, shared};

#[tokio::test]
async fn a_dead_registry_is_avoided_and_used_again_when_it_is_back() -> Result<()> {
    let rig = shared().await?;
    let namespace = rig.namespace().await?;
    let first = rig.registry(RegistryConfig::new(), "replicas").await?;
    let second = rig.registry(RegistryConfig::new(), "replicas").await?;
    rig.apply(&replicas(&first, &second)).await?;
    let (asked, other) = (format!("{}/team/app:1", first.host()), format!("{}/team/app:1", second.host()));

    let before = rig.create(&namespace, &pod(&asked)).await?;
    ensure!(image(&before) == asked, "{}", image(&before));
    let found = route(&before, "app");
    ensure!(found["by"] == "original" && found["alternatives"] == json!([other]), "{found}");
    ensure!(found["digest"].as_str().is_some_and(|digest| digest.starts_with("sha256:")), "{found}");
    ensure!(annotation(&before, "kuik.enix.io/original-images").is_none(), "nothing was changed");

    first.kill().await?;
    let moved = rig.create_until(&namespace, &pod(&asked), |pod| image(pod) == other).await?;
    let found = route(&moved, "app");
    ensure!(found["asked"] == asked.as_str() && found["used"] == other.as_str(), "{found}");
    ensure!(
        found["by"].as_str().is_some_and(|by| by.starts_with("ClusterReplicatedImageSet//replicas-")),
        "{found}"
    );
    ensure!(found["why"].as_str().is_some_and(|why| why.contains("unreachable")), "{found}");
    for name in ["kuik.enix.io/original-images", "harbor.rewrite/original-upstreams"] {
        ensure!(annotation(&moved, name) == Some(json!({"app": asked})), "{name}");
    }
    event(&moved, "ImageRewritten", &other).await?;
    let page = rig.operator.0.page().await?;
    let by = found["by"].as_str().context("a policy")?;
    for series in [
        format!("fairlead_admission_rewrites_total{{policy=\"{by}\"}} "),
        format!("fairlead_registry_down{{registry=\"{}\"}} 1", first.host()),
        "fairlead_admission_requests_total{result=\"rewritten\"} ".to_owned(),
        "fairlead_verdict_lookups_total{result=\"hit\"} ".to_owned(),
    ] {
        ensure!(page.lines().any(|line| line.starts_with(&series)), "no {series} in\n{page}");
    }
    let probed = format!("fairlead_probes_total{{registry=\"{}\"", second.host());
    ensure!(page.lines().any(|line| line.starts_with(&probed) && line.contains("available")), "{page}");

    first.start_again().await?;
    rig.create_until(&namespace, &pod(&asked), |pod| image(pod) == asked).await?;
    Ok(())
}

async fn event(pod: &Pod, reason: &str, mentions: &str) -> Result<()> {
    let rig = shared().await?;
    let namespace = pod.namespace().context("a namespace")?;
    let events: Api<Event> = Api::namespaced(rig.client().await?, &namespace);
    let name = pod.name_any();
    eventually(SOON, || async {
        let all = events.list(&ListParams::default()).await?.items;
        let about: Vec<_> =
            all.iter().filter(|event| event.involved_object.name.as_deref() == Some(&name)).collect();
        let fits = |event: &&&Event| {
            event.reason.as_deref() == Some(reason)
                && event.message.as_ref().is_some_and(|message| message.contains(mentions))
        };
        ensure!(about.iter().any(|event| fits(&event)), "{about:?}");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn every_kind_of_image_is_routed() -> Result<()> {
    let rig = shared().await?;
    let namespace = rig.namespace().await?;
    let source = rig.registry(RegistryConfig::new(), "kinds").await?;
    let target = rig.cluster.registry(RegistryConfig::new()).await?;
    let digest = push(&target, "copies/team/app", "kinds").await?;
    rig.apply(&mirror(&source, &target)).await?;
    let asked = |suffix: &str| format!("{}/team/app{suffix}", source.host());
    let copy = |suffix: &str| format!("{}/copies/team/app{suffix}", target.host());
    let pinned = format!("@{digest}");
    let both = format!(":1@{digest}");
    let container = |name: &str, suffix: &str, policy: &str| json!({"name": name, "image": asked(suffix), "imagePullPolicy": policy});
    let mut sidecar = container("side", ":1", "IfNotPresent");
    sidecar["restartPolicy"] = json!("Always");
    let whole = json!({
        "metadata": {"generateName": "kinds-"},
        "spec": {
            "initContainers": [container("setup", ":1", "IfNotPresent"), sidecar],
            "containers": [
                container("tag", ":1", "IfNotPresent"),
                container("digest", &pinned, "IfNotPresent"),
                container("both", &both, "IfNotPresent"),
                container("always", ":1", "Always"),
                container("never", ":1", "Never"),
            ],
            "volumes": [{"name": "data", "image": {"reference": asked(":1"), "pullPolicy": "IfNotPresent"}}],
        },
    });
    let created = rig.create(&namespace, &whole).await?;
    let spec = created.spec.as_ref().context("a specification")?;
    let images: Vec<_> =
        spec.init_containers.iter().flatten().chain(&spec.containers).map(|c| c.image.clone()).collect();
    let expected = [copy(":1"), copy(":1"), copy(":1"), copy(&pinned), copy(&both), asked(":1"), asked(":1")];
    ensure!(images.iter().flatten().eq(&expected), "{images:#?}");
    let volume = spec.volumes.iter().flatten().find(|volume| volume.name == "data");
    let reference = volume.and_then(|volume| volume.image.as_ref()?.reference.clone());
    ensure!(reference == Some(copy(":1")), "{reference:?}");
    ensure!(
        annotation(&created, "kuik.enix.io/original-images")
            == Some(json!({
                "init:setup": asked(":1"), "init:side": asked(":1"), "tag": asked(":1"), "digest": asked(&pinned),
                "both": asked(&both), "volume:data": asked(":1"),
            })),
        "{:?}",
        created.annotations()
    );
    ensure!(route(&created, "always")["by"] == "original");
    ensure!(route(&created, "never")["why"].as_str().is_some_and(|why| why.contains("Never")));
    ensure!(route(&created, "volume:data")["asked"] == asked(":1"));
    Ok(())
}

/// In whatever namespace: it was planned what it pulls, and what is pulled must be what was planned.
#[tokio::test]
async fn a_pod_that_pulls_an_image_onto_a_node_is_admitted_as_it_is() -> Result<()> {
    let rig = shared().await?;
    let namespace = rig.namespace().await?;
    let (source, target) = rig.copied(RegistryConfig::new(), "warming").await?;
    rig.apply(&mirror(&source, &target)).await?;
    let asked = format!("{}/team/app:1", source.host());
    let copy = format!("{}/copies/team/app:1", target.host());
    let labelled = |labels: Value| {
        let mut pod = pod(&asked);
        pod["metadata"]["labels"] = labels;
        pod["spec"]["volumes"] =
            json!([{"name": "data", "image": {"reference": asked, "pullPolicy": "IfNotPresent"}}]);
        pod
    };
    // One label alone does not make a pull Pod.
    let managed = ("app.kubernetes.io/managed-by", "drop");
    let other = rig.create(&namespace, &labelled(json!({managed.0: managed.1}))).await?;
    ensure!(image(&other) == copy, "{}", image(&other));

    let labels =
        json!({managed.0: managed.1, "drop.corewire.io/cachedimage": "web", "drop.corewire.io/node": "n"});
    let pulling = rig.create(&namespace, &labelled(labels)).await?;
    let volumes = pulling.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let references: Vec<_> =
        volumes.filter_map(|volume| volume.image.as_ref()?.reference.as_deref()).collect();
    ensure!((image(&pulling), references.as_slice()) == (&*asked, &[&*asked][..]), "{:?}", pulling.spec);
    ensure!(pulling.annotations().is_empty(), "{:?}", pulling.annotations());
    ensure!(pull_secrets(&pulling).is_empty(), "{:?}", pull_secrets(&pulling));
    Ok(())
}

#[tokio::test]
async fn containers_for_debugging_are_routed_and_recorded_afterwards() -> Result<()> {
    let rig = shared().await?;
    let namespace = rig.namespace().await?;
    let (source, target) = rig.copied(RegistryConfig::new(), "debugging").await?;
    rig.apply(&mirror(&source, &target)).await?;
    let asked = format!("{}/team/app:1", source.host());
    let copy = format!("{}/copies/team/app:1", target.host());
    let created = rig.create(&namespace, &pod("quay.io/somebody/else:1")).await?;
    let name = created.name_any();
    let arguments = ["debug", &name, "--namespace", &namespace, "--container=debugger", "--attach=false"];
    let image = format!("--image={asked}");
    rig.cluster
        .kubectl(arguments.iter().copied().chain([image.as_str(), "--image-pull-policy=IfNotPresent"]))
        .await?;

    let pods: Api<Pod> = Api::namespaced(rig.client().await?, &namespace);
    let found = pods.get(&name).await?;
    let debugger = found.spec.as_ref().and_then(|spec| spec.ephemeral_containers.as_ref()?.first().cloned());
    let used = debugger.and_then(|container| container.image);
    ensure!(used == Some(copy), "{used:?}");
    eventually(SOON, || async {
        let found = pods.get(&name).await?;
        ensure!(route(&found, "debugger")["asked"] == asked.as_str(), "{:?}", found.annotations());
        ensure!(route(&found, "app")["asked"] == "quay.io/somebody/else:1");
        ensure!(
            annotation(&found, "kuik.enix.io/original-images") == Some(json!({"ephemeral:debugger": asked}))
        );
        Ok(())
    })
    .await
}

#[tokio::test]
async fn records_are_claims_and_never_orders() -> Result<()> {
    let rig = shared().await?;
    let namespace = rig.namespace().await?;
    let (source, target) = rig.copied(RegistryConfig::new(), "claims").await?;
    let policy = mirror(&source, &target);
    rig.apply(&policy).await?;
    let asked = format!("{}/team/app:1", source.host());
    let copy = format!("{}/copies/team/app:1", target.host());
    let by = format!("ClusterImageSetMirror//{}", policy["metadata"]["name"].as_str().context("a name")?);
    let with = |image: &str, annotations: Value| {
        let mut pod = pod(image);
        pod["metadata"]["annotations"] = annotations;
        pod
    };
    // Restored from a backup: the image is the copy, and the record says what was asked for.
    let record = |asked: &str, used: &str| {
        let route = json!({"asked": asked, "used": used, "by": by, "why": "long ago"});
        json!({"fairlead.dev/routes": json!({"v": 1, "images": {"app": route}}).to_string()})
    };
    let restored = rig.create(&namespace, &with(&copy, record(&asked, &copy))).await?;
    ensure!(image(&restored) == copy && route(&restored, "app")["asked"] == asked.as_str());
    // The same from kuik's days.
    let kuik = json!({"kuik.enix.io/original-images": json!({"app": asked}).to_string()});
    let restored = rig.create(&namespace, &with(&copy, kuik)).await?;
    ensure!(image(&restored) == copy && route(&restored, "app")["asked"] == asked.as_str());
    // Forged, to keep a container out of routing or to pass off one image as another.
    for forged in [
        record("quay.io/evil/app:1", &asked),
        record(&asked, "elsewhere.example.com/app:1"),
        json!({"fairlead.dev/routes": "not even JSON"}),
        json!({"kuik.enix.io/original-images": json!({"app": "quay.io/evil/app:1"}).to_string()}),
    ] {
        let created = rig.create(&namespace, &with(&asked, forged.clone())).await?;
        ensure!(image(&created) == copy, "{forged}: {}", image(&created));
        ensure!(route(&created, "app")["asked"] == asked.as_str(), "{forged}");
        ensure!(
            annotation(&created, "kuik.enix.io/original-images") == Some(json!({"app": asked})),
            "{forged}"
        );
    }
    Ok(())
}
