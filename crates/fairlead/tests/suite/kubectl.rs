//! kubectl as a person uses it, on objects that a test holds as values.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fairlead_operator::platform::install::{DEFAULT_NAMESPACE, NAME};
use fairlead_testkit::{Cluster, eventually};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::yaml::{documents, fairlead, title};

/// `kubectl apply --server-side`, as the documentation says.
pub async fn apply(cluster: &Cluster, objects: &[Value], options: &[&str]) -> Result<()> {
    run(cluster, &["apply", "--server-side"], objects, options).await
}

pub async fn create(cluster: &Cluster, objects: &[Value], options: &[&str]) -> Result<()> {
    run(cluster, &["create"], objects, options).await
}

pub async fn delete(cluster: &Cluster, objects: &[Value]) -> Result<()> {
    run(cluster, &["delete", "--ignore-not-found"], objects, &[]).await
}

pub async fn annotate(cluster: &Cluster, objects: &[Value], annotation: &str) -> Result<()> {
    run(cluster, &["annotate", "--overwrite"], objects, &[annotation]).await
}

async fn run(cluster: &Cluster, command: &[&str], objects: &[Value], options: &[&str]) -> Result<()> {
    said(cluster, command, objects, options).await.map(drop)
}

async fn said(cluster: &Cluster, command: &[&str], objects: &[Value], options: &[&str]) -> Result<String> {
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects });
    let file = tempfile::Builder::new().suffix(".json").tempfile()?;
    std::fs::write(file.path(), serde_json::to_vec(&list)?)?;
    let path = file.path().to_str().context("the temporary file has an odd name")?;
    cluster.kubectl(command.iter().chain(&["--filename", path]).chain(options)).await
}

pub async fn get(cluster: &Cluster, object: &Value) -> Result<Value> {
    let mut arguments = vec!["get".to_owned(), "--output=json".to_owned()];
    arguments.extend(address(object));
    Ok(serde_json::from_str(&cluster.kubectl(arguments).await?)?)
}

/// The same for many of them, in their order. Each must be there.
pub async fn get_all(cluster: &Cluster, objects: &[Value]) -> Result<Vec<Value>> {
    let mut found: Value =
        serde_json::from_str(&said(cluster, &["get", "--output=json"], objects, &[]).await?)?;
    let found = match found["items"].take() {
        // One object is not wrapped in a list.
        Value::Null => vec![found],
        items => serde_json::from_value(items)?,
    };
    ensure!(found.len() == objects.len(), "{} of {} objects are there", found.len(), objects.len());
    Ok(found)
}

/// The cluster that tests share, once it knows our kinds.
pub async fn shared_with_definitions() -> Result<&'static Cluster> {
    static INSTALLED: OnceCell<()> = OnceCell::const_new();
    let cluster = fairlead_testkit::shared().await;
    let install = async || {
        apply(cluster, &documents(&fairlead(&["crds"])?)?, &["--force-conflicts"]).await?;
        definitions_are_served(cluster).await
    };
    INSTALLED.get_or_try_init(install).await?;
    Ok(cluster)
}

/// Waits until every definition in the cluster is served. (`kubectl wait` fails on one that has no status yet.)
pub async fn definitions_are_served(cluster: &Cluster) -> Result<()> {
    let definitions: Api<CustomResourceDefinition> = Api::all(cluster.client().await?);
    // All of them are hundreds of kilobytes, too much to be read at each attempt.
    for definition in definitions.list(&ListParams::default()).await?.iter().filter(|one| !is_served(one)) {
        let name = definition.name_any();
        eventually(Duration::from_mins(1), || async {
            ensure!(is_served(&definitions.get(&name).await?), "{name} is not served yet");
            Ok(())
        })
        .await?;
    }
    Ok(())
}

fn is_served(definition: &CustomResourceDefinition) -> bool {
    let conditions = definition.status.as_ref().and_then(|status| status.conditions.as_deref());
    let mut conditions = conditions.unwrap_or_default().iter();
    conditions.any(|condition| condition.type_ == "Established" && condition.status == "True")
}

/// Versions of the stored objects: any write that changed something shows here.
pub async fn versions(cluster: &Cluster, objects: &[Value]) -> Result<BTreeMap<String, String>> {
    let mut versions = BTreeMap::new();
    for object in get_all(cluster, objects).await? {
        let metadata = &object["metadata"];
        // The status of some kinds moves by itself; their generation counts changes of the specification.
        let moves =
            ["Deployment", "PodDisruptionBudget", "CustomResourceDefinition", "ValidatingAdmissionPolicy"];
        let moves = moves.map(Value::from);
        let version = if moves.contains(&object["kind"]) {
            &metadata["generation"]
        } else {
            &metadata["resourceVersion"]
        };
        versions.insert(title(&object), version.to_string());
    }
    Ok(versions)
}

/// The bundle that API servers are told to trust, as base64.
pub async fn ca_bundle(cluster: &Cluster) -> Result<String> {
    let path = "--output=jsonpath={.webhooks[0].clientConfig.caBundle}";
    cluster.kubectl(["get", "mutatingwebhookconfiguration", NAME, path]).await
}

pub async fn replicas(cluster: &Cluster) -> Result<String> {
    let path = "--output=jsonpath={.spec.replicas}";
    cluster.kubectl(["get", "deployment", NAME, "--namespace", DEFAULT_NAMESPACE, path]).await
}

/// An object as kubectl's arguments name it.
pub fn address(object: &Value) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let (group, version) =
        object["apiVersion"].as_str().and_then(|text| text.split_once('/')).unwrap_or(("", "v1"));
    let kind = match group {
        "" => text(&object["kind"]),
        _ => format!("{}.{version}.{group}", text(&object["kind"])),
    };
    let mut address = vec![kind, text(&object["metadata"]["name"])];
    if let Some(namespace) = object["metadata"]["namespace"].as_str() {
        address.extend(["--namespace".to_owned(), namespace.to_owned()]);
    }
    address
}
