//! The one writer of statuses: server-side apply with one field manager per controller, repeated less and less often
//! while it changes nothing.
//!
//! Only what differs from the stored status is written ([`Draft::unless_stored`]; controllers with long lists compare
//! before they make a draft). A write that succeeded shows in the watch a little later; until then it must not be
//! repeated. One that is refused, or that another writer takes back, is repeated with back-off. A right that is missing
//! is missing for every object of the kind.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use fairlead_api::conditions::{Condition, Finding, merge, reasons, types};
use jiff::Timestamp;
use kube::api::{DynamicObject, Patch, PatchParams};
use kube::core::ApiResource;
use kube::{Api, Client, Resource};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::backoff::Backoff;
use crate::cluster::state::{Key, Malformed, Snapshot};
use crate::platform::api_error::{Class, Failure, LIMIT, within};
use crate::platform::leader::Term;

/// The first pause is the time for a write to come back through the watch, also through one that has to be begun anew.
const SETTLES: Backoff = Backoff::new(Duration::from_secs(10), Duration::from_mins(5));

/// What the API server says of a kind whose definition has no conditions, or no status.
const KEEPS_NONE: [&str; 2] = ["field not declared in schema", "could not find the requested resource"];

/// Short at first: an API server that starts denies everything until it has read its roles.
const DENIED: Backoff = Backoff::new(Duration::from_secs(2), Duration::from_mins(1));

/// Until what did not reach the API server is tried again.
const UNREACHED: Duration = Duration::from_secs(2);

/// Which object a status belongs to.
#[derive(Debug, Clone)]
pub struct ObjectId {
    pub resource: ApiResource,
    /// Empty for kinds without namespaces.
    pub namespace: Arc<str>,
    pub name: Arc<str>,
    pub uid: Arc<str>,
}

impl ObjectId {
    pub fn of<K: Resource<DynamicType = ()>>(object: &K) -> Self {
        let meta = object.meta();
        let text = |text: &Option<String>| text.as_deref().unwrap_or_default().into();
        Self {
            resource: ApiResource::erase::<K>(&()),
            namespace: text(&meta.namespace),
            name: text(&meta.name),
            uid: text(&meta.uid),
        }
    }

    /// An object that cannot be read.
    pub(crate) fn malformed<K: Resource<DynamicType = ()>>(key: &Key, malformed: &Malformed) -> Self {
        Self {
            resource: ApiResource::erase::<K>(&()),
            namespace: key.namespace.clone(),
            name: key.name.clone(),
            uid: malformed.uid.as_str().into(),
        }
    }

    pub(crate) fn api(&self, client: &Client) -> Api<DynamicObject> {
        match &*self.namespace {
            "" => Api::all_with(client.clone(), &self.resource),
            namespace => Api::namespaced_with(client.clone(), namespace, &self.resource),
        }
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.resource.kind)?;
        if !self.namespace.is_empty() {
            write!(f, "/{}", self.namespace)?;
        }
        write!(f, "/{}", self.name)
    }
}

/// How a status is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Manner {
    /// Server-side apply of our own fields.
    Apply,
    /// The same, and this list is ours alone: what others listed, kube-image-keeper for instance, would survive.
    ApplyList(&'static str),
    /// Lists are replaced whole, because the API server applies nothing to an object that does not fit its schema.
    /// The write counts only for the version that was seen.
    Replace { version: String },
}

/// A status to be written.
#[derive(Debug, Clone)]
pub struct Draft {
    pub object: ObjectId,
    pub(crate) manner: Manner,
    status: Value,
    /// What it says, without since when.
    essence: u64,
}

impl Draft {
    /// `conditions` are our own, `others` those that other controllers have set: a list that is replaced has to hold
    /// both.
    pub fn new(
        object: ObjectId,
        manner: Manner,
        mut status: Value,
        conditions: &[Condition],
        others: &[Condition],
    ) -> Self {
        let listed = if matches!(manner, Manner::Replace { .. }) { others } else { &[] };
        if let Some(status) = status.as_object_mut() {
            status.remove("conditions");
        }
        let essence = essence(&status, conditions);
        if let Some(status) = status.as_object_mut() {
            status.insert("conditions".to_owned(), json!([listed, conditions].concat()));
        }
        Self { object, manner, status, essence }
    }

