//! What admission would decide about a Pod, and all that it would decide by: for a person who asks.
//!
//! Observations and decisions are those of [`Router`]. Only, every place is asked about, nothing is written, and what
//! is known of the cluster is what the caller has the context learn.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use fairlead_domain::keyring::Credential;
use fairlead_domain::reference::Reference;
use fairlead_domain::verdict::Verdict;
use fairlead_plan::admission::Planned;
use fairlead_plan::pod_record::{Place, Route};
use fairlead_plan::pull_secrets::NotAdded;
use fairlead_plan::routing::{Alternative, Alternatives, Decision, Index, SecretName};
use fairlead_plan::warnings::Warnings;
use futures::future::{BoxFuture, join_all};
use hyper::{Request, Response, StatusCode};
use kube::Client;
use kube::client::Body;
use prometheus_client::registry::Registry;
use tokio::time::Instant;

use super::pin::Pinning;
use super::{Prepared, PullSecrets, Router};
use crate::admission::decide::{PodRequest, Subject};
use crate::admission::limits::Limits;
use crate::admission::review::{PodImage, PodObject};
use crate::admission::shares::Share;
use crate::cluster::state::Key;
use crate::cluster::watch::{self, Resources, Watches};
use crate::context::{Basis, Context};
use crate::platform::clock::Clock;
use crate::platform::config::Config;
use crate::registries::ask::Question;
use crate::registries::secrets::{Keys, Read};

/// Finds the credentials that a person has for an image.
pub type Login = Arc<dyn Fn(Reference) -> BoxFuture<'static, Vec<Credential>> + Send + Sync>;

/// How far admission goes.
#[derive(Clone)]
pub struct Scope {
    /// Registries are asked, and Secrets read for it.
    pub registries: bool,
    /// The ledgers of the cluster are known.
    pub ledgers: bool,
    /// Every place is asked about, also where there is nothing to choose from, and what is wrong with Secrets is said
    /// of the place.
    pub every_place: bool,
    /// For places that no Secret has credentials for.
    pub login: Option<Login>,
}

impl Default for Scope {
    fn default() -> Self {
        Self { registries: true, ledgers: true, every_place: false, login: None }
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scope").field("registries", &self.registries).finish_non_exhaustive()
    }
}

impl Scope {
    /// The places of an image to ask about.
    pub(super) fn to_ask<'a>(&self, image: &'a Planned) -> Option<&'a Alternatives> {
        if self.every_place { image.places.as_ref().ok() } else { image.to_ask() }
    }
}

/// The images of a Pod.
#[derive(Debug)]
pub struct Survey<'p> {
    pub images: Vec<SurveyedImage<'p>>,
    /// What the author of the Pod should know.
    pub remarks: Vec<String>,
}

#[derive(Debug)]
pub struct SurveyedImage<'p> {
    pub image: PodImage<'p>,
    pub planned: Planned,
    /// Whether its tag is to be held to a digest.
    pub is_pinned: bool,
    pub pinned_by: Option<PinnedBy>,
    /// As the plan has them; none where the image is not routed.
    pub places: Vec<SurveyedPlace>,
    pub decision: Decision,
    pub route: Route,
}

/// What names the digest that a tag is held to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PinnedBy {
    /// The Pod itself, which was pinned before.
    Pod,
    ImagePin(Key),
    /// A registry, now.
    Registry,
}

/// What was found out about one place. The default: nothing was asked.
#[derive(Debug, Default)]
pub struct SurveyedPlace {
    /// What the registry said, and what that counts as.
    pub verdicts: Option<(Verdict, Verdict)>,
    pub took: Duration,
    /// The Secrets that the credentials are from.
    pub holders: Vec<SecretName>,
    /// The credentials are the person's own.
    pub by_login: bool,
    /// Secrets that could not be used.
    pub unusable: Vec<(SecretName, Read)>,
    /// Secrets that the Pod does not get.
    pub withheld: Vec<(SecretName, NotAdded)>,
}

/// A context in which nothing runs. It knows these policies, and what else it is given.
pub fn context(
    client: Client,
    namespace: &str,
    config: Config,
    registries: fairlead_registry::Client,
    policies: Index,
) -> Arc<Context> {
    let resources = Resources::default();
    let board = Watches::new(client.clone(), namespace, &resources, None, watch::Metrics::default()).board;
    let (identity, namespace) = (String::new(), namespace.to_owned());
    let basis = Basis { client, identity, namespace, config, resources, board, clock: Clock::default() };
    let (context, _) = Context::with_registries(basis, registries, &mut Registry::default());
    context.policies.hold(policies);
    Arc::new(context)
}

/// A client for an API server that holds nothing.
pub fn no_cluster() -> Client {
    let nothing = tower::service_fn(|_: Request<Body>| async {
        let status =
            r#"{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404}"#;
        let mut response = Response::new(Body::from(status.as_bytes().to_vec()));
        *response.status_mut() = StatusCode::NOT_FOUND;
        Ok::<_, Infallible>(response)
    });
    Client::new(nothing, "default")
}

impl Router {
    #[must_use]
    pub fn within(self, scope: Scope) -> Self {
        Self { scope, ..self }
    }

