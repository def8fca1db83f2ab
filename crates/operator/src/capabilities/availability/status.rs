//! What the status of an object says, and the request that writes it.

use fairlead_api::conditions::{Finding, merge, types};
use fairlead_api::kuik::{ClusterImageSetAvailability, ClusterImageSetAvailabilityStatus};
use fairlead_plan::availability::{self, WatchReport};
use fairlead_plan::ledger::Owner;
use jiff::Timestamp;
use kube::core::ApiResource;
use serde_json::{Value, json};

use super::object::{Rule, WatchResource, WatchedSet};
use crate::controller::status::{Draft, Manner, ObjectId};

pub(super) const FIELD_MANAGER: &str = "fairlead-watch";

/// What a status says, without since when.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Essence {
    pub(super) generation: Option<i64>,
    /// `None`: the object cannot be read, and what else its status says is left as it is.
    report: Option<ClusterImageSetAvailabilityStatus>,
    ready: Finding,
}

/// What the status of an object should say now.
pub(super) fn wanted(object: &WatchedSet) -> Essence {
    let generation = object.stored.generation();
    let WatchReport { status, ready } = availability::report(&object.ledger);
    let ready = match &object.rule {
        Rule::Watched(_) => ready,
        Rule::Refused(finding) => finding.clone(),
    };
    let report = matches!(object.stored, WatchResource::Whole(_)).then_some(status);
    Essence { generation, report, ready }
}

impl Essence {
    /// Whether that is what is stored.
    pub(super) fn is_in(&self, stored: &WatchResource) -> bool {
        let ready = stored.conditions().iter().find(|one| one.type_ == types::READY);
        let says = ready.is_some_and(|one| {
            (one.status, &one.reason, &one.message)
                == (self.ready.status, &self.ready.reason, &self.ready.message)
                && one.observed_generation == self.generation
        });
        let same = |report: &ClusterImageSetAvailabilityStatus| {
            stored.status().is_some_and(|status| {
                status.observed_generation == self.generation
                    && status.image_count == report.image_count
                    && status.available_count == report.available_count
                    && status.unavailable_count == report.unavailable_count
                    && status.images == report.images
            })
        };
        says && self.report.as_ref().is_none_or(same)
    }
}

/// The request that makes a status say so.
pub(super) fn draft(essence: &Essence, stored: &WatchResource, owner: &Owner) -> Draft {
    let (own, others): (Vec<_>, Vec<_>) =
        stored.conditions().iter().cloned().partition(|one| one.type_ == types::READY);
    let ready = std::slice::from_ref(&essence.ready);
    let conditions = merge(&own, ready, essence.generation, Timestamp::now());
    let keeps_all = essence.report.as_ref().is_some_and(|report| {
        let stays = |image: &str| report.images.iter().any(|listed| listed.image == image);
        stored.status().is_none_or(|status| status.images.iter().all(|one| stays(&one.image)))
    });
    let manner =
        if keeps_all { Manner::Apply } else { Manner::Replace { version: stored.version().to_owned() } };
    let mut status = json!({"observedGeneration": essence.generation});
    if let (Some(report), Some(status)) = (&essence.report, status.as_object_mut()) {
        if let Value::Object(report) = json!(report) {
            status.extend(report);
        }
        status.insert("observedGeneration".to_owned(), json!(essence.generation));
        if !keeps_all {
            // An empty list is left out of the report, which would leave what is stored as it is.
            status.insert("images".to_owned(), json!(report.images));
        }
    }
    let object = ObjectId {
        resource: ApiResource::erase::<ClusterImageSetAvailability>(&()),
        namespace: "".into(),
        name: owner.name.clone(),
        uid: owner.uid.clone(),
    };
    Draft::new(object, manner, status, &conditions, &others)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use fairlead_api::conditions::reasons;

    use super::*;

    fn stored(status: &Value) -> WatchResource {
        let object = serde_json::from_value(json!({
            "apiVersion": "kuik.enix.io/v1alpha1", "kind": "ClusterImageSetAvailability",
            "metadata": {"name": "all", "uid": "u", "generation": 3, "resourceVersion": "7"},
            "spec": {}, "status": status,
        }));
        WatchResource::Whole(Arc::new(object.unwrap()))
    }

    fn essence(images: &[&str]) -> Essence {
        let images: Vec<_> =
            images.iter().map(|image| json!({"image": image, "status": "Available"})).collect();
        let report = json!({"imageCount": images.len(), "images": images});
        let ready = Finding::new(types::READY, true, reasons::READY, "all available");
        Essence { generation: Some(3), report: Some(serde_json::from_value(report).unwrap()), ready }
    }

    fn owner() -> Owner {
        let kind = fairlead_plan::ledger::OwnerKind::ClusterImageSetAvailability;
        Owner { kind, namespace: None, name: "all".into(), uid: "u".into() }
    }

    #[test]
    fn nothing_is_written_that_is_stored_already() {
        let essence_of_one = essence(&["a.io/a:1"]);
        let draft = draft(&essence_of_one, &stored(&json!({})), &owner());
        assert_eq!(draft.manner, Manner::Apply);
        let written = stored(&draft.body()["status"]);
        assert!(essence_of_one.is_in(&written));
        assert!(!essence(&["a.io/a:1", "a.io/b:1"]).is_in(&written));
        assert!(
            !Essence { generation: Some(4), ..essence(&["a.io/a:1"]) }.is_in(&written),
            "it is another version"
        );
    }

    #[test]
    fn what_others_listed_goes_and_what_others_judged_stays() {
        let time = "2026-01-01T00:00:00Z";
        let theirs = json!({"type": "Audited", "status": "True", "reason": "Seen", "message": "", "lastTransitionTime": time});
        let ours = json!({"type": "Ready", "status": "True", "reason": "Old", "message": "", "lastTransitionTime": time});
        let before = stored(
            &json!({"images": [{"image": "old.io/x:1", "status": "Available"}], "conditions": [theirs, ours]}),
        );
        for images in [&["a.io/a:1"][..], &[]] {
            let body = draft(&essence(images), &before, &owner()).body();
            assert_eq!(body["metadata"], json!({"name": "all", "uid": "u", "resourceVersion": "7"}));
            assert_eq!(body["status"]["images"].as_array().map(Vec::len), Some(images.len()), "{body}");
            let conditions = body["status"]["conditions"].as_array().unwrap();
            assert_eq!(conditions[0]["type"], "Audited");
            assert_eq!(conditions[1]["lastTransitionTime"], time, "it was ready all the time");
        }
    }
}
