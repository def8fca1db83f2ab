//! Finds out which places are available, all at once, and stops as soon as the choice is clear.

use std::time::Duration;

use fairlead_domain::verdict::Verdict;
use fairlead_plan::admission::Planned;
use fairlead_plan::consistency;
use fairlead_plan::pod_record::{Difference, Route};
use fairlead_plan::routing::{Alternative, Alternatives, Decision};
use futures::future::join_all;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use super::Router;
use super::pull_secrets::PullSecrets;
use crate::admission::decide::PodRequest;
use crate::registries::ask::Question;
use crate::registries::verdicts::KnownVerdict;

/// A place that is known to have the image, and whose registry is checked first, has this time before the places after
/// it are asked. So while all is well, one registry is asked; when it is not, the others have answered by the time that
/// is known.
const HEAD_START: Duration = Duration::from_millis(100);

/// All that is asked about one image.
struct Inquiry<'a> {
    questions: &'a [Question<'a>],
    /// The place that is usable if its registry is alive. It has a head start before those after it.
    expected: Option<usize>,
    request: &'a PodRequest<'a>,
}

impl Router {
    /// The routes of all images, which wait concurrently.
    pub(super) async fn choose(
        &self,
        planned: &[Planned],
        secrets: &PullSecrets,
        request: &PodRequest<'_>,
        deadline: Instant,
    ) -> Vec<Route> {
        let mut routes = Vec::with_capacity(planned.len());
        let mut waiting = Vec::new();
        for image in planned {
            let Some(places) = image.to_ask() else {
                routes.push(image.kept());
                continue;
            };
            let mut verdicts = vec![None; places.list().len()];
            let (mut questions, expected) = self.look_up(places, secrets, request.namespace, &mut verdicts);
            match places.decide(&verdicts) {
                Decision::Wait => {
                    let position = routes.len();
                    // Its place is taken until the answer is there.
                    routes.push(Route::default());
                    if expected.is_some() {
                        let others = places.list().iter().skip(questions.len());
                        questions
                            .extend(others.map(|place| Question::new(place, secrets.credentials(place))));
                    }
                    waiting.push(async move {
                        let inquiry = Inquiry { questions: &questions, expected, request };
                        let decision = self.ask(places, &inquiry, &mut verdicts, deadline).await;
                        self.heed_refusals(places, &questions, &verdicts, secrets);
                        (position, self.route_of(image, decision, &verdicts, secrets))
                    });
                }
                decision => routes.push(self.route_of(image, decision, &verdicts, secrets)),
            }
        }
        for (position, route) in join_all(waiting).await {
            if let Some(place) = routes.get_mut(position) {
                *place = route;
            }
        }
        routes
    }

    /// The route, with what is known of places that hold something else.
    pub(super) fn route_of(
        &self,
        image: &Planned,
        decision: Decision,
        verdicts: &[Option<Verdict>],
        secrets: &PullSecrets,
    ) -> Route {
        let used = if let Decision::Use { index, .. } = &decision { Some(*index) } else { None };
        let differs = match (used, &image.places) {
            (Some(used), Ok(places)) => self.differences(places, used, verdicts, secrets),
            _ => Vec::new(),
        };
        Route { differs, ..image.route(decision, verdicts) }
    }

    /// Compares what is used with the places of which the digest happens to be known. No registry is asked for this.
    fn differences(
        &self,
        places: &Alternatives,
        used: usize,
        verdicts: &[Option<Verdict>],
        secrets: &PullSecrets,
    ) -> Vec<Difference> {
        let told = |index: usize| verdicts.get(index).and_then(Option::as_ref);
        if places.original().digest().is_some() || told(used).and_then(Verdict::digest).is_none() {
            return Vec::new();
        }
        let digest = |(index, place): (usize, &Alternative)| {
            if let Some(verdict) = told(index) {
                return verdict.digest();
            }
            let verdicts = self.context.verdicts.caused_by(place.cause());
            verdicts.known_digest(&place.reference, &secrets.credentials(place))
        };
        let digests: Vec<_> = places.list().iter().enumerate().map(digest).collect();
        let policies = self.context.policies.current();
        consistency::differences(places, used, &digests, |pair| self.context.claims.has_pair(pair, &policies))
    }

