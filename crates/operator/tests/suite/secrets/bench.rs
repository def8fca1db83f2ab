//! A cluster for copies, and a replica's parts that concern them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, ensure};
use fairlead_api::kuik::ClusterImageSetMirror;
use fairlead_operator::cluster::watch::{self, Resources, Watches};
use fairlead_operator::context::Context;
use fairlead_operator::platform::certificates::Clock;
use fairlead_operator::platform::config::Config;
use fairlead_operator::registries::secrets::copies::CopyKeeper;
use fairlead_operator::registries::secrets::{Copies, Metrics, Secrets};
use fairlead_plan::pull_secrets::{Selection, copy_name};
use fairlead_plan::routing::{PolicyId, PolicyKind, SecretName, SecretUse};
use fairlead_testkit::{Cluster, eventually, unique};
use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::{Pod, Secret, ServiceAccount};
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use prometheus_client::registry::Registry;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::candidate::Candidate;
use crate::definitions::cluster_with_definitions;

/// The webhook configuration whose selector says where copies may be.
pub const WEBHOOK: &str = "fairlead";
/// Namespaces with this label are left out by it.
pub const LEFT_OUT: &str = "fairlead.example.com/left-out";

pub const SOON: Duration = Duration::from_secs(30);

/// What copying and its controller may do; everything here runs with these rights and no others.
fn rights() -> Value {
    json!([
        {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "create", "patch", "delete"]},
        {"apiGroups": [""], "resources": ["namespaces"], "verbs": ["list", "watch"]},
        {
            "apiGroups": ["admissionregistration.k8s.io"],
            "resources": ["mutatingwebhookconfigurations"],
            "resourceNames": [WEBHOOK],
            "verbs": ["list", "watch"],
        },
        {"apiGroups": [""], "resources": ["pods", "serviceaccounts"], "verbs": ["list", "watch"]},
        {"apiGroups": ["*"], "resources": crds(), "verbs": ["list", "watch"]},
        {
            "apiGroups": ["kuik.enix.io"],
            "resources": ["clusterimagesetmirrors", "clusterreplicatedimagesets"],
            "verbs": ["patch"],
        },
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create", "get", "update"]},
    ])
}

fn crds() -> Vec<String> {
    fairlead_api::crds::all().into_iter().map(|crd| crd.spec.names.plural).collect()
}

pub fn soon() -> Instant {
    Instant::now() + Duration::from_secs(20)
}

pub fn secret_name(namespace: &str, name: &str) -> SecretName {
    SecretName { namespace: namespace.into(), name: name.into() }
}

pub fn docker_config(registry: &str, user: &str) -> String {
    json!({"auths": {registry: {"username": user, "password": "pa55"}}}).to_string()
}

/// Makes the Secret, or gives it other data.
pub async fn put_secret(client: &Client, namespace: &str, name: &str, kind: &str, data: &str) -> Result<()> {
    let key = match kind {
        "kubernetes.io/dockerconfigjson" => ".dockerconfigjson",
        "kubernetes.io/dockercfg" => ".dockercfg",
        _ => "password",
    };
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "type": kind, "stringData": {key: data},
    });
    let api = Api::<Secret>::namespaced(client.clone(), namespace);
    api.patch(name, &PatchParams::apply("test").force(), &Patch::Apply(secret)).await?;
    Ok(())
}

/// A cluster of its own: objects without a namespace are seen by every controller, and the audit log is the judge.
pub struct Bench {
    pub cluster: Cluster,
    /// With all rights.
    pub admin: Client,
    pub operators: String,
    pub registries: String,
    pub team: String,
    account: String,
}

impl Bench {
    pub async fn new() -> Result<Self> {
        let (cluster, admin) = cluster_with_definitions(Cluster::builder().audit(true)).await?;
        let operators = cluster.namespace("operators").await?;
        let bench = Self {
            registries: cluster.namespace("registries").await?,
            team: cluster.namespace("team").await?,
            account: "fairlead".to_owned(),
            operators,
            admin,
            cluster,
        };
        bench.make_account().await?;
        bench.register().await?;
        bench.rotate("pull", "old").await?;
        Ok(bench)
    }

