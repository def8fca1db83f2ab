//! What a round comes to: typed actions, each of which can be carried out again without harm.

use std::sync::Arc;
use std::time::Duration;

use fairlead_api::drop::CachedImageStatus;
use jiff::Timestamp;

use super::gate::Release;
use super::memory::Draft;
use super::pod_state::Failure;
use super::pull_pod::Order;

/// What is to be done.
#[derive(Debug, Default)]
pub struct Plan {
    pub actions: Vec<Action>,
    /// When to plan again although nothing happens.
    pub look_again: Option<Timestamp>,
}

#[derive(Debug)]
pub enum Action {
    /// A Pod of this name that is there already is as good. Answered by [`Warming::created`],
    /// [`Warming::maybe_created`] or [`Warming::not_created`], however long it takes: until then it is not asked for
    /// again.
    Create(Creation),
    /// A pull is due for the first time in a while: what Pods would be given for the image may be something else by
    /// now. Answered by a [`Routed`](super::Routed) that was planned later.
    Route {
        image: Arc<str>,
    },
    /// Its result is stored, or does not matter any more. None of this name being there is as good. Answered by
    /// [`Warming::deleted`], whatever came of it.
    Delete {
        pod: Arc<str>,
    },
    /// Answered by [`Warming::written`] or [`Warming::not_written`].
    Store {
        image: Arc<str>,
        draft: Box<Draft>,
    },
    Report {
        image: Arc<str>,
        name: Arc<str>,
        status: Box<CachedImageStatus>,
    },
    /// Takes the taint `fairlead.dev/warming` off a node.
    Release {
        node: Arc<str>,
        uid: Arc<str>,
        why: Release,
    },
    Tell(Event),
}

/// A Pod to be created.
#[derive(Debug, Clone)]
pub struct Creation {
    pub name: Arc<str>,
    pub order: Order,
}

/// News of one image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// UID and name of the image.
    pub image: Arc<str>,
    pub name: Arc<str>,
    /// Name of the node.
    pub node: Arc<str>,
    pub kind: EventKind,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventKind {
    Started,
    Succeeded { took: Duration },
    Failed(Failure),
}

/// Why the API server did not take a Pod.
#[derive(Debug, Clone, Copy)]
pub struct Refusal<'a> {
    /// One word.
    pub reason: &'a str,
    pub message: &'a str,
}
