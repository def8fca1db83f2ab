//! Routes the images of a Pod: observes the policies and what is known of registries, lets the planner decide, and turns
//! the decision into a patch.
//!
//! Whatever goes wrong on the way concerns one place, one Secret or one image; the rest of the Pod is routed all the same,
//! and its author is told.

mod choose;
mod pull_secrets;
#[cfg(test)]
pub(super) mod tests;

use std::{collections::BTreeSet, time::Duration};

use fairlead_domain::selector::PodFacts;
use fairlead_plan::{
    admission::{self, Planned},
    owners::{ApiGroup, Exemption, exemption},
    records::{self, Claims, Entry},
    routing::Rules,
};
use futures::{FutureExt, future::BoxFuture};
use kube::Client;
use prometheus_client::registry::Registry;
use tokio::time::Instant;

use super::{
    decide::{Decide, DecideError, PodRequest, Subject, Verdict},
    ephemeral::{Notice, Recorder, Records},
    metrics::Rewrites,
    patch::Patch,
    review::PodImage,
};
use crate::{
    accounts::Accounts,
    certificates::system_clock,
    config::Config,
    ledgers::{self, Findings},
    policies::Policies,
    secrets::{self, Copies, Secrets},
    state::Owners,
    verdicts::{self, NodeTrust, VerdictSettings, Verdicts},
    watch::Resources,
};

/// Kept back of a request's time for putting the answer together.
const RESERVE: Duration = Duration::from_millis(100);

/// Shown to the author of a Pod; more would only push one another out of sight.
const MOST_WARNINGS: usize = 8;

/// What routing needs of the rest of the operator.
#[derive(Debug, Clone)]
pub struct Surroundings {
    pub policies: Policies,
    /// The client that every function shares, with one budget for each registry.
    pub registries: fairlead_registry::Client,
    pub verdicts: Verdicts,
    pub secrets: Secrets,
    pub copies: Copies,
    pub accounts: Accounts,
    /// Which source a copy belongs to.
    pub claims: ledgers::Claims,
    /// Controllers whose Pods are not rewritten for a while.
    pub owners: Owners,
    /// What probes say against the ledgers; to be run for as long as Pods are admitted.
    pub findings: Findings,
    /// Takes what could not be written at admission.
    pub records: Records,
}

impl Surroundings {
    /// Makes everything and starts nothing. The recorder is to be run for as long as Pods are admitted.
    pub fn new(
        client: &Client,
        config: &Config,
        policies: Policies,
        resources: &Resources,
        registry: &mut Registry,
    ) -> (Self, Recorder) {
        let (accounts, claims) = (resources.accounts.clone(), resources.claims.clone());
        let owners = resources.pods.owners().clone();
        let registries = verdicts::client(config);
        let metrics = verdicts::Metrics::register(registry, &registries);
        let findings = Findings::new(claims.clone(), &config.routing.active_check.stale_mirror_cleanup);
        let verdicts = Verdicts::new(registries.clone(), VerdictSettings::from(config), metrics)
            .heard_by(findings.clone());
        let metrics = secrets::Metrics::register(registry);
        let secrets = Secrets::new(client.clone(), metrics.clone());
        let copying = config.routing.pull_secrets.copy;
        let namespaces = resources.namespaces.clone();
        let copies =
            Copies::new(client.clone(), secrets.clone(), copying, namespaces, system_clock(), metrics);
        let (records, recorder) = Records::new(client.clone(), registry);
        (
            Self {
                policies,
                registries,
                verdicts,
                secrets,
                copies,
                accounts,
                claims,
                owners,
                findings,
                records,
            },
            recorder,
        )
    }
}

/// Decides about every image of a Pod.
#[derive(Debug)]
pub struct Router {
    around: Surroundings,
    rules: Rules,
    skip_owners: Vec<ApiGroup>,
    trust: NodeTrust,
    rewrites: Rewrites,
}

