//! What the whole process shares: built once, handed out as one `Arc`.

use std::fmt;
use std::sync::Arc;

use kube::Client;
use prometheus_client::registry::Registry;

use crate::admission::{Recorder, Records};
use crate::cluster::ledgers::{Claims, Findings, LedgerStore};
use crate::cluster::policies::{self, Policies};
use crate::cluster::service_accounts::Accounts;
use crate::cluster::state::Owners;
use crate::cluster::watch::{Board, Resources};
use crate::controller::events::{self, Errors, EventQueue, Queued};
use crate::platform::certificates::system_clock;
use crate::platform::clock::Clock;
use crate::platform::config::Config;
use crate::registries::node_failures::NodeFailures;
use crate::registries::pins::{self, Pins};
use crate::registries::secrets::{self, Copies, Secrets};
use crate::registries::verdicts::{self, NodeTrust, VerdictSettings, Verdicts};

/// Kinds that decide where images may come from.
const ROUTING_KINDS: [&str; 6] = [
    "ClusterImageSetMirror",
    "ImageSetMirror",
    "ClusterReplicatedImageSet",
    "ReplicatedImageSet",
    "ProxyCache",
    "ImageLedger",
];

/// What a context is made of.
pub struct Basis {
    pub client: Client,
    /// This replica.
    pub identity: String,
    /// Where the operator's own objects live.
    pub namespace: String,
    pub config: Config,
    pub resources: Resources,
    /// How the watches that fill `resources` stand.
    pub board: Arc<Board>,
    /// The API server's clock.
    pub clock: Clock,
}

/// What the whole process shares.
pub struct Context {
    pub client: Client,
    pub identity: String,
    pub namespace: String,
    pub config: Config,
    pub resources: Resources,
    pub board: Arc<Board>,
    pub clock: Clock,
    pub policies: Policies,
    /// The client that every function shares, with one budget for each registry.
    pub registries: fairlead_registry::Client,
    pub verdicts: Verdicts,
    /// Of which registries nodes may hold credentials that the operator does not see.
    pub node_trust: NodeTrust,
    /// What nodes could not pull although its registry has it.
    pub node_failures: NodeFailures,
    /// Digests that workload revisions are held to.
    pub pins: Pins,
    pub secrets: Secrets,
    pub copies: Copies,
    pub accounts: Accounts,
    /// Which source a copy belongs to.
    pub claims: Claims,
    /// Controllers whose Pods are not rewritten for a while.
    pub owners: Owners,
    /// Where ledgers are stored.
    pub ledger_store: LedgerStore,
    /// What probes say against the ledgers; to be run for as long as Pods are admitted.
    pub findings: Findings,
    /// Takes what could not be written at admission.
    pub records: Records,
    /// Takes news about objects of the cluster.
    pub events: EventQueue,
    /// Takes what went wrong inside.
    pub errors: Errors,
}

/// The other ends of queues, for the tasks that empty them.
#[derive(Debug)]
pub struct Queues {
    pub records: Recorder,
    pub events: Queued,
}

impl fmt::Debug for Basis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Basis").field("identity", &self.identity).finish_non_exhaustive()
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("identity", &self.identity).finish_non_exhaustive()
    }
}

impl Context {
    /// Makes everything and starts nothing.
    pub fn new(basis: Basis, registry: &mut Registry) -> (Self, Queues) {
        let registries = verdicts::client(&basis.config);
        Self::with_registries(basis, registries, registry)
    }

    /// The same with a client that reaches registries in its own way.
    pub fn with_registries(
        basis: Basis,
        registries: fairlead_registry::Client,
        registry: &mut Registry,
    ) -> (Self, Queues) {
        let Basis { client, identity, namespace, config, resources, board, clock } = basis;
        let policies = Policies::new(&resources, &config, policies::Metrics::register(registry));
        let (accounts, claims) = (resources.accounts.clone(), resources.claims.clone());
        let metrics = verdicts::Metrics::register(registry, &registries);
        let findings = Findings::new(claims.clone(), &config.routing.active_check.stale_mirror_cleanup);
        let verdicts = Verdicts::new(registries.clone(), VerdictSettings::from(&config), metrics)
            .heard_by(findings.clone());
        let metrics = pins::Metrics::register(registry);
        let pins = Pins::new(client.clone(), verdicts.clone(), resources.image_pins.clone(), metrics);
        let metrics = secrets::Metrics::register(registry);
        let secrets = Secrets::new(client.clone(), metrics.clone());
        let copying = config.routing.pull_secrets.copy;
        let namespaces = resources.namespaces.clone();
        namespaces.cover_pull_pods(config.warm.namespace.as_deref().unwrap_or(&namespace));
        let copies =
            Copies::new(client.clone(), secrets.clone(), copying, namespaces, system_clock(), metrics);
        let (records, recorder) = Records::new(client.clone(), registry);
        let (events, queued) = EventQueue::new(events::Metrics::register(registry));
        let context = Self {
            ledger_store: LedgerStore::new(client.clone(), &namespace),
            owners: resources.pods.owners().clone(),
            node_trust: NodeTrust::from(&config),
            client,
            identity,
            namespace,
            config,
            resources,
            board,
            clock,
            policies,
            registries,
            verdicts,
            node_failures: NodeFailures::default(),
            pins,
            secrets,
            copies,
            accounts,
            claims,
            findings,
            records,
            events,
            errors: Errors::default(),
        };
        (context, Queues { records: recorder, events: queued })
    }

    /// Why the places of a Pod's images cannot be planned yet. Kinds that are not installed count as listed.
    pub(crate) fn awaits_routing(&self) -> Option<String> {
        let uncompiled =
            || (!self.policies.is_up_to_date()).then(|| "policies are being compiled".to_owned());
        self.board.awaits_pods_and(&ROUTING_KINDS).or_else(uncompiled)
    }
}

#[cfg(test)]
mod tests {
    use fairlead_plan::routing::PolicyKind;

    use super::*;

    #[test]
    fn every_kind_of_policies_is_listed_before_places_are_planned() {
        for kind in PolicyKind::ALL {
            assert!(ROUTING_KINDS.contains(&kind.name()), "{kind}");
        }
    }
}
