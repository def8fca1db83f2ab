//! What is kept of a Pod.
//!
//! Every field has a reader among the capabilities: images, pull secrets and namespace tell what to mirror, watch and
//! warm, and for whom; labels and annotations are what filters of kube-image-keeper choose by; our own annotations
//! and the kubelet's reasons drive healing; owner, node and image IDs are what accounting reports; owner and whether a
//! container started tell whether a controller recreates rewritten Pods. Everything else of
//! a Pod is dropped while it is decoded.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use fairlead_api::names;
use fairlead_plan::owners::Controller;
use fairlead_plan::pod_record::Place;
use fairlead_plan::pull_failure::{
    Attribution, PullFailure, attribution, end_of, failed_volume, is_ambiguous,
};
use fairlead_plan::warm::record::Record as PullRecord;
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
    pub pull_policy: Option<Arc<str>>,
    /// An init container that keeps running beside the others.
    pub sidecar: bool,
    /// What the kubelet says it runs, in whatever form its runtime has it.
    pub image_id: Option<Arc<str>>,
    /// The runtime has made a container of it.
    pub created: bool,
    /// Why it waits, `ImagePullBackOff` for instance.
    pub waiting: Option<Arc<str>>,
    /// Boxed, because few have one.
    pub pull_problem: Option<Box<PullProblem>>,
    /// Why it ended.
    pub terminated: Option<Arc<str>>,
    /// Names of the image volumes that it mounts.
    pub image_volumes: Arc<[Arc<str>]>,
}

/// A mount of an image volume, or another one of which the kubelet reports an image all the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    pub container: Arc<str>,
    pub volume: Arc<str>,
    pub path: Arc<str>,
    /// The specification has it, too.
    pub specified: bool,
    /// What the kubelet says is mounted, in whatever form its runtime has it.
    pub reported: Option<Arc<str>>,
    /// The runtime's container that it says so of, as a hash. 0: there is none yet.
    pub container_id: u64,
}

/// A pull that failed, as the kubelet tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PullProblem {
    pub failure: PullFailure,
    /// The end of the kubelet's message.
    pub message: Arc<str>,
    /// The message names what could not be pulled. Of one that does not, the image in the status is taken for it.
    pub names_image: bool,
    /// The image volume that could not be pulled, where it is not the image of the container.
    pub volume: Option<Arc<str>>,
    /// Where the kubelet's word stands among the statuses of containers of its kind.
    pub status_position: usize,
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
    /// Why the Pod as a whole failed, `Evicted` for instance.
    pub reason: Option<Arc<str>>,
    /// Some container of it runs or ran.
    pub started: bool,
    /// A main container of it runs or ran, or a person's ephemeral container runs.
    pub in_use: bool,
    pub deleting: bool,
    pub node: Option<Arc<str>>,
    pub owner: Option<Owner>,
    pub labels: Arc<[Label]>,
    pub annotations: Arc<[Annotation]>,
    /// Bytes of all annotations that it has, keys and whole values.
    pub annotation_bytes: usize,
    pub service_account: Arc<str>,
    pub pull_secrets: Arc<[Arc<str>]>,
    /// Set for Pods that pull images onto a node, and for nothing else.
    pub pulls: Option<Arc<PullRecord>>,
    /// Set for Pods with the labels of agents, and for nothing else: whether it is ready, and since when, in seconds
    /// since 1970.
    pub agent: Option<(bool, i64)>,
    pub containers: Box<[Container]>,
    /// Of image volumes; most Pods have none.
    pub mounts: Box<[Mount]>,
}

impl PodEntry {
    /// The image of a volume.
    pub fn volume(&self, name: &str) -> Option<&Arc<str>> {
        let mut volumes = self.containers.iter().filter(|one| one.role == Role::Volume);
        volumes.find(|one| &*one.name == name).map(|one| &one.image)
    }

    /// The mounts of a volume that the specification has.
    pub fn mounts_of<'p>(&'p self, volume: &'p str) -> impl Iterator<Item = &'p Mount> {
        self.mounts.iter().filter(move |mount| mount.specified && &*mount.volume == volume)
    }

    /// Whether all its containers have ended for good. Nothing is pulled for such a Pod any more, however long it
    /// stays.
    pub fn has_ended(&self) -> bool {
        matches!(self.phase, Phase::Succeeded | Phase::Failed)
    }

    /// Whether it mirrors a static Pod: the kubelet runs what the file on its node says.
    pub fn is_static(&self) -> bool {
        self.annotations.iter().any(|(key, _)| &**key == names::kubernetes::CONFIG_MIRROR)
    }