    /// Fills in what is known already, in order, up to the first that can be used, or that can be used if its registry
    /// is alive: the position of such a one is returned.
    fn look_up<'a>(
        &self,
        places: &'a Alternatives,
        secrets: &PullSecrets,
        namespace: &str,
        verdicts: &mut [Option<Verdict>],
    ) -> (Vec<Question<'a>>, Option<usize>) {
        let mut questions = Vec::with_capacity(places.list().len());
        let mut expected = None;
        for (position, (place, verdict)) in places.list().iter().zip(verdicts).enumerate() {
            let question = Question::new(place, secrets.credentials(place));
            let verdicts_of = self.context.verdicts.caused_by(question.cause);
            let known = verdicts_of.known(&place.reference, &question.credentials);
            let settled = match known {
                KnownVerdict::Verdict(known) => {
                    verdict.insert(self.context.judge(&question, namespace, known)).is_usable()
                }
                KnownVerdict::Unproven(_) => {
                    expected = Some(position);
                    true
                }
                KnownVerdict::Nothing => false,
            };
            questions.push(question);
            if settled {
                break;
            }
        }
        (questions, expected)
    }

    /// Asks about everything that is not known, until the choice is clear or the time is up.
    async fn ask(
        &self,
        places: &Alternatives,
        inquiry: &Inquiry<'_>,
        verdicts: &mut [Option<Verdict>],
        deadline: Instant,
    ) -> Decision {
        let Inquiry { questions, expected, request } = *inquiry;
        let disappointed = CancellationToken::new();
        let unknown = verdicts.iter().enumerate().filter(|(_, verdict)| verdict.is_none());
        let mut answers: FuturesUnordered<_> = unknown
            .filter_map(|(index, _)| Some((index, questions.get(index)?)))
            .map(|(index, question)| (index, question, disappointed.clone()))
            .map(|(index, question, disappointed)| async move {
                if expected.is_some_and(|expected| index > expected) {
                    // Either way it is time to ask.
                    let _ = timeout(HEAD_START, disappointed.cancelled()).await;
                }
                // The namespace has so many questions at once; those in line are answered when the first are.
                let _turn = request.share.probes.acquire().await;
                (index, self.context.ask(question, request.namespace, deadline).await)
            })
            .collect();
        while let Ok(Some((index, verdict))) = timeout_at(deadline, answers.next()).await {
            if let Some(place) = verdicts.get_mut(index) {
                *place = Some(verdict);
            }
            match places.decide(verdicts) {
                Decision::Wait if expected == Some(index) => disappointed.cancel(),
                Decision::Wait => {}
                decision => {
                    // Answers that are ready are taken along; the others are not waited for.
                    while let Some(Some((index, verdict))) = answers.next().now_or_never() {
                        if let Some(place) = verdicts.get_mut(index) {
                            *place = Some(verdict);
                        }
                    }
                    return decision;
                }
            }
        }
        for verdict in verdicts.iter_mut().filter(|verdict| verdict.is_none()) {
            *verdict = Some(Verdict::Unreachable { reason: "no answer in time".into() });
        }
        places.decide(verdicts)
    }

    /// A credential that a registry refuses may have been replaced since it was read.
    fn heed_refusals(
        &self,
        places: &Alternatives,
        questions: &[Question<'_>],
        verdicts: &[Option<Verdict>],
        secrets: &PullSecrets,
    ) {
        for ((place, question), verdict) in places.list().iter().zip(questions).zip(verdicts) {
            if matches!(verdict, Some(Verdict::Unauthorised { .. })) && !question.credentials.is_empty() {
                secrets.of(place).for_each(|name| self.context.secrets.distrust(name));
            }
        }
    }
}
