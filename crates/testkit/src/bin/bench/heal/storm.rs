//! Many Pods fail at once because one registry died.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context, Result, ensure};
use fairlead_testkit::fake_registry::{Auth, Bearer, FakeRegistry, Logged};
use fairlead_testkit::measure::Bar;
use fairlead_testkit::{Cluster, Part, Signal, eventually, load};
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::ListParams;
use serde_json::json;

use super::stage::{Living, Stage};
use crate::admission::client::{self, Connection};
use crate::admission::reviews::{self, Shape};
use crate::copies::count;

const NODES: usize = 50;
const CREATED_AT_ONCE: usize = 8;
/// Admission is measured for so long before the storm, and between two requests there is a pause.
const IDLE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(20);
const LOOK: Duration = Duration::from_millis(250);
/// Seconds after which a verdict that is in use is asked for again, at the earliest: jitter makes it 24 to 30.
const REFRESH: Duration = Duration::from_secs(24);
/// Every second Pod of an image has this pull secret, so a candidate is asked for with it and without it.
const SECRET: &str = "robot";
const MOST_SLOWDOWN: f64 = 1.5;
const MOST_MEMORY: f64 = 60.0;
const PATCHED: &str = "pods_upstream_patched_total{";

pub(crate) struct Storm {
    pub(crate) pods: usize,
    pub(crate) images: usize,
    pub(crate) per_second: u32,
    /// Seconds in which all Pods are to be patched.
    pub(crate) limit: f64,
}

impl Storm {
    pub(crate) async fn measure(&self) -> Result<Vec<Bar>> {
        let Self { pods, images, per_second, limit } = self;
        println!("{pods} Pods of {images} images fail at once, {per_second} patches per second are allowed");
        let cluster = Cluster::builder().audit(true).calm_nodes(true).start().await?;
        cluster.kill(Part::Scheduler).await?;
        let config = format!("heal: {{patchesPerSecond: {per_second}}}\n");
        let second = FakeRegistry::start().await?;
        // Every caller gets a token, which tells those with a pull secret from the others.
        second.require(Auth::bearer(Bearer::new()));
        let stage = Stage::set_up(cluster, Living::Asking(second), *images, &config).await?;
        let stages = include_str!("stages.yaml").replace("DEAD", &stage.first.host());
        stage.cluster.start_kwok(Some(&stages)).await?;
        let nodes = stage.cluster.simulated_nodes("node", NODES).await?;
        let namespace = stage.cluster.namespace("storm").await?;

        pull_secret(&stage, &namespace).await?;
        // All are created by then.
        let fails_at = SystemTime::now() + Duration::from_secs(20 + 2 * u64::try_from(pods / 100)?);
        self.create(&stage, &namespace, &nodes, fails_at).await?;
        let rest = fails_at.duration_since(SystemTime::now()).unwrap_or_default();
        ensure!(rest > IDLE + Duration::from_secs(2), "creating the Pods took too long");
        tokio::time::sleep(rest.saturating_sub(IDLE + Duration::from_secs(1))).await;
        let idle = admission(&stage, &namespace, Some(IDLE), Arc::default()).await?;
        stage.first.kill().await?;
        tokio::time::sleep(fails_at.duration_since(SystemTime::now()).unwrap_or_default()).await;

        stage.operator.process.signal(Signal::Stop).await?;
        self.all_fail(&stage, &namespace).await?;
        let asked_before = requests(&stage).len();
        stage.operator.process.signal(Signal::Continue).await?;
        let begun = Instant::now();
        let over = Arc::new(AtomicBool::new(false));
        let busy = admission(&stage, &namespace, None, over.clone());
        let healed = async {
            let patched = eventually(Duration::from_secs_f64(limit * 3.0), || async {
                let page = stage.operator.page().await?;
                let series = page.lines().filter(|line| line.starts_with(PATCHED));
                let sum: f64 = series.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum();
                tokio::time::sleep(LOOK).await;
                ensure!(sum >= count(*pods), "{sum} of {pods} Pods are patched");
                Ok(())
            });
            let patched = patched.await;
            over.store(true, Ordering::Relaxed);
            patched.map(|()| begun.elapsed().as_secs_f64())
        };
        let (busy, took) = tokio::join!(busy, healed);
        let (busy, took) = (busy?, took?);
        let most_probes = most_probes(requests(&stage).get(asked_before..).unwrap_or_default());
        ensure!(most_probes > 0, "no candidate was probed");
        let memory = count(usize::try_from(stage.operator.process.peak_memory()?)?) / 1_048_576.0;
        let wrong = self.wrong(&stage, &namespace).await?;
        println!(
            "  all patched after {took:.1} s; admission {:.2} ms, idle {:.2} ms; {memory:.1} MiB",
            1000.0 * busy,
            1000.0 * idle
        );
        let what = |text: &str| format!("{pods} Pods, {per_second} patches per second: {text}");
        Ok(vec![
            Bar::at_most(what("seconds until all are patched"), took, *limit),
            Bar::at_most(what("Pods that were not patched exactly once, or do not run"), count(wrong), 0.0),
            Bar::at_most(
                what("probes of a candidate, for each credential and refresh"),
                count(most_probes),
                1.0,
            ),
            Bar::at_most(what("median of admission, of that when idle"), busy / idle, MOST_SLOWDOWN),
            Bar::at_most(what("peak memory in MiB"), memory, MOST_MEMORY),
        ])
    }

