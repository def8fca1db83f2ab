//! What is planned for one image, before any registry is asked: the same planner as admission's, with the reasons why a
//! policy has no part in it.

use std::collections::BTreeSet;

use fairlead_api::names;
use fairlead_domain::reference::Reference;
use fairlead_operator::admission::exclusions::Skip;
use fairlead_operator::cluster::ledgers::Claims;
use fairlead_operator::platform::config::Config;
use fairlead_plan::access::Standing;
use fairlead_plan::pod_record::{self, Record};
use fairlead_plan::routing::explain::PassedOver as Reason;
use fairlead_plan::routing::{Alternatives, GuardedCopy, Index, PodFacts, PodPolicies, PullPolicy, Rules};
use fairlead_plan::{access, admission, owners};
use jiff::Timestamp;

use super::report::{ImageReport, PassedOver, RecordReport};
use super::subject::{Image, Subject};

const NEVER: &str = "its pull policy is Never, and such images are left alone unless the operator's configuration says \
    routing.rewriteOnNeverImagePullPolicy: true";
const ALWAYS: &str = "its pull policy is Always, so the original comes first whatever the priorities say, unless the \
    operator's configuration says routing.honorPrioritiesOnAlwaysImagePullPolicy: true";

/// What every Pod is planned with.
pub(crate) struct Planner<'a> {
    pub(crate) index: &'a Index,
    pub(crate) config: &'a Config,
    pub(crate) operator_namespace: &'a str,
    /// What the ledgers of the cluster say of copies, if they were read.
    pub(crate) ledgers: Option<&'a Claims>,
}

/// One image, planned.
pub(crate) struct Planned<'a> {
    pub(crate) subject: &'a Subject,
    pub(crate) image: &'a Image,
    pub(crate) report: ImageReport,
    pub(crate) plan: admission::Planned,
}

impl Planned<'_> {
    /// The places that the image may come from, unless it is not routed.
    pub(crate) fn places(&self) -> Option<&Alternatives> {
        self.plan.places.as_ref().ok().filter(|_| self.report.not_routed.is_none())
    }
}

impl Planner<'_> {
    /// Every image of a Pod. `exempt` says why the operator is not asked about the Pod at all.
    pub(crate) fn plan<'s>(&self, subject: &'s Subject, exempt: Option<String>) -> Vec<Planned<'s>> {
        let left_alone = self.left_alone(subject).or(exempt);
        let facts = PodFacts {
            namespace: &subject.namespace,
            labels: &subject.labels,
            annotations: &subject.annotations,
        };
        let policies = self.index.for_pod(&facts);
        let claims = pod_record::Claims::read(&subject.records());
        let plan =
            |image| self.plan_image(subject, image, left_alone.as_deref(), (&facts, &policies), &claims);
        subject.images.iter().map(plan).collect()
    }

    /// Why no image of the Pod is looked at.
    fn left_alone(&self, subject: &Subject) -> Option<String> {
        if subject.namespace == self.operator_namespace {
            return Some(format!(
                "Pods of the operator's own namespace, {}, are never routed",
                subject.namespace
            ));
        }
        if subject.is_mirror_of_static() {
            return Some(
                "it mirrors a static Pod: the kubelet runs what the file on its node says".to_owned(),
            );
        }
        let by_owner = || {
            let exempt = owners::exemption(&subject.controller()?, &self.config.routing.skip_owners, None)?;
            Some(exempt.why)
        };
        Skip::from(self.config).reason(&subject.labels, &subject.annotations).or_else(by_owner)
    }

    fn plan_image<'s>(
        &self,
        subject: &'s Subject,
        image: &'s Image,
        left_alone: Option<&str>,
        (facts, policies): (&PodFacts<'_>, &PodPolicies<'_>),
        claims: &pod_record::Claims,
    ) -> Planned<'s> {
        let mut report = ImageReport {
            pod: subject.into(),
            role: image.role,
            name: image.name.clone(),
            image: image.written.clone(),
            asked: image.written.clone(),
            original: String::new(),
            pull_policy: None,
            not_routed: left_alone.map(str::to_owned),
            alternatives: Vec::new(),
            choice: None,
            differs: Vec::new(),
            passed_over: Vec::new(),
            notes: Vec::new(),
            dropped: 0,
            record: None,
        };
        let rules = self.rules();
        let claim = image.place().and_then(|place| claims.asked(&place, &image.written));
        let foreign = |source: &Reference, copy: &Reference| {
            self.ledgers.is_some_and(|ledgers| ledgers.refuses(source, copy, self.index))
        };
        let pull_policy = image.pull_policy.as_deref();
        let mut planned = admission::plan(policies, &image.written, claim, pull_policy, &rules, foreign);
        let mut unknown = Vec::new();
        if let Ok(places) = &mut planned.places {
            unknown = self.withhold_unproven(places, &subject.namespace);
        }
        let is_believed = planned.asked != image.written;
        report.record = record(subject, image, is_believed.then_some(planned.asked.as_str()));
        report.asked.clone_from(&planned.asked);
        match &planned.places {
            Err(why) => {
                report.not_routed.get_or_insert_with(|| why.clone());
            }
            Ok(places) => {
                let pull = PullPolicy::effective(image.pull_policy.as_deref(), places.original());
                report.pull_policy = Some(name(pull));
                report.original = places.original().to_string();
                if pull == PullPolicy::Never && !rules.rewrite_on_never {
                    report.not_routed.get_or_insert_with(|| NEVER.to_owned());
                }
                if report.not_routed.is_none() {
                    let said = places.cut().into_iter().chain(places.notes().iter().cloned());
                    report.notes = said.chain(unknown).collect();
                    report.dropped = places.dropped();
                    if pull == PullPolicy::Always {
                        let honoured = Rules { honor_priorities_on_always: true, ..rules };
                        let mut otherwise = policies.alternatives(places.original(), pull, &honoured);
                        otherwise.withhold(foreign);
                        self.withhold_unproven(&mut otherwise, &subject.namespace);
                        report.notes.extend((otherwise.list() != places.list()).then(|| ALWAYS.to_owned()));
                    }
                    report.passed_over = self.passed_over(facts, places);
                }
            }
        }
        Planned { subject, image, report, plan: planned }
    }

    /// Leaves out copies that the namespace has not proven access to, as admission does. What it cannot know is
    /// returned in words.
    fn withhold_unproven(&self, places: &mut Alternatives, namespace: &str) -> Vec<String> {
        let (mut unknown, now) = (BTreeSet::new(), Timestamp::now());
        let lifetime = self.config.routing.proof_lifetime();
        let standing = |ledgers: &Claims, copy: &GuardedCopy<'_>| {
            ledgers.standing(copy, namespace, self.index, |at| access::counts(at, lifetime, now))
        };
        for copy in places.to_prove() {
            let GuardedCopy { source, copy: place, .. } = copy;
            match self.ledgers.map(|ledgers| standing(ledgers, &copy)) {
                None => unknown.insert(format!(
                    "{place} is tried only if namespace {namespace} has proven access to {source}, which is not known \
                     without the ledgers of a cluster"
                )),
                Some(Standing::Unproven { may_ask: true }) => unknown.insert(format!(
                    "admission asks for {source} with the Pod's own pull secrets; {place} is tried if they open it"
                )),
                Some(_) => continue,
            };
        }
        if let Some(ledgers) = self.ledgers {
            places.withhold_unproven(namespace, |copy| standing(ledgers, copy).withheld(false));
        }
        unknown.into_iter().collect()
    }

    fn passed_over(&self, facts: &PodFacts<'_>, alternatives: &Alternatives) -> Vec<PassedOver> {
        let reasons = self.index.policies().filter_map(|policy| {
            let reason = policy.passes_over(facts, alternatives)?;
            Some(PassedOver {
                policy: policy.id().to_string(),
                why: reason.reason().to_owned(),
                for_pod: matches!(reason, Reason::Pod(_)),
            })
        });
        reasons.collect()
    }

    fn rules(&self) -> Rules {
        let routing = &self.config.routing;
        Rules {
            rewrite_on_never: routing.rewrite_on_never_image_pull_policy,
            honor_priorities_on_always: routing.honor_priorities_on_always_image_pull_policy,
        }
    }
}

