//! The definitions themselves: the API server takes all of them, without a word.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};
use fairlead_api::crds;
use fairlead_testkit::eventually;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use tokio::sync::OnceCell;

const DEADLINE: Duration = Duration::from_mins(1);

/// A client of a cluster that knows every kind. A definition that was refused fails the test for definitions, and those
/// that use its kind, but no others.
pub(crate) async fn client() -> Result<Client> {
    let client = fairlead_testkit::shared().await.client().await?;
    refused(&client).await;
    Ok(client)
}

/// Installs every definition once; what the API server said to those it did not take.
async fn refused(client: &Client) -> &'static [String] {
    static REFUSED: OnceCell<Vec<String>> = OnceCell::const_new();
    let install_all = async || {
        let mut refused = Vec::new();
        for crd in crds::all() {
            if let Err(error) = install(client, &crd).await {
                refused.push(format!("{}: {error:#}", crd.name_any()));
            }
        }
        refused
    };
    REFUSED.get_or_init(install_all).await
}

async fn install(client: &Client, crd: &CustomResourceDefinition) -> Result<()> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let name = crd.name_any();
    let params = PatchParams::apply("fairlead-api-suite").force().validation_strict();
    api.patch(&name, &params, &Patch::Apply(crd)).await?;
    eventually(DEADLINE, || async { holds(&api.get(&name).await?, "Established") }).await
}

fn holds(crd: &CustomResourceDefinition, wanted: &str) -> Result<()> {
    let conditions = crd.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let found =
        conditions.filter(|condition| condition.type_ == wanted).map(|condition| condition.status.as_str());
    let found: Vec<_> = found.collect();
    ensure!(found == ["True"], "{wanted} is {found:?}");
    Ok(())
}

#[tokio::test]
async fn every_definition_is_established_and_beyond_reproach() -> Result<()> {
    let client = client().await?;
    let refused = refused(&client).await;
    ensure!(refused.is_empty(), "{}", refused.join("\n"));
    let api: Api<CustomResourceDefinition> = Api::all(client);
    for crd in crds::all() {
        let installed = api.get(&crd.name_any()).await?;
        holds(&installed, "NamesAccepted")?;
        let conditions = installed.status.iter().flat_map(|status| status.conditions.iter().flatten());
        let complaints: Vec<_> =
            conditions.filter(|condition| condition.type_ == "NonStructuralSchema").collect();
        ensure!(complaints.is_empty(), "{}: {complaints:?}", crd.name_any());
    }
    Ok(())
}

#[tokio::test]
async fn kubectl_applies_the_committed_files_without_a_warning() -> Result<()> {
    client().await?;
    let directory = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/crds")).canonicalize()?;
    let directory = directory.display().to_string();
    let kubectl = [
        "apply",
        "--server-side",
        "--force-conflicts",
        "--dry-run=server",
        "--warnings-as-errors",
        "-f",
        &directory,
    ];
    let said = fairlead_testkit::shared().await.kubectl(kubectl).await?;
    ensure!(said.lines().count() == crds::all().len(), "{said}");
    Ok(())
}
