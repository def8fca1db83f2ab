//! What each image is pulled as: what a Pod would be given under the cluster-scoped policies.
//!
//! It is decided when an image comes or is edited, when a policy changes, and when the planner asks because a pull is
//! due. What registries say in between changes nothing, so a registry that comes and goes does not have images pulled
//! again and again.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use fairlead_api::drop::CachedImage;
use fairlead_domain::keyring::Credential;
use fairlead_domain::platform::Platform;
use fairlead_domain::reference::{Host, Reference};
use fairlead_plan::admission;
use fairlead_plan::pull_secrets::Place;
use fairlead_plan::routing::{Alternative, Decision, PodFacts, Rules, SecretName, judge};
use fairlead_plan::warm::{Routed, asked};
use fairlead_registry::manifest::{Content, Selector};
use fairlead_registry::{Class, Context as CallContext, Right};
use futures::future::join_all;
use jiff::Timestamp;
use tokio::time::Instant;

use super::namespace;
use crate::cluster::usage::{AnnotationsOf, LabelsOf};
use crate::context::Context;
use crate::controller::Inflight;
use crate::registries::secrets::Keys;
use crate::registries::verdicts::NodeTrust;

/// Images that are decided about at once.
const AT_ONCE: usize = 8;
/// Time for all places of one image.
const PATIENCE: Duration = Duration::from_secs(10);
/// As most Pods have it. The order of places depends on it.
const PULL_POLICY: &str = "IfNotPresent";

/// What an image asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Question {
    reference: Reference,
    secrets: Vec<String>,
    /// Of the policies that decide.
    generation: u64,
}

/// What was decided about one image.
struct Decided {
    routed: Routed,
    /// Copies of pull secrets that its Pods need.
    copies: Vec<Place>,
}

/// The decisions about all images.
pub(super) struct Routes {
    context: Arc<Context>,
    questions: HashMap<Arc<str>, Question>,
    /// Images that have to be decided about.
    open: BTreeSet<Arc<str>>,
    deciding: Inflight<Arc<str>, (Question, Decided)>,
    under_way: HashSet<Arc<str>>,
    decided: HashMap<Arc<str>, Routed>,
    copies: HashMap<Arc<str>, Vec<Place>>,
    hosts: HashMap<Arc<str>, Host>,
}

impl Routes {
    pub(super) fn new(context: Arc<Context>) -> Self {
        Self {
            context,
            questions: HashMap::new(),
            open: BTreeSet::new(),
            deciding: Inflight::new(AT_ONCE),
            under_way: HashSet::new(),
            decided: HashMap::new(),
            copies: HashMap::new(),
            hosts: HashMap::new(),
        }
    }

    /// By UID of the image.
    pub(super) fn decided(&self) -> &HashMap<Arc<str>, Routed> {
        &self.decided
    }

    /// Registries that images are pulled from.
    pub(super) fn hosts(&self) -> impl Iterator<Item = &Host> {
        self.hosts.values()
    }

    /// Takes up images that are new, edited or gone, and policies that changed.
    pub(super) fn observe(&mut self, images: &[Arc<CachedImage>], now: Timestamp) {
        let generation = self.context.policies.generation();
        let mut present = HashSet::with_capacity(images.len());
        for image in images.iter().filter(|image| image.metadata.deletion_timestamp.is_none()) {
            let Some(uid) = image.metadata.uid.as_deref() else { continue };
            present.insert(uid);
            let spec = &image.spec;
            let reference = match asked(&spec.image, spec.tag.as_deref(), spec.digest.as_deref()) {
                Ok(reference) => reference,
                Err(error) => {
                    let known = self.decided.get(uid).is_some_and(|routed| routed.reference.is_err());
                    if !known {
                        let reference = Err(error.to_string().into());
                        self.settle(
                            uid.into(),
                            Routed {
                                reference,
                                platforms: [].into(),
                                pull_secrets: [].into(),
                                planned_at: now,
                            },
                        );
                    }
                    self.questions.remove(uid);
                    continue;
                }
            };
            let secrets = spec.image_pull_secrets.iter().map(|secret| secret.name.clone()).collect();
            let question = Question { reference, secrets, generation };
            let before = self.questions.get(uid);
            if before == Some(&question) {
                continue;
            }
            let uid: Arc<str> = uid.into();
            if before.is_none_or(|before| before.reference != question.reference) {
                self.decided.remove(&uid);
            }
            self.questions.insert(uid.clone(), question);
            self.open.insert(uid);
        }
        if self.questions.len() + self.decided.len() > 2 * present.len() {
            self.questions.retain(|uid, _| present.contains(&**uid));
            self.decided.retain(|uid, _| present.contains(&**uid));
            self.hosts.retain(|uid, _| present.contains(&**uid));
            self.copies.retain(|uid, _| present.contains(&**uid));
            self.open.retain(|uid| present.contains(&**uid));
            self.keep_copies();
        }
        self.go_on();
    }

