//! What the measurements of admission share: a control plane, three registries with the same images, and certificates.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use fairlead_testkit::images::{Image, ImageBuilder};
use fairlead_testkit::pki::Authority;
use fairlead_testkit::registry::{Endpoint, Registry, RegistryConfig};
use fairlead_testkit::{ApiProxy, Cluster, Part, eventually};
use futures::{StreamExt, TryStreamExt, stream};
use parking_lot::Mutex;
use rustls::ClientConfig;
use serde_json::{Value, json};

use super::answers;
use super::client::{self, Connection};
use super::load::{Load, Outcome};
use super::policies::{self, COPIES};
use super::reviews::{self, IMAGES, NAMESPACES, Review, Shape};
use super::server::{self, Patience, Server};

const AT_ONCE: usize = 8;
/// Connections that an API server keeps busy.
pub(crate) const CONNECTIONS: usize = 8;
/// Everything is known by then, or it never will be.
const WARM: Duration = Duration::from_mins(2);
/// Verdicts in use are refreshed in the background; that is no part of an admission.
const NO_REFRESH: &str = "routing: {probe: {refresh: 1h}}\n";
const SETTLED: Duration = Duration::from_mins(5);

pub(crate) struct Stage {
    cluster: Cluster,
    program: PathBuf,
    kubeconfig: PathBuf,
    /// tls.crt, tls.key and ca.crt.
    certificates: PathBuf,
    source: Registry,
    /// The way to the first mirror.
    pub(crate) wire: ApiProxy,
    second: Registry,
    /// The first mirror itself.
    pub(crate) first_mirror: Registry,
    policies: usize,
}

impl Stage {
    pub(crate) async fn set_up() -> Result<Self> {
        let begun = Instant::now();
        let program = std::env::current_exe()?.with_file_name("fairlead");
        ensure!(program.exists(), "{} is not there: use `make bench`", program.display());
        let cluster = Cluster::builder().start().await?;
        let [source, first, second] = registries().await?;
        install(&cluster, &program).await?;
        for number in 0..NAMESPACES {
            cluster.kubectl(["create", "namespace", &reviews::namespace(number)]).await?;
        }
        let kubeconfig = cluster.kubeconfig_as(server::NAMESPACE, "fairlead").await?;
        // They are not needed from here on, and would take time of the processor.
        cluster.kill(Part::ControllerManager).await?;
        cluster.kill(Part::Scheduler).await?;
        let certificates = certificates(cluster.directory())?;
        let wire = ApiProxy::start(([127, 0, 0, 1], first.endpoint().port()).into()).await?;
        println!("Set up in {:.0} s", begun.elapsed().as_secs_f64());
        Ok(Self {
            cluster,
            program,
            kubeconfig,
            certificates,
            source,
            wire,
            second,
            first_mirror: first,
            policies: 0,
        })
    }

    /// Creates policies until there are so many.
    pub(crate) async fn policies(&mut self, count: usize) -> Result<()> {
        if count > self.policies {
            let mirrors = [self.wire.address().to_string(), self.second.host()];
            let client = self.cluster.client().await?;
            policies::create(&client, self.policies..count, &self.source.host(), &mirrors).await?;
            self.policies = count;
        }
        Ok(())
    }

    /// Where copies are, as references begin: the first mirror.
    pub(crate) fn first(&self) -> String {
        format!("{}/{COPIES}", self.wire.address())
    }

    pub(crate) fn second(&self) -> String {
        format!("{}/{COPIES}", self.second.host())
    }

    pub(crate) fn directory(&self) -> &Path {
        self.cluster.directory()
    }

    /// The command of an operator.
    pub(crate) fn operator(&self) -> Vec<String> {
        server::operator(&self.program, &self.kubeconfig, &self.certificates)
    }

    /// The command of an operator that asks registries for nothing but what Pods need.
    pub(crate) fn operator_without_refresh(&self) -> Result<Vec<String>> {
        let config = self.directory().join("no-refresh.yaml");
        std::fs::write(&config, NO_REFRESH)?;
        Ok(self.operator().into_iter().chain([format!("--config={}", config.display())]).collect())
    }

    /// The command of an operator that pins every tag.
    pub(crate) fn pinning_operator(&self) -> Result<Vec<String>> {
        let config = self.directory().join("pinning.yaml");
        // The registry of the Pods' images is on loopback, where it is asked only if it is named.
        std::fs::write(
            &config,
            format!("account: {{pinning: all}}\nregistries:\n  \"{}\": {{}}\n", self.source()),
        )?;
        Ok(self.operator().into_iter().chain([format!("--config={}", config.display())]).collect())
    }

