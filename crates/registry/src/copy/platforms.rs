//! Selection of platforms.
//!
//! Without a selection an index is copied byte for byte. With one, it is rewritten with fewer entries and so gets
//! another digest. Entries without a platform (attestations) are dropped, because they refer to the original index.
//! What names no platform by itself, as artifacts that are mounted as image volumes, is for every platform.

use bytes::Bytes;
use fairlead_domain::digest::Digest;
use fairlead_domain::json;
use fairlead_domain::platform::PlatformFilter;
use serde_json::{Map, Value};

use super::retry::with_retries;
use super::{CopyError, Job};
use crate::error::Problem;
use crate::manifest::{Content, Index, Manifest};

impl Job<'_> {
    /// The manifest to publish: the source's, or its index reduced to the selected platforms.
    pub(super) async fn chosen(&self, root: Manifest) -> Result<Manifest, CopyError> {
        let wanted = &self.options.platforms;
        if wanted.is_empty() {
            return Ok(root);
        }
        match root.content().map_err(CopyError::Source)? {
            Content::Index(index) => reduced(&root, &index, wanted),
            Content::Image(image) if !image.may_name_platform() => Ok(root),
            Content::Image(image) => {
                let find = || async {
                    let found = self.source.platform_of(&image, self.context).await;
                    found.map_err(|problem| {
                        self.source.during("find the platform of", &root.digest.into(), problem)
                    })
                };
                let platform = with_retries(self.context, find).await.map_err(CopyError::Source)?;
                let is_named = !platform.os.is_empty() || !platform.architecture.is_empty();
                if !is_named || wanted.iter().any(|wanted| wanted.matches(&platform)) {
                    return Ok(root);
                }
                Err(CopyError::NoPlatform { offered: platform.to_string(), wanted: wanted.clone() })
            }
        }
    }
}

