//! What types have in common that hold little of an object and stand for its kind.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::ObjectMeta;
use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer};

/// As much of an object's metadata as is decoded where only its name and a few annotations matter.
#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LeanMeta<Annotations> {
    name: Option<String>,
    namespace: Option<String>,
    pub(crate) resource_version: Option<String>,
    pub(crate) annotations: Option<Annotations>,
    #[serde(default)]
    owner_references: Vec<OwnerReference>,
}

impl<Annotations> From<LeanMeta<Annotations>> for ObjectMeta {
    /// Name, namespace, version and owners; nothing else is filled.
    fn from(meta: LeanMeta<Annotations>) -> Self {
        let LeanMeta { name, namespace, resource_version, owner_references, .. } = meta;
        let owner_references = (!owner_references.is_empty()).then_some(owner_references);
        Self { name, namespace, resource_version, owner_references, ..Self::default() }
    }
}

/// Null reads like absent, as everywhere in Kubernetes.
pub(crate) fn or_default<'de, D: Deserializer<'de>, T: Default + DeserializeOwned>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Makes a type with a field `metadata` stand for a kind.
macro_rules! stands_for {
    ($lean:ty, $kind:ty) => {
        impl kube::Resource for $lean {
            type DynamicType = ();
            type Scope = <$kind as kube::Resource>::Scope;

            fn kind((): &()) -> std::borrow::Cow<'_, str> {
                <$kind as kube::Resource>::kind(&())
            }

            fn group((): &()) -> std::borrow::Cow<'_, str> {
                <$kind as kube::Resource>::group(&())
            }

            fn version((): &()) -> std::borrow::Cow<'_, str> {
                <$kind as kube::Resource>::version(&())
            }

            fn plural((): &()) -> std::borrow::Cow<'_, str> {
                <$kind as kube::Resource>::plural(&())
            }

            fn meta(&self) -> &kube::api::ObjectMeta {
                &self.metadata
            }

            fn meta_mut(&mut self) -> &mut kube::api::ObjectMeta {
                &mut self.metadata
            }
        }
    };
}

pub(crate) use stands_for;
