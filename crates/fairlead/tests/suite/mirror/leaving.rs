//! Objects that are being deleted always go.

use anyhow::{Context, Result, ensure};
use fairlead_operator::platform::install::DEFAULT_NAMESPACE;
use fairlead_testkit::{Cluster, eventually};
use k8s_openapi::api::core::v1::{Event, Namespace};
use kube::Api;
use kube::api::{DeleteParams, ListParams};
use serde_json::Value;

use super::rig::SOON;
use crate::install::manifests;
use crate::installed::Operator;
use crate::{kubectl, kuik};

fn mirrors(objects: &[Value]) -> impl Iterator<Item = &Value> {
    objects.iter().filter(|object| object["kind"] == "ImageSetMirror")
}

/// Objects that kube-image-keeper accepted and that cannot be read, held by its finalizer.
#[tokio::test]
async fn objects_that_cannot_be_read_hold_up_neither_themselves_nor_their_namespace() -> Result<()> {
    let cluster = Cluster::builder().start().await?;
    kubectl::create(&cluster, &kuik::definitions(), &[]).await?;
    kubectl::definitions_are_served(&cluster).await?;
    let (one, other) = (cluster.namespace("one").await?, cluster.namespace("other").await?);
    let objects: Vec<Value> =
        [&one, &other].into_iter().flat_map(|namespace| kuik::objects(namespace)).collect();
    let objects: Vec<Value> = mirrors(&objects).cloned().collect();
    kubectl::create(&cluster, &objects, &[]).await?;
    let installed = manifests(&[])?.into_iter().filter(|object| object["kind"] != "Deployment");
    kubectl::apply(&cluster, &installed.collect::<Vec<_>>(), &["--force-conflicts"]).await?;
    kubectl::definitions_are_served(&cluster).await?;
    let operator = Operator::start(&cluster, DEFAULT_NAMESPACE).await?;

    let client = cluster.client().await?;
    let mut arguments = vec!["delete".to_owned(), "--wait=false".to_owned()];
    arguments.extend(kubectl::address(objects.first().context("an object")?));
    cluster.kubectl(arguments).await?;
    let namespaces: Api<Namespace> = Api::all(client.clone());
    namespaces.delete(&other, &DeleteParams::default()).await?;
    // The namespace controller is not part of the cluster; what it would do is to delete the object.
    let mut arguments = vec!["delete".to_owned(), "--wait=false".to_owned()];
    arguments.extend(kubectl::address(objects.last().context("an object")?));
    cluster.kubectl(arguments).await?;
    eventually(SOON, || async {
        for object in &objects {
            let left = kubectl::get(&cluster, object).await.ok();
            ensure!(left.is_none(), "{left:?}\n{}", operator.0.process.log_tail());
        }
        Ok(())
    })
    .await?;
    let events: Api<Event> = Api::namespaced(client, &one);
    eventually(SOON, || async {
        let all = events.list(&ListParams::default()).await?.items;
        let told = all.iter().find(|event| event.reason.as_deref() == Some("CopiesLeftBehind"));
        let said = told.and_then(|event| event.message.clone()).unwrap_or_default();
        ensure!(said.contains("spec.cleanup.retention"), "{said}\n{all:?}");
        Ok(())
    })
    .await?;
    ensure!(operator.0.process.log_tail().contains("its copies stay"));
    operator.stop(&cluster).await
}
