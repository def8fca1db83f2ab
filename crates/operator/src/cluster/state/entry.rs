//! What is kept of a Pod.
//!
//! Every field has a reader among the capabilities: images, pull secrets and namespace tell what to mirror, watch and
//! warm, and for whom; labels and annotations are what filters of kube-image-keeper choose by; our own annotations
//! and the kubelet's reasons drive healing; owner, node and image IDs are what accounting reports; owner and whether a
//! container started tell whether a controller recreates rewritten Pods. Everything else of
//! a Pod is dropped while it is decoded.

use std::sync::Arc;

use fairlead_plan::owners::Controller;
use fairlead_plan::pod_record::Place;
use kube::api::ObjectMeta;

use crate::cluster::watch::pod::{LeanContainer, LeanContainerStatus, LeanPod};

use super::Key;
use super::intern::Interner;

/// How far a Pod has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    Pending,
    Running,
    Succeeded,
    Failed,
    Unknown,
}

impl Phase {
    fn parse(text: &str) -> Self {
        match text {
            "Pending" => Self::Pending,
            "Running" => Self::Running,
            "Succeeded" => Self::Succeeded,
            "Failed" => Self::Failed,
            _ => Self::Unknown,
        }
    }
}

/// What an image is used as.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    Container,
    Init,
    Ephemeral,
    /// An image mounted as a volume; its name is the volume's.
    Volume,
}

/// One use of an image by a Pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Container {
    pub role: Role,
    pub name: Arc<str>,
    /// As the specification has it now.
    pub image: Arc<str>,
    /// What the kubelet says it runs; for a volume nothing is said yet.
    pub running_image: Option<Arc<str>>,
    pub image_id: Option<Arc<str>>,
    /// Why it waits, `ImagePullBackOff` for instance.
    pub waiting: Option<Arc<str>>,
}

impl Container {
    /// Where it stands in its Pod.
    pub fn place(&self) -> Place<'_> {
        match self.role {
            Role::Container => Place::Container(&self.name),
            Role::Init => Place::Init(&self.name),
            Role::Ephemeral => Place::Ephemeral(&self.name),
            Role::Volume => Place::Volume(&self.name),
        }
    }
}

/// The object that controls a Pod.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Owner {
    pub api_version: Arc<str>,
    pub kind: Arc<str>,
    pub name: Arc<str>,
    pub uid: Arc<str>,
}

impl Owner {
    pub fn controller(&self) -> Controller<'_> {
        Controller { api_version: &self.api_version, kind: &self.kind, name: &self.name, uid: &self.uid }
    }
}

pub type Label = (Arc<str>, Arc<str>);

/// A key with its value. Long values of annotations that are not ours are not kept: selectors compare values of at most
/// 63 characters, and beyond that only ask whether a key is there.
pub type Annotation = (Arc<str>, Option<Arc<str>>);

/// A Pod, trimmed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodEntry {
    pub key: Key,
    pub uid: Arc<str>,
    /// When it was created, in seconds since 1970. 0: not known.
    pub created: i64,
    pub phase: Phase,
    /// Some container of it runs or ran.
    pub started: bool,
    pub deleting: bool,
    pub node: Option<Arc<str>>,
    pub owner: Option<Owner>,
    pub labels: Arc<[Label]>,
    pub annotations: Arc<[Annotation]>,
    pub pull_secrets: Arc<[Arc<str>]>,
    pub containers: Box<[Container]>,
}

impl PodEntry {
    /// The images that the specification names, repeated where they are used twice.
    pub fn images(&self) -> impl Iterator<Item = &Arc<str>> {
        self.containers.iter().map(|container| &container.image)
    }

    /// The same, each with where it stands in the Pod.
    pub fn places(&self) -> impl Iterator<Item = (Place<'_>, &str)> {
        self.containers.iter().map(|container| (container.place(), &*container.image))
    }

    /// Value of an annotation; of those that are not ours only short ones are known.
    pub fn annotation(&self, key: &str) -> Option<&Arc<str>> {
        self.annotations.iter().find(|(found, _)| &**found == key)?.1.as_ref()
    }
}

