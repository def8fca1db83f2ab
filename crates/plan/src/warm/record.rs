//! What a pull Pod pulls, and what it is called.
//!
//! The name follows from the images' UIDs, the node's UID, the references and the numbers of the attempts. A planner
//! that decides on the same pull a second time, after a restart or with an old view of the cluster, meets the Pod that
//! is there. The same facts stand in an annotation, and a Pod counts as a pull Pod only if they give its name.

use std::borrow::Cow;
use std::hash::Hasher;
use std::sync::Arc;

use fairlead_api::names::drop::POD_NAME_PREFIX;
use serde::{Deserialize, Serialize};
use twox_hash::XxHash64;

/// Characters of a label's value.
const LONGEST_LABEL: usize = 63;
/// Bytes of a `CachedImage`'s name in the name of a Pod, which has 253 in all.
const NAME_BYTES: usize = 200;
/// Name of the container, and the beginning of the names where there are several.
const CONTAINER: &str = "pull";

/// Everything that one Pod pulls.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// UID of the node.
    #[serde(with = "shared")]
    pub node: Arc<str>,
    /// The images are volumes of the Pod.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub volumes: bool,
    pub pulls: Vec<Pull>,
}

/// One image that a Pod pulls.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pull {
    /// Name of the `CachedImage`.
    #[serde(with = "shared")]
    pub image: Arc<str>,
    #[serde(with = "shared")]
    pub uid: Arc<str>,
    /// What the kubelet is asked for.
    #[serde(with = "shared")]
    pub reference: Arc<str>,
    /// Counts the Pods of this image on this node, from 1.
    pub attempt: u32,
}

/// Texts that are shared in memory.
mod shared {
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(text: &Arc<str>, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(text)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<str>, D::Error> {
        String::deserialize(deserializer).map(Into::into)
    }
}

impl Record {
    /// The record of a Pod, if it gives the Pod's name and the owners of the Pod are images in it. An image that was
    /// deleted is no owner any more: the garbage collector takes it off while there are others.
    pub fn read(annotation: &str, pod_name: &str, owners: &[Arc<str>]) -> Option<Self> {
        let record: Self = serde_json::from_str(annotation).ok()?;
        let pulls = |owner: &Arc<str>| record.pulls.iter().any(|pull| pull.uid == *owner);
        let owned = !owners.is_empty() && owners.iter().all(pulls);
        (owned && record.pod_name() == pod_name).then_some(record)
    }

    pub(super) fn write(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    pub fn pod_name(&self) -> String {
        let mut hasher = XxHash64::default();
        let mut add = |text: &str| {
            hasher.write(text.as_bytes());
            hasher.write_u8(0);
        };
        add(&self.node);
        for pull in &self.pulls {
            add(&pull.uid);
            add(&pull.reference);
            add(&pull.attempt.to_string());
        }
        let name = match &*self.pulls {
            [only] => &*only.image,
            _ => "batch",
        };
        let name = name.get(..name.floor_char_boundary(NAME_BYTES)).unwrap_or_default();
        let name = name.trim_end_matches(['.', '-']);
        format!("{POD_NAME_PREFIX}{name}-{:016x}", hasher.finish())
    }

    /// Name of the container, or of the volume, that pulls one of the images.
    pub fn container(&self, pull: &Pull) -> String {
        if self.pulls.len() == 1 { CONTAINER.to_owned() } else { format!("{CONTAINER}-{}", pull.uid) }
    }
}

/// A name as a label's value: itself where it fits, else its beginning and a hash.
pub fn label_value(name: &str) -> Cow<'_, str> {
    if name.len() <= LONGEST_LABEL {
        return Cow::Borrowed(name);
    }
    let hash = format!("{:016x}", XxHash64::oneshot(0, name.as_bytes()));
    let room = LONGEST_LABEL - hash.len() - 1;
    let start = name.get(..name.floor_char_boundary(room)).unwrap_or_default();
    let start = start.trim_end_matches(['.', '-', '_']);
    Cow::Owned(if start.is_empty() { hash } else { format!("{start}-{hash}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pull(image: &str, reference: &str, attempt: u32) -> Pull {
        Pull { image: image.into(), uid: format!("uid-{image}").into(), reference: reference.into(), attempt }
    }

    fn record(node: &str, pulls: &[Pull]) -> Record {
        Record { node: node.into(), volumes: false, pulls: pulls.to_vec() }
    }

    #[test]
    fn a_name_follows_from_image_node_reference_and_attempt_alone() {
        let name = record("n", &[pull("web", "r.io/a:1", 1)]).pod_name();
        assert_eq!(name, record("n", &[pull("web", "r.io/a:1", 1)]).pod_name());
        assert!(name.starts_with("pull-web-") && name.len() == "pull-web-".len() + 16, "{name}");
        for other in [
            record("m", &[pull("web", "r.io/a:1", 1)]),
            record("n", &[pull("wex", "r.io/a:1", 1)]),
            record("n", &[pull("web", "r.io/a:2", 1)]),
            record("n", &[pull("web", "r.io/a:1", 2)]),
            record("n", &[pull("web", "r.io/a:1", 1), pull("db", "r.io/b:1", 1)]),
        ] {
            assert_ne!(name, other.pod_name(), "{other:?}");
        }
    }

    #[test]
    fn names_of_any_legal_length_give_legal_names() {
        for length in [1, 63, 64, 199, 200, 201, 253] {
            let image = format!("{}x", "a.".repeat(length / 2)).chars().take(length).collect::<String>();
            let image = format!("{}z", &image[..length - 1]);
            let name = record("n", &[pull(&image, "r.io/a:1", 1)]).pod_name();
            assert!(name.len() <= 253, "{name}");
            assert!(!name.contains("..") && !name.contains(".-"), "{name}");
            let label = label_value(&image);
            assert!(label.len() <= 63 && label.ends_with(char::is_alphanumeric), "{label}");
            assert_eq!(label == image, length <= 63);
        }
        let [one, other] =
            ["a", "b"].map(|end| label_value(&format!("{}{end}", "x".repeat(80))).into_owned());
        assert_ne!(one, other);
    }

    #[test]
    fn a_record_counts_only_if_it_gives_the_name_and_the_owners_agree() {
        let written = record("n", &[pull("web", "r.io/a:1", 3)]);
        let (text, name) = (written.write(), written.pod_name());
        let owner: [Arc<str>; 1] = ["uid-web".into()];
        assert_eq!(Record::read(&text, &name, &owner), Some(written));
        assert_eq!(Record::read(&text, &name, &[]), None, "not owned");
        assert_eq!(Record::read(&text, "pull-web-0", &owner), None, "another name");
        assert_eq!(Record::read(&text.replace('3', "4"), &name, &owner), None, "edited");
        assert_eq!(Record::read("{}", &name, &owner), None);
        let stranger: [Arc<str>; 2] = ["uid-web".into(), "uid-other".into()];
        assert_eq!(Record::read(&text, &name, &stranger), None, "owned by something else, too");
        let both = record("n", &[pull("web", "r.io/a:1", 3), pull("gone", "r.io/b:1", 1)]);
        let read = Record::read(&both.write(), &both.pod_name(), &owner);
        assert_eq!(read, Some(both), "one of its images was deleted");
    }
}
