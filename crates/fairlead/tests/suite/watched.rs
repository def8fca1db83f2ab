//! The watch of images in the real program, under the rights that are installed with it.

use anyhow::{Context, Result, ensure};
use fairlead_testkit::{Cluster, RegistryConfig, eventually};
use serde_json::{Value, json};

use crate::kubectl;
use crate::route::rig::{Rig, SOON, pod, push};

const CONFIG: &str = "monitoring: {registries: {default: {interval: 10s, maxPerInterval: 50}}}";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_installed_operator_tells_people_that_an_image_is_gone() -> Result<()> {
    let rig = Rig::install_with(Cluster::builder().audit(true).start().await?, CONFIG).await?;
    let registry = rig.registry(RegistryConfig::new().delete(), "watched").await?;
    let (host, namespace) = (registry.host(), rig.namespace().await?);
    let image = format!("{host}/team/app:1");
    rig.create(&namespace, &pod(&image)).await?;
    let object = json!({
        "apiVersion": "kuik.enix.io/v1alpha1", "kind": "ClusterImageSetAvailability", "metadata": {"name": "all"},
        "spec": {"filter": {"include": [{"image": format!("{host}/.*")}]}},
    });
    kubectl::apply(&rig.cluster, &[object], &[]).await?;
    let wait_for = async |wanted: &str| {
        eventually(SOON, || async {
            let text = rig.cluster.kubectl(["get", "cisa", "all", "-o", "json"]).await?;
            let object: Value = serde_json::from_str(&text)?;
            let found = &object["status"]["images"][0];
            ensure!(found["image"] == image.as_str() && found["status"] == wanted, "{}", object["status"]);
            Ok(())
        })
        .await
    };
    wait_for("Available").await?;

    let digest = push(&registry, "team/app", "watched").await?;
    let endpoint = registry.endpoint();
    let path = format!("/v2/team/app/manifests/{digest}");
    let answer = endpoint.request(&endpoint.http()?, reqwest::Method::DELETE, &path).send().await?;
    ensure!(answer.status().is_success(), "{}", answer.status());
    wait_for("NotFound").await?;
    eventually(SOON, || async {
        let row = rig.cluster.kubectl(["get", "cisa", "all", "--no-headers"]).await?;
        let columns: Vec<_> = row.split_whitespace().collect();
        ensure!(columns.starts_with(&["all", "1", "0", "1", "False"]), "{row}");
        let page = rig.cluster.kubectl(["describe", "cisa", "all"]).await?;
        ensure!(page.contains("ImageDisappeared"), "{page}");
        let events = rig.cluster.kubectl(["get", "events", "-n", &namespace]).await?;
        ensure!(events.contains("ImageDisappeared"), "{events}");
        Ok(())
    })
    .await?;
    let series = "fairlead_watch_disappeared_images{name=\"all\"}";
    rig.operator.0.wait_for_metric(series, Some(1.0), SOON).await?;

    // Nothing was refused on the way.
    let ours = |group: &str| group == "kuik.enix.io" || group == "fairlead.dev";
    let audit = rig.cluster.audit_events()?;
    let refused: Vec<_> = audit
        .iter()
        .filter(|event| event.user.contains("fairlead"))
        .filter(|event| event.code == 403 && (ours(&event.api_group) || event.resource == "events"))
        .collect();
    ensure!(refused.is_empty(), "{refused:?}");
    let ledgers =
        rig.cluster.kubectl(["get", "imageledgers", "-n", "fairlead-system", "--no-headers"]).await?;
    ensure!(ledgers.lines().count() == 1, "{ledgers}");
    rig.cluster.kubectl(["delete", "cisa", "all"]).await.context("cannot delete it")?;
    rig.operator.0.wait_for_metric(series, None, SOON).await
}
