//! Certificates that the program keeps itself, seen by the real API server.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fairlead_operator::platform::certificates::Settings;
use fairlead_testkit::eventually;
use fairlead_testkit::pki::Authority;
use k8s_openapi::ByteString;
use kube::api::{DeleteParams, Patch, PatchParams};
use serde_json::json;

use crate::replica::{Bench, PATIENCE, Replica, SECRET, create_pod, record};

const LONG: Duration = Duration::from_hours(1);

/// Pods created by several clients, steadily, until told to stop. Every one must carry its record.
struct Load {
    stop: Arc<AtomicBool>,
    created: Arc<AtomicUsize>,
    creators: Vec<tokio::task::JoinHandle<Result<()>>>,
}

impl Load {
    async fn start(bench: &Bench) -> Result<Self> {
        let (stop, created) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let mut creators = Vec::new();
        for _ in 0..4 {
            let (stop, created) = (Arc::clone(&stop), Arc::clone(&created));
            let (client, namespace) = (bench.cluster.client().await?, bench.namespace.clone());
            creators.push(tokio::spawn(async move {
                // Paced, so that the bench measures the rotation and not the machine.
                let mut pace = tokio::time::interval(Duration::from_millis(200));
                while !stop.load(Ordering::SeqCst) {
                    pace.tick().await;
                    let pod = create_pod(&client, &namespace, &json!({})).await?;
                    ensure!(record(&pod).is_some(), "Pod {:?} has no record", pod.metadata.name);
                    created.fetch_add(1, Ordering::SeqCst);
                }
                Ok(())
            }));
        }
        Ok(Self { stop, created, creators })
    }

    /// Waits for some more Pods, so that the load is part of every step however slow the machine is.
    async fn goes_on(&self) -> Result<()> {
        more(&self.created, 12).await
    }

    /// How many Pods there were; an error if one of them had no record.
    async fn end(self) -> Result<usize> {
        self.stop.store(true, Ordering::SeqCst);
        for creator in self.creators {
            creator.await??;
        }
        Ok(self.created.load(Ordering::SeqCst))
    }
}

/// Waits until a count has grown by so much.
async fn more(count: &AtomicUsize, by: usize) -> Result<()> {
    let before = count.load(Ordering::SeqCst);
    eventually(PATIENCE, || async {
        let now = count.load(Ordering::SeqCst);
        ensure!(now >= before + by, "{} more instead of {by}", now - before);
        Ok(())
    })
    .await
}