    async fn create(
        &self,
        stage: &Stage,
        namespace: &str,
        nodes: &[String],
        fails_at: SystemTime,
    ) -> Result<()> {
        let fails_at = k8s_openapi::jiff::Timestamp::try_from(fails_at)?.to_string();
        let pod = |number: usize| -> Pod {
            let node = nodes.get(number % nodes.len().max(1)).map(String::as_str).unwrap_or_default();
            let image = Stage::image(&stage.first, number % self.images);
            let has_secret = (number / self.images) % 2 == 1;
            let secrets: Vec<_> = has_secret.then(|| json!({"name": SECRET})).into_iter().collect();
            let pod = json!({
                "metadata": {
                    "name": format!("pod-{number:05}"), "labels": {"app": "storm"},
                    "annotations": {"example.com/pulled-at": fails_at},
                },
                "spec": {
                    "nodeName": node, "automountServiceAccountToken": false, "imagePullSecrets": secrets,
                    "containers": [{"name": "app", "image": image, "imagePullPolicy": "IfNotPresent"}],
                },
            });
            serde_json::from_value(pod).unwrap_or_default()
        };
        load::create_pods(stage.cluster.client().await?, namespace, self.pods, CREATED_AT_ONCE, pod).await
    }

    /// Waits until all Pods have failed. One program plays all kubelets, and on two cores it takes it as long to write
    /// these failures as healing takes; the operator stands still meanwhile, so that they reach it at once.
    async fn all_fail(&self, stage: &Stage, namespace: &str) -> Result<()> {
        let pods: Api<Pod> = Api::namespaced(stage.cluster.client().await?, namespace);
        eventually(Duration::from_mins(1), || async {
            tokio::time::sleep(LOOK).await;
            let listed = pods.list(&ListParams::default()).await?;
            let failing = listed
                .iter()
                .filter(|pod| pod.status.as_ref().is_some_and(|status| status.container_statuses.is_some()));
            let failing = failing.count();
            ensure!(failing == self.pods, "{failing} of {} Pods have failed", self.pods);
            Ok(())
        })
        .await
    }

    /// Pods that the operator did not patch exactly once, or that do not run what they should.
    async fn wrong(&self, stage: &Stage, namespace: &str) -> Result<usize> {
        let mut patches = BTreeMap::<String, usize>::new();
        for event in stage.cluster.audit_events()? {
            let of_operator = event.user.starts_with("system:serviceaccount:fairlead-system");
            if of_operator
                && event.verb == "patch"
                && event.resource == "pods"
                && event.namespace == namespace
            {
                *patches.entry(event.name).or_default() += 1;
            }
        }
        let once = patches.values().filter(|patches| **patches == 1).count();
        let pods: Api<Pod> = Api::namespaced(stage.cluster.client().await?, namespace);
        let expected = format!("{}/", stage.second.host());
        let running = eventually(Duration::from_mins(1), || async {
            let listed = pods.list(&ListParams::default()).await?;
            let runs = |pod: &&Pod| {
                let image = pod.spec.as_ref().and_then(|spec| spec.containers.first()?.image.as_deref());
                let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
                image.is_some_and(|image| image.starts_with(&expected)) && phase == Some("Running")
            };
            let running = listed.iter().filter(runs).count();
            ensure!(running == self.pods, "{running} of {} Pods run", self.pods);
            Ok(running)
        });
        let running = running.await.unwrap_or_default();
        Ok(self.pods.saturating_sub(once.min(running)))
    }
}

