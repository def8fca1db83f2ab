//! Replicas of the webhook in this process, called by the real API server.

use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use fairlead_operator::admission::{self, AdmissionState, Limits, Rewrites, Router};
use fairlead_operator::cluster::watch::{self, Resources, Watches};
use fairlead_operator::context::{Basis, Context};
use fairlead_operator::controller::events::Errors;
use fairlead_operator::platform::certificates::{
    self, Files, Keeper, Leads, PathKeeper, Paths, Resolver, Settings, system_clock,
};
use fairlead_operator::platform::clock::Clock;
use fairlead_operator::platform::config::Config;
use fairlead_operator::platform::telemetry::{Heartbeats, page};
use fairlead_plan::exclusions::Exclusions;
use fairlead_testkit::{Cluster, Part, eventually, install_crypto, shared, unique};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::candidate::wait_for_end;

pub const SECRET: &str = Settings::SECRET;
pub const PATIENCE: Duration = Duration::from_mins(1);

/// A place for replicas: a namespace of the operator, one of its users, and a webhook configuration of its own.
pub struct Bench {
    pub cluster: &'static Cluster,
    pub client: Client,
    pub own_namespace: String,
    pub namespace: String,
    pub configuration: String,
}

impl Bench {
    pub async fn new() -> Result<Self> {
        install_crypto();
        let cluster = shared().await;
        let client = cluster.client().await?;
        Ok(Self {
            own_namespace: cluster.namespace("operator").await?,
            namespace: cluster.namespace("team").await?,
            configuration: unique("webhook"),
            client,
            cluster,
        })
    }

    /// Registers one webhook for each replica, so that every Pod asks all of them.
    pub async fn register(&self, replicas: &[&Replica]) -> Result<()> {
        let webhooks: Vec<Value> = replicas
            .iter()
            .map(|replica| {
                json!({
                    "name": self.webhook(replica),
                    "admissionReviewVersions": ["v1"],
                    "sideEffects": "NoneOnDryRun",
                    "failurePolicy": "Ignore",
                    "timeoutSeconds": 5,
                    "clientConfig": {"url": format!("https://127.0.0.1:{}", replica.port)},
                    "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
                    "namespaceSelector": {"matchExpressions": [
                        {"key": "kubernetes.io/metadata.name", "operator": "In", "values": [self.namespace, self.own_namespace]}
                    ]},
                })
            })
            .collect();
        let configuration = serde_json::from_value(json!({
            "metadata": {"name": self.configuration},
            "webhooks": webhooks,
        }))?;
        self.configurations().create(&PostParams::default(), &configuration).await?;
        Ok(())
    }

    /// Names differ from test to test, since the API server counts failures by name.
    pub fn webhook(&self, replica: &Replica) -> String {
        format!("port-{}.{}.fairlead.dev", replica.port, self.configuration)
    }

    pub fn configurations(&self) -> Api<MutatingWebhookConfiguration> {
        Api::all(self.client.clone())
    }

