//! A proxy cache in Harbor as one of the places of an image.

use std::net::SocketAddr;

use anyhow::{Context, Result, bail, ensure};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use fairlead_operator::platform::install::DEFAULT_NAMESPACE;
use fairlead_testkit::harbor::{PASSWORD, Upstream};
use fairlead_testkit::registry::Endpoint;
use fairlead_testkit::{Cluster, FakeHarbor, Registry, RegistryConfig, eventually};
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::rig::{Rig, SOON, image, pod, pull_secrets, push, route};
use crate::kubectl;
use crate::person::Person;
use crate::rights;

/// A Harbor, and an operator that manages it.
struct Scene {
    rig: Rig,
    harbor: FakeHarbor,
    upstream: Registry,
}

impl Scene {
    async fn start(cluster: Cluster, config: &str) -> Result<Self> {
        let harbor = FakeHarbor::start_at(cluster.host_address()).await?;
        let upstream = cluster.registry(RegistryConfig::new()).await?;
        push(&upstream, "team/app", "cached").await?;
        harbor.upstream(&upstream.endpoint().url(), Upstream::Open);
        let rig =
            Rig::install_with(cluster, &format!("{config}harbor: {{url: '{}'}}\n", harbor.url())).await?;
        let scene = Self { rig, harbor, upstream };
        scene.password("1").await?;
        scene.cache("hub", &json!({"type": "public", "routing": {"priority": -1}})).await?;
        Ok(scene)
    }

    /// The administrator's Secret. Another version of it lets the operator look at every cache again.
    async fn password(&self, version: &str) -> Result<()> {
        let secret = json!({
            "metadata": {"annotations": {"example.com/version": version}},
            "stringData": {"HARBOR_ADMIN_PASSWORD": PASSWORD},
        });
        self.secret(DEFAULT_NAMESPACE, "harbor-admin-password", &secret).await
    }

    async fn secret(&self, namespace: &str, name: &str, rest: &Value) -> Result<()> {
        let mut secret = rest.clone();
        secret["apiVersion"] = json!("v1");
        secret["kind"] = json!("Secret");
        secret["metadata"]["name"] = json!(name);
        secret["metadata"]["namespace"] = json!(namespace);
        kubectl::apply(&self.rig.cluster, &[secret], &[]).await
    }

    /// A cache of the upstream.
    async fn cache(&self, name: &str, rest: &Value) -> Result<()> {
        let mut spec = rest.clone();
        spec["name"] = json!(name);
        spec["url"] = json!(self.upstream.endpoint().url());
        let cache = json!({
            "apiVersion": "harbor-reef.nvidia.com/v1alpha1", "kind": "ProxyCache", "metadata": {"name": name},
            "spec": spec,
        });
        kubectl::apply(&self.rig.cluster, &[cache], &[]).await
    }

    fn asked(&self) -> String {
        format!("{}/team/app:1", self.upstream.host())
    }

