//! From the bytes of a request to the bytes of its answer.

use std::panic::AssertUnwindSafe;

use fairlead_plan::warnings;
use futures::FutureExt;
use serde::Serialize;
use serde_json::value::RawValue;
use tokio::time::{Instant, timeout_at};

use super::{
    decide::{AdmissionOutcome, PodRequest, Subject},
    metrics::Outcome,
    review::{PodObject, Request, Review, uid_of_prefix},
    state::State,
};

const API_VERSION: &str = "admission.k8s.io/v1";

const CROWDED: &str =
    "too many Pods of this namespace are being created at once; the images of this one stay as they are";

/// An answer, and what to count it as.
pub(super) struct Answer {
    pub(super) outcome: Outcome,
    /// The `AdmissionReview` to send; none if the request told no identity to answer to.
    pub(super) review: Option<Vec<u8>>,
}

impl Answer {
    fn new(uid: &str, api_version: &str, outcome: Outcome, verdict: &AdmissionOutcome) -> Self {
        let review = render(uid, api_version, verdict);
        Self { outcome, review }
    }

    /// Allowed and unchanged, with a word about why.
    fn open(uid: &str, api_version: &str, outcome: Outcome, warning: impl Into<String>) -> Self {
        Self::new(uid, api_version, outcome, &warned(warning))
    }

    pub(super) fn without_identity(outcome: Outcome) -> Self {
        Self { outcome, review: None }
    }
}

/// Answers a request that is too large to be read, of which only the beginning is at hand.
pub(super) fn to_oversized(prefix: &[u8]) -> Answer {
    match uid_of_prefix(prefix) {
        Some(uid) => Answer::open(
            &uid,
            API_VERSION,
            Outcome::TooLarge,
            "this Pod is too large to be looked at; its images stay as they are",
        ),
        None => Answer::without_identity(Outcome::TooLarge),
    }
}

/// Answers a request.
pub(super) async fn to(state: &State, body: &[u8], deadline: Instant) -> Answer {
    let review = match serde_json::from_slice::<Review<'_>>(body) {
        Ok(review) => review,
        Err(error) => {
            tracing::debug!(%error, "a request is no AdmissionReview");
            return match uid_of_prefix(body) {
                Some(uid) => Answer::open(
                    &uid,
                    API_VERSION,
                    Outcome::Malformed,
                    "the request about this Pod could not be read",
                ),
                None => Answer::without_identity(Outcome::Malformed),
            };
        }
    };
    let Some(request) = review.request.filter(|request| !request.uid.is_empty()) else {
        return Answer::without_identity(Outcome::Malformed);
    };
    // A caller of another version gets an answer that it can at least recognise.
    let version = if review.api_version.is_empty() { API_VERSION } else { &review.api_version };
    let (outcome, verdict) = match answer_request(state, &request, deadline).await {
        Ok(answer) => answer,
        Err((outcome, warning)) => (outcome, warned(warning)),
    };
    Answer::new(&request.uid, version, outcome, &verdict)
}

/// Answers a request that can be read. What cannot be decided upon is let through with a word about why.
async fn answer_request(
    state: &State,
    request: &Request<'_>,
    deadline: Instant,
) -> Result<(Outcome, AdmissionOutcome), (Outcome, String)> {
    let for_debugging = match what_is_asked(request) {
        Asked::NewPod => false,
        Asked::EphemeralContainers => true,
        Asked::Other(what) => {
            let told = format!(
                "{what} is not what this webhook is for: let its configuration send only CREATE of pods and UPDATE of pods/ephemeralcontainers"
            );
            return Err((Outcome::Odd, told));
        }
    };
    let missing = || (Outcome::Odd, "the request came without its Pod".to_owned());
    let object = request.object.ok_or_else(missing)?;
    let pod = read(object, request)?;
    let is_own = *request.namespace == *state.own_namespace;
    if is_own || pod.is_mirror_pod() || state.skip.matches(&pod.labels(), &pod.annotations()) {
        return Ok((Outcome::Skipped, AdmissionOutcome::default()));
    }
    let before = if for_debugging {
        read(request.old_object.ok_or_else(missing)?, request)?
    } else {
        PodObject::default()
    };
    let share = state.shares.of(&request.namespace, &state.limits);
    let bytes = object.get().len() + request.old_object.map_or(0, |before| before.get().len());
    let _memory = share.hold(bytes).ok_or_else(|| (Outcome::Overload, CROWDED.to_owned()))?;
    let question = PodRequest {
        namespace: &request.namespace,
        subject: if for_debugging {
            Subject::EphemeralContainers { before: &before }
        } else {
            Subject::NewPod
        },
        dry_run: request.dry_run.unwrap_or(false),
        pod: &pod,
        object_bytes: object.get().len(),
        share: &share,
        deadline,
    };
    Ok(decide(state, &question).await)
}