    /// Says of objects that they cannot be read, unless their statuses say so already.
    pub(crate) fn of_all_malformed<K: Resource<DynamicType = ()>>(
        snapshot: &Snapshot<K>,
    ) -> impl Iterator<Item = Self> {
        let staying = snapshot.malformed.iter().filter(|(_, malformed)| !malformed.deleting);
        staying.filter_map(|(key, malformed)| {
            Self::of_malformed(ObjectId::malformed::<K>(key, malformed), malformed)
        })
    }

    fn of_malformed(object: ObjectId, malformed: &Malformed) -> Option<Self> {
        let message = format!("the object cannot be read: {}", malformed.error);
        let finding = Finding::new(types::READY, false, reasons::INVALID_SPEC, message);
        let conditions = merge(&malformed.conditions, &[finding], malformed.generation, Timestamp::now());
        let manner = Manner::Replace { version: malformed.resource_version.clone() };
        let status = json!({"observedGeneration": malformed.generation});
        // Of its status only the conditions were read.
        let stored = json!({"observedGeneration": malformed.generation, "conditions": malformed.conditions});
        Self::new(object, manner, status, &conditions, &[]).unless_stored(&stored)
    }

    /// `None` where the stored status says all of it: each field, and each condition with its time, which [`merge`]
    /// keeps for as long as the condition holds.
    pub fn unless_stored(self, stored: &impl Serialize) -> Option<Self> {
        let stored = json!(stored);
        let conditions = stored.get("conditions").and_then(Value::as_array);
        let has_condition = |one: &Value| conditions.is_some_and(|stored| stored.contains(one));
        let says = self.status.as_object().is_some_and(|fields| {
            fields.iter().all(|(name, value)| match value.as_array() {
                Some(conditions) if name == "conditions" => conditions.iter().all(has_condition),
                _ => stored.get(name).unwrap_or(&Value::Null) == value,
            })
        });
        (!says).then_some(self)
    }

    /// The request. The UID makes the API server refuse to write about another object of the same name.
    pub(crate) fn body(&self) -> Value {
        let ObjectId { resource, name, uid, .. } = &self.object;
        let mut metadata = json!({"name": **name, "uid": **uid});
        if let (Manner::Replace { version }, Some(metadata)) = (&self.manner, metadata.as_object_mut()) {
            metadata.insert("resourceVersion".to_owned(), json!(version));
        }
        json!({
            "apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, "status": self.status,
        })
    }

    pub(crate) async fn send(self, client: Client, manager: &'static str) -> Result<(), Failure> {
        self.send_to(&client, manager).await.map(drop)
    }

    /// Whether the API server has kept the conditions: it drops what the definition of the kind does not know.
    async fn send_to(&self, client: &Client, manager: &'static str) -> Result<bool, Failure> {
        let (api, name) = (self.object.api(client), &*self.object.name);
        let applying = PatchParams::apply(manager).force();
        let merging = PatchParams { field_manager: Some(manager.to_owned()), ..PatchParams::default() };
        let body = self.body();
        if let Manner::Replace { .. } = self.manner {
            let stored = within(LIMIT, api.patch_status(name, &merging, &Patch::Merge(body))).await?;
            return Ok(has_conditions(&stored));
        }
        let applied = Patch::Apply(body);
        let stored = within(LIMIT, api.patch_status(name, &applying, &applied)).await?;
        let Manner::ApplyList(list) = self.manner else { return Ok(has_conditions(&stored)) };
        if listed(stored.data.get("status"), list) == listed(Some(&self.status), list) {
            return Ok(true);
        }
        let emptied = Self { status: json!({list: null}), ..self.clone() }.body();
        within(LIMIT, api.patch_status(name, &merging, &Patch::Merge(emptied))).await?;
        within(LIMIT, api.patch_status(name, &applying, &applied)).await.map(|stored| has_conditions(&stored))
    }
}