/// What entries share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    texts: Interner<str>,
    labels: Interner<[Label]>,
    annotations: Interner<[Annotation]>,
    secrets: Interner<[Arc<str>]>,
}

impl Shared {
    pub(super) fn entry(&mut self, pod: &LeanPod) -> PodEntry {
        let metadata = &pod.metadata;
        let labels: Vec<_> = metadata
            .labels
            .iter()
            .flatten()
            .map(|(key, value)| (self.texts.get(key), self.texts.get(value)))
            .collect();
        let annotations: Vec<_> = pod
            .annotations
            .iter()
            .map(|(key, value)| (self.texts.get(key), value.as_deref().map(|value| self.texts.get(value))))
            .collect();
        let secrets: Vec<_> = pod.spec.pull_secrets().map(|name| self.texts.get(name)).collect();
        let owner =
            metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true)).map(
                |owner| Owner {
                    api_version: self.texts.get(&owner.api_version),
                    kind: self.texts.get(&owner.kind),
                    name: self.texts.get(&owner.name),
                    uid: self.texts.get(&owner.uid),
                },
            );
        PodEntry {
            key: self.key(metadata),
            uid: Arc::from(metadata.uid.as_deref().unwrap_or_default()),
            created: metadata.creation_timestamp.as_ref().map_or(0, |time| time.0.as_second()),
            phase: Phase::parse(&pod.status.phase),
            started: pod.status.has_started(),
            deleting: metadata.deletion_timestamp.is_some(),
            node: pod.spec.node_name.as_deref().map(|node| self.texts.get(node)),
            owner,
            labels: self.labels.get(&labels),
            annotations: self.annotations.get(&annotations),
            pull_secrets: self.secrets.get(&secrets),
            containers: self.containers(pod),
        }
    }

    pub(super) fn key(&mut self, metadata: &ObjectMeta) -> Key {
        Key {
            namespace: self.texts.get(metadata.namespace.as_deref().unwrap_or_default()),
            name: Arc::from(metadata.name.as_deref().unwrap_or_default()),
        }
    }

    fn containers(&mut self, pod: &LeanPod) -> Box<[Container]> {
        let (spec, status) = (&pod.spec, &pod.status);
        let mut all = Vec::with_capacity(spec.containers.len() + spec.init_containers.len());
        for (role, containers, statuses) in [
            (Role::Init, &spec.init_containers, &status.init_container_statuses),
            (Role::Container, &spec.containers, &status.container_statuses),
            (Role::Ephemeral, &spec.ephemeral_containers, &status.ephemeral_container_statuses),
        ] {
            for container in containers {
                let status = statuses.iter().find(|status| status.name == container.name);
                all.push(self.container(role, container, status));
            }
        }
        for (name, image) in spec.image_volumes() {
            all.push(Container {
                role: Role::Volume,
                name: self.texts.get(name),
                image: self.texts.get(image),
                running_image: None,
                image_id: None,
                waiting: None,
            });
        }
        all.into_boxed_slice()
    }

    fn container(
        &mut self,
        role: Role,
        spec: &LeanContainer,
        status: Option<&LeanContainerStatus>,
    ) -> Container {
        let said = |text: &str| Some(text).filter(|text| !text.is_empty()).map(str::to_owned);
        let running_image = status.and_then(|status| said(&status.image));
        let image_id = status.and_then(|status| said(&status.image_id));
        let waiting = status.and_then(LeanContainerStatus::waiting_reason);
        Container {
            role,
            name: self.texts.get(&spec.name),
            image: self.texts.get(&spec.image),
            running_image: running_image.map(|image| self.texts.get(&image)),
            image_id: image_id.map(|id| self.texts.get(&id)),
            waiting: waiting.map(|reason| self.texts.get(reason)),
        }
    }

    /// Forgets what no entry uses any more.
    pub(super) fn sweep(&mut self) {
        self.labels.sweep();
        self.annotations.sweep();
        self.secrets.sweep();
        self.texts.sweep();
    }
}