    /// What would become of the images of a Pod that is created now; and of its ephemeral containers, if they were
    /// added now.
    pub async fn survey<'p>(&self, namespace: &str, pod: &'p PodObject<'p>, deadline: Instant) -> Survey<'p> {
        let (share, before) = (Share::new(&Limits::default()), PodObject::default());
        let request = |subject| PodRequest {
            namespace,
            subject,
            dry_run: true,
            pod,
            body_bytes: 0,
            share: &share,
            deadline,
        };
        let is_added = |image: &PodImage<'_>| matches!(image.place, Place::Ephemeral(_));
        let (added, created): (Vec<_>, Vec<_>) = pod.images().into_iter().partition(is_added);
        let mut survey = self.survey_images(&request(Subject::NewPod), created).await;
        if !added.is_empty() {
            let subject = Subject::EphemeralContainers { before: &before };
            let added = self.survey_images(&request(subject), added).await;
            let volumes = survey.images.iter().position(|one| matches!(one.image.place, Place::Volume(_)));
            let at = volumes.unwrap_or(survey.images.len());
            survey.images.splice(at..at, added.images);
            survey.remarks.extend(added.remarks);
        }
        survey
    }

    async fn survey_images<'p>(&self, request: &PodRequest<'_>, images: Vec<PodImage<'p>>) -> Survey<'p> {
        let mut warnings = Warnings::default();
        let prepared = self.prepare(request, &images, request.deadline, &mut warnings).await;
        let Prepared { planned, secrets, pinning } = prepared;
        let asked = planned.iter().map(|image| self.ask_every_place(image, &secrets, request));
        let places = join_all(asked).await;
        let images = images.into_iter().zip(planned).zip(places).enumerate();
        let images = images.map(|(position, ((image, planned), places))| {
            let counting = |place: &SurveyedPlace| place.verdicts.as_ref().map(|(_, counts)| counts.clone());
            let verdicts: Vec<_> = places.iter().map(counting).collect();
            let decision = planned.places.as_ref().map_or(Decision::Wait, |places| places.decide(&verdicts));
            let route = self.route_of(&planned, decision.clone(), &verdicts, &secrets);
            let pinned_by = self.pinned_by(&planned, pinning.as_ref(), position);
            SurveyedImage { is_pinned: pinning.is_some(), image, planned, pinned_by, places, decision, route }
        });
        Survey { images: images.collect(), remarks: warnings.remarks() }
    }

    async fn ask_every_place(
        &self,
        image: &Planned,
        secrets: &PullSecrets,
        request: &PodRequest<'_>,
    ) -> Vec<SurveyedPlace> {
        let places = image.places.as_ref().ok().filter(|places| places.is_routed());
        let asked = places.map(Alternatives::list).unwrap_or_default().iter().map(|place| async move {
            if !self.scope.registries {
                return SurveyedPlace::default();
            }
            let question = Question::new(place, secrets.credentials(place));
            let begun = Instant::now();
            let verdicts = self.context.verdicts.caused_by(question.cause);
            let (credentials, until) = (&question.credentials, request.deadline);
            let said = verdicts.ask(&place.reference, credentials, request.namespace, until).await;
            let took = begun.elapsed();
            let counts = self.context.judge(&question, request.namespace, said.clone());
            let mut found = SurveyedPlace { verdicts: Some((said, counts)), took, ..secrets.used_for(place) };
            found.by_login = found.holders.is_empty() && !question.credentials.is_empty();
            found
        });
        join_all(asked).await
    }

    fn pinned_by(&self, image: &Planned, pinning: Option<&Pinning>, position: usize) -> Option<PinnedBy> {
        image.pin?;
        let Some(Pinning { revision, open }) = pinning else { return Some(PinnedBy::Pod) };
        if open.iter().any(|(one, _)| *one == position) {
            return Some(PinnedBy::Registry);
        }
        let known = revision.as_ref().zip(image.places.as_ref().ok()).filter(|((key, revision), places)| {
            self.context.pins.known(key, revision).digest(places.original()) == image.pin
        });
        Some(known.map_or(PinnedBy::Pod, |((key, _), _)| PinnedBy::ImagePin(key.clone())))
    }

    /// Adds the person's own credentials, where no Secret has any.
    pub(super) async fn add_logins(&self, places: &[&Alternative], secrets: &mut PullSecrets) {
        let Some(login) = &self.scope.login else { return };
        for place in places {
            let repository = place.reference.repository();
            if !secrets.logins.contains_key(&repository) && secrets.credentials(place).is_empty() {
                secrets.logins.insert(repository, login(place.reference.clone()).await);
            }
        }
    }
}

impl PullSecrets {
    /// Which Secrets count for a place, and which do not.
    fn used_for(&self, place: &Alternative) -> SurveyedPlace {
        let mut used = SurveyedPlace::default();
        let of_pod = self.pod.iter().map(|(name, read)| (name, read));
        let of_policies = place.secrets.iter().filter_map(|one| self.policies.get_key_value(&one.secret));
        let others = of_policies.filter(|(name, _)| self.pod.iter().all(|(own, _)| own != *name));
        for (name, read) in of_pod.chain(others) {
            match read.keys() {
                None => used.unusable.push((name.clone(), read.clone())),
                Some(keys) if Keys::lookup([&**keys], &place.reference.repository()).is_empty() => {}
                Some(_) => used.holders.push(name.clone()),
            }
        }
        let concerns = |name: &SecretName| place.secrets.iter().any(|one| one.secret == *name);
        used.withheld = self.withheld.iter().filter(|(name, _)| concerns(name)).cloned().collect();
        used
    }
}
