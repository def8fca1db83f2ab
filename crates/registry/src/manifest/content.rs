//! Reading a manifest's content.

use std::collections::BTreeMap;

use fairlead_domain::{
    digest::Digest,
    platform::{Platform, PlatformFilter},
};
use serde::{Deserialize, Deserializer, Serialize, de::IgnoredAny};
use serde_json::Value;

use super::{DOCKER_LIST, DOCKER_MANIFEST, Manifest, OCI_INDEX, OCI_MANIFEST, is_manifest};
use crate::error::Problem;

/// A piece of content: what it is, its digest and its size.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Descriptor {
    #[serde(default)]
    pub media_type: String,
    pub digest: Digest,
    pub size: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub artifact_type: Option<String>,
    #[serde(default, deserialize_with = "lenient", skip_serializing_if = "Option::is_none")]
    pub platform: Option<Platform>,
    #[serde(default, deserialize_with = "lenient", skip_serializing_if = "Option::is_none")]
    pub annotations: Option<BTreeMap<String, String>>,
    /// Where a layer that registries do not hold is found instead.
    #[serde(default, deserialize_with = "lenient", skip_serializing_if = "Option::is_none")]
    pub urls: Option<Vec<String>>,
}

/// An image for one platform.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Image {
    pub config: Descriptor,
    #[serde(default, deserialize_with = "none_if_null")]
    pub layers: Vec<Descriptor>,
    #[serde(default)]
    pub subject: Option<Descriptor>,
}

/// A list of manifests, usually one for each platform.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Index {
    #[serde(deserialize_with = "none_if_null")]
    pub manifests: Vec<Descriptor>,
    #[serde(default)]
    pub subject: Option<Descriptor>,
}

/// What a manifest says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    Index(Box<Index>),
    Image(Box<Image>),
}

/// Optional parts that are of the wrong shape are taken as missing: they say nothing that must be understood.
fn lenient<'de, D, T>(deserializer: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: for<'a> Deserialize<'a>,
{
    Ok(serde_json::from_value(Value::deserialize(deserializer)?).ok())
}

/// Programs written in Go write a list without entries as `null`, and registries take it.
fn none_if_null<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Descriptor>, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Whether a list is named, also as `null`.
fn if_named<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<List>, D::Error> {
    Ok(Some(Option::<IgnoredAny>::deserialize(deserializer)?.map_or(List::Null, |_| List::Given)))
}

#[derive(Clone, Copy)]
enum List {
    Given,
    Null,
}

/// The part of a manifest that tells what it is.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Outline {
    #[serde(default)]
    schema_version: u64,
    media_type: Option<String>,
    #[serde(default, deserialize_with = "if_named")]
    manifests: Option<List>,
    config: Option<IgnoredAny>,
}

impl Content {
    pub(crate) fn read(media_type: &str, bytes: &[u8]) -> Result<Self, Problem> {
        let broken =
            |error: serde_json::Error| Problem::malformed(format!("the manifest cannot be read: {error}"));
        match media_type {
            OCI_INDEX | DOCKER_LIST => serde_json::from_slice(bytes).map(Self::Index).map_err(broken),
            OCI_MANIFEST | DOCKER_MANIFEST => serde_json::from_slice(bytes).map(Self::Image).map_err(broken),
            other => Err(Problem::malformed(format!("manifests of type {other} are not supported"))),
        }
    }
}

/// What a manifest is: as the header says, or, where that says nothing, as the document says, or as it looks.
///
/// A header alone makes no manifest: login pages, empty answers and half documents come under any name, and their digest
/// would be believed to be the image's.
pub(super) fn media_type_of(header: Option<&str>, bytes: &[u8]) -> Result<String, Problem> {
    let header = header.map(|header| header.split(';').next().unwrap_or(header).trim());
    let stated = header.filter(|stated| is_manifest(stated));
    let outline: Outline = serde_json::from_slice(bytes).map_err(|_| match stated {
        Some(_) => Problem::malformed("what it sent as a manifest is none, or not all of one"),
        None => Problem::malformed(format!("it sent no manifest but {}", header.unwrap_or("something"))),
    })?;
    if let Some(stated) = stated {
        return if outline.looks_like(stated) {
            Ok(stated.to_owned())
        } else {
            Err(Problem::malformed(format!("what it sent as {stated} is something else")))
        };
    }
    match (outline.media_type, outline.manifests, outline.config) {
        (Some(stated), ..) if is_manifest(&stated) => Ok(stated),
        (None, Some(_), None) => Ok(OCI_INDEX.to_owned()),
        (None, None | Some(List::Null), Some(_)) => Ok(OCI_MANIFEST.to_owned()),
        _ if outline.schema_version == 1 => Err(Problem::malformed(
            "the image is of the old schema 1, which runtimes no longer pull; push it again",
        )),
        (Some(stated), ..) => {
            Err(Problem::malformed(format!("manifests of type {stated} are not supported")))
        }
        _ => Err(Problem::malformed("what it sent is no manifest")),
    }
}

