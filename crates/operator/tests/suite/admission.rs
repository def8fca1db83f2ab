//! The webhook as its callers see it: the API server, and others that open a connection.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fairlead_operator::admission::{
    self, AdmissionOutcome, AdmissionState, Decide, Limits, Metrics, PodRequest,
};
use fairlead_operator::controller::events::Errors;
use fairlead_operator::platform::certificates::{self, ClientAuthorities, Files, Paths, Token, system_clock};
use fairlead_operator::platform::telemetry::{Heartbeats, page};
use fairlead_plan::exclusions::Exclusions;
use fairlead_testkit::pki::Authority;
use fairlead_testkit::{eventually, install_crypto};
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::PostParams;
use reqwest::StatusCode;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::replica::{Bench, Replica, record, router};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_get_their_record_from_the_api_server_on() -> Result<()> {
    let bench = Bench::new().await?;
    let replica = Replica::start(&bench, Duration::from_hours(1), true).await?;
    bench.register(&[&replica]).await?;
    bench.wait_settled().await?;
    bench.wait_for_records().await?;

    let pod = bench.create_pod(&bench.namespace, &json!({})).await?;
    let expected = |image: &str| json!({"asked": image, "used": image, "by": "original", "why": "no policy offers an alternative"});
    let images = json!({"setup": expected("busybox:1"), "web": expected("nginx:1")});
    ensure!(record(&pod) == Some(json!({"v": 1, "images": images})), "{:?}", pod.metadata.annotations);

    let forged = json!({"annotations": {"fairlead.dev/routes": "forged", "mine": "stays"}});
    let pod = bench.create_pod(&bench.namespace, &forged).await?;
    ensure!(record(&pod).is_some_and(|record| record["images"] == images), "{:?}", pod.metadata.annotations);
    ensure!(pod.metadata.annotations.as_ref().is_some_and(|annotations| annotations["mine"] == "stays"));

    // Pods may be full of other annotations: the record gives way, the Pod does not.
    for (kibibytes, recorded) in [(200, true), (250, false)] {
        let crowded = json!({"annotations": {"large": "x".repeat(kibibytes * 1024)}});
        let pod = bench.create_pod(&bench.namespace, &crowded).await?;
        ensure!(record(&pod).is_some() == recorded, "{kibibytes} KiB of annotations");
    }

    let with_volume = serde_json::from_value(json!({
        "metadata": {"name": "with-volume"},
        "spec": {
            "containers": [{"name": "web", "image": "nginx:1"}],
            "volumes": [{"name": "data", "image": {"reference": "quay.io/team/data:1"}}],
        },
    }))?;
    let pods: Api<Pod> = Api::namespaced(bench.client.clone(), &bench.namespace);
    let pod = pods.create(&PostParams::default(), &with_volume).await?;
    let volume = record(&pod).map(|record| record["images"]["volume:data"].clone());
    ensure!(volume == Some(expected("quay.io/team/data:1")), "{volume:?}");

    let own = bench.create_pod(&bench.own_namespace, &json!({})).await?;
    ensure!(record(&own).is_none(), "the operator's own namespace is left alone");

    let page = replica.metrics();
    for line in [
        "fairlead_admission_requests_total{result=\"recorded\"}",
        "fairlead_admission_requests_total{result=\"skipped\"}",
        "fairlead_admission_duration_seconds_count",
        "fairlead_admission_in_flight 0",
        "fairlead_certificate_not_after_timestamp_seconds{certificate=\"leaf\"}",
    ] {
        ensure!(page.contains(line), "no {line} in\n{page}");
    }
    // The operator is gone: Pods are created all the same, and the API server says that there was no answer.
    let (webhook, before) = (bench.webhook(&replica), bench.failed_open(&replica).await?);
    replica.stop().await?;
    let pod = bench.create_pod(&bench.namespace, &json!({})).await?;
    ensure!(record(&pod).is_none());
    ensure!(bench.failed_open_of(&webhook).await? == before + 1);
    bench.clean_up().await
}

