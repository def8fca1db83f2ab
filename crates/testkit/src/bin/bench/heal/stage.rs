//! What the measurements of healing share: an installed operator that API servers ask about Pods, and two registries
//! of which one will die.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use fairlead_testkit::fake_registry::FakeRegistry;
use fairlead_testkit::images::{self, Image, ImageBuilder};
use fairlead_testkit::operator::{point_webhook_at, webhook_path};
use fairlead_testkit::{Cluster, Operator, Registry, RegistryConfig, eventually, installation};
use serde_json::{Value, json};

use crate::admission::reviews;
use crate::mirror::stage::HOME;

const SOON: Duration = Duration::from_mins(1);
/// What the policy covers.
const TEAM: &str = "team";
const REPOSITORY: &str = "team/app";

pub(crate) struct Stage {
    pub(crate) cluster: Cluster,
    pub(crate) operator: Operator,
    /// Dies.
    pub(crate) first: Registry,
    /// Lives.
    pub(crate) second: Living,
}

/// The registry that lives.
pub(crate) enum Living {
    /// One that nodes can pull from.
    Real(Box<Registry>),
    /// One that knows as whom it was asked.
    Asking(FakeRegistry),
}

impl Living {
    pub(crate) fn host(&self) -> String {
        match self {
            Self::Real(registry) => registry.host(),
            Self::Asking(registry) => registry.host(),
        }
    }

    async fn hold(&self, repository: &str, tag: &str, image: &Image) -> Result<()> {
        match self {
            Self::Real(registry) => registry.endpoint().push(repository, tag, image).await.map(drop),
            Self::Asking(registry) => {
                registry.hold(repository, tag, image);
                Ok(())
            }
        }
    }
}

impl Stage {
    /// Installs the operator, and a policy by which the second registry holds what the first one holds: so many images.
    pub(crate) async fn set_up(cluster: Cluster, second: Living, count: usize, config: &str) -> Result<Self> {
        let program = installation::program()?;
        install(&cluster, &program).await?;
        let first = cluster.registry(RegistryConfig::new()).await?;
        for number in 0..count {
            let image = ImageBuilder::pause()?.label("bench", &number.to_string()).build()?;
            first.endpoint().push(REPOSITORY, &tag(number), &image).await?;
            second.hold(REPOSITORY, &tag(number), &image).await?;
        }
        // What admission is asked about meanwhile.
        for number in 0..reviews::IMAGES {
            let ((repository, tag), image) = (reviews::image(number), images::pause()?);
            second.hold(&format!("{TEAM}/{repository}"), &tag, &image).await?;
        }
        let file = cluster.directory().join("config.yaml");
        std::fs::write(&file, config)?;
        let operator = Operator::of(&program).namespace(HOME).config(&file).start_installed(&cluster).await?;
        point_webhook_at(&cluster, operator.webhook).await?;
        operator.wait_until_ready(SOON).await?;
        operator.wait_to_lead(SOON).await?;
        let stage = Self { cluster, operator, first, second };
        stage.apply_policy().await?;
        Ok(stage)
    }

    async fn apply_policy(&self) -> Result<()> {
        let upstream = |host: String| json!({"registry": host, "path": "/team", "imageFilter": {"include": ["/team/.*"]}});
        let policy = json!({
            "apiVersion": "kuik.enix.io/v1alpha1", "kind": "ClusterReplicatedImageSet",
            "metadata": {"name": "replicas"},
            "spec": {"upstreams": [upstream(self.first.host()), upstream(self.second.host())]},
        });
        let file = self.cluster.directory().join("policy.json");
        std::fs::write(&file, policy.to_string())?;
        self.cluster.kubectl(["apply", "--filename", &file.display().to_string()]).await?;
        let wait = ["wait", "--for=condition=Ready", "clusterreplicatedimagesets/replicas", "--timeout=60s"];
        self.cluster.kubectl(wait).await?;
        eventually(SOON, || async {
            ensure!(webhook_path(&self.cluster).await?.is_some(), "the webhook has no path yet");
            Ok(())
        })
        .await
    }

    pub(crate) fn image(registry: &Registry, number: usize) -> String {
        format!("{}/{REPOSITORY}:{}", registry.host(), tag(number))
    }

    /// Where the images of `reviews` are.
    pub(crate) fn source(&self) -> String {
        format!("{}/{TEAM}", self.second.host())
    }

    /// The webhook's path, and a file with the authority of its certificate.
    pub(crate) async fn webhook(&self) -> Result<(String, PathBuf)> {
        let path = webhook_path(&self.cluster).await?.context("the webhook has no path")?;
        let arguments = ["get", "mutatingwebhookconfiguration", "fairlead", "--output=json"];
        let found: Value = serde_json::from_str(&self.cluster.kubectl(arguments).await?)?;
        let bundle = found.pointer("/webhooks/0/clientConfig/caBundle").and_then(Value::as_str);
        let bundle = STANDARD.decode(bundle.context("the webhook has no authority")?)?;
        let file = self.cluster.directory().join("authority.pem");
        std::fs::write(&file, bundle)?;
        Ok((path, file))
    }
}

/// Installs everything but the operator itself.
async fn install(cluster: &Cluster, program: &std::path::Path) -> Result<()> {
    let output = tokio::process::Command::new(program).arg("manifests").output().await?;
    ensure!(output.status.success(), "fairlead manifests: {}", String::from_utf8_lossy(&output.stderr));
    let file = cluster.directory().join("manifests.yaml");
    std::fs::write(&file, output.stdout)?;
    cluster.kubectl(["apply", "--server-side", "--filename", &file.display().to_string()]).await?;
    cluster.kubectl(["delete", "--namespace", HOME, "deployment", "fairlead"]).await.map(drop)
}

fn tag(number: usize) -> String {
    format!("v{number}")
}
