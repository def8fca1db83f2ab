//! From manifests to policies, as the operator compiles them. What cannot be compiled is left out and named.

use std::collections::BTreeMap;
use std::sync::Arc;

use fairlead_api::kuik::{
    ClusterImageSetMirror, ClusterReplicatedImageSet, ImageSetMirror, ReplicatedImageSet,
};
use fairlead_api::reef::ProxyCache;
use fairlead_domain::reference::HostPattern;
use fairlead_plan::routing::{Policy, PolicyError, PolicyKind};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::files::{self, Manifest, Mismatch, text_at};
use super::report::Broken;

const VERSION: &str = "v1alpha1";

/// The kind of policy that an object is.
pub(crate) fn kind(object: &Value) -> Option<PolicyKind> {
    let (group, _) = text_at(object, &["apiVersion"])?.split_once('/')?;
    let kind = text_at(object, &["kind"])?;
    PolicyKind::ALL.into_iter().find(|one| group == one.group() && one.name() == kind)
}

/// Compiled policies, and what was left out of them or altogether.
#[derive(Debug)]
pub(crate) struct Policies {
    /// The registries that namespaced policies may name.
    allowed: Vec<HostPattern>,
    /// What Pods know Harbor by.
    pull_host: Option<String>,
    pub(crate) compiled: Vec<Arc<Policy>>,
    pub(crate) broken: Vec<Broken>,
    /// Objects that were given more than once.
    pub(crate) warnings: Vec<String>,
    /// Where each was read.
    places: BTreeMap<String, String>,
}

impl Policies {
    pub(crate) fn new(allowed: &[HostPattern]) -> Self {
        Self {
            allowed: allowed.to_vec(),
            pull_host: None,
            compiled: Vec::new(),
            broken: Vec::new(),
            warnings: Vec::new(),
            places: BTreeMap::new(),
        }
    }

    /// With this host for the images of proxy caches.
    pub(crate) fn pulling_from(mut self, host: Option<&str>) -> Self {
        self.pull_host = host.map(str::to_owned);
        self
    }

    /// Takes an object if it is a policy. `place` is where it was read, `namespace` where it belongs if it does not
    /// say.
    pub(crate) fn add(&mut self, place: Option<&str>, mut object: Value, namespace: &str) {
        let Some(kind) = kind(&object) else { return };
        if kind == PolicyKind::ProxyCache && object.pointer("/spec/routing").is_none_or(Value::is_null) {
            return;
        }
        if !kind.is_cluster_scoped()
            && text_at(&object, &["metadata", "namespace"]).is_none()
            && let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut)
        {
            metadata.insert("namespace".to_owned(), json!(namespace));
        }
        let title = files::title(&object);
        let broken = |field: String, message: String| Broken {
            place: place.map(str::to_owned),
            object: Some(title.clone()),
            field: Some(field),
            message,
        };
        match compile(kind, &object, self.pull_host.as_deref()).map(|policy| policy.restricted(&self.allowed))
        {
            Ok(policy) => {
                self.broken.extend(
                    policy
                        .problems()
                        .iter()
                        .map(|problem| broken(problem.field.clone(), problem.message.clone())),
                );
                self.compiled.push(Arc::new(policy));
                self.note(&title, place);
            }
            Err(Mismatch { field, message }) => self.broken.push(broken(field, message)),
        }
    }

    fn note(&mut self, title: &str, place: Option<&str>) {
        let place = place.unwrap_or_default();
        if let Some(before) = self.places.insert(title.to_owned(), place.to_owned()) {
            self.warnings
                .push(format!("{title} is there twice, at {before} and at {place}; the last one counts"));
        }
    }

    pub(crate) fn add_manifests(&mut self, manifests: &[Manifest], namespace: &str) {
        for Manifest { place, object } in manifests {
            self.add(Some(place), object.clone(), namespace);
        }
    }
}

fn compile(kind: PolicyKind, object: &Value, pull_host: Option<&str>) -> Result<Policy, Mismatch> {
    let version = text_at(object, &["apiVersion"]).unwrap_or_default();
    if version.split_once('/').is_none_or(|(_, version)| version != VERSION) {
        return Err(Mismatch {
            field: "apiVersion".to_owned(),
            message: format!("{version} is not known: write {}/{VERSION}", kind.group()),
        });
    }
    match kind {
        PolicyKind::ClusterImageSetMirror => read::<ClusterImageSetMirror>(object, Policy::cluster_mirror),
        PolicyKind::ImageSetMirror => read::<ImageSetMirror>(object, Policy::mirror),
        PolicyKind::ClusterReplicatedImageSet => {
            read::<ClusterReplicatedImageSet>(object, Policy::cluster_replicated)
        }
        PolicyKind::ReplicatedImageSet => read::<ReplicatedImageSet>(object, Policy::replicated),
        PolicyKind::ProxyCache => read::<ProxyCache>(object, |cache| Policy::proxy_cache(cache, pull_host)),
    }
}

fn read<T: DeserializeOwned>(
    object: &Value,
    compile: impl FnOnce(&T) -> Result<Policy, PolicyError>,
) -> Result<Policy, Mismatch> {
    let object: T = files::typed(object)?;
    compile(&object).map_err(|error| Mismatch { field: error.field, message: error.message })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(object: Value) -> Policies {
        let mut policies = Policies::new(&[HostPattern::everything()]);
        policies.add(Some("f.yaml:3"), object, "here");
        policies
    }

    fn mirror(spec: &Value) -> Value {
        json!({"apiVersion": "kuik.enix.io/v1alpha1", "kind": "ImageSetMirror", "metadata": {"name": "m"}, "spec": spec})
    }

    #[test]
    fn a_namespace_that_is_not_written_is_where_the_manifest_would_go() {
        let policies =
            add(mirror(&json!({"imageFilter": {"include": [".*"]}, "mirrors": [{"registry": "m.io"}]})));
        assert!(policies.broken.is_empty(), "{:?}", policies.broken);
        assert_eq!(policies.compiled[0].id().to_string(), "ImageSetMirror/here/m");
    }

    #[test]
    fn what_is_wrong_is_named_by_file_object_and_field() {
        for (object, field, left) in [
            (mirror(&json!({"priority": "high"})), "spec.priority", 0),
            (mirror(&json!({"filter": {"include": [{"image": "("}]}})), "spec.filter.include[0].image", 0),
            (
                mirror(&json!({"mirrors": [{"registry": "https://m.io"}, {"registry": "m.io"}]})),
                "spec.mirrors[0].registry",
                1,
            ),
            (
                json!({"apiVersion": "kuik.enix.io/v2", "kind": "ImageSetMirror", "metadata": {"name": "m"}}),
                "apiVersion",
                0,
            ),
        ] {
            let policies = add(object);
            assert_eq!(policies.compiled.len(), left, "{field}");
            assert_eq!(policies.broken.len(), 1);
            assert_eq!(policies.broken[0].field.as_deref(), Some(field));
            assert!(
                policies.broken[0]
                    .to_string()
                    .starts_with(&format!("f.yaml:3: ImageSetMirror/here/m: {field}: "))
            );
        }
    }

    #[test]
    fn other_kinds_are_nobodys_business() {
        for (version, kind) in
            [("v1", "ImageSetMirror"), ("kuik.enix.io/v1alpha1", "ClusterImageSetAvailability")]
        {
            let policies = add(json!({"apiVersion": version, "kind": kind, "metadata": {"name": "m"}}));
            assert!(policies.compiled.is_empty() && policies.broken.is_empty());
        }
    }
}
