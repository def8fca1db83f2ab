//! The wire to the API server can be cut, stalled and healed.

use std::time::Duration;

use anyhow::{Result, bail};
use fairlead_testkit::{eventually, shared};
use k8s_openapi::api::core::v1::Namespace;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};

#[tokio::test]
async fn a_client_loses_and_finds_its_api_server() -> Result<()> {
    let cluster = shared().await;
    let proxy = cluster.proxy().await?;
    let path = cluster.kubeconfig_through(&proxy, &cluster.kubeconfig())?;
    let config =
        Config::from_custom_kubeconfig(Kubeconfig::read_from(path)?, &KubeConfigOptions::default()).await?;
    let namespaces: Api<Namespace> = Api::all(Client::try_from(config)?);
    namespaces.get("default").await?;

    proxy.cut();
    assert!(namespaces.get("default").await.is_err());
    proxy.heal();
    eventually(Duration::from_secs(10), || async { Ok(namespaces.get("default").await?) }).await?;

    proxy.stall();
    let mut request = Box::pin(namespaces.get("default"));
    match tokio::time::timeout(Duration::from_millis(300), &mut request).await {
        Ok(answer) => bail!("a stalled wire let an answer through: {answer:?}"),
        Err(_) => proxy.heal(),
    }
    request.await?;
    Ok(())
}