/// A caller that makes a new connection for every request, and trusts what callers were told to trust a second ago.
/// API servers keep their connections, and so would notice a wrong leaf late.
async fn probe(bench: &Bench, ports: [u16; 2], stop: &AtomicBool, handshakes: &AtomicUsize) -> Result<()> {
    let mut trusted: VecDeque<(Instant, String)> = VecDeque::new();
    while !stop.load(Ordering::SeqCst) {
        trusted.extend(bench.bundles().await?.pop().map(|bundle| (Instant::now(), bundle)));
        while trusted.get(1).is_some_and(|(since, _)| since.elapsed() > Duration::from_secs(1)) {
            trusted.pop_front();
        }
        let bundle = trusted.front().map(|(_, bundle)| bundle.as_bytes()).unwrap_or_default();
        let client = reqwest::Client::builder()
            .tls_certs_only(reqwest::Certificate::from_pem_bundle(bundle)?)
            .no_proxy()
            .pool_max_idle_per_host(0)
            .build()?;
        for port in ports {
            let answer = client.get(format!("https://127.0.0.1:{port}/")).send().await;
            // On a machine that stood still meanwhile, what was trusted is older than a caller's knowledge may be.
            if trusted.get(1).is_some_and(|(since, _)| since.elapsed() > Duration::from_secs(2)) {
                continue;
            }
            let count = handshakes.fetch_add(1, Ordering::SeqCst);
            answer.with_context(|| format!("handshake {count} with port {port}"))?;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

/// A new authority by request, new leaves by age, a change of leader in between, and a lost Secret, all under load.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rotation_drops_no_request() -> Result<()> {
    let bench = Arc::new(Bench::new().await?);
    let validity = Duration::from_mins(1);
    let first = Replica::start(&bench, validity, true).await?;
    let second = Replica::start(&bench, validity, false).await?;
    bench.register(&[&first, &second]).await?;
    let authority = bench.wait_settled().await?;
    for replica in [&first, &second] {
        wait_for_stage(replica, "settled").await?;
    }
    // A record may come from either. Until a replica has read the token for the first time, it turns API servers away.
    for replica in [&first, &second] {
        eventually(PATIENCE, || async {
            bench.wait_for_records().await?;
            ensure!(answered(replica) > 0.0, "{}", replica.metrics());
            Ok(())
        })
        .await?;
    }
    let token = bench.settled_token().await?;
    let mut failed_before = Vec::new();
    for replica in [&first, &second] {
        failed_before.push(bench.failed_open(replica).await?);
    }
    let load = Load::start(&bench).await?;
    let ports = [first.port, second.port];
    let (stop, handshakes) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let probing = tokio::spawn({
        let (bench, stop, handshakes) = (Arc::clone(&bench), Arc::clone(&stop), Arc::clone(&handshakes));
        async move { probe(&bench, ports, &stop, &handshakes).await }
    });
    let under_load = async || tokio::try_join!(load.goes_on(), more(&handshakes, 20));

    under_load().await?;
    bench.annotate_secret("please").await?;
    eventually(PATIENCE, || bench.secret_text("next-issuer.crt")).await?;
    first.lead(false);
    second.lead(true);
    let by_request = eventually(PATIENCE, || async {
        let bundle = bench.settled().await?;
        ensure!(bundle != authority, "still the old authority");
        Ok(bundle)
    })
    .await?;

    under_load().await?;
    let leaf = bench.secret_text("tls.crt").await?;
    eventually(PATIENCE, || async {
        ensure!(bench.secret_text("tls.crt").await? != leaf, "still the old leaf");
        Ok(())
    })
    .await?;
    ensure!(bench.settled().await? == by_request, "a new leaf needs no new authority");

    bench.secrets().delete(SECRET, &DeleteParams::default()).await?;
    eventually(PATIENCE, || async {
        ensure!(bench.settled().await? != by_request, "still the old authority");
        Ok(())
    })
    .await?;

    // The token changes with the certificate, and every path that was registered meanwhile was answered.
    eventually(PATIENCE, || async {
        ensure!(bench.settled_token().await? != token, "still the old token");
        Ok(())
    })
    .await?;

    under_load().await?;
    let created = load.end().await?;
    stop.store(true, Ordering::SeqCst);
    probing.await??;
    for (replica, before) in [&first, &second].into_iter().zip(failed_before) {
        let failures = bench.failed_open(replica).await? - before;
        ensure!(
            failures == 0,
            "the API server got no answer {failures} times:\n{}",
            bench.complaints(replica)?
        );
        let recorded = answered(replica);
        ensure!(
            recorded >= f64::from(u32::try_from(created)?),
            "{recorded} of {created}:\n{}",
            replica.metrics()
        );
        wait_for_stage(replica, "settled").await?;
    }
    ensure!(first.metric("fairlead_certificate_rotations_total{certificate=\"authority\"}") >= 2.0);
    ensure!(second.metric("fairlead_certificate_rotations_total{certificate=\"leaf\"}") >= 2.0);
    first.stop().await?;
    second.stop().await?;
    bench.clean_up().await
}

/// Requests about Pods that the replica has answered.
fn answered(replica: &Replica) -> f64 {
    ["recorded", "unchanged"]
        .map(|result| replica.metric(&format!("fairlead_admission_requests_total{{result=\"{result}\"}}")))
        .iter()
        .sum()
}

async fn wait_for_stage(replica: &Replica, stage: &str) -> Result<()> {
    let line = format!("fairlead_certificate_stage{{stage=\"{stage}\"}}");
    eventually(PATIENCE, || async {
        ensure!(replica.metric(&line) > 0.0, "{}", replica.metrics());
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damage_is_mended() -> Result<()> {
    let bench = Bench::new().await?;
    let replica = Replica::start(&bench, LONG, true).await?;
    bench.register(&[&replica]).await?;
    let authority = bench.wait_settled().await?;
    bench.wait_for_records().await?;

    // Another client overwrites the bundle, with nothing or with something else.
    for overwritten in [None, Some("bm90IGEgY2VydGlmaWNhdGU=")] {
        let webhook = json!({"name": bench.webhook(&replica), "clientConfig": {"caBundle": overwritten}});
        let patch = Patch::Strategic(json!({"webhooks": [webhook]}));
        // Not every API server accepts a bundle that is none; then there is nothing to mend either.
        let _ = bench.configurations().patch(&bench.configuration, &PatchParams::default(), &patch).await;
        ensure!(bench.wait_settled().await? == authority);
        bench.wait_for_records().await?;
    }

    // Another client overwrites the path, or takes it away.
    let token = bench.settled_token().await?;
    for path in ["/mutate/pods", ""] {
        let url = format!("https://127.0.0.1:{}{path}", replica.port);
        let webhook = json!({"name": bench.webhook(&replica), "clientConfig": {"url": url}});
        let patch = Patch::Strategic(json!({"webhooks": [webhook]}));
        bench.configurations().patch(&bench.configuration, &PatchParams::default(), &patch).await?;
        let again = eventually(PATIENCE, || bench.settled_token()).await?;
        ensure!(again == token, "a path that was overwritten needs no new token");
        bench.wait_for_records().await?;
    }

    // Parts of the Secret are mangled: each is made anew, and the rest is left as it is.
    for key in ["tls.crt", "tls.key", "ca.crt", "path-token"] {
        mangle(&bench, key).await?;
        eventually(PATIENCE, || async {
            ensure!(bench.secret_text(key).await? != "mangled", "{key} is mangled");
            ensure!(bench.settled().await? == authority, "{key} alone was mangled");
            Ok(())
        })
        .await?;
        bench.wait_for_records().await?;
    }
    replica.stop().await?;
    bench.clean_up().await
}

async fn mangle(bench: &Bench, key: &str) -> Result<()> {
    let patch = Patch::Merge(json!({"data": {key: ByteString(b"mangled".to_vec())}}));
    bench.secrets().patch(SECRET, &PatchParams::default(), &patch).await?;
    Ok(())
}

/// Without a leader nothing is written; with one, but without a configuration, the Secret is there and waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_leader_writes_and_a_late_configuration_is_filled() -> Result<()> {
    let bench = Bench::new().await?;
    let first = Replica::start(&bench, LONG, false).await?;
    let second = Replica::start(&bench, LONG, false).await?;
    for replica in [&first, &second] {
        wait_for_stage(replica, "missing").await?;
    }
    ensure!(bench.secrets().get_opt(SECRET).await?.is_none(), "written by a replica that does not lead");
    second.lead(true);
    for replica in [&first, &second] {
        wait_for_stage(replica, "settled").await?;
    }
    ensure!(first.metric("fairlead_certificate_rotations_total{certificate=\"leaf\"}") < 1.0);
    let secret = bench.secrets().get(SECRET).await?;
    ensure!(secret.type_.as_deref() == Some("kubernetes.io/tls"), "{:?}", secret.type_);

    bench.register(&[&first, &second]).await?;
    bench.wait_settled().await?;
    bench.wait_for_records().await?;
    first.stop().await?;
    second.stop().await?;
    bench.clean_up().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changed_names_make_a_new_leaf_of_the_same_authority() -> Result<()> {
    let bench = Bench::new().await?;
    let replica = Replica::start(&bench, LONG, true).await?;
    bench.register(&[&replica]).await?;
    let authority = bench.wait_settled().await?;
    let leaf = bench.secret_text("tls.crt").await?;
    replica.stop().await?;

    let names = ["127.0.0.1".to_owned(), "webhook.example.com".to_owned()];
    let settings = Settings::new(&bench.own_namespace, &bench.configuration, &names, LONG)?;
    let replica = Replica::start_with(&bench, settings, true).await?;
    let renewed = eventually(PATIENCE, || async {
        let found = bench.secret_text("tls.crt").await?;
        ensure!(found != leaf, "still the old leaf");
        Ok(found)
    })
    .await?;
    ensure!(names_in(&renewed).contains("webhook.example.com"), "{:?}", names_in(&renewed));
    ensure!(bench.wait_settled().await? == authority);
    replica.stop().await?;
    bench.clean_up().await
}

fn names_in(certificate: &str) -> BTreeSet<String> {
    let (_, pem) = x509_parser::pem::parse_x509_pem(certificate.as_bytes()).expect("PEM");
    let parsed = pem.parse_x509().expect("a certificate");
    let extension = parsed.subject_alternative_name().expect("readable names").expect("names");
    let name = |name: &x509_parser::extensions::GeneralName<'_>| match name {
        x509_parser::extensions::GeneralName::DNSName(name) => Some((*name).to_owned()),
        _ => None,
    };
    extension.value.general_names.iter().filter_map(name).collect()
}

/// With certificates from files, the operator keeps the path alone: the same promises, in a Secret of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_certificates_from_files_the_path_is_rotated_with_them() -> Result<()> {
    let bench = Bench::new().await?;
    let (authority, directory) = (Authority::new("cert-manager")?, tempfile::tempdir()?);
    let issue = || -> Result<()> {
        let issued = authority.issue(&["127.0.0.1"])?;
        std::fs::write(directory.path().join("tls.crt"), issued.certificate)?;
        Ok(std::fs::write(directory.path().join("tls.key"), issued.key)?)
    };
    issue()?;
    let validity = Duration::from_mins(1);
    let first = Replica::start_with_files(&bench, directory.path(), validity, true).await?;
    let second = Replica::start_with_files(&bench, directory.path(), validity, false).await?;
    bench.register(&[&first, &second]).await?;
    for replica in [&first, &second] {
        let bundle = ByteString(authority.certificate().as_bytes().to_vec());
        let webhook = json!({"name": bench.webhook(replica), "clientConfig": {"caBundle": bundle}});
        let patch = Patch::Strategic(json!({"webhooks": [webhook]}));
        bench.configurations().patch(&bench.configuration, &PatchParams::default(), &patch).await?;
    }
    bench.wait_for_records().await?;
    let path = registered(&bench).await?;
    ensure!(path.len() == "/mutate/".len() + 64, "{} characters", path.len());
    ensure!(
        bench.secrets().get_opt(SECRET).await?.is_none(),
        "the certificate's Secret is not the operator's"
    );
    let secret = bench.secrets().get(Settings::PATH_SECRET).await?;
    ensure!(secret.type_.as_deref() == Some("Opaque"), "{:?}", secret.type_);

    // Both replicas know the first token.
    let failed = async || -> Result<[u64; 2]> {
        Ok([bench.failed_open(&first).await?, bench.failed_open(&second).await?])
    };
    let before = eventually(PATIENCE, || async {
        let before = failed().await?;
        bench.create_pod(&bench.namespace, &json!({})).await?;
        ensure!(failed().await? == before, "a replica does not answer yet");
        Ok(before)
    })
    .await?;
    let load = Load::start(&bench).await?;
    issue()?;
    eventually(PATIENCE, || async {
        ensure!(registered(&bench).await? != path, "still the old path");
        let data = bench.secrets().get(Settings::PATH_SECRET).await?.data.unwrap_or_default();
        ensure!(!data.contains_key("previous-path-token"), "the old token is still accepted");
        Ok(())
    })
    .await?;
    // A lost Secret and another leader change nothing for API servers either.
    first.lead(false);
    bench.secrets().delete(Settings::PATH_SECRET, &DeleteParams::default()).await?;
    second.lead(true);
    eventually(PATIENCE, || async {
        ensure!(bench.secrets().get_opt(Settings::PATH_SECRET).await?.is_some(), "there is no Secret");
        Ok(())
    })
    .await?;
    let created = load.end().await?;
    ensure!(created > 20, "only {created} Pods");
    ensure!(
        failed().await? == before,
        "API servers were turned away:\n{}\n{}",
        bench.complaints(&first)?,
        bench.complaints(&second)?
    );
    first.stop().await?;
    second.stop().await?;
    bench.clean_up().await
}

/// The one path that API servers call.
async fn registered(bench: &Bench) -> Result<String> {
    let mut paths = bench.registered_paths().await?;
    paths.dedup();
    ensure!(paths.len() == 1, "{} paths", paths.len());
    paths.pop().context("no path")
}