    pub fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.client.clone(), &self.own_namespace)
    }

    /// What the Secret holds under `key`, as text.
    pub async fn secret_text(&self, key: &str) -> Result<String> {
        let secret = self.secrets().get(SECRET).await?;
        let bytes = secret.data.unwrap_or_default().remove(key).with_context(|| format!("no {key}"))?;
        Ok(String::from_utf8(bytes.0)?)
    }

    pub async fn bundles(&self) -> Result<Vec<String>> {
        let configuration = self.configurations().get(&self.configuration).await?;
        let bundle = |webhook: k8s_openapi::api::admissionregistration::v1::MutatingWebhook| {
            Ok(String::from_utf8(webhook.client_config.ca_bundle.unwrap_or_default().0)?)
        };
        configuration.webhooks.unwrap_or_default().into_iter().map(bundle).collect()
    }

    /// The paths that API servers call.
    pub async fn registered_paths(&self) -> Result<Vec<String>> {
        let configuration = self.configurations().get(&self.configuration).await?;
        let webhooks = configuration.webhooks.unwrap_or_default().into_iter();
        let urls = webhooks.map(|webhook| webhook.client_config.url.context("no URL"));
        urls.map(|url| Ok(reqwest::Url::parse(&url?)?.path().to_owned())).collect()
    }

    /// The token that is in force: in the Secret, alone, and in the path of every webhook.
    pub async fn settled_token(&self) -> Result<String> {
        let token = self.secret_text("path-token").await?;
        for other in ["next-path-token", "previous-path-token"] {
            ensure!(self.secret_text(other).await.is_err(), "there is a {other}");
        }
        for path in self.registered_paths().await? {
            ensure!(path == format!("/mutate/{token}"), "{path} is registered");
        }
        Ok(token)
    }

    /// One authority, in the Secret and in every webhook.
    pub async fn settled(&self) -> Result<String> {
        let bundle = self.secret_text("ca.crt").await?;
        ensure!(bundle.matches("BEGIN CERTIFICATE").count() == 1, "bundle of several:\n{bundle}");
        ensure!(bundle == self.secret_text("issuer.crt").await?, "the bundle is not the issuer");
        ensure!(self.secret_text("tls.crt").await?.contains("BEGIN CERTIFICATE"), "no leaf");
        ensure!(self.secret_text("next-issuer.crt").await.is_err(), "something is staged");
        for trusted in self.bundles().await? {
            ensure!(trusted == bundle, "the webhook configuration trusts\n{trusted}");
        }
        Ok(bundle)
    }

    pub async fn wait_settled(&self) -> Result<String> {
        eventually(PATIENCE, || self.settled()).await
    }

    pub async fn wait_for_records(&self) -> Result<()> {
        eventually(PATIENCE, || async {
            let pod = self.create_pod(&self.namespace, &json!({})).await?;
            ensure!(record(&pod).is_some(), "a Pod without a record");
            Ok(())
        })
        .await
    }

    pub async fn create_pod(&self, namespace: &str, metadata: &Value) -> Result<Pod> {
        create_pod(&self.client, namespace, metadata).await
    }

    pub async fn annotate_secret(&self, value: &str) -> Result<()> {
        let patch = json!({"metadata": {"annotations": {"fairlead.dev/rotate": value}}});
        self.secrets().patch(SECRET, &PatchParams::default(), &Patch::Merge(patch)).await?;
        Ok(())
    }

    /// How often API servers let a Pod through because this webhook did not answer.
    pub async fn failed_open(&self, replica: &Replica) -> Result<u64> {
        self.failed_open_of(&self.webhook(replica)).await
    }

    pub async fn failed_open_of(&self, webhook: &str) -> Result<u64> {
        let page = self.client.request_text(axum::http::Request::get("/metrics").body(Vec::new())?).await?;
        let label = format!("name=\"{webhook}\"");
        let lines = page.lines().filter(|line| {
            line.starts_with("apiserver_admission_webhook_fail_open_count{") && line.contains(&label)
        });
        Ok(lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum())
    }

    /// What the API server's log says about calls to this replica.
    pub fn complaints(&self, replica: &Replica) -> Result<String> {
        let webhook = self.webhook(replica);
        let log = self.cluster.logs(Part::ApiServer)?;
        Ok(log.lines().filter(|line| line.contains(&webhook)).collect::<Vec<_>>().join("\n"))
    }

    pub async fn clean_up(&self) -> Result<()> {
        self.configurations().delete(&self.configuration, &DeleteParams::default()).await?;
        Ok(())
    }
}

pub async fn create_pod(client: &Client, namespace: &str, metadata: &Value) -> Result<Pod> {
    let mut metadata = metadata.clone();
    if metadata.get("name").is_none() {
        metadata["generateName"] = json!("pod-");
    }
    let pod = serde_json::from_value(json!({
        "metadata": metadata,
        "spec": {
            "initContainers": [{"name": "setup", "image": "busybox:1"}],
            "containers": [{"name": "web", "image": "nginx:1"}],
        },
    }))?;
    Ok(Api::<Pod>::namespaced(client.clone(), namespace).create(&PostParams::default(), &pod).await?)
}

/// The record on a Pod.
pub fn record(pod: &Pod) -> Option<Value> {
    let text = pod.metadata.annotations.as_ref()?.get("fairlead.dev/routes")?;
    serde_json::from_str(text).ok()
}

/// One replica: keeper and server.
pub struct Replica {
    pub port: u16,
    pub shutdown: CancellationToken,
    registry: Registry,
    leads: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<()>>,
}

impl Replica {
    pub async fn start(bench: &Bench, validity: Duration, leads: bool) -> Result<Self> {
        let names = ["127.0.0.1".to_owned()];
        let settings = Settings::new(&bench.own_namespace, &bench.configuration, &names, validity)?;
        Self::start_with(bench, settings, leads).await
    }

