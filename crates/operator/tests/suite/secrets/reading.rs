//! What is read of a Secret, and when it is read again.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use fairlead_domain::reference::Reference;
use fairlead_operator::platform::telemetry::page;
use fairlead_operator::registries::secrets::{Keys, Metrics, Read, Secrets};
use fairlead_plan::routing::{PolicyId, PolicyKind, SecretName, SecretUse};
use fairlead_testkit::{Cluster, eventually, install_crypto, shared, unique};
use k8s_openapi::api::core::v1::{Secret, ServiceAccount};
use kube::api::{DeleteParams, ObjectMeta, PostParams};
use kube::{Api, Client};
use prometheus_client::registry::Registry;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::bench::{docker_config, put_secret, secret_name, soon};

struct Reader {
    cluster: &'static Cluster,
    client: Client,
    namespace: String,
    secrets: Secrets,
    registry: Registry,
}

impl Reader {
    async fn new() -> Result<Self> {
        install_crypto();
        let cluster = shared().await;
        let client = cluster.client().await?;
        let namespace = cluster.namespace("secrets").await?;
        let mut registry = Registry::default();
        let secrets = Secrets::new(client.clone(), Metrics::register(&mut registry));
        Ok(Self { cluster, client, namespace, secrets, registry })
    }

    fn name(&self, name: &str) -> SecretName {
        secret_name(&self.namespace, name)
    }

    async fn put(&self, name: &str, kind: &str, data: &str) -> Result<()> {
        put_secret(&self.client, &self.namespace, name, kind, data).await
    }

    async fn read(&self, name: &str) -> Read {
        self.secrets.read(&self.name(name), soon()).await
    }

    fn reads(&self) -> u64 {
        let page = page::text(&self.registry).expect("writing to memory");
        let lines = page.lines().filter(|line| line.starts_with("fairlead_secret_reads_total"));
        lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
    }
}

/// The users that would be tried for an image of the registry `r.example.com`.
fn users(reads: &[Read]) -> Vec<String> {
    let image = Reference::parse("r.example.com/app").expect("a reference").repository();
    let keys: Vec<_> = reads.iter().filter_map(Read::keys).map(|keys| &**keys).collect();
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("text");
    Keys::lookup(keys, &image).iter().map(|found| text(found.username())).collect()
}

