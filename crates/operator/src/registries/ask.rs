//! Asks about one place as the kubelet will: what admission, healing and warming choose by.

use fairlead_api::names;
use fairlead_domain::cause::Cause;
use fairlead_domain::keyring::Credential;
use fairlead_domain::reference::Reference;
use fairlead_domain::selector::PodFacts;
use fairlead_domain::verdict::Verdict;
use fairlead_plan::admission;
use fairlead_plan::pod_record::Record;
use fairlead_plan::routing::{self, Alternative};
use tokio::time::Instant;

use crate::cluster::state::PodEntry;
use crate::cluster::usage::{AnnotationsOf, LabelsOf};
use crate::context::Context;

/// One place, and what is needed to ask about it.
#[derive(Debug)]
pub struct Question<'a> {
    pub reference: &'a Reference,
    /// It is what the Pod asked for.
    pub is_original: bool,
    pub cause: Cause,
    pub credentials: Vec<Credential>,
}

impl<'a> Question<'a> {
    pub fn new(place: &'a Alternative, credentials: Vec<Credential>) -> Self {
        let Alternative { reference, .. } = place;
        Self { reference, is_original: place.is_original(), cause: place.cause(), credentials }
    }
}

impl Context {
    /// What the registry says, as it counts for Pods of the namespace.
    pub async fn ask(&self, question: &Question<'_>, namespace: &str, deadline: Instant) -> Verdict {
        let Question { reference, cause, credentials, .. } = question;
        let verdicts = self.verdicts.caused_by(*cause);
        let verdict = verdicts.ask(reference, credentials, namespace, deadline).await;
        self.judge(question, namespace, verdict)
    }

    /// What a verdict counts as: nodes may hold credentials of their own, and may have failed to pull what is there.
    pub fn judge(&self, question: &Question<'_>, namespace: &str, verdict: Verdict) -> Verdict {
        let Question { reference, is_original, credentials, .. } = question;
        let verdict = if verdict.is_available() {
            verdict
        } else {
            let trust = self.node_trust.trust_node_credentials(&reference.host());
            routing::judge(*is_original, verdict, !credentials.is_empty(), trust)
        };
        self.node_failures.judge(reference, namespace, credentials, verdict)
    }

    /// On whose account a registry is asked about an image of a Pod: an administrator's if a cluster-scoped policy
    /// offers the place.
    pub fn cause_of(&self, pod: &PodEntry, image: &Reference) -> Cause {
        let (labels, annotations) = (LabelsOf(&pod.labels), AnnotationsOf(&pod.annotations));
        let facts = PodFacts { namespace: &pod.key.namespace, labels: &labels, annotations: &annotations };
        let index = self.policies.current();
        let policies = index.for_pod(&facts);
        let record = pod.annotation(names::fairlead::ROUTES).and_then(|text| Record::parse(text));
        let mut asked = vec![image.to_string()];
        for (place, named) in pod.places() {
            let same = Reference::parse(named).is_ok_and(|named| named.is_same_image(image));
            let route = record.as_ref().and_then(|record| record.images.get(&place.key()));
            asked.extend(route.filter(|_| same).map(|route| route.asked.clone()));
        }
        let (rules, foreign) = (routing::Rules::default(), |_: &_, _: &_| false);
        let offers = |asked: &String| {
            let planned = admission::plan(&policies, asked, None, None, &rules, foreign);
            let mut list = planned.places.ok()?;
            if let Some(digest) = image.digest().filter(|_| list.original().digest().is_none()) {
                list.hold(&digest);
            }
            let place = list.list().iter().find(|place| place.reference.is_same_image(image))?;
            Some(place.cause())
        };
        let administrator = asked.iter().filter_map(offers).any(|cause| cause == Cause::Administrator);
        if administrator { Cause::Administrator } else { Cause::Tenant }
    }
}
