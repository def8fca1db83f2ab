//! Decoding of manifests, as lenient as registries and runtimes.

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use fairlead_domain::digest::Digest;
use fairlead_domain::json::{self, Field};
use fairlead_domain::json_object;
use fairlead_domain::platform::Platform;
use serde::de::{DeserializeOwned, IgnoredAny, MapAccess};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;

use super::{DOCKER_LIST, DOCKER_MANIFEST, Manifest, OCI_INDEX, OCI_MANIFEST, is_index, is_manifest};
use crate::error::Problem;

/// A reference to content: type, digest and size.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase", try_from = "WrittenDescriptor")]
pub struct Descriptor {
    pub media_type: String,
    pub digest: Digest,
    pub size: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub artifact_type: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub platform: Option<Platform>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub annotations: Option<BTreeMap<String, String>>,
    /// Where a layer is found that registries do not store.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub urls: Option<Vec<String>>,
}

/// An image for one platform.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Image {
    pub config: Descriptor,
    pub layers: Vec<Descriptor>,
    pub subject: Option<Descriptor>,
}

/// Types of configurations that say which platform an image is for.
const IMAGE_CONFIGS: [&str; 2] =
    ["application/vnd.oci.image.config.v1+json", "application/vnd.docker.container.image.v1+json"];

impl Image {
    /// Whether its configuration may name a platform. That of an artifact is of another type, and need not be JSON.
    pub(crate) fn may_name_platform(&self) -> bool {
        let media_type = self.config.media_type.as_str();
        media_type.is_empty() || IMAGE_CONFIGS.contains(&media_type)
    }
}

/// A list of manifests, usually one for each platform.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Index {
    pub manifests: Vec<Descriptor>,
    pub subject: Option<Descriptor>,
}

/// A decoded manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    Index(Box<Index>),
    Image(Box<Image>),
}

#[derive(Default)]
struct WrittenDescriptor {
    media_type: String,
    digest: Option<Digest>,
    size: Option<u64>,
    artifact_type: Option<String>,
    platform: Option<Lenient<Platform>>,
    annotations: Option<Lenient<BTreeMap<String, Option<String>>>>,
    urls: Option<Lenient<Vec<String>>>,
}

json_object!(WrittenDescriptor {
    "mediaType" => media_type,
    "digest" => digest,
    "size" => size,
    "artifactType" => artifact_type,
    "platform" => platform,
    "annotations" => annotations,
    "urls" => urls,
});

impl TryFrom<WrittenDescriptor> for Descriptor {
    type Error = &'static str;

    fn try_from(written: WrittenDescriptor) -> Result<Self, Self::Error> {
        let annotations = written.annotations.and_then(|annotations| annotations.0);
        let text = |(key, value): (String, Option<String>)| (key, value.unwrap_or_default());
        Ok(Self {
            media_type: written.media_type,
            digest: written.digest.ok_or("something is named without its digest")?,
            size: written.size.ok_or("something is named without its size")?,
            artifact_type: written.artifact_type,
            platform: written.platform.and_then(|platform| platform.0),
            annotations: annotations.map(|annotations| annotations.into_iter().map(text).collect()),
            urls: written.urls.and_then(|urls| urls.0),
        })
    }
}

/// Optional parts of the wrong shape count as missing.
struct Lenient<T>(Option<T>);

impl<'de, T: DeserializeOwned> Deserialize<'de> for Lenient<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let raw = Box::<RawValue>::deserialize(deserializer)?;
        Ok(Self(json::from_slice(raw.get().as_bytes()).ok()))
    }
}

/// A list whose presence tells the type of a document. Programs written in Go write an empty one as `null`, which
/// registries accept.
#[derive(Default)]
enum List<T> {
    #[default]
    Missing,
    Null,
    Given(T),
}

impl<T: DeserializeOwned> Field for List<T> {
    fn read<'de, A: MapAccess<'de>>(&mut self, map: &mut A) -> Result<(), A::Error> {
        *self = map.next_value::<Option<T>>()?.map_or(Self::Null, Self::Given);
        Ok(())
    }
}

#[derive(Default)]
struct WrittenImage {
    config: Option<Descriptor>,
    layers: Option<Vec<Descriptor>>,
    subject: Option<Descriptor>,
}

json_object!(WrittenImage { "config" => config, "layers" => layers, "subject" => subject });

#[derive(Default)]
struct WrittenIndex {
    manifests: List<Vec<Descriptor>>,
    subject: Option<Descriptor>,
}

json_object!(WrittenIndex { "manifests" => manifests, "subject" => subject });

/// The parts of a manifest that tell its type.
#[derive(Default)]
struct Outline {
    schema_version: Option<u64>,
    media_type: Option<String>,
    manifests: List<IgnoredAny>,
    config: Option<IgnoredAny>,
    layers: Option<IgnoredAny>,
}

