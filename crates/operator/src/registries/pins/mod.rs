//! Pins: the digests that workload revisions are held to, for admission on every replica.
//!
//! The watch tells which pins there are, so a Pod of a known revision costs no request. For the first Pod of a revision
//! the registry is asked, once for all that wait, and the pin is created; where another replica was first, its pin is
//! read instead. [`fairlead_plan::pinning`] decides what is asked, chosen and written.

mod metrics;
mod store;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fairlead_api::fairlead::{ImagePin, PinnedImage};
use fairlead_domain::cause::Cause;
use fairlead_domain::digest::Digest;
use fairlead_domain::keyring::Credential;
use fairlead_domain::reference::Reference;
use fairlead_domain::verdict::Verdict;
use fairlead_plan::pinning::{self, PlaceAnswer, Resolved, Revision};
use fairlead_plan::routing::Alternative;
use futures::future::{join, join_all};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Client;
use parking_lot::Mutex;
use tokio::time::Instant;

use self::metrics::Done;
pub use self::metrics::Metrics;
use super::cache::{BoundedMap, Capacity};
use super::single_flight::{NoResult, SingleFlight};
use super::verdicts::Verdicts;
use crate::cluster::state::{Key, Snapshot, Store};

/// Pins that were written or read here serve this long; by then the watch has shown them. An administrator may delete a
/// pin to have its tags looked up again, so they do not serve for ever.
const RECENT: Duration = Duration::from_secs(5);

/// Pins that are remembered until the watch shows them.
const CAPACITY: Capacity = Capacity { entries: 4096, bytes: usize::MAX };

/// Clones share everything.
#[derive(Clone)]
pub struct Pins {
    shared: Arc<PinsInner>,
}

struct PinsInner {
    client: Client,
    verdicts: Verdicts,
    stored: Store<ImagePin>,
    recent: Mutex<BoundedMap<Key, (Arc<ImagePin>, Instant)>>,
    /// By pin and by what is to be resolved.
    flights: SingleFlight<(Key, Vec<Reference>), Answers>,
    metrics: Metrics,
}

impl std::fmt::Debug for Pins {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pins").finish_non_exhaustive()
    }
}

/// One place that may tell the digest of a tag, and how it is asked.
#[derive(Debug, Clone)]
pub struct QuestionPlace {
    pub reference: Reference,
    pub credentials: Vec<Credential>,
    pub cause: Cause,
}

impl QuestionPlace {
    pub fn new(place: &Alternative, credentials: Vec<Credential>) -> Self {
        Self { reference: place.reference.clone(), credentials, cause: place.cause() }
    }
}

/// Which digest a tag stands for.
#[derive(Debug, Clone)]
pub struct Question {
    /// What the workload asks for.
    pub origin: QuestionPlace,
    /// Where else it may come from, in order.
    pub others: Vec<QuestionPlace>,
}

/// Why a tag stays a tag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotPinned(pub String);

/// What was found out about some tags.
#[derive(Debug, Clone, Default)]
pub struct Answers {
    images: Vec<PinnedImage>,
    /// Why a tag has no digest, by its normalised text.
    unresolved: Vec<(Reference, NotPinned)>,
    /// Why none of them can be used.
    failure: Option<NotPinned>,
}

impl Answers {
    fn failed(why: String) -> Self {
        Self { failure: Some(NotPinned(why)), ..Self::default() }
    }

    pub fn digest(&self, asked: &Reference) -> Result<Digest, NotPinned> {
        if let Some(digest) = pinning::digest_in(&self.images, asked) {
            return Ok(digest);
        }
        let unresolved = self.unresolved.iter().find(|(reference, _)| reference == asked).map(|(_, why)| why);
        let unknown = || NotPinned("its digest is not known".to_owned());
        Err(unresolved.or(self.failure.as_ref()).cloned().unwrap_or_else(unknown))
    }
}

/// What is known of one pin.
#[derive(Debug, Clone, Default)]
pub struct KnownPin(Vec<Arc<ImagePin>>);