/// Credentials of which the living registry makes nothing but a token with a name.
async fn pull_secret(stage: &Stage, namespace: &str) -> Result<()> {
    let (server, login) = (format!("--docker-server={}", stage.second.host()), "--docker-username=robot");
    let create = ["create", "secret", "docker-registry", SECRET, "--namespace", namespace];
    let arguments = create.into_iter().chain([&*server, login, "--docker-password=unused"]);
    stage.cluster.kubectl(arguments).await.map(drop)
}

/// What the living registry was asked so far.
fn requests(stage: &Stage) -> Vec<Logged> {
    match &stage.second {
        Living::Asking(registry) => registry.requests(),
        Living::Real(_) => Vec::new(),
    }
}

/// How often the operator probed one candidate with one credential within the time of one refresh, at most.
fn most_probes(requests: &[Logged]) -> usize {
    let mut probes = BTreeMap::<(&str, &str), Vec<Instant>>::new();
    for asked in requests {
        let is_probe = asked.method == "HEAD" && asked.path.contains("/manifests/");
        let of_operator = asked.header("user-agent").starts_with("fairlead/");
        // A request without a token is how a client learns that it needs one.
        if is_probe && of_operator && !asked.header("authorization").is_empty() {
            probes.entry((&asked.path, &asked.user)).or_default().push(asked.at);
        }
    }
    let within_one_refresh = |times: &Vec<Instant>| {
        let after = |from: &Instant| {
            let later = |at: &&Instant| **at >= *from && at.duration_since(*from) < REFRESH;
            times.iter().filter(later).count()
        };
        times.iter().map(after).max()
    };
    probes.values().filter_map(within_one_refresh).max().unwrap_or_default()
}

/// The median time of admission in seconds, of Pods whose images the policy covers: for so long, or until it is over.
/// Their namespace is there: admission waits up to a second for one that the operator's watch has not told of yet.
async fn admission(
    stage: &Stage,
    namespace: &str,
    time: Option<Duration>,
    over: Arc<AtomicBool>,
) -> Result<f64> {
    let (path, authority) = stage.webhook().await?;
    let (address, source, namespace) = (stage.operator.webhook, stage.source(), namespace.to_owned());
    tokio::task::spawn_blocking(move || {
        let reviews = reviews::all_in(Some(&namespace), &source, Shape::of(1))?;
        let requests: Vec<_> =
            reviews.iter().map(|review| client::request(address, &path, &review.body)).collect();
        let mut connection = Connection::open(address, client::trusting(&authority)?)?;
        let begun = Instant::now();
        let mut times = Vec::new();
        for request in requests.iter().cycle() {
            if over.load(Ordering::Relaxed) || time.is_some_and(|time| begun.elapsed() >= time) {
                break;
            }
            let asked = Instant::now();
            connection.ask(request)?;
            times.push(asked.elapsed());
            std::thread::sleep(PAUSE);
        }
        times.sort_unstable();
        let median = times.get(times.len() / 2).context("nothing was asked")?;
        Ok(median.as_secs_f64())
    })
    .await?
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    /// A request of the operator after so many seconds.
    fn asked(begun: Instant, seconds: u64, method: &str, user: &str, headers: &[(&str, &str)]) -> Logged {
        let headers: HashMap<_, _> =
            headers.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Logged {
            method: method.to_owned(),
            path: "/v2/team/app/manifests/v1".to_owned(),
            query: String::new(),
            headers: (&headers).try_into().unwrap(),
            version: axum::http::Version::HTTP_11,
            user: user.to_owned(),
            at: begun + Duration::from_secs(seconds),
            connection: 1,
        }
    }

    #[test]
    fn probes_are_counted_by_credential_within_the_time_of_one_refresh() {
        let (begun, own) = (Instant::now(), ("user-agent", "fairlead/1"));
        let token = ("authorization", "Bearer token");
        let head = |seconds, user| asked(begun, seconds, "HEAD", user, &[own, token]);
        assert_eq!(most_probes(&[head(0, ""), head(0, SECRET)]), 1, "two credentials");
        assert_eq!(most_probes(&[head(0, ""), head(24, ""), head(48, "")]), 1, "each is a refresh");
        assert_eq!(most_probes(&[head(0, ""), head(20, ""), head(43, "")]), 2, "no window is left out");
        let without_token = asked(begun, 1, "HEAD", "", &[own]);
        let of_kubelet = asked(begun, 1, "HEAD", "", &[("user-agent", "containerd/2"), token]);
        let read = asked(begun, 1, "GET", "", &[own, token]);
        assert_eq!(most_probes(&[head(0, ""), without_token, of_kubelet, read]), 1, "those are no probes");
    }
}
