//! What every replica in this process does, whatever else a test wants of it: it watches the cluster and stands for
//! election.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use fairlead_operator::cluster::watch::{self, Board, Resources, Watches};
use fairlead_operator::context::{Basis, Context, Queues};
use fairlead_operator::controller::{self, Controller, Rounds};
use fairlead_operator::platform::clock::Clock;
use fairlead_operator::platform::config::Config;
use fairlead_operator::platform::leader::{self, Election, Leader};
use fairlead_operator::platform::telemetry::Heartbeats;
use kube::Client;
use prometheus_client::registry::Registry;
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};

pub const LEASE: &str = "fairlead-operator";

pub struct Candidate {
    pub resources: Resources,
    pub board: Arc<Board>,
    pub leader: Leader,
    pub rounds: Rounds,
    client: Client,
    namespace: String,
    identity: String,
    stop: CancellationToken,
    tasks: Vec<JoinHandle<()>>,
    _running: DropGuard,
}

impl Candidate {
    /// Starts a replica of the operator that lives in `namespace`. One that is dropped gives leadership back.
    pub fn start(client: &Client, namespace: &str, identity: &str) -> Self {
        Self::start_with(client, namespace, identity, Resources::default(), None)
    }

    /// The same with what is known of the cluster already, and with the webhook configuration whose selector counts.
    pub fn start_with(
        client: &Client,
        namespace: &str,
        identity: &str,
        resources: Resources,
        webhook: Option<&str>,
    ) -> Self {
        let stop = CancellationToken::new();
        let metrics = watch::Metrics::default();
        let watches = Watches::new(client.clone(), namespace, &resources, webhook, metrics);
        let heartbeat = Heartbeats::default().add("election");
        let metrics = leader::Metrics::default();
        let (election, leader) =
            Election::new(client.clone(), namespace, LEASE, identity, metrics, heartbeat);
        let mut candidate = Self {
            resources,
            board: watches.board,
            leader,
            rounds: Rounds::default(),
            client: client.clone(),
            namespace: namespace.to_owned(),
            identity: identity.to_owned(),
            tasks: Vec::new(),
            _running: stop.clone().drop_guard(),
            stop,
        };
        for (_, watch) in watches.all {
            let stop = candidate.stopping();
            candidate.spawn(async move {
                stop.run_until_cancelled_owned(watch).await;
            });
        }
        candidate.spawn(election.run(candidate.stopping()));
        candidate
    }

    /// What the replica's parts share, and the queues that they fill.
    pub fn context(&self, config: Config, registry: &mut Registry) -> (Context, Queues) {
        let basis = Basis {
            client: self.client.clone(),
            identity: self.identity.clone(),
            namespace: self.namespace.clone(),
            config,
            resources: self.resources.clone(),
            board: self.board.clone(),
            clock: Clock::default(),
        };
        Context::new(basis, registry)
    }

    /// Lets the replica run a controller whenever it leads.
    pub fn control<C: Controller>(&mut self, setup: Arc<C::Setup>) {
        let heartbeat = Heartbeats::default().add(C::NAME);
        self.spawn(controller::run::<C>(setup, self.leader.clone(), heartbeat, self.rounds.clone()));
    }

    /// Cancelled when the replica is to end.
    pub fn stopping(&self) -> CancellationToken {
        self.stop.clone()
    }

    /// Lets the replica do something more, until it ends.
    pub fn spawn(&mut self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.push(tokio::spawn(task));
    }

    /// Ends it where it stands, as a crash would: the lease has to run out.
    pub fn kill(self) {
        for task in self.tasks {
            task.abort();
        }
    }

    /// Gives leadership back and waits until everything has ended.
    pub async fn stop(self) -> Result<()> {
        self.stop.cancel();
        wait_for_end(self.tasks).await
    }
}

/// Waits until everything that a replica does has ended.
pub async fn wait_for_end(tasks: Vec<JoinHandle<()>>) -> Result<()> {
    for task in tasks {
        tokio::time::timeout(Duration::from_secs(10), task).await.context("the replica does not stop")??;
    }
    Ok(())
}
