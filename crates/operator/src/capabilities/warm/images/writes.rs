//! What warming writes to the cluster: Pods, ledgers, and the taint of nodes that are warm. Many at once, each asked for
//! by the planner, and each of which can be repeated without harm.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use fairlead_api::drop;
use fairlead_api::fairlead::WarmLedger;
use fairlead_api::names::fairlead::WARMING;
use fairlead_plan::node::Node;
use fairlead_plan::warm::Creation;
use fairlead_plan::warm::gate::Release;
use fairlead_plan::warm::memory::{Draft, Found, Shard, Ticket};
use fairlead_plan::warm::pull_pod::pull_pod;
use k8s_openapi::api::core::v1::{Node as NodeObject, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::Client;
use kube::api::{Api, DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams, Preconditions};
use serde_json::json;

use crate::capabilities::warm::FIELD_MANAGER;
use crate::cluster::watch::Tolerant;
use crate::controller::Inflight;
use crate::platform::api_error::{Class, Failure, within};
use crate::platform::leader::Term;

/// One request never holds up the next for longer.
const LIMIT: Duration = Duration::from_secs(10);
/// Requests at once.
const AT_ONCE: usize = 64;
/// Ledgers per request. One may have half a megabyte.
const PAGE: u32 = 8;

/// What is to be written.
#[derive(Debug)]
pub(super) enum Write {
    Create(Creation),
    Delete { pod: Arc<str>, uid: Option<Arc<str>> },
    Store { image: Arc<str>, draft: Box<Draft> },
    Release { node: Arc<Node>, why: Release },
}

impl Write {
    fn pod(&self) -> Option<&Arc<str>> {
        match self {
            Self::Create(creation) => Some(&creation.name),
            Self::Delete { pod, .. } => Some(pod),
            Self::Store { .. } | Self::Release { .. } => None,
        }
    }
}

/// What came of it, as far as the planner has to know.
#[derive(Debug)]
pub(super) enum Done {
    Nothing,
    NotCreated { pod: Arc<str>, reason: String, message: String },
    Stored { image: Arc<str>, shard: Shard, ticket: Ticket, version: Option<String> },
    NotStored { image: Arc<str>, shard: Shard, found: Found },
}

/// Where it is written.
#[derive(Clone)]
struct Target {
    client: Client,
    pods: Api<Pod>,
    ledgers: Api<WarmLedger>,
    term: Option<Term>,
}

/// Writes that wait and writes under way.
pub(super) struct Writes {
    target: Target,
    ledger_namespace: String,
    waiting: VecDeque<Write>,
    /// Names of Pods that are written, or wait to be. The planner asks again for what it does not see in time.
    pods: HashSet<Arc<str>>,
    sending: Inflight<(u64, Option<Arc<str>>), Done>,
    count: u64,
}

impl Writes {
    pub(super) fn new(client: Client, namespace: &str, ledger_namespace: &str) -> Self {
        let target = Target {
            pods: Api::namespaced(client.clone(), namespace),
            ledgers: Api::namespaced(client.clone(), ledger_namespace),
            client,
            term: None,
        };
        Self {
            target,
            ledger_namespace: ledger_namespace.to_owned(),
            waiting: VecDeque::new(),
            pods: HashSet::new(),
            sending: Inflight::new(AT_ONCE),
            count: 0,
        }
    }

    /// Everything that earlier lease holders stored.
    pub(super) async fn ledgers(&self) -> Result<Vec<Arc<WarmLedger>>, Failure> {
        let api: Api<Tolerant<WarmLedger>> =
            Api::namespaced(self.target.client.clone(), &self.ledger_namespace);
        let mut params = ListParams::default().limit(PAGE);
        let mut ledgers = Vec::new();
        loop {
            let page = within(LIMIT, api.list(&params)).await?;
            // The watch of ledgers reports those that cannot be read.
            ledgers.extend(page.items.into_iter().filter_map(|item| item.0.ok()).map(Arc::new));
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params = params.continue_token(&token),
                None => return Ok(ledgers),
            }
        }
    }

    pub(super) fn push(&mut self, write: Write) {
        if write.pod().is_some_and(|pod| !self.pods.insert(Arc::clone(pod))) {
            return;
        }
        self.waiting.push_back(write);
    }

    /// Sends what there is room for.
    pub(super) fn go_on(&mut self, term: &Term) {
        self.target.term = Some(term.clone());
        self.send();
    }

    fn send(&mut self) {
        while !self.sending.is_full() {
            let Some(write) = self.waiting.pop_front() else { return };
            self.count += 1;
            let key = (self.count, write.pod().cloned());
            self.sending.start(key, self.target.clone().carry_out(write, self.ledger_namespace.clone()));
        }
    }

    /// What came of the next write that ends.
    pub(super) async fn next(&mut self) -> Done {
        let ((_, pod), done) = self.sending.next().await;
        if let Some(pod) = pod {
            self.pods.remove(&pod);
        }
        self.send();
        // A task that was lost is one whose effect is not seen: the planner asks again.
        done.unwrap_or(Done::Nothing)
    }
}

