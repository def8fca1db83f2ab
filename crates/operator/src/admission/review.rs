//! The parts of an `AdmissionReview` and of a Pod that are used, read without copying where possible.
//!
//! Nothing is ever written back from these types: the answer is a patch, so fields that are not known here survive.

use std::{borrow::Cow, fmt, ops::Deref};

use fairlead_plan::records;
use serde::{
    Deserialize, Deserializer,
    de::{self, MapAccess, Visitor},
};
use serde_json::value::RawValue;

/// A static Pod's image in the API: changing it changes nothing on the node.
const MIRROR_POD: &str = "kubernetes.io/config.mirror";

/// Text borrowed from the request where it needs no unescaping. Absent and null are empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Text<'a>(Cow<'a, str>);

impl Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextVisitor;

        impl<'de> Visitor<'de> for TextVisitor {
            type Value = Text<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_borrowed_str<E: de::Error>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Text(Cow::Borrowed(text)))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Text(Cow::Owned(text.to_owned())))
            }

            fn visit_unit<E: de::Error>(self) -> Result<Self::Value, E> {
                Ok(Text::default())
            }
        }

        deserializer.deserialize_any(TextVisitor)
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Review<'a> {
    #[serde(borrow, default)]
    pub(super) api_version: Text<'a>,
    #[serde(borrow, default)]
    pub(super) request: Option<Request<'a>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Request<'a> {
    #[serde(borrow, default)]
    pub(super) uid: Text<'a>,
    #[serde(borrow, default)]
    pub(super) kind: Kind<'a>,
    #[serde(borrow, default)]
    pub(super) sub_resource: Text<'a>,
    #[serde(borrow, default)]
    pub(super) operation: Text<'a>,
    #[serde(borrow, default)]
    pub(super) namespace: Text<'a>,
    #[serde(default)]
    pub(super) dry_run: Option<bool>,
    /// Kept as text: if the Pod cannot be read, the request can still be answered.
    #[serde(borrow, default)]
    pub(super) object: Option<&'a RawValue>,
}

#[derive(Debug, Default, Deserialize)]
#[expect(clippy::struct_field_names, reason = "the names are Kubernetes'")]
pub(super) struct Kind<'a> {
    #[serde(borrow, default)]
    pub(super) group: Text<'a>,
    #[serde(borrow, default)]
    pub(super) version: Text<'a>,
    #[serde(borrow, default)]
    pub(super) kind: Text<'a>,
}

/// What is used of a Pod.
#[derive(Debug, Default, Deserialize)]
pub struct PodObject<'a> {
    #[serde(borrow, default)]
    pub metadata: Option<PodMetadata<'a>>,
    #[serde(borrow, default)]
    pub spec: Option<PodSpec<'a>>,
}

#[derive(Debug, Default, Deserialize)]
pub struct PodMetadata<'a> {
    #[serde(borrow, default)]
    pub annotations: Option<Annotations<'a>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PodSpec<'a> {
    #[serde(borrow, default)]
    pub containers: Option<Vec<Container<'a>>>,
    #[serde(borrow, default)]
    pub init_containers: Option<Vec<Container<'a>>>,
    #[serde(borrow, default)]
    pub ephemeral_containers: Option<Vec<Container<'a>>>,
    #[serde(borrow, default)]
    pub volumes: Option<Vec<Volume<'a>>>,
}

#[derive(Debug, Default, Deserialize)]
pub struct Container<'a> {
    #[serde(borrow, default)]
    pub name: Text<'a>,
    #[serde(borrow, default)]
    pub image: Text<'a>,
}

#[derive(Debug, Default, Deserialize)]
pub struct Volume<'a> {
    #[serde(borrow, default)]
    pub name: Text<'a>,
    #[serde(borrow, default)]
    pub image: Option<ImageVolume<'a>>,
}

#[derive(Debug, Default, Deserialize)]
pub struct ImageVolume<'a> {
    #[serde(borrow, default)]
    pub reference: Text<'a>,
}

/// The annotations that mean something here, and how much room the others take.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Annotations<'a> {
    pub routes: Option<Text<'a>>,
    pub is_mirror_pod: bool,
    pub other_bytes: usize,
}

impl<'de: 'a, 'a> Deserialize<'de> for Annotations<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AnnotationsVisitor;

        impl<'de> Visitor<'de> for AnnotationsVisitor {
            type Value = Annotations<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of annotations")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
                let mut annotations = Annotations::default();
                while let Some((key, value)) = map.next_entry::<Text<'de>, Text<'de>>()? {
                    if &*key == records::ANNOTATION {
                        annotations.routes = Some(value);
                    } else {
                        annotations.is_mirror_pod |= &*key == MIRROR_POD;
                        annotations.other_bytes += key.len() + value.len();
                    }
                }
                Ok(annotations)
            }
        }

        deserializer.deserialize_map(AnnotationsVisitor)
    }
}

