//! A copy as an object: how it is written, and how one is recognised.

use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use fairlead_api::names;
use fairlead_domain::keyring::SecretKind;
use fairlead_plan::certificates::WallTime;
use fairlead_plan::pull_secrets::{self, Copy, CopyPlace, FoundSecret, MANAGED_BY};
use fairlead_plan::routing::PolicyId;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::{Value, json};

use crate::registries::secrets::{Keys, credentials};

/// An annotation that claims a later time is no measure of age.
const CLOCKS_DIFFER: Duration = Duration::from_mins(5);

/// The copy for server-side apply. With a version it is applied only to that version.
pub(super) fn write(
    owner: &PolicyId,
    keys: &Keys,
    place: &CopyPlace,
    version: Option<&str>,
    now: WallTime,
) -> Value {
    let seconds = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    let applied_at = Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX).to_string();
    let mut metadata = json!({
        "name": &*place.name,
        "namespace": &*place.namespace,
        "labels": pull_secrets::labels(owner),
        "annotations": {names::fairlead::APPLIED_AT: applied_at},
        "ownerReferences": [{
            "apiVersion": pull_secrets::owner_api_version(owner.kind),
            "kind": owner.kind.name(),
            "name": &*owner.name,
            "uid": &*owner.uid,
            "blockOwnerDeletion": false,
            "controller": false,
        }],
    });
    if let (Some(version), Some(metadata)) = (version, metadata.as_object_mut()) {
        metadata.insert("resourceVersion".to_owned(), version.into());
    }
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata,
        "type": keys.type_name(),
        "data": {keys.kind().data_key(): BASE64_STANDARD.encode(keys.data())},
    })
}

/// What the Secret is to us: a copy for the owner, if one is expected, or else for any policy.
pub(super) fn recognise(secret: &Secret, owner_uid: Option<&str>, now: WallTime) -> FoundSecret {
    let kind = secret.type_.as_deref().and_then(SecretKind::of_type);
    let data = kind.and_then(|kind| {
        let value = secret.data.as_ref()?.get(kind.data_key())?;
        Some(credentials::content(kind, &value.0))
    });
    match recognise_metadata(&secret.metadata, owner_uid, now) {
        FoundSecret::Copy(copy) => FoundSecret::Copy(Copy { content: data, ..copy }),
        other => other,
    }
}

/// The same for a Secret of which only the metadata was read.
pub(super) fn recognise_metadata(
    metadata: &ObjectMeta,
    owner_uid: Option<&str>,
    now: WallTime,
) -> FoundSecret {
    let labels = metadata.labels.clone().unwrap_or_default();
    let Some(uid) = pull_secrets::owner_uid(&labels) else { return FoundSecret::Foreign };
    if owner_uid.is_some_and(|expected| *expected != *uid) {
        return FoundSecret::Foreign;
    }
    let owned = metadata.owner_references.iter().flatten().any(|reference| {
        *reference.uid == *uid && pull_secrets::names_policy_kind(&reference.api_version, &reference.kind)
    });
    let managed = labels.get(names::kubernetes::MANAGED_BY).is_some_and(|by| by == MANAGED_BY);
    let annotation =
        metadata.annotations.as_ref().and_then(|annotations| annotations.get(names::fairlead::APPLIED_AT));
    let applied = annotation
        .and_then(|text| text.parse::<Timestamp>().ok())
        .map(since_epoch)
        .filter(|at| *at <= now.saturating_add(CLOCKS_DIFFER));
    let created = metadata.creation_timestamp.as_ref().map(|time| since_epoch(time.0));
    FoundSecret::Copy(Copy {
        owner_uid: uid,
        uid: metadata.uid.clone().unwrap_or_default(),
        resource_version: metadata.resource_version.clone().unwrap_or_default(),
        applied_at: applied.or(created).unwrap_or_default(),
        content: None,
        complete: owned && managed && applied.is_some(),
    })
}

