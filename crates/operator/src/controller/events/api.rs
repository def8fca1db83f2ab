//! Events as requests to the API server.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Event, EventSource, ObjectReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use kube::{Api, Client};

use super::SendOutcome;
use crate::controller::backoff::Retry;
use crate::controller::rate_limit::{Pace, Rate};
use crate::platform::api_error::{Class, Failure, within};
use crate::platform::leader::Term;

const FIELD_MANAGER: &str = "fairlead-events";

/// The program, as events name it.
const COMPONENT: &str = "fairlead";

/// One request never holds up the next for longer.
const LIMIT: Duration = Duration::from_secs(5);

/// Where the API server wants events about objects that are in no namespace.
const NO_NAMESPACE: &str = "default";

/// What the API server says about a namespace that takes nothing new.
const TERMINATING: &str = "NamespaceTerminating";

/// An event to be emitted.
pub(super) struct EventDraft {
    pub(super) name: String,
    pub(super) about: ObjectReference,
    pub(super) warning: bool,
    pub(super) reason: &'static str,
    pub(super) message: String,
    pub(super) count: i32,
}

impl EventDraft {
    fn namespace(&self) -> &str {
        self.about.namespace.as_deref().unwrap_or(NO_NAMESPACE)
    }
}

/// Why an event was not created.
#[derive(Debug)]
pub(super) enum EventRefusal {
    /// There is one of this name.
    Exists,
    /// Its namespace is gone or going.
    Gone(Failure),
    Failed(Failure),
}

/// Sends events one after the other, at a bounded rate, each until it is created or given up.
pub(super) struct Delivery {
    post: Arc<Post>,
    term: Term,
    pace: Pace,
    retry: Retry,
    complained: Option<Class>,
}

impl Delivery {
    pub(super) fn new(post: Arc<Post>, term: Term, rate: Rate) -> Self {
        Self { post, term, pace: Pace::new(rate), retry: Retry::default(), complained: None }
    }

    /// What became of a draft; nothing when leadership has ended. It is late once it is not wanted any more.
    pub(super) async fn deliver(
        &mut self,
        draft: &EventDraft,
        is_wanted: impl Fn() -> bool,
    ) -> Option<SendOutcome> {
        loop {
            self.pace.turn().await;
            if !is_wanted() {
                return Some(SendOutcome::Late);
            }
            if !self.term.holds() {
                return None;
            }
            let failure = match self.post.create(draft, Timestamp::now()).await {
                Ok(()) => return Some(self.arrived(SendOutcome::Created)),
                Err(EventRefusal::Exists) => return Some(self.arrived(SendOutcome::Exists)),
                Err(EventRefusal::Gone(_)) => return Some(SendOutcome::Late),
                Err(EventRefusal::Failed(failure)) => failure,
            };
            if self.complained.replace(failure.class) != Some(failure.class) {
                let about = &draft.about;
                tracing::warn!(
                    kind = about.kind, namespace = about.namespace, name = about.name,
                    reason = draft.reason, error = %failure,
                    "event could not be created; this needs create on events"
                );
            }
            tokio::time::sleep(self.retry.failed()).await;
            // A refusal may concern one namespace only, by its quota for instance: the others are not kept waiting.
            if failure.class != Class::Unavailable {
                return Some(SendOutcome::Failed);
            }
        }
    }

    fn arrived(&mut self, outcome: SendOutcome) -> SendOutcome {
        self.complained = None;
        self.retry.reset();
        outcome
    }
}

pub(super) struct Post {
    client: Client,
    identity: String,
}

impl Post {
    pub(super) fn new(client: Client, identity: String) -> Self {
        Self { client, identity }
    }

    pub(super) async fn create(&self, draft: &EventDraft, now: Timestamp) -> Result<(), EventRefusal> {
        let events: Api<Event> = Api::namespaced(self.client.clone(), draft.namespace());
        let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        let event = self.event(draft, now);
        match tokio::time::timeout(LIMIT, events.create(&params, &event)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(refusal(&error)),
            Err(_) => Err(EventRefusal::Failed(Failure::timed_out(LIMIT))),
        }
    }

    fn event(&self, draft: &EventDraft, now: Timestamp) -> Event {
        Event {
            metadata: ObjectMeta {
                name: Some(draft.name.clone()),
                namespace: Some(draft.namespace().to_owned()),
                ..ObjectMeta::default()
            },
            involved_object: draft.about.clone(),
            type_: Some(if draft.warning { "Warning" } else { "Normal" }.to_owned()),
            reason: Some(draft.reason.to_owned()),
            message: Some(draft.message.clone()),
            count: Some(draft.count),
            first_timestamp: Some(Time(now)),
            last_timestamp: Some(Time(now)),
            source: Some(EventSource { component: Some(COMPONENT.to_owned()), host: None }),
            reporting_component: Some(COMPONENT.to_owned()),
            reporting_instance: Some(self.identity.clone()),
            ..Event::default()
        }
    }

    /// How often an event has happened by now, if there is one of this name.
    pub(super) async fn count(&self, namespace: &str, name: &str) -> Result<Option<i32>, Failure> {
        let events: Api<Event> = Api::namespaced(self.client.clone(), namespace);
        let found = within(LIMIT, events.get_opt(name)).await?;
        Ok(found.map(|event| event.count.unwrap_or(1)))
    }

    /// The event has happened again.
    pub(super) async fn repeat(&self, draft: &EventDraft, now: Timestamp) -> Result<(), Failure> {
        let events: Api<Event> = Api::namespaced(self.client.clone(), draft.namespace());
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let patch = Patch::Merge(serde_json::json!({
            "count": draft.count, "lastTimestamp": Time(now), "message": draft.message,
        }));
        within(LIMIT, events.patch(&draft.name, &params, &patch)).await.map(drop)
    }

    /// The Deployment as events refer to it. Where there is none, the operator was started in another way, and its name
    /// has to do.
    pub(super) async fn deployment(&self, namespace: &str, name: &str) -> Result<ObjectReference, Failure> {
        let deployments: Api<Deployment> = Api::namespaced(self.client.clone(), namespace);
        let found = within(LIMIT, deployments.get_opt(name)).await?;
        Ok(ObjectReference {
            api_version: Some("apps/v1".to_owned()),
            kind: Some("Deployment".to_owned()),
            namespace: Some(namespace.to_owned()),
            name: Some(name.to_owned()),
            uid: found.and_then(|deployment| deployment.metadata.uid),
            ..ObjectReference::default()
        })
    }
}

fn refusal(error: &kube::Error) -> EventRefusal {
    let failure = Failure::from(error);
    let terminating = matches!(error, kube::Error::Api(status) if status
        .details.iter().flat_map(|details| &details.causes).any(|cause| cause.reason == TERMINATING));
    match failure.class {
        Class::Conflict => EventRefusal::Exists,
        Class::Absent => EventRefusal::Gone(failure),
        _ if terminating => EventRefusal::Gone(failure),
        _ => EventRefusal::Failed(failure),
    }
}