fn read<'a>(object: &'a RawValue, request: &Request<'_>) -> Result<PodObject<'a>, (Outcome, String)> {
    serde_json::from_str(object.get()).map_err(|error| {
        tracing::warn!(%error, namespace = &*request.namespace, "a Pod could not be read and was left as it is");
        (Outcome::Malformed, format!("this Pod could not be read: {error}"))
    })
}

/// The Pod stays as it is, and whoever creates it is told something.
fn warned(warning: impl Into<String>) -> AdmissionOutcome {
    AdmissionOutcome { warnings: vec![warnings::line(&warning.into())], ..AdmissionOutcome::default() }
}

/// Decides within the deadline, and survives whatever happens meanwhile.
async fn decide(state: &State, question: &PodRequest<'_>) -> (Outcome, AdmissionOutcome) {
    let open = |outcome, warning: &str| (outcome, warned(warning));
    let Ok(own) = timeout_at(question.deadline, question.share.deciding.acquire()).await else {
        return open(Outcome::Overload, CROWDED);
    };
    let Ok(permit) = timeout_at(question.deadline, state.deciding.acquire()).await else {
        return open(
            Outcome::Overload,
            "too many Pods are being created at once; the images of this one stay as they are",
        );
    };
    // The future is only made inside, so that a panic while making it is caught as well.
    let deciding = AssertUnwindSafe(async { state.decide.decide(question).await }).catch_unwind();
    let result = timeout_at(question.deadline, deciding).await;
    drop((permit, own));
    match result {
        Ok(Ok(Ok(verdict))) => {
            let outcome = match &verdict {
                verdict if verdict.rewritten => Outcome::Rewritten,
                verdict if verdict.patch.is_empty() => Outcome::Unchanged,
                _ => Outcome::Recorded,
            };
            (outcome, verdict)
        }
        Ok(Ok(Err(error))) => {
            state.errors.note(&format!("deciding about a Pod failed: {error}"));
            tracing::warn!(
                error,
                namespace = question.namespace,
                "deciding about a Pod failed, it was left as it is"
            );
            open(
                Outcome::Error,
                "an internal error kept the images of this Pod as they are; the operator's log has more",
            )
        }
        Ok(Err(_panic)) => {
            state.errors.note("deciding about a Pod panicked, which is a bug");
            tracing::error!(
                namespace = question.namespace,
                "deciding about a Pod panicked, it was left as it is; this is a bug"
            );
            open(
                Outcome::Panic,
                "an internal error kept the images of this Pod as they are; the operator's log has more",
            )
        }
        Err(_late) => {
            state.errors.note("deciding about a Pod took too long");
            open(Outcome::Late, "deciding about this Pod took too long; its images stay as they are")
        }
    }
}

/// What a request is about.
enum Asked {
    NewPod,
    EphemeralContainers,
    Other(String),
}

fn what_is_asked(request: &Request<'_>) -> Asked {
    let kind = &request.kind;
    let is_pod = kind.group.is_empty() && &*kind.version == "v1" && &*kind.kind == "Pod";
    match (is_pod, &*request.operation, &*request.sub_resource) {
        (true, "CREATE", "") => Asked::NewPod,
        (true, "UPDATE", "ephemeralcontainers") => Asked::EphemeralContainers,
        (_, operation, subresource) => {
            let slash = if subresource.is_empty() { "" } else { "/" };
            Asked::Other(format!(
                "{operation} of {} {}/{}{slash}{subresource}",
                &*kind.kind, &*kind.group, &*kind.version
            ))
        }
    }
}

fn render(uid: &str, api_version: &str, verdict: &AdmissionOutcome) -> Option<Vec<u8>> {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Review<'a> {
        api_version: &'a str,
        kind: &'static str,
        response: Response<'a>,
    }

    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Response<'a> {
        uid: &'a str,
        allowed: bool,
        #[serde(skip_serializing_if = "Option::is_none")]
        patch_type: Option<&'static str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        patch: Option<String>,
        #[serde(skip_serializing_if = "<[String]>::is_empty")]
        warnings: &'a [String],
    }

    let patch = if verdict.patch.is_empty() { None } else { verdict.patch.encode().ok() };
    let patch_type = patch.is_some().then_some("JSONPatch");
    let response = Response { uid, allowed: true, patch_type, patch, warnings: &verdict.warnings };
    serde_json::to_vec(&Review { api_version, kind: "AdmissionReview", response }).ok()
}

#[cfg(test)]
mod tests;