    /// A pull of the image is due.
    pub(super) fn decide_again(&mut self, image: &Arc<str>) {
        if self.questions.contains_key(image) {
            self.open.insert(image.clone());
            self.go_on();
        }
    }

    fn go_on(&mut self) {
        let waiting = self.open.iter().filter(|uid| !self.under_way.contains(*uid));
        let free = AT_ONCE.saturating_sub(self.deciding.len());
        let next: Vec<_> = waiting.take(free).cloned().collect();
        for uid in next {
            self.open.remove(&uid);
            let Some(question) = self.questions.get(&uid).cloned() else { continue };
            let (context, before) = (self.context.clone(), self.decided.get(&uid).cloned());
            self.under_way.insert(uid.clone());
            self.deciding.start(uid, async move {
                let decided = decide(&context, &question, before).await;
                (question, decided)
            });
        }
    }

    /// Takes up the next decision.
    pub(super) async fn next(&mut self) {
        let (uid, outcome) = self.deciding.next().await;
        self.under_way.remove(&uid);
        match outcome {
            // One about what was asked before an edit is made again.
            Some((question, _)) if self.questions.get(&uid) != Some(&question) => {}
            Some((_, Decided { routed, copies })) => {
                self.copies.insert(uid.clone(), copies);
                self.keep_copies();
                self.settle(uid, routed);
            }
            None if self.questions.contains_key(&uid) => _ = self.open.insert(uid),
            None => {}
        }
        self.go_on();
    }

    fn settle(&mut self, uid: Arc<str>, routed: Routed) {
        match &routed.reference {
            Ok(reference) => _ = self.hosts.insert(uid.clone(), reference.host()),
            Err(_) => _ = self.hosts.remove(&uid),
        }
        self.decided.insert(uid, routed);
    }

    /// Copies stay while an image needs them, and not only while a Pod does.
    fn keep_copies(&self) {
        self.context.copies.keep_for_pulls(self.copies.values().flatten().cloned().collect());
    }
}

/// Decides about one image.
async fn decide(context: &Context, question: &Question, before: Option<Routed>) -> Decided {
    let deadline = Instant::now() + PATIENCE;
    let own = secrets_of(context, question, deadline).await;
    let index = context.policies.current();
    let routing = &context.config.routing;
    let rules = Rules {
        rewrite_on_never: routing.rewrite_on_never_image_pull_policy,
        honor_priorities_on_always: routing.honor_priorities_on_always_image_pull_policy,
    };
    let planned = {
        // No namespaced policy and no selector of Pods is about this one.
        let facts = PodFacts { namespace: "", labels: &LabelsOf(&[]), annotations: &AnnotationsOf(&[]) };
        let foreign = |source: &_, copy: &_| context.claims.refuses(source, copy, &index);
        let policies = index.for_pod(&facts);
        admission::plan(&policies, question.reference.as_str(), None, Some(PULL_POLICY), &rules, foreign)
    };
    let mut chosen = Chosen::original(question, &own);
    if let Some(places) = planned.to_ask() {
        let trust = NodeTrust::from(&context.config);
        let asked = places.list().iter().map(|place| ask(context, place, &own, &trust, deadline));
        let answers = join_all(asked).await;
        let verdicts: Vec<_> = answers.iter().map(|answer| Some(answer.verdict.clone())).collect();
        if let Decision::Use { index, .. } = places.decide(&verdicts)
            && let Some((place, answer)) = places.list().get(index).zip(answers.into_iter().nth(index))
        {
            let Answer { credentials, pull_secrets, copies, .. } = answer;
            chosen = Chosen { reference: place.reference.clone(), credentials, pull_secrets, copies };
        }
    }
    let Chosen { reference, credentials, pull_secrets, copies } = chosen;
    let known = before.filter(|before| before.reference.as_ref() == Ok(&reference));
    let platforms = match known.map(|before| before.platforms).filter(|platforms| !platforms.is_empty()) {
        // Registries count a manifest that is read as a pull.
        Some(platforms) => platforms,
        None => platforms(context, &reference, credentials, deadline).await,
    };
    let routed = Routed {
        reference: Ok(reference),
        platforms,
        pull_secrets: pull_secrets.into(),
        planned_at: Timestamp::now(),
    };
    Decided { routed, copies }
}

