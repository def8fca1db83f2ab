//! From what admission would decide about an image to what is said about it, with the reasons why a policy has no part
//! in it.

use std::collections::BTreeSet;

use fairlead_api::names;
use fairlead_domain::reference::Reference;
use fairlead_domain::verdict::Verdict;
use fairlead_operator::admission::survey::{PinnedBy, Survey, SurveyedImage, SurveyedPlace};
use fairlead_operator::admission::{PodImage, PodObject};
use fairlead_operator::platform::config::Config;
use fairlead_operator::registries::secrets::Read;
use fairlead_plan::pod_record::Record;
use fairlead_plan::routing::explain::PassedOver as Reason;
use fairlead_plan::routing::{
    Alternatives, Decision, GuardedCopy, Index, Origin, PodFacts, PullPolicy, Rules,
};

use super::report::{
    AlternativeReport, Availability, Choice, ImageReport, PassedOver, PinReport, RecordReport, Source,
};
use super::subject::{Role, Subject};
use crate::access::hint;
use crate::output::one_line;

const NEVER: &str = "its pull policy is Never, and such images are left alone unless the operator's configuration says \
    routing.rewriteOnNeverImagePullPolicy: true";
const ALWAYS: &str = "its pull policy is Always, so the original comes first whatever the priorities say, unless the \
    operator's configuration says routing.honorPrioritiesOnAlwaysImagePullPolicy: true";
const UNPROVEN: &str = "admission asks for what was copied with the Pod's own pull secrets, and tries the copies of \
    what they open";
const UNRESOLVED: &str = "its tag is pinned to the digest that its registry reports at admission";

/// What is said about every Pod.
pub(crate) struct Reporter<'a> {
    pub(crate) index: &'a Index,
    pub(crate) config: &'a Config,
    /// Whether registries were asked, the ledgers were read, and there is a cluster.
    pub(crate) registries: bool,
    pub(crate) ledgers: bool,
    pub(crate) cluster: bool,
}