impl PodObject<'_> {
    pub(super) fn is_mirror_pod(&self) -> bool {
        self.annotations().is_some_and(|annotations| annotations.is_mirror_pod)
    }

    pub(super) fn annotations(&self) -> Option<&Annotations<'_>> {
        self.metadata.as_ref()?.annotations.as_ref()
    }

    /// The Pod as the record sees it. Containers and volumes without name or image are invalid, which the API server
    /// will say; there is nothing to record about them.
    pub(super) fn to_record(&self) -> records::Pod<'_> {
        let annotations = self.annotations();
        let spec = self.spec.as_ref();
        let containers = spec
            .into_iter()
            .flat_map(|spec| [&spec.init_containers, &spec.containers, &spec.ephemeral_containers])
            .flatten()
            .flatten()
            .map(|container| {
                (records::Place::Container(&container.name), &*container.name, &*container.image)
            });
        let volumes =
            spec.and_then(|spec| spec.volumes.as_deref()).unwrap_or_default().iter().filter_map(|volume| {
                let image = volume.image.as_ref()?;
                Some((records::Place::Volume(&volume.name), &*volume.name, &*image.reference))
            });
        records::Pod {
            record: annotations.and_then(|annotations| annotations.routes.as_deref()),
            other_annotation_bytes: annotations.map_or(0, |annotations| annotations.other_bytes),
            images: containers
                .chain(volumes)
                .filter(|(_, name, reference)| !name.is_empty() && !reference.is_empty())
                .map(|(place, _, reference)| records::Image { place, reference })
                .collect(),
        }
    }
}

/// Reads the identity of a request from its beginning, although the rest is missing or broken.
pub(super) fn uid_of_prefix(prefix: &[u8]) -> Option<String> {
    struct Level<'c> {
        wanted: &'static [&'static str],
        found: &'c mut Option<String>,
    }

    impl<'de> de::DeserializeSeed<'de> for Level<'_> {
        type Value = ();

        fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
            deserializer.deserialize_map(self)
        }
    }

    impl<'de> Visitor<'de> for Level<'_> {
        type Value = ();

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a map")
        }

        fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<(), M::Error> {
            while let Some(key) = map.next_key::<Cow<'de, str>>()? {
                match self.wanted {
                    [last] if key == *last => *self.found = Some(map.next_value()?),
                    [first, rest @ ..] if key == *first => {
                        map.next_value_seed(Level { wanted: rest, found: self.found })?;
                    }
                    _ => {
                        map.next_value::<de::IgnoredAny>()?;
                    }
                }
            }
            Ok(())
        }
    }

    let mut found = None;
    let level = Level { wanted: &["request", "uid"], found: &mut found };
    // It ends in an error, where the text was cut; by then the identity has been read, since API servers send it first.
    let _ = de::DeserializeSeed::deserialize(level, &mut serde_json::Deserializer::from_slice(prefix));
    found.filter(|uid| !uid.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_identity_is_read_from_what_is_left() {
        for (text, expected) in [
            (r#"{"kind":"AdmissionReview","request":{"uid":"u1","object":{"a":[1,2"#, Some("u1")),
            (r#"{"request":{"kind":{"kind":"Pod"},"uid":"u2","#, Some("u2")),
            (r#"{"request":{"uid":"u3"}}"#, Some("u3")),
            (r#"{"uid":"outside","request":{"object":{"uid":"inside"}}}"#, None),
            (r#"{"request":{"uid":""}}"#, None),
            (r#"{"request":{"uid":5}}"#, None),
            (r#"{"request":{"ui"#, None),
            ("[]", None),
            ("", None),
        ] {
            assert_eq!(uid_of_prefix(text.as_bytes()).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn text_is_borrowed_unless_it_was_escaped() {
        let plain: Text<'_> = serde_json::from_str(r#""a""#).unwrap();
        assert!(matches!(plain.0, Cow::Borrowed("a")));
        let escaped: Text<'_> = serde_json::from_str(r#""a\n""#).unwrap();
        assert_eq!(&*escaped, "a\n");
        assert_eq!(&*serde_json::from_str::<Text<'_>>("null").unwrap(), "");
        assert!(serde_json::from_str::<Text<'_>>("5").is_err());
    }

    #[test]
    fn odd_pods_are_read_as_far_as_they_go() {
        for text in [
            "{}",
            r#"{"metadata":null,"spec":null}"#,
            r#"{"metadata":{"annotations":null},"spec":{"containers":null,"volumes":null}}"#,
            r#"{"spec":{"containers":[{"name":"a"},{"image":"b"},{}],"volumes":[{"name":"v","emptyDir":{}},{"name":"w","image":{}}]}}"#,
        ] {
            let pod: PodObject<'_> = serde_json::from_str(text).unwrap();
            assert!(pod.to_record().images.is_empty(), "{text}");
        }
    }
}
