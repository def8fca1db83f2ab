//! Pull Pods as a watch sees them: what each pulls, onto which node, when it is done, and when it is gone.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use futures::{Stream, StreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client};
use tokio::task::JoinHandle;

/// Label of pull Pods.
pub(crate) const LABEL: (&str, &str) = ("app.kubernetes.io/managed-by", "drop");
const SOON: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(10);

pub(crate) enum Sight {
    /// The watch has delivered everything that was there.
    Listed,
    Pod(Seen),
}

pub(crate) struct Seen {
    pub(crate) name: String,
    pub(crate) node: String,
    /// Images of its containers.
    pub(crate) images: Vec<String>,
    pub(crate) state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Pulling,
    Pulled,
    Gone,
}

/// Everything that happens to the pull Pods of a namespace.
pub(crate) fn pull_pods(client: Client, namespace: &str) -> impl Stream<Item = Result<Sight>> + Send + use<> {
    let pods: Api<Pod> = Api::namespaced(client, namespace);
    let selected = watcher::Config::default().labels(&format!("{}={}", LABEL.0, LABEL.1));
    let events = watcher::watcher(pods, selected);
    events.filter_map(async |event| match event {
        Ok(Event::Init) => None,
        Ok(Event::InitDone) => Some(Ok(Sight::Listed)),
        Ok(Event::InitApply(pod) | Event::Apply(pod)) => Some(Ok(Sight::Pod(seen(pod, false)))),
        Ok(Event::Delete(pod)) => Some(Ok(Sight::Pod(seen(pod, true)))),
        Err(error) => Some(Err(error.into())),
    })
}

fn seen(pod: Pod, gone: bool) -> Seen {
    let done = pod.status.and_then(|status| status.phase).as_deref() == Some("Succeeded");
    let spec = pod.spec.unwrap_or_default();
    Seen {
        name: pod.metadata.name.unwrap_or_default(),
        node: spec.node_name.unwrap_or_default(),
        images: spec.containers.into_iter().filter_map(|container| container.image).collect(),
        state: match (gone, done) {
            (true, _) => State::Gone,
            (false, true) => State::Pulled,
            (false, false) => State::Pulling,
        },
    }
}

/// What was seen so far.
#[derive(Default)]
pub(crate) struct Book {
    pub(crate) listed: bool,
    /// By name: node and images.
    pub(crate) pods: HashMap<String, (String, Vec<String>)>,
    /// Node and image of each pull that is done.
    pub(crate) pulled: HashSet<(String, String)>,
    pub(crate) last_pulled: Option<Instant>,
    pub(crate) present: HashSet<String>,
    pub(crate) last_gone: Option<Instant>,
    pub(crate) failure: Option<String>,
}

impl Book {
    fn note(&mut self, seen: Seen) {
        match seen.state {
            State::Pulling => {}
            State::Pulled => {
                // Deleting a Pod is no further news of its pulls.
                let before = self.pulled.len();
                self.pulled.extend(seen.images.iter().map(|image| (seen.node.clone(), image.clone())));
                if self.pulled.len() > before {
                    self.last_pulled = Some(Instant::now());
                }
            }
            State::Gone => self.last_gone = Some(Instant::now()),
        }
        if seen.state == State::Gone {
            self.present.remove(&seen.name);
        } else {
            self.present.insert(seen.name.clone());
        }
        self.pods.insert(seen.name, (seen.node, seen.images));
    }
}

/// A task that keeps a book.
pub(crate) struct Witness {
    book: Arc<Mutex<Book>>,
    task: JoinHandle<()>,
}

impl Witness {
    pub(crate) async fn start(client: Client, namespace: &str) -> Result<Self> {
        let book = Arc::new(Mutex::new(Book::default()));
        let mut sights = Box::pin(pull_pods(client, namespace));
        let task = tokio::spawn({
            let book = Arc::clone(&book);
            async move {
                while let Some(sight) = sights.next().await {
                    let mut book = lock(&book);
                    match sight {
                        Ok(Sight::Listed) => book.listed = true,
                        Ok(Sight::Pod(seen)) => book.note(seen),
                        Err(error) => book.failure = Some(error.to_string()),
                    }
                }
            }
        });
        let witness = Self { book, task };
        if !witness.until(SOON, |book| book.listed).await {
            bail!("the Pods of {namespace} cannot be watched: {:?}", witness.book().failure);
        }
        Ok(witness)
    }

    pub(crate) fn book(&self) -> MutexGuard<'_, Book> {
        lock(&self.book)
    }

    /// Whether it came to that before the deadline.
    pub(crate) async fn until(&self, deadline: Duration, what: impl Fn(&Book) -> bool) -> bool {
        let end = Instant::now() + deadline;
        loop {
            if what(&self.book()) {
                return true;
            }
            if Instant::now() > end {
                return false;
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn lock(book: &Mutex<Book>) -> MutexGuard<'_, Book> {
    book.lock().unwrap_or_else(PoisonError::into_inner)
}
