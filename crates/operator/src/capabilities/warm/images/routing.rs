//! What each image is pulled as: what a Pod would be given under the cluster-scoped policies.
//!
//! It is decided when an image comes or is edited, when policies give it other places, and when the planner asks
//! because a pull is due. What registries say in between changes nothing, so a registry that comes and goes does not
//! have images pulled again and again.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use fairlead_api::drop::CachedImage;
use fairlead_domain::cause::Cause;
use fairlead_domain::digest::Digest;
use fairlead_domain::keyring::{Credential, CredentialId};
use fairlead_domain::platform::Platform;
use fairlead_domain::reference::{Host, Reference};
use fairlead_plan::admission;
use fairlead_plan::pull_secrets::{CopyPlace, NotAdded, OfferedSecret, Receiver};
use fairlead_plan::routing::{Alternative, Decision, PodFacts};
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
use crate::registries::ask;
use crate::registries::secrets::PullKeys;

/// Images that are decided about at once.
const AT_ONCE: usize = 8;
/// Time for all places of one image.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time for finding out whether a registry is alive.
const CHECK: Duration = Duration::from_secs(3);
/// As most Pods have it. The order of places depends on it.
const PULL_POLICY: &str = "IfNotPresent";

/// What an image asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
struct RouteQuestion {
    reference: Reference,
    secrets: Vec<String>,
    /// Of the policies that decide.
    generation: u64,
}

/// Where an image is pulled from, and as whom: registries limit accounts.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) host: Host,
    pub(super) account: Option<CredentialId>,
}

/// What was decided about one image.
struct Decided {
    routed: Routed,
    account: Option<CredentialId>,
    /// Copies of pull secrets that its Pods need.
    copies: Vec<CopyPlace>,
    basis: Basis,
}

/// What a decision was made with.
#[derive(Debug, Clone)]
struct Basis {
    /// The places that were asked. None, if there is only one.
    places: Vec<Alternative>,
    /// The digest that the image had when its platforms were read, if that is known.
    digest: Option<Digest>,
    platforms_known: bool,
}

/// The decisions about all images.
pub(super) struct Routes {
    context: Arc<Context>,
    questions: HashMap<Arc<str>, RouteQuestion>,
    /// Images that have to be decided about.
    open: BTreeSet<Arc<str>>,
    /// Those among them that registries have to be asked about, even if there are the same places as before.
    due: HashSet<Arc<str>>,
    /// The question, whether it was due, and the answer.
    deciding: Inflight<Arc<str>, (RouteQuestion, bool, Option<Decided>)>,
    decided: HashMap<Arc<str>, Routed>,
    bases: HashMap<Arc<str>, Basis>,
    copies: HashMap<Arc<str>, Vec<CopyPlace>>,
    sources: HashMap<Arc<str>, Source>,
}

impl Routes {
    pub(super) fn new(context: Arc<Context>) -> Self {
        Self {
            context,
            questions: HashMap::new(),
            open: BTreeSet::new(),
            due: HashSet::new(),
            deciding: Inflight::new(AT_ONCE),
            decided: HashMap::new(),
            bases: HashMap::new(),
            copies: HashMap::new(),
            sources: HashMap::new(),
        }
    }

    /// By UID of the image.
    pub(super) fn decided(&self) -> &HashMap<Arc<str>, Routed> {
        &self.decided
    }

