//! `fairlead agent remove --every-node`: the agents of a cluster remove their files instead of keeping them.
//!
//! Only Pods on a node can reach its files, so the agents' `DaemonSet` is changed to run `fairlead agent remove`. Each
//! agent ends before its successor starts, or it would write its files again. A Helm hook calls this before the chart
//! is uninstalled; it fails rather than leave files on nodes that lead containerd to a router that is gone.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use fairlead_operator::platform::install::{AGENT, AGENT_CONTAINER, AGENT_NAMESPACE};
use k8s_openapi::api::apps::v1::{DaemonSet, DaemonSetStatus};
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::json;
use tokio::time::Instant;

use crate::connect::Server;
use crate::output::tell;

const ASK_EVERY: Duration = Duration::from_secs(1);

/// Arguments of an agent that say where its files are, or how it is probed.
const KEPT: [&str; 5] = ["--host-root", "--runtime", "--runtime-version", "--config-dir", "--ready-file"];

#[derive(Debug, Args)]
pub(super) struct EveryNode {
    /// With --every-node: namespace of the agents
    #[arg(long, value_name = "NS", default_value = AGENT_NAMESPACE)]
    agent_namespace: String,
    /// With --every-node: how long to wait for all nodes
    #[arg(long, value_name = "DURATION", default_value = "5m")]
    timeout: fairlead_domain::duration::Duration,
}

impl EveryNode {
    pub(super) async fn remove(&self, server: &Server) -> Result<()> {
        let client = server.connect().await?.client;
        let agents: Api<DaemonSet> = Api::namespaced(client, &self.agent_namespace);
        let Some(found) = agents.get_opt(AGENT).await.context("cannot read the DaemonSet of the agents")?
        else {
            tell(&format!("there are no agents in namespace {}", self.agent_namespace));
            return Ok(());
        };
        let container = found
            .spec
            .and_then(|spec| spec.template.spec)
            .and_then(|pod| pod.containers.into_iter().find(|container| container.name == AGENT_CONTAINER));
        let arguments = container.and_then(|container| container.args).unwrap_or_default();
        let patch = json!({"spec": {
            "updateStrategy": {
                "type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": "100%"},
            },
            "template": {"spec": {"containers": [{"name": AGENT_CONTAINER, "args": removal(&arguments)}]}},
        }});
        let patched = agents.patch(AGENT, &PatchParams::default(), &Patch::Strategic(patch)).await;
        let generation = patched.context("cannot change the DaemonSet of the agents")?.metadata.generation;
        let deadline = Instant::now() + self.timeout.as_std();
        loop {
            let status = agents.get(AGENT).await.ok().and_then(|agents| agents.status).unwrap_or_default();
            let (done, all) = (done(&status, generation), status.desired_number_scheduled);
            if done == Some(all) {
                tell(&format!("the files of agents are removed from {all} nodes"));
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!(
                    "the files of agents are removed from {} of {all} nodes only: see `kubectl get pods --namespace {} \
                     --output wide`; what stays on the others leads their runtime to an agent that is gone",
                    done.unwrap_or_default(),
                    self.agent_namespace
                );
            }
            tokio::time::sleep(ASK_EVERY).await;
        }
    }
}

/// On how many nodes it is done, as soon as that is known.
fn done(status: &DaemonSetStatus, generation: Option<i64>) -> Option<i32> {
    let is_known = status.observed_generation >= generation;
    is_known.then(|| status.updated_number_scheduled.unwrap_or_default().min(status.number_ready))
}

/// The arguments by which a Pod removes what the agent with these arguments has written. A value may stand in the same
/// argument as its flag or in the next one.
fn removal(arguments: &[String]) -> Vec<String> {
    let mut kept = ["agent", "remove", "--stay"].map(str::to_owned).to_vec();
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match argument.split_once('=') {
            Some((name, _)) if KEPT.contains(&name) => kept.push(argument.clone()),
            None if KEPT.contains(&argument.as_str()) => {
                kept.extend(arguments.next().map(|value| format!("{argument}={value}")));
            }
            _ => {}
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_says_where_files_are_is_kept_and_the_rest_is_not() {
        let agent = [
            "agent",
            "--host-root=/host",
            "--insecure-registry=a.test",
            "--redirect",
            "--config-dir",
            "/host/x",
        ];
        let agent = agent.map(str::to_owned);
        assert_eq!(
            removal(&agent),
            ["agent", "remove", "--stay", "--host-root=/host", "--config-dir=/host/x"]
        );
    }

    #[test]
    fn old_pods_do_not_count() {
        let status = |observed, updated, ready| DaemonSetStatus {
            observed_generation: Some(observed),
            updated_number_scheduled: Some(updated),
            number_ready: ready,
            ..DaemonSetStatus::default()
        };
        assert_eq!(done(&status(1, 3, 3), Some(2)), None);
        assert_eq!(done(&status(2, 1, 3), Some(2)), Some(1));
        assert_eq!(done(&status(2, 3, 3), Some(2)), Some(3));
    }
}
