//! Asks registries about every alternative of every image, all at once and under one deadline, and lets the planner
//! choose as it does at admission.

use std::collections::BTreeSet;
use std::time::Duration;

use fairlead_domain::verdict::Verdict;
use fairlead_operator::cluster::ledgers::Claims;
use fairlead_operator::platform::config::Config;
use fairlead_operator::registries::verdicts::NodeTrust;
use fairlead_plan::consistency;
use fairlead_plan::node_failures::NodeFailures;
use fairlead_plan::routing::{self, Alternative, Decision, Index, Origin, SecretName};
use fairlead_registry::{Class, Client, Context, ProbeOptions};
use futures::future::join_all;
use jiff::Timestamp;
use tokio::time::Instant;

use super::planning::Planned;
use super::report::{AlternativeReport, Availability, Choice, ImageReport, Source};
use super::secrets::{Found, Needed, Secrets};
use crate::access::hint;
use crate::output::one_line;

/// Who asks registries.
pub(crate) struct Asker<'a> {
    /// None: nobody does.
    pub(crate) client: Option<Client>,
    pub(crate) timeout: Duration,
    pub(crate) config: &'a Config,
    pub(crate) secrets: &'a Secrets,
    pub(crate) index: &'a Index,
    /// What nodes could not pull.
    pub(crate) failures: &'a NodeFailures,
    /// What the ledgers of the cluster say of copies, if they were read.
    pub(crate) ledgers: Option<&'a Claims>,
}

/// What a registry said about one alternative.
struct Answer {
    /// None if it was not asked.
    said: Option<Verdict>,
    /// As it counts in the decision.
    judged: Option<Verdict>,
    took: Duration,
    found: Found,
}