    /// How many images each pin holds.
    pub(crate) async fn pins(&self) -> Result<Vec<usize>> {
        let found: Value =
            serde_json::from_str(&self.cluster.kubectl(["get", "imagepins", "-A", "--output=json"]).await?)?;
        let pins = found.get("items").and_then(Value::as_array).context("no list")?;
        let images = |pin: &Value| pin.pointer("/spec/images").and_then(Value::as_array).map_or(0, Vec::len);
        Ok(pins.iter().map(images).collect())
    }

    /// The command of the bare handler.
    pub(crate) fn bare(&self) -> Result<Vec<String>> {
        server::bare(&self.certificates)
    }

    /// Bytes of one review.
    pub(crate) fn size(&self, shape: Shape) -> Result<usize> {
        let reviews = reviews::all(&self.source.host(), shape)?;
        Ok(reviews.first().map_or(0, |review| review.body.len()))
    }

    /// A load on a server, to be changed as needed.
    pub(crate) fn load(&self, server: &Server, shape: Shape, seconds: f64) -> Load {
        Load {
            address: server.address(),
            path: server.path.clone(),
            authority: self.certificates.join("ca.crt"),
            source: self.source.host(),
            shape,
            connections: CONNECTIONS,
            seconds,
            warm_up: 0.0,
            requests: None,
            expect: None,
            namespace: None,
        }
    }

    /// Creates objects of kuik's group in a new namespace, and counts them among the policies.
    pub(crate) async fn crowd(&mut self, namespace: &str, objects: &[Value]) -> Result<()> {
        self.cluster.kubectl(["create", "namespace", namespace]).await?;
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
        let file = self.directory().join("crowd.json");
        std::fs::write(&file, list.to_string())?;
        self.cluster.kubectl(["create", "-f", &file.display().to_string()]).await?;
        self.policies += objects.len();
        Ok(())
    }

    /// The registry that the Pods' images are in.
    pub(crate) fn source(&self) -> String {
        self.source.host()
    }

    pub(crate) fn source_registry(&self) -> &Registry {
        &self.source
    }

    /// Asks about all these Pods, on several connections, and returns the image that each one gets.
    pub(crate) async fn images_of(&self, server: &Server, reviews: Vec<Review>) -> Result<Vec<String>> {
        let (address, path) = (server.address(), server.path.clone());
        let config = client::trusting(&self.certificates.join("ca.crt"))?;
        let ask = move |reviews: Vec<Review>| {
            let mut connection = Connection::open(address, Arc::clone(&config))?;
            let images = reviews.iter().map(|review| {
                answers::image(review, connection.ask(&client::request(address, &path, &review.body))?)
            });
            images.collect::<Result<Vec<_>>>()
        };
        let share = reviews.len().div_ceil(CONNECTIONS).max(1);
        let asking = reviews.chunks(share).map(|share| {
            let (ask, share) = (ask.clone(), share.to_vec());
            tokio::task::spawn_blocking(move || ask(share))
        });
        let mut images = Vec::new();
        for asked in futures::future::join_all(asking).await {
            images.extend(asked??);
        }
        Ok(images)
    }

    /// Who holds the operator's lease, and how often it changed hands.
    pub(crate) async fn lease(&self) -> Result<String> {
        let what = "jsonpath={.items[*].spec.holderIdentity} {.items[*].spec.leaseTransitions}";
        self.cluster.kubectl(["get", "leases", "-n", server::NAMESPACE, "-o", what]).await
    }

    /// Asks about every image until Pods get all of them from `place`, and returns how long that took and how long the
    /// slowest answer on the way.
    pub(crate) async fn until_all_from(&self, server: &Server, place: &str) -> Result<(Duration, Duration)> {
        let begun = Instant::now();
        let questions = Arc::new(Questions {
            address: server.address(),
            path: server.path.clone(),
            config: client::trusting(&self.certificates.join("ca.crt"))?,
            reviews: reviews::all(&self.source.host(), Shape::of(1))?.into_iter().take(IMAGES).collect(),
            slowest: Mutex::default(),
        });
        let asking = eventually(WARM, || {
            let (questions, place) = (Arc::clone(&questions), place.to_owned());
            async { tokio::task::spawn_blocking(move || questions.ask(&place)).await? }
        });
        asking.await.with_context(|| format!("Pods do not get their images from {place}"))?;
        let slowest = *questions.slowest.lock();
        Ok((begun.elapsed(), slowest))
    }

    /// An operator that follows all policies, and knows nothing about images yet.
    pub(crate) async fn fresh_operator(&self, command: Vec<String>, patience: Patience) -> Result<Server> {
        let mut server = Server::start_operator(command, self.policies, patience).await?;
        server.path = eventually(patience.0, || self.path()).await?;
        let client = self.cluster.client().await?;
        // The lease holder writes to every new policy once, which takes its time and is not what is measured.
        eventually(SETTLED, || async {
            let count = policies::answered(&client).await?;
            ensure!(count == self.policies, "{count} of {} policies have a status", self.policies);
            Ok(())
        })
        .await
        .with_context(|| server.process().log_tail())?;
        Ok(server)
    }

