//! What a cluster is asked about mirrors, with the rights of the person who asks: lists first, then their changes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Result, bail};
use fairlead_api::fairlead::ImageLedger;
use fairlead_api::kuik::{ClusterImageSetMirror, ImageSetMirror};
use fairlead_api::names::fairlead::OWNER_KIND;
use futures::StreamExt;
use kube::api::{ApiResource, DynamicObject};
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::object::Kind;
use super::view::{Part, View};
use crate::api_server::{self, ATTEMPTS, FORBIDDEN, NOT_FOUND, PAUSE, TOO_MANY_REQUESTS};

/// Trouble that was not heard of again for this long is over.
const OVER: Duration = Duration::from_secs(3);

/// Length of one watch request: a connection that is silent for longer is taken for dead.
const WATCH_SECONDS: u32 = 60;

/// A ledger has up to half a mebibyte, and a page is held in memory as a whole.
const LEDGERS_PER_PAGE: u32 = 20;

/// Events that wait to be taken in.
const QUEUE: usize = 64;

/// What is to be looked at.
#[derive(Debug)]
pub(crate) struct WatchScope {
    pub(crate) kinds: Vec<Kind>,
    /// Of namespaced objects; none stands for all.
    pub(crate) namespace: Option<String>,
    /// Where the ledgers of cluster-wide objects are.
    pub(crate) operator_namespace: String,
}

enum News {
    Event(Box<Event<DynamicObject>>),
    /// The cluster says no, and will go on to.
    Refused {
        code: u16,
        why: String,
    },
    Trouble {
        code: u16,
        why: String,
    },
}

/// The state of the cluster, and the watches that keep it up to date. They end when this is dropped.
pub(crate) struct Following {
    pub(crate) view: View,
    news: mpsc::Receiver<(Part, News)>,
    loading: BTreeSet<Part>,
    refused: BTreeMap<Part, String>,
    trouble: BTreeMap<Part, (Instant, String)>,
    _tasks: JoinSet<()>,
}

impl Following {
    /// Begins to follow, and waits until everything that may be seen is there.
    pub(crate) async fn start(client: &Client, scope: &WatchScope) -> Result<Self> {
        let (sender, news) = mpsc::channel(QUEUE);
        let (mut tasks, mut loading) = (JoinSet::new(), BTreeSet::new());
        for &kind in &scope.kinds {
            for part in [Part::Objects(kind), Part::Ledgers(kind)] {
                tasks.spawn(follow(api(client, scope, part), part, sender.clone()));
                loading.insert(part);
            }
        }
        let mut following = Self {
            view: View::new(&scope.operator_namespace),
            news,
            loading,
            refused: BTreeMap::new(),
            trouble: BTreeMap::new(),
            _tasks: tasks,
        };
        let mut attempts = ATTEMPTS;
        while !following.loading.is_empty() {
            let Some((part, code, why)) = following.next().await else { continue };
            attempts = attempts.saturating_sub(1);
            if code != TOO_MANY_REQUESTS || attempts == 0 {
                bail!("cannot list {}: {why}", plural(part));
            }
        }
        if scope.kinds.iter().all(|kind| following.refused.contains_key(&Part::Objects(*kind))) {
            bail!("{}", following.refused.into_values().next().unwrap_or_default());
        }
        Ok(following)
    }

    /// Takes in what comes next. Returns trouble, if that is what came.
    pub(crate) async fn next(&mut self) -> Option<(Part, u16, String)> {
        let Some((part, news)) = self.news.recv().await else {
            // Every watch was refused: nothing will change any more.
            return std::future::pending().await;
        };
        match news {
            News::Event(event) => {
                self.trouble.remove(&part);
                if matches!(*event, Event::InitDone) {
                    self.loading.remove(&part);
                }
                self.view.apply(part, *event);
                None
            }
            News::Refused { code, why } => {
                self.loading.remove(&part);
                self.refused.insert(part, refusal(part, code, &why));
                None
            }
            News::Trouble { code, why } => {
                self.trouble.insert(part, (Instant::now(), why.clone()));
                Some((part, code, why))
            }
        }
    }

