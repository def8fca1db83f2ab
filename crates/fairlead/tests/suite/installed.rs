//! The operator as it runs once it is installed: the real program, under the rights of the installed `ServiceAccount`.
//!
//! A control plane without a node has no Pods, so the program runs beside it, and the installed webhook is told to
//! look for it by address instead of by Service.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use fairlead_api::names::fairlead::ROUTES;
use fairlead_api::names::kubernetes::CONFIG_MIRROR;
use fairlead_operator::platform::install::{CERTIFICATE_SECRET, LEASE, NAME, PATH_SECRET, WEBHOOK_SERVICE};
use fairlead_testkit::operator::{point_webhook_at, webhook_path};
use fairlead_testkit::{Cluster, eventually};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

const DEADLINE: Duration = Duration::from_mins(1);

/// A running operator.
#[derive(Debug)]
pub struct Operator(pub fairlead_testkit::Operator);

impl Operator {
    /// Starts the operator as the `ServiceAccount` that is installed in `namespace`, and connects the webhook to it.
    pub async fn start(cluster: &Cluster, namespace: &str) -> Result<Self> {
        let builder = fairlead_testkit::Operator::of(env!("CARGO_BIN_EXE_fairlead")).namespace(namespace);
        Self::connect(cluster, builder.start_installed(cluster).await?).await
    }

    /// The same with a configuration.
    pub async fn start_with_config(cluster: &Cluster, namespace: &str, config: &Path) -> Result<Self> {
        let builder = fairlead_testkit::Operator::of(env!("CARGO_BIN_EXE_fairlead")).namespace(namespace);
        Self::connect(cluster, builder.config(config).start_installed(cluster).await?).await
    }

    /// The same with variables in its environment.
    pub async fn start_in_environment(
        cluster: &Cluster,
        namespace: &str,
        config: &Path,
        variables: &[(String, String)],
    ) -> Result<Self> {
        let builder = fairlead_testkit::Operator::of(env!("CARGO_BIN_EXE_fairlead")).namespace(namespace);
        let builder = variables.iter().fold(builder, |builder, (name, value)| builder.env(name, value));
        Self::connect(cluster, builder.config(config).start_installed(cluster).await?).await
    }

    /// The same with a certificate that another program keeps in a directory.
    pub async fn start_with_certificate_in(
        cluster: &Cluster,
        namespace: &str,
        directory: &Path,
    ) -> Result<Self> {
        let kubeconfig = cluster.kubeconfig_as(namespace, NAME).await?;
        let builder = fairlead_testkit::Operator::of(env!("CARGO_BIN_EXE_fairlead")).namespace(namespace);
        let operator = builder.arg(format!("--certificates-dir={}", directory.display())).start(&kubeconfig);
        Self::connect(cluster, operator.await?).await
    }

    async fn connect(cluster: &Cluster, operator: fairlead_testkit::Operator) -> Result<Self> {
        point_webhook_at(cluster, operator.webhook).await?;
        Ok(Self(operator))
    }

    /// Waits until it does all that an installed operator does: ready, leading, certified, and asked about Pods.
    pub async fn works(&self, cluster: &Cluster) -> Result<()> {
        self.keeps_its_certificate(cluster).await.context("it does not keep its certificate")?;
        self.serves(cluster).await
    }

    /// [`Operator::works`], but for the certificate.
    pub async fn serves(&self, cluster: &Cluster) -> Result<()> {
        self.0.wait_until_ready(DEADLINE).await.context("it does not become ready")?;
        self.leads(cluster).await.context("it does not lead")?;
        admits_with_record(cluster).await.context("it is not asked about Pods")
    }

    /// Its own Pods, which meet the standard that their namespace enforces, and mirrors of static Pods are created
    /// without it being asked. Only to be called while it [`Operator::works`].
    pub async fn leaves_alone_what_it_should(&self, cluster: &Cluster) -> Result<()> {
        let client = cluster.client().await?;
        let own: Api<Pod> = Api::namespaced(client.clone(), &self.0.namespace);
        let selector = ListParams::default().labels("app.kubernetes.io/name=fairlead");
        own.delete_collection(&DeleteParams::default().grace_period(0), &selector).await?;
        eventually(DEADLINE, || async {
            let pods = own.list(&selector).await?.items;
            let alive =
                pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()).collect::<Vec<_>>();
            ensure!(alive.len() == 2, "there are {} Pods of the Deployment", alive.len());
            let asked = alive.iter().any(|pod| pod.annotations().contains_key(ROUTES));
            ensure!(!asked, "the operator was asked about its own Pods");
            Ok(())
        })
        .await?;

