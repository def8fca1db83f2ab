//! A proxy cache in Harbor as one of the places of an image.

use anyhow::Result;
use fairlead_operator::platform::install::DEFAULT_NAMESPACE;
use fairlead_testkit::harbor::{PASSWORD, Upstream};
use fairlead_testkit::{Cluster, FakeHarbor, RegistryConfig};
use serde_json::json;

use super::rig::{Rig, image, pod, push, route};
use crate::kubectl;

#[tokio::test]
async fn a_pod_is_given_the_cache_of_its_registry_while_harbor_calls_that_healthy() -> Result<()> {
    let cluster = Cluster::builder().start().await?;
    let harbor = FakeHarbor::start().await?;
    // What Harbor itself would serve.
    let served = cluster.registry(RegistryConfig::new()).await?;
    let upstream = cluster.registry(RegistryConfig::new()).await?;
    push(&upstream, "team/app", "cached").await?;
    push(&served, "hub/team/app", "cached").await?;
    let address = format!("http://{}", upstream.host());
    harbor.upstream(&address, Upstream::Open);
    let config = format!("harbor: {{url: '{}', pullHost: '{}'}}\n", harbor.url(), served.host());
    let rig = Rig::install_with(cluster, &config).await?;
    let objects = [
        json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": "harbor-admin-password", "namespace": DEFAULT_NAMESPACE},
            "stringData": {"HARBOR_ADMIN_PASSWORD": PASSWORD},
        }),
        json!({
            "apiVersion": "harbor-reef.nvidia.com/v1alpha1", "kind": "ProxyCache", "metadata": {"name": "hub"},
            "spec": {"type": "public", "name": "hub", "url": address, "routing": {"priority": -1}},
        }),
    ];
    kubectl::apply(&rig.cluster, &objects, &[]).await?;
    let namespace = rig.namespace().await?;
    let asked = format!("{}/team/app:1", upstream.host());
    let cached = format!("{}/hub/team/app:1", served.host());
    let routed = rig.create_until(&namespace, &pod(&asked), |pod| image(pod) == cached).await?;
    assert_eq!(route(&routed, "app")["by"], "ProxyCache//hub");
    Ok(())
}