fn since_epoch(time: Timestamp) -> WallTime {
    Duration::try_from(time.as_duration()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use fairlead_plan::routing::PolicyKind;

    use super::*;

    const NOW: WallTime = Duration::from_hours(500_000);

    fn owner() -> PolicyId {
        let kind = PolicyKind::ClusterReplicatedImageSet;
        PolicyId { kind, namespace: None, name: "everywhere".into(), uid: "u-1".into() }
    }

    fn keys(text: &str) -> Keys {
        let data = BASE64_STANDARD.encode(text);
        let secret = json!({"type": "kubernetes.io/dockercfg", "data": {".dockercfg": data, "other": data}});
        Keys::of(serde_json::from_value(secret).expect("a Secret")).expect("a configuration")
    }

    fn place() -> CopyPlace {
        CopyPlace { namespace: "shop".into(), name: "kuik-pull-0123456789abcdef".into() }
    }

    fn secret(value: &Value) -> Secret {
        serde_json::from_value(value.clone()).expect("a Secret")
    }

    #[test]
    fn a_copy_is_recognised_and_nothing_else_is() {
        let keys = keys(r#"{"r.io": {}}"#);
        let written = write(&owner(), &keys, &place(), None, NOW);
        assert_eq!(
            written["data"].as_object().map(serde_json::Map::len),
            Some(1),
            "credentials and nothing else"
        );
        let FoundSecret::Copy(copy) = recognise(&secret(&written), Some("u-1"), NOW) else {
            panic!("{written}")
        };
        assert_eq!((copy.content, copy.applied_at, copy.complete), (Some(keys.content()), NOW, true));
        assert_eq!(
            recognise(&secret(&written), Some("u-2"), NOW),
            FoundSecret::Foreign,
            "a copy for another policy"
        );
        assert!(matches!(recognise(&secret(&written), None, NOW), FoundSecret::Copy(_)));

        let mut foreign = written.clone();
        foreign["metadata"]["labels"] = json!({"app": "theirs"});
        assert_eq!(recognise(&secret(&foreign), Some("u-1"), NOW), FoundSecret::Foreign);

        // kube-image-keeper left its labels and no owner.
        let mut old = written;
        let metadata = old["metadata"].as_object_mut().expect("metadata");
        metadata.remove("ownerReferences");
        metadata.remove("annotations");
        metadata.insert("creationTimestamp".to_owned(), json!("2026-01-01T00:00:00Z"));
        let FoundSecret::Copy(copy) = recognise(&secret(&old), Some("u-1"), NOW) else { panic!("{old}") };
        assert_eq!((copy.applied_at.as_secs(), copy.complete), (1_767_225_600, false));
    }

    /// The garbage collector removes nothing whose owner is of a kind that it does not find.
    #[test]
    fn a_copy_names_its_owner_by_the_group_of_its_kind() {
        for (kind, api_version) in [
            (PolicyKind::ClusterReplicatedImageSet, "kuik.enix.io/v1alpha1"),
            (PolicyKind::ProxyCache, "harbor-reef.nvidia.com/v1alpha1"),
        ] {
            let mut written = write(&PolicyId { kind, ..owner() }, &keys("{}"), &place(), None, NOW);
            let is_complete = |written: &Value| {
                let found = recognise(&secret(written), Some("u-1"), NOW);
                matches!(found, FoundSecret::Copy(copy) if copy.complete)
            };
            assert_eq!(written["metadata"]["ownerReferences"][0]["apiVersion"], api_version);
            assert_eq!(written["metadata"]["labels"]["kuik.enix.io/owner-group"], "kuik.enix.io");
            assert!(is_complete(&written), "{written}");
            written["metadata"]["ownerReferences"][0]["apiVersion"] = json!("other.example/v1alpha1");
            assert!(!is_complete(&written), "it is written anew");
        }
    }

    #[test]
    fn a_time_in_the_future_is_not_believed() {
        let mut written = write(&owner(), &keys("{}"), &place(), None, NOW + Duration::from_hours(1));
        written["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
        let FoundSecret::Copy(copy) = recognise(&secret(&written), Some("u-1"), NOW) else {
            panic!("{written}")
        };
        assert_eq!(copy.applied_at.as_secs(), 1_767_225_600);
    }
}
