//! From the bytes of a request to the bytes of its answer.

use std::panic::AssertUnwindSafe;

use futures::FutureExt;
use serde::Serialize;
use tokio::time::{Instant, timeout_at};

use super::{
    decide::{PodRequest, Verdict},
    metrics::Outcome,
    review::{PodObject, Request, Review, uid_of_prefix},
    state::State,
};

const API_VERSION: &str = "admission.k8s.io/v1";

/// Warnings longer than this are cut by API servers.
const LONGEST_WARNING: usize = 240;

/// An answer, and what to count it as.
pub(super) struct Answer {
    pub(super) outcome: Outcome,
    /// The `AdmissionReview` to send; none if the request told no identity to answer to.
    pub(super) review: Option<Vec<u8>>,
}

impl Answer {
    fn new(uid: &str, api_version: &str, outcome: Outcome, verdict: Verdict) -> Self {
        let review = render(uid, api_version, verdict);
        Self { outcome, review }
    }

    /// Allowed and unchanged, with a word about why.
    fn open(uid: &str, api_version: &str, outcome: Outcome, warning: impl Into<String>) -> Self {
        Self::new(uid, api_version, outcome, Verdict { patch: None, warnings: vec![warning.into()] })
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
    if let Some(what) = not_a_new_pod(&request) {
        let warning =
            format!("{what} is not what this webhook is for: let its configuration send only CREATE of Pods");
        return Answer::open(&request.uid, version, Outcome::Odd, warning);
    }
    let Some(object) = request.object else {
        return Answer::open(&request.uid, version, Outcome::Odd, "the request came without its Pod");
    };
    let pod = match serde_json::from_str::<PodObject<'_>>(object.get()) {
        Ok(pod) => pod,
        Err(error) => {
            tracing::warn!(%error, namespace = &*request.namespace, "a Pod could not be read and was left as it is");
            return Answer::open(
                &request.uid,
                version,
                Outcome::Malformed,
                format!("this Pod could not be read: {error}"),
            );
        }
    };
    let is_own = *request.namespace == *state.own_namespace;
    if is_own || pod.is_mirror_pod() || state.skip.matches(object.get()) {
        return Answer::new(&request.uid, version, Outcome::Skipped, Verdict::default());
    }
    let question = PodRequest {
        namespace: &request.namespace,
        dry_run: request.dry_run.unwrap_or(false),
        pod: &pod,
        deadline,
    };
    let (outcome, verdict) = decide(state, &question).await;
    Answer::new(&request.uid, version, outcome, verdict)
}

/// Decides within the deadline, and survives whatever happens meanwhile.
async fn decide(state: &State, question: &PodRequest<'_>) -> (Outcome, Verdict) {
    let open =
        |outcome, warning: &str| (outcome, Verdict { patch: None, warnings: vec![warning.to_owned()] });
    let Ok(permit) = timeout_at(question.deadline, state.deciding.acquire()).await else {
        return open(
            Outcome::Overload,
            "too many Pods are being created at once; the images of this one stay as they are",
        );
    };
    // The future is only made inside, so that a panic while making it is caught as well.
    let deciding = AssertUnwindSafe(async { state.decide.decide(question).await }).catch_unwind();
    let result = timeout_at(question.deadline, deciding).await;
    drop(permit);
    match result {
        Ok(Ok(Ok(verdict))) => {
            let outcome = if verdict.patch.is_some() { Outcome::Recorded } else { Outcome::Unchanged };
            (outcome, verdict)
        }
        Ok(Ok(Err(error))) => {
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
            open(Outcome::Late, "deciding about this Pod took too long; its images stay as they are")
        }
    }
}

/// What a request is about, if it is not about the creation of a Pod.
fn not_a_new_pod(request: &Request<'_>) -> Option<String> {
    let kind = &request.kind;
    let is_pod = kind.group.is_empty() && &*kind.version == "v1" && &*kind.kind == "Pod";
    if is_pod && &*request.operation == "CREATE" && request.sub_resource.is_empty() {
        return None;
    }
    let subresource =
        if request.sub_resource.is_empty() { String::new() } else { format!("/{}", &*request.sub_resource) };
    Some(format!(
        "{} of {} {}/{}{subresource}",
        &*request.operation, &*kind.kind, &*kind.group, &*kind.version
    ))
}

fn render(uid: &str, api_version: &str, verdict: Verdict) -> Option<Vec<u8>> {
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
        #[serde(skip_serializing_if = "Vec::is_empty")]
        warnings: Vec<String>,
    }

    let patch = verdict.patch.and_then(|patch| patch.encode().ok());
    let warnings = verdict.warnings.iter().map(|warning| shorten(&format!("fairlead: {warning}"))).collect();
    let patch_type = patch.is_some().then_some("JSONPatch");
    let response = Response { uid, allowed: true, patch_type, patch, warnings };
    serde_json::to_vec(&Review { api_version, kind: "AdmissionReview", response }).ok()
}

/// One line of bounded length, without control characters, as it travels in an HTTP header.
fn shorten(warning: &str) -> String {
    warning.chars().map(|c| if c.is_control() { ' ' } else { c }).take(LONGEST_WARNING).collect()
}

#[cfg(test)]
mod tests;
