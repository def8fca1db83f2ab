//! Puts the parts of the operator together, keeps them running and ends them in order.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fairlead_domain::reference::Host;
use fairlead_plan::named_registries::Named;
use fairlead_plan::routing::PolicyId;
use kube::Client;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::sync::watch::Receiver;
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use crate::admission::{self, Recorder, Rewrites, Router};
use crate::capabilities::account;
use crate::capabilities::account::inventory::{DriftBoard, Inventory, InventorySetup};
use crate::capabilities::account::pins::{PinKeeper, PinSetup};
use crate::capabilities::availability::{self, AvailabilitySetup, AvailabilityWatch};
use crate::capabilities::cache::{self, CacheController, CacheSetup};
use crate::capabilities::consistency::{Consistency, ConsistencyChecks};
use crate::capabilities::heal::{self, HealSetup, Healing};
use crate::capabilities::mirror::{self, Inbox, MirrorController, MirrorSetup};
use crate::capabilities::nodes::{self, NodesSetup, PolicyReporter};
use crate::capabilities::warm::discovery::{self, DiscoverySetup, DiscoverySync};
use crate::capabilities::warm::images::ImageWarming;
use crate::capabilities::warm::sets::SetKeeper;
use crate::capabilities::warm::{self, WarmSetup};
use crate::cluster::policies::{self, Policies, PolicyStatus, Statuses};
use crate::cluster::watch::{self, Board, Resources, WatchRow, Watches};
use crate::context::{Basis, Context};
use crate::controller::events::{self, EventWriter, Events, Queued};
use crate::controller::tasks::{TaskError, Tasks};
use crate::controller::{self, Controller, Rounds};
use crate::platform::certificates::{
    self, ClientAuthorities, ClientAuthorityError, Files, Keeper, Leads, PathKeeper, Paths, Resolver,
    system_clock,
};
use crate::platform::clock::Clock;
use crate::platform::config::Config;
use crate::platform::health::{Check, Health, Probe};
use crate::platform::http::{self, BindError, Endpoint};
use crate::platform::leader::{self, Election, Leader};
use crate::platform::settings::{CertificateSource, LEASE, Settings};
use crate::platform::telemetry::{self, Heartbeat, Heartbeats};
use crate::registries::node_failures;
use crate::registries::secrets::copies::CopyKeeper;

const WEBHOOK: Endpoint = Endpoint { name: "webhook", flags: "--listen and --webhook-port" };
const HEALTH: Endpoint = Endpoint { name: "health", flags: "--listen and --health-port" };
const METRICS: Endpoint = Endpoint { name: "metrics", flags: "--listen and --metrics-port" };

/// Everything has ended this long after shutdown is requested.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(5);

const BEAT: Duration = Duration::from_secs(1);

/// Channel capacity; what overflows is rediscovered.
const NEWS: usize = 1024;