/// A list of a status. One that is missing is empty.
fn listed<'a>(status: Option<&'a Value>, list: &str) -> &'a [Value] {
    let found = status.and_then(|status| status.get(list)).and_then(Value::as_array);
    found.map_or(&[], Vec::as_slice)
}

fn has_conditions(stored: &DynamicObject) -> bool {
    stored.data.pointer("/status/conditions").and_then(Value::as_array).is_some_and(|all| !all.is_empty())
}

fn essence(status: &Value, conditions: &[Condition]) -> u64 {
    let mut hasher = DefaultHasher::new();
    status.to_string().hash(&mut hasher);
    for one in conditions {
        let status = json!(one.status).to_string();
        (&one.type_, status, &one.reason, &one.message, one.observed_generation).hash(&mut hasher);
    }
    hasher.finish()
}

#[derive(Debug)]
struct WriteAttempt {
    essence: u64,
    times: u32,
    not_before: Instant,
}

/// Writes the statuses of one controller, and remembers for one term what was tried.
pub struct StatusWriter {
    client: Client,
    manager: &'static str,
    /// By UID.
    attempts: HashMap<Arc<str>, WriteAttempt>,
    /// By kind: how often in a row, and until when nothing is tried.
    denied: HashMap<String, (u32, Instant)>,
    /// When to try again what did not reach the API server.
    unreached: Option<Instant>,
    /// Refusals that were logged.
    logged: HashSet<(Arc<str>, u64)>,
}

impl fmt::Debug for StatusWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StatusWriter").field("manager", &self.manager).finish_non_exhaustive()
    }
}

impl StatusWriter {
    pub fn new(client: Client, manager: &'static str) -> Self {
        Self {
            client,
            manager,
            attempts: HashMap::new(),
            denied: HashMap::new(),
            unreached: None,
            logged: HashSet::new(),
        }
    }

    /// Whether to write this now.
    pub fn may(&self, draft: &Draft, now: Instant) -> bool {
        let denied = self.denied.get(&draft.object.resource.kind).is_some_and(|(_, until)| now < *until);
        let tried = self.attempts.get(&draft.object.uid);
        !denied && !tried.is_some_and(|one| one.essence == draft.essence && now < one.not_before)
    }

