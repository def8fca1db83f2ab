//! What is asked about: a Pod that runs, one that a manifest would make, or a bare image in a Pod that is made up for
//! it.

use std::collections::BTreeMap;
use std::fmt;

use fairlead_api::names;
use fairlead_domain::selector::Labels;
use fairlead_operator::admission::{Pairs, PodImage, PodObject};
use fairlead_plan::owners::Controller;
use fairlead_plan::pod_record::{Found, Place};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde_json::Value;

use super::files::{self, Manifest, Mismatch, text_at};
use super::report::Broken;

/// Where workloads keep the Pod that they make.
const TEMPLATES: &[(&str, &[&str])] = &[
    ("Deployment", &["spec", "template"]),
    ("StatefulSet", &["spec", "template"]),
    ("DaemonSet", &["spec", "template"]),
    ("ReplicaSet", &["spec", "template"]),
    ("ReplicationController", &["spec", "template"]),
    ("Job", &["spec", "template"]),
    ("CronJob", &["spec", "jobTemplate", "spec", "template"]),
];

/// The `ServiceAccount` of Pods that name none.
const DEFAULT_ACCOUNT: &str = "default";

/// A Pod, as far as routing looks at it.
#[derive(Debug, Clone)]
pub(crate) struct Subject {
    /// Of the object that was given: `Pod`, `Deployment`, …; none for a bare image.
    pub(crate) kind: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) namespace: String,
    /// File and line; none for what the cluster holds and for a bare image.
    pub(crate) place: Option<String>,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) annotations: BTreeMap<String, String>,
    /// The owner reference with `controller: true`.
    pub(crate) owner: Option<OwnerReference>,
    pub(crate) account: String,
    /// Names of the Secrets that the Pod itself pulls with; none: those of its `ServiceAccount`.
    pub(crate) pull_secrets: Vec<String>,
    pub(crate) images: Vec<Image>,
}

/// One image of a Pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Image {
    pub(crate) role: Role,
    /// Of the container or volume; empty for a bare image.
    pub(crate) name: String,
    pub(crate) written: String,
    pub(crate) pull_policy: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Role {
    Image,
    InitContainer,
    Container,
    EphemeralContainer,
    Volume,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Image => "image",
            Self::InitContainer => "init container",
            Self::Container => "container",
            Self::EphemeralContainer => "ephemeral container",
            Self::Volume => "volume",
        })
    }
}

impl Image {
    /// Where the records of a Pod keep it; a bare image is in none.
    pub(crate) fn place(&self) -> Option<Place<'_>> {
        match self.role {
            Role::Image => None,
            Role::InitContainer => Some(Place::Init(&self.name)),
            Role::Container => Some(Place::Container(&self.name)),
            Role::EphemeralContainer => Some(Place::Ephemeral(&self.name)),
            Role::Volume => Some(Place::Volume(&self.name)),
        }
    }
}

impl From<&PodImage<'_>> for Image {
    fn from(image: &PodImage<'_>) -> Self {
        let (role, name) = match image.place {
            Place::Init(name) => (Role::InitContainer, name),
            Place::Container(name) => (Role::Container, name),
            Place::Ephemeral(name) => (Role::EphemeralContainer, name),
            Place::Volume(name) => (Role::Volume, name),
        };
        Self {
            role,
            name: name.to_owned(),
            written: image.reference.to_owned(),
            pull_policy: image.pull_policy.map(str::to_owned),
        }
    }
}

/// The Pod that a bare image is asked in.
#[derive(Debug, Clone, Default)]
pub(crate) struct MadeUp {
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) annotations: BTreeMap<String, String>,
    pub(crate) pull_policy: Option<String>,
}

impl MadeUp {
    pub(crate) fn with(&self, image: &str, namespace: &str) -> Subject {
        Subject {
            kind: None,
            name: None,
            namespace: namespace.to_owned(),
            place: None,
            labels: self.labels.clone(),
            annotations: self.annotations.clone(),
            owner: None,
            account: DEFAULT_ACCOUNT.to_owned(),
            pull_secrets: Vec::new(),
            images: vec![Image {
                role: Role::Image,
                name: String::new(),
                written: image.to_owned(),
                pull_policy: self.pull_policy.clone(),
            }],
        }
    }
}

impl Subject {
    /// A Pod, or the Pod of a workload; none for other kinds. Where the object names no namespace it goes to
    /// `namespace`.
    pub(crate) fn of(manifest: &Manifest, namespace: &str) -> Option<Result<Self, Broken>> {
        let object = &manifest.object;
        let kind = text_at(object, &["kind"])?;
        let of_group = |group: &str| text_at(object, &["apiVersion"]).is_some_and(|version| version == group);
        let read = if kind == "Pod" && of_group("v1") {
            files::typed(object)
        } else {
            let (_, path) = TEMPLATES.iter().find(|(one, _)| *one == kind)?;
            read_template(object, path)
        };
        Some(
            read.map(|pod| {
                let own = |key| text_at(object, &["metadata", key]).map(str::to_owned);
                Self::new(
                    kind,
                    own("name").or_else(|| own("generateName")),
                    own("namespace").unwrap_or_else(|| namespace.to_owned()),
                    Some(manifest.place.clone()),
                    &pod,
                )
            })
            .map_err(|Mismatch { field, message }| Broken {
                place: Some(manifest.place.clone()),
                object: Some(files::title(object)),
                field: Some(field),
                message,
            }),
        )
    }

    /// A Pod of the cluster.
    pub(crate) fn running(object: &Value) -> Result<Self, Mismatch> {
        let own = |key| text_at(object, &["metadata", key]).map(str::to_owned);
        let pod = files::typed(object)?;
        Ok(Self::new("Pod", own("name"), own("namespace").unwrap_or_default(), None, &pod))
    }

