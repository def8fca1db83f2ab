//! All kinds in one list, and their definitions as the API server takes them.
//!
//! The definitions are derived from the types, so what is installed is what the program reads. The generated files are
//! committed, and a test compares them.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{CustomResourceExt, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::names::kubernetes::PART_OF;
use crate::{drop, fairlead, kuik, openshift, reef, schema};

/// One kind that Fairlead speaks.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    define: fn() -> CustomResourceDefinition,
    round_trip: fn(Value) -> Result<Value, serde_json::Error>,
}

/// One line per kind.
const KINDS: &[Kind] = &[
    Kind::of::<drop::CachedImage>(),
    Kind::of::<drop::CachedImageSet>(),
    Kind::of::<drop::DiscoveryPolicy>(),
    Kind::of::<drop::PullPolicy>(),
    Kind::in_one_piece::<fairlead::ImageLedger>(),
    Kind::of::<fairlead::ImagePin>(),
    Kind::in_one_piece::<fairlead::NodeMirrorReport>(),
    Kind::in_one_piece::<fairlead::WarmLedger>(),
    Kind::of::<kuik::ClusterImageSetAvailability>(),
    Kind::of::<kuik::ClusterImageSetMirror>(),
    Kind::of::<kuik::ClusterReplicatedImageSet>(),
    Kind::of::<kuik::ImageSetMirror>(),
    Kind::of::<kuik::ReplicatedImageSet>(),
    Kind::of::<openshift::ImageContentSourcePolicy>(),
    Kind::of::<openshift::ImageDigestMirrorSet>(),
    Kind::of::<openshift::ImageSourceDigestPolicy>(),
    Kind::of::<openshift::ImageSourceTagPolicy>(),
    Kind::of::<openshift::ImageTagMirrorSet>(),
    Kind::of::<reef::ProxyCache>(),
];

impl Kind {
    const fn of<K>() -> Self
    where
        K: CustomResourceExt + Resource<DynamicType = ()> + Serialize + DeserializeOwned,
    {
        Self { define: define::<K>, round_trip: round_trip::<K> }
    }

    /// A kind whose status is written together with its spec, because the program writes both. The derive macro makes a
    /// subresource of every status.
    const fn in_one_piece<K>() -> Self
    where
        K: CustomResourceExt + Resource<DynamicType = ()> + Serialize + DeserializeOwned,
    {
        Self { define: define_in_one_piece::<K>, round_trip: round_trip::<K> }
    }

    /// The definition to install.
    pub fn crd(&self) -> CustomResourceDefinition {
        (self.define)()
    }

    /// Reads an object of this kind, and gives back what was understood of it.
    pub fn round_trip(&self, object: Value) -> Result<Value, serde_json::Error> {
        (self.round_trip)(object)
    }
}

/// Every kind, in no particular order.
pub const fn kinds() -> &'static [Kind] {
    KINDS
}

/// The definitions of every kind, sorted by group and then by plural name.
pub fn all() -> Vec<CustomResourceDefinition> {
    let mut all: Vec<_> = KINDS.iter().map(Kind::crd).collect();
    all.sort_by(|a, b| (&a.spec.group, &a.spec.names.plural).cmp(&(&b.spec.group, &b.spec.names.plural)));
    all
}

/// The API groups that have a kind here, sorted.
pub fn groups() -> Vec<String> {
    let mut groups: Vec<_> = all().into_iter().map(|crd| crd.spec.group).collect();
    groups.dedup();
    groups
}

/// File name of a definition: `<group>_<plural>.yaml`.
pub fn file_name(crd: &CustomResourceDefinition) -> String {
    format!("{}_{}.yaml", crd.spec.group, crd.spec.names.plural)
}

/// One definition as a YAML document. The same definition always gives the same text.
pub fn to_yaml(crd: &CustomResourceDefinition) -> Result<String, ToYamlError> {
    let mut value = serde_json::to_value(crd)?;
    write_whole_numbers_without_fraction(&mut value);
    Ok(serde_saphyr::to_string(&value)?)
}

/// Why a definition could not be written as YAML.
#[derive(Debug, thiserror::Error)]
pub enum ToYamlError {
    #[error("cannot turn a resource definition into JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error("cannot write a resource definition as YAML: {0}")]
    Yaml(#[from] serde_saphyr::SerializeError),
}

fn define<K>() -> CustomResourceDefinition
where
    K: CustomResourceExt + Resource<DynamicType = ()> + DeserializeOwned,
{
    let mut crd = K::crd();
    crd.metadata.labels.get_or_insert_default().insert(PART_OF.to_owned(), "fairlead".to_owned());
    let without_spec = json!({ "apiVersion": K::api_version(&()), "kind": K::kind(&()), "metadata": {} });
    let spec_may_be_absent = serde_json::from_value::<K>(without_spec).is_ok();
    for version in &mut crd.spec.versions {
        let Some(root) = version.schema.as_mut().and_then(|schema| schema.open_api_v3_schema.as_mut()) else {
            continue;
        };
        schema::finish(root);
        if spec_may_be_absent {
            root.required = root.required.take().map(|mut required| {
                required.retain(|field| field != "spec");
                required
            });
        }
        root.required = root.required.take().filter(|required| !required.is_empty());
    }
    crd
}

fn define_in_one_piece<K>() -> CustomResourceDefinition
where
    K: CustomResourceExt + Resource<DynamicType = ()> + DeserializeOwned,
{
    let mut crd = define::<K>();
    for version in &mut crd.spec.versions {
        version.subresources = None;
    }
    crd
}

fn round_trip<K: Serialize + DeserializeOwned>(object: Value) -> Result<Value, serde_json::Error> {
    serde_json::to_value(serde_json::from_value::<K>(object)?)
}

/// Bounds of numbers are floating point in the definition's own types: `1.0` where anyone would write `1`.
fn write_whole_numbers_without_fraction(value: &mut Value) {
    match value {
        Value::Object(fields) => fields.values_mut().for_each(write_whole_numbers_without_fraction),
        Value::Array(items) => items.iter_mut().for_each(write_whole_numbers_without_fraction),
        Value::Number(number) if number.is_f64() => {
            if let Some(whole) =
                number.to_string().strip_suffix(".0").and_then(|text| text.parse::<i64>().ok())
            {
                *value = whole.into();
            }
        }
        _ => {}
    }
}
