//! From the bytes of a request to the bytes of its answer.

use std::future::{Future, poll_fn};
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::time::Duration;

use fairlead_plan::warnings;
use futures::FutureExt;
use serde::Serialize;
use serde::de::IgnoredAny;
use tokio::sync::{AcquireError, SemaphorePermit};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::decide::{AdmissionOutcome, PodRequest, Subject};
use super::metrics::AnswerKind;
use super::review::{PodObject, Request, Review, uid_of_prefix};
use super::state::AdmissionState;

const API_VERSION: &str = "admission.k8s.io/v1";

/// A namespace that waits for processor time looks this often whether it still has to.
const LONGEST_WAIT: Duration = Duration::from_millis(20);

const CROWDED: &str =
    "too many Pods of this namespace are being created at once; the images of this one stay as they are";

/// An answer, and what to count it as.
pub(super) struct Answer {
    pub(super) outcome: AnswerKind,
    /// The `AdmissionReview` to send; none if the request told no identity to answer to.
    pub(super) review: Option<Vec<u8>>,
}

impl Answer {
    fn new(uid: &str, api_version: &str, outcome: AnswerKind, decided: &AdmissionOutcome) -> Self {
        let review = render(uid, api_version, decided);
        Self { outcome, review }
    }

    /// Allowed and unchanged, with a word about why.
    fn open(uid: &str, api_version: &str, outcome: AnswerKind, warning: impl Into<String>) -> Self {
        Self::new(uid, api_version, outcome, &warned(warning))
    }

    pub(super) fn without_identity(outcome: AnswerKind) -> Self {
        Self { outcome, review: None }
    }
}

/// Answers a request that is too large to be read, of which only the beginning is at hand.
pub(super) fn to_oversized(prefix: &[u8]) -> Answer {
    match uid_of_prefix(prefix) {
        Some(uid) => Answer::open(
            &uid,
            API_VERSION,
            AnswerKind::TooLarge,
            "this Pod is too large to be looked at; its images stay as they are",
        ),
        None => Answer::without_identity(AnswerKind::TooLarge),
    }
}

/// Answers a request.
pub(super) async fn to(state: &AdmissionState, body: &[u8], deadline: Instant) -> Answer {
    let review = match serde_json::from_slice::<Review<'_, PodObject<'_>>>(body) {
        Ok(review) => review,
        Err(error) => return to_unreadable(body, &error),
    };
    let Some(request) = review.request.filter(|request| !request.uid.is_empty()) else {
        return Answer::without_identity(AnswerKind::Malformed);
    };
    let (outcome, decided) = match answer_request(state, &request, body.len(), deadline).await {
        Ok(answer) => answer,
        Err((outcome, warning)) => (outcome, warned(warning)),
    };
    Answer::new(&request.uid, answer_version(&review.api_version), outcome, &decided)
}

/// A caller of another version gets an answer that it can at least recognise.
fn answer_version(asked: &str) -> &str {
    if asked.is_empty() { API_VERSION } else { asked }
}

/// Answers a request that is no review of a Pod: a second look, past the objects, finds out what it is.
fn to_unreadable(body: &[u8], error: &serde_json::Error) -> Answer {
    let review = serde_json::from_slice::<Review<'_, IgnoredAny>>(body).ok();
    let version = review.as_ref().map_or(API_VERSION, |review| answer_version(&review.api_version));
    let request = review.as_ref().and_then(|review| review.request.as_ref());
    let Some(request) = request.filter(|request| !request.uid.is_empty()) else {
        tracing::debug!(%error, "a request is no AdmissionReview");
        let warning = "the request about this Pod could not be read";
        return match uid_of_prefix(body) {
            Some(uid) => Answer::open(&uid, API_VERSION, AnswerKind::Malformed, warning),
            None => Answer::without_identity(AnswerKind::Malformed),
        };
    };
    if let RequestKind::Other(what) = what_is_asked(request) {
        return Answer::open(&request.uid, version, AnswerKind::Odd, not_for_us(&what));
    }
    tracing::warn!(%error, namespace = &*request.namespace, "a Pod could not be read and was left as it is");
    Answer::open(&request.uid, version, AnswerKind::Malformed, format!("this Pod could not be read: {error}"))
}

fn not_for_us(what: &str) -> String {
    format!(
        "{what} is not what this webhook is for: let its configuration send only CREATE of pods \
         and UPDATE of pods/ephemeralcontainers"
    )
}

