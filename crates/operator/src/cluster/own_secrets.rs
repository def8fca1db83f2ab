//! Secrets of the operator's own namespace: which there are, and in which version.
//!
//! The one place where Secrets are listed and watched, because a password that was changed there has to reach Harbor at
//! once. What they hold is dropped as they are decoded; those who need it read the Secret by name. They are watched
//! only while a capability needs it.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Secret;
use kube::api::ObjectMeta;
use serde::Deserialize;
use tokio::sync::watch;

use super::nodes::Watched;
use super::state::{Changes, Store};
use crate::cluster::watch::{or_default, stands_for};

/// The Secrets that readers share. Written by their watch alone.
#[derive(Debug, Clone)]
pub struct OwnSecrets {
    store: Store<LeanSecret>,
    needed: Arc<watch::Sender<usize>>,
}

impl Default for OwnSecrets {
    fn default() -> Self {
        Self { store: Store::default(), needed: Arc::new(watch::Sender::new(0)) }
    }
}

impl OwnSecrets {
    /// Has them watched until what is returned is dropped. With the last one, they are forgotten.
    #[must_use]
    pub fn keep_watched(&self) -> Watched {
        Watched::new(&self.needed)
    }

    /// The version of a Secret, if there is one of this name.
    pub fn version(&self, name: &str) -> Option<String> {
        let snapshot = self.store.snapshot();
        let found = snapshot.objects.iter().find(|(key, _)| &*key.name == name);
        found.map(|(_, secret)| version_of(&secret.metadata))
    }

    pub fn changes(&self) -> Changes {
        self.store.changes()
    }

    pub(super) fn store(&self) -> &Store<LeanSecret> {
        &self.store
    }

    pub(super) fn needed(&self) -> watch::Receiver<usize> {
        self.needed.subscribe()
    }
}

/// Tells one version of a Secret from every other, also from one that was made anew under the same name.
pub fn version_of(meta: &ObjectMeta) -> String {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    format!("{}/{}", text(&meta.uid), text(&meta.resource_version))
}

#[derive(Debug, Clone, Deserialize)]
#[serde(from = "Wire")]
pub(crate) struct LeanSecret {
    /// Name, namespace, UID and version; nothing else is filled.
    pub(crate) metadata: ObjectMeta,
}

#[derive(Deserialize)]
struct Wire {
    #[serde(default, deserialize_with = "or_default")]
    metadata: WireMeta,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct WireMeta {
    name: Option<String>,
    namespace: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
}

impl From<Wire> for LeanSecret {
    fn from(Wire { metadata }: Wire) -> Self {
        let WireMeta { name, namespace, uid, resource_version } = metadata;
        Self { metadata: ObjectMeta { name, namespace, uid, resource_version, ..ObjectMeta::default() } }
    }
}

stands_for!(LeanSecret, Secret);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_secret_holds_is_dropped() {
        let text = r#"{"metadata":{"name":"a","namespace":"n","uid":"u","resourceVersion":"7","labels":{"x":"y"}},
            "data":{"password":"cGE1NQ=="}}"#;
        let secret: LeanSecret = serde_json::from_str(text).expect("a Secret");
        assert_eq!(version_of(&secret.metadata), "u/7");
        assert!(!format!("{secret:?}").contains("cGE1NQ"));
    }
}
