//! Every file below `examples/` can be applied as it stands.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use kube::Api;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams};
use kube::core::GroupVersionKind;
use kube::discovery::{self, Scope};
use serde_json::Value;

fn files(directory: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            files(&path, found)?;
        } else {
            found.push(path);
        }
    }
    Ok(())
}

#[tokio::test]
async fn every_example_is_accepted() -> Result<()> {
    let client = crate::definitions::client().await?;
    // Examples name namespaces that are not there; each namespaced object goes into this one instead.
    let namespace = fairlead_testkit::shared().await.namespace("examples").await?;
    let mut paths = Vec::new();
    files(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples")), &mut paths)?;
    paths.sort();
    ensure!(paths.len() >= 7, "only {} examples", paths.len());
    for path in paths {
        let options = serde_saphyr::options! { strict_booleans: true };
        let objects: Vec<Value> =
            serde_saphyr::from_multiple_with_options(&fs::read_to_string(&path)?, options)?;
        for mut object in objects {
            let text = |field: &str| object[field].as_str().context("no apiVersion or kind");
            let gvk = GroupVersionKind::try_from(kube::core::TypeMeta {
                api_version: text("apiVersion")?.to_owned(),
                kind: text("kind")?.to_owned(),
            })?;
            let (resource, capabilities) =
                discovery::pinned_kind(&client, &gvk).await.with_context(|| path.display().to_string())?;
            let api: Api<DynamicObject> = match capabilities.scope {
                Scope::Cluster => Api::all_with(client.clone(), &resource),
                Scope::Namespaced => {
                    object["metadata"]["namespace"] = namespace.as_str().into();
                    Api::namespaced_with(client.clone(), &namespace, &resource)
                }
            };
            let name = object["metadata"]["name"].as_str().context("no name")?.to_owned();
            let params = PatchParams::apply("fairlead-api-suite").validation_strict();
            api.patch(&name, &params, &Patch::Apply(&object))
                .await
                .with_context(|| format!("{}", path.display()))?;
            api.delete(&name, &DeleteParams::default()).await?;
        }
    }
    Ok(())
}