impl Reporter<'_> {
    /// `not_routed` says why the Pod is left alone, `remarks` what its author would be warned of.
    pub(crate) fn report(
        &self,
        subject: &Subject,
        pod: &PodObject<'_>,
        surveyed: &SurveyedImage<'_>,
        not_routed: Option<&str>,
        remarks: &[String],
    ) -> ImageReport {
        let SurveyedImage { image, planned, .. } = surveyed;
        let is_bare = subject.kind.is_none();
        let (role, name) = if is_bare { (Role::Image, "") } else { Role::of(&image.place) };
        let believed = Some(planned.asked.as_str()).filter(|asked| *asked != image.reference);
        let mut report = ImageReport {
            pod: subject.into(),
            role,
            name: name.to_owned(),
            image: image.reference.to_owned(),
            asked: planned.asked.clone(),
            original: String::new(),
            pull_policy: None,
            not_routed: not_routed.map(str::to_owned),
            alternatives: Vec::new(),
            choice: None,
            pinned: None,
            differs: Vec::new(),
            passed_over: Vec::new(),
            notes: Vec::new(),
            dropped: 0,
            record: if is_bare { None } else { record(subject, pod, image, believed) },
        };
        let places = match &planned.places {
            Ok(places) => places,
            Err(why) => {
                report.not_routed.get_or_insert_with(|| why.clone());
                return report;
            }
        };
        // Pinned places have digests; what was asked for has none.
        let asked = Reference::parse(&planned.asked).unwrap_or_else(|_| places.original().clone());
        let pull = PullPolicy::effective(image.pull_policy, &asked);
        report.pull_policy = Some(pull_policy(pull));
        report.original = asked.to_string();
        if !places.is_routed() {
            report.not_routed.get_or_insert_with(|| NEVER.to_owned());
        }
        if report.not_routed.is_some() {
            return report;
        }
        let (labels, annotations) = (pod.labels(), pod.annotations());
        let facts = PodFacts { namespace: &subject.namespace, labels: &labels, annotations: &annotations };
        report.notes = self.notes(surveyed, places, &subject.namespace, remarks);
        if pull == PullPolicy::Always && self.differs_if_honoured(&facts, places, &asked) {
            report.notes.push(ALWAYS.to_owned());
        }
        report.dropped = places.dropped();
        report.passed_over = self.passed_over(&facts, places);
        let (chosen, choice) = self.choice(surveyed, places);
        let alternatives = places.list().iter().zip(&surveyed.places).enumerate();
        report.alternatives = alternatives
            .map(|(index, (place, found))| AlternativeReport {
                image: place.reference.to_string(),
                from: source(&place.origin),
                also_from: place.also.iter().map(source).collect(),
                availability: self.availability(found),
                chosen: chosen == Some(index),
            })
            .collect();
        report.choice = Some(choice);
        report.pinned = planned.pin.zip(surveyed.pinned_by.as_ref()).map(|(digest, by)| PinReport {
            digest: digest.to_string(),
            by: match by {
                PinnedBy::Pod => "the Pod's own record".to_owned(),
                PinnedBy::ImagePin(key) => format!("ImagePin {key}"),
                PinnedBy::Registry => "what is there now".to_owned(),
            },
        });
        report.differs.clone_from(&surveyed.route.differs);
        report
    }

    /// What the author of the Pod should know that is not about one image.
    fn notes(
        &self,
        surveyed: &SurveyedImage<'_>,
        places: &Alternatives,
        namespace: &str,
        remarks: &[String],
    ) -> Vec<String> {
        let mut notes: Vec<_> = places.cut().into_iter().chain(places.notes().iter().cloned()).collect();
        if !self.ledgers {
            let unknown = places.to_prove().map(|GuardedCopy { source, copy, .. }| {
                format!(
                    "{copy} is tried only if namespace {namespace} has proven access to {source}, which is not known \
                     without the ledgers of a cluster"
                )
            });
            notes.extend(unknown.collect::<BTreeSet<_>>());
        } else if !self.registries && places.is_unproven() {
            notes.push(UNPROVEN.to_owned());
        }
        let SurveyedImage { image, planned, is_pinned, .. } = surveyed;
        if *is_pinned && !self.registries && planned.unpinned_tag(image.pull_policy).is_some() {
            notes.push(UNRESOLVED.to_owned());
        }
        let key = format!("{}: ", image.place.key());
        notes.extend(remarks.iter().filter_map(|remark| remark.strip_prefix(&key)).map(str::to_owned));
        notes
    }

    /// Whether the order would be another one if priorities counted.
    fn differs_if_honoured(&self, facts: &PodFacts<'_>, places: &Alternatives, asked: &Reference) -> bool {
        let rules = Rules { honor_priorities_on_always: true, ..self.config.routing.rules() };
        let honoured = self.index.for_pod(facts).alternatives(asked, PullPolicy::Always, &rules);
        let kept = |origin: &Origin| places.list().iter().any(|place| place.origin == *origin);
        let honoured = honoured.list().iter().map(|place| &place.origin).filter(|origin| kept(origin));
        !honoured.eq(places.list().iter().map(|place| &place.origin))
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

    /// The entry of the list that is used, and the choice in words.
    fn choice(&self, surveyed: &SurveyedImage<'_>, places: &Alternatives) -> (Option<usize>, Choice) {
        let SurveyedImage { planned, decision, route, .. } = surveyed;
        let of_original = places.list().iter().position(|place| place.reference == *places.original());
        let mut verdicts = surveyed.places.iter().filter_map(|place| place.verdicts.as_ref());
        let available = self.registries.then(|| verdicts.any(|(_, counts)| counts.is_usable()));
        let (index, image, why) = match (decision, places.list().first()) {
            (Decision::Wait, Some(first)) => {
                let is_original = of_original == Some(0);
                let image = if is_original { planned.kept().used } else { first.reference.to_string() };
                (None, image, "registries were not asked; the first of these that answers is used".to_owned())
            }
            (Decision::Use { index, .. }, _) => (Some(*index), route.used.clone(), one_line(&route.why)),
            _ => (of_original, route.used.clone(), one_line(&route.why)),
        };
        let rewritten = image != planned.asked;
        (index, Choice { image, rewritten, why, available })
    }

    fn availability(&self, found: &SurveyedPlace) -> Availability {
        let Some((said, counts)) = &found.verdicts else { return Availability::not_asked() };
        let withheld = found.withheld.iter();
        let mut caveats: Vec<_> =
            withheld.map(|(name, why)| format!("the Pod does not get Secret {name}: {why}")).collect();
        let mut is_incomplete = false;
        for (name, read) in &found.unusable {
            let (why, only_here) = self.useless(read);
            caveats.push(format!("Secret {name} is not used: {why}"));
            is_incomplete |= only_here;
        }
        let limit = self.config.routing.active_check.timeout.as_ref();
        let limit = limit.map(fairlead_domain::duration::Duration::as_std);
        if let Some(limit) = limit.filter(|limit| said.is_available() && found.took > *limit) {
            caveats.push(format!(
                "it took longer than the {limit:?} that admission waits (routing.activeCheck.timeout), where it counts as \
                 unreachable"
            ));
        }
        let holders: Vec<_> = found.holders.iter().map(ToString::to_string).collect();
        Availability {
            verdict: said.kind().name(),
            counts_as: (counts.kind() != said.kind()).then(|| counts.kind().name()),
            reason: one_line(counts.reason()) + &hint(counts.reason()),
            digest: said.digest().map(|digest| digest.to_string()),
            milliseconds: Some(u64::try_from(found.took.as_millis()).unwrap_or(u64::MAX)),
            credentials: Some(match holders.as_slice() {
                [] if found.by_login => "your own login".to_owned(),
                [] => "anonymous".to_owned(),
                names => format!("Secret {}", names.join(", ")),
            }),
            may_differ: is_incomplete && depends_on_who_asks(said),
            caveats,
        }
    }

    /// Why a Secret is of no use, and whether it may be of use to the operator.
    fn useless(&self, read: &Read) -> (String, bool) {
        match read {
            Read::Keys(_) => (String::new(), false),
            Read::Missing if self.cluster => ("it does not exist".to_owned(), false),
            Read::Missing => ("it is not among the given manifests".to_owned(), true),
            Read::Unusable(why) => (why.to_string(), false),
            Read::Failed(why) if why.ends_with("(403)") => ("you may not read it".to_owned(), true),
            Read::Failed(why) => (format!("it cannot be read: {why}"), true),
        }
    }
}