impl Target {
    async fn carry_out(self, write: Write, ledger_namespace: String) -> Done {
        let holds = self.term.as_ref().is_some_and(Term::holds);
        match write {
            Write::Create(creation) if holds => self.create(creation).await,
            Write::Delete { pod, uid } if holds => self.delete(&pod, uid.as_deref()).await,
            Write::Store { image, draft } if holds => self.store(image, *draft, &ledger_namespace).await,
            Write::Release { node, why } if holds => self.release(&node, why).await,
            _ => Done::Nothing,
        }
    }

    async fn create(&self, Creation { name, order }: Creation) -> Done {
        let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        let Err(failure) = within(LIMIT, self.pods.create(&params, &pull_pod(&order))).await else {
            return Done::Nothing;
        };
        let reason = match failure.class {
            // It is there, which is all that was wanted, or may be there: if it is not seen, it is asked for again.
            Class::Conflict | Class::Unavailable | Class::Expired => return Done::Nothing,
            Class::Denied => "Forbidden",
            Class::Absent => "NamespaceNotFound",
            Class::Rejected => "Invalid",
        };
        tracing::warn!(pod = &*name, error = %failure, "pull Pod could not be created; trying again later");
        Done::NotCreated { pod: name, reason: reason.to_owned(), message: failure.to_string() }
    }

    async fn delete(&self, name: &str, uid: Option<&str>) -> Done {
        let preconditions = Preconditions { uid: uid.map(str::to_owned), resource_version: None };
        let params = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
        match within(LIMIT, self.pods.delete(name, &params.preconditions(preconditions))).await {
            Ok(_) => {}
            Err(failure) if matches!(failure.class, Class::Absent | Class::Conflict) => {}
            Err(failure) => {
                tracing::warn!(pod = name, error = %failure, "pull Pod could not be deleted; trying again");
            }
        }
        Done::Nothing
    }

    async fn store(&self, image: Arc<str>, draft: Draft, namespace: &str) -> Done {
        let Draft { shard, ticket, name, version, content } = draft;
        let stored = match content {
            Some((spec, status)) => {
                let owner = OwnerReference {
                    api_version: drop::API_VERSION.to_owned(),
                    kind: "CachedImage".to_owned(),
                    name: spec.owner.name.clone(),
                    uid: spec.owner.uid.clone(),
                    controller: Some(true),
                    block_owner_deletion: Some(false),
                };
                let mut ledger = WarmLedger::new(&name, spec);
                ledger.metadata = ObjectMeta {
                    name: Some(name.clone()),
                    namespace: Some(namespace.to_owned()),
                    resource_version: version.clone(),
                    owner_references: Some(vec![owner]),
                    ..ObjectMeta::default()
                };
                ledger.status = Some(status);
                let params =
                    PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
                let written = match version {
                    None => within(LIMIT, self.ledgers.create(&params, &ledger)).await,
                    Some(_) => within(LIMIT, self.ledgers.replace(&name, &params, &ledger)).await,
                };
                written.map(|ledger| ledger.metadata.resource_version)
            }
            None => match within(LIMIT, self.ledgers.delete(&name, &DeleteParams::default())).await {
                Err(failure) if failure.class == Class::Absent => Ok(None),
                deleted => deleted.map(|_| None),
            },
        };
        let failure = match stored {
            Ok(version) => return Done::Stored { image, shard, ticket, version },
            Err(failure) => failure,
        };
        let found = match failure.class {
            Class::Conflict => match within(LIMIT, self.ledgers.get_metadata_opt(&name)).await {
                Ok(found) => found
                    .and_then(|found| found.metadata.resource_version)
                    .map_or(Found::Nothing, Found::Version),
                Err(_) => Found::Unknown,
            },
            Class::Absent => Found::Nothing,
            _ => {
                tracing::warn!(ledger = name, error = %failure, "ledger could not be written; trying again");
                Found::Unknown
            }
        };
        Done::NotStored { image, shard, found }
    }

    /// Takes the taint off the node that was seen, and nothing else.
    async fn release(&self, node: &Node, why: Release) -> Done {
        let Some(at) = node.taints.iter().position(|taint| &*taint.key == WARMING) else {
            return Done::Nothing;
        };
        let taint = format!("/spec/taints/{at}");
        let patch = json!([
            {"op": "test", "path": "/metadata/uid", "value": &*node.uid},
            {"op": "test", "path": format!("{taint}/key"), "value": WARMING},
            {"op": "remove", "path": taint},
        ]);
        let patch = match serde_json::from_value(patch) {
            Ok(patch) => Patch::<()>::Json(patch),
            Err(error) => {
                tracing::error!(%error, "patch of a node cannot be written; this is a bug");
                return Done::Nothing;
            }
        };
        let nodes: Api<NodeObject> = Api::all(self.client.clone());
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        match within(LIMIT, nodes.patch_metadata(&node.name, &params, &patch)).await {
            Ok(_) => {
                let why = match why {
                    Release::Warm => "its images are there",
                    Release::Deadline => "warm.gateDeadline has passed",
                };
                tracing::info!(node = &*node.name, why, "node is open for Pods");
            }
            // It changed meanwhile, or is gone; the watch will show it as it is.
            Err(failure) if matches!(failure.class, Class::Absent | Class::Conflict) => {}
            Err(failure) => tracing::warn!(
                node = &*node.name, error = %failure, "taint could not be taken off the node; trying again"
            ),
        }
        Done::Nothing
    }
}
