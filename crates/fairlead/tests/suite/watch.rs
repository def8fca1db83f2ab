//! Watches go on whatever the cluster does to them. Definitions come and go here, so the clusters are the tests' own.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fairlead_api::crds;
use fairlead_testkit::definitions::{install, without_rules};
use fairlead_testkit::{Cluster, Part, eventually};
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::replica::{self, SOON};

/// A definition that appears is noticed within this time.
const NOTICED: Duration = Duration::from_secs(12);

fn definition(kind: &str) -> Result<CustomResourceDefinition> {
    crds::all().into_iter().find(|crd| crd.spec.names.kind == kind).context("a kind of ours")
}

fn objects(
    client: &Client,
    crd: &CustomResourceDefinition,
    namespace: Option<&str>,
) -> Result<Api<DynamicObject>> {
    let version = &crd.spec.versions.first().context("a version")?.name;
    let kind = GroupVersionKind::gvk(&crd.spec.group, version, &crd.spec.names.kind);
    let resource = ApiResource::from_gvk_with_plural(&kind, &crd.spec.names.plural);
    Ok(match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    })
}

/// Creates an object as soon as the API server knows its kind.
async fn create(api: &Api<DynamicObject>, object: &Value) -> Result<()> {
    let object: DynamicObject = serde_json::from_value(object.clone())?;
    eventually(SOON, || async {
        api.create(&PostParams::default(), &object).await?;
        Ok(())
    })
    .await
}

fn mirror(name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "kuik.enix.io/v1alpha1", "kind": "ClusterImageSetMirror",
        "metadata": {"name": name}, "spec": spec,
    })
}

#[tokio::test]
async fn definitions_that_come_and_go_and_objects_that_cannot_be_read() -> Result<()> {
    let cluster = Cluster::builder().start().await?;
    let client = cluster.client().await?;
    let namespace = cluster.namespace("watch").await?;
    let replica = replica::start(&cluster.kubeconfig(), &namespace, "only").await?;

    // Nothing is installed: ready all the same, and it says what is off.
    replica.wait_until_ready(SOON).await?;
    let (_, page) = replica.readiness().await?;
    ensure!(page.contains("[+] watch ClusterImageSetMirror: not served by the cluster"), "{page}");
    ensure!(page.contains("[ ] capability watch: off: waits for ClusterImageSetAvailability"), "{page}");
    ensure!(page.contains("[ ] capability warm: off: waits for CachedImage"), "{page}");
    ensure!(
        page.contains("[ ] capability steer-nodes: off: waits for one of ImageSourceDigestPolicy"),
        "{page}"
    );
    for (capability, enabled) in [("steer-nodes", 0.0), ("account", 1.0)] {
        let series = format!("fairlead_capability_enabled{{capability=\"{capability}\"}}");
        ensure!(replica.metric(&series).await? == Some(enabled), "{capability}");
    }
    let route = "fairlead_capability_enabled{capability=\"route\"}";
    ensure!(replica.metric(route).await? == Some(0.0));

    // A definition appears, under which anything can be stored.
    let crd = definition("ClusterImageSetMirror")?;
    install(&client, &without_rules(crd.clone())?).await?;
    replica.wait_for_metric(route, Some(1.0), NOTICED).await?;
    let mirrors = objects(&client, &crd, None)?;
    create(&mirrors, &mirror("before", &json!({"priority": 1}))).await?;
    create(&mirrors, &mirror("broken", &json!({"priority": "first", "mirrors": []}))).await?;
    create(&mirrors, &mirror("after", &json!({"priority": 2}))).await?;
    let known = "fairlead_watched_objects{kind=\"ClusterImageSetMirror\"}";
    let malformed = "fairlead_malformed_objects{kind=\"ClusterImageSetMirror\"}";
    replica.wait_for_metric(known, Some(2.0), SOON).await?;
    replica.wait_for_metric(malformed, Some(1.0), SOON).await?;
    replica.wait_until_ready(SOON).await?;
    let told = replica.said("stored object cannot be read and is ignored; correct or delete it")?;
    ensure!(told.len() == 1 && told[0]["object"] == "broken", "{told:?}");
    let error = told[0]["error"].as_str().unwrap_or_default();
    ensure!(error.starts_with("spec.priority: "), "the field is not named: {error}");

    // A process that finds it in its first list fares no better and no worse.
    let other = replica::start(&cluster.kubeconfig(), &namespace, "other").await?;
    other.wait_until_ready(SOON).await?;
    ensure!((other.metric(known).await?, other.metric(malformed).await?) == (Some(2.0), Some(1.0)));
    drop(other);

    // Corrected, it counts; and it is not the only one that is still seen.
    let correct = json!({"spec": {"priority": 0, "mirrors": []}});
    mirrors.patch("broken", &PatchParams::default(), &Patch::Merge(&correct)).await?;
    mirrors.delete("after", &DeleteParams::default()).await?;
    replica.wait_for_metric(malformed, Some(0.0), SOON).await?;
    replica.wait_for_metric(known, Some(2.0), SOON).await?;

    // The definition is taken away, and comes back.
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let name = crd.metadata.name.clone().context("a name")?;
    definitions.delete(&name, &DeleteParams::default()).await?;
    replica.wait_for_metric(route, Some(0.0), SOON).await?;
    replica.wait_for_metric(known, None, SOON).await?;
    replica.wait_until_ready(SOON).await?;
    eventually(SOON, || async {
        ensure!(definitions.get_opt(&name).await?.is_none(), "still being deleted");
        Ok(())
    })
    .await?;
    install(&client, &crd).await?;
    replica.wait_for_metric(route, Some(1.0), NOTICED).await?;
    replica.wait_for_metric(known, Some(0.0), SOON).await?;
    Ok(())
}