    /// Where images are pulled from, by UID.
    pub(super) fn sources(&self) -> impl Iterator<Item = (&Arc<str>, &Source)> {
        self.sources.iter()
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
                                places: [].into(),
                                platforms: [].into(),
                                pull_secrets: [].into(),
                                secret_problem: None,
                                planned_at: now,
                            },
                            None,
                        );
                    }
                    self.questions.remove(uid);
                    continue;
                }
            };
            let secrets = spec.image_pull_secrets.iter().map(|secret| secret.name.clone()).collect();
            let question = RouteQuestion { reference, secrets, generation };
            let before = self.questions.get(uid);
            if before == Some(&question) {
                continue;
            }
            let uid: Arc<str> = uid.into();
            if before.is_none_or(|before| before.reference != question.reference) {
                self.decided.remove(&uid);
            }
            if before.is_none_or(|before| before.secrets != question.secrets) {
                self.due.insert(uid.clone());
            }
            self.questions.insert(uid.clone(), question);
            self.open.insert(uid);
        }
        if self.questions.len() + self.decided.len() > 2 * present.len() {
            self.questions.retain(|uid, _| present.contains(&**uid));
            self.decided.retain(|uid, _| present.contains(&**uid));
            self.sources.retain(|uid, _| present.contains(&**uid));
            self.copies.retain(|uid, _| present.contains(&**uid));
            self.open.retain(|uid| present.contains(&**uid));
            self.due.retain(|uid| present.contains(&**uid));
            self.bases.retain(|uid, _| present.contains(&**uid));
            self.keep_copies();
        }
        self.go_on();
    }

    /// A pull of the image is due.
    pub(super) fn decide_again(&mut self, image: &Arc<str>) {
        if self.questions.contains_key(image) {
            self.open.insert(image.clone());
            self.due.insert(image.clone());
            self.go_on();
        }
    }

    fn go_on(&mut self) {
        let waiting = self.open.iter().filter(|uid| !self.deciding.contains(*uid));
        let free = AT_ONCE.saturating_sub(self.deciding.len());
        let next: Vec<_> = waiting.take(free).cloned().collect();
        for uid in next {
            self.open.remove(&uid);
            let Some(question) = self.questions.get(&uid).cloned() else { continue };
            let before = self.decided.get(&uid).cloned().zip(self.bases.get(&uid).cloned());
            let (context, due) = (self.context.clone(), self.due.remove(&uid));
            self.deciding.start(uid, async move {
                let decided = decide(&context, &question, before, due).await;
                (question, due, decided)
            });
        }
    }

    /// Takes up the next decision.
    pub(super) async fn next(&mut self) {
        let (uid, outcome) = self.deciding.next().await;
        match outcome {
            // One about what was asked before an edit is made again, and asks registries if this one was to.
            Some((question, due, _)) if self.questions.get(&uid) != Some(&question) => {
                self.due.extend(due.then_some(uid));
            }
            Some((_, _, Some(Decided { routed, account, copies, basis }))) => {
                self.copies.insert(uid.clone(), copies);
                self.bases.insert(uid.clone(), basis);
                self.keep_copies();
                self.settle(uid, routed, account);
            }
            None if self.questions.contains_key(&uid) => {
                self.due.insert(uid.clone());
                self.open.insert(uid);
            }
            // What was decided stands, or the image is gone.
            Some((_, _, None)) | None => {}
        }
        self.go_on();
    }

    fn settle(&mut self, uid: Arc<str>, routed: Routed, account: Option<CredentialId>) {
        match &routed.reference {
            Ok(reference) => {
                self.sources.insert(uid.clone(), Source { host: reference.host(), account });
            }
            Err(_) => _ = self.sources.remove(&uid),
        }
        self.decided.insert(uid, routed);
    }

    /// Copies stay while an image needs them, and not only while a Pod does.
    fn keep_copies(&self) {
        self.context.copies.keep_for_pulls(self.copies.values().flatten().cloned().collect());
    }
}