    fn new(
        kind: &str,
        name: Option<String>,
        namespace: String,
        place: Option<String>,
        pod: &PodObject<'_>,
    ) -> Self {
        let owned = |pairs: Option<&Pairs<'_>>| {
            let mut map = BTreeMap::new();
            if let Some(pairs) = pairs {
                pairs.each(&mut |key, value| drop(map.insert(key.to_owned(), value.to_owned())));
            }
            map
        };
        let account = Some(pod.service_account()).filter(|name| !name.is_empty());
        Self {
            kind: Some(kind.to_owned()),
            name,
            namespace,
            place,
            labels: owned(pod.labels()),
            annotations: owned(pod.annotations()),
            owner: pod.controller().map(|controller| OwnerReference {
                api_version: controller.api_version.to_owned(),
                kind: controller.kind.to_owned(),
                name: controller.name.to_owned(),
                uid: controller.uid.to_owned(),
                ..OwnerReference::default()
            }),
            images: pod.images().iter().map(Image::from).collect(),
            account: account.unwrap_or(DEFAULT_ACCOUNT).to_owned(),
            pull_secrets: pod.pull_secrets().map(str::to_owned).collect(),
        }
    }

    pub(crate) fn controller(&self) -> Option<Controller<'_>> {
        let owner = self.owner.as_ref()?;
        let OwnerReference { api_version, kind, name, uid, .. } = owner;
        Some(Controller { api_version, kind, name, uid })
    }

    /// What its annotations say about its images.
    pub(crate) fn records(&self) -> Found<'_> {
        Found::of(self.annotations.iter().map(|(name, text)| (name.as_str(), text.as_str())))
    }

    pub(crate) fn is_mirror_of_static(&self) -> bool {
        self.annotations.contains_key(names::kubernetes::CONFIG_MIRROR)
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.kind, &self.name) {
            (Some(kind), name) => {
                write!(f, "{kind} {}/{}", self.namespace, name.as_deref().unwrap_or("(no name)"))?;
            }
            (None, _) => write!(f, "a Pod in namespace {}", self.namespace)?,
        }
        self.place.as_ref().map_or(Ok(()), |place| write!(f, " ({place})"))
    }
}

fn read_template<'v>(object: &'v Value, path: &[&str]) -> Result<PodObject<'v>, Mismatch> {
    let field = path.join(".");
    let template = path.iter().try_fold(object, |value, key| value.get(key)).ok_or_else(|| Mismatch {
        field: field.clone(),
        message: "it is missing: this is where the Pod stands".to_owned(),
    })?;
    files::typed(template)
        .map_err(|Mismatch { field: inner, message }| Mismatch { field: format!("{field}.{inner}"), message })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn subject(object: Value) -> Option<Result<Subject, Broken>> {
        Subject::of(&Manifest { place: "f.yaml:1".to_owned(), object }, "here")
    }

    #[test]
    fn every_image_of_a_pod_is_found() {
        let pod = subject(json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "labels": {"a": "b"}},
            "spec": {
                "initContainers": [{"name": "i", "image": "init:1"}],
                "containers": [{"name": "c", "image": "main", "imagePullPolicy": "Never"}, {"name": "none"}],
                "ephemeralContainers": [{"name": "e", "image": "debug:1"}],
                "volumes": [{"name": "v", "image": {"reference": "data:1"}}, {"name": "w", "emptyDir": {}}],
                "imagePullSecrets": [{"name": "s"}, {}],
            },
        }))
        .unwrap()
        .unwrap();
        let places: Vec<_> = pod.images.iter().filter_map(Image::place).collect();
        assert_eq!(
            places,
            [Place::Init("i"), Place::Container("c"), Place::Ephemeral("e"), Place::Volume("v")]
        );
        assert_eq!(pod.images[1].pull_policy.as_deref(), Some("Never"));
        assert_eq!((pod.namespace.as_str(), pod.account.as_str()), ("here", "default"));
        assert_eq!(pod.pull_secrets, ["s"]);
        assert_eq!(pod.to_string(), "Pod here/p (f.yaml:1)");
    }

    #[test]
    fn workloads_are_their_pods() {
        let template = json!({"metadata": {"labels": {"app": "x"}}, "spec": {"containers": [{"name": "c", "image": "a:1"}]}});
        for (kind, spec) in [
            ("Deployment", json!({"template": template})),
            ("Job", json!({"template": template})),
            ("CronJob", json!({"jobTemplate": {"spec": {"template": template}}})),
        ] {
            let object = json!({"apiVersion": "x/v1", "kind": kind, "metadata": {"name": "w", "namespace": "n", "labels": {"own": "1"}}, "spec": spec});
            let subject = subject(object).unwrap().unwrap();
            assert_eq!(subject.labels, BTreeMap::from([("app".to_owned(), "x".to_owned())]), "{kind}");
            assert_eq!(subject.images.len(), 1);
            assert_eq!(subject.to_string(), format!("{kind} n/w (f.yaml:1)"));
        }
        assert!(subject(json!({"apiVersion": "v1", "kind": "ConfigMap"})).is_none());
    }

    #[test]
    fn a_mistake_is_named_by_its_field() {
        let broken = subject(json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "w"},
            "spec": {"template": {"spec": {"containers": [{"name": "c", "image": 5}]}}},
        }))
        .unwrap()
        .unwrap_err();
        assert_eq!(broken.field.as_deref(), Some("spec.template.spec.containers[0].image"));
        assert_eq!(broken.object.as_deref(), Some("Deployment/w"));
        let broken = subject(json!({"apiVersion": "apps/v1", "kind": "Deployment"})).unwrap().unwrap_err();
        assert_eq!(broken.field.as_deref(), Some("spec.template"));
    }
}
