//! One cluster with an installed operator for all tests of mirroring, configured to look often.

use anyhow::{Context, Result, ensure};
use fairlead_testkit::images::ImageBuilder;
use fairlead_testkit::registry::Access;
use fairlead_testkit::{Cluster, Registry, eventually, unique};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::Api;
use kube::api::{DeleteParams, ObjectMeta, Patch, PatchParams, PostParams};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::sync::OnceCell;

pub use crate::route::rig::{Rig, SOON, pod};

/// Registries of tests are asked often, so that what changes there is seen in moments.
pub const CONFIG: &str = "
skipLabels: ['example.com/skip=yes']
monitoring:
  registries:
    default: {interval: 20s, maxPerInterval: 100, timeout: 5s}
registries:
  default: {requestsPerSecond: 1000, burst: 1000}
";

/// What clients of registries say they understand.
const MANIFESTS: &str = "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json";

pub async fn shared() -> Result<&'static Rig> {
    static RIG: OnceCell<Rig> = OnceCell::const_new();
    RIG.get_or_try_init(fresh).await
}

/// A rig of its own, for tests that end the operator.
pub async fn fresh() -> Result<Rig> {
    Rig::install_with(Cluster::builder().start().await?, CONFIG).await
}

/// The same with more configuration.
pub async fn configured(more: &str) -> Result<Rig> {
    Rig::install_with(Cluster::builder().start().await?, &format!("{CONFIG}{more}")).await
}

/// The same, with so small a budget for registries that copies take their time.
pub async fn slow() -> Result<Rig> {
    let config = CONFIG.replace("requestsPerSecond: 1000, burst: 1000", "requestsPerSecond: 40, burst: 20");
    Rig::install_with(Cluster::builder().start().await?, &config).await
}

/// A mirror of everything in one registry, after the original.
pub fn mirror_of(source: &Registry, mirrors: &Value, more: &Value) -> Value {
    let mut spec = json!({
        "imageFilter": {"include": [format!("{}/.*", source.host())]},
        "mirrors": mirrors,
    });
    if let (Some(spec), Some(more)) = (spec.as_object_mut(), more.as_object()) {
        spec.extend(more.clone());
    }
    json!({
        "apiVersion": "kuik.enix.io/v1alpha1", "kind": "ClusterImageSetMirror",
        "metadata": {"name": unique("mirror")}, "spec": spec,
    })
}

/// A Pod that uses an image of a registry.
pub fn pod_of(registry: &Registry, image: &str) -> Value {
    pod(&format!("{}/{image}", registry.host()))
}

/// An image that is unlike all others, pushed; its digest.
pub async fn push(registry: &Registry, repository: &str, tag: &str) -> Result<String> {
    let image = ImageBuilder::pause()?.label("unique", &unique("image")).build()?;
    registry.endpoint().push(repository, tag, &image).await?;
    Ok(image.digest())
}

/// The digest of what a registry has under a name, if it has anything.
pub async fn digest_at(registry: &Registry, repository: &str, name: &str) -> Result<Option<String>> {
    digest_asked_by(&registry.endpoint().http()?, registry, repository, name).await
}

/// The same with one client for many questions.
pub async fn digest_asked_by(
    client: &reqwest::Client,
    registry: &Registry,
    repository: &str,
    name: &str,
) -> Result<Option<String>> {
    let path = format!("/v2/{repository}/manifests/{name}");
    let request = registry.endpoint().request(client, Method::HEAD, &path);
    let answer = request.header("accept", MANIFESTS).send().await?;
    if answer.status() == 404 {
        return Ok(None);
    }
    ensure!(answer.status() == 200, "{path} is answered with {}", answer.status());
    let digest = answer.headers().get("docker-content-digest").context("a digest")?;
    Ok(Some(digest.to_str()?.to_owned()))
}

/// Requests to a registry, in order, without those about usage lists, which are written whenever something changes.
pub fn requests(registry: &Registry) -> Result<Vec<Access>> {
    let mut all = registry.accesses()?;
    all.retain(|one| !one.path.contains("fairlead-usage"));
    Ok(all)
}

