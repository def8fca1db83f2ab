//! Opens originals on behalf of namespaces whose access has to be proven, with what those namespaces have themselves.
//!
//! The manifest is read, not only asked about: its bytes must be what the ledger says was copied.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use fairlead_domain::cause::Cause;
use fairlead_domain::keyring::Credential;
use fairlead_domain::reference::Reference;
use fairlead_plan::access::{self, Attempt};
use fairlead_plan::credentials::{self, Offered, Principal};
use fairlead_plan::usage::Holder;
use fairlead_registry::manifest::Selector;
use fairlead_registry::{Class, Client, Context, Problem, Right};
use tokio::time::Instant;

use crate::controller::Inflight;
use crate::registries::secrets::Secrets;

/// Originals that are opened at once.
const AT_ONCE: usize = 4;

/// For one request.
const LONGEST_REQUEST: Duration = Duration::from_secs(30);

/// How often it is looked whether a registry that is down is back.
const ASK_AGAIN: Duration = Duration::from_secs(5);

/// One original of one mirror object.
#[derive(Debug, Clone)]
pub(super) struct Order {
    /// UID of the object.
    pub(super) owner: Arc<str>,
    pub(super) attempt: Attempt,
    /// Who uses the image, with which pull secrets.
    pub(super) holders: Arc<[Holder]>,
    pub(super) cause: Cause,
}

/// Namespaces that have opened an original.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) owner: Arc<str>,
    pub(super) source: Reference,
    pub(super) namespaces: Vec<Arc<str>>,
}

type ProofKey = (Arc<str>, Reference);

#[derive(Debug)]
struct Waiting {
    order: Order,
    /// Namespaces that were tried before. Another one is not kept waiting.
    tried: BTreeSet<Arc<str>>,
    failures: u32,
    next: Instant,
}

/// Originals that wait to be opened, and those under way.
pub(super) struct Proofs {
    opener: Opener,
    waiting: HashMap<ProofKey, Waiting>,
    jobs: Inflight<ProofKey, Vec<Arc<str>>>,
}

impl Proofs {
    pub(super) fn new(client: Client, secrets: Secrets) -> Self {
        Self { opener: Opener { client, secrets }, waiting: HashMap::new(), jobs: Inflight::new(AT_ONCE) }
    }

    /// What is to be opened from now on; anything else is forgotten.
    pub(super) fn update(&mut self, wanted: impl Iterator<Item = Order>) {
        let now = Instant::now();
        let mut before = std::mem::take(&mut self.waiting);
        for order in wanted {
            let key = (Arc::clone(&order.owner), order.attempt.source.clone());
            let mut waiting = before.remove(&key).unwrap_or_else(|| Waiting {
                order: order.clone(),
                tried: BTreeSet::new(),
                failures: 0,
                next: now,
            });
            let is_new = |namespace: &Arc<str>| !waiting.tried.contains(namespace);
            if order.attempt.digest != waiting.order.attempt.digest
                || order.attempt.namespaces.iter().any(is_new)
            {
                (waiting.next, waiting.failures) = (waiting.next.min(now), 0);
            }
            waiting.order = order;
            self.waiting.insert(key, waiting);
        }
    }

    /// Begins what is due.
    pub(super) fn begin(&mut self) {
        let now = Instant::now();
        for (key, waiting) in &mut self.waiting {
            if self.jobs.is_full() {
                return;
            }
            if waiting.next > now || self.jobs.contains(key) {
                continue;
            }
            if self.opener.client.is_down(&waiting.order.attempt.source.host()).is_some() {
                waiting.next = now + ASK_AGAIN;
                continue;
            }
            let namespaces = &waiting.order.attempt.namespaces;
            waiting.tried.retain(|namespace| namespaces.contains(namespace));
            waiting.tried.extend(namespaces.iter().cloned());
            let (opener, order) = (self.opener.clone(), waiting.order.clone());
            let round = waiting.failures;
            self.jobs.start(key.clone(), async move { opener.open(&order, round).await });
        }
    }

    /// Waits for the next attempt to end. One that panicked opened nothing.
    pub(super) async fn progress(&mut self) -> Opened {
        let (key, namespaces) = self.jobs.next().await;
        let namespaces = namespaces.unwrap_or_default();
        if let Some(waiting) = self.waiting.get_mut(&key) {
            waiting.order.attempt.namespaces.retain(|one| !namespaces.contains(one));
            let pause = Duration::try_from(access::retry_after(waiting.failures)).unwrap_or_default();
            (waiting.next, waiting.failures) = (Instant::now() + pause, waiting.failures.saturating_add(1));
            if waiting.order.attempt.namespaces.is_empty() {
                self.waiting.remove(&key);
            }
        }
        let (owner, source) = key;
        Opened { owner, source, namespaces }
    }

    /// When something is due that only time brings.
    pub(super) fn next(&self) -> Option<Instant> {
        let idle = self.waiting.iter().filter(|(key, _)| !self.jobs.contains(*key));
        idle.map(|(_, waiting)| waiting.next).min().filter(|_| !self.jobs.is_full())
    }
}

#[derive(Debug, Clone)]
struct Opener {
    client: Client,
    secrets: Secrets,
}

impl Opener {
    /// The namespaces whose own credentials open the original. If it opens without any, all of them. Where there are
    /// many namespaces, others have their turn in the next round.
    async fn open(&self, order: &Order, round: u32) -> Vec<Arc<str>> {
        let Attempt { source, namespaces, .. } = &order.attempt;
        if self.reads(order, Vec::new()).await == Ok(true) {
            return namespaces.clone();
        }
        let mut opened = Vec::new();
        for namespace in access::turn_of(namespaces, round) {
            let own: Vec<Holder> =
                order.holders.iter().filter(|holder| holder.namespace == *namespace).cloned().collect();
            let principal = Principal::Namespace(Arc::clone(namespace));
            let offered = Offered { holders: &own, ..Offered::default() };
            let attempts = credentials::attempts(&principal, &offered, round);
            let logins = self.secrets.logins(attempts, &source.repository()).await;
            for (attempt, credentials) in logins.matching {
                match self.reads(order, credentials).await {
                    Ok(true) => {
                        opened.push(Arc::clone(namespace));
                        break;
                    }
                    Ok(false) => {}
                    // A credential that is refused may have been replaced since it was read.
                    Err(Refused) => attempt.secrets.iter().for_each(|name| self.secrets.distrust(name)),
                }
            }
        }
        opened
    }

    /// Whether credentials open the original, and what it says is what was copied.
    async fn reads(&self, order: &Order, credentials: Vec<Credential>) -> Result<bool, Refused> {
        let Attempt { source, digest, .. } = &order.attempt;
        let context = Context::new(Class::Background, Instant::now() + LONGEST_REQUEST);
        let reading = async {
            let remote =
                self.client.repository_for(order.cause, &source.repository(), credentials, Right::Pull)?;
            remote.manifest(&Selector::of(source), &context).await
        };
        match reading.await {
            Ok(manifest) => Ok(digest.matches(&manifest.bytes)),
            Err(error) if matches!(error.problem, Problem::Unauthorised(_)) => Err(Refused),
            Err(_) => Ok(false),
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Refused;