/// A client for an API server that is not there.
fn nowhere() -> Result<kube::Client> {
    install_crypto();
    Ok(kube::Client::try_from(kube::Config::new("http://127.0.0.1:9".parse()?))?)
}

/// A webhook with a certificate from files, and a client that trusts it.
struct Webhook {
    address: SocketAddr,
    directory: tempfile::TempDir,
    shutdown: CancellationToken,
    serving: JoinHandle<()>,
    registry: prometheus_client::registry::Registry,
    token: Token,
}

impl Webhook {
    async fn start(decide: impl Decide, limits: Limits) -> Result<Self> {
        Self::start_for(decide, limits, None).await
    }

    /// Starts one for clients with a certificate of these authorities only.
    async fn start_for(
        decide: impl Decide,
        limits: Limits,
        clients: Option<Arc<ClientAuthorities>>,
    ) -> Result<Self> {
        install_crypto();
        let directory = tempfile::tempdir()?;
        write_certificate(directory.path(), "first")?;
        let metrics = certificates::Metrics::default();
        let files = Files::new(directory.path(), system_clock(), metrics, Heartbeats::default().add("files"));
        let (resolver, mut ready) = (files.resolver(), files.ready());
        let shutdown = CancellationToken::new();
        tokio::spawn(files.run(shutdown.clone()));
        ready.wait_for(|ready| *ready).await?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let mut registry = prometheus_client::registry::Registry::default();
        let token = Token::generate()?;
        let state = AdmissionState::new(
            "own",
            Paths::new(vec![token.clone()]),
            Exclusions::default(),
            Arc::new(decide),
            limits,
            Metrics::register(&mut registry),
            Errors::default(),
        );
        let (tls, stop) = (resolver.server_config(clients)?, shutdown.clone());
        let serving = tokio::spawn(async move {
            admission::serve(listener, tls, state, stop).await.expect("the webhook serves");
        });
        Ok(Self { address, directory, shutdown, serving, registry, token })
    }

    fn client(&self) -> Result<reqwest::Client> {
        client_for(self.directory.path(), |builder| builder)
    }

    fn url(&self, rest: &str) -> String {
        format!("https://{}{rest}", self.address)
    }

    /// Where it answers.
    fn answering(&self, query: &str) -> String {
        self.url(&format!("{}{query}", self.token.path()))
    }

    fn metrics(&self) -> String {
        page::text(&self.registry).expect("writing to memory")
    }

    async fn stop(self) -> Result<()> {
        self.shutdown.cancel();
        tokio::time::timeout(Duration::from_secs(10), self.serving).await.context("it does not stop")??;
        Ok(())
    }
}

fn client_for(
    directory: &Path,
    adjust: impl FnOnce(reqwest::ClientBuilder) -> reqwest::ClientBuilder,
) -> Result<reqwest::Client> {
    let authority = reqwest::Certificate::from_pem(&std::fs::read(directory.join("ca.crt"))?)?;
    let builder =
        reqwest::Client::builder().tls_certs_only([authority]).no_proxy().timeout(Duration::from_secs(30));
    Ok(adjust(builder).build()?)
}

/// Certificate, key and authority, as cert-manager puts them there.
fn write_certificate(directory: &Path, name: &str) -> Result<()> {
    let mut params = rcgen::CertificateParams::new(["127.0.0.1".to_owned()])?;
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    params.distinguished_name.push(rcgen::DnType::CommonName, name);
    let key = rcgen::KeyPair::generate()?;
    let authority = rcgen::CertifiedIssuer::self_signed(params, key)?;
    let leaf_key = rcgen::KeyPair::generate()?;
    let leaf = rcgen::CertificateParams::new(["127.0.0.1".to_owned()])?.signed_by(&leaf_key, &authority)?;
    std::fs::write(directory.join("tls.key"), leaf_key.serialize_pem())?;
    std::fs::write(directory.join("tls.crt"), leaf.pem())?;
    std::fs::write(directory.join("ca.crt"), authority.pem())?;
    Ok(())
}

