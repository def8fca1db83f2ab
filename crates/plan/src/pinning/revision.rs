//! Which revision of which workload a Pod belongs to.

use fairlead_api::fairlead::PinnedWorkload;
use fairlead_api::names::kubernetes::{CONTROLLER_REVISION_HASH, POD_TEMPLATE_HASH};
use fairlead_domain::digest::Digest;
use fairlead_domain::selector::Labels;

use crate::owners::Controller;

/// Bytes of the workload's name in the name of a pin, which has 253 in all.
const NAME_BYTES: usize = 200;
/// Digits of the hash that tells pins apart.
const HASH_DIGITS: usize = 16;

/// A revision of a workload. Its Pods are to run the same bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Revision {
    /// The controller of the Pods: of a Deployment its `ReplicaSet`, which a rollback takes up again.
    pub workload: PinnedWorkload,
    pub revision: String,
}

/// The revision of a Pod, by the labels that Kubernetes' controllers give their Pods. A Pod of another controller, of a
/// virtual machine for instance, is of the one revision that its owner has. One without controller is of none.
pub fn revision(controller: Option<Controller<'_>>, labels: &dyn Labels) -> Option<Revision> {
    let Controller { api_version, kind, name, uid } = controller?;
    let [template, history] = [POD_TEMPLATE_HASH, CONTROLLER_REVISION_HASH].map(|key| labels.value(key));
    let workload = PinnedWorkload {
        api_version: api_version.to_owned(),
        kind: kind.to_owned(),
        name: name.to_owned(),
        uid: uid.to_owned(),
    };
    let revision = revision_label(uid, template, history).to_owned();
    (!uid.is_empty()).then_some(Revision { workload, revision })
}

/// What tells the revisions of a controller apart, by the labels of its Pods.
pub fn revision_label<'a>(
    uid: &'a str,
    template_hash: Option<&'a str>,
    revision_hash: Option<&'a str>,
) -> &'a str {
    template_hash.or(revision_hash).filter(|label| !label.is_empty()).unwrap_or(uid)
}

impl Revision {
    /// The name of the revision's pin: the same on every replica.
    pub fn pin_name(&self) -> String {
        let identity = Digest::sha256(format!("{}\n{}", self.workload.uid, self.revision).as_bytes()).hex();
        let hash = identity.get(..HASH_DIGITS).unwrap_or_default();
        let legal = |one: char| if one.is_ascii_alphanumeric() || one == '.' { one } else { '-' };
        let name: String =
            self.workload.name.to_ascii_lowercase().chars().take(NAME_BYTES).map(legal).collect();
        // A label between dots must not end or begin with a dash.
        let name = name.split('.').map(|part| part.trim_matches('-')).filter(|part| !part.is_empty());
        let mut name = name.collect::<Vec<_>>().join(".");
        if !name.is_empty() {
            name.push('-');
        }
        name + hash
    }
}

/// Under which names the `ControllerRevision` of a pinned revision may be stored: a `StatefulSet` labels its Pods with
/// the whole name, a `DaemonSet` with the hash at its end. None for revisions that live and die with their owner.
pub fn revision_names(workload: &PinnedWorkload, revision: &str) -> Option<[String; 2]> {
    let has_history = workload.kind != "ReplicaSet" && revision != workload.uid;
    has_history.then(|| [revision.to_owned(), format!("{}-{revision}", workload.name)])
}