    pub async fn start_with(bench: &Bench, settings: Settings, leads: bool) -> Result<Self> {
        let leads = Arc::new(AtomicBool::new(leads));
        let shutdown = CancellationToken::new();
        let mut registry = Registry::default();
        let asks: Leads = Arc::new({
            let leads = Arc::clone(&leads);
            move || leads.load(Ordering::SeqCst)
        });
        // A client of its own, as a process of its own would have.
        let client = bench.cluster.client().await?;
        let metrics = certificates::Metrics::register(&mut registry);
        let heartbeat = Heartbeats::default().add("certificates");
        let keeper = Keeper::new(client.clone(), settings, asks, system_clock(), metrics, heartbeat);
        let (resolver, paths) = (keeper.resolver(), keeper.paths());
        let tasks = vec![tokio::spawn(keeper.run(shutdown.clone()))];
        Self { port: 0, shutdown, registry, leads, tasks }.serve(bench, &client, &resolver, paths).await
    }

    /// One whose certificate is in a directory, so that it keeps only its path.
    pub async fn start_with_files(
        bench: &Bench,
        directory: &Path,
        validity: Duration,
        leads: bool,
    ) -> Result<Self> {
        let leads = Arc::new(AtomicBool::new(leads));
        let shutdown = CancellationToken::new();
        let asks: Leads = Arc::new({
            let leads = Arc::clone(&leads);
            move || leads.load(Ordering::SeqCst)
        });
        let client = bench.cluster.client().await?;
        let (metrics, mut heartbeats) = (certificates::Metrics::default(), Heartbeats::default());
        let files = Files::new(directory, system_clock(), metrics.clone(), heartbeats.add("files"));
        let settings = Settings::of_path(&bench.own_namespace, &bench.configuration, validity)?;
        let (resolver, heartbeat) = (files.resolver(), heartbeats.add("path"));
        let keeper = PathKeeper::new(client.clone(), settings, asks, resolver.clone(), metrics, heartbeat);
        let paths = keeper.paths();
        let tasks =
            vec![tokio::spawn(files.run(shutdown.clone())), tokio::spawn(keeper.run(shutdown.clone()))];
        let replica = Self { port: 0, shutdown, registry: Registry::default(), leads, tasks };
        replica.serve(bench, &client, &resolver, paths).await
    }

    async fn serve(
        mut self,
        bench: &Bench,
        client: &Client,
        resolver: &Arc<Resolver>,
        paths: Arc<Paths>,
    ) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        self.port = listener.local_addr()?.port();
        let metrics = admission::Metrics::register(&mut self.registry);
        let state = AdmissionState::new(
            &bench.own_namespace,
            paths,
            Exclusions::default(),
            Arc::new(router(client)),
            Limits::default(),
            metrics,
            Errors::default(),
        );
        let serving = admission::serve(listener, resolver.server_config(None)?, state, self.shutdown.clone());
        self.tasks.push(tokio::spawn(async {
            serving.await.expect("the webhook serves");
        }));
        Ok(self)
    }

    pub fn lead(&self, leads: bool) {
        self.leads.store(leads, Ordering::SeqCst);
    }

    pub fn metrics(&self) -> String {
        page::text(&self.registry).expect("writing to memory")
    }

    /// The value of one line of the metrics page; 0 if it is not there.
    pub fn metric(&self, name: &str) -> f64 {
        let page = self.metrics();
        let value = page.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        value.unwrap_or_default()
    }

    /// Stops and waits until everything has ended.
    pub async fn stop(self) -> Result<()> {
        self.shutdown.cancel();
        wait_for_end(self.tasks).await
    }
}

/// Routing by no policy at all.
pub fn router(client: &Client) -> Router {
    let (resources, config) = (Resources::default(), Config::default());
    let metrics = watch::Metrics::default();
    let board = Watches::new(client.clone(), "fairlead-system", &resources, None, metrics).board;
    let basis = Basis {
        client: client.clone(),
        identity: "test".to_owned(),
        namespace: "fairlead-system".to_owned(),
        config,
        resources,
        board,
        clock: Clock::default(),
    };
    let (context, _) = Context::new(basis, &mut Registry::default());
    Router::new(Arc::new(context), Rewrites::default())
}