impl KnownPin {
    pub fn digest(&self, asked: &Reference) -> Option<Digest> {
        self.0.iter().find_map(|pin| pinning::digest_in(&pin.spec.images, asked))
    }
}

impl Pins {
    /// `stored` is filled by the watch.
    pub fn new(client: Client, verdicts: Verdicts, stored: Store<ImagePin>, metrics: Metrics) -> Self {
        let recent = Mutex::new(BoundedMap::new(CAPACITY));
        let flights = SingleFlight::default();
        Self { shared: Arc::new(PinsInner { client, verdicts, stored, recent, flights, metrics }) }
    }

    /// Takes all pins as they are stored, where no watch runs.
    pub fn learn(&self, pins: Vec<ImagePin>) {
        let objects = pins.into_iter().map(|pin| (Key::of(&pin.metadata), Arc::new(pin))).collect();
        self.shared.stored.replace(Snapshot { objects, ..Snapshot::default() });
    }

    /// What a revision is known to be held to.
    pub fn known(&self, key: &Key, revision: &Revision) -> KnownPin {
        self.shared.known(key, revision)
    }

    /// Finds out the digests of tags and holds the revision to them. What takes until after the deadline goes on, and
    /// the next Pod will find it.
    pub async fn ensure(
        &self,
        key: Key,
        revision: Revision,
        questions: Vec<Question>,
        deadline: Instant,
    ) -> Answers {
        let asked = questions.iter().map(|question| question.origin.reference.clone()).collect();
        let flight = self.shared.flights.join(&(key.clone(), asked), || {
            let shared = Arc::clone(&self.shared);
            async move { shared.settle(key, revision, questions, deadline).await }
        });
        flight.wait(deadline).await.unwrap_or_else(|lost| {
            self.shared.metrics.count(Done::Failed);
            Answers::failed(match lost {
                NoResult::TimeIsUp => "its ImagePin could not be made in time".to_owned(),
                NoResult::Lost => "making its ImagePin was broken off".to_owned(),
            })
        })
    }

    /// Finds out the digests of tags, and writes nothing.
    pub async fn look_up(
        &self,
        namespace: &str,
        of: Option<&(Key, Revision)>,
        questions: Vec<Question>,
        deadline: Instant,
    ) -> Answers {
        let resolving = questions.iter().map(|question| {
            let revision = of.map(|(_, revision)| revision);
            let last = self.shared.last_known(namespace, revision, question);
            // A Pod without controller keeps what it gets here, as a revision does.
            self.shared.resolve(namespace, question, last, of.is_none(), deadline)
        });
        answers(&questions, join_all(resolving).await)
    }
}

impl PinsInner {
    fn known(&self, key: &Key, revision: &Revision) -> KnownPin {
        let stored = self.stored.snapshot().objects.get(key).cloned();
        let recent =
            self.recent.lock().get(key).filter(|(_, at)| at.elapsed() < RECENT).map(|(pin, _)| pin.clone());
        let known = stored.into_iter().chain(recent);
        KnownPin(known.filter(|pin| pinning::is_of(&pin.spec, revision)).collect())
    }

    async fn settle(
        &self,
        key: Key,
        revision: Revision,
        mut questions: Vec<Question>,
        deadline: Instant,
    ) -> Answers {
        // Another caller may have settled it between this caller's look and now.
        let known = self.known(&key, &revision);
        let mut images: Vec<_> = known.0.iter().flat_map(|pin| pin.spec.images.iter().cloned()).collect();
        questions.retain(|question| known.digest(&question.origin.reference).is_none());
        let resolving = questions.iter().map(|question| {
            let last = self.last_known(&key.namespace, Some(&revision), question);
            self.resolve(&key.namespace, question, last, true, deadline)
        });
        let found = answers(&questions, join_all(resolving).await);
        if found.images.is_empty() {
            images.extend(found.images);
            return Answers { images, ..found };
        }
        match self.store(&key, &revision, &found.images).await {
            Ok(pin) => Answers { images: pin.spec.images.clone(), ..found },
            Err(why) => {
                self.metrics.count(Done::Failed);
                tracing::warn!(pin = %key, %why, "an ImagePin could not be stored; the tags of its Pods stay as they are");
                Answers { images, failure: Some(NotPinned(why)), ..found }
            }
        }
    }

