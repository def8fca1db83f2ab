//! Pods as large as the API server takes them, and records that give way.

use anyhow::{Context, Result, ensure};
use fairlead_operator::platform::install::DEFAULT_NAMESPACE;
use fairlead_testkit::RegistryConfig;
use k8s_openapi::api::core::v1::Pod;
use kube::api::DeleteParams;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::rig::{Rig, annotation, image, mirror, pod, push, shared};

/// The API server's limit of all annotations of an object, keys and values.
const ANNOTATIONS: usize = 256 * 1024;

const OURS: [&str; 3] =
    ["fairlead.dev/routes", "kuik.enix.io/original-images", "harbor.rewrite/original-upstreams"];

#[tokio::test]
async fn a_pod_at_the_limit_of_annotations_is_routed_without_a_record() -> Result<()> {
    let rig = shared().await?;
    let namespace = rig.namespace().await?;
    let (source, target) = rig.copied(RegistryConfig::new(), "annotations").await?;
    rig.apply(&mirror(&source, &target)).await?;
    let asked = format!("{}/team/app:1", source.host());
    let copy = format!("{}/copies/team/app:1", target.host());
    for spare in [0, 1, 100, 1000] {
        let mut large = pod(&asked);
        large["metadata"]["annotations"] = json!({"k": "x".repeat(ANNOTATIONS - 1 - spare)});
        let created =
            rig.create(&namespace, &large).await.with_context(|| format!("{spare} bytes are left"))?;
        ensure!(image(&created) == copy, "{spare}: {}", image(&created));
        ensure!(OURS.iter().all(|name| !created.annotations().contains_key(*name)), "{spare}");
    }
    let mut roomy = pod(&asked);
    roomy["metadata"]["annotations"] = json!({"k": "x".repeat(ANNOTATIONS - 20_000)});
    let created = rig.create(&namespace, &roomy).await?;
    ensure!(OURS.iter().all(|name| created.annotations().contains_key(*name)), "{:?}", created.annotations());
    Ok(())
}

/// A Pod with many containers, whose record is large, and one argument of so many bytes.
fn large(image: &str, bytes: usize) -> Value {
    let container = |number: usize| json!({"name": format!("c{number}"), "image": image, "imagePullPolicy": "IfNotPresent"});
    let mut containers: Vec<Value> = (0..40).map(container).collect();
    containers[0]["args"] = json!(["x".repeat(bytes)]);
    json!({"metadata": {"generateName": "large-"}, "spec": {"containers": containers}})
}

/// The longest argument with which the API server stores the Pod when no webhook is asked about it.
async fn longest_argument(rig: &Rig, image: &str) -> Result<usize> {
    let pods: Api<Pod> = Api::namespaced(rig.client().await?, DEFAULT_NAMESPACE);
    let (mut taken, mut refused) = (1_400_000, 1_572_864);
    while refused - taken > 64 {
        let middle = usize::midpoint(taken, refused);
        match rig.create(DEFAULT_NAMESPACE, &large(image, middle)).await {
            Ok(created) => {
                ensure!(!created.annotations().contains_key(OURS[0]), "the webhook was asked");
                pods.delete(&created.name_any(), &DeleteParams::default().grace_period(0)).await?;
                taken = middle;
            }
            Err(_) => refused = middle,
        }
    }
    Ok(taken)
}

#[tokio::test]
async fn a_pod_as_large_as_etcd_takes_is_admitted() -> Result<()> {
    let rig = shared().await?;
    let namespace = rig.namespace().await?;
    let (source, target) = rig.copied(RegistryConfig::new(), "large").await?;
    rig.apply(&mirror(&source, &target)).await?;
    let asked = format!("{}/team/app:1", source.host());
    let copy = format!("{}/copies/team/app:1", target.host());
    let longest = longest_argument(rig, &asked).await?;
    // Namespaces have names of other lengths.
    for spare in [64, 200, 1000, 5000, 20_000, 60_000, 130_000] {
        let created = rig
            .create(&namespace, &large(&asked, longest - spare))
            .await
            .with_context(|| format!("{spare} bytes are left"))?;
        let routed = image(&created) == copy;
        ensure!(routed || image(&created) == asked, "{}", image(&created));
        ensure!(routed || spare < 20_000, "with {spare} bytes there is room for longer names");
        ensure!(routed || !created.annotations().contains_key(OURS[0]), "{spare}: unchanged means unchanged");
    }
    let created = rig.create(&namespace, &large(&asked, 1_000_000)).await?;
    ensure!(OURS.iter().all(|name| created.annotations().contains_key(*name)), "{:?}", created.annotations());
    Ok(())
}

/// What the webhook sees when it is called again, after another one has changed the image.
#[tokio::test]
async fn what_was_written_for_harbor_follows_an_image_that_another_webhook_changed() -> Result<()> {
    let rig = shared().await?;
    let namespace = rig.namespace().await?;
    let (source, target) = rig.copied(RegistryConfig::new(), "reinvoked").await?;
    push(&source, "team/other", "reinvoked").await?;
    push(&target, "copies/team/other", "reinvoked").await?;
    rig.apply(&mirror(&source, &target)).await?;
    let [first, second] = ["app", "other"].map(|name| format!("{}/team/{name}:1", source.host()));
    let upstreams = |pod: &Pod| annotation(pod, "harbor.rewrite/original-upstreams");

    let created = rig.create(&namespace, &pod(&first)).await?;
    ensure!(upstreams(&created) == Some(json!({"app": first})), "{:?}", created.annotations());
    let again = |image: &str, annotations: &Value| {
        let mut again = pod(image);
        again["metadata"]["annotations"] = annotations.clone();
        again
    };
    let mut seen = json!(created.annotations());
    let changed = rig.create(&namespace, &again(&second, &seen)).await?;
    ensure!(image(&changed) == format!("{}/copies/team/other:1", target.host()), "{}", image(&changed));
    ensure!(upstreams(&changed) == Some(json!({"app": second})), "{:?}", changed.annotations());

    seen["harbor.rewrite/original-upstreams"] = json!(json!({"app": "by Kyverno"}).to_string());
    let foreign = rig.create(&namespace, &again(&second, &seen)).await?;
    ensure!(upstreams(&foreign) == Some(json!({"app": "by Kyverno"})), "{:?}", foreign.annotations());
    Ok(())
}