        let namespace = cluster.namespace("mirrored").await?;
        let mut mirror = pod("mirror");
        mirror.annotations_mut().insert(CONFIG_MIRROR.to_owned(), "hash".to_owned());
        mirror.spec.get_or_insert_default().node_name = Some("somewhere".to_owned());
        let mirror =
            Api::<Pod>::namespaced(client, &namespace).create(&PostParams::default(), &mirror).await?;
        ensure!(!mirror.annotations().contains_key(ROUTES), "the operator was asked about a mirror Pod");
        Ok(())
    }

    async fn leads(&self, cluster: &Cluster) -> Result<()> {
        let leases: Api<Lease> = Api::namespaced(cluster.client().await?, &self.0.namespace);
        eventually(DEADLINE, || async {
            let holder = leases.get(LEASE).await?.spec.and_then(|spec| spec.holder_identity);
            ensure!(holder.as_deref() == Some(&self.0.identity), "the Lease is held by {holder:?}");
            Ok(())
        })
        .await
    }

    async fn keeps_its_certificate(&self, cluster: &Cluster) -> Result<()> {
        let client = cluster.client().await?;
        let secrets: Api<Secret> = Api::namespaced(client.clone(), &self.0.namespace);
        let webhooks: Api<MutatingWebhookConfiguration> = Api::all(client);
        eventually(DEADLINE, || async {
            let data = secrets.get(CERTIFICATE_SECRET).await?.data.unwrap_or_default();
            ensure!(
                data.contains_key("tls.crt"),
                "the Secret holds {:?} only",
                data.keys().collect::<Vec<_>>()
            );
            let webhook = webhooks.get(NAME).await?.webhooks.unwrap_or_default().into_iter().next();
            let bundle = webhook.and_then(|webhook| webhook.client_config.ca_bundle).unwrap_or_default();
            ensure!(!bundle.0.is_empty(), "the webhook has no CA bundle");
            Ok(())
        })
        .await
    }

    /// Asks for a new certificate the way a person would, and waits until it is there.
    pub async fn rotates_its_certificate(&self, cluster: &Cluster) -> Result<()> {
        let secrets: Api<Secret> = Api::namespaced(cluster.client().await?, &self.0.namespace);
        let certificate = async || {
            let data = secrets.get(CERTIFICATE_SECRET).await?.data.unwrap_or_default();
            data.get("tls.crt").cloned().context("the Secret has no certificate")
        };
        let before = certificate().await?;
        let secret =
            ["secret", CERTIFICATE_SECRET, "--namespace", &self.0.namespace, "fairlead.dev/rotate=now"];
        cluster.kubectl(["annotate"].iter().chain(&secret)).await?;
        eventually(DEADLINE, || async {
            ensure!(
                certificate().await? != before,
                "the certificate is still the old one: {}",
                self.0.process.log_tail()
            );
            Ok(())
        })
        .await?;
        admits_with_record(cluster).await.context("it is not asked about Pods after a rotation")
    }

    /// Points the webhook at its Service, without a path, as the manifests do, and waits until the path is there again.
    pub async fn fills_in_the_path_of_its_service(&self, cluster: &Cluster) -> Result<()> {
        let before = webhook_path(cluster).await?.context("no path")?;
        let service = json!({ "name": WEBHOOK_SERVICE, "namespace": self.0.namespace, "port": 443 });
        patch_webhook(cluster, &to_service(&service)).await?;
        eventually(DEADLINE, || async {
            let found = webhook_path(cluster).await?;
            ensure!(
                found.as_ref() == Some(&before),
                "no path, or another one: {}",
                self.0.process.log_tail()
            );
            Ok(())
        })
        .await?;
        point_webhook_at(cluster, self.0.webhook).await
    }

    /// Takes the tokens away, and waits until the one that API servers use is stored again.
    pub async fn replaces_a_lost_token(&self, cluster: &Cluster) -> Result<()> {
        let secrets: Api<Secret> = Api::namespaced(cluster.client().await?, &self.0.namespace);
        let path = webhook_path(cluster).await?.context("no path")?;
        let removal = Patch::Merge(json!({ "data": { "path-token": null } }));
        secrets.patch(PATH_SECRET, &PatchParams::default(), &removal).await?;
        eventually(DEADLINE, || async {
            let data = secrets.get(PATH_SECRET).await?.data.unwrap_or_default();
            let token = data.get("path-token").context("no token")?;
            ensure!(path.as_bytes().ends_with(&token.0), "another token than the one in use");
            Ok(())
        })
        .await
    }

    /// Ends it politely, and lets the webhook look for a Service again, as it does in every real installation.
    pub async fn stop(self, cluster: &Cluster) -> Result<()> {
        self.0.stop().await?;
        let path = webhook_path(cluster).await?;
        let service =
            json!({ "name": WEBHOOK_SERVICE, "namespace": self.0.namespace, "path": path, "port": 443 });
        patch_webhook(cluster, &to_service(&service)).await
    }
}

/// The patch that makes the webhook look for a Service.
fn to_service(service: &Value) -> Value {
    json!([
        { "op": "remove", "path": "/webhooks/0/clientConfig/url" },
        { "op": "add", "path": "/webhooks/0/clientConfig/service", "value": service },
    ])
}

async fn patch_webhook(cluster: &Cluster, patch: &Value) -> Result<()> {
    let patch = format!("--patch={patch}");
    cluster.kubectl(["patch", "mutatingwebhookconfiguration", NAME, "--type=json", &patch]).await.map(drop)
}

/// Waits until a new Pod carries the record of admission.
async fn admits_with_record(cluster: &Cluster) -> Result<()> {
    let namespace = cluster.namespace("admitted").await?;
    let pods: Api<Pod> = Api::namespaced(cluster.client().await?, &namespace);
    eventually(DEADLINE, || async {
        let pod = pods.create(&PostParams::default(), &pod("asked-about")).await?;
        ensure!(pod.annotations().contains_key(ROUTES), "the Pod was admitted without a record");
        Ok(())
    })
    .await
}

/// A Pod as people write them.
pub fn pod(prefix: &str) -> Pod {
    let pod = json!({
        "metadata": { "generateName": format!("{prefix}-") },
        "spec": { "containers": [{ "name": "main", "image": "registry.example.com/app:1" }] },
    });
    serde_json::from_value(pod).expect("a Pod")
}