    /// The request, for controllers that have several in flight; [`StatusWriter::note`] takes its result.
    pub fn send(&self, draft: Draft) -> impl Future<Output = Result<(), Failure>> + Send + 'static {
        draft.send(self.client.clone(), self.manager)
    }

    /// Writes and takes note.
    pub async fn write(&mut self, draft: &Draft) -> Result<(), Failure> {
        let result = draft.send_to(&self.client, self.manager).await.map(drop);
        self.note(draft, result.as_ref().err(), Instant::now());
        result
    }

    /// Writes what may be written now, and forgets every other object: its status is as it should be, or it is gone.
    /// Failures are logged, and tried again with back-off. Returns the UIDs of objects that were written, and whether
    /// a write failed.
    pub async fn write_all(
        &mut self,
        drafts: Vec<Draft>,
        term: &Term,
        begun: Instant,
    ) -> (HashSet<Arc<str>>, bool) {
        let open: HashSet<_> = drafts.iter().map(|draft| draft.object.uid.clone()).collect();
        self.write_each(&open, drafts.into_iter(), term, begun).await
    }

    /// The same for drafts that are made one by one, because all of them together would take much memory. `open` has
    /// the UIDs of all of them.
    pub async fn write_each(
        &mut self,
        open: &HashSet<Arc<str>>,
        drafts: impl Iterator<Item = Draft> + Send,
        term: &Term,
        begun: Instant,
    ) -> (HashSet<Arc<str>>, bool) {
        self.keep(|uid| open.contains(uid));
        let (mut written, mut failed) = (HashSet::new(), false);
        for draft in drafts {
            if self.may(&draft, begun) && term.holds() {
                match self.write(&draft).await {
                    Ok(()) => _ = written.insert(draft.object.uid),
                    Err(_) => failed = true,
                }
            }
        }
        (written, failed)
    }

    /// Writes and takes note. False: the definition of the kind, which is not ours, knows no conditions.
    pub(crate) async fn write_if_kept(&mut self, draft: &Draft) -> Result<bool, Failure> {
        match draft.send_to(&self.client, self.manager).await {
            Err(failure) if KEEPS_NONE.iter().any(|text| failure.to_string().contains(text)) => Ok(false),
            result => {
                self.note(draft, result.as_ref().err(), Instant::now());
                result
            }
        }
    }

    /// Takes note of an attempt and logs its failure, once.
    pub fn note(&mut self, draft: &Draft, failure: Option<&Failure>, now: Instant) {
        let Draft { object, essence, .. } = draft;
        match failure {
            Some(failure) if failure.class == Class::Denied => {
                let before = self.denied.get(&object.resource.kind).map(|(times, _)| *times);
                let times = before.map_or(0, |times| times.saturating_add(1));
                let until = now + DENIED.pause(times, 0.5);
                self.denied.insert(object.resource.kind.clone(), (times, until));
                if before.is_none() {
                    tracing::error!(
                        kind = object.resource.kind, error = %failure,
                        "not allowed to write the status of objects of this kind; grant patch on it"
                    );
                }
                return;
            }
            // What did not reach the API server at all is not held against the object.
            Some(failure) if failure.class == Class::Unavailable => {
                tracing::debug!(%object, error = %failure, "status could not be written; trying again");
                self.unreached = Some(now + UNREACHED);
                return;
            }
            // It is gone, or another one of the same name, or has another version; the watch will show which.
            Some(failure) if matches!(failure.class, Class::Absent | Class::Conflict) => {
                tracing::debug!(%object, error = %failure, "status was not written");
            }
            Some(failure) => {
                if self.logged.insert((object.uid.clone(), *essence)) {
                    tracing::warn!(%object, error = %failure, "status could not be written");
                }
            }
            None => drop(self.denied.remove(&object.resource.kind)),
        }
        let before = self.attempts.get(&object.uid).filter(|one| one.essence == *essence);
        let times = before.map_or(0, |one| one.times.saturating_add(1));
        let not_before = now + SETTLES.pause(times, 0.5);
        self.attempts.insert(object.uid.clone(), WriteAttempt { essence: *essence, times, not_before });
    }

    /// Forgets objects whose status is as it should be, or that are gone.
    pub fn keep(&mut self, is_open: impl Fn(&str) -> bool) {
        self.attempts.retain(|uid, _| is_open(uid));
        self.logged.retain(|(uid, _)| is_open(uid));
    }

    /// Forgets one object: its status is as it should be.
    pub fn forget(&mut self, uid: &str) {
        self.attempts.remove(uid);
        self.logged.retain(|(logged, _)| **logged != *uid);
    }

    /// When the status of an object may be written again, whatever it says, if it was tried before.
    pub fn waits_until(&self, uid: &str) -> Option<Instant> {
        let tried = self.attempts.get(uid).map(|one| one.not_before);
        tried.into_iter().chain(self.denied.values().map(|(_, until)| *until)).max()
    }

    /// When something may be written that had to wait at `begun`, `latest` at the latest.
    pub fn next_due(&self, begun: Instant, latest: Instant) -> Instant {
        let open = self.attempts.values().map(|one| one.not_before);
        let waiting = open.chain(self.denied.values().map(|(_, until)| *until)).chain(self.unreached);
        waiting.filter(|due| *due > begun).fold(latest, Instant::min)
    }
}

#[cfg(test)]
mod tests {
    use fairlead_api::kuik::{ImageSetMirror, ReplicatedImageSet};

    use super::*;

    fn writer() -> StatusWriter {
        let config = kube::Config::new("http://127.0.0.1:1".parse().unwrap());
        StatusWriter::new(Client::try_from(config).unwrap(), "test")
    }

    fn draft<K: Resource<DynamicType = ()>>(uid: &str, message: &str, second: i64) -> Draft {
        let findings = [Finding::new("Ready", false, "InvalidSpec", message)];
        let conditions = merge(&[], &findings, Some(1), Timestamp::from_second(second).unwrap());
        let object = ObjectId {
            resource: ApiResource::erase::<K>(&()),
            namespace: "shop".into(),
            name: "set".into(),
            uid: uid.into(),
        };
        Draft::new(object, Manner::Apply, json!({"upstreamCount": 0}), &conditions, &[])
    }