/// Answers a request that can be read. What cannot be decided upon is let through with a word about why.
async fn answer_request(
    state: &AdmissionState,
    request: &Request<'_, PodObject<'_>>,
    body_bytes: usize,
    deadline: Instant,
) -> Result<(AnswerKind, AdmissionOutcome), (AnswerKind, String)> {
    let missing = || (AnswerKind::Odd, "the request came without its Pod".to_owned());
    let pod = || request.object.as_ref().ok_or_else(missing);
    let (pod, subject) = match what_is_asked(request) {
        RequestKind::NewPod => (pod()?, Subject::NewPod),
        RequestKind::EphemeralContainers => {
            let before = request.old_object.as_ref().ok_or_else(missing)?;
            (pod()?, Subject::EphemeralContainers { before })
        }
        RequestKind::Other(what) => return Err((AnswerKind::Odd, not_for_us(&what))),
    };
    if pod.left_alone(&state.exclusions, &request.namespace, &state.own_namespace).is_some() {
        return Ok((AnswerKind::Skipped, AdmissionOutcome::default()));
    }
    let share = state.shares.of(&request.namespace, &state.limits);
    let _memory = share.hold(body_bytes).ok_or_else(|| (AnswerKind::Overload, CROWDED.to_owned()))?;
    let question = PodRequest {
        namespace: &request.namespace,
        subject,
        dry_run: request.dry_run.unwrap_or(false),
        pod,
        body_bytes,
        share: &share,
        deadline,
    };
    Ok(decide(state, &question).await)
}

/// The Pod stays as it is, and its author gets a warning.
fn warned(warning: impl Into<String>) -> AdmissionOutcome {
    AdmissionOutcome { warnings: vec![warnings::line(&warning.into())], ..AdmissionOutcome::default() }
}

/// Decides within the deadline, and survives whatever happens meanwhile.
async fn decide(state: &AdmissionState, question: &PodRequest<'_>) -> (AnswerKind, AdmissionOutcome) {
    let open = |outcome, warning: &str| (outcome, warned(warning));
    let Ok(own) = timeout_at(question.deadline, turn(state, question)).await else {
        return open(AnswerKind::Overload, CROWDED);
    };
    let Ok(permit) = timeout_at(question.deadline, state.deciding.acquire()).await else {
        return open(
            AnswerKind::Overload,
            "too many Pods are being created at once; the images of this one stay as they are",
        );
    };
    // The future is only made inside, so that a panic while making it is caught as well.
    let mut deciding = pin!(AssertUnwindSafe(async { state.decide.decide(question).await }).catch_unwind());
    let charged = poll_fn(|context| {
        let begun = std::time::Instant::now();
        let progress = deciding.as_mut().poll(context);
        question.share.charge(begun.elapsed());
        progress
    });
    let result = timeout_at(question.deadline, charged).await;
    drop((permit, own));
    match result {
        Ok(Ok(decided)) => {
            let outcome = match &decided {
                decided if decided.rewritten => AnswerKind::Rewritten,
                decided if decided.patch.is_empty() => AnswerKind::Unchanged,
                _ => AnswerKind::Recorded,
            };
            (outcome, decided)
        }
        Ok(Err(_panic)) => {
            state.errors.note("deciding about a Pod panicked, which is a bug");
            tracing::error!(
                namespace = question.namespace,
                "deciding about a Pod panicked, it was left as it is; this is a bug"
            );
            open(
                AnswerKind::Panic,
                "an internal error kept the images of this Pod as they are; the operator's log has more",
            )
        }
        Err(_late) => {
            state.errors.note("deciding about a Pod took too long");
            open(AnswerKind::Late, "deciding about this Pod took too long; its images stay as they are")
        }
    }
}

/// Waits until the namespace may have another request decided.
async fn turn<'a>(
    state: &AdmissionState,
    question: &PodRequest<'a>,
) -> Result<SemaphorePermit<'a>, AcquireError> {
    let permit = question.share.deciding.acquire().await;
    loop {
        let free_at = question.share.free_at();
        if free_at <= Instant::now() || !state.shares.are_contended() {
            return permit;
        }
        sleep_until(free_at.min(Instant::now() + LONGEST_WAIT)).await;
    }
}

/// What a request is about.
enum RequestKind {
    NewPod,
    EphemeralContainers,
    Other(String),
}

fn what_is_asked<O>(request: &Request<'_, O>) -> RequestKind {
    let kind = &request.kind;
    let is_pod = kind.group.is_empty() && &*kind.version == "v1" && &*kind.kind == "Pod";
    match (is_pod, &*request.operation, &*request.sub_resource) {
        (true, "CREATE", "") => RequestKind::NewPod,
        (true, "UPDATE", "ephemeralcontainers") => RequestKind::EphemeralContainers,
        (_, operation, subresource) => {
            let slash = if subresource.is_empty() { "" } else { "/" };
            RequestKind::Other(format!(
                "{operation} of {} {}/{}{slash}{subresource}",
                &*kind.kind, &*kind.group, &*kind.version
            ))
        }
    }
}

fn render(uid: &str, api_version: &str, decided: &AdmissionOutcome) -> Option<Vec<u8>> {
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

    let patch = if decided.patch.is_empty() { None } else { decided.patch.encode().ok() };
    let patch_type = patch.is_some().then_some("JSONPatch");
    let response = Response { uid, allowed: true, patch_type, patch, warnings: &decided.warnings };
    serde_json::to_vec(&Review { api_version, kind: "AdmissionReview", response }).ok()
}

#[cfg(test)]
mod tests;
