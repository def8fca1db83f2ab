//! Stricter definitions over objects that are stored already: what no longer fits stays, can be repaired, and hides
//! nothing.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fairlead_api::crds;
use fairlead_api::kuik::ImageSetMirror;
use fairlead_testkit::definitions::{install, without_rules};
use fairlead_testkit::eventually;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::{DeserializeGuard, GroupVersionKind};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

const DEADLINE: Duration = Duration::from_secs(30);

/// Our definition in a group of its own, so that it can change under this test alone.
fn strict(group: &str) -> Result<CustomResourceDefinition> {
    let found = crds::all().into_iter().find(|crd| crd.spec.names.kind == "ImageSetMirror");
    let mut crd = found.context("no ImageSetMirror")?;
    crd.metadata.name = Some(format!("{}.{group}", crd.spec.names.plural));
    group.clone_into(&mut crd.spec.group);
    crd.spec.names.short_names = None;
    crd.spec.names.categories = None;
    Ok(crd)
}

fn object(group: &str, name: &str, spec: &Value) -> Result<DynamicObject> {
    let object = json!({
        "apiVersion": format!("{group}/v1alpha1"),
        "kind": "ImageSetMirror",
        "metadata": { "name": name },
        "spec": spec,
    });
    Ok(serde_json::from_value(object)?)
}

#[tokio::test]
async fn objects_that_no_longer_fit_can_be_kept_repaired_and_deleted() -> Result<()> {
    let client = crate::definitions::client().await?;
    let namespace = fairlead_testkit::shared().await.namespace("upgrade").await?;
    let group = format!("{namespace}.example.com");
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(&group, "v1alpha1", "ImageSetMirror"));
    let objects: Api<DynamicObject> = Api::namespaced_with(client.clone(), &namespace, &resource);
    let broken = json!({
        "cleanup": { "enabled": true, "retention": "7d" },
        "mirrors": [{ "registry": "https://registry.example.com", "priority": -1 }],
    });

    install(&client, &without_rules(strict(&group)?)?).await?;
    let malformed = object(&group, "malformed", &broken)?;
    let create = async || Ok(objects.create(&PostParams::default(), &malformed).await?);
    eventually(DEADLINE, create).await?;
    objects.create(&PostParams::default(), &object(&group, "good", &json!({ "priority": 3 }))?).await?;

    install(&client, &strict(&group)?).await?;
    eventually(DEADLINE, || async {
        let again = object(&group, "again", &broken)?;
        let params = PostParams { dry_run: true, ..PostParams::default() };
        ensure!(objects.create(&params, &again).await.is_err(), "the old definition is still in force");
        Ok(())
    })
    .await?;

    // A reader that expects malformed objects is told which they are, and sees all others.
    let mut read = Vec::new();
    for item in objects.list(&ListParams::default()).await? {
        let guarded: DeserializeGuard<ImageSetMirror> = serde_json::from_value(serde_json::to_value(&item)?)?;
        read.push(guarded.0.map(|mirror| mirror.spec.priority).map_err(|error| error.metadata.name));
    }
    ensure!(read.contains(&Ok(3)) && read.contains(&Err(Some("malformed".to_owned()))), "{read:?}");

    let params = PatchParams::default();
    let finalizer = json!({ "metadata": { "finalizers": ["kuik.enix.io/mirror-cleanup"] } });
    objects.patch("malformed", &params, &Patch::Merge(&finalizer)).await.context("a finalizer")?;
    let conditions = json!({ "status": { "conditions": [{
        "type": "Ready", "status": "False", "reason": "InvalidSpec", "message": "retention: 7d",
        "lastTransitionTime": "2026-02-03T04:05:06Z",
    }] } });
    objects.patch_status("malformed", &params, &Patch::Merge(&conditions)).await.context("its status")?;
    let repair = json!({ "spec": { "cleanup": { "retention": "168h" } } });
    objects.patch("malformed", &params, &Patch::Merge(&repair)).await.context("one field repaired")?;
    let spoil = json!({ "spec": { "cleanup": { "retention": "8d" } } });
    ensure!(objects.patch("malformed", &params, &Patch::Merge(&spoil)).await.is_err(), "spoilt again");
    let release = json!({ "metadata": { "finalizers": null } });
    objects.delete("malformed", &DeleteParams::default()).await?;
    objects.patch("malformed", &params, &Patch::Merge(&release)).await.context("released")?;
    ensure!(objects.get_opt("malformed").await?.is_none(), "not deleted");

    let definitions: Api<CustomResourceDefinition> = Api::all(client);
    definitions.delete(&strict(&group)?.name_any(), &DeleteParams::default()).await?;
    Ok(())
}
