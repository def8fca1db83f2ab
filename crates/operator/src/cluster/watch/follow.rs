//! Follows one kind for as long as the process lives.

use std::fmt::Debug;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt, Stream, StreamExt};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;
use tokio::sync::watch;

use super::discovery::{Discovery, KindNames};
use super::sink::Sink;
use super::{Board, Tolerant};
use crate::controller::backoff::{Retry, jittered};
use crate::platform::api_error::{Class, Failure};

/// How often a kind that is not served is looked for.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// A kind counts as gone when this many requests in a row did not find it *and* discovery agrees. A single one is not
/// enough: an API server that has just started may not know its custom resources yet.
const ABSENT_AFTER: u32 = 3;

/// A watch that has failed and then stays silent for this long works again: silence is what a quiet kind sounds like.
const QUIET_IS_WELL: Duration = Duration::from_secs(10);

/// Events that are taken in before readers see them, at most.
const BATCH: usize = 128;

/// Length of one watch request. A connection that died without a word is noticed five seconds after that; a watch that
/// is resumed costs the API server next to nothing.
const WATCH_SECONDS: u32 = 60;

/// A first list that did not get through in the time above is given more, up to this.
const LONGEST_WATCH_SECONDS: u32 = 960;

/// Lists that broke off in a row before pages are tried instead.
const GIVE_UP_STREAMING: u32 = 4;

type Events<K> = Pin<Box<dyn Stream<Item = watcher::Result<Event<Tolerant<K>>>> + Send>>;

/// How objects are asked for.
#[derive(Debug, Clone, Copy)]
struct Manner {
    /// Lists come object by object, like changes, so that only one is held in memory at a time. API servers older than
    /// 1.34 refuse that unless they are configured for it; then lists come in pages.
    streaming: bool,
    seconds: u32,
}

/// What can be followed.
pub(super) trait Followed:
    Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static
{
}

impl<K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static> Followed for K {}

/// What one watch needs.
pub(super) struct Follower<K, S> {
    /// All objects of the kind, or those of one namespace.
    pub(super) api: Api<Tolerant<K>>,
    pub(super) kind: KindNames,
    pub(super) sink: S,
    pub(super) board: Arc<Board>,
    /// `None` for kinds that every API server serves.
    pub(super) discovery: Option<Arc<Discovery>>,
    /// Objects per request where lists come in pages.
    pub(super) page: u32,
    /// The one object that is followed, if not all are.
    pub(super) only: Option<String>,
    /// How many need the kind to be followed, if it is not always.
    pub(super) needed: Option<watch::Receiver<usize>>,
    pub(super) object: PhantomData<fn() -> K>,
}

/// Why a kind is not followed any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ended {
    NotServed,
    NotNeeded,
}

impl<K: Followed, S: Sink<K>> Follower<K, S> {
    pub(super) async fn run(mut self) {
        loop {
            self.wait_until_needed().await;
            self.wait_until_served().await;
            self.board.served(self.kind.name);
            // What was listed stays known. Objects that are deleted with their definition are reported one by one
            // before that; an object that was not reported as deleted is still stored, and only not served.
            if self.follow_while_needed().await == Ended::NotServed {
                self.board.absent(self.kind.name);
            }
        }
    }

    async fn wait_until_needed(&mut self) {
        let Some(needed) = &mut self.needed else { return };
        if *needed.borrow() == 0 {
            self.board.unneeded(self.kind.name);
        }
        if needed.wait_for(|count| *count > 0).await.is_err() {
            std::future::pending::<()>().await;
        }
    }

    /// What is no longer needed is forgotten.
    async fn follow_while_needed(&mut self) -> Ended {
        let Some(mut needed) = self.needed.clone() else {
            self.follow().await;
            return Ended::NotServed;
        };
        tokio::select! {
            _ = needed.wait_for(|count| *count == 0) => {}
            () = self.follow() => return Ended::NotServed,
        }
        // First, so that a capability that needs it from now on waits for the next list.
        self.board.unneeded(self.kind.name);
        self.sink.begin();
        self.sink.finish();
        self.sink.publish();
        Ended::NotNeeded
    }