/// An index with only the entries for one of the platforms.
fn reduced(manifest: &Manifest, index: &Index, wanted: &[PlatformFilter]) -> Result<Manifest, CopyError> {
    let fits = |position: usize| {
        let platform = index.manifests.get(position).and_then(|entry| entry.platform.as_ref());
        platform.is_some_and(|platform| wanted.iter().any(|wanted| wanted.matches(platform)))
    };
    let kept = (0..index.manifests.len()).filter(|position| fits(*position)).count();
    if kept == 0 && !index.manifests.is_empty() && index.platforms().next().is_none() {
        return Ok(manifest.clone());
    }
    // Checked first, because an empty index keeps all of its entries.
    if kept == 0 {
        let offered = index.platforms().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        return Err(CopyError::NoPlatform { offered, wanted: wanted.to_vec() });
    }
    if kept == index.manifests.len() {
        return Ok(manifest.clone());
    }
    let broken = |error: serde_json::Error| {
        let problem = Problem::malformed(format!("the index cannot be written anew: {error}"));
        CopyError::Source(problem.during(format!("choose platforms of {}", manifest.digest)))
    };
    let mut document: Map<String, Value> = json::from_slice(&manifest.bytes).map_err(broken)?;
    let lists = document.iter_mut().filter(|(name, _)| json::is_field(name, "manifests"));
    let lists: Vec<_> = lists.filter_map(|(_, value)| value.as_array_mut()).collect();
    // Field names that differ in case are ambiguous: readers use the last one, and the order is lost here.
    let Ok([entries]) = <[_; 1]>::try_from(lists) else {
        return Err(broken(serde::de::Error::custom("it has its list more than once")));
    };
    let mut positions = 0..;
    entries.retain(|_| positions.next().is_some_and(fits));
    let bytes = Bytes::from(serde_json::to_vec(&document).map_err(broken)?);
    Ok(Manifest { media_type: manifest.media_type.clone(), digest: Digest::sha256(&bytes), bytes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::OCI_INDEX;

    fn manifest(text: String) -> Manifest {
        let bytes = Bytes::from(text);
        Manifest { media_type: OCI_INDEX.into(), digest: Digest::sha256(&bytes), bytes }
    }

    fn index() -> Manifest {
        let digest = Digest::sha256(b"");
        let entry = |platform: &str| format!(r#"{{"digest":"{digest}","size":1{platform}}}"#);
        let platform = |os: &str, architecture: &str| {
            entry(&format!(r#","platform":{{"os":"{os}","architecture":"{architecture}"}}"#))
        };
        let entries = [
            platform("linux", "amd64"),
            platform("linux", "arm64"),
            platform("unknown", "unknown"),
            entry(""),
        ];
        manifest(format!(
            r#"{{"schemaVersion":2,"annotations":{{"a":"b"}},"manifests":[{}]}}"#,
            entries.join(",")
        ))
    }

    fn choose(platforms: &[&str]) -> Result<Manifest, CopyError> {
        choose_of(&index(), platforms)
    }

    fn choose_of(manifest: &Manifest, platforms: &[&str]) -> Result<Manifest, CopyError> {
        let Content::Index(index) = manifest.content().unwrap() else { panic!("an index") };
        let wanted: Vec<PlatformFilter> = platforms.iter().map(|text| text.parse().unwrap()).collect();
        reduced(manifest, &index, &wanted)
    }

    #[test]
    fn entries_of_other_platforms_and_of_none_are_dropped() {
        let chosen = choose(&["linux/arm64"]).unwrap();
        let document: Value = serde_json::from_slice(&chosen.bytes).unwrap();
        assert_eq!(document["manifests"].as_array().unwrap().len(), 1);
        assert_eq!(document["manifests"][0]["platform"]["architecture"], "arm64");
        assert_eq!(document["annotations"]["a"], "b", "the rest of the index stays");
        assert_eq!(chosen.digest, Digest::sha256(&chosen.bytes));
        assert_eq!(choose(&["linux/arm64"]).unwrap(), chosen, "the same choice gives the same digest");
    }

    #[test]
    fn the_list_is_found_under_any_name_that_readers_know() {
        let text = |manifest: &Manifest| String::from_utf8(manifest.bytes.to_vec()).unwrap();
        let capital = manifest(text(&index()).replace("manifests", "Manifests"));
        let document: Value =
            serde_json::from_slice(&choose_of(&capital, &["linux/arm64"]).unwrap().bytes).unwrap();
        assert_eq!(document["Manifests"].as_array().unwrap().len(), 1);
        let twice = manifest(text(&capital).replacen('{', r#"{"manifests":[],"#, 1));
        let error = choose_of(&twice, &["linux/arm64"]).unwrap_err().to_string();
        assert!(error.contains("more than once"), "{error}");
    }

    #[test]
    fn an_index_without_entries_has_no_platform() {
        for list in ["[]", "null"] {
            let empty = manifest(format!(r#"{{"schemaVersion":2,"manifests":{list}}}"#));
            let error = choose_of(&empty, &["linux/amd64"]).unwrap_err().to_string();
            assert_eq!(
                error,
                "the image names no platform that could be chosen, but linux/amd64 was asked for"
            );
        }
    }

    #[test]
    fn an_index_of_artifacts_is_for_every_platform() {
        let digest = Digest::sha256(b"");
        let entries = [r#"{"digest":"D","size":1}"#, r#"{"digest":"D","size":2}"#].join(",");
        let artifacts = manifest(format!(r#"{{"manifests":[{entries}]}}"#).replace('D', &digest.to_string()));
        assert_eq!(choose_of(&artifacts, &["linux/amd64"]).unwrap(), artifacts);
    }

    #[test]
    fn nothing_left_names_what_there_is() {
        let error = choose(&["linux/s390x", "windows/amd64"]).unwrap_err().to_string();
        assert!(
            error.contains("linux/amd64, linux/arm64") && error.contains("linux/s390x, windows/amd64"),
            "{error}"
        );
    }
}