    /// Whether the kubelet cannot pull something for a container that waits for it.
    pub fn is_failing(&self) -> bool {
        self.containers.iter().any(|container| container.pull_problem.is_some())
    }

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
pub(super) struct PodInterner {
    texts: Interner<str>,
    labels: Interner<[Label]>,
    annotations: Interner<[Annotation]>,
    /// Of pull secrets and of volumes.
    names: Interner<[Arc<str>]>,
}

impl PodInterner {
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
            .filter(|(key, _)| key != names::fairlead::PULLS)
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
            reason: self.said(&pod.status.reason),
            started: pod.status.has_started(),
            in_use: pod.status.is_in_use(),
            deleting: metadata.deletion_timestamp.is_some(),
            node: pod.spec.node_name.as_deref().map(|node| self.texts.get(node)),
            owner,
            labels: self.labels.get(&labels),
            annotations: self.annotations.get(&annotations),
            annotation_bytes: pod.annotation_bytes,
            service_account: self.texts.get(&pod.spec.service_account_name),
            pull_secrets: self.names.get(&secrets),
            pulls: self.pulls(pod),
            agent: is_agent(pod).then(|| pod.status.readiness()),
            containers: self.containers(pod),
            mounts: self.mounts(pod),
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
                let status = statuses.iter().enumerate().find(|(_, status)| status.name == container.name);
                let mounts = container.volume_mounts.iter().map(|mount| mount.name.as_str());
                let volumes: Vec<_> = mounts
                    .filter(|name| spec.image_volumes().any(|(volume, _)| volume == *name))
                    .map(|name| self.texts.get(name))
                    .collect();
                let problem = status.and_then(|(position, status)| {
                    let mounted =
                        spec.image_volumes().filter(|(name, _)| volumes.iter().any(|one| &**one == *name));
                    let mounted: Vec<_> =
                        mounted.map(|(name, source)| (name, source.reference.as_str())).collect();
                    self.pull_problem(container, (position, status), &mounted)
                });
                let status = status.map(|(_, status)| status);
                all.push(self.container(role, container, status, problem, &volumes));
            }
        }
        for (name, source) in spec.image_volumes() {
            all.push(Container {
                role: Role::Volume,
                name: self.texts.get(name),
                image: self.texts.get(&source.reference),
                pull_policy: self.said(&source.pull_policy),
                sidecar: false,
                image_id: None,
                created: false,
                waiting: None,
                pull_problem: None,
                terminated: None,
                image_volumes: self.names.get(&[]),
            });
        }
        all.into_boxed_slice()
    }

    fn mounts(&mut self, pod: &LeanPod) -> Box<[Mount]> {
        let (spec, status) = (&pod.spec, &pod.status);
        let is_image = |volume: &str| spec.image_volumes().any(|(name, _)| name == volume);
        let mut all = Vec::new();
        for (containers, statuses) in [
            (&spec.init_containers, &status.init_container_statuses),
            (&spec.containers, &status.container_statuses),
            (&spec.ephemeral_containers, &status.ephemeral_container_statuses),
        ] {
            for container in containers {
                let status = statuses.iter().find(|status| status.name == container.name);
                let reported: Vec<_> =
                    status.into_iter().flat_map(LeanContainerStatus::mounted_images).collect();
                let container_id = status.map_or(0, |status| hash(&status.container_id));
                let mut mount = |volume: &str, path: &str, reported: Option<&str>, specified| Mount {
                    container: self.texts.get(&container.name),
                    volume: self.texts.get(volume),
                    path: self.texts.get(path),
                    specified,
                    reported: reported.map(|reported| self.texts.get(reported)),
                    container_id,
                };
                let mounts = &container.volume_mounts;
                for one in mounts {
                    let found = reported
                        .iter()
                        .find(|found| found.volume == one.name && found.path == one.mount_path);
                    if found.is_some() || is_image(&one.name) {
                        all.push(mount(&one.name, &one.mount_path, found.map(|found| found.reported), true));
                    }
                }
                let is_specified = |volume: &str, path: &str| {
                    mounts.iter().any(|one| one.name == volume && one.mount_path == path)
                };
                let others = reported.iter().filter(|one| !is_specified(one.volume, one.path));
                all.extend(others.map(|one| mount(one.volume, one.path, Some(one.reported), false)));
            }
        }
        all.into_boxed_slice()
    }

    fn said(&mut self, text: &str) -> Option<Arc<str>> {
        (!text.is_empty()).then(|| self.texts.get(text))
    }

    /// The pull that a container waits for, if it failed. `volumes` are the image volumes that it mounts.
    fn pull_problem(
        &mut self,
        spec: &LeanContainer,
        (status_position, status): (usize, &LeanContainerStatus),
        volumes: &[(&str, &str)],
    ) -> Option<PullProblem> {
        let waiting = status.waiting()?;
        let failure = PullFailure::classify(&waiting.reason, &waiting.message)?;
        let wanted = std::iter::once(&*spec.image).chain(volumes.iter().map(|(_, image)| *image));
        let about = attribution(wanted, &status.image, &waiting.message);
        if about == Attribution::Former
            || is_ambiguous(&waiting.reason, &waiting.message, &spec.image, volumes.iter().copied())
        {
            return None;
        }
        let volume = failed_volume(&waiting.message, &spec.image, volumes.iter().copied());
        Some(PullProblem {
            failure,
            message: self.texts.get(end_of(&waiting.message)),
            names_image: about == Attribution::Named,
            volume: volume.map(|name| self.texts.get(name)),
            status_position,
        })
    }

    fn container(
        &mut self,
        role: Role,
        spec: &LeanContainer,
        status: Option<&LeanContainerStatus>,
        pull_problem: Option<PullProblem>,
        image_volumes: &[Arc<str>],
    ) -> Container {
        let waiting = status.and_then(LeanContainerStatus::waiting);
        Container {
            role,
            name: self.texts.get(&spec.name),
            image: self.texts.get(&spec.image),
            pull_policy: self.said(&spec.image_pull_policy),
            sidecar: role == Role::Init && spec.restart_policy == "Always",
            image_id: status.and_then(|status| self.said(&status.image_id)),
            created: status.is_some_and(|status| !status.container_id.is_empty()),
            waiting: waiting.and_then(|waiting| self.said(&waiting.reason)),
            pull_problem: pull_problem.map(Box::new),
            terminated: status
                .and_then(LeanContainerStatus::terminated_reason)
                .and_then(|reason| self.said(reason)),
            image_volumes: self.names.get(image_volumes),
        }
    }

    /// What a Pod pulls onto its node, if its owners and its name bear that out. Nodes and images are the same in
    /// thousands of Pods.
    fn pulls(&mut self, pod: &LeanPod) -> Option<Arc<PullRecord>> {
        let annotation =
            pod.annotations.iter().find(|(key, _)| key == names::fairlead::PULLS)?.1.as_deref()?;
        let owners = pod.metadata.owner_references.iter().flatten();
        let owners: Vec<Arc<str>> = owners.map(|owner| self.texts.get(&owner.uid)).collect();
        let mut record = PullRecord::read(annotation, pod.metadata.name.as_deref()?, &owners)?;
        record.node = self.texts.get(&record.node);
        record.pulls.shrink_to_fit();
        for pull in &mut record.pulls {
            for text in [&mut pull.image, &mut pull.uid, &mut pull.reference] {
                *text = self.texts.get(text);
            }
        }
        Some(Arc::new(record))
    }

    /// Forgets what no entry uses any more.
    pub(super) fn sweep(&mut self) {
        self.labels.sweep();
        self.annotations.sweep();
        self.names.sweep();
        self.texts.sweep();
    }
}

