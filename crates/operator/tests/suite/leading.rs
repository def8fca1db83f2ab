//! Replicas that follow policies and emit events in this process, under an election of their own.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use fairlead_operator::cluster::policies::{self, Policies, PolicyStatus, Statuses};
use fairlead_operator::controller::events::{self, Errors, EventWriter, Events};
use fairlead_operator::controller::rate_limit::Rate;
use fairlead_operator::platform::config::Config;
use fairlead_plan::routing::PolicyId;
use fairlead_testkit::{ApiProxy, Cluster, eventually};
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use prometheus_client::registry::Registry;

use crate::candidate::Candidate;

pub const SOON: Duration = Duration::from_secs(30);

/// Faster than in a cluster that has other things to do.
const RATE: Rate = Rate { per_second: 100, burst: 100 };

pub struct Leading {
    pub policies: Policies,
    pub policy_metrics: policies::Metrics,
    pub event_metrics: events::Metrics,
    pub errors: Errors,
    candidate: Candidate,
}

impl Leading {
    /// Starts a replica of the operator that lives in `namespace`.
    pub async fn start(cluster: &Cluster, namespace: &str, identity: &str) -> Result<Self> {
        Ok(Self::start_with(&cluster.client().await?, namespace, identity, |_| Vec::new()))
    }

    /// The same behind a wire that can be cut.
    pub async fn start_behind_wire(
        cluster: &Cluster,
        namespace: &str,
        identity: &str,
    ) -> Result<(Self, ApiProxy)> {
        let wire = cluster.proxy().await?;
        let kubeconfig = Kubeconfig::read_from(cluster.kubeconfig_through(&wire, &cluster.kubeconfig())?)?;
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
        Ok((Self::start_with(&Client::try_from(config)?, namespace, identity, |_| Vec::new()), wire))
    }

    pub fn start_with(
        client: &Client,
        namespace: &str,
        identity: &str,
        secrets: impl Fn(&PolicyId) -> Vec<String> + Send + Sync + 'static,
    ) -> Self {
        let mut candidate = Candidate::start(client, namespace, identity);
        let (context, queues) = candidate.context(Config::default(), &mut Registry::default());
        let context = Arc::new(context);
        let (policies, errors) = (context.policies.clone(), context.errors.clone());
        let (policy_metrics, event_metrics) = (policies.metrics().clone(), context.events.metrics().clone());
        candidate.spawn(policies.clone().run(candidate.stopping()));
        let statuses = Statuses::new(context.clone(), secrets, |_| None, RATE);
        candidate.control::<PolicyStatus>(Arc::new(statuses));
        candidate.spawn(events::report_errors(context.clone(), candidate.stopping()));
        candidate.control::<EventWriter>(Arc::new(Events::new(context, queues.events)));
        Self { policies, policy_metrics, event_metrics, errors, candidate }
    }

    /// Waits until everything was listed once.
    pub async fn wait_ready(&self) -> Result<()> {
        eventually(SOON, || async {
            let waiting: Vec<_> = self
                .candidate
                .board
                .rows()
                .into_iter()
                .filter(|row| !row.ready())
                .map(|row| row.kind)
                .collect();
            ensure!(waiting.is_empty(), "not listed yet: {waiting:?}");
            Ok(())
        })
        .await
    }

    /// Gives leadership back and waits until everything has ended.
    pub async fn stop(self) -> Result<()> {
        self.candidate.stop().await
    }
}