    /// The path that operators answer on. There is no webhook configuration here, so it is made of their token.
    async fn path(&self) -> Result<String> {
        let template = "--output=go-template={{index .data \"path-token\" | base64decode}}";
        let secret = ["get", "secret", "fairlead-webhook-path", "--namespace", server::NAMESPACE, template];
        Ok(format!("/mutate/{}", self.cluster.kubectl(secret).await?.trim()))
    }

    /// An operator that knows everything it needs to send Pods to the first mirror.
    pub(crate) async fn warm_operator(&self, command: Vec<String>, patience: Patience) -> Result<Server> {
        let server = self.fresh_operator(command, patience).await?;
        self.until_all_from(&server, &self.first()).await.with_context(|| server.process().log_tail())?;
        Ok(server)
    }
}

/// One question for each image.
struct Questions {
    address: SocketAddr,
    path: String,
    config: Arc<ClientConfig>,
    reviews: Vec<Review>,
    slowest: Mutex<Duration>,
}

impl Questions {
    /// Asks all of them, and fails if any answer is another than the copies at `place`.
    fn ask(&self, place: &str) -> Result<()> {
        let mut connection = Connection::open(self.address, Arc::clone(&self.config))?;
        let mut verdict = Ok(());
        for review in &self.reviews {
            let request = client::request(self.address, &self.path, &review.body);
            let start = Instant::now();
            let answer = connection.ask(&request)?;
            let mut slowest = self.slowest.lock();
            *slowest = slowest.max(start.elapsed());
            // Also after a failure all are asked: an image is in use, whatever becomes of another one.
            verdict = verdict.and(answers::expect(review, answer, place));
        }
        verdict
    }
}

/// A load of a server, and the processor time that one admission took it.
pub(crate) async fn measured(server: &Server, load: &Load) -> Result<(Outcome, f64)> {
    let before = server.process().processor_time()?;
    let outcome = load.elsewhere().await?;
    let spent = server.process().processor_time()?.saturating_sub(before);
    // Admissions of the warming up took time as well, and do not count among the requests.
    let counted = (load.seconds - load.warm_up) / load.seconds;
    let requests = u32::try_from(outcome.requests).map_or(f64::INFINITY, f64::from);
    Ok((outcome, spent.as_secs_f64() * counted / requests))
}

/// The registry of the Pods' images and two that hold copies.
async fn registries() -> Result<[Registry; 3]> {
    let [source, first, second] = [(); 3].map(|()| Registry::start(RegistryConfig::new()));
    let registries = tokio::try_join!(source, first, second)?;
    let registries = [registries.0, registries.1, registries.2];
    let images: Vec<Image> = (0..IMAGES)
        .map(|number| ImageBuilder::new().label("number", &number.to_string()).build())
        .collect::<Result<_>>()?;
    let endpoints: Vec<(&Endpoint, &str)> =
        registries.iter().map(Registry::endpoint).zip(["", COPIES, COPIES]).collect();
    stream::iter(
        endpoints.into_iter().flat_map(|place| images.iter().enumerate().map(move |image| (place, image))),
    )
    .map(|((endpoint, path), (number, image))| async move {
        let (repository, tag) = reviews::image(number);
        let repository = format!("{path}/{repository}");
        endpoint.push(repository.trim_start_matches('/'), &tag, image).await
    })
    .buffer_unordered(AT_ONCE)
    .try_for_each(|_| async { Ok(()) })
    .await?;
    Ok(registries)
}

async fn install(cluster: &Cluster, program: &Path) -> Result<()> {
    let output = tokio::process::Command::new(program).arg("manifests").output().await?;
    ensure!(output.status.success(), "fairlead manifests: {}", String::from_utf8_lossy(&output.stderr));
    let file = cluster.directory().join("manifests.yaml");
    std::fs::write(&file, output.stdout)?;
    cluster.kubectl(["apply", "--server-side", "-f", &file.display().to_string()]).await?;
    // Pods of this cluster are made up; the real ones are not to wait for an operator that is not there.
    cluster.kubectl(["delete", "mutatingwebhookconfiguration", "fairlead"]).await?;
    Ok(())
}

/// The same for all servers, so that handshakes cost the same.
fn certificates(directory: &Path) -> Result<PathBuf> {
    let directory = directory.join("certificates");
    std::fs::create_dir_all(&directory)?;
    let authority = Authority::new("bench")?;
    let identity = authority.issue(&["127.0.0.1", "fairlead-webhook.fairlead-system.svc"])?;
    std::fs::write(directory.join("tls.crt"), identity.certificate)?;
    std::fs::write(directory.join("tls.key"), identity.key)?;
    std::fs::write(directory.join("ca.crt"), authority.certificate())?;
    Ok(directory)
}