/// Every Secret that some alternative is pulled with.
pub(crate) fn needed_secrets(
    planned: &[Planned<'_>],
    secrets: &Secrets,
    config: &Config,
) -> BTreeSet<SecretName> {
    let places = planned.iter().filter_map(|one| Some((one, one.places()?.list())));
    places
        .flat_map(|(one, places)| places.iter().map(|place| needed(one, place, secrets, config)))
        .flat_map(|needed| needed.names)
        .collect()
}

fn needed(planned: &Planned<'_>, place: &Alternative, secrets: &Secrets, config: &Config) -> Needed {
    secrets.needed(planned.subject, planned.image.role, place, config.routing.pull_secrets.copy)
}

impl Asker<'_> {
    /// The reports, complete.
    pub(crate) async fn ask(&self, planned: Vec<Planned<'_>>) -> Vec<ImageReport> {
        let deadline = Instant::now() + self.timeout;
        let complete = planned.into_iter().map(|one| self.complete(one, deadline));
        join_all(complete).await
    }

    async fn complete(&self, mut planned: Planned<'_>, deadline: Instant) -> ImageReport {
        let Some(places) = planned.places() else { return planned.report };
        let asked = places.list().iter().map(|place| self.ask_one(&planned, place, deadline));
        let answers = join_all(asked).await;
        let verdicts: Vec<_> = answers.iter().map(|answer| answer.judged.clone()).collect();
        let decision = places.decide(&verdicts);
        let digests: Vec<_> =
            verdicts.iter().map(|verdict| verdict.as_ref().and_then(Verdict::digest)).collect();
        let differs = match &decision {
            Decision::Use { index, .. } => consistency::differences(places, *index, &digests, |pair| {
                self.ledgers.is_some_and(|ledgers| ledgers.has_pair(pair, self.index))
            }),
            Decision::Keep { .. } | Decision::Wait => Vec::new(),
        };
        let (chosen, choice) = self.choice(&planned, decision, &verdicts);
        let alternatives = places
            .list()
            .iter()
            .zip(&answers)
            .enumerate()
            .map(|(index, (place, answer))| AlternativeReport {
                image: place.reference.to_string(),
                from: source(&place.origin),
                also_from: place.also.iter().map(source).collect(),
                availability: self.availability(answer),
                chosen: chosen == Some(index),
            })
            .collect();
        planned.report.alternatives = alternatives;
        planned.report.differs = differs;
        planned.report.choice = Some(choice);
        planned.report
    }

    async fn ask_one(&self, planned: &Planned<'_>, place: &Alternative, deadline: Instant) -> Answer {
        let Some(client) = &self.client else {
            return Answer { said: None, judged: None, took: Duration::ZERO, found: Found::default() };
        };
        let needed = needed(planned, place, self.secrets, self.config);
        let found = self.secrets.find(needed, &place.reference.repository()).await;
        let options = ProbeOptions {
            check_digest: self.config.routing.active_check.resolve_digest,
            ..ProbeOptions::default()
        };
        let started = Instant::now();
        // A person waits, which is as urgent as a Pod that waits.
        let context = Context::new(Class::Admission, deadline);
        let said = client.probe(&place.reference, &found.credentials, options, &context).await;
        let took = started.elapsed();
        let trust = NodeTrust::from(self.config).trust_node_credentials(&place.reference.host());
        let judged = routing::judge(place.is_original(), said.clone(), !found.credentials.is_empty(), trust);
        let namespace = &planned.subject.namespace;
        let judged = self.failures.judge(&place.reference, namespace, &[], Timestamp::now(), judged);
        Answer { said: Some(said), judged: Some(judged), took, found }
    }

    /// The entry of the list that is used, and the choice in words.
    fn choice(
        &self,
        planned: &Planned<'_>,
        decision: Decision,
        verdicts: &[Option<Verdict>],
    ) -> (Option<usize>, Choice) {
        let list = planned.places().map(routing::Alternatives::list).unwrap_or_default();
        let original = planned.places().map(routing::Alternatives::original);
        let of_original = || list.iter().position(|place| Some(&place.reference) == original);
        let any = verdicts.iter().flatten().any(Verdict::is_usable);
        let available = self.client.is_some().then_some(any);
        if decision == Decision::Wait
            && let Some(first) = list.first()
        {
            let rewritten = Some(&first.reference) != original;
            let image = if rewritten { first.reference.to_string() } else { planned.plan.asked.clone() };
            let why = "registries were not asked; the first of these that answers is used".to_owned();
            return (None, Choice { image, rewritten, why, available });
        }
        let index = match &decision {
            Decision::Use { index, .. } => Some(*index),
            Decision::Keep { .. } | Decision::Wait => of_original(),
        };
        let route = planned.plan.route(decision, verdicts);
        let rewritten = route.is_rewritten();
        (index, Choice { image: route.used, rewritten, why: one_line(&route.why), available })
    }

    fn availability(&self, answer: &Answer) -> Availability {
        let (Some(said), Some(judged)) = (&answer.said, &answer.judged) else {
            return Availability::not_asked();
        };
        let mut caveats = answer.found.caveats.clone();
        let limit = self
            .config
            .routing
            .active_check
            .timeout
            .as_ref()
            .map(fairlead_domain::duration::Duration::as_std);
        if let Some(limit) = limit.filter(|limit| said.is_available() && answer.took > *limit) {
            caveats.push(format!(
                "it took longer than the {limit:?} that admission waits (routing.activeCheck.timeout), where it counts as \
                 unreachable"
            ));
        }
        Availability {
            verdict: said.kind().name(),
            counts_as: (judged.kind() != said.kind()).then(|| judged.kind().name()),
            reason: one_line(judged.reason()) + &hint(judged.reason()),
            digest: said.digest().map(|digest| digest.to_string()),
            milliseconds: Some(u64::try_from(answer.took.as_millis()).unwrap_or(u64::MAX)),
            credentials: Some(answer.found.whose.clone()),
            may_differ: answer.found.is_incomplete && depends_on_who_asks(said),
            caveats,
        }
    }
}

/// Registries hide what a stranger may not see, and count each guest's requests apart.
fn depends_on_who_asks(said: &Verdict) -> bool {
    matches!(
        said,
        Verdict::NotFound { .. }
            | Verdict::Unauthorised { .. }
            | Verdict::Forbidden { .. }
            | Verdict::RateLimited { .. }
    )
}

fn source(origin: &Origin) -> Source {
    match origin {
        Origin::Original => Source::Original,
        Origin::Mirror { policy, entry, of, .. } => Source::Mirror {
            policy: policy.to_string(),
            entry: policy.kind.entry(*entry),
            copy_of: of.to_string(),
        },
        Origin::Upstream { policy, entry } => {
            Source::Upstream { policy: policy.to_string(), entry: policy.kind.entry(*entry) }
        }
    }
}