    /// The same through a project.
    fn cached(&self, project: &str) -> String {
        format!("{}/{project}/team/app:1", self.harbor.address())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_is_given_the_cache_of_its_registry_while_harbor_calls_that_healthy() -> Result<()> {
    // Where a watch does not begin with a list, both rights are used.
    let cluster = Cluster::builder().audit(true).feature_gate("WatchList", false).start().await?;
    let scene = Scene::start(cluster, "").await?;
    let Scene { rig, harbor, .. } = &scene;
    let namespace = rig.namespace().await?;
    let (asked, cached) = (scene.asked(), scene.cached("hub"));
    let routed = rig.create_until(&namespace, &pod(&asked), |pod| image(pod) == cached).await?;
    assert_eq!(route(&routed, "app")["by"], "ProxyCache//hub");
    let kubeconfig = rig.cluster.kubeconfig();
    let kubeconfig = kubeconfig.to_str().context("a path in plain text")?;
    let explained =
        Person::new()?.run(&["explain", &asked, "-n", &namespace, "--kubeconfig", kubeconfig], "")?;
    let explained = &explained.is(0).output;
    ensure!(explained.contains(&cached) && explained.contains("ProxyCache/hub, routing"), "{explained}");

    // A private project is pulled from with a copy of its secret, and goes first.
    let login = json!({"stringData": {"username": "u", "password": "p"}});
    scene.secret(DEFAULT_NAMESPACE, "upstream", &login).await?;
    let vault = rig.cluster.namespace("vault").await?;
    let auth = BASE64_STANDARD.encode(format!("admin:{PASSWORD}"));
    let logins = json!({"auths": {harbor.address().to_string(): {"auth": auth}}}).to_string();
    let login =
        json!({"type": "kubernetes.io/dockerconfigjson", "stringData": {".dockerconfigjson": logins}});
    scene.secret(&vault, "pull", &login).await?;
    let routing = json!({"priority": -2, "credentialSecret": {"name": "pull", "namespace": vault}});
    let private = json!({"type": "private", "credentials": {"secretName": "upstream"}, "routing": routing});
    scene.cache("private", &private).await?;
    let cached = scene.cached("private");
    let routed = rig.create_until(&namespace, &pod(&asked), |pod| image(pod) == cached).await?;
    let names = pull_secrets(&routed);
    ensure!(names.len() == 1, "{names:?}");
    let copies: Api<Secret> = Api::namespaced(rig.client().await?, &namespace);
    let copy = copies.get(names[0]).await?;
    let owners = copy.owner_references();
    let own = owners.iter().find(|owner| owner.kind == "ProxyCache" && owner.name == "private");
    let api_version = own.map(|owner| &*owner.api_version);
    ensure!(api_version == Some("harbor-reef.nvidia.com/v1alpha1"), "{owners:?}");

    // Harbor says that the upstream is gone: the caches are offered no longer.
    harbor.upstream(&scene.upstream.endpoint().url(), Upstream::Down);
    harbor.check_health();
    scene.password("2").await?;
    rig.create_until(&namespace, &pod(&asked), |pod| image(pod) == asked).await?;
    let cases = ["there is no ProxyCache", "no Harbor is configured; see harbor.url"];
    rights::check_cases(&rig.cluster, DEFAULT_NAMESPACE, &cases).await
}

#[tokio::test]
#[ignore = "needs root; `make test` as root runs it"]
async fn a_node_pulls_through_the_cache() -> Result<()> {
    let cluster = Cluster::builder().node(true).start().await?;
    let scene = Scene::start(cluster, "registries:\n  default: {plainHttp: true}\n").await?;
    let rig = &scene.rig;
    let SocketAddr::V4(address) = scene.harbor.address() else { bail!("IPv4") };
    rig.cluster.pull_from(&address.to_string(), &Endpoint::at(address))?;
    let namespace = rig.namespace().await?;
    let cached = scene.cached("hub");
    rig.create_until(&namespace, &pod(&scene.asked()), |pod| image(pod) == cached).await?;
    // Of this image the node has nothing yet.
    push(&scene.upstream, "team/other", "pulled through").await?;
    let cached = cached.replace("team/app", "team/other");
    let created = rig.create(&namespace, &pod(&scene.asked().replace("team/app", "team/other"))).await?;
    let pods: Api<Pod> = Api::namespaced(rig.client().await?, &namespace);
    eventually(SOON * 3, || async {
        let pod = pods.get(&created.name_any()).await?;
        let status = pod.status.clone().unwrap_or_default();
        ensure!(image(&pod) == cached && status.phase.as_deref() == Some("Running"), "{status:?}");
        Ok(())
    })
    .await?;
    let requests = scene.harbor.requests();
    let blobs = requests.iter().filter(|request| request.path.starts_with("/v2/hub/team/other/blobs/"));
    ensure!(blobs.filter(|request| request.status == 200).count() > 0, "{requests:?}");
    Ok(())
}