impl Outline {
    /// Whether it has the one part that every document of this type has.
    fn looks_like(&self, media_type: &str) -> bool {
        match media_type {
            OCI_INDEX | DOCKER_LIST => self.manifests.is_some(),
            _ => self.config.is_some(),
        }
    }
}

impl Manifest {
    pub fn content(&self) -> Result<Content, crate::Error> {
        Content::read(&self.media_type, &self.bytes)
            .map_err(|problem| problem.during(format!("read {}", self.digest)))
    }

    pub fn is_index(&self) -> bool {
        matches!(self.media_type.as_str(), OCI_INDEX | DOCKER_LIST)
    }
}

impl Index {
    /// The manifest for a platform: the first that fits, as runtimes choose.
    pub fn find(&self, wanted: &PlatformFilter) -> Option<&Descriptor> {
        self.manifests
            .iter()
            .find(|manifest| manifest.platform.as_ref().is_some_and(|platform| wanted.matches(platform)))
    }

    /// The platforms offered; attestations state an unknown one and are left out.
    pub fn platforms(&self) -> impl Iterator<Item = &Platform> {
        self.manifests
            .iter()
            .filter_map(|manifest| manifest.platform.as_ref())
            .filter(|platform| platform.architecture != "unknown")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DIGEST: &str = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    fn kind(header: Option<&str>, body: &str) -> Result<String, String> {
        media_type_of(header, body.as_bytes()).map_err(|problem| problem.to_string())
    }

    #[test]
    fn a_manifest_is_what_it_says_or_looks_like() {
        assert_eq!(kind(Some(OCI_INDEX), r#"{"manifests":[]}"#).unwrap(), OCI_INDEX);
        let with_charset = format!("{DOCKER_MANIFEST}; charset=utf-8");
        assert_eq!(kind(Some(&with_charset), r#"{"config":{}}"#).unwrap(), DOCKER_MANIFEST);
        for header in [None, Some("application/json"), Some("application/octet-stream"), Some("")] {
            assert_eq!(kind(header, &format!(r#"{{"mediaType":"{DOCKER_LIST}"}}"#)).unwrap(), DOCKER_LIST);
            assert_eq!(kind(header, r#"{"schemaVersion":2,"manifests":[]}"#).unwrap(), OCI_INDEX);
            assert_eq!(kind(header, r#"{"schemaVersion":2,"config":{},"layers":[]}"#).unwrap(), OCI_MANIFEST);
        }
        assert!(kind(Some("text/html"), "<html>").unwrap_err().contains("text/html"));
        assert!(kind(None, r#"{"schemaVersion":1,"fsLayers":[]}"#).unwrap_err().contains("schema 1"));
        assert!(kind(None, r#"{"mediaType":"application/x"}"#).unwrap_err().contains("application/x"));
        assert!(kind(None, "{}").is_err());
        assert!(kind(None, r#"{"manifests":[],"config":{}}"#).is_err(), "it cannot be both");
    }

    #[test]
    fn a_header_alone_makes_no_manifest() {
        let whole = r#"{"schemaVersion":2,"manifests":[],"config":{}}"#;
        for stated in [OCI_INDEX, DOCKER_LIST, OCI_MANIFEST, DOCKER_MANIFEST] {
            for body in
                ["", "<html>login</html>", "null", "[]", "\u{1f}\u{8b}\u{8}", &whole[..whole.len() - 1]]
            {
                let refusal = kind(Some(stated), body).unwrap_err();
                assert!(refusal.contains("none, or not all of one"), "{stated} {body}: {refusal}");
            }
            let error = r#"{"errors":[{"code":"DENIED"}]}"#;
            for body in ["{}", r#"{"schemaVersion":2}"#, error] {
                assert!(kind(Some(stated), body).unwrap_err().contains(stated), "{stated} {body}");
            }
            assert_eq!(kind(Some(stated), whole).unwrap(), stated);
        }
        assert!(kind(Some(OCI_INDEX), r#"{"config":{},"layers":[]}"#).is_err(), "an image is no index");
        assert!(kind(Some(OCI_MANIFEST), r#"{"manifests":[]}"#).is_err(), "nor the other way round");
    }

    #[test]
    fn a_list_without_entries_may_be_null() {
        let config = format!(r#"{{"digest":"{DIGEST}","size":1}}"#);
        for (body, stated, found) in [
            (r#"{"manifests":null}"#.to_owned(), DOCKER_LIST, OCI_INDEX),
            (format!(r#"{{"config":{config},"layers":null}}"#), DOCKER_MANIFEST, OCI_MANIFEST),
            (format!(r#"{{"config":{config},"layers":[],"manifests":null}}"#), DOCKER_MANIFEST, OCI_MANIFEST),
        ] {
            assert_eq!(kind(Some(stated), &body).unwrap(), stated);
            assert_eq!(kind(None, &body).unwrap(), found);
            match Content::read(found, body.as_bytes()).unwrap() {
                Content::Index(index) => assert!(index.manifests.is_empty()),
                Content::Image(image) => assert!(image.layers.is_empty()),
            }
        }
        assert!(Content::read(OCI_INDEX, b"{}").is_err(), "an index names its list");
    }

    #[test]
    fn a_platform_is_found_and_attestations_are_not() {
        let index = format!(
            r#"{{"manifests":[
                {{"digest":"{DIGEST}","size":1,"platform":{{"os":"unknown","architecture":"unknown"}}}},
                {{"digest":"{DIGEST}","size":2,"platform":{{"os":"linux","architecture":"arm64","variant":"v8"}}}},
                {{"digest":"{DIGEST}","size":3,"platform":{{"os":"linux"}}}},
                {{"digest":"{DIGEST}","size":4}}]}}"#
        );
        let Content::Index(index) = Content::read(OCI_INDEX, index.as_bytes()).unwrap() else {
            panic!("an index")
        };
        let find = |text: &str| index.find(&text.parse().unwrap()).map(|found| found.size);
        assert_eq!(find("linux/arm64"), Some(2));
        assert_eq!(find("linux/amd64"), None);
        assert_eq!(index.platforms().map(Platform::to_string).collect::<Vec<_>>(), ["linux/arm64/v8"]);
    }

    #[test]
    fn a_broken_digest_breaks_the_manifest() {
        let manifest = r#"{"config":{"digest":"sha256:x","size":1},"layers":[]}"#;
        assert!(Content::read(OCI_MANIFEST, manifest.as_bytes()).is_err());
    }

    fn valid() -> Vec<String> {
        let descriptor = |more: &str| format!(r#"{{"mediaType":"a/b","digest":"{DIGEST}","size":7{more}}}"#);
        let platform = r#","platform":{"os":"linux","architecture":"arm64","variant":"v8","os.version":"1"}"#;
        let (plain, with_platform) = (descriptor(""), descriptor(platform));
        let with_urls = descriptor(r#","urls":["https://a.example/b"],"annotations":{"c":"d"}"#);
        vec![
            format!(
                r#"{{"schemaVersion":2,"mediaType":"{OCI_INDEX}","manifests":[{with_platform},{plain}]}}"#
            ),
            format!(
                r#"{{"schemaVersion":2,"mediaType":"{OCI_MANIFEST}","config":{plain},"layers":[{plain},{with_urls}],"subject":{plain}}}"#
            ),
        ]
    }

    proptest! {
        #[test]
        fn manifests_with_something_wrong_are_read_or_refused(bytes in crate::mutation::mutated(valid())) {
            for kind in [OCI_INDEX, OCI_MANIFEST] {
                if let Ok(Content::Index(index)) = Content::read(kind, &bytes) {
                    drop(index.platforms().map(Platform::to_string).collect::<Vec<_>>());
                }
            }
            drop(media_type_of(None, &bytes));
            drop(media_type_of(Some(OCI_INDEX), &bytes));
        }

        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            drop(media_type_of(None, &bytes));
            drop(Content::read(OCI_INDEX, &bytes));
            drop(Content::read(OCI_MANIFEST, &bytes));
        }
    }
}
