//! Copies of pull secrets: what they are called, how they are marked, and when they are made, renewed and removed.
//!
//! A Pod can only use pull secrets of its own namespace, so a Secret that a cluster-scoped policy names is copied to
//! the namespaces whose Pods need it. Names and labels are those of kube-image-keeper, so that copies it left behind
//! are recognised. Secrets are never listed: a copy is found because its name follows from its source and its owner.

mod plan;
mod receiver;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use fairlead_api::kuik::GROUP;
use fairlead_api::names;
use twox_hash::XxHash64;

use crate::routing::{PolicyId, PolicyKind, SecretName};

pub use self::plan::{
    Action, Content, Copy, CopyPlace, FoundSecret, GRACE, Owner, Plan, Selection, Sighting, SourceSecret,
    VERIFY_AFTER, View, plan_copies,
};
pub use self::receiver::{NotAdded, NotCopied, OfferedSecret, Receiver, local_name};

/// Version of the policies' APIs, as a copy names it.
pub const OWNER_VERSION: &str = "v1alpha1";

/// Value of the label that says who looks after an object.
pub const MANAGED_BY: &str = "fairlead";

/// What is left of the longest name, 253 bytes, beside the prefix, a dash and the hash.
const LONGEST_SOURCE_NAME: usize = 231;
const LONGEST_LABEL_VALUE: usize = 63;

/// The name of a copy: the same in every namespace, different for each source and owner.
pub fn copy_name(source: &SecretName, owner_uid: &str) -> String {
    let hash = XxHash64::oneshot(0, format!("{}/{owner_uid}", source.namespace).as_bytes());
    // A dot before the dash would make a name that Kubernetes refuses.
    let name = cut(&source.name, LONGEST_SOURCE_NAME).trim_end_matches('.');
    format!("{}{name}-{hash:016x}", names::kuik::SECRET_NAME_PREFIX)
}

/// Whether a Secret may be a copy, by its name alone.
pub fn may_be_copy(name: &str) -> bool {
    let hash = name
        .strip_prefix(names::kuik::SECRET_NAME_PREFIX)
        .and_then(|rest| rest.rsplit_once('-'))
        .map(|(_, hash)| hash);
    hash.is_some_and(|hash| {
        hash.len() == 16 && hash.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    })
}

/// The labels of a copy.
pub fn labels(owner: &PolicyId) -> BTreeMap<&'static str, String> {
    // Names of policies may be longer than a label can be. The owner reference has the whole one.
    let not_at_end = |byte: char| !byte.is_ascii_alphanumeric();
    let name = cut(&owner.name, LONGEST_LABEL_VALUE).trim_end_matches(not_at_end);
    BTreeMap::from([
        (names::kuik::OWNER_GROUP, GROUP.to_owned()),
        (names::kuik::OWNER_VERSION, OWNER_VERSION.to_owned()),
        (names::kuik::OWNER_KIND, owner.kind.name().to_owned()),
        (names::kuik::OWNER_NAME, name.to_owned()),
        (names::kuik::OWNER_UID, owner.uid.to_string()),
        (names::kubernetes::MANAGED_BY, MANAGED_BY.to_owned()),
    ])
}

/// The `apiVersion` in a copy's reference to its owner. The garbage collector looks for the owner by it.
pub fn owner_api_version(kind: PolicyKind) -> String {
    format!("{}/{OWNER_VERSION}", kind.group())
}

/// Whether an owner reference names a kind of policies, as it is served.
pub fn names_policy_kind(api_version: &str, kind: &str) -> bool {
    PolicyKind::ALL.into_iter().any(|one| one.name() == kind && owner_api_version(one) == api_version)
}

/// The UID of the policy that a Secret is a copy for, by its labels. `None` if it is no copy.
pub fn owner_uid(labels: &BTreeMap<String, String>) -> Option<Arc<str>> {
    let label = |key: &str| labels.get(key).map(String::as_str).filter(|value| !value.is_empty());
    let uid = label(names::kuik::OWNER_UID)?;
    (label(names::kuik::OWNER_GROUP) == Some(GROUP)).then(|| uid.into())
}

/// At most so many bytes of a text, never half a character.
fn cut(text: &str, most: usize) -> &str {
    text.get(..text.floor_char_boundary(most)).unwrap_or(text)
}