/// Paths of the manifests that were written to a registry, in order.
pub fn manifests_written(registry: &Registry) -> Result<Vec<String>> {
    let accesses = requests(registry)?.into_iter();
    let written = accesses.filter(|one| one.method == "PUT" && one.path.contains("/manifests/"));
    Ok(written.map(|one| one.path).collect())
}

pub async fn wait_for_copy(registry: &Registry, repository: &str, name: &str, digest: &str) -> Result<()> {
    eventually(SOON, || async {
        let found = digest_at(registry, repository, name).await?;
        ensure!(found.as_deref() == Some(digest), "{repository}:{name} is {found:?}, not {digest}");
        Ok(())
    })
    .await
}

pub async fn wait_for_removal(registry: &Registry, repository: &str, name: &str) -> Result<()> {
    eventually(SOON, || async {
        let found = digest_at(registry, repository, name).await?;
        ensure!(found.is_none(), "{repository}:{name} is still there: {found:?}");
        Ok(())
    })
    .await
}

/// The status of a policy object, once it is as wanted.
pub async fn wait_for_status(rig: &Rig, object: &Value, wanted: impl Fn(&Value) -> bool) -> Result<Value> {
    let api = rig.policies(object).await?;
    let name = object["metadata"]["name"].as_str().context("a name")?;
    eventually(SOON, || async {
        let status = api.get(name).await?.data["status"].clone();
        ensure!(wanted(&status), "{name} says {status:#}\n{}", rig.operator.0.process.log_tail());
        Ok(status)
    })
    .await
}

/// A policy object that is being deleted has gone.
pub async fn wait_until_gone(rig: &Rig, object: &Value) -> Result<()> {
    let api = rig.policies(object).await?;
    let name = object["metadata"]["name"].as_str().context("a name")?;
    eventually(SOON, || async {
        let left = api.get_opt(name).await?;
        ensure!(left.is_none(), "{left:?}\n{}", rig.operator.0.process.log_tail());
        Ok(())
    })
    .await
}

pub fn ready(status: &Value) -> Value {
    let conditions = status["conditions"].as_array();
    let ready = conditions.into_iter().flatten().find(|condition| condition["type"] == "Ready");
    ready.cloned().unwrap_or_default()
}

/// Creates a policy object. Does not wait until a controller has looked at it, as copies would be made meanwhile.
pub async fn create(rig: &Rig, object: &Value) -> Result<()> {
    let api = rig.policies(object).await?;
    api.create(&PostParams::default(), &serde_json::from_value(object.clone())?).await?;
    Ok(())
}

/// Changes a policy object.
pub async fn change(rig: &Rig, object: &Value, patch: &Value) -> Result<()> {
    let name = object["metadata"]["name"].as_str().context("a name")?;
    rig.policies(object).await?.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await?;
    Ok(())
}

pub async fn delete_pod(rig: &Rig, pod: &Pod) -> Result<()> {
    let namespace = pod.metadata.namespace.as_deref().context("a namespace")?;
    let pods: Api<Pod> = Api::namespaced(rig.client().await?, namespace);
    let name = pod.metadata.name.as_deref().context("a name")?;
    pods.delete(name, &DeleteParams::default().grace_period(0)).await?;
    Ok(())
}

/// A pull secret for the user `user` of a registry, created or changed.
pub async fn secret(
    rig: &Rig,
    namespace: &str,
    name: &str,
    registry: &Registry,
    password: &str,
) -> Result<()> {
    let config = json!({"auths": {registry.host(): {"username": "user", "password": password}}});
    let secret = Secret {
        metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
        type_: Some("kubernetes.io/dockerconfigjson".to_owned()),
        data: Some([(".dockerconfigjson".to_owned(), ByteString(config.to_string().into_bytes()))].into()),
        ..Secret::default()
    };
    let secrets: Api<Secret> = Api::namespaced(rig.client().await?, namespace);
    if secrets.get_opt(name).await?.is_none() {
        secrets.create(&PostParams::default(), &secret).await?;
        return Ok(());
    }
    let data = json!({"data": secret.data});
    secrets.patch(name, &PatchParams::default(), &Patch::Merge(data)).await?;
    Ok(())
}
