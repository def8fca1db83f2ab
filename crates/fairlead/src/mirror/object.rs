//! One mirror object of the cluster, read so that a broken field hides nothing but itself.

use std::fmt;

use fairlead_api::conditions::Condition;
use fairlead_api::kuik::{Cleanup, ClusterImageSetMirrorSpec, ImageSetMirrorSpec, Mirror, MirrorSetStatus};
use fairlead_domain::reference::{Location, Reference};
use jiff::Timestamp;
use kube::api::DynamicObject;

use crate::stored::part;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    ClusterImageSetMirror,
    ImageSetMirror,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::ClusterImageSetMirror => "ClusterImageSetMirror",
            Self::ImageSetMirror => "ImageSetMirror",
        }
    }

    /// As kubectl takes it: name, plural or short name, in any case.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        match text.to_ascii_lowercase().as_str() {
            "cism" | "clusterimagesetmirror" | "clusterimagesetmirrors" => Some(Self::ClusterImageSetMirror),
            "ism" | "imagesetmirror" | "imagesetmirrors" => Some(Self::ImageSetMirror),
            _ => None,
        }
    }
}

/// What is known of an object without its ledgers.
#[derive(Debug)]
pub(crate) struct Object {
    pub(crate) kind: Kind,
    pub(crate) namespace: Option<String>,
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) generation: Option<i64>,
    pub(crate) deleting_since: Option<Timestamp>,
    pub(crate) places: Vec<Place>,
    /// What becomes of copies in places that the object no longer names.
    pub(crate) cleanup: Cleanup,
    pub(crate) status: MirrorSetStatus,
    /// Parts of the stored object that cannot be read.
    pub(crate) problems: Vec<String>,
}

/// One mirror.
#[derive(Debug)]
pub(crate) struct Place {
    /// Registry and path, as references begin.
    pub(crate) text: String,
    /// `None` where they make no sense: it holds no copy then, and its condition says why.
    location: Option<Location>,
    pub(crate) cleanup: Cleanup,
}

impl Object {
    pub(crate) fn read(kind: Kind, object: &DynamicObject) -> Self {
        let metadata = &object.metadata;
        let mut problems = Vec::new();
        let (cleanup, mirrors) = match kind {
            Kind::ClusterImageSetMirror => {
                let spec: ClusterImageSetMirrorSpec = part(&object.data, "spec", &mut problems);
                (spec.cleanup, spec.mirrors)
            }
            Kind::ImageSetMirror => {
                let spec: ImageSetMirrorSpec = part(&object.data, "spec", &mut problems);
                (spec.cleanup, spec.mirrors)
            }
        };
        let status = part(&object.data, "status", &mut problems);
        Self {
            kind,
            namespace: metadata.namespace.clone(),
            name: metadata.name.clone().unwrap_or_default(),
            uid: metadata.uid.clone().unwrap_or_default(),
            generation: metadata.generation,
            deleting_since: metadata.deletion_timestamp.as_ref().map(|time| time.0),
            places: mirrors.into_iter().map(|mirror| Place::of(mirror, &cleanup)).collect(),
            cleanup,
            status,
            problems,
        }
    }

    pub(crate) fn condition(&self, type_: &str) -> Option<&Condition> {
        self.status.conditions.iter().find(|condition| condition.type_ == type_)
    }

    /// The mirror that a copy lies in: the innermost, where one lies in another.
    pub(crate) fn place_of(&self, destination: &str) -> Option<usize> {
        let destination = Reference::parse(destination).ok()?;
        let locations = self.places.iter().map(|place| place.location.as_ref()).enumerate();
        let inside = locations.filter_map(|(number, location)| {
            location.filter(|location| location.contains(&destination)).map(|location| (number, location))
        });
        inside
            .max_by_key(|(number, location)| (location.path().len(), usize::MAX - number))
            .map(|(number, _)| number)
    }

    /// What becomes of a copy that is not in use.
    pub(crate) fn cleanup_of(&self, destination: &str) -> &Cleanup {
        let place = self.place_of(destination).and_then(|number| self.places.get(number));
        place.map_or(&self.cleanup, |place| &place.cleanup)
    }
}

impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{}/{namespace}/{}", self.kind.name(), self.name),
            None => write!(f, "{}/{}", self.kind.name(), self.name),
        }
    }
}

impl Place {
    fn of(mirror: Mirror, default: &Cleanup) -> Self {
        let location = Location::new(&mirror.registry, &mirror.path).ok();
        let text = match &location {
            Some(location) => location.as_str().to_owned(),
            None => format!("{}/{}", mirror.registry, mirror.path.trim_matches('/')),
        };
        Self { text, location, cleanup: mirror.cleanup.unwrap_or_else(|| default.clone()) }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(kind: Kind, object: Value) -> Object {
        Object::read(kind, &serde_json::from_value(object).unwrap())
    }

    #[test]
    fn a_copy_lies_in_the_innermost_mirror_and_is_cleaned_up_by_its_rules() {
        let object = read(
            Kind::ImageSetMirror,
            json!({"metadata": {"name": "m", "namespace": "n"}, "spec": {
                "cleanup": {"enabled": true, "retention": "1h"},
                "mirrors": [
                    {"registry": "r.io", "path": "/a/"},
                    {"registry": "r.io", "path": "a/b", "cleanup": {"enabled": false}},
                    {"registry": "r.io", "path": "a/b"},
                ],
            }}),
        );
        assert_eq!(object.to_string(), "ImageSetMirror/n/m");
        assert_eq!(object.place_of("r.io/a/x:1"), Some(0));
        assert_eq!(object.place_of("r.io/a/b/x:1"), Some(1), "the first of two that are the same");
        assert_eq!(object.place_of("r.io/ab/x:1"), None, "only whole segments count");
        assert_eq!(object.place_of("R.io:443/a/x:1"), Some(0), "in every spelling of the registry");
        assert!(object.cleanup_of("r.io/a/x:1").enabled);
        assert!(!object.cleanup_of("r.io/a/b/x:1").enabled);
        assert!(object.cleanup_of("gone.io/x:1").enabled, "what is no longer named follows the object");
    }

    #[test]
    fn a_broken_field_hides_only_itself() {
        let object = read(
            Kind::ClusterImageSetMirror,
            json!({"metadata": {"name": "m"}, "spec": {"cleanup": {"retention": "7d"}}, "status": {"imageCount": 3}}),
        );
        assert_eq!(object.problems.len(), 1);
        assert!(
            object.problems[0].starts_with("spec.cleanup.retention cannot be read: "),
            "{:?}",
            object.problems
        );
        assert_eq!(object.status.image_count, Some(3));
        assert!(read(Kind::ImageSetMirror, json!({"metadata": {}})).problems.is_empty());
    }

    #[test]
    fn kinds_are_named_as_for_kubectl() {
        for text in ["cism", "ClusterImageSetMirror", "clusterimagesetmirrors"] {
            assert_eq!(Kind::parse(text), Some(Kind::ClusterImageSetMirror));
        }
        assert_eq!(Kind::parse("ISM"), Some(Kind::ImageSetMirror));
        assert_eq!(Kind::parse("pod"), None);
    }
}