    fn set(uid: &str, message: &str, second: i64) -> Draft {
        draft::<ReplicatedImageSet>(uid, message, second)
    }

    #[test]
    fn what_is_stored_is_no_draft() {
        let now = |second| Timestamp::from_second(second).unwrap();
        let finding = Finding::new("Ready", false, "InvalidSpec", "a");
        let foreign = Finding::new("Isolated", true, "Isolated", "of another controller");
        let stored = merge(&[], &[finding.clone(), foreign], Some(1), now(0));
        let stored = json!({"upstreamCount": 0, "observedGeneration": 1, "conditions": stored});
        assert!(set("u", "a", 0).unless_stored(&stored).is_none());
        assert!(set("u", "b", 0).unless_stored(&stored).is_some(), "another message");
        assert!(set("u", "a", 5).unless_stored(&stored).is_some(), "another time");
        let mut more = stored.clone();
        more["upstreamCount"] = json!(1);
        assert!(set("u", "a", 0).unless_stored(&more).is_some(), "another field");
        assert!(set("u", "a", 0).unless_stored(&Value::Null).is_some(), "no status yet");
    }

    #[tokio::test]
    async fn the_same_again_waits_longer_each_time_and_news_do_not() {
        let (mut writer, mut now) = (writer(), Instant::now());
        for seconds in [10, 20, 40, 80, 160, 300, 300] {
            assert!(writer.may(&set("u", "a", seconds), now), "after the pause");
            writer.note(&set("u", "a", seconds), None, now);
            let due = writer.next_due(now, now + Duration::from_hours(1));
            assert_eq!((due - now).as_secs(), u64::try_from(seconds).unwrap());
            assert!(!writer.may(&set("u", "a", 0), due - Duration::from_millis(1)));
            now = due;
        }
        writer.note(&set("u", "a", 0), None, now);
        assert!(writer.may(&set("u", "b", 0), now), "it says something else");
        assert!(writer.may(&set("another", "a", 0), now), "it is another object");
        writer.keep(|_| false);
        assert!(writer.may(&set("u", "a", 0), now), "it was as it should be in between");
    }

    #[tokio::test]
    async fn what_did_not_reach_the_api_server_is_tried_again_soon() {
        let (mut writer, now) = (writer(), Instant::now());
        let latest = now + Duration::from_mins(1);
        writer.note(&set("u", "a", 0), Some(&Failure::timed_out(LIMIT)), now);
        assert!(writer.may(&set("u", "a", 0), now), "it is not held against the object");
        let due = writer.next_due(now, latest);
        assert_eq!(due, now + UNREACHED);
        assert_eq!(writer.next_due(due, latest), latest, "what is over is not waited for");
    }

    #[tokio::test]
    async fn a_missing_right_stops_its_kind_only() {
        let (mut writer, now) = (writer(), Instant::now());
        let denied = Failure::from(&kube::core::Status::failure("no", "Forbidden").with_code(403));
        let mut later = now;
        for seconds in [2, 4, 8, 16, 32, 60, 60] {
            let refused = later;
            writer.note(&set("u", "a", 0), Some(&denied), refused);
            later = refused + Duration::from_secs(seconds);
            assert!(!writer.may(&set("u", "b", 0), later - Duration::from_millis(1)));
            assert!(writer.may(&set("u", "a", 0), later));
            let latest = later + Duration::from_secs(1);
            assert_eq!(writer.next_due(refused, latest), later);
            assert_eq!(writer.next_due(later, latest), latest, "what is over is not waited for");
        }
        assert!(writer.may(&draft::<ImageSetMirror>("u", "a", 0), now));
        writer.note(&set("u", "a", 0), None, later);
        writer.note(&set("u", "b", 0), Some(&denied), later);
        assert!(
            writer.may(&set("u", "c", 0), later + Duration::from_secs(2)),
            "it begins anew after a success"
        );
    }
}
