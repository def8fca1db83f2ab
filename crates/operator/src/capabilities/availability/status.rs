//! What the status of an object says, and the request that writes it.

use fairlead_api::conditions::{Condition, Finding, merge, types};
use fairlead_api::kuik::{ClusterImageSetAvailability, ClusterImageSetAvailabilityStatus};
use fairlead_plan::availability::{self, Report};
use fairlead_plan::ledger::Owner;
use jiff::Timestamp;
use kube::api::DynamicObject;
use kube::core::ApiResource;
use kube::{Api, Client};
use serde_json::{Value, json};

use super::object::{Object, Rule, Stored};
use crate::controller::status::Manner;
use crate::platform::api_error::Failure;

const FIELD_MANAGER: &str = "fairlead-watch";

/// What a status says, without since when.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Essence {
    pub(super) generation: Option<i64>,
    /// `None`: the object cannot be read, and what else its status says is left as it is.
    report: Option<ClusterImageSetAvailabilityStatus>,
    ready: Finding,
}

/// What the status of an object should say now.
pub(super) fn wanted(object: &Object) -> Essence {
    let generation = object.stored.generation();
    let Report { status, ready } = availability::report(&object.ledger);
    let ready = match &object.rule {
        Rule::Watched(_) => ready,
        Rule::Refused(finding) => finding.clone(),
    };
    let report = matches!(object.stored, Stored::Whole(_)).then_some(status);
    Essence { generation, report, ready }
}

impl Essence {
    /// Whether that is what is stored.
    pub(super) fn is_in(&self, stored: &Stored) -> bool {
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

/// A status to be written.
#[derive(Debug)]
pub(super) struct Draft {
    pub(super) essence: Essence,
    manner: Manner,
    conditions: Vec<Condition>,
}

impl Draft {
    pub(super) fn new(essence: Essence, stored: &Stored) -> Self {
        let (own, others): (Vec<_>, Vec<_>) =
            stored.conditions().iter().cloned().partition(|one| one.type_ == types::READY);
        let conditions =
            merge(&own, std::slice::from_ref(&essence.ready), essence.generation, Timestamp::now());
        let keeps_all = essence.report.as_ref().is_some_and(|report| {
            let stays = |image: &str| report.images.iter().any(|listed| listed.image == image);
            stored.status().is_none_or(|status| status.images.iter().all(|one| stays(&one.image)))
        });
        let manner = if keeps_all {
            Manner::Apply
        } else {
            Manner::Replace { version: stored.version().to_owned(), others }
        };
        Self { essence, manner, conditions }
    }

    pub(super) async fn write(&self, client: &Client, owner: &Owner) -> Result<(), Failure> {
        let resource = ApiResource::erase::<ClusterImageSetAvailability>(&());
        let api: Api<DynamicObject> = Api::all_with(client.clone(), &resource);
        let body = self.body(owner, &resource);
        self.manner.write(&api, &owner.name, FIELD_MANAGER, body).await
    }

    fn body(&self, owner: &Owner, resource: &ApiResource) -> Value {
        let metadata = self.manner.metadata(&owner.name, &owner.uid);
        let conditions = self.manner.conditions(&self.conditions);
        let mut status = match &self.essence.report {
            Some(report) => json!(report),
            None => json!({}),
        };
        if let Some(status) = status.as_object_mut() {
            if let (Manner::Replace { .. }, Some(report)) = (&self.manner, &self.essence.report) {
                // An empty list is left out of the report, which would leave what is stored as it is.
                status.insert("images".to_owned(), json!(report.images));
            }
            status.insert("observedGeneration".to_owned(), json!(self.essence.generation));
            status.insert("conditions".to_owned(), json!(conditions));
        }
        json!({"apiVersion": resource.api_version, "kind": resource.kind, "metadata": metadata, "status": status})
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use fairlead_api::conditions::reasons;

    use super::*;

    fn stored(status: &Value) -> Stored {
        let object = serde_json::from_value(json!({
            "apiVersion": "kuik.enix.io/v1alpha1", "kind": "ClusterImageSetAvailability",
            "metadata": {"name": "all", "uid": "u", "generation": 3, "resourceVersion": "7"},
            "spec": {}, "status": status,
        }));
        Stored::Whole(Arc::new(object.unwrap()))
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

    fn body(draft: &Draft) -> Value {
        draft.body(&owner(), &ApiResource::erase::<ClusterImageSetAvailability>(&()))
    }

    #[test]
    fn nothing_is_written_that_is_stored_already() {
        let draft = Draft::new(essence(&["a.io/a:1"]), &stored(&json!({})));
        assert!(matches!(draft.manner, Manner::Apply));
        let written = stored(&body(&draft)["status"]);
        assert!(draft.essence.is_in(&written));
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
            let body = body(&Draft::new(essence(images), &before));
            assert_eq!(body["metadata"], json!({"name": "all", "uid": "u", "resourceVersion": "7"}));
            assert_eq!(body["status"]["images"].as_array().map(Vec::len), Some(images.len()), "{body}");
            let conditions = body["status"]["conditions"].as_array().unwrap();
            assert_eq!(conditions[0]["type"], "Audited");
            assert_eq!(conditions[1]["lastTransitionTime"], time, "it was ready all the time");
        }
    }
}
