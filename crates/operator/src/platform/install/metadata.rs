//! Names and labels that every object of an installation carries.

use std::collections::BTreeMap;

use fairlead_api::names::kubernetes::{self, COMPONENT, INSTANCE, MANAGED_BY, PART_OF};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::{InstallSettings, NAME};

pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The labels that select the operator's Pods. A Deployment's selector can never change, so these are only what will
/// stay true with every installer: no version, and no name of a Helm release.
const SELECTOR: [(&str, &str); 2] = [(kubernetes::NAME, NAME), (COMPONENT, "operator")];

pub(super) fn selector() -> BTreeMap<String, String> {
    SELECTOR.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

/// Who manages an object is not said on Pods, so that changing hands between kubectl and Helm restarts nothing.
pub(super) fn pod_labels() -> BTreeMap<String, String> {
    let mut labels = selector();
    for (key, value) in [(INSTANCE, NAME), (PART_OF, NAME), (kubernetes::VERSION, VERSION)] {
        labels.insert(key.to_owned(), value.to_owned());
    }
    labels
}

pub(super) fn labels() -> BTreeMap<String, String> {
    let mut labels = pod_labels();
    labels.insert(MANAGED_BY.to_owned(), "fairlead-manifests".to_owned());
    labels
}

pub(super) fn cluster_wide(name: &str) -> ObjectMeta {
    ObjectMeta { name: Some(name.to_owned()), labels: Some(labels()), ..ObjectMeta::default() }
}

pub(super) fn namespaced(settings: &InstallSettings, name: &str) -> ObjectMeta {
    ObjectMeta { namespace: Some(settings.namespace.clone()), ..cluster_wide(name) }
}
