//! The parts of an `AdmissionReview` and of a Pod that are used, read without copying where possible.
//!
//! Nothing is ever written back from these types: the answer is a patch, so fields that are not known here survive.

use std::borrow::Cow;
use std::fmt;
use std::ops::Deref;

use fairlead_domain::selector::{Labels, PodFacts};
use fairlead_plan::exclusions::{Exclusions, LeftAlone};
use fairlead_plan::owners::Controller;
use fairlead_plan::pod_record::{Place, PodAnnotations};
use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// Text borrowed from the request where it needs no unescaping. Absent and null are empty.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Text<'a>(Cow<'a, str>);

impl Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl Text<'_> {
    fn unless_empty(&self) -> Option<&str> {
        Some(&**self).filter(|text| !text.is_empty())
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

/// A review whose objects are read as `O`: as Pods, or ignored.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", bound(deserialize = "O: Deserialize<'de>, 'de: 'a"))]
pub(super) struct Review<'a, O> {
    #[serde(borrow, default)]
    pub(super) api_version: Text<'a>,
    #[serde(default = "none")]
    pub(super) request: Option<Request<'a, O>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", bound(deserialize = "O: Deserialize<'de>, 'de: 'a"))]
pub(super) struct Request<'a, O> {
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
    #[serde(default = "none")]
    pub(super) object: Option<O>,
    #[serde(default = "none")]
    pub(super) old_object: Option<O>,
}

/// The derived default would ask for one of `T`.
fn none<T>() -> Option<T> {
    None
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
#[serde(rename_all = "camelCase")]
pub struct PodMetadata<'a> {
    #[serde(borrow, default)]
    pub name: Text<'a>,
    #[serde(borrow, default)]
    pub uid: Text<'a>,
    #[serde(borrow, default)]
    pub labels: Option<Pairs<'a>>,
    #[serde(borrow, default)]
    pub annotations: Option<Pairs<'a>>,
    #[serde(borrow, default)]
    pub owner_references: Option<Vec<OwnerReference<'a>>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OwnerReference<'a> {
    #[serde(borrow, default)]
    pub api_version: Text<'a>,
    #[serde(borrow, default)]
    pub kind: Text<'a>,
    #[serde(borrow, default)]
    pub name: Text<'a>,
    #[serde(borrow, default)]
    pub uid: Text<'a>,
    #[serde(default)]
    pub controller: Option<bool>,
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
    #[serde(borrow, default)]
    pub image_pull_secrets: Option<Vec<SecretName<'a>>>,
    #[serde(borrow, default)]
    pub service_account_name: Text<'a>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Container<'a> {
    #[serde(borrow, default)]
    pub name: Text<'a>,
    #[serde(borrow, default)]
    pub image: Text<'a>,
    #[serde(borrow, default)]
    pub image_pull_policy: Text<'a>,
}

#[derive(Debug, Default, Deserialize)]
pub struct Volume<'a> {
    #[serde(borrow, default)]
    pub name: Text<'a>,
    #[serde(borrow, default)]
    pub image: Option<ImageVolume<'a>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ImageVolume<'a> {
    #[serde(borrow, default)]
    pub reference: Text<'a>,
    #[serde(borrow, default)]
    pub pull_policy: Text<'a>,
}

#[derive(Debug, Default, Deserialize)]
pub struct SecretName<'a> {
    #[serde(borrow, default)]
    pub name: Text<'a>,
}

/// Labels or annotations. Of a key that is there twice the last counts, as for the API server.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Pairs<'a>(Vec<(Text<'a>, Text<'a>)>);

impl<'de: 'a, 'a> Deserialize<'de> for Pairs<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PairsVisitor;

        impl<'de> Visitor<'de> for PairsVisitor {
            type Value = Pairs<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of texts")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
                let mut pairs = Vec::with_capacity(map.size_hint().unwrap_or(8));
                while let Some(pair) = map.next_entry::<Text<'de>, Text<'de>>()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }

        deserializer.deserialize_map(PairsVisitor)
    }
}

impl Labels for Pairs<'_> {
    fn value(&self, key: &str) -> Option<&str> {
        self.0.iter().rev().find(|(found, _)| **found == *key).map(|(_, value)| &**value)
    }

    fn each(&self, visit: &mut dyn FnMut(&str, &str)) {
        for (key, value) in &self.0 {
            visit(key, value);
        }
    }
}

type PlaceOf<'p> = fn(&'p str) -> Place<'p>;

/// One image of a Pod, and where it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodImage<'a> {
    pub place: Place<'a>,
    /// Where in its list.
    pub position: usize,
    pub reference: &'a str,
    /// As written; API servers fill it in for containers.
    pub pull_policy: Option<&'a str>,
}