fn is_agent(pod: &LeanPod) -> bool {
    let Some(labels) = &pod.metadata.labels else { return false };
    let has = |key: &str, value: &str| labels.get(key).is_some_and(|found| found == value);
    has(names::kubernetes::COMPONENT, names::fairlead::AGENT) && has(names::kubernetes::NAME, "fairlead")
}

/// Containers are told apart within one process only.
fn hash(container_id: &str) -> u64 {
    if container_id.is_empty() {
        return 0;
    }
    let mut hasher = DefaultHasher::new();
    container_id.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn what_healing_and_accounting_need_of_containers_is_kept() {
        let message = format!("{} connect: connection refused", "x".repeat(1000));
        let pod = json!({
            "spec": {
                "initContainers": [{"name": "proxy", "image": "proxy:1", "restartPolicy": "Always"}],
                "containers": [{
                    "name": "web", "image": "web:1", "imagePullPolicy": "IfNotPresent",
                    "volumeMounts": [
                        {"name": "data", "mountPath": "/data"},
                        {"name": "model", "mountPath": "/model"},
                        {"name": "model", "mountPath": "/again"},
                    ],
                }],
                "volumes": [
                    {"name": "data", "emptyDir": {}},
                    {"name": "model", "image": {"reference": "models/llm:3", "pullPolicy": "Always"}},
                ],
            },
            "status": {
                "phase": "Failed", "reason": "Evicted",
                "initContainerStatuses": [{
                    "name": "proxy", "image": "proxy:1", "imageID": "proxy@sha256:1", "containerID": "containerd://7",
                    "state": {"terminated": {"reason": "Error", "exitCode": 1}},
                }],
                "containerStatuses": [{
                    "name": "web", "image": "web:1", "imageID": "",
                    "state": {"waiting": {"reason": "ImagePullBackOff", "message": message}},
                }],
            },
        });
        let pod: LeanPod = serde_json::from_str(&pod.to_string()).expect("a Pod");
        let entry = PodInterner::default().entry(&pod);
        assert_eq!((entry.reason.as_deref(), entry.has_ended()), (Some("Evicted"), true));
        let [proxy, web, model] = &entry.containers[..] else { panic!("{entry:?}") };
        assert!(proxy.sidecar && proxy.created && !web.sidecar && !web.created);
        assert_eq!((proxy.terminated.as_deref(), &proxy.pull_problem), (Some("Error"), &None));
        assert_eq!(web.pull_policy.as_deref(), Some("IfNotPresent"));
        assert_eq!(web.image_volumes.iter().map(|name| &**name).collect::<Vec<_>>(), ["model", "model"]);
        let problem = web.pull_problem.as_ref().expect("a pull failed");
        assert_eq!((problem.failure, problem.message.len()), (PullFailure::ConnectionRefused, 512));
        assert_eq!((model.role, model.pull_policy.as_deref()), (Role::Volume, Some("Always")));
        assert_eq!(entry.mounts.iter().map(|mount| &*mount.path).collect::<Vec<_>>(), ["/model", "/again"]);
        assert!(entry.mounts.iter().all(|mount| mount.reported.is_none() && &*mount.container == "web"));
    }

    #[test]
    fn what_kubelets_report_of_mounts_is_kept_by_path() {
        let image = |reference: Value| json!({"image": {"imageRef": reference}});
        let pod = |volume_status: Value, container_id: &str| {
            let pod = json!({
                "spec": {
                    "containers": [{"name": "web", "image": "web:1", "volumeMounts": [
                        {"name": "model", "mountPath": "/a"}, {"name": "model", "mountPath": "/b"},
                        {"name": "data", "mountPath": "/c"},
                    ]}],
                    "volumes": [
                        {"name": "data", "emptyDir": {}}, {"name": "model", "image": {"reference": "models/llm:3"}},
                    ],
                },
                "status": {"containerStatuses": [{
                    "name": "web", "containerID": container_id, "volumeMounts": [
                        {"name": "model", "mountPath": "/a", "volumeStatus": volume_status},
                        {"name": "data", "mountPath": "/c", "volumeStatus": volume_status},
                        {"name": "model", "mountPath": "/gone", "volumeStatus": volume_status},
                    ],
                }]},
            });
            PodInterner::default().entry(&serde_json::from_str(&pod.to_string()).expect("a Pod")).mounts
        };
        let reported = |mounts: &[Mount]| -> Vec<(String, Option<String>)> {
            let told = |mount: &Mount| (mount.path.to_string(), mount.reported.as_deref().map(str::to_owned));
            mounts.iter().map(told).collect()
        };
        let told = Some("models/llm@sha256:2".to_owned());
        let mounts = pod(image(json!("models/llm@sha256:2")), "containerd://1");
        let (a, b) = (("/a".to_owned(), told.clone()), ("/b".to_owned(), None));
        let (c, gone) = (("/c".to_owned(), told.clone()), ("/gone".to_owned(), told));
        assert_eq!(reported(&mounts), [a, b.clone(), c, gone]);
        assert!(mounts.iter().all(|mount| mount.specified == (&*mount.path != "/gone")));
        assert_ne!(mounts[0].container_id, pod(image(json!("x")), "containerd://2")[0].container_id);
        for silent in [json!(null), json!({}), json!({"image": null}), json!({"image": {}}), image(json!(""))]
        {
            let mounts = pod(silent.clone(), "");
            assert_eq!(reported(&mounts), [("/a".to_owned(), None), b.clone()], "{silent}");
            assert_eq!(mounts[0].container_id, 0);
        }
    }
}