fn review(object: &Value) -> Value {
    json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "the-uid",
        "kind": {"group": "", "version": "v1", "kind": "Pod"},
        "namespace": "team",
        "operation": "CREATE",
        "object": object,
    }})
}

fn pod() -> Value {
    json!({"metadata": {}, "spec": {"containers": [{"name": "a", "image": "b"}]}})
}

#[tokio::test]
async fn what_the_wire_says() -> Result<()> {
    let webhook =
        Webhook::start(router(&nowhere()?), Limits { body: 64 * 1024, ..Limits::default() }).await?;
    let client = webhook.client()?;
    let post = |body: String| client.post(webhook.answering("?timeout=5s")).body(body);

    for (what, request, status) in [
        ("another path", client.get(webhook.url("/")), StatusCode::NOT_FOUND),
        ("another method", client.get(webhook.answering("")), StatusCode::METHOD_NOT_ALLOWED),
        ("no body", post(String::new()), StatusCode::BAD_REQUEST),
        ("no JSON", post("hello".to_owned()), StatusCode::BAD_REQUEST),
        ("no uid", post("{\"request\":{}}".to_owned()), StatusCode::BAD_REQUEST),
        ("too large to be anything", post("x".repeat(100_000)), StatusCode::PAYLOAD_TOO_LARGE),
    ] {
        let response = request.send().await.with_context(|| what.to_owned())?;
        ensure!(response.status() == status, "{what}: {}", response.status());
        ensure!(!response.text().await?.is_empty(), "{what}: it says nothing");
    }

    let mut large = pod();
    large["spec"]["containers"][0]["args"] = json!(["x".repeat(100_000)]);
    // API servers send the uid first; so does this text.
    let text = format!("{{\"request\":{{\"uid\":\"the-uid\",\"object\":{large}}}}}");
    for (what, body, warned) in [
        ("a Pod", review(&pod()).to_string(), false),
        ("an oversized Pod", text, true),
        ("a broken Pod", review(&json!({"spec": 5})).to_string(), true),
        ("a Pod cut short", "{\"request\":{\"uid\":\"the-uid\",\"object\":{\"a\":".to_owned(), true),
    ] {
        let response = post(body).send().await.with_context(|| what.to_owned())?;
        ensure!(response.status() == StatusCode::OK, "{what}: {}", response.status());
        let answer: Value = serde_json::from_slice(&response.bytes().await?)?;
        ensure!(
            answer["response"]["uid"] == "the-uid" && answer["response"]["allowed"] == true,
            "{what}: {answer}"
        );
        ensure!(answer["response"]["warnings"].is_array() == warned, "{what}: {answer}");
        ensure!(answer["response"]["patch"].is_string() != warned, "{what}: {answer}");
    }
    ensure!(
        webhook.metrics().contains("fairlead_admission_requests_total{result=\"too_large\"} 2"),
        "{}",
        webhook.metrics()
    );
    webhook.stop().await
}

/// Says that it was reached, and never answers.
struct Unreachable;

impl Decide for Unreachable {
    fn decide<'a>(&'a self, _: &'a PodRequest<'a>) -> BoxFuture<'a, AdmissionOutcome> {
        panic!("a request without the token was decided about");
    }
}

