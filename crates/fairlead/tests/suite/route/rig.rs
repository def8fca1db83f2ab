//! One cluster with an installed operator for all tests of routing. Every test has registries of its own, so the
//! policies of one are about images of no other.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fairlead_operator::platform::install::DEFAULT_NAMESPACE;
use fairlead_testkit::images::{self, ImageBuilder};
use fairlead_testkit::{Cluster, Registry, RegistryConfig, eventually, unique};
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::discovery::ApiResource;
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

use crate::install::manifests;
use crate::installed::Operator;
use crate::kubectl;

/// Time for what should happen within moments on a machine that has other things to do.
pub const SOON: Duration = Duration::from_mins(1);

pub struct Rig {
    pub cluster: Cluster,
    pub operator: Operator,
}

/// The rig that all tests without a node share.
pub async fn shared() -> Result<&'static Rig> {
    static RIG: OnceCell<Rig> = OnceCell::const_new();
    RIG.get_or_try_init(|| async { Rig::install(Cluster::builder().audit(true).start().await?).await }).await
}

impl Rig {
    pub async fn install(cluster: Cluster) -> Result<Self> {
        Self::install_with(cluster, "").await
    }

    /// With a configuration, as its text.
    pub async fn install_with(cluster: Cluster, config: &str) -> Result<Self> {
        // The operator runs beside the cluster; a real node would only try in vain to run another one.
        let file = config_file(&cluster);
        std::fs::write(&file, config)?;
        let installed = manifests(&["--config", &file.display().to_string()])?;
        let installed: Vec<_> =
            installed.into_iter().filter(|object| object["kind"] != "Deployment").collect();
        kubectl::apply(&cluster, &installed, &[]).await?;
        kubectl::definitions_are_served(&cluster).await?;
        let operator = Operator::start_with_config(&cluster, DEFAULT_NAMESPACE, &file).await?;
        operator.serves(&cluster).await?;
        Ok(Self { cluster, operator })
    }

    /// Changes the configuration, for operators that are started afterwards.
    pub fn configure(&self, config: &str) -> Result<()> {
        Ok(std::fs::write(config_file(&self.cluster), config)?)
    }

    /// Starts another operator with the configuration.
    pub async fn start_operator(&self) -> Result<Operator> {
        Operator::start_with_config(&self.cluster, DEFAULT_NAMESPACE, &config_file(&self.cluster)).await
    }

    /// The same with variables in its environment.
    pub async fn start_operator_with(&self, variables: &[(String, String)]) -> Result<Operator> {
        let file = config_file(&self.cluster);
        Operator::start_in_environment(&self.cluster, DEFAULT_NAMESPACE, &file, variables).await
    }

    pub async fn client(&self) -> Result<Client> {
        self.cluster.client().await
    }

    /// A registry that holds `team/app:1`, told apart from other images by the name of the test.
    pub async fn registry(&self, config: RegistryConfig, holds: &str) -> Result<Registry> {
        let registry = self.cluster.registry(config).await?;
        push(&registry, "team/app", holds).await?;
        Ok(registry)
    }

    /// Such a registry, and another one that holds the copy.
    pub async fn copied(&self, target: RegistryConfig, holds: &str) -> Result<(Registry, Registry)> {
        let source = self.registry(RegistryConfig::new(), holds).await?;
        let target = self.cluster.registry(target).await?;
        push(&target, "copies/team/app", holds).await?;
        Ok((source, target))
    }

    /// Registries that hold nothing yet.
    pub async fn registries<const COUNT: usize>(&self) -> Result<[Registry; COUNT]> {
        let all = (0..COUNT).map(|_| self.cluster.registry(RegistryConfig::new()));
        let all = try_join_all(all).await?;
        Ok(all.try_into().expect("as many as were asked for"))
    }