/// Why the operator ended without a request to.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    #[error(transparent)]
    Bind(#[from] BindError),
    #[error(transparent)]
    Task(#[from] TaskError),
    #[error(transparent)]
    ClientAuthority(#[from] ClientAuthorityError),
    #[error("TLS cannot be set up for the webhook: {0}")]
    Tls(#[from] rustls::Error),
}

/// What decides which callers of the webhook are answered.
struct Entrance {
    resolver: Arc<Resolver>,
    paths: Arc<Paths>,
}

/// What is being put together.
struct Assembly {
    client: Client,
    settings: Settings,
    registry: Registry,
    heartbeats: Heartbeats,
    rounds: Rounds,
    /// What changes the cluster or answers it. These end first, by themselves, after shutdown is requested.
    acting: Tasks,
    shutdown: CancellationToken,
    /// What sees and tells. These end when the others have.
    telling: Tasks,
    stop: CancellationToken,
}

/// Runs the operator until `shutdown`, or until a part of it fails. The clock is the one that the client keeps.
pub async fn run(
    settings: Settings,
    config: Config,
    client: Client,
    clock: Clock,
    shutdown: CancellationToken,
) -> Result<(), RunError> {
    let mut registry = Registry::default();
    let mut parts = Assembly {
        client,
        settings,
        rounds: Rounds::register(&mut registry),
        registry,
        heartbeats: Heartbeats::default(),
        acting: Tasks::default(),
        shutdown,
        telling: Tasks::default(),
        stop: CancellationToken::new(),
    };
    telemetry::register(&mut parts.registry);
    parts.registry.register_collector(Box::new(clock.clone()));
    let health = parts.listen(HEALTH, parts.settings.health_port).await?;
    let metrics = parts.listen(METRICS, parts.settings.metrics_port).await?;
    let webhook = parts.listen(WEBHOOK, parts.settings.webhook_port).await?;

    let resources = Resources::default();
    let board = parts.watch(&resources, &config);
    let leader = parts.elect();
    let entrance = parts.keep_certificates(leader.clone());
    let checks = [certificate_check(&entrance), path_check(&entrance)];
    let basis = Basis {
        client: parts.client.clone(),
        identity: parts.settings.identity.clone(),
        namespace: parts.settings.namespace.clone(),
        config,
        resources,
        board: board.clone(),
        clock,
    };
    let (context, queues) = Context::new(basis, &mut parts.registry);
    let context = Arc::new(context);
    let policies = policies_check(context.policies.clone(), board.clone());
    parts.follow(&context, queues.records);
    let consistency = Arc::new(Consistency::new(context.clone()));
    let compared = Compared { consistency, board: Arc::default() };
    parts.control(&context, &leader, queues.events, &compared);
    parts.mirror(&context, &leader, compared);
    parts.warm(&context, &leader);
    parts.heal(&context, &leader);
    parts.cache(&context, &leader);
    parts.admit(webhook, entrance, &context)?;
    let probes: Vec<Probe> = checks.into_iter().chain([policies]).collect();
    let beat = parts.heartbeats.add("run loop");
    parts.tell(health, metrics, board, probes).supervise(&beat).await
}

/// What controllers tell each other about images that are not the same.
struct Compared {
    consistency: Arc<Consistency>,
    board: Arc<DriftBoard>,
}

impl Assembly {
    async fn listen(&self, endpoint: Endpoint, port: u16) -> Result<TcpListener, BindError> {
        http::listen(endpoint, self.settings.listen, port).await
    }

    fn watch(&mut self, resources: &Resources, config: &Config) -> Arc<Board> {
        let metrics = watch::Metrics::register(&mut self.registry);
        let copying = config.routing.pull_secrets.copy;
        let webhook = copying.then(|| self.settings.certificates.configuration());
        let watches =
            Watches::new(self.client.clone(), &self.settings.namespace, resources, webhook, metrics);
        for (kind, watch) in watches.all {
            let stop = self.stop.clone();
            self.telling.spawn(format!("watch {kind}"), async move {
                stop.run_until_cancelled_owned(watch).await;
            });
        }
        watches.board
    }

    fn elect(&mut self) -> Leader {
        let (election, leader) = Election::new(
            self.client.clone(),
            &self.settings.namespace,
            LEASE,
            &self.settings.identity,
            leader::Metrics::register(&mut self.registry),
            self.heartbeats.add("election"),
        );
        self.acting.spawn("election", election.run(self.shutdown.clone()));
        leader
    }

    /// Starts what keeps the webhook's certificate and its path.
    fn keep_certificates(&mut self, leader: Leader) -> Entrance {
        let metrics = certificates::Metrics::register(&mut self.registry);
        let heartbeat = self.heartbeats.add("certificates");
        let leads: Leads = Arc::new(move || leader.term().is_some());
        let client = self.client.clone();
        match self.settings.certificates.clone() {
            CertificateSource::Own(settings) => {
                let keeper = Keeper::new(client, settings, leads, system_clock(), metrics, heartbeat);
                let entrance = Entrance { resolver: keeper.resolver(), paths: keeper.paths() };
                self.acting.spawn("certificates", keeper.run(self.shutdown.clone()));
                entrance
            }
            CertificateSource::Files(directory, settings) => {
                let files = Files::new(&directory, system_clock(), metrics.clone(), heartbeat);
                let (resolver, heartbeat) = (files.resolver(), self.heartbeats.add("webhook path"));
                let keeper = PathKeeper::new(client, settings, leads, resolver.clone(), metrics, heartbeat);
                let entrance = Entrance { resolver, paths: keeper.paths() };
                self.acting.spawn("certificates", files.run(self.shutdown.clone()));
                self.acting.spawn("webhook path", keeper.run(self.shutdown.clone()));
                entrance
            }
        }
    }

    /// Starts what keeps up to date what admission rests on, on every replica.
    fn follow(&mut self, context: &Arc<Context>, recorder: Recorder) {
        let Context { config, policies, .. } = &**context;
        self.telling.spawn("policies", policies.clone().run(self.stop.clone()));
        let configured: Vec<Host> =
            config.registries.hosts.keys().filter_map(|name| Host::parse(name.as_str()).ok()).collect();
        let named = {
            let policies = policies.clone();
            let mut known: Option<(u64, Arc<Named>)> = None;
            move || {
                let generation = policies.generation();
                match &known {
                    Some((of, named)) if *of == generation => Arc::clone(named),
                    _ => {
                        let named = Arc::new(Named::new(&policies.current(), &configured));
                        known = Some((generation, Arc::clone(&named)));
                        named
                    }
                }
            }
        };
        self.telling.spawn("verdicts", context.verdicts.clone().run(named, self.stop.clone()));
        let named = {
            let policies = policies.clone();
            move || {
                policies
                    .current()
                    .policies()
                    .flat_map(|policy| policy.secret_uses().collect::<Vec<_>>())
                    .collect()
            }
        };
        self.telling.spawn("secrets", context.secrets.clone().run(named, self.stop.clone()));
        let learning = node_failures::learn(context.clone(), self.stop.clone());
        self.telling.spawn("failures on nodes", learning);
        self.acting.spawn("records of ephemeral containers", recorder.run(self.shutdown.clone()));
        self.acting.spawn("internal errors", events::report_errors(context.clone(), self.shutdown.clone()));
    }

    /// Starts the controllers whose setup is the context, or little more.
    fn control(&mut self, context: &Arc<Context>, leader: &Leader, queued: Queued, compared: &Compared) {
        let Compared { consistency, board } = compared;
        let problems = context.secrets.problems().clone();
        let problems = move |policy: &PolicyId| problems.of(policy);
        let differences = {
            let consistency = consistency.clone();
            move |policy: &PolicyId| consistency.of(policy)
        };
        let statuses = Statuses::new(context.clone(), problems, differences, policies::RATE);
        self.run::<PolicyStatus>(Arc::new(statuses), leader);
        self.run::<ConsistencyChecks>(consistency.clone(), leader);
        self.run::<CopyKeeper>(context.clone(), leader);
        self.run::<PinKeeper>(Arc::new(PinSetup::new(context.clone()).with_board(board.clone())), leader);
        self.run::<EventWriter>(Arc::new(Events::new(context.clone(), queued)), leader);
    }

    fn run<C: Controller>(&mut self, setup: Arc<C::Setup>, leader: &Leader) {
        let heartbeat = self.heartbeats.add(C::NAME);
        self.acting
            .spawn(C::NAME, controller::run::<C>(setup, leader.clone(), heartbeat, self.rounds.clone()));
    }

    /// Starts what copies images to mirrors, what looks at images in registries, what says in mirror policies how far
    /// nodes have come, and what keeps the inventory. They tell each other what they find.
    fn mirror(&mut self, context: &Arc<Context>, leader: &Leader, consistency: Compared) {
        let (send_missed, missed) = mpsc::channel(NEWS);
        let (send_mirror_looks, mirror_looks) = tokio::sync::watch::channel(Arc::default());
        let (send_mirror_results, mirror_results) = mpsc::channel(NEWS);
        let (send_inventory_looks, inventory_looks) = tokio::sync::watch::channel(Arc::default());
        let (send_inventory_results, inventory_results) = mpsc::channel(NEWS);
        let (send_policy_looks, policy_looks) = tokio::sync::watch::channel(Arc::default());
        let (send_policy_results, policy_results) = mpsc::channel(NEWS);
        let findings = context.findings.clone();
        let findings = findings.run(self.client.clone(), leader.clone(), send_missed, self.shutdown.clone());
        self.acting.spawn("findings", findings);
        let metrics = mirror::Metrics::register(&mut self.registry);
        let inbox = Inbox { missed, seen: mirror_results };
        let mirroring = MirrorSetup::new(context.clone(), inbox, send_mirror_looks, metrics);
        self.run::<MirrorController>(Arc::new(mirroring), leader);
        let metrics = availability::Metrics::register(&mut self.registry, &context.config);
        let watch = AvailabilitySetup::new(context.clone(), mirror_looks, send_mirror_results, metrics)
            .with_accounts(inventory_looks, send_inventory_results)
            .with_policies(policy_looks, send_policy_results);
        self.run::<AvailabilityWatch>(Arc::new(watch), leader);
        let metrics = nodes::Metrics::register(&mut self.registry);
        let nodes = NodesSetup::new(context.clone(), metrics, send_policy_looks, policy_results);
        self.run::<PolicyReporter>(Arc::new(nodes), leader);
        let metrics = account::Metrics::register(&mut self.registry);
        let inventory =
            InventorySetup::new(context.clone(), metrics, send_inventory_looks, inventory_results)
                .beside(consistency.consistency, consistency.board);
        self.run::<Inventory>(Arc::new(inventory), leader);
    }

    /// Starts what finds images to warm, and what warms them.
    fn warm(&mut self, context: &Arc<Context>, leader: &Leader) {
        let metrics = discovery::Metrics::register(&mut self.registry);
        let warming = warm::Metrics::register(&mut self.registry);
        let setup = DiscoverySetup::new(context.clone(), metrics, warming.clone());
        self.run::<DiscoverySync>(Arc::new(setup), leader);
        let setup = Arc::new(WarmSetup::new(context.clone(), warming));
        self.run::<ImageWarming>(setup.clone(), leader);
        self.run::<SetKeeper>(setup, leader);
    }

    /// Starts what moves Pods to images that can be pulled.
    fn heal(&mut self, context: &Arc<Context>, leader: &Leader) {
        let metrics = heal::Metrics::register(&mut self.registry);
        if context.config.heal.enabled {
            self.run::<Healing>(Arc::new(HealSetup::new(context.clone(), metrics)), leader);
        }
    }

    /// Starts what keeps proxy caches in Harbor.
    fn cache(&mut self, context: &Arc<Context>, leader: &Leader) {
        let metrics = cache::Metrics::register(&mut self.registry);
        self.run::<CacheController>(Arc::new(CacheSetup::new(context.clone(), metrics)), leader);
    }

    fn admit(
        &mut self,
        listener: TcpListener,
        entrance: Entrance,
        context: &Arc<Context>,
    ) -> Result<(), RunError> {
        let clients = self.settings.webhook_client_ca.as_deref().map(ClientAuthorities::read).transpose()?;
        if let Some(clients) = &clients {
            self.telling.spawn("client authorities", clients.clone().run(self.stop.clone()));
        }
        let tls = entrance.resolver.server_config(clients)?;
        let metrics = admission::Metrics::register(&mut self.registry);
        let router = Router::new(context.clone(), Rewrites::register(&mut self.registry));
        let limits = admission::Limits::default();
        let (namespace, exclusions) = (&self.settings.namespace, context.config.exclusions());
        let (paths, router, errors) = (entrance.paths, Arc::new(router), context.errors.clone());
        let state =
            admission::AdmissionState::new(namespace, paths, exclusions, router, limits, metrics, errors);
        let serving = admission::serve(listener, tls, state, self.shutdown.clone());
        self.acting.spawn_fallible("admission", serving);
        Ok(())
    }

    fn tell(
        mut self,
        health: TcpListener,
        metrics: TcpListener,
        board: Arc<Board>,
        probes: Vec<Probe>,
    ) -> Running {
        let probes = Health { heartbeats: self.heartbeats, board, probes, shutdown: self.shutdown.clone() };
        let page = telemetry::page::routes(self.registry);
        self.telling.spawn_fallible("health", http::serve(health, probes.routes(), self.stop.clone()));
        self.telling.spawn_fallible("metrics", http::serve(metrics, page, self.stop.clone()));
        Running { acting: self.acting, shutdown: self.shutdown, telling: self.telling, stop: self.stop }
    }
}

/// All parts at work.
struct Running {
    acting: Tasks,
    shutdown: CancellationToken,
    telling: Tasks,
    stop: CancellationToken,
}

impl Running {
    /// Waits until shutdown is requested, or a task ends without it, and then ends everything in order.
    async fn supervise(mut self, beat: &Heartbeat) -> Result<(), RunError> {
        let mut ticks = tokio::time::interval(BEAT);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let outcome = loop {
            tokio::select! {
                biased;
                () = self.shutdown.cancelled() => break Ok(()),
                error = self.acting.first_to_end() => break Err(error),
                error = self.telling.first_to_end() => break Err(error),
                _ = ticks.tick() => beat.beat(),
            }
        };
        match &outcome {
            Ok(()) => tracing::info!("shutting down"),
            Err(error) => tracing::error!(%error, "shutting down"),
        }
        self.wind_down().await;
        Ok(outcome?)
    }

    async fn wind_down(mut self) {
        let begun = Instant::now();
        self.shutdown.cancel();
        let mut left = self.acting.finish(SHUTDOWN_LIMIT).await;
        self.stop.cancel();
        left.extend(self.telling.finish(SHUTDOWN_LIMIT.saturating_sub(begun.elapsed())).await);
        let milliseconds = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        if left.is_empty() {
            tracing::info!(milliseconds, "stopped");
        } else {
            tracing::warn!(milliseconds, tasks = ?left, "stopped without waiting any longer for some tasks");
        }
    }
}

/// Passes once the policies that were there at the start are compiled, and from then on.
fn policies_check(policies: Policies, board: Arc<Board>) -> Probe {
    let passed = AtomicBool::new(false);
    Box::new(move || {
        let listed = || board.rows().iter().filter(|row| Policies::follows(row.kind)).all(WatchRow::ready);
        if !passed.load(Ordering::Relaxed) && listed() && policies.is_up_to_date() {
            passed.store(true, Ordering::Relaxed);
        }
        let passed = passed.load(Ordering::Relaxed);
        let detail = if passed { "compiled" } else { "waiting for the first to be compiled" };
        Check { name: "policies".to_owned(), passed, detail: detail.to_owned() }
    })
}

fn certificate_check(entrance: &Entrance) -> Probe {
    check("webhook", entrance.resolver.ready(), ["waiting for a certificate", "serving"])
}

/// A replica that has not read the tokens yet would turn API servers away.
fn path_check(entrance: &Entrance) -> Probe {
    check("webhook path", entrance.paths.read(), ["waiting for the Secret with its token", "known"])
}

fn check(name: &'static str, state: Receiver<bool>, [not_yet, done]: [&'static str; 2]) -> Probe {
    Box::new(move || {
        let passed = *state.borrow();
        let detail = if passed { done } else { not_yet };
        Check { name: name.to_owned(), passed, detail: detail.to_owned() }
    })
}
