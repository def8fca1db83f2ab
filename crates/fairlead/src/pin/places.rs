//! Where in a manifest images stand.

use std::collections::HashMap;

use fairlead_domain::digest::Digest;
use fairlead_domain::reference::{DEFAULT_TAG, Reference};
use fairlead_plan::pinning::{hold_written, needs_digest};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use super::Outcome;
use super::document::Node;

/// Kinds with Pods, and where their Pods' specification is.
const KINDS: [(&str, &[&str]); 9] = [
    ("Pod", &["spec"]),
    ("Deployment", &["spec", "template", "spec"]),
    ("StatefulSet", &["spec", "template", "spec"]),
    ("DaemonSet", &["spec", "template", "spec"]),
    ("ReplicaSet", &["spec", "template", "spec"]),
    ("ReplicationController", &["spec", "template", "spec"]),
    ("Job", &["spec", "template", "spec"]),
    ("CronJob", &["spec", "jobTemplate", "spec", "template", "spec"]),
    ("PodTemplate", &["template", "spec"]),
];

/// An object with Pods.
#[derive(Debug)]
pub(super) struct Workload {
    /// Counts documents from 1.
    pub(super) document: usize,
    pub(super) kind: String,
    pub(super) namespace: Option<String>,
    pub(super) name: String,
    /// Which Pods are its own, where its specification says so.
    pub(super) selector: Option<LabelSelector>,
    pub(super) images: Vec<ImageField>,
}

/// One field with an image.
#[derive(Debug)]
pub(super) struct ImageField {
    /// `spec.template.spec.containers[0].image`
    pub(super) path: String,
    pub(super) line: usize,
    /// Name of the container, or `volume:` and the name of the volume.
    pub(super) key: String,
    pub(super) image: String,
    /// What is to be pinned, or why it stays.
    pub(super) tag: Result<Reference, Left>,
    /// Where in the text the value can be continued.
    end: Option<usize>,
}

/// Why a field stays as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Left {
    /// There is nothing to do.
    Right(&'static str),
    /// It cannot be pinned.
    Wrong(String),
}

impl Workload {
    pub(super) fn title(&self) -> String {
        match &self.namespace {
            Some(namespace) => format!("{}/{namespace}/{}", self.kind, self.name),
            None => format!("{}/{}", self.kind, self.name),
        }
    }
}

impl ImageField {
    /// What is put behind the value, and where.
    pub(super) fn insertion(&self, digest: &Digest) -> Option<(usize, String)> {
        let tag = self.tag.as_ref().ok()?;
        let default = if tag.tag().is_none() { format!(":{DEFAULT_TAG}") } else { String::new() };
        Some((self.end?, format!("{default}@{digest}")))
    }

    pub(super) fn pinned(&self, digest: &Digest) -> String {
        hold_written(&self.image, digest)
    }
}

/// The objects with Pods in the documents of a file, lists taken apart.
pub(super) fn workloads(documents: &[std::rc::Rc<Node>]) -> Vec<Workload> {
    let mut found = Vec::new();
    for (document, number) in documents.iter().zip(1..) {
        add(document, number, "", &mut found);
    }
    found
}

fn add(object: &Node, document: usize, prefix: &str, found: &mut Vec<Workload>) {
    let Some(kind) = object.get("kind").and_then(Node::text) else { return };
    if kind.ends_with("List") {
        for (index, item) in object.get("items").into_iter().flat_map(Node::items).enumerate() {
            add(item, document, &format!("{prefix}items[{index}]."), found);
        }
        return;
    }
    let Some((_, path)) = KINDS.iter().find(|(known, _)| *known == kind) else { return };
    let Some(spec) = object.at(path) else { return };
    let text = |path: &[&str]| object.at(path).and_then(Node::text).map(str::to_owned);
    found.push(Workload {
        document,
        kind: kind.to_owned(),
        namespace: text(&["metadata", "namespace"]),
        name: text(&["metadata", "name"]).or_else(|| text(&["metadata", "generateName"])).unwrap_or_default(),
        selector: selector(object, kind),
        images: images(spec, &format!("{prefix}{}", path.join("."))),
    });
}

