//! What an answer must be: the Pod is admitted, and its images are where they should be.

use anyhow::{Context, Result, ensure};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde::Deserialize;
use serde_json::Value;

use super::reviews::{self, Review};

/// Far enough into an answer to find out that the Pod is admitted.
const BEGINNING: usize = 400;

#[derive(Deserialize)]
struct Answer {
    response: Response,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Response {
    uid: String,
    allowed: bool,
    #[serde(default)]
    patch: Option<String>,
    #[serde(default)]
    warnings: Vec<String>,
}

/// A glance that costs next to nothing, for every answer.
pub(crate) fn glance(answer: &[u8]) -> Result<()> {
    let beginning = String::from_utf8_lossy(answer.get(..answer.len().min(BEGINNING)).unwrap_or_default());
    ensure!(beginning.contains(r#""allowed":true"#), "a Pod is not admitted: {beginning}");
    Ok(())
}

/// The Pod after the patch of the answer, which must be the one to this review.
fn patched(review: &Review, answer: &[u8]) -> Result<Value> {
    let answer: Answer = serde_json::from_slice(answer).context("the answer is no AdmissionReview")?;
    let Response { uid, allowed, patch, warnings } = answer.response;
    ensure!(uid == review.uid, "the answer is to {uid} instead of {}", review.uid);
    ensure!(allowed, "the Pod is not admitted: {warnings:?}");
    let mut pod = review.pod.clone();
    if let Some(patch) = patch {
        let patch: json_patch::Patch = serde_json::from_slice(&BASE64_STANDARD.decode(patch)?)?;
        json_patch::patch(&mut pod, &patch).context("the patch does not fit the Pod")?;
    }
    Ok(pod)
}

/// That every container gets the copy of its image below `place`, by tag or by tag and digest.
pub(crate) fn expect(review: &Review, answer: &[u8], place: &str) -> Result<()> {
    let pod = patched(review, answer)?;
    let containers = pod.pointer("/spec/containers").and_then(Value::as_array);
    let tag = |image: &str| image.split('@').next().unwrap_or_default().to_owned();
    let image = |container: &Value| Some(tag(container.get("image")?.as_str()?));
    let found: Vec<String> =
        containers.context("the Pod has lost its containers")?.iter().filter_map(image).collect();
    let wanted: Vec<String> = review.images.iter().map(|number| copy(place, *number)).collect();
    let record = pod.pointer("/metadata/annotations/fairlead.dev~1routes");
    ensure!(found == wanted, "the images are {found:?} instead of {wanted:?}; the record is {record:?}");
    Ok(())
}

/// The image that the first container gets.
pub(crate) fn image(review: &Review, answer: &[u8]) -> Result<String> {
    let pod = patched(review, answer)?;
    let image = pod.pointer("/spec/containers/0/image").and_then(Value::as_str);
    Ok(image.context("the Pod has lost its container")?.to_owned())
}

/// Reference of an image's copy.
pub(crate) fn copy(place: &str, number: usize) -> String {
    let (repository, tag) = reviews::image(number);
    format!("{place}/{repository}:{tag}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn answer(uid: &str, patch: &Value) -> Vec<u8> {
        let patch = BASE64_STANDARD.encode(patch.to_string());
        let response = json!({"uid": uid, "allowed": true, "patchType": "JSONPatch", "patch": patch});
        serde_json::to_vec(&json!({"kind": "AdmissionReview", "response": response})).unwrap()
    }

    #[test]
    fn only_the_right_copies_are_accepted() {
        let review = reviews::all("127.0.0.1:1", reviews::Shape::of(1)).unwrap().remove(3);
        let path = "/spec/containers/0/image";
        let right = json!([{"op": "replace", "path": path, "value": copy("127.0.0.1:2/copies", 3)}]);
        expect(&review, &answer(&review.uid, &right), "127.0.0.1:2/copies").unwrap();
        assert!(expect(&review, &answer(&review.uid, &right), "127.0.0.1:3/copies").is_err());
        assert!(expect(&review, &answer("another", &right), "127.0.0.1:2/copies").is_err());
        assert!(expect(&review, &answer(&review.uid, &json!([])), "127.0.0.1:2/copies").is_err());
        assert!(glance(&answer("any", &right)).is_ok() && glance(br#"{"allowed":false}"#).is_err());
    }
}