/// Decides about one image. None: policies changed, and nothing about this image did. What registries say in that
/// moment would have it pulled anew onto all nodes.
async fn decide(
    context: &Context,
    question: &RouteQuestion,
    before: Option<(Routed, Basis)>,
    due: bool,
) -> Option<Decided> {
    let deadline = Instant::now() + PATIENCE;
    let names = question.secrets.iter().map(|name| name.as_str().into());
    let own = context.secrets.pull_keys(&namespace(context).into(), names, deadline).await;
    let (index, rules) = (context.policies.current(), context.config.routing.rules());
    let planned = {
        // No namespaced policy and no selector of Pods is about this one.
        let facts = PodFacts { namespace: "", labels: &LabelsOf(&[]), annotations: &AnnotationsOf(&[]) };
        let foreign = |source: &_, copy: &_| context.claims.refuses(source, copy, &index);
        let policies = index.for_pod(&facts);
        admission::plan(&policies, question.reference.as_str(), None, Some(PULL_POLICY), &rules, foreign)
    };
    let places = planned.to_ask().map(|places| places.list().to_vec()).unwrap_or_default();
    if !due && before.as_ref().is_some_and(|(_, basis)| basis.places == places) {
        return None;
    }
    let (mut chosen, mut secret_problem) = (Chosen::original(question, &own), None);
    if let Some(places) = planned.to_ask() {
        let asked = places.list().iter().map(|place| ask(context, question, place, &own, deadline));
        let answers = join_all(asked).await;
        secret_problem = answers.iter().find_map(|answer| answer.secret_problem.clone());
        let verdicts: Vec<_> = answers.iter().map(|answer| Some(answer.verdict.clone())).collect();
        if let Decision::Use { index, .. } = places.decide(&verdicts)
            && let Some((place, answer)) = places.list().get(index).zip(answers.into_iter().nth(index))
        {
            let Answer { credentials, pull_secrets, copies, .. } = answer;
            chosen = Chosen { reference: place.reference.clone(), credentials, pull_secrets, copies };
        }
    }
    let Chosen { reference, credentials, pull_secrets, copies } = chosen;
    // The first that fits is what a kubelet tries first.
    let account = credentials.first().map(Credential::id);
    let known = before.filter(|(before, _)| before.reference.as_ref() == Ok(&reference));
    if known.is_some() && places.is_empty() {
        find_out(context, &reference, &credentials, deadline).await;
    }
    let digest = context.verdicts.known_digest(&reference, &credentials);
    let (known, read) = known.map_or((None, None), |(before, basis)| (Some(before.platforms), Some(basis)));
    // Registries count a manifest that is read as a pull, so it is read again only when it is another.
    let stands = read.filter(|basis| basis.platforms_known && (digest.is_none() || basis.digest == digest));
    let platforms = match (known.clone(), stands) {
        (Some(platforms), Some(_)) => Some(platforms),
        _ => platforms(context, &reference, credentials, deadline).await,
    };
    let platforms_known = platforms.is_some();
    let routed = Routed {
        reference: Ok(reference),
        places: places.iter().map(|place| place.reference.clone()).collect(),
        platforms: platforms.or(known).unwrap_or_default(),
        pull_secrets: pull_secrets.into(),
        secret_problem,
        planned_at: Timestamp::now(),
    };
    let basis = Basis { places, digest, platforms_known };
    Some(Decided { routed, account, copies, basis })
}

/// Asks the only registry that an image can come from, so that its circuit breaker and its quota know how it is: pulls
/// failed, or are about to begin. What it says about the image is the kubelet's to find out.
async fn find_out(context: &Context, reference: &Reference, credentials: &[Credential], deadline: Instant) {
    let host = reference.host();
    if let Some(check) = context.registries.check(&host, Cause::Administrator, CHECK) {
        check.ended(CHECK, deadline).await;
    }
    if context.registries.is_down(&host).is_none() {
        let _ = context.verdicts.ask_anew(reference, credentials, namespace(context), deadline).await;
    }
}

struct Chosen {
    reference: Reference,
    credentials: Vec<Credential>,
    pull_secrets: Vec<Arc<str>>,
    copies: Vec<CopyPlace>,
}