/// What the author of the Pod should know that is not about one image.
pub(crate) fn warnings(subject: &Subject, survey: &Survey<'_>) -> Vec<String> {
    let keys: Vec<_> = survey.images.iter().map(|one| format!("{}: ", one.image.place.key())).collect();
    let of_pod = survey.remarks.iter().filter(|remark| keys.iter().all(|key| !remark.starts_with(key)));
    of_pod.map(|remark| format!("{subject}: {remark}")).collect()
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

fn pull_policy(pull: PullPolicy) -> &'static str {
    match pull {
        PullPolicy::Always => "Always",
        PullPolicy::IfNotPresent => "IfNotPresent",
        PullPolicy::Never => "Never",
    }
}

/// What the Pod's annotations say about an image. Only a Pod that exists should have some.
fn record(
    subject: &Subject,
    pod: &PodObject<'_>,
    image: &PodImage<'_>,
    believed: Option<&str>,
) -> Option<RecordReport> {
    let found = pod.found();
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
    let Some(route) = record.images.get(&image.place.key()).cloned() else {
        return say(ours, None, false, "it has no entry for this image".to_owned());
    };
    let why = if route.why.is_empty() { String::new() } else { format!(": {}", route.why) };
    let (believable, meaning) = if route.used != image.reference {
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
