//! The router: a registry on the loopback address of a node, which containerd asks in place of the real one.
//!
//! It makes containerd follow entries that its files cannot express. What to do with a request is decided by
//! [`NodeConfig::route`]; here mirrors are asked, content is passed on, and sources are left to the runtime. The
//! router never asks the runtime for credentials, so it never sees any, and mirrors get none of them.

mod answer;
mod metrics;
mod mirror;
mod request;

use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use axum::extract::{Request, State};
use axum::response::Response;
use fairlead_domain::keyring::Keyring;
use fairlead_plan::node_config::{Attempt, End, NodeConfig, Place, Pull, PullKind, RouteMemory};
use fairlead_registry::{Client, OutageKind, Problem};
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use self::metrics::{Metrics, Outcome};
use self::mirror::Served;
use self::request::{Asked, AskedObject, RequestError};

/// Requests that are answered at the same time; others wait. containerd sends a few for each pull.
const MOST_AT_ONCE: usize = 128;

/// What does not change while a router runs.
#[derive(Debug, Default)]
pub struct RouterSettings {
    /// Whether the runtime is sent to mirrors for layers, where that is possible. It then gives the credentials of the
    /// source to a mirror that asks for some.
    pub redirects: bool,
    /// PEM file with certificate authorities of mirrors, besides the system's.
    pub authorities: Option<std::path::PathBuf>,
}

/// Answers a runtime.
#[derive(Debug)]
pub struct Router {
    config: ArcSwap<NodeConfig>,
    /// Credentials for mirrors.
    keyring: ArcSwap<Keyring>,
    memory: Mutex<RouteMemory>,
    /// For places with a certificate that is checked, and for those that are called insecure.
    verifying: Client,
    insecure: Client,
    settings: RouterSettings,
    metrics: Metrics,
    slots: Arc<Semaphore>,
    started: Instant,
}

impl Router {
    pub fn new(settings: RouterSettings, keyring: Keyring) -> Self {
        Self {
            config: ArcSwap::default(),
            keyring: ArcSwap::from_pointee(keyring),
            memory: Mutex::default(),
            verifying: mirror::client(&settings, false),
            insecure: mirror::client(&settings, true),
            settings,
            metrics: Metrics::default(),
            slots: Arc::new(Semaphore::new(MOST_AT_ONCE)),
            started: Instant::now(),
        }
    }

    pub fn register_metrics(&self, registry: &mut Registry) {
        self.metrics.register(registry);
    }

    /// Follows other entries from the next request on.
    pub fn follow(&self, config: Arc<NodeConfig>) {
        self.config.store(config);
    }

    pub fn use_credentials(&self, keyring: Keyring) {
        self.keyring.store(Arc::new(keyring));
    }

    /// Serves until `stop`, then finishes the requests at hand.
    pub async fn serve(
        self: Arc<Self>,
        listener: TcpListener,
        stop: CancellationToken,
    ) -> std::io::Result<()> {
        let routes = axum::Router::new().fallback(handle).with_state(self);
        axum::serve(listener, routes).with_graceful_shutdown(stop.cancelled_owned()).await
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    async fn respond(self: &Arc<Self>, asked: &Asked) -> Response {
        let config = self.config.load_full();
        let (pull, route) = {
            let (now, wanted, mut memory) = (self.now(), asked.wanted(), self.memory.lock());
            let pull = memory.pull(&wanted, now);
            let route = config.route(&wanted, &pull, &memory, now);
            (pull, route)
        };
        let mut attempts = Vec::new();
        for place in &route.places {
            let outcome = if place.is_source {
                match self.source_has(asked, place).await {
                    Ok(()) => return self.leave_to_source(&config, asked, place.insecure).await,
                    Err(problem) => Err(problem),
                }
            } else {
                self.ask(asked, place).await
            };
            match outcome {
                Ok(served) => return self.deliver(asked, &pull, place, served),
                Err(problem) => {
                    self.note_failure(asked, place, &problem);
                    attempts.push(Attempt { place: place.name.clone(), why: problem.to_string() });
                }
            }
        }
        match route.end {
            End::Source { insecure } => self.leave_to_source(&config, asked, insecure).await,
            End::Refuse(refusal) => {
                let message = refusal.message(&attempts);
                tracing::warn!(image = asked.name, message, "refused");
                self.metrics.count(Outcome::Refused, &asked.registry);
                answer::refused(&message)
            }
        }
    }

    /// Remembers what a mirror served, and passes it on.
    fn deliver(self: &Arc<Self>, asked: &Asked, pull: &Pull, place: &Place, served: Served) -> Response {
        let now = self.now();
        {
            let mut memory = self.memory.lock();
            memory.answered(place.host());
            memory.served(&asked.name, served.digests(), pull.kind, &place.name, now);
        }
        self.metrics.count(Outcome::Served, place.host());
        if !matches!(asked.object, AskedObject::Blob(_)) {
            let kind = if pull.kind == PullKind::Tag { "tag" } else { "digest" };
            tracing::info!(image = asked.name, mirror = place.name, kind, "a mirror serves the image");
        }
        self.answer(asked, place, served)
    }

    fn note_failure(&self, asked: &Asked, place: &Place, problem: &Problem) {
        self.metrics.count(Outcome::Failed, place.host());
        tracing::info!(image = asked.name, mirror = place.name, %problem, "a mirror does not serve the image");
        if is_outage(problem) {
            self.memory.lock().failed(place.host(), self.now(), fastrand::f64());
        }
    }
}

/// Whether the next request to the same registry would fail as well, after the same wait. An error about one image is
/// none about others.
fn is_outage(problem: &Problem) -> bool {
    match problem {
        Problem::Unreachable(outage) => outage.kind == OutageKind::Away,
        Problem::TimedOut(_) | Problem::Tls(_) => true,
        _ => false,
    }
}

async fn handle(State(router): State<Arc<Router>>, request: Request) -> Response {
    match Asked::read(request.method(), request.uri()) {
        Ok(Some(asked)) => {
            let slot = Arc::clone(&router.slots).acquire_owned().await;
            let response = router.respond(&asked).await;
            response.map(|body| answer::holding(body, slot.ok()))
        }
        Ok(None) => answer::base(),
        Err(error) => {
            let code = if error == RequestError::Method { 405 } else { 400 };
            answer::error(code, "UNSUPPORTED", &error.to_string())
        }
    }
}
