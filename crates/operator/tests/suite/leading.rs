//! Replicas that follow policies and emit events in this process, under an election of their own.

use std::{collections::BTreeMap, time::Duration};

use anyhow::{Context, Result, ensure};
use fairlead_operator::{
    events::{self, Errors, Events, Source},
    leader::{self, Election},
    pace::Rate,
    policies::{self, Policies, Statuses},
    telemetry::Pulses,
    watch::{self, Board, Resources, Watches},
};
use fairlead_plan::routing::PolicyId;
use fairlead_testkit::{ApiProxy, Cluster, eventually};
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use std::sync::Arc;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub const SOON: Duration = Duration::from_secs(30);
pub const LEASE: &str = "fairlead-operator";

/// Faster than in a cluster that has other things to do.
const RATE: Rate = Rate { per_second: 100, burst: 100 };

/// A client behind a wire that can be cut.
pub async fn client_through(cluster: &Cluster, wire: &ApiProxy) -> Result<Client> {
    let kubeconfig = Kubeconfig::read_from(cluster.kubeconfig_through(wire, &cluster.kubeconfig())?)?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    Ok(Client::try_from(config)?)
}

pub struct Leading {
    pub policies: Policies,
    pub policy_metrics: policies::Metrics,
    pub event_metrics: events::Metrics,
    pub errors: Errors,
    board: Arc<Board>,
    shutdown: CancellationToken,
    stop: CancellationToken,
    tasks: Vec<JoinHandle<()>>,
}

impl Leading {
    /// Starts a replica of the operator that lives in `namespace`.
    pub async fn start(cluster: &Cluster, namespace: &str, identity: &str) -> Result<Self> {
        Ok(Self::start_with(cluster.client().await?, namespace, identity, |_| Vec::new()))
    }

    pub fn start_with(
        client: Client,
        namespace: &str,
        identity: &str,
        secrets: impl Fn(&PolicyId) -> Vec<String> + Send + Sync + 'static,
    ) -> Self {
        let (shutdown, stop) = (CancellationToken::new(), CancellationToken::new());
        let resources = Resources::default();
        let watches = Watches::new(client.clone(), &resources, BTreeMap::new(), watch::Metrics::default());
        let mut tasks = Vec::new();
        for (_, watch) in watches.all {
            let stop = stop.clone();
            tasks.push(tokio::spawn(async move {
                stop.run_until_cancelled_owned(watch).await;
            }));
        }
        let pulse = Pulses::default().add("election");
        let metrics = leader::Metrics::default();
        let (election, leader) = Election::new(client.clone(), namespace, LEASE, identity, metrics, pulse);
        tasks.push(tokio::spawn(election.run(shutdown.clone())));

        let policy_metrics = policies::Metrics::default();
        let policies = Policies::new(&resources, policy_metrics.clone());
        tasks.push(tokio::spawn(policies.clone().run(stop.clone())));
        let statuses = Statuses::new(
            client.clone(),
            &resources,
            policies.clone(),
            secrets,
            RATE,
            policy_metrics.clone(),
        );
        tasks.push(tokio::spawn(statuses.run(leader.clone())));

        let (errors, event_metrics) = (Errors::default(), events::Metrics::default());
        let source = Source {
            identity: identity.to_owned(),
            namespace: namespace.to_owned(),
            deployment: "fairlead".to_owned(),
        };
        let events =
            Events::new(client, source, resources.pods.clone(), errors.clone(), event_metrics.clone());
        tasks.push(tokio::spawn(events.run(leader)));
        let board = watches.board;
        Self { policies, policy_metrics, event_metrics, errors, board, shutdown, stop, tasks }
    }

    /// Waits until everything was listed once.
    pub async fn wait_ready(&self) -> Result<()> {
        eventually(SOON, || async {
            let waiting: Vec<_> =
                self.board.rows().into_iter().filter(|row| !row.ready()).map(|row| row.kind).collect();
            ensure!(waiting.is_empty(), "not listed yet: {waiting:?}");
            Ok(())
        })
        .await
    }

    /// Gives leadership back and waits until everything has ended.
    pub async fn stop(self) -> Result<()> {
        self.shutdown.cancel();
        self.stop.cancel();
        for task in self.tasks {
            tokio::time::timeout(Duration::from_secs(10), task)
                .await
                .context("the replica does not stop")??;
        }
        Ok(())
    }
}