    /// Applies an object of kuik's and waits until admission knows it.
    pub async fn apply(&self, object: &Value) -> Result<()> {
        let api = self.policies(object).await?;
        let name = object["metadata"]["name"].as_str().context("a name")?;
        let params = PatchParams::apply("test").force();
        let applied = api.patch(name, &params, &Patch::Apply(object)).await?;
        // The condition is written from the very index that admission reads.
        eventually(SOON, || async {
            let object = api.get(name).await?;
            let conditions = object.data["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let seen = conditions.iter().any(|condition| {
                condition["type"] == "Ready"
                    && condition["observedGeneration"].as_i64() >= applied.metadata.generation
            });
            ensure!(seen, "{name} is not looked at: {:?}", object.data["status"]);
            Ok(())
        })
        .await
    }

    pub async fn policies(&self, object: &Value) -> Result<Api<DynamicObject>> {
        let kind = object["kind"].as_str().context("a kind")?;
        let resource = ApiResource {
            group: "kuik.enix.io".to_owned(),
            version: "v1alpha1".to_owned(),
            api_version: "kuik.enix.io/v1alpha1".to_owned(),
            kind: kind.to_owned(),
            plural: format!("{}s", kind.to_lowercase()),
        };
        let client = self.client().await?;
        Ok(match object["metadata"]["namespace"].as_str() {
            Some(namespace) => Api::namespaced_with(client, namespace, &resource),
            None => Api::all_with(client, &resource),
        })
    }

    pub async fn delete(&self, object: &Value) -> Result<()> {
        let name = object["metadata"]["name"].as_str().context("a name")?;
        self.policies(object).await?.delete(name, &DeleteParams::default()).await?;
        Ok(())
    }

    pub async fn create(&self, namespace: &str, pod: &Value) -> Result<Pod> {
        let pods: Api<Pod> = Api::namespaced(self.client().await?, namespace);
        Ok(pods.create(&PostParams::default(), &serde_json::from_value(pod.clone())?).await?)
    }

    /// Creates Pods until one is as wanted: what changed outside is noticed within moments, not at once.
    pub async fn create_until(
        &self,
        namespace: &str,
        pod: &Value,
        wanted: impl Fn(&Pod) -> bool,
    ) -> Result<Pod> {
        eventually(SOON, || async {
            let pod = self.create(namespace, pod).await?;
            ensure!(wanted(&pod), "{}: {:?}", image(&pod), pod.annotations());
            Ok(pod)
        })
        .await
    }

    pub async fn namespace(&self) -> Result<String> {
        self.cluster.namespace("routed").await
    }
}

fn config_file(cluster: &Cluster) -> PathBuf {
    cluster.directory().join("config.yaml")
}

pub async fn push(registry: &Registry, repository: &str, label: &str) -> Result<String> {
    let image = ImageBuilder::pause()?.label("test", label).build()?;
    registry.endpoint().push(repository, "1", &image).await?;
    Ok(images::Image::digest(&image))
}

/// A Pod with one container, that is pulled if it is not there.
pub fn pod(image: &str) -> Value {
    json!({
        "metadata": {"generateName": "routed-"},
        "spec": {"containers": [{"name": "app", "image": image, "imagePullPolicy": "IfNotPresent"}]},
    })
}

/// The image of the first container.
pub fn image(pod: &Pod) -> &str {
    let spec = pod.spec.as_ref().expect("a specification");
    spec.containers[0].image.as_deref().expect("an image")
}

pub fn pull_secrets(pod: &Pod) -> Vec<&str> {
    let spec = pod.spec.as_ref().expect("a specification");
    spec.image_pull_secrets.iter().flatten().map(|secret| secret.name.as_str()).collect()
}

/// An annotation that holds JSON.
pub fn annotation(pod: &Pod, name: &str) -> Option<Value> {
    pod.annotations().get(name).map(|text| serde_json::from_str(text).expect("JSON"))
}

/// What was recorded about one image.
pub fn route(pod: &Pod, key: &str) -> Value {
    annotation(pod, "fairlead.dev/routes").expect("a record")["images"][key].clone()
}

/// Two places that hold the same images.
pub fn replicas(first: &Registry, second: &Registry) -> Value {
    let upstream = |registry: &Registry| json!({"registry": registry.host(), "path": "/team", "imageFilter": {"include": ["/team/.*"]}});
    json!({
        "apiVersion": "kuik.enix.io/v1alpha1", "kind": "ClusterReplicatedImageSet",
        "metadata": {"name": unique("replicas")},
        "spec": {"upstreams": [upstream(first), upstream(second)]},
    })
}

/// A mirror of everything in one registry, before the original.
pub fn mirror(of: &Registry, at: &Registry) -> Value {
    json!({
        "apiVersion": "kuik.enix.io/v1alpha1", "kind": "ClusterImageSetMirror",
        "metadata": {"name": unique("mirror")},
        "spec": {
            "priority": -1,
            "imageFilter": {"include": [format!("{}/.*", of.host())]},
            "mirrors": [{"registry": at.host(), "path": "/copies"}],
        },
    })
}