    /// What makes the view less than whole.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let recent = self.trouble.iter().filter(|(_, (when, _))| when.elapsed() < OVER);
        let recent = recent.map(|(part, (_, why))| format!("cannot follow {}: {why}", plural(*part)));
        self.refused.values().cloned().chain(recent).collect()
    }
}

fn api(client: &Client, scope: &WatchScope, part: Part) -> Api<DynamicObject> {
    let resource = match part {
        Part::Objects(Kind::ClusterImageSetMirror) => ApiResource::erase::<ClusterImageSetMirror>(&()),
        Part::Objects(Kind::ImageSetMirror) => ApiResource::erase::<ImageSetMirror>(&()),
        Part::Ledgers(_) => ApiResource::erase::<ImageLedger>(&()),
    };
    let namespace = match part {
        Part::Objects(Kind::ClusterImageSetMirror) => None,
        Part::Ledgers(Kind::ClusterImageSetMirror) => Some(scope.operator_namespace.as_str()),
        Part::Objects(Kind::ImageSetMirror) | Part::Ledgers(Kind::ImageSetMirror) => {
            scope.namespace.as_deref()
        }
    };
    match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    }
}

async fn follow(api: Api<DynamicObject>, part: Part, sender: mpsc::Sender<(Part, News)>) {
    let config = watcher::Config::default().timeout(WATCH_SECONDS);
    let config = match part {
        Part::Objects(_) => config,
        Part::Ledgers(kind) => {
            config.labels(&format!("{OWNER_KIND}={}", kind.name())).page_size(LEDGERS_PER_PAGE)
        }
    };
    let mut events = std::pin::pin!(watcher(api, config));
    while let Some(event) = events.next().await {
        let news = match event {
            Ok(event) => News::Event(Box::new(event)),
            Err(error) => {
                let (code, why) = told(&error);
                if matches!(code, FORBIDDEN | NOT_FOUND) {
                    News::Refused { code, why }
                } else {
                    News::Trouble { code, why }
                }
            }
        };
        let (is_end, is_trouble) =
            (matches!(news, News::Refused { .. }), matches!(news, News::Trouble { .. }));
        if sender.send((part, news)).await.is_err() || is_end {
            return;
        }
        if is_trouble {
            sleep(PAUSE).await;
        }
    }
}

fn plural(part: Part) -> String {
    match part {
        Part::Objects(kind) => format!("objects of kind {}", kind.name()),
        Part::Ledgers(kind) => format!("ImageLedgers of objects of kind {}", kind.name()),
    }
}

fn refusal(part: Part, code: u16, why: &str) -> String {
    match (part, code) {
        (Part::Objects(kind), NOT_FOUND) => api_server::unknown_kind(kind.name()),
        (Part::Objects(_), _) => format!("you may not see {}, so they are left out: {why}", plural(part)),
        (Part::Ledgers(_), NOT_FOUND) => {
            "the cluster does not know the kind ImageLedger, so only statuses are shown: install its definition \
             with `fairlead crds`"
                .to_owned()
        }
        (Part::Ledgers(_), _) => format!(
            "you may not see {}, so their own statuses are shown, which name a hundred images at most: {why}",
            plural(part)
        ),
    }
}

/// The API server's status code, if it gave one, and its own words where it spoke; else everything that is known.
fn told(error: &watcher::Error) -> (u16, String) {
    let cause = match error {
        watcher::Error::InitialListFailed(cause)
        | watcher::Error::WatchStartFailed(cause)
        | watcher::Error::WatchFailed(cause) => cause,
        watcher::Error::WatchError(status) => return (status.code, status.message.clone()),
        watcher::Error::NoResourceVersion => return (0, error.to_string()),
    };
    match cause {
        kube::Error::Api(status) if status.message.is_empty() => {
            (status.code, format!("status {}", status.code))
        }
        cause => (api_server::code(cause), api_server::told(cause)),
    }
}