    /// The digest that a tag was last known to have in the registry that the workload names, or that pins of the
    /// namespace hold it to.
    fn last_known(
        &self,
        namespace: &str,
        revision: Option<&Revision>,
        question: &Question,
    ) -> Option<Digest> {
        let QuestionPlace { reference, credentials, cause } = &question.origin;
        self.verdicts.caused_by(*cause).last_digest(reference, credentials).or_else(|| {
            let stored = self.stored.snapshot();
            let pins = stored.objects.iter().filter(|(key, _)| *key.namespace == *namespace);
            pinning::last_known(revision, reference, pins.map(|(_, pin)| &pin.spec))
        })
    }

    /// Asks the registry that the workload names; only where it does not tell, the other places.
    async fn resolve(
        &self,
        namespace: &str,
        question: &Question,
        last_known: Option<Digest>,
        anew: bool,
        deadline: Instant,
    ) -> Result<Resolved, Verdict> {
        let Question { origin, others } = question;
        let verdicts = self.verdicts.caused_by(origin.cause);
        let (tag, credentials) = (&origin.reference, &origin.credentials);
        let told = if anew {
            verdicts.ask_anew(tag, credentials, namespace, deadline).await
        } else {
            verdicts.recall(tag, credentials, namespace, deadline).await
        };
        if let Some(digest) = told.digest() {
            // So that no later caller asks for the digest again.
            verdicts.learn(&pinning::hold(tag, &digest), credentials, told.clone());
        }
        let places = if told.digest().is_some() {
            Vec::new()
        } else {
            let asked = std::iter::once(origin).chain(others).map(|place| {
                let known = (place.reference == *tag).then(|| told.clone());
                self.ask(namespace, place, known, last_known, deadline)
            });
            join_all(asked).await
        };
        pinning::resolve(&told, last_known, &places).ok_or(told)
    }

    async fn ask(
        &self,
        namespace: &str,
        place: &QuestionPlace,
        about_tag: Option<Verdict>,
        last_known: Option<Digest>,
        deadline: Instant,
    ) -> PlaceAnswer {
        let QuestionPlace { reference, credentials, cause } = place;
        let verdicts = self.verdicts.caused_by(*cause);
        let tag = async {
            match about_tag {
                Some(verdict) => verdict,
                None => verdicts.recall(reference, credentials, namespace, deadline).await,
            }
        };
        let held = async {
            let held = pinning::hold(reference, &last_known?);
            Some(verdicts.recall(&held, credentials, namespace, deadline).await)
        };
        let (tag, last_known) = join(tag, held).await;
        PlaceAnswer { reference: reference.clone(), tag, last_known }
    }
}

fn answers(questions: &[Question], resolved: Vec<Result<Resolved, Verdict>>) -> Answers {
    let mut answers = Answers::default();
    for (question, resolved) in questions.iter().zip(resolved) {
        let asked = &question.origin.reference;
        match resolved {
            Ok(Resolved { digest, from }) => {
                let asked = pinning::pin_key(asked).to_string();
                // One tag may stand in several containers.
                if answers.images.iter().all(|image| image.asked != asked) {
                    answers.images.push(PinnedImage {
                        asked,
                        digest: digest.to_string(),
                        resolved_from: from.map(|place| place.to_string()),
                        resolved_at: Time(whole_seconds(SystemTime::now())),
                    });
                }
            }
            Err(verdict) => {
                let why = format!("its digest could not be looked up: {} is {verdict}", asked.host());
                answers.unresolved.push((asked.clone(), NotPinned(why)));
            }
        }
    }
    answers
}

fn whole_seconds(now: SystemTime) -> Timestamp {
    let now = Timestamp::try_from(now).unwrap_or_default();
    Timestamp::from_second(now.as_second()).unwrap_or(now)
}
