//! The report of this node: written when it changes, and never otherwise.

use std::time::Duration;

use anyhow::Result;
use fairlead_api::fairlead::{NodeMirrorReport, NodeMirrorReportSpec};
use fairlead_operator::controller::backoff::Retry;
use fairlead_operator::platform::api_error::{Failure, LIMIT, within};
use fairlead_plan::node_config::report::{InForce, Reporter};
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use serde_json::json;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

const FIELD_MANAGER: &str = "fairlead-agent";
/// How often it is looked whether the report is still there. Reports are read, not written, for it.
const CHECK_EVERY: Duration = Duration::from_mins(10);
/// Where the agent says what is in force. Without a node to report about, that goes nowhere.
#[derive(Default)]
pub(super) struct Reports {
    reporter: Reporter,
    wanted: Option<watch::Sender<Option<NodeMirrorReportSpec>>>,
}

impl Reports {
    /// Keeps the report of a node until `stop`.
    pub(super) fn start(client: &Client, node: &str, uid: &str, stop: &CancellationToken) -> Self {
        let (wanted, receiver) = watch::channel(None);
        let keeper = Keeper {
            api: Api::all(client.clone()),
            node: node.to_owned(),
            uid: uid.to_owned(),
            wanted: receiver,
            stored: None,
        };
        tokio::spawn(stop.clone().run_until_cancelled_owned(keeper.run()));
        let version = env!("CARGO_PKG_VERSION").to_owned();
        Self { reporter: Reporter { version, ..Reporter::default() }, wanted: Some(wanted) }
    }

    pub(super) fn about(&mut self, reporter: Reporter) {
        self.reporter = reporter;
    }

    pub(super) fn tell(&self, outcome: Result<&InForce, &str>) {
        let Some(wanted) = &self.wanted else { return };
        let report = Some(self.reporter.report(outcome));
        wanted.send_if_modified(|known| {
            let is_new = *known != report;
            *known = report;
            is_new
        });
    }
}

struct Keeper {
    api: Api<NodeMirrorReport>,
    node: String,
    /// Of the Node, to which the report belongs: it goes when the Node does.
    uid: String,
    wanted: watch::Receiver<Option<NodeMirrorReportSpec>>,
    /// What the API server holds, as far as it is known.
    stored: Option<NodeMirrorReportSpec>,
}

impl Keeper {
    async fn run(mut self) {
        let (mut retry, mut reported) = (Retry::default(), None);
        loop {
            let wanted = self.wanted.borrow_and_update().clone();
            let written = match wanted {
                Some(wanted) => self.store(&wanted).await,
                None => Ok(()),
            };
            let pause = match written {
                Ok(()) => {
                    retry.reset();
                    reported = None;
                    CHECK_EVERY
                }
                Err(failure) => {
                    if reported.replace(failure.class) != Some(failure.class) {
                        tracing::warn!(%failure, "what is in force on this node cannot be reported; trying again");
                    }
                    retry.failed()
                }
            };
            tokio::select! {
                changed = self.wanted.changed() => if changed.is_err() { return },
                // What is stored is read again before anything is written.
                () = tokio::time::sleep(pause) => self.stored = None,
            }
        }
    }

    async fn store(&mut self, wanted: &NodeMirrorReportSpec) -> Result<(), Failure> {
        if self.stored.is_none() {
            let found = within(LIMIT, self.api.get_opt(&self.node)).await?;
            let is_ours = |found: &NodeMirrorReport| {
                found.metadata.owner_references.iter().flatten().any(|owner| owner.uid == self.uid)
            };
            self.stored = found.filter(is_ours).map(|found| found.spec);
        }
        if self.stored.as_ref() == Some(wanted) {
            return Ok(());
        }
        let report = json!({
            "apiVersion": "fairlead.dev/v1alpha1",
            "kind": "NodeMirrorReport",
            "metadata": {
                "name": self.node,
                "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": self.node, "uid": self.uid}],
            },
            "spec": wanted,
        });
        let params = PatchParams::apply(FIELD_MANAGER).force();
        within(LIMIT, self.api.patch(&self.node, &params, &Patch::Apply(report))).await?;
        self.stored = Some(wanted.clone());
        Ok(())
    }
}