    async fn make_account(&self) -> Result<()> {
        let (name, post) = (&self.account, PostParams::default());
        let account: ServiceAccount = serde_json::from_value(json!({"metadata": {"name": name}}))?;
        Api::namespaced(self.admin.clone(), &self.operators).create(&post, &account).await?;
        let role: ClusterRole =
            serde_json::from_value(json!({"metadata": {"name": name}, "rules": rights()}))?;
        Api::all(self.admin.clone()).create(&post, &role).await?;
        let binding: ClusterRoleBinding = serde_json::from_value(json!({
            "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": self.operators}],
        }))?;
        Api::all(self.admin.clone()).create(&post, &binding).await?;
        Ok(())
    }

    /// Registers a webhook that is never called; only its selector counts.
    pub async fn register(&self) -> Result<()> {
        let configuration: MutatingWebhookConfiguration = serde_json::from_value(json!({
            "metadata": {"name": WEBHOOK},
            "webhooks": [{
                "name": "pods.fairlead.dev",
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                "failurePolicy": "Ignore",
                "clientConfig": {"url": "https://127.0.0.1:9/"},
                "rules": [{
                    "apiGroups": ["none.example.com"], "apiVersions": ["v1"], "operations": ["CREATE"],
                    "resources": ["nothing"],
                }],
                "namespaceSelector": {"matchExpressions": [{"key": LEFT_OUT, "operator": "DoesNotExist"}]},
            }],
        }))?;
        self.webhooks().create(&PostParams::default(), &configuration).await?;
        Ok(())
    }

    pub fn webhooks(&self) -> Api<MutatingWebhookConfiguration> {
        Api::all(self.admin.clone())
    }

    pub async fn client(&self) -> Result<Client> {
        self.cluster.client_as(&self.operators, &self.account).await
    }

    /// Gives a Secret of the registries' namespace new content.
    pub async fn rotate(&self, name: &str, user: &str) -> Result<()> {
        let config = docker_config("r.example.com", user);
        put_secret(&self.admin, &self.registries, name, "kubernetes.io/dockerconfigjson", &config).await
    }

    pub fn mirrors(&self) -> Api<ClusterImageSetMirror> {
        Api::all(self.admin.clone())
    }

    /// A policy that names Secrets of the registries' namespace.
    pub async fn policy(&self, name: &str, secrets: &[&str], finalizers: &[&str]) -> Result<Policy> {
        let mirror: ClusterImageSetMirror = serde_json::from_value(json!({
            "apiVersion": "kuik.enix.io/v1alpha1",
            "kind": "ClusterImageSetMirror",
            "metadata": {"name": name, "finalizers": finalizers},
            "spec": {"imageFilter": {"include": [".*"]}, "mirrors": self.entries(secrets)},
        }))?;
        let post = PostParams::default();
        // The definition may be younger than the API server's knowledge of it.
        let made = eventually(SOON, || async { Ok(self.mirrors().create(&post, &mirror).await?) }).await?;
        let uid = made.metadata.uid.context("an object has a UID")?;
        let kind = PolicyKind::ClusterImageSetMirror;
        let id = PolicyId { kind, namespace: None, name: name.into(), uid: uid.as_str().into() };
        Ok(Policy { id: id.into(), registries: self.registries.clone() })
    }

    pub async fn rename(&self, policy: &Policy, secrets: &[&str]) -> Result<()> {
        let patch = Patch::Merge(json!({"spec": {"mirrors": self.entries(secrets)}}));
        self.mirrors().patch(&policy.id.name, &PatchParams::default(), &patch).await?;
        Ok(())
    }

    fn entries(&self, secrets: &[&str]) -> Vec<Value> {
        let entry = |(index, secret): (usize, &&str)| {
            json!({
                "registry": format!("r{index}.example.com"),
                "credentialSecret": {"name": secret, "namespace": self.registries},
            })
        };
        secrets.iter().enumerate().map(entry).collect()
    }

    /// A Pod that names pull secrets.
    pub async fn pod(&self, namespace: &str, secrets: &[&str]) -> Result<String> {
        let name = unique("pod");
        let named: Vec<_> = secrets.iter().map(|name| json!({"name": name})).collect();
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": name},
            "spec": {"imagePullSecrets": named, "containers": [{"name": "web", "image": "nginx:1"}]},
        }))?;
        Api::namespaced(self.admin.clone(), namespace).create(&PostParams::default(), &pod).await?;
        Ok(name)
    }

    pub async fn delete_pod(&self, namespace: &str, name: &str) -> Result<()> {
        Api::<Pod>::namespaced(self.admin.clone(), namespace)
            .delete(name, &DeleteParams::default().grace_period(0))
            .await?;
        Ok(())
    }

    pub fn secrets(&self, namespace: &str) -> Api<Secret> {
        Api::namespaced(self.admin.clone(), namespace)
    }

    pub async fn is_there(&self, namespace: &str, name: &str) -> Result<bool> {
        Ok(self.secrets(namespace).get_metadata_opt(name).await?.is_some())
    }

    /// The user in the credentials of a copy.
    pub async fn user_in(&self, namespace: &str, name: &str) -> Result<String> {
        let secret = self.secrets(namespace).get(name).await?;
        let data = secret.data.unwrap_or_default().remove(".dockerconfigjson").context("no configuration")?;
        let config: Value = serde_json::from_slice(&data.0)?;
        Ok(config["auths"]["r.example.com"]["username"].as_str().unwrap_or_default().to_owned())
    }

    pub async fn gone(&self, namespace: &str, name: &str) -> Result<()> {
        eventually(SOON, || async {
            ensure!(!self.is_there(namespace, name).await?, "{namespace}/{name} is there");
            Ok(())
        })
        .await
    }

    /// How often our account asked for this, of Secrets.
    pub fn requests(&self, verb: &str, namespace: &str, name: &str) -> Result<usize> {
        let user = format!("system:serviceaccount:{}:{}", self.operators, self.account);
        let events = self.cluster.audit_events()?;
        let asked = events.iter().filter(|event| {
            event.user == user && event.resource == "secrets" && event.stage == "ResponseComplete"
        });
        let such = asked.filter(|event| {
            let same = |wanted: &str, found: &str| wanted.is_empty() || wanted == found;
            same(verb, &event.verb) && same(namespace, &event.namespace) && same(name, &event.name)
        });
        Ok(such.count())
    }

    pub fn no_secret_was_listed(&self) -> Result<()> {
        for verb in ["list", "watch", "deletecollection", "update"] {
            let count = self.requests(verb, "", "")?;
            ensure!(count == 0, "{count} times {verb}");
        }
        ensure!(self.requests("get", "", "")? > 0, "the audit log has nothing of ours");
        Ok(())
    }
}

