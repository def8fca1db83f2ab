//! Where in a manifest images stand.

use std::collections::{HashMap, HashSet};

use anyhow::{Result, ensure};
use fairlead_domain::digest::Digest;
use fairlead_domain::reference::{DEFAULT_TAG, Reference};
use fairlead_plan::pinning::{hold_written, needs_digest};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use super::PinResult;
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

/// Where objects of other kinds have their Pods' specification, if they have one: Argo's `Rollout`, `CloneSet`.
const TEMPLATE: &[&str] = &["spec", "template", "spec"];

/// Fields at the top of objects with Pods, and of lists.
const FIELDS: [&str; 7] = ["apiVersion", "kind", "metadata", "spec", "status", "template", "items"];

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

    /// Whether it is known which Pods are its own. Some kinds do not select them, and a `PodTemplate` has none.
    pub(super) fn tells_pods(&self) -> bool {
        matches!(self.kind.as_str(), "Pod" | "Job" | "CronJob") || self.selector.is_some()
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
pub(super) fn workloads(documents: &[std::rc::Rc<Node>]) -> Result<Vec<Workload>> {
    let mut all = Vec::new();
    for (document, number) in documents.iter().zip(1..) {
        let mut found = Found::default();
        add(document, Item { document: number, prefix: "", kind: None }, &mut found)?;
        keep_other_values(document, &mut found);
        all.append(&mut found.workloads);
    }
    Ok(all)
}

/// What is in a document.
#[derive(Default)]
struct Found {
    workloads: Vec<Workload>,
    /// Where its lists and objects with Pods stand, as [`Item::prefix`]: the objects whose fields are known.
    known: HashSet<String>,
}

/// Where an object stands.
#[derive(Clone, Copy)]
struct Item<'n> {
    document: usize,
    /// Empty, or the path of the item of a list, with a dot.
    prefix: &'n str,
    /// The kind that it has where it names none itself: items of a `PodList` are Pods, as an API server writes them.
    kind: Option<&'n str>,
}

fn add(object: &Node, item: Item<'_>, found: &mut Found) -> Result<()> {
    let Item { document, prefix, .. } = item;
    let Some(kind) = object.get("kind").and_then(Node::text).or(item.kind) else {
        let (line, place) = (object.line, prefix.trim_end_matches('.'));
        ensure!(
            prefix.is_empty(),
            "line {line}: {place} has no kind, so it is not known whether it has images: write its kind"
        );
        return Ok(());
    };
    if let Some(of_items) = kind.strip_suffix("List") {
        found.known.insert(prefix.to_owned());
        let kind = Some(of_items).filter(|kind| !kind.is_empty());
        for (index, one) in object.get("items").into_iter().flat_map(Node::items).enumerate() {
            let prefix = &*format!("{prefix}items[{index}].");
            add(one, Item { document, prefix, kind }, found)?;
        }
        return Ok(());
    }
    let known = KINDS.iter().find(|(known, _)| *known == kind).map(|(_, path)| *path);
    if known.is_some() {
        found.known.insert(prefix.to_owned());
    }
    let path = known.unwrap_or(TEMPLATE);
    let has_pods = |spec: &&Node| known.is_some() || spec.get("containers").is_some();
    let Some(spec) = object.at(path).filter(has_pods) else { return Ok(()) };
    let text = |path: &[&str]| object.at(path).and_then(Node::text).map(str::to_owned);
    found.workloads.push(Workload {
        document,
        kind: kind.to_owned(),
        namespace: text(&["metadata", "namespace"]),
        name: text(&["metadata", "name"]).or_else(|| text(&["metadata", "generateName"])).unwrap_or_default(),
        selector: selector(object, kind),
        images: images(spec, &format!("{prefix}{}", path.join("."))),
    });
    Ok(())
}

/// Leaves a field as it is if its value also stands where no image does: what is put behind it would change that place
/// as well.
fn keep_other_values(document: &Node, found: &mut Found) {
    let Found { workloads, known } = found;
    let fields = || workloads.iter().flat_map(|one| &one.images);
    let ends: HashSet<usize> = fields().filter_map(|field| field.end).collect();
    if ends.is_empty() {
        return;
    }
    let images: HashSet<&str> = fields().map(|field| &*field.path).collect();
    let others: Option<HashMap<usize, String>> = document.places_of(&ends).map(|places| {
        let is_other = |path: &str| !images.contains(path) && is_of_object(path, known);
        places.into_iter().filter(|(_, path)| is_other(path)).collect()
    });
    for field in workloads.iter_mut().flat_map(|one| &mut one.images).filter(|field| field.tag.is_ok()) {
        let Some(end) = field.end else { continue };
        let why = match &others {
            Some(others) => others.get(&end).map(|path| {
                format!("{path} has the same value by an anchor and is no image; write both out")
            }),
            None => Some("its document has more aliases than are gone through; write them out".to_owned()),
        };
        if let Some(why) = why {
            field.tag = Err(Left::Wrong(why));
        }
    }
}

/// Whether a path is of a field that its object may have. What objects with Pods and lists do not have, like
/// `x-images`, holds values that the rest of a file takes from it; of other kinds, any field may be one.
fn is_of_object(path: &str, known: &HashSet<String>) -> bool {
    let mut field = path;
    while let Some((_, rest)) = field.strip_prefix("items[").and_then(|rest| rest.split_once("].")) {
        field = rest;
    }
    let object = path.strip_suffix(field).unwrap_or_default();
    let first = field.split(['.', '[']).next().unwrap_or_default();
    FIELDS.contains(&first) || !known.contains(object)
}

/// A `ReplicationController` has labels where others have a selector, by default those of its template; so has what
/// OpenShift makes of it.
fn selector(object: &Node, kind: &str) -> Option<LabelSelector> {
    let written = object.at(&["spec", "selector"]).map(Node::value);
    if !matches!(kind, "ReplicationController" | "DeploymentConfig") {
        return serde_json::from_value(written?).ok();
    }
    let labels = || Some(object.at(&["spec", "template", "metadata", "labels"])?.value());
    let labels = written.filter(|labels| !labels.is_null()).or_else(labels)?;
    Some(LabelSelector { match_labels: serde_json::from_value(labels).ok()?, ..LabelSelector::default() })
}

/// Fields that get their value from one anchor are pinned together, to one digest, or stay all.
pub(super) fn agree(workloads: &[Workload], found: &[PinResult]) -> Vec<PinResult> {
    let fields: Vec<&ImageField> = workloads.iter().flat_map(|one| &one.images).collect();
    let mut sharing: HashMap<usize, Vec<usize>> = HashMap::new();
    for (number, field) in fields.iter().enumerate() {
        if let Some(end) = field.end {
            sharing.entry(end).or_default().push(number);
        }
    }
    let decide = |(number, own): (usize, &PinResult)| {
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
