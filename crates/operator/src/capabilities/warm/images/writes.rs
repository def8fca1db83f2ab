//! What warming writes to the cluster: Pods, ledgers, and the taint of nodes that are warm. Many at once, each asked
//! for by the planner, and each of which can be repeated without harm.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use fairlead_api::drop;
use fairlead_api::fairlead::WarmLedger;
use fairlead_api::names::fairlead::WARMING;
use fairlead_plan::node::Node;
use fairlead_plan::warm::Creation;
use fairlead_plan::warm::gate::Release;
use fairlead_plan::warm::memory::{Draft, Found, ShardId, Ticket};
use fairlead_plan::warm::pull_pod::pull_pod;
use k8s_openapi::api::core::v1::{Node as NodeObject, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, OwnerReference};
use kube::api::{Api, DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams, Preconditions};
use kube::core::{Request, request};
use kube::{Client, Resource};
use serde::Serialize;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde_json::json;

use crate::capabilities::warm::FIELD_MANAGER;
use crate::cluster::ledgers::LeanWarmLedger;
use crate::cluster::watch::Tolerant;
use crate::controller::Inflight;
use crate::platform::api_error::{Class, Failure, LIMIT, within};
use crate::platform::leader::Term;

/// Requests at once. Pods are created and deleted in the order in which that was asked for, so that no more are there
/// than are wanted; ledgers do not wait behind them, because deletions wait for ledgers.
const PODS: usize = 32;
const OTHERS: usize = 8;
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
    /// What the planner gets if the task that writes is lost.
    fn lost(&self) -> Done {
        match self {
            Self::Create(creation) => Done::Created { pod: Arc::clone(&creation.name) },
            Self::Delete { pod, .. } => Done::Deleted { pod: Arc::clone(pod) },
            Self::Store { image, draft } => {
                Done::NotStored { image: Arc::clone(image), shard: draft.shard, found: Found::Unknown }
            }
            Self::Release { .. } => Done::Nothing,
        }
    }
}

/// What came of it, as far as the planner has to know.
#[derive(Debug)]
pub(super) enum Done {
    Nothing,
    Created {
        pod: Arc<str>,
    },
    /// It may be there.
    MaybeCreated {
        pod: Arc<str>,
        reason: &'static str,
        message: String,
    },
    Deleted {
        pod: Arc<str>,
    },
    NotCreated {
        pod: Arc<str>,
        reason: &'static str,
        message: String,
    },
    Stored {
        image: Arc<str>,
        shard: ShardId,
        ticket: Ticket,
        version: Option<String>,
    },
    NotStored {
        image: Arc<str>,
        shard: ShardId,
        found: Found,
    },
}

/// Where it is written.
struct Target {
    client: Client,
    namespace: Arc<str>,
    ledgers: Api<WarmLedger>,
    ledger_namespace: Arc<str>,
}

/// Writes that share room: those under way, and those that wait for it. Thousands may wait, so what waits is no task.
struct Line {
    waiting: VecDeque<Write>,
    /// By number.
    sending: Inflight<u64, Done>,
    /// What the planner gets for those that do not end by themselves.
    lost: HashMap<u64, Done>,
    count: u64,
}

impl Line {
    fn new(room: usize) -> Self {
        Self { waiting: VecDeque::new(), sending: Inflight::new(room), lost: HashMap::new(), count: 0 }
    }

    /// Sends what there is room for.
    fn go_on(&mut self, target: &Arc<Target>, term: &Term) {
        while !self.sending.is_full()
            && let Some(write) = self.waiting.pop_front()
        {
            self.count += 1;
            self.lost.insert(self.count, write.lost());
            self.sending.start(self.count, Arc::clone(target).carry_out(write, term.clone()));
        }
    }

    /// What came of the next write that ends.
    async fn next(&mut self) -> Done {
        let (number, done) = self.sending.next().await;
        let lost = self.lost.remove(&number);
        done.or(lost).unwrap_or(Done::Nothing)
    }
}

/// Writes under way and writes that wait for room. They go on while [`Self::next`] is waited for.
pub(super) struct Writes {
    target: Arc<Target>,
    /// None: nothing was sent yet.
    term: Option<Term>,
    pods: Line,
    others: Line,
}

impl Writes {
    pub(super) fn new(client: Client, namespace: &str, ledger_namespace: &str) -> Self {
        let target = Arc::new(Target {
            namespace: namespace.into(),
            ledgers: Api::namespaced(client.clone(), ledger_namespace),
            ledger_namespace: ledger_namespace.into(),
            client,
        });
        Self { target, term: None, pods: Line::new(PODS), others: Line::new(OTHERS) }
    }

