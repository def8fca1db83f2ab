//! The agent at work: follows policies, keeps files as they should be, and serves the router.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use fairlead_node::agent::NodeAgent;
use fairlead_node::router::Router;
use fairlead_operator::controller::backoff::Retry;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::credentials::Credentials;
use super::report::Reports;
use super::{LAST_REQUESTS, LOOK_EVERY, Policies, listen};

/// Changes that come together are written together.
const DEBOUNCE: Duration = Duration::from_millis(200);

pub(super) struct Work {
    pub(super) agent: NodeAgent,
    pub(super) router: Arc<Router>,
    /// None: files alone.
    pub(super) address: Option<SocketAddr>,
    pub(super) policies: Policies,
    pub(super) credentials: Credentials,
    pub(super) ready: watch::Sender<Option<String>>,
    pub(super) reports: Reports,
}

impl Work {
    pub(super) async fn run(mut self, stop: CancellationToken) -> Result<()> {
        // Before all policies are known the router would leave closed sources to the runtime, so it does not listen.
        loop {
            tokio::select! {
                known = self.policies.wait_for(Option::is_some) => {
                    ensure!(known.is_ok(), "policies can no longer be followed");
                    break;
                }
                // The agent's heartbeat.
                () = tokio::time::sleep(LOOK_EVERY) => self.ready.send_modify(|_| {}),
                () = stop.cancelled() => return Ok(()),
            }
        }
        let mut serving = None;
        let mut retry = Retry::default();
        let mut has_changed = true;
        loop {
            if has_changed {
                let policies = self.policies.borrow_and_update().clone().unwrap_or_default();
                self.agent.follow(policies.to_vec());
            }
            // Writing files waits for the disk.
            let outcome = match self.agent.check_address().await {
                Ok(()) => tokio::task::block_in_place(|| self.agent.repair()),
                Err(error) => Err(error),
            };
            if let (None, Some(address)) = (&serving, self.address) {
                let router = Arc::clone(&self.router);
                serving = Some(tokio::spawn(listen::serve(router, address, stop.clone())));
            }
            let outcome = match outcome {
                Ok(()) => self.agent.verify().await,
                Err(error) => Err(error),
            };
            let pause = match outcome {
                Ok(()) => {
                    retry.reset();
                    self.reports.tell(Ok(self.agent.in_force()));
                    // Also when nothing has changed: it is the agent's heartbeat.
                    self.ready.send_replace(None);
                    None
                }
                Err(error) => {
                    tracing::error!(%error, "the files of the runtime are not current");
                    self.reports.tell(Err(&error.to_string()));
                    self.ready.send_replace(Some(error.to_string()));
                    Some(retry.failed())
                }
            };
            has_changed = tokio::select! {
                changed = self.policies.changed() => {
                    changed.context("policies can no longer be followed")?;
                    tokio::time::sleep(DEBOUNCE).await;
                    true
                }
                () = tokio::time::sleep(pause.unwrap_or(LOOK_EVERY)) => false,
                () = stop.cancelled() => break,
                ended = async { match &mut serving { Some(task) => task.await, None => std::future::pending().await } } => {
                    ended.context("the router has crashed")??;
                    bail!("the router has ended");
                }
            };
            if let Some(keyring) = self.credentials.read() {
                self.router.use_credentials(keyring);
            }
            self.router.look_for_authorities();
        }
        if let Some(serving) = serving {
            if let Ok(ended) = tokio::time::timeout(LAST_REQUESTS, serving).await {
                ended.context("the router has crashed")??;
            } else {
                tracing::warn!("pulls are still under way; the runtime asks for their rest again");
            }
        }
        Ok(())
    }
}