/// A caller that does not know the token learns nothing, whatever it tries, and not even its body is taken.
#[tokio::test]
async fn without_the_token_nothing_is_read_or_answered() -> Result<()> {
    let webhook = Webhook::start(Unreachable, Limits::default()).await?;
    let path = webhook.token.path();
    let (most, flipped) = (&path[..path.len() - 1], path.to_uppercase());
    let wrong = Token::generate()?.path();
    let client = webhook.client()?;
    for path in [
        "/",
        "",
        "/mutate",
        "/mutate/",
        "/mutate/pods",
        "//mutate/pods",
        most,
        &flipped,
        &wrong,
        &format!("{path}/"),
        &format!("{path}/x"),
        &format!("/mutate/../{path}x"),
        &format!("/x{path}"),
        &format!("{wrong}?token={path}"),
    ] {
        for method in ["POST", "GET", "PUT"] {
            let request = client.request(method.parse()?, webhook.url(path));
            let response = request.body(review(&pod()).to_string()).send().await?;
            ensure!(response.status() == StatusCode::NOT_FOUND, "{method} {path}: {}", response.status());
            let text = response.text().await?;
            ensure!(text == "not found\n", "{method} {path}: {text}");
        }
    }
    // A body that never comes is not waited for.
    let body = reqwest::Body::wrap_stream(futures::stream::pending::<Result<Vec<u8>, std::io::Error>>());
    let request = client.post(webhook.url(&wrong)).body(body).send();
    let response =
        tokio::time::timeout(Duration::from_secs(10), request).await.context("it waits for a body")??;
    ensure!(response.status() == StatusCode::NOT_FOUND);
    let page = webhook.metrics();
    ensure!(!page.contains("fairlead_admission_requests_total{"), "it was counted as a request:\n{page}");
    webhook.stop().await
}

/// With client authorities, a connection without a certificate of theirs is refused before anything is said on it.
#[tokio::test]
async fn clients_without_a_certificate_are_refused_where_one_is_asked_for() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("client-ca.crt");
    let missing = ClientAuthorities::read(&file).err().context("a file that is not there")?.to_string();
    ensure!(missing.contains("--webhook-client-ca") && missing.contains("client-ca.crt"), "{missing}");
    std::fs::write(&file, "no certificate")?;
    let empty = ClientAuthorities::read(&file).err().context("a file without authorities")?.to_string();
    ensure!(empty.contains("holds no certificate"), "{empty}");

    let (ours, theirs) = (Authority::new("api servers")?, Authority::new("somebody")?);
    std::fs::write(&file, ours.certificate())?;
    let clients = ClientAuthorities::read(&file)?;
    let (stop, guarded) = (CancellationToken::new(), clients.clone());
    let following = tokio::spawn(clients.run(stop.clone()));
    let webhook = Webhook::start_for(router(&nowhere()?), Limits::default(), Some(guarded)).await?;
    let ask = async |identity: Option<&Authority>| {
        let identity =
            identity.map(|authority| authority.issue_to_client("kube-apiserver", "webhooks")).transpose()?;
        let pem = identity.map(|one| format!("{}{}", one.certificate, one.key));
        let pem = pem.map(|pem| reqwest::Identity::from_pem(pem.as_bytes())).transpose()?;
        let client = client_for(webhook.directory.path(), |builder| match pem {
            Some(identity) => builder.identity(identity),
            None => builder,
        })?;
        let request = client.post(webhook.answering("")).body(review(&pod()).to_string());
        anyhow::Ok(request.send().await?.status())
    };
    ensure!(ask(Some(&ours)).await? == StatusCode::OK);
    ensure!(ask(None).await.is_err(), "no certificate");
    ensure!(ask(Some(&theirs)).await.is_err(), "a certificate of another authority");

    // The authorities are replaced while the webhook runs; a file that is broken for a moment changes nothing.
    std::fs::write(&file, "broken")?;
    ensure!(ask(Some(&ours)).await? == StatusCode::OK);
    std::fs::write(&file, theirs.certificate())?;
    eventually(Duration::from_secs(20), || async {
        ensure!(ask(Some(&theirs)).await? == StatusCode::OK);
        Ok(())
    })
    .await?;
    ensure!(ask(Some(&ours)).await.is_err(), "an authority that is no longer in the file");
    stop.cancel();
    following.await?;
    webhook.stop().await
}