impl Chosen {
    fn original(question: &RouteQuestion, own: &PullKeys) -> Self {
        Self {
            reference: question.reference.clone(),
            credentials: own.credentials(&question.reference),
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
    copies: Vec<CopyPlace>,
    /// Why one of the Secrets cannot be had.
    secret_problem: Option<Arc<str>>,
}

/// Asks about a place as the kubelet will: with the Secrets that the pull Pod can have.
async fn ask(
    context: &Context,
    question: &RouteQuestion,
    place: &Alternative,
    own: &PullKeys,
    deadline: Instant,
) -> Answer {
    let namespace = namespace(context);
    let (mut keys, mut pull_secrets, mut copies) = (own.clone(), Vec::new(), Vec::new());
    let mut secret_problem: Option<Arc<str>> = None;
    // Pull Pods name no account.
    let permitted = context.accounts.permitted(namespace, "");
    let pod = Receiver { present: &question.secrets, exists: false, permitted: permitted.as_deref() };
    for OfferedSecret { used, given, .. } in context.copies.offered(&place.secrets, namespace, &pod) {
        if let Err(NotAdded::NotPermitted) = given {
            let why = format!("pull secret of {}: {}", used.by, NotAdded::NotPermitted);
            secret_problem.get_or_insert_with(|| why.into());
            continue;
        }
        let name = match context.copies.ensure(used, namespace, deadline).await {
            Ok(name) => name,
            Err(error) => {
                secret_problem.get_or_insert_with(|| error.to_string().into());
                continue;
            }
        };
        keys.push(&context.secrets.read(&used.secret, deadline).await);
        let name: Arc<str> = name.into();
        if *namespace != *used.secret.namespace {
            copies.push(CopyPlace { namespace: namespace.into(), name: name.clone() });
        }
        pull_secrets.push(name);
    }
    let question = ask::Question::new(place, keys.credentials(&place.reference));
    let verdict = context.ask(&question, namespace, deadline).await;
    Answer { verdict, credentials: question.credentials, pull_secrets, copies, secret_problem }
}

/// The platforms that the image is for. Of an image that is not an index there are none; one that cannot be read has to
/// be read again.
async fn platforms(
    context: &Context,
    reference: &Reference,
    credentials: Vec<Credential>,
    deadline: Instant,
) -> Option<Arc<[Platform]>> {
    let read = async {
        let repository = context.registries.repository(&reference.repository(), credentials, Right::Pull)?;
        let call = CallContext::new(Class::Background, deadline);
        repository.manifest(&Selector::of(reference), &call).await?.content()
    };
    match read.await {
        Ok(Content::Index(index)) => Some(index.platforms().cloned().collect()),
        Ok(Content::Image(_)) => Some([].into()),
        Err(error) => {
            tracing::debug!(%reference, %error, "platforms of an image to be warmed are not known");
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use fairlead_plan::node_failures::NodeFailure;
    use fairlead_plan::pull_failure::PullFailure;
    use fairlead_plan::routing::{Index, Policy};
    use fairlead_testkit::{fake_registry::FakeRegistry, images, operator::with_registries};
    use serde_json::json;

    use super::*;
    use crate::admission::survey;
    use crate::platform::config::Config;
    use crate::registries::verdicts;

    #[tokio::test]
    async fn what_nodes_cannot_pull_is_not_warmed() {
        fairlead_testkit::install_crypto();
        let image = images::empty().unwrap();
        let (first, second) = (FakeRegistry::start().await.unwrap(), FakeRegistry::start().await.unwrap());
        let upstreams = [&first, &second].map(|registry| {
            registry.hold("team/app", "1", &image);
            json!({"registry": registry.host(), "path": "/team", "imageFilter": {"include": ["/team/.*"]}})
        });
        let set = json!({"metadata": {"name": "replicas", "uid": "u"}, "spec": {"upstreams": upstreams}});
        let policy = Policy::cluster_replicated(&serde_json::from_value(set).unwrap()).unwrap();
        let config = Config::parse(&with_registries("")).unwrap().config;
        let (registries, policies) = (verdicts::client(&config), Index::new([Arc::new(policy)]));
        let context = survey::context(survey::no_cluster(), "fairlead-system", config, registries, policies);
        let place =
            |registry: &FakeRegistry| Reference::parse(&format!("{}/team/app:1", registry.host())).unwrap();
        let question = RouteQuestion { reference: place(&first), secrets: Vec::new(), generation: 1 };
        let warmed = async || decide(&context, &question, None, true).await.unwrap().routed.reference;

        assert_eq!(warmed().await, Ok(place(&first)));
        for (namespace, node) in [("a", "n1"), ("b", "n2")] {
            let (namespace, credentials, node) = (namespace.into(), [].into(), node.into());
            let (failure, at) = (PullFailure::NotFound, Timestamp::now());
            let failure = NodeFailure { namespace, credentials, node, failure, at };
            context.node_failures.learn(&place(&first), failure);
        }
        assert_eq!(warmed().await, Ok(place(&second)), "routing passes the first over");
    }
}
