//! Definitions of custom resources, as tests put them into clusters of their own.

use anyhow::{Context, Result};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;

/// Installs a definition, or changes it to this one. The API server knows its kind a moment later.
pub async fn install(client: &Client, crd: &CustomResourceDefinition) -> Result<()> {
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let name = crd.metadata.name.as_deref().context("a name")?;
    definitions.patch(name, &PatchParams::apply("test").force(), &Patch::Apply(crd)).await?;
    Ok(())
}

/// The same definition, but it lets everything in.
pub fn without_rules(mut crd: CustomResourceDefinition) -> Result<CustomResourceDefinition> {
    for version in &mut crd.spec.versions {
        let schema = version.schema.as_mut().context("a schema")?;
        let anything = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        schema.open_api_v3_schema = Some(serde_json::from_value(anything)?);
        version.additional_printer_columns = None;
        version.selectable_fields = None;
    }
    Ok(crd)
}