#[tokio::test]
async fn an_api_server_that_restarts_is_waited_for() -> Result<()> {
    // As in clusters before 1.34, where lists come in pages and not as a stream.
    let paged = "--feature-gates=WatchList=false";
    let cluster = Cluster::builder().flag(Part::ApiServer, paged).start().await?;
    let client = cluster.client().await?;
    let namespace = cluster.namespace("restart").await?;
    for crd in crds::all() {
        install(&client, &crd).await?;
    }
    let replica = replica::start(&cluster.kubeconfig(), &namespace, "only").await?;
    replica.wait_until_ready(SOON).await?;
    replica.wait_to_lead(SOON).await?;
    let pid = replica.process.pid();
    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    let series = "fairlead_watched_objects{kind=\"Pod\"}";
    let before = replica.metric(series).await?.unwrap_or_default();

    for round in 1..=2 {
        cluster.kill(Part::ApiServer).await?;
        // Long enough to be noticed by every watch.
        eventually(SOON, || async {
            let failing = replica.readiness().await?.1.matches("; ").count();
            ensure!(failing > 10, "only {failing} watches have noticed");
            Ok(())
        })
        .await?;
        ensure!(
            replica.liveness().await?.0 == 200,
            "an outage of the API server is no reason to be restarted"
        );
        cluster.restart(Part::ApiServer).await?;
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": format!("after-restart-{round}")},
            "spec": {"containers": [{"name": "main", "image": "example.com/app:1"}]},
        });
        pods.create(&PostParams::default(), &serde_json::from_value(pod)?).await?;
        replica.wait_for_metric(series, Some(before + f64::from(round)), SOON).await?;
        let mirrors = objects(&client, &definition("ClusterImageSetMirror")?, None)?;
        create(
            &mirrors,
            &mirror(&format!("after-restart-{round}"), &json!({"imageFilter": {"include": [".*"]}})),
        )
        .await?;
        let known = "fairlead_watched_objects{kind=\"ClusterImageSetMirror\"}";
        replica.wait_for_metric(known, Some(f64::from(round)), SOON).await?;
        replica.wait_to_lead(SOON).await?;
        replica.wait_until_ready(SOON).await?;
    }
    ensure!(replica.process.pid() == pid, "the process was replaced");
    // One list at the start and at most one after each restart, give or take a list that broke off.
    for crd in crds::all() {
        let series = format!("fairlead_watch_lists_total{{kind=\"{}\"}}", crd.spec.names.kind);
        let lists = replica.metric(&series).await?.unwrap_or_default();
        ensure!((1.0..=4.0).contains(&lists), "{series} is {lists}");
    }
    Ok(())
}

#[tokio::test]
async fn a_missing_right_is_named_and_taken_up_when_it_is_granted() -> Result<()> {
    let cluster = fairlead_testkit::shared().await;
    let client = cluster.client().await?;
    let namespace = cluster.namespace("rights").await?;
    let account: ServiceAccount =
        serde_json::from_value(json!({"metadata": {"name": "operator", "namespace": namespace}}))?;
    let accounts = Api::<ServiceAccount>::namespaced(client.clone(), &namespace);
    accounts.create(&PostParams::default(), &account).await?;
    let subject = json!([{"kind": "ServiceAccount", "name": "operator", "namespace": namespace}]);
    let own = json!([
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get", "create", "update"]},
        {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "create", "update", "patch"]},
    ]);
    Api::<Role>::namespaced(client.clone(), &namespace)
        .create(
            &PostParams::default(),
            &serde_json::from_value(json!({"metadata": {"name": "operator"}, "rules": own}))?,
        )
        .await?;
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "operator"});
    Api::<RoleBinding>::namespaced(client.clone(), &namespace)
        .create(
            &PostParams::default(),
            &serde_json::from_value(
                json!({"metadata": {"name": "operator"}, "roleRef": role, "subjects": subject}),
            )?,
        )
        .await?;

    let kubeconfig = cluster.kubeconfig_as(&namespace, "operator").await?;
    let replica = replica::start(&kubeconfig, &namespace, "only").await?;
    replica.wait_to_lead(SOON).await?;
    eventually(SOON, || async {
        let (status, page) = replica.readiness().await?;
        let line = page.lines().find(|line| line.contains("watch Pod:")).unwrap_or_default().to_owned();
        ensure!(
            status == 503 && line.starts_with("[-]") && line.contains("cannot watch resource \"pods\""),
            "{page}"
        );
        Ok(())
    })
    .await?;
    let told = replica.said("not allowed to watch this kind; grant list and watch on it; trying again")?;
    ensure!(
        told.iter().filter(|line| line["kind"] == "Pod").count() == 1,
        "told more or less than once: {told:?}"
    );

    let rules = json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": ["list", "watch"]}]);
    Api::<ClusterRole>::all(client.clone())
        .create(
            &PostParams::default(),
            &serde_json::from_value(json!({"metadata": {"name": namespace}, "rules": rules}))?,
        )
        .await?;
    let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": namespace});
    Api::<ClusterRoleBinding>::all(client)
        .create(
            &PostParams::default(),
            &serde_json::from_value(
                json!({"metadata": {"name": namespace}, "roleRef": role, "subjects": subject}),
            )?,
        )
        .await?;
    replica.wait_until_ready(SOON).await
}