/// A `ReplicationController` has labels where others have a selector, by default those of its template.
fn selector(object: &Node, kind: &str) -> Option<LabelSelector> {
    let written = object.at(&["spec", "selector"]).map(Node::value);
    if kind != "ReplicationController" {
        return serde_json::from_value(written?).ok();
    }
    let labels = || Some(object.at(&["spec", "template", "metadata", "labels"])?.value());
    let labels = written.filter(|labels| !labels.is_null()).or_else(labels)?;
    Some(LabelSelector { match_labels: serde_json::from_value(labels).ok()?, ..LabelSelector::default() })
}

/// Fields that get their value from one anchor are pinned together, to one digest, or stay all.
pub(super) fn agree(workloads: &[Workload], found: &[Outcome]) -> Vec<Outcome> {
    let fields: Vec<&ImageField> = workloads.iter().flat_map(|one| &one.images).collect();
    let mut sharing: HashMap<usize, Vec<usize>> = HashMap::new();
    for (number, field) in fields.iter().enumerate() {
        if let Some(end) = field.end {
            sharing.entry(end).or_default().push(number);
        }
    }
    let decide = |(number, own): (usize, &Outcome)| {
        let (Ok(Some(digest)), Some(field)) = (own, fields.get(number)) else { return own.clone() };
        let others = field.end.and_then(|end| sharing.get(&end)).into_iter().flatten();
        for (other, outcome) in others.filter_map(|other| Some((fields.get(*other)?, found.get(*other)?))) {
            let what = match outcome {
                Ok(Some(same)) if same == digest => continue,
                Ok(Some(another)) => format!("is to have {another}"),
                _ => "stays as it is".to_owned(),
            };
            return Err(format!("{} has the same value by an anchor and {what}; write both out", other.path));
        }
        own.clone()
    };
    found.iter().enumerate().map(decide).collect()
}

fn images(spec: &Node, path: &str) -> Vec<ImageField> {
    let mut found = Vec::new();
    for list in ["initContainers", "containers", "ephemeralContainers"] {
        for (index, container) in spec.get(list).into_iter().flat_map(Node::items).enumerate() {
            let name = container.get("name").and_then(Node::text).unwrap_or_default();
            let policy = container.get("imagePullPolicy").and_then(Node::text);
            let field = container.get("image");
            found.extend(field.and_then(|image| {
                field_of(image, policy, name.to_owned(), format!("{path}.{list}[{index}].image"))
            }));
        }
    }
    for (index, volume) in spec.get("volumes").into_iter().flat_map(Node::items).enumerate() {
        let Some(source) = volume.get("image") else { continue };
        let name = volume.get("name").and_then(Node::text).unwrap_or_default();
        let policy = source.get("pullPolicy").and_then(Node::text);
        let path = format!("{path}.volumes[{index}].image.reference");
        let field = source.get("reference");
        found.extend(field.and_then(|image| field_of(image, policy, format!("volume:{name}"), path)));
    }
    found
}

fn field_of(node: &Node, pull_policy: Option<&str>, key: String, path: String) -> Option<ImageField> {
    let image = node.text()?.to_owned();
    let tag = match Reference::parse(&image) {
        Err(error) => Err(Left::Wrong(error.to_string())),
        Ok(tag) if tag.digest().is_some() => Err(Left::Right("it has a digest")),
        Ok(tag) if !needs_digest(&tag, pull_policy) => {
            Err(Left::Right("it is not pulled: its pull policy is Never"))
        }
        Ok(_) if node.end().is_none() => {
            Err(Left::Wrong("write the image on one line, without folding".to_owned()))
        }
        Ok(tag) => Ok(tag),
    };
    Some(ImageField { path, line: node.line, key, image, tag, end: node.end() })
}