    /// Everything that earlier lease holders stored.
    pub(super) async fn ledgers(&self) -> Result<Vec<Arc<WarmLedger>>, Failure> {
        let api: Api<Tolerant<WarmLedger>> =
            Api::namespaced(self.target.client.clone(), &self.target.ledger_namespace);
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

    /// The planner asks for no more than there are Pods, ledgers and nodes, and for each once.
    pub(super) fn push(&mut self, write: Write) {
        let line = match write {
            Write::Create(_) | Write::Delete { .. } => &mut self.pods,
            Write::Store { .. } | Write::Release { .. } => &mut self.others,
        };
        line.waiting.push_back(write);
    }

    /// Sends what was pushed.
    pub(super) fn begin(&mut self, term: &Term) {
        self.term = Some(term.clone());
        self.go_on();
    }

    fn go_on(&mut self) {
        let Self { target, term: Some(term), pods, others } = self else { return };
        pods.go_on(target, term);
        others.go_on(target, term);
    }

    /// What came of the next write that ends. Another one takes its room.
    pub(super) async fn next(&mut self) -> Done {
        let done = tokio::select! {
            done = self.pods.next() => done,
            done = self.others.next() => done,
        };
        self.go_on();
        done
    }
}

fn body<T: Serialize>(object: &T) -> Result<Vec<u8>, request::Error> {
    serde_json::to_vec(object).map_err(request::Error::SerializeBody)
}

impl Target {
    /// Sends a request and reads of the answer what `T` has. Most of it is the object that was sent, so to decode it
    /// whole would cost more than to send it.
    async fn send<T: DeserializeOwned>(
        &self,
        request: Result<hyper::Request<Vec<u8>>, request::Error>,
    ) -> Result<T, Failure> {
        let answer = async { self.client.request(request.map_err(kube::Error::BuildRequest)?).await };
        within(LIMIT, answer).await
    }

    fn pods(&self) -> Request {
        Request::new(Pod::url_path(&(), Some(&self.namespace)))
    }

    async fn carry_out(self: Arc<Self>, write: Write, term: Term) -> Done {
        if !term.holds() {
            return write.lost();
        }
        match write {
            Write::Create(creation) => self.create(creation).await,
            Write::Delete { pod, uid } => self.delete(pod, uid.as_deref()).await,
            Write::Store { image, draft } => self.store(image, *draft).await,
            Write::Release { node, why } => self.release(&node, why).await,
        }
    }

    async fn create(&self, Creation { name, order }: Creation) -> Done {
        let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        let request = body(&pull_pod(&order)).and_then(|body| self.pods().create(&params, body));
        let Err(failure) = self.send::<IgnoredAny>(request).await else {
            return Done::Created { pod: name };
        };
        let message = failure.to_string();
        let reason = match failure.class {
            // It is there, which is all that was wanted, unless it is no pull Pod: then it will not be seen.
            Class::Conflict => return Done::MaybeCreated { pod: name, reason: "AlreadyExists", message },
            Class::Unavailable | Class::Expired => {
                tracing::warn!(pod = &*name, error = %failure, "pull Pod may not have been created; trying again");
                return Done::MaybeCreated { pod: name, reason: "Unavailable", message };
            }
            Class::Denied => "Forbidden",
            Class::Absent => "NamespaceNotFound",
            Class::Rejected => "Invalid",
        };
        tracing::warn!(pod = &*name, error = %failure, "pull Pod could not be created; trying again later");
        Done::NotCreated { pod: name, reason, message }
    }

    async fn delete(&self, pod: Arc<str>, uid: Option<&str>) -> Done {
        let preconditions = Preconditions { uid: uid.map(str::to_owned), resource_version: None };
        let params = DeleteParams { grace_period_seconds: Some(0), ..DeleteParams::default() };
        let request = self.pods().delete(&pod, &params.preconditions(preconditions));
        match self.send::<IgnoredAny>(request).await {
            Ok(_) => {}
            Err(failure) if matches!(failure.class, Class::Absent | Class::Conflict) => {}
            Err(failure) => {
                tracing::warn!(pod = &*pod, error = %failure, "pull Pod could not be deleted; trying again");
            }
        }
        Done::Deleted { pod }
    }

    async fn store(&self, image: Arc<str>, draft: Draft) -> Done {
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
                    namespace: Some(self.ledger_namespace.to_string()),
                    resource_version: version.clone(),
                    owner_references: Some(vec![owner]),
                    // An empty entry asks the API server not to track who set which field of hundreds of rows.
                    managed_fields: version.is_some().then(|| vec![ManagedFieldsEntry::default()]),
                    ..ObjectMeta::default()
                };
                ledger.status = Some(status);
                let params =
                    PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
                let ledgers = Request::new(WarmLedger::url_path(&(), Some(&self.ledger_namespace)));
                let request = body(&ledger).and_then(|body| match version {
                    None => ledgers.create(&params, body),
                    Some(_) => ledgers.replace(&name, &params, body),
                });
                let written = self.send::<LeanWarmLedger>(request).await;
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