impl Router {
    pub fn new(around: Surroundings, config: &Config, rewrites: Rewrites) -> Self {
        let routing = &config.routing;
        let rules = Rules {
            rewrite_on_never: routing.rewrite_on_never_image_pull_policy,
            honor_priorities_on_always: routing.honor_priorities_on_always_image_pull_policy,
        };
        let skip_owners = routing.skip_owners.clone();
        Self { around, rules, skip_owners, trust: NodeTrust::from(config), rewrites }
    }

    /// Why the images of the Pod stay as its controller wrote them.
    fn exemption(&self, request: &PodRequest<'_>) -> Option<Exemption> {
        let controller = request.pod.controller()?;
        let paused_until = self.around.owners.paused_until(request.namespace, controller.uid);
        exemption(&controller, &self.skip_owners, paused_until)
    }

    fn plan(&self, request: &PodRequest<'_>, images: &[PodImage<'_>]) -> Vec<Planned> {
        let (labels, annotations) = (request.pod.labels(), request.pod.annotations());
        let facts = PodFacts { namespace: request.namespace, labels: &labels, annotations: &annotations };
        let index = self.around.policies.current();
        let policies = index.for_pod(&facts);
        let claims = Claims::read(&request.pod.found());
        let plan = |image: &PodImage<'_>| {
            let claimed = claims.asked(&image.place, image.reference);
            let mut planned =
                admission::plan(&policies, image.reference, claimed, image.pull_policy, &self.rules);
            if let Ok(places) = &mut planned.places {
                places.withhold(|source, copy| self.around.claims.refuses(source, copy, &index));
            }
            planned
        };
        images.iter().map(plan).collect()
    }

    async fn route(&self, request: &PodRequest<'_>) -> Verdict {
        let images = request.images();
        let mut warnings = Warnings::default();
        let (routes, to_add) = if let Some(exempt) = self.exemption(request) {
            // Its controller may compare more than images, so pull secrets are not added, either.
            (images.iter().map(|image| exempt.route(image.reference)).collect(), Vec::new())
        } else {
            let planned = self.plan(request, &images);
            let deadline = request.deadline.checked_sub(RESERVE).unwrap_or_else(Instant::now);
            let secrets = self.pull_secrets(request, &planned, deadline, &mut warnings).await;
            (self.choose(&planned, &secrets, request.namespace, deadline).await, secrets.to_add)
        };

        let mut patch = Patch::default();
        let mut rewritten = false;
        for (image, route) in images.iter().zip(&routes) {
            if image.reference != route.used {
                rewritten = true;
                patch.image(image, &route.used);
                self.rewrites.count(&route.by);
            }
            if route.unavailable {
                warnings.add(format!("{}: {}", image.place.key(), route.why));
            }
        }
        let entries =
            images.iter().zip(routes).map(|(image, route)| Entry { place: image.place, route }).collect();
        match request.subject {
            Subject::NewPod => {
                patch.pull_secrets(request.pod, to_add);
                let annotations = records::annotations(&request.pod.found(), entries);
                patch.annotations(request.pod, annotations.changes);
                for name in annotations.left_out {
                    warnings.add(format!("the other annotations of this Pod leave no room for {name}"));
                }
            }
            Subject::EphemeralContainers { .. } if request.dry_run => {}
            Subject::EphemeralContainers { .. } => self.around.records.note(Notice::new(request, entries)),
        }
        Verdict { patch, rewritten, warnings: warnings.0.into_iter().take(MOST_WARNINGS).collect() }
    }
}

impl Decide for Router {
    fn decide<'a>(&'a self, request: &'a PodRequest<'a>) -> BoxFuture<'a, Result<Verdict, DecideError>> {
        self.route(request).map(Ok).boxed()
    }
}

/// What the author of a Pod should know, each once.
#[derive(Debug, Default)]
struct Warnings(BTreeSet<String>);

impl Warnings {
    fn add(&mut self, warning: String) {
        self.0.insert(warning);
    }
}