    async fn wait_until_served(&self) {
        let Some(discovery) = &self.discovery else { return };
        let mut backoff = Retry::default();
        loop {
            let pause = match discovery.serves::<K>(&self.kind).await {
                Ok(true) => return,
                Ok(false) => {
                    self.board.absent(self.kind.name);
                    backoff.reset();
                    jittered(LOOK_EVERY, 0.25, fastrand::f64())
                }
                Err(failure) => {
                    self.board.failed(self.kind.name, &failure);
                    backoff.failed()
                }
            };
            tokio::time::sleep(pause).await;
        }
    }

    fn events(&self, manner: Manner) -> Events<K> {
        let config = watcher::Config::default().timeout(manner.seconds).page_size(self.page);
        let config = if manner.streaming { config.streaming_lists() } else { config };
        let config = match &self.only {
            Some(name) => config.fields(&format!("metadata.name={name}")),
            None => config,
        };
        Box::pin(watcher(self.api.clone(), config))
    }

    /// Takes in events until the kind is no longer served.
    async fn follow(&mut self) {
        let mut manner = Manner { streaming: true, seconds: WATCH_SECONDS };
        let mut events = self.events(manner);
        let mut backoff = Retry::default();
        let mut listing = false;
        let mut broken_lists = 0;
        let mut failing = false;
        let mut not_found = 0;
        let mut unpublished = 0;
        loop {
            let event = if unpublished > 0 {
                let ready = (unpublished < BATCH).then(|| events.next().now_or_never()).flatten();
                let Some(event) = ready else {
                    unpublished = 0;
                    self.publish();
                    continue;
                };
                event
            } else if failing {
                let Ok(event) = tokio::time::timeout(QUIET_IS_WELL, events.next()).await else {
                    failing = false;
                    backoff.reset();
                    self.board.recovered(self.kind.name);
                    continue;
                };
                event
            } else {
                events.next().await
            };
            match event {
                Some(Ok(Event::Init)) if listing && manner.streaming => {
                    // It broke off, perhaps because its time was over.
                    listing = false;
                    broken_lists += 1;
                    manner.streaming &= broken_lists < GIVE_UP_STREAMING;
                    manner.seconds = manner.seconds.saturating_mul(2).min(LONGEST_WATCH_SECONDS);
                    events = self.events(manner);
                }
                Some(Ok(event)) => {
                    listing = matches!(event, Event::Init | Event::InitApply(_));
                    if matches!(event, Event::InitDone) {
                        broken_lists = 0;
                    }
                    not_found = 0;
                    // A list that begins proves nothing yet.
                    if !matches!(event, Event::Init) && std::mem::take(&mut failing) {
                        backoff.reset();
                        self.board.recovered(self.kind.name);
                    }
                    unpublished += usize::from(self.take(event));
                }
                Some(Err(watcher::Error::WatchStartFailed(error)))
                    if manner.streaming && Failure::from(&error).class == Class::Rejected =>
                {
                    tracing::debug!(kind = self.kind.name, %error, "listing in pages");
                    manner.streaming = false;
                    events = self.events(manner);
                }
                Some(Err(error)) => {
                    let failure = Failure::from(&error);
                    self.board.failed(self.kind.name, &failure);
                    failing = true;
                    // What came before must not wait until it works again.
                    if std::mem::take(&mut unpublished) > 0 {
                        self.publish();
                    }
                    not_found = if failure.class == Class::Absent { not_found + 1 } else { 0 };
                    if not_found >= ABSENT_AFTER && self.is_gone().await {
                        return;
                    }
                    tokio::time::sleep(backoff.failed()).await;
                }
                // The stream has no end of its own; were it to end, it would be begun anew.
                None => events = self.events(manner),
            }
        }
    }

    /// Takes in one event and tells whether readers should see a difference.
    fn take(&mut self, event: Event<Tolerant<K>>) -> bool {
        match event {
            Event::Init => self.sink.begin(),
            Event::InitApply(object) => self.sink.listed(object),
            Event::InitDone => {
                self.sink.finish();
                self.publish();
                self.board.listed(self.kind.name);
            }
            Event::Apply(object) => {
                self.sink.applied(object);
                return true;
            }
            Event::Delete(object) => {
                self.sink.deleted(object);
                return true;
            }
        }
        false
    }

    fn publish(&mut self) {
        let counts = self.sink.publish();
        self.board.counted(self.kind.name, counts);
    }

    async fn is_gone(&self) -> bool {
        match &self.discovery {
            None => false,
            Some(discovery) => matches!(discovery.serves::<K>(&self.kind).await, Ok(false)),
        }
    }
}