json_object!(Outline {
    "schemaVersion" => schema_version,
    "mediaType" => media_type,
    "manifests" => manifests,
    "config" => config,
    "layers" => layers,
});

impl Content {
    pub(crate) fn read(media_type: &str, bytes: &[u8]) -> Result<Self, Problem> {
        let broken =
            |error: serde_json::Error| Problem::malformed(format!("the manifest cannot be read: {error}"));
        let without = |part: &str| Problem::malformed(format!("the manifest has no {part}"));
        match media_type {
            OCI_INDEX | DOCKER_LIST => {
                let WrittenIndex { manifests, subject } = json::from_slice(bytes).map_err(broken)?;
                let manifests = match manifests {
                    List::Missing => return Err(without("manifests")),
                    List::Null => Vec::new(),
                    List::Given(manifests) => manifests,
                };
                Ok(Self::Index(Box::new(Index { manifests, subject })))
            }
            OCI_MANIFEST | DOCKER_MANIFEST => {
                let WrittenImage { config, layers, subject } = json::from_slice(bytes).map_err(broken)?;
                let config = config.ok_or_else(|| without("config"))?;
                Ok(Self::Image(Box::new(Image { config, layers: layers.unwrap_or_default(), subject })))
            }
            other => Err(Problem::malformed(format!("manifests of type {other} are not supported"))),
        }
    }
}

/// The media type of a manifest: from the header, else from the document, else from its parts.
///
/// The header alone is not enough: login pages, empty answers and truncated documents carry any type, and their digest
/// would count as the image's.
pub(crate) fn media_type_of(header: Option<&str>, bytes: &[u8]) -> Result<String, Problem> {
    let header = header.map(|header| header.split(';').next().unwrap_or(header).trim());
    let stated = header.filter(|stated| is_manifest(stated));
    let outline: Outline = json::from_slice(bytes).map_err(|_| match stated {
        Some(_) => Problem::malformed("what it sent as a manifest is none, or not all of one"),
        None => Problem::malformed(format!("it sent no manifest but {}", header.unwrap_or("something"))),
    })?;
    if outline.is_ambiguous() {
        return Err(Problem::malformed(
            "the manifest has the parts of an index and those of an image, which runtimes refuse; push it again",
        ));
    }
    if let Some(stated) = stated {
        return if outline.looks_like(stated) {
            Ok(stated.to_owned())
        } else {
            Err(Problem::malformed(format!("what it sent as {stated} is something else")))
        };
    }
    match (outline.media_type, outline.manifests, outline.config) {
        (Some(stated), ..) if is_manifest(&stated) => Ok(stated),
        (None, List::Null | List::Given(_), None) => Ok(OCI_INDEX.to_owned()),
        (None, List::Missing | List::Null, Some(_)) => Ok(OCI_MANIFEST.to_owned()),
        _ if outline.schema_version == Some(1) => Err(Problem::malformed(
            "the image is of the old schema 1, which runtimes no longer pull; push it again",
        )),
        (Some(stated), ..) => {
            Err(Problem::malformed(format!("manifests of type {stated} are not supported")))
        }
        _ => Err(Problem::malformed("what it sent is no manifest")),
    }
}

impl Outline {
    /// Whether it could be read as an index and as an image. A checker and a runtime could then see different content
    /// under one digest, so runtimes refuse it.
    fn is_ambiguous(&self) -> bool {
        matches!(self.manifests, List::Given(_)) && (self.config.is_some() || self.layers.is_some())
    }

    /// Whether it has the part that every document of this type has, and does not state another type. Docker's types
    /// and those of the OCI count as the same.
    fn looks_like(&self, media_type: &str) -> bool {
        let own = self.media_type.as_deref().filter(|own| is_manifest(own));
        let has_part = if is_index(media_type) {
            !matches!(self.manifests, List::Missing)
        } else {
            self.config.is_some()
        };
        has_part && own.is_none_or(|own| is_index(own) == is_index(media_type))
    }
}

impl Manifest {
    pub fn content(&self) -> Result<Content, crate::Error> {
        Content::read(&self.media_type, &self.bytes)
            .map_err(|problem| problem.during(format!("read {}", self.digest)))
    }

    pub fn is_index(&self) -> bool {
        is_index(&self.media_type)
    }
}

impl Index {
    /// The platforms in the index, without attestations, whose platform is unknown.
    pub fn platforms(&self) -> impl Iterator<Item = &Platform> {
        self.manifests
            .iter()
            .filter_map(|manifest| manifest.platform.as_ref())
            .filter(|platform| !matches!(platform.architecture.as_str(), "" | "unknown"))
    }
}