struct Chosen {
    reference: Reference,
    credentials: Vec<Credential>,
    pull_secrets: Vec<Arc<str>>,
    copies: Vec<Place>,
}

impl Chosen {
    fn original(question: &Question, own: &[Arc<Keys>]) -> Self {
        let repository = question.reference.repository();
        Self {
            reference: question.reference.clone(),
            credentials: Keys::lookup(own.iter().map(Arc::as_ref), &repository),
            pull_secrets: Vec::new(),
            copies: Vec::new(),
        }
    }
}

/// What is known of one place.
struct Answer {
    verdict: fairlead_domain::verdict::Verdict,
    credentials: Vec<Credential>,
    pull_secrets: Vec<Arc<str>>,
    copies: Vec<Place>,
}

/// Asks about a place as the kubelet will: with the Secrets that the pull Pod can have.
async fn ask(
    context: &Context,
    place: &Alternative,
    own: &[Arc<Keys>],
    trust: &NodeTrust,
    deadline: Instant,
) -> Answer {
    let namespace = namespace(context);
    let (mut keys, mut pull_secrets, mut copies) = (own.to_vec(), Vec::new(), Vec::new());
    for used in &place.secrets {
        let Ok(name) = context.copies.ensure(used, namespace, deadline).await else { continue };
        if let Some(found) = context.secrets.read(&used.secret, deadline).await.keys() {
            keys.push(found.clone());
        }
        let name: Arc<str> = name.into();
        if *namespace != *used.secret.namespace {
            copies.push(Place { namespace: namespace.into(), name: name.clone() });
        }
        pull_secrets.push(name);
    }
    let credentials = Keys::lookup(keys.iter().map(Arc::as_ref), &place.reference.repository());
    let verdicts = context.verdicts.caused_by(place.cause());
    let verdict = verdicts.ask(&place.reference, &credentials, namespace, deadline).await;
    let trusted = trust.trust_node_credentials(&place.reference.host());
    let verdict = judge(place.is_original(), verdict, !credentials.is_empty(), trusted);
    Answer { verdict, credentials, pull_secrets, copies }
}

/// The Secrets that the image itself names. One that cannot be used is the kubelet's to complain about.
async fn secrets_of(context: &Context, question: &Question, deadline: Instant) -> Vec<Arc<Keys>> {
    let namespace: Arc<str> = namespace(context).into();
    let names = question
        .secrets
        .iter()
        .map(|name| SecretName { namespace: namespace.clone(), name: name.as_str().into() });
    let names: Vec<_> = names.collect();
    let reads = join_all(names.iter().map(|name| context.secrets.read(name, deadline))).await;
    reads.iter().filter_map(|read| read.keys().cloned()).collect()
}

/// The platforms that the image is for. None are known of an image that is not an index, or that cannot be read.
async fn platforms(
    context: &Context,
    reference: &Reference,
    credentials: Vec<Credential>,
    deadline: Instant,
) -> Arc<[Platform]> {
    let read = async {
        let repository = context.registries.repository(&reference.repository(), credentials, Right::Pull)?;
        let call = CallContext::new(Class::Background, deadline);
        repository.manifest(&Selector::of(reference), &call).await?.content()
    };
    match read.await {
        Ok(Content::Index(index)) => index.platforms().cloned().collect(),
        Ok(Content::Image(_)) => [].into(),
        Err(error) => {
            tracing::debug!(%reference, %error, "platforms of an image to be warmed are not known");
            [].into()
        }
    }
}