#[tokio::test]
async fn both_versions_of_http_are_spoken() -> Result<()> {
    let webhook = Webhook::start(router(&nowhere()?), Limits::default()).await?;
    let directory = webhook.directory.path();
    for (client, version) in [
        (client_for(directory, reqwest::ClientBuilder::http1_only)?, reqwest::Version::HTTP_11),
        (client_for(directory, |builder| builder)?, reqwest::Version::HTTP_2),
    ] {
        let response = client.post(webhook.answering("")).body(review(&pod()).to_string()).send().await?;
        ensure!(response.version() == version, "{:?}", response.version());
    }
    webhook.stop().await
}

/// Waits until it is told to go on, and says that it was reached.
struct Gate {
    reached: Arc<Notify>,
    open: Arc<Notify>,
}

impl Decide for Gate {
    fn decide<'a>(&'a self, _: &'a PodRequest<'a>) -> BoxFuture<'a, AdmissionOutcome> {
        Box::pin(async {
            self.reached.notify_one();
            self.open.notified().await;
            AdmissionOutcome::default()
        })
    }
}

#[tokio::test]
async fn requests_at_hand_are_finished_on_shutdown() -> Result<()> {
    for http1 in [true, false] {
        let (reached, open) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let gate = Gate { reached: Arc::clone(&reached), open: Arc::clone(&open) };
        let limits = Limits { linger: Duration::from_millis(50), ..Limits::default() };
        let webhook = Webhook::start(gate, limits).await?;
        let adjust = |builder: reqwest::ClientBuilder| if http1 { builder.http1_only() } else { builder };
        let client = client_for(webhook.directory.path(), adjust)?;
        let request = client.post(webhook.answering("?timeout=10s")).body(review(&pod()).to_string());
        let under_way = tokio::spawn(request.send());
        reached.notified().await;
        webhook.shutdown.cancel();
        let address = webhook.address;
        eventually(Duration::from_secs(10), || async {
            ensure!(TcpStream::connect(address).await.is_err(), "it still listens");
            Ok(())
        })
        .await?;
        open.notify_one();
        let response = under_way.await??;
        ensure!(response.status() == StatusCode::OK, "{}", response.status());
        if http1 {
            ensure!(response.headers().get("connection").is_some_and(|value| value == "close"));
        }
        webhook.stop().await?;
    }
    Ok(())
}

#[tokio::test]
async fn a_late_decision_and_too_many_requests_let_pods_through() -> Result<()> {
    let reached = Arc::new(Notify::new());
    let gate = Gate { reached: Arc::clone(&reached), open: Arc::new(Notify::new()) };
    let webhook = Webhook::start(gate, Limits { deciding: 1, ..Limits::default() }).await?;
    let client = webhook.client()?;
    let ask = |timeout: &str| {
        let request =
            client.post(webhook.answering(&format!("?timeout={timeout}"))).body(review(&pod()).to_string());
        async {
            let answer: Value = serde_json::from_slice(&request.send().await?.bytes().await?)?;
            ensure!(
                answer["response"]["allowed"] == true && answer["response"]["warnings"].is_array(),
                "{answer}"
            );
            anyhow::Ok(())
        }
    };
    let begun = Instant::now();
    // The first is being decided for longer than the others have time.
    let first = tokio::spawn(ask("3s"));
    reached.notified().await;
    tokio::try_join!(ask("1s"), ask("1s"))?;
    first.await??;
    ensure!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    let page = webhook.metrics();
    for line in ["{result=\"late\"} 1", "{result=\"overload\"} 2"] {
        ensure!(page.contains(&format!("fairlead_admission_requests_total{line}")), "{page}");
    }
    webhook.stop().await
}

