//! What drift means to an `ImagePin`: whether a tag that it holds has moved, and whether the Pods of its revision run
//! different content.

use std::collections::BTreeMap;

use fairlead_api::conditions::{Finding, reasons, types};
use fairlead_api::fairlead::PinnedImage;
use fairlead_domain::reference::Reference;

use super::{Drift, DriftKind};

/// Drift of one image of a revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RevisionDrift {
    pub kind: DriftKind,
    /// As it was asked for.
    pub image: String,
    pub message: String,
}

/// A revision whose Pods run what has drifted.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DriftedRevision {
    /// UID of the controller of its Pods. A `StatefulSet` or a `DaemonSet` is the controller of all its revisions.
    pub controller: String,
    pub revision: String,
}

/// Drift by revision. Replicas of different revisions may differ: a rollout is under way.
pub fn by_revision(drifts: &[Drift]) -> BTreeMap<DriftedRevision, Vec<RevisionDrift>> {
    let mut all: BTreeMap<DriftedRevision, Vec<RevisionDrift>> = BTreeMap::new();
    for drift in drifts.iter().filter(|drift| drift.kind != DriftKind::Mirror) {
        let mut contents: BTreeMap<&DriftedRevision, usize> = BTreeMap::new();
        for revision in drift.revisions.iter().flatten() {
            *contents.entry(revision).or_default() += 1;
        }
        let needed = if drift.kind == DriftKind::Replicas { 2 } else { 1 };
        for (revision, _) in contents.into_iter().filter(|(_, contents)| *contents >= needed) {
            let (kind, image, message) = (drift.kind, drift.image.clone(), drift.message.clone());
            all.entry(revision.clone()).or_default().push(RevisionDrift { kind, image, message });
        }
    }
    all
}

/// The condition `Current` of a pin. `carries`: the pin has had it before; one that never drifted has none.
pub fn currency(images: &[PinnedImage], drifts: &[RevisionDrift], carries: bool) -> Option<Finding> {
    let key = |text: &str| Reference::parse(text).ok().map(|image| image.key());
    let is_pinned = |drift: &&RevisionDrift| {
        key(&drift.image)
            .is_some_and(|drifting| images.iter().any(|one| key(&one.asked) == Some(drifting.clone())))
    };
    let Some(drift) = drifts.iter().filter(is_pinned).min_by_key(|drift| drift.kind) else {
        let message = "no pinned image is known to have drifted";
        return carries.then(|| Finding::new(types::CURRENT, true, reasons::DIGESTS_AGREE, message));
    };
    Some(Finding::new(types::CURRENT, false, drift.kind.reason(), drift.message.clone()))
}

#[cfg(test)]
mod tests {
    use fairlead_api::conditions::ConditionStatus;
    use serde_json::json;

    use super::*;

    fn revision(text: &str) -> DriftedRevision {
        let (controller, revision) = text.split_once('/').expect("a controller and its revision");
        DriftedRevision { controller: controller.to_owned(), revision: revision.to_owned() }
    }

    /// `contents`: for each, the revisions whose Pods run it.
    fn drift(kind: DriftKind, image: &str, contents: &[&[&str]]) -> Drift {
        let text = String::new;
        Drift {
            kind,
            namespace: "shop".to_owned(),
            workload_kind: text(),
            workload: text(),
            image_of: text(),
            image: image.to_owned(),
            message: format!("{image} has drifted"),
            digests: Vec::new(),
            pod: text(),
            revisions: contents.iter().map(|of| of.iter().map(|text| revision(text)).collect()).collect(),
        }
    }

    #[test]
    fn a_pin_says_that_its_tag_moved_and_says_so_no_more_when_it_is_back() {
        let image = json!({
            "asked": "docker.io/library/app:1", "digest": format!("sha256:{:064}", 0),
            "resolvedAt": "2026-01-01T00:00:00Z",
        });
        let pinned: Vec<PinnedImage> = serde_json::from_value(json!([image])).expect("an image");
        // Both are of one StatefulSet.
        let drifts = [
            drift(DriftKind::Upstream, "app:1", &[&["set/old"]]),
            drift(DriftKind::Mirror, "app:1", &[&["set/new"]]),
        ];
        let by = by_revision(&drifts);
        let of = |text: &str| by.get(&revision(text)).map(Vec::as_slice).unwrap_or_default();
        let found = currency(&pinned, of("set/old"), false).expect("a condition");
        assert_eq!((found.status, &*found.reason), (ConditionStatus::False, "TagMoved"));
        assert_eq!(currency(&pinned, of("set/new"), false), None, "it never drifted");
        let found = currency(&pinned, of("set/new"), true).expect("a condition");
        assert_eq!((found.status, &*found.reason), (ConditionStatus::True, "DigestsAgree"));
        let other = by_revision(&[drift(DriftKind::Upstream, "other:1", &[&["set/old"]])]);
        assert_eq!(currency(&pinned, &other[&revision("set/old")], false), None, "that image is not pinned");
    }

    #[test]
    fn replicas_of_two_revisions_may_differ() {
        let rollout = [drift(DriftKind::Replicas, "app:1", &[&["set/old"], &["set/new"]])];
        assert!(by_revision(&rollout).is_empty());
        let differing = [drift(DriftKind::Replicas, "app:1", &[&["set/old"], &["set/new", "set/old"]])];
        let by = by_revision(&differing);
        assert_eq!(by.keys().collect::<Vec<_>>(), [&revision("set/old")]);
        assert_eq!(by[&revision("set/old")][0].kind, DriftKind::Replicas);
    }
}