/// Moves the runtime's clock without waiting.
async fn let_pass(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

#[tokio::test]
async fn credentials_are_read_by_name_once_for_all_who_ask() -> Result<()> {
    let reader = Reader::new().await?;
    reader.put("one", "kubernetes.io/dockerconfigjson", &docker_config("r.example.com", "first")).await?;
    let flat = r#"{"r.example.com/app": {"username": "second", "password": "x"}}"#;
    reader.put("two", "kubernetes.io/dockercfg", flat).await?;
    ensure!(reader.secrets.cached(&reader.name("one")).is_none());

    let asking = (0..50).map(|_| reader.read("one"));
    let reads = futures::future::join_all(asking).await;
    ensure!(reads.iter().all(|read| matches!(read, Read::Keys(_))), "{reads:?}");
    ensure!(reader.reads() == 1, "{} reads", reader.reads());
    ensure!(reader.secrets.cached(&reader.name("one")).is_some());

    // The more specific place comes first, whichever Secret it is in.
    let both = [reader.read("one").await, reader.read("two").await];
    ensure!(users(&both) == ["second", "first"], "{:?}", users(&both));
    Ok(())
}

#[tokio::test]
async fn what_holds_no_credentials_says_so_and_shows_nothing() -> Result<()> {
    let reader = Reader::new().await?;
    reader.put("opaque", "Opaque", "pa55-word").await?;
    reader.put("listed", "kubernetes.io/dockerconfigjson", r#"{"auths": {"r.io": ["pa55-word"]}}"#).await?;
    let garbled = r#"{"auths": {"r.io": {"auth": "pa55-word"}}}"#;
    reader.put("garbled", "kubernetes.io/dockerconfigjson", garbled).await?;
    for (name, expected) in
        [("opaque", "its type is Opaque"), ("listed", "wrong type"), ("garbled", "base64")]
    {
        let read = reader.read(name).await;
        let Read::Unusable(why) = &read else { bail!("{name}: {read:?}") };
        ensure!(why.contains(expected) && !why.contains("pa55"), "{name}: {why}");
    }
    Ok(())
}

#[tokio::test]
async fn names_that_lead_elsewhere_are_not_asked_for() -> Result<()> {
    let reader = Reader::new().await?;
    reader.put("mine", "kubernetes.io/dockerconfigjson", &docker_config("r.example.com", "me")).await?;
    let elsewhere = format!("x/../../../{}/secrets/mine", reader.namespace);
    for name in ["", "mine?watch=true", "../secrets/mine", "mine/", "MINE", elsewhere.as_str()] {
        ensure!(matches!(reader.read(name).await, Read::Missing), "{name}");
    }
    ensure!(reader.reads() == 0, "{} requests", reader.reads());
    Ok(())
}

#[tokio::test]
async fn a_missing_secret_is_found_seconds_after_it_was_made() -> Result<()> {
    let reader = Reader::new().await?;
    ensure!(matches!(reader.read("late").await, Read::Missing));
    reader.put("late", "kubernetes.io/dockerconfigjson", &docker_config("r.example.com", "late")).await?;
    ensure!(matches!(reader.read("late").await, Read::Missing), "it is not asked for at every Pod");
    let_pass(Duration::from_secs(5)).await;
    ensure!(users(&[reader.read("late").await]) == ["late"]);

    Api::<Secret>::namespaced(reader.client.clone(), &reader.namespace)
        .delete("late", &DeleteParams::default())
        .await?;
    let_pass(Duration::from_mins(1)).await;
    ensure!(users(&[reader.read("late").await]) == ["late"], "what has aged serves while it is read again");
    eventually(Duration::from_secs(10), || async {
        ensure!(matches!(reader.read("late").await, Read::Missing), "it is gone");
        Ok(())
    })
    .await
}

#[tokio::test]
async fn a_rotation_is_noticed_in_a_minute_or_at_once_after_a_refusal() -> Result<()> {
    let reader = Reader::new().await?;
    let rotate = async |user: &str| {
        reader.put("pull", "kubernetes.io/dockerconfigjson", &docker_config("r.example.com", user)).await
    };
    rotate("old").await?;
    let policy = |name: &str| -> std::sync::Arc<PolicyId> {
        let kind = PolicyKind::ClusterImageSetMirror;
        PolicyId { kind, namespace: None, name: name.into(), uid: name.into() }.into()
    };
    let named = vec![
        SecretUse { secret: reader.name("pull"), by: policy("good") },
        SecretUse { secret: reader.name("nowhere"), by: policy("bad") },
    ];
    let shutdown = CancellationToken::new();
    let running = tokio::spawn(reader.secrets.clone().run(move || named.clone(), shutdown.clone()));
    let sees = |user: &'static str| {
        let (secrets, name) = (reader.secrets.clone(), reader.name("pull"));
        eventually(Duration::from_secs(20), move || {
            let cached = secrets.cached(&name);
            async move {
                let cached = cached.context("nothing is cached")?;
                ensure!(users(&[cached]) == [user], "not the credentials of {user}");
                Ok(())
            }
        })
    };
    sees("old").await?;
    eventually(Duration::from_secs(10), || async {
        let told = reader.secrets.problems().of(&policy("bad"));
        let expected = format!("Secret {} does not exist", reader.name("nowhere"));
        ensure!(told == [expected], "{told:?}");
        Ok(())
    })
    .await?;
    ensure!(reader.secrets.problems().of(&policy("good")).is_empty());

    rotate("new").await?;
    ensure!(users(&[reader.read("pull").await]) == ["old"]);
    let_pass(Duration::from_mins(1)).await;
    sees("new").await?;

    // From here on it is read for callers only, not in the background.
    shutdown.cancel();
    tokio::time::timeout(Duration::from_secs(5), running).await.context("it does not stop")??;
    ensure!(users(&[reader.read("pull").await]) == ["new"]);
    let_pass(Duration::from_secs(11)).await;
    rotate("newer").await?;
    ensure!(users(&[reader.read("pull").await]) == ["new"]);
    reader.secrets.distrust(&reader.name("pull"));
    if users(&[reader.read("pull").await]) != ["newer"] {
        // A reading that was under way when its readers stopped ended only now; what was just read is not distrusted.
        let_pass(Duration::from_secs(11)).await;
        reader.secrets.distrust(&reader.name("pull"));
    }
    ensure!(users(&[reader.read("pull").await]) == ["newer"]);
    Ok(())
}

#[tokio::test]
async fn a_refusal_is_told_and_not_repeated_for_every_pod() -> Result<()> {
    let reader = Reader::new().await?;
    reader.put("pull", "kubernetes.io/dockerconfigjson", &docker_config("r.example.com", "me")).await?;
    let account = unique("powerless");
    Api::<ServiceAccount>::namespaced(reader.client.clone(), &reader.namespace)
        .create(
            &PostParams::default(),
            &ServiceAccount {
                metadata: ObjectMeta { name: Some(account.clone()), ..ObjectMeta::default() },
                ..ServiceAccount::default()
            },
        )
        .await?;
    let client = reader.cluster.client_as(&reader.namespace, &account).await?;
    let mut registry = Registry::default();
    let secrets = Secrets::new(client, Metrics::register(&mut registry));
    let powerless = Reader { secrets, registry, ..reader };
    for _ in 0..20 {
        let read = powerless.read("pull").await;
        let Read::Failed(why) = &read else { bail!("{read:?}") };
        ensure!(why.contains("cannot get resource \"secrets\""), "{why}");
    }
    ensure!(powerless.reads() == 1, "{} requests", powerless.reads());
    Ok(())
}

#[tokio::test]
async fn an_api_server_that_is_away_costs_the_deadline_and_no_more() -> Result<()> {
    let reader = Reader::new().await?;
    let proxy = reader.cluster.proxy().await?;
    let kubeconfig = reader.cluster.kubeconfig_through(&proxy, &reader.cluster.kubeconfig())?;
    let config = kube::Config::from_custom_kubeconfig(
        kube::config::Kubeconfig::read_from(kubeconfig)?,
        &kube::config::KubeConfigOptions::default(),
    )
    .await?;
    reader.put("pull", "kubernetes.io/dockerconfigjson", &docker_config("r.example.com", "me")).await?;
    let secrets = Secrets::new(Client::try_from(config)?, Metrics::default());
    let name = reader.name("pull");
    ensure!(users(&[secrets.read(&name, soon()).await]) == ["me"]);

    proxy.stall();
    let other = reader.name("other");
    let begun = Instant::now();
    let read = secrets.read(&other, begun + Duration::from_millis(300)).await;
    ensure!(matches!(read, Read::Failed(_)), "{read:?}");
    ensure!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    // What was read before serves on.
    let_pass(Duration::from_mins(2)).await;
    ensure!(users(&[secrets.read(&name, soon()).await]) == ["me"]);
    let_pass(Duration::from_mins(4)).await;
    let read = secrets.read(&name, Instant::now() + Duration::from_millis(300)).await;
    ensure!(matches!(read, Read::Failed(_)), "{read:?}");
    Ok(())
}