pub struct Policy {
    pub id: Arc<PolicyId>,
    registries: String,
}

impl Policy {
    pub fn of(&self, secret: &str) -> SecretUse {
        SecretUse { secret: secret_name(&self.registries, secret), by: self.id.clone() }
    }

    pub fn copy_of(&self, secret: &str) -> String {
        copy_name(&secret_name(&self.registries, secret), &self.id.uid)
    }
}

/// The parts of a replica that deal with Secrets.
pub struct Replica {
    pub secrets: Secrets,
    pub copies: Copies,
    pub resources: Resources,
    client: Client,
    copying: bool,
    seconds_ahead: Arc<AtomicU64>,
    named: Arc<Mutex<Vec<SecretUse>>>,
    _watching: tokio::task::JoinSet<()>,
    candidate: Option<Candidate>,
}

impl Replica {
    pub async fn new(bench: &Bench, copying: bool) -> Result<Self> {
        let client = bench.client().await?;
        let secrets = Secrets::new(client.clone(), Metrics::default());
        let seconds_ahead = Arc::new(AtomicU64::new(0));
        let clock: Clock = {
            let ahead = Arc::clone(&seconds_ahead);
            Arc::new(move || SystemTime::now() + Duration::from_secs(ahead.load(Ordering::SeqCst)))
        };
        let resources = Resources::default();
        let namespaces = resources.namespaces.clone();
        let copies =
            Copies::new(client.clone(), secrets.clone(), copying, namespaces, clock, Metrics::default());
        let named = Arc::new(Mutex::new(Vec::new()));
        let mut watching = tokio::task::JoinSet::new();
        let (webhook, metrics) = (copying.then_some(WEBHOOK), watch::Metrics::default());
        let watches = Watches::new(client.clone(), "fairlead-system", &resources, webhook, metrics).all;
        let selecting = ["Namespace", "MutatingWebhookConfiguration"];
        for (_, watch) in watches.into_iter().filter(|(kind, _)| selecting.contains(kind)) {
            watching.spawn(watch);
        }
        Ok(Self {
            secrets,
            copies,
            resources,
            client,
            copying,
            seconds_ahead,
            named,
            _watching: watching,
            candidate: None,
        })
    }

    /// Waits until it is known whether the webhook's selector covers a namespace.
    pub async fn selects(&self, namespace: &str, selection: Selection) -> Result<()> {
        eventually(SOON, || async {
            let found = self.resources.namespaces.selection(namespace);
            ensure!(found == selection, "{namespace} is {found:?}");
            Ok(())
        })
        .await
    }

    /// Lets the wall clock, and nothing else, run ahead.
    pub fn turn_clock(&self, ahead: Duration) {
        self.seconds_ahead.fetch_add(ahead.as_secs(), Ordering::SeqCst);
    }

    pub fn name(&self, uses: impl IntoIterator<Item = SecretUse>) {
        *self.named.lock().expect("no test panics with it") = uses.into_iter().collect();
    }

    /// Takes part in an election, and works on copies when it is won.
    pub fn lead(&mut self, bench: &Bench) {
        let named = Arc::clone(&self.named);
        let named = move || named.lock().expect("no test panics with it").clone();
        let (resources, webhook) = (self.resources.clone(), self.copying.then_some(WEBHOOK));
        let identity = unique("replica");
        let mut candidate =
            Candidate::start_with(&self.client, &bench.operators, &identity, resources, webhook);
        candidate.spawn(self.secrets.clone().run(named, candidate.stopping()));
        let (context, _) = candidate.context(Config::default(), &mut Registry::default());
        let (copies, secrets) = (self.copies.clone(), self.secrets.clone());
        candidate.control::<CopyKeeper>(Arc::new(Context { copies, secrets, ..context }));
        self.candidate = Some(candidate);
    }

    pub async fn stop(self) -> Result<()> {
        match self.candidate {
            Some(candidate) => candidate.stop().await,
            None => Ok(()),
        }
    }
}
