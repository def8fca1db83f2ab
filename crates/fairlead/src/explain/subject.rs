//! What is asked about: a Pod that runs, one that a manifest would make, or a bare image in a Pod that is made up for
//! it.

use std::collections::BTreeMap;
use std::fmt;

use fairlead_operator::admission::PodObject;
use fairlead_operator::cluster::watch::pod::LeanPod;
use fairlead_plan::pod_record::Place;
use k8s_openapi::api::core::v1::ServiceAccount;
use serde_json::{Value, json};

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

/// A Pod that is asked about.
#[derive(Debug, Clone)]
pub(crate) struct Subject {
    /// Of the object that was given: `Pod`, `Deployment`, …; none for a bare image.
    pub(crate) kind: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) namespace: String,
    /// File and line; none for what the cluster holds and for a bare image.
    pub(crate) place: Option<String>,
    /// As the API server shows it to the webhook.
    object: Value,
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

impl Role {
    /// With the name of the container or volume.
    pub(crate) fn of<'p>(place: &Place<'p>) -> (Self, &'p str) {
        match place {
            Place::Init(name) => (Self::InitContainer, name),
            Place::Container(name) => (Self::Container, name),
            Place::Ephemeral(name) => (Self::EphemeralContainer, name),
            Place::Volume(name) => (Self::Volume, name),
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
        let object = json!({
            "metadata": {"labels": self.labels, "annotations": self.annotations},
            "spec": {"containers": [{"name": "image", "image": image, "imagePullPolicy": self.pull_policy}]},
        });
        Subject { kind: None, name: None, namespace: namespace.to_owned(), place: None, object }
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
            checked(object)
        } else {
            let (_, path) = TEMPLATES.iter().find(|(one, _)| *one == kind)?;
            read_template(object, path)
        };
        Some(
            read.map(|pod| {
                let own = |key| text_at(object, &["metadata", key]).map(str::to_owned);
                Self {
                    kind: Some(kind.to_owned()),
                    name: own("name").or_else(|| own("generateName")),
                    namespace: own("namespace").unwrap_or_else(|| namespace.to_owned()),
                    place: Some(manifest.place.clone()),
                    object: pod.clone(),
                }
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
        let (kind, name) = (Some("Pod".to_owned()), own("name"));
        let (namespace, object) = (own("namespace").unwrap_or_default(), checked(object)?.clone());
        Ok(Self { kind, name, namespace, place: None, object })
    }

    /// The Pod, as admission reads it.
    pub(crate) fn pod(&self) -> PodObject<'_> {
        // It was read before.
        files::typed(&self.object).unwrap_or_default()
    }

    /// The same as the watch of Pods reads it, if it is one of the cluster.
    pub(crate) fn listed(&self) -> Option<LeanPod> {
        let is_stored = self.kind.as_deref() == Some("Pod") && self.place.is_none();
        files::typed(&self.object).ok().filter(|_| is_stored)
    }

    /// Namespace and name of its `ServiceAccount`.
    pub(crate) fn account(&self) -> (String, String) {
        let name = text_at(&self.object, &["spec", "serviceAccountName"]).unwrap_or(DEFAULT_ACCOUNT);
        (self.namespace.clone(), name.to_owned())
    }

    /// Gives it the pull secrets of its account where it has none, as the API server does before it asks.
    pub(crate) fn complete(&mut self, account: &ServiceAccount) {
        let has_some = self.pod().pull_secrets().next().is_some();
        if let Some(spec) = self.object.get_mut("spec").and_then(Value::as_object_mut).filter(|_| !has_some) {
            spec.insert("imagePullSecrets".to_owned(), json!(account.image_pull_secrets));
        }
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

/// A Pod that can be read.
fn checked(object: &Value) -> Result<&Value, Mismatch> {
    files::typed::<PodObject<'_>>(object).map(|_| object)
}

fn read_template<'v>(object: &'v Value, path: &[&str]) -> Result<&'v Value, Mismatch> {
    let field = path.join(".");
    let template = path.iter().try_fold(object, |value, key| value.get(key)).ok_or_else(|| Mismatch {
        field: field.clone(),
        message: "it is missing: this is where the Pod stands".to_owned(),
    })?;
    checked(template)
        .map_err(|Mismatch { field: inner, message }| Mismatch { field: format!("{field}.{inner}"), message })
}

#[cfg(test)]
mod tests {
    use fairlead_domain::selector::Labels as _;

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
        assert_eq!((pod.namespace.as_str(), pod.to_string().as_str()), ("here", "Pod here/p (f.yaml:1)"));
        assert_eq!(pod.account(), ("here".to_owned(), "default".to_owned()));
        let pod = pod.pod();
        let places: Vec<_> = pod.images().iter().map(|image| image.place).collect();
        assert_eq!(
            places,
            [Place::Init("i"), Place::Container("c"), Place::Ephemeral("e"), Place::Volume("v")]
        );
        assert_eq!(pod.images()[1].pull_policy, Some("Never"));
        assert_eq!(pod.pull_secrets().collect::<Vec<_>>(), ["s"]);
    }

    #[test]
    fn a_pod_without_pull_secrets_has_those_of_its_account() {
        let account: ServiceAccount =
            serde_json::from_value(json!({"imagePullSecrets": [{"name": "a"}, {"name": "b"}]})).unwrap();
        for (own, expected) in [(json!([]), &["a", "b"][..]), (json!([{"name": "own"}]), &["own"])] {
            let pod = json!({"apiVersion": "v1", "kind": "Pod", "spec": {"imagePullSecrets": own}});
            let mut pod = subject(pod).unwrap().unwrap();
            pod.complete(&account);
            assert_eq!(pod.pod().pull_secrets().collect::<Vec<_>>(), expected);
        }
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
            let pod = subject.pod();
            assert_eq!((pod.labels().value("app"), pod.labels().value("own")), (Some("x"), None), "{kind}");
            assert_eq!(pod.images().len(), 1);
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