impl<'a> PodObject<'a> {
    pub fn labels(&self) -> Option<&Pairs<'a>> {
        self.metadata.as_ref()?.labels.as_ref()
    }

    pub fn annotations(&self) -> Option<&Pairs<'a>> {
        self.metadata.as_ref()?.annotations.as_ref()
    }

    pub fn annotation(&self, key: &str) -> Option<&str> {
        self.annotations()?.value(key)
    }

    /// Why it is left alone in a namespace, where `own` is that of the operator.
    pub fn left_alone<'e>(
        &self,
        exclusions: &'e Exclusions,
        namespace: &str,
        own: &'e str,
    ) -> Option<LeftAlone<'e>> {
        let (labels, annotations) = (self.labels(), self.annotations());
        let facts = PodFacts { namespace, labels: &labels, annotations: &annotations };
        exclusions.left_alone(&facts, own)
    }

    /// What earlier turns, and others, recorded on the Pod.
    pub fn found(&self) -> PodAnnotations<'_> {
        let pairs = self.annotations().into_iter().flat_map(|pairs| &pairs.0);
        PodAnnotations::of(pairs.map(|(key, value)| (&**key, &**value)))
    }

    /// Every image. Containers and volumes without name or image are invalid, which the API server will say; there is
    /// nothing to decide about them.
    pub fn images<'p>(&'p self) -> Vec<PodImage<'p>> {
        let Some(spec) = &self.spec else { return Vec::new() };
        let mut images = Vec::with_capacity(8);
        let kinds: [(PlaceOf<'p>, _); 3] = [
            (Place::Init, &spec.init_containers),
            (Place::Container, &spec.containers),
            (Place::Ephemeral, &spec.ephemeral_containers),
        ];
        for (place, containers) in kinds {
            for (position, container) in containers.iter().flatten().enumerate() {
                let (name, reference) = (&*container.name, &*container.image);
                if !name.is_empty() && !reference.is_empty() {
                    let pull_policy = container.image_pull_policy.unless_empty();
                    images.push(PodImage { place: place(name), position, reference, pull_policy });
                }
            }
        }
        for (position, volume) in spec.volumes.iter().flatten().enumerate() {
            let Some(image) = &volume.image else { continue };
            let (name, reference) = (&*volume.name, &*image.reference);
            if !name.is_empty() && !reference.is_empty() {
                let pull_policy = image.pull_policy.unless_empty();
                images.push(PodImage { place: Place::Volume(name), position, reference, pull_policy });
            }
        }
        images
    }

    /// The object that controls the Pod.
    pub fn controller(&self) -> Option<Controller<'_>> {
        let owners = self.metadata.as_ref()?.owner_references.as_ref()?;
        let owner = owners.iter().find(|owner| owner.controller == Some(true))?;
        Some(Controller {
            api_version: &owner.api_version,
            kind: &owner.kind,
            name: &owner.name,
            uid: &owner.uid,
        })
    }

    /// The service account, which API servers fill in before they ask.
    pub fn service_account(&self) -> &str {
        self.spec.as_ref().map_or("", |spec| &spec.service_account_name)
    }

    /// The pull secrets that are on the Pod already.
    pub fn pull_secrets(&self) -> impl Iterator<Item = &str> {
        let secrets = self.spec.iter().flat_map(|spec| spec.image_pull_secrets.iter().flatten());
        secrets.filter_map(|secret| secret.name.unless_empty())
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
    fn the_controller_is_the_owner_that_says_so() {
        let controller = |owners: &str| {
            let text = format!(r#"{{"metadata":{{"ownerReferences":{owners}}}}}"#);
            let pod: PodObject<'_> = serde_json::from_str(&text).unwrap();
            pod.controller().map(|controller| controller.to_string())
        };
        let owner = |kind: &str, controller: &str| {
            format!(r#"{{"apiVersion":"a.io/v1","kind":"{kind}","name":"n","uid":"u"{controller}}}"#)
        };
        let (plain, no, yes) =
            (owner("A", ""), owner("B", r#","controller":false"#), owner("C", r#","controller":true"#));
        assert_eq!(controller(&format!("[{plain},{no},{yes}]")), Some("C.a.io/n".to_owned()));
        for none in [format!("[{plain},{no}]"), "[]".to_owned(), "null".to_owned()] {
            assert_eq!(controller(&none), None, "{none}");
        }
    }

    #[test]
    fn odd_pods_are_read_as_far_as_they_go() {
        let config = "skipLabels: [app]\nskipAnnotations: [skip]";
        let exclusions = crate::platform::config::Config::parse(config).unwrap().config.exclusions();
        for text in [
            "{}",
            r#"{"metadata":null,"spec":null}"#,
            r#"{"metadata":{"labels":null,"annotations":null},"spec":{"containers":null,"volumes":null}}"#,
            r#"{"spec":{"containers":[{"name":"a"},{"image":"b"},{}],"volumes":[{"name":"v","emptyDir":{}},{"name":"w","image":{}}]}}"#,
        ] {
            let pod: PodObject<'_> = serde_json::from_str(text).unwrap();
            assert!(pod.images().is_empty(), "{text}");
            assert_eq!(pod.left_alone(&exclusions, "shop", "fairlead"), None, "{text}");
        }
    }
}