/// Peers that do nothing, or nonsense, do not keep others from being served.
#[tokio::test]
async fn useless_connections_are_closed() -> Result<()> {
    let limits = Limits {
        connections: 2,
        handshake: Duration::from_millis(300),
        idle: Duration::from_millis(300),
        ..Limits::default()
    };
    let webhook = Webhook::start(router(&nowhere()?), limits).await?;
    let mut silent = Vec::new();
    for _ in 0..4 {
        silent.push(TcpStream::connect(webhook.address).await?);
    }
    let mut nonsense = TcpStream::connect(webhook.address).await?;
    nonsense.write_all(b"GET / HTTP/1.1\r\n\r\n").await?;
    for version in 0..3 {
        let response =
            webhook.client()?.post(webhook.answering("")).body(review(&pod()).to_string()).send().await?;
        ensure!(response.status() == StatusCode::OK, "request {version}");
    }
    for mut stream in silent {
        let mut byte = [0];
        // Closed in order or reset: either is an end.
        let read = tokio::time::timeout(Duration::from_secs(10), stream.read(&mut byte)).await?;
        ensure!(!matches!(read, Ok(1..)), "it was answered");
    }
    ensure!(
        webhook.metrics().contains("fairlead_admission_handshake_failures_total 5"),
        "{}",
        webhook.metrics()
    );
    webhook.stop().await
}

/// The kubelet swaps a link to a directory; a broken pair changes nothing; connections that are open go on.
#[tokio::test]
async fn certificates_from_files_are_followed() -> Result<()> {
    install_crypto();
    let root = tempfile::tempdir()?;
    let version = |name: &str| root.path().join(name);
    for name in ["1", "2", "broken"] {
        std::fs::create_dir(version(name))?;
        write_certificate(&version(name), name)?;
    }
    std::fs::write(version("broken").join("tls.key"), "garbage")?;
    let point_to = |name: &str| -> Result<()> {
        let link = root.path().join("..data_tmp");
        std::os::unix::fs::symlink(name, &link)?;
        Ok(std::fs::rename(link, root.path().join("..data"))?)
    };
    point_to("1")?;
    let directory = root.path().join("..data");
    let mut registry = prometheus_client::registry::Registry::default();
    let metrics = certificates::Metrics::register(&mut registry);
    let files = Files::new(&directory, system_clock(), metrics, Heartbeats::default().add("files"));
    let (resolver, mut ready) = (files.resolver(), files.ready());
    let shutdown = CancellationToken::new();
    let following = tokio::spawn(files.run(shutdown.clone()));
    ready.wait_for(|ready| *ready).await?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let address = listener.local_addr()?;
    let token = Token::generate()?;
    let state = AdmissionState::new(
        "own",
        Paths::new(vec![token.clone()]),
        Exclusions::default(),
        Arc::new(router(&nowhere()?)),
        Limits::default(),
        Metrics::default(),
        Errors::default(),
    );
    let tls = resolver.server_config(None)?;
    let serving = tokio::spawn(admission::serve(listener, tls, state, shutdown.clone()));

    let url = format!("https://{address}{}", token.path());
    let ask = |client: reqwest::Client| {
        let response = client.post(&url).body(review(&pod()).to_string());
        async move { Ok::<_, anyhow::Error>(response.send().await?.status()) }
    };
    let first = client_for(&version("1"), |builder| builder)?;
    ensure!(ask(first.clone()).await? == StatusCode::OK);

    point_to("broken")?;
    let failures = || page::text(&registry).expect("writing to memory");
    eventually(Duration::from_secs(20), || async {
        ensure!(!failures().contains("fairlead_certificate_failures_total 0"), "not looked at yet");
        Ok(())
    })
    .await?;
    ensure!(
        ask(client_for(&version("1"), |builder| builder)?).await? == StatusCode::OK,
        "the old pair goes on"
    );

    point_to("2")?;
    let second = client_for(&version("2"), |builder| builder)?;
    eventually(Duration::from_secs(20), || ask(second.clone())).await?;
    ensure!(
        ask(client_for(&version("1"), |builder| builder)?).await.is_err(),
        "new handshakes get the new leaf"
    );
    ensure!(ask(first).await? == StatusCode::OK, "the open connection goes on");
    shutdown.cancel();
    following.await?;
    serving.await??;
    Ok(())
}