fn name(pull: PullPolicy) -> &'static str {
    match pull {
        PullPolicy::Always => "Always",
        PullPolicy::IfNotPresent => "IfNotPresent",
        PullPolicy::Never => "Never",
    }
}

/// What the Pod's annotations say about an image. Only a Pod that exists should have some.
fn record(subject: &Subject, image: &Image, believed: Option<&str>) -> Option<RecordReport> {
    let place = image.place()?;
    let found = subject.records();
    let exists = subject.place.is_none() && subject.kind.as_deref() == Some("Pod");
    let ours = names::fairlead::ROUTES;
    let say = |annotation, entry, believable, meaning: String| {
        Some(RecordReport { annotation, entry, believable, meaning })
    };
    let Some(text) = found.routes else {
        return match (believed, found.originals, exists) {
            (Some(asked), Some(_), _) => say(
                names::kuik::ORIGINAL_IMAGES,
                None,
                true,
                format!("it was rewritten from {asked}, by kube-image-keeper or by Fairlead"),
            ),
            (_, _, true) => say(
                ours,
                None,
                false,
                "there is none: the operator was not asked when this Pod was created".to_owned(),
            ),
            _ => None,
        };
    };
    let Some(record) = Record::parse(text) else {
        return say(
            ours,
            None,
            false,
            "it cannot be read, so nothing is known of this Pod's admission".to_owned(),
        );
    };
    let Some(route) = record.images.get(&place.key()).cloned() else {
        return say(ours, None, false, "it has no entry for this image".to_owned());
    };
    let why = if route.why.is_empty() { String::new() } else { format!(": {}", route.why) };
    let (believable, meaning) = if route.used != image.written {
        (false, format!("it is about {}, not about the image that the Pod has now", route.used))
    } else if !route.is_rewritten() {
        (true, format!("kept as it was asked for{why}"))
    } else if believed.is_some() {
        (true, format!("rewritten from {} by {}{why}", route.asked, route.by))
    } else {
        let meaning = format!(
            "it says that {} was asked for, but the policies of today do not offer {} for that: it is from another \
             time, copied or made up",
            route.asked, route.used
        );
        (false, meaning)
    };
    say(ours, Some(route), believable, meaning)
}
