//! The router: a registry on the loopback address of a node, which containerd asks in place of the real one.
//!
//! It makes containerd follow entries that its files cannot express. What to do with a request is decided by
//! [`NodeConfig::route`]; here mirrors are asked, content is passed on, and sources are left to the runtime. The
//! router never asks the runtime for credentials, so it never sees any, and mirrors get none of them.

mod answer;
mod canary;
mod metrics;
mod mirror;
mod request;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::{ArcSwap, ArcSwapOption};
use axum::extract::{Request, State};
use axum::response::Response;
use fairlead_domain::keyring::Keyring;
use fairlead_plan::node_config::{End, NodeConfig, Place, PullKind, RouteMemory};
use fairlead_registry::{OutageKind, Problem};
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use parking_lot::Mutex;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

pub use self::canary::{CanaryError, canary, is_free_for_router};
use self::metrics::{Metrics, Outcome};
use self::mirror::{Clients, Served};
use self::request::{Asked, AskedObject, RequestError};

/// Requests that are answered at the same time; others wait. containerd sends a few for each pull.
const MOST_AT_ONCE: usize = 128;
/// What a connection may hold that the runtime has not taken yet. Every piece of it keeps the buffer alive that it was
/// read into, which may be several times as large.
const UNSENT: usize = 32 * 1024;
/// After a connection could not be taken, such as for want of file descriptors.
const PAUSE: Duration = Duration::from_secs(1);

/// What does not change while a router runs.
#[derive(Debug, Default)]
pub struct RouterSettings {
    /// Whether the runtime is sent to mirrors for layers, where that is possible. It then gives the credentials of the
    /// source to a mirror that asks for some.
    pub redirects: bool,
    /// PEM file with certificate authorities of mirrors, besides the system's. It may come later.
    pub authorities: Option<PathBuf>,
    /// Token servers of other domains that may have the passwords of mirrors.
    pub token_hosts: Vec<String>,
}

/// Answers a runtime.
#[derive(Debug)]
pub struct Router {
    config: ArcSwap<NodeConfig>,
    /// What the files say that lead here; `None` until that is known.
    files: ArcSwapOption<NodeConfig>,
    /// Credentials for mirrors.
    keyring: ArcSwap<Keyring>,
    memory: Mutex<RouteMemory>,
    clients: ArcSwap<Clients>,
    settings: RouterSettings,
    metrics: Metrics,
    slots: Arc<Semaphore>,
    started: Instant,
}

impl Router {
    pub fn new(settings: RouterSettings, keyring: Keyring) -> Self {
        Self {
            config: ArcSwap::default(),
            files: ArcSwapOption::default(),
            keyring: ArcSwap::from_pointee(keyring),
            memory: Mutex::default(),
            clients: ArcSwap::from_pointee(Clients::new(&settings)),
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

    /// The files of the runtime say the same as these entries from now on.
    pub fn files_follow(&self, config: Arc<NodeConfig>) {
        self.files.store(Some(config));
    }

    pub fn use_credentials(&self, keyring: Keyring) {
        self.keyring.store(Arc::new(keyring));
    }

    /// Looks whether the file with certificate authorities has come or gone. What changes in it is noticed anyway.
    pub fn look_for_authorities(&self) {
        let is_there = self.settings.authorities.as_ref().is_some_and(|file| file.exists());
        if is_there != self.clients.load().authorities.is_some() {
            tracing::info!(is_there, "certificate authorities of mirrors have come or gone");
            self.clients.store(Arc::new(Clients::new(&self.settings)));
        }
    }

    /// Serves until `stop`, then finishes the requests at hand.
    pub async fn serve(self: Arc<Self>, listener: TcpListener, stop: CancellationToken) {
        let routes = axum::Router::new().fallback(handle).with_state(self);
        let connections = GracefulShutdown::new();
        while let Some(accepted) = stop.run_until_cancelled(listener.accept()).await {
            match accepted {
                Ok((stream, _)) => {
                    let service = TowerToHyperService::new(routes.clone());
                    let serving = http1::Builder::new()
                        .header_read_timeout(None)
                        .max_buf_size(UNSENT)
                        .serve_connection(TokioIo::new(stream), service);
                    tokio::spawn(connections.watch(serving));
                }
                Err(error) => {
                    tracing::warn!(%error, "a connection of the runtime could not be taken");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
        drop(listener);
        connections.shutdown().await;
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    async fn respond(self: &Arc<Self>, asked: &Asked) -> Response {
        let config = self.config.load_full();
        let route = {
            let (now, wanted, mut memory) = (self.now(), asked.wanted(), self.memory.lock());
            let pull = memory.pull(&wanted, now);
            config.route(&wanted, &pull, &memory, now)
        };
        let mut attempts = Vec::new();
        for (at, place) in route.places.iter().enumerate() {
            let is_last = at + 1 == route.places.len() && matches!(route.end, End::Refuse(_));
            let outcome = if place.is_source {
                match self.source_has(asked, place.insecure).await {
                    Ok(()) => return self.leave_to_source(&config, asked, place.insecure).await,
                    Err(problem) => Err(problem),
                }
            } else {
                self.ask(asked, place, is_last).await
            };
            match outcome {
                Ok(served) => return self.deliver(asked, place, served),
                Err(problem) => {
                    self.note_failure(asked, place, &problem);
                    attempts.push(place.attempt(&problem));
                }
            }
        }
        match route.end {
            End::Source { insecure } => self.leave_to_source(&config, asked, insecure).await,
            End::Refuse(refusal) => {
                let message = refusal.message(&attempts);
                tracing::warn!(image = asked.name, message, "refused");
                self.metrics.count(Outcome::Refused, label(&config, &asked.registry));
                answer::refused(&message)
            }
        }
    }

    /// Remembers what a mirror served, and passes it on.
    fn deliver(self: &Arc<Self>, asked: &Asked, place: &Place, served: Served) -> Response {
        let now = self.now();
        {
            let mut memory = self.memory.lock();
            memory.answered(place.host());
            memory.served(&asked.name, served.digests(), place.kind, &place.name, now);
        }
        self.metrics.count(Outcome::Served, place.host());
        if !matches!(asked.object, AskedObject::Blob(_)) {
            let kind = if place.kind == PullKind::Tag { "tag" } else { "digest" };
            tracing::info!(image = asked.name, mirror = place.name, kind, "a mirror serves the image");
        }
        self.answer(asked, place, served)
    }

    fn note_failure(&self, asked: &Asked, place: &Place, problem: &Problem) {
        if place.is_source {
            // It is no mirror whose requests fail, so it counts where the request ends.
            tracing::info!(image = asked.name, %problem, "the source does not serve in its place among mirrors");
        } else {
            self.metrics.count(Outcome::Failed, place.host());
            tracing::info!(image = asked.name, mirror = place.name, %problem, "a mirror does not serve the image");
        }
        if is_outage(problem) {
            self.memory.lock().failed(place.host(), self.now(), fastrand::f64());
        }
    }
}

/// How an image counts that no mirror has a part in. Images of registries without an entry count as one: with a
/// domain's policy, any name that a Pod has arrives here.
fn label<'a>(config: &'a NodeConfig, registry: &'a str) -> &'a str {
    if config.is_routed(registry) {
        return registry;
    }
    config.entry_for(registry).map_or("other", |(scope, _)| scope.as_str())
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
