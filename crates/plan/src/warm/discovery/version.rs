//! Versions in tags, read leniently, in the order of semantic versioning.

use std::cmp::Ordering;
use std::sync::LazyLock;

use regex::Regex;

/// A version inside a tag that has more around it.
static EMBEDDED: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r"(?-u)\d+\.\d+(?:\.\d+)?(?:[-+][0-9A-Za-z.-]+)?").ok());

/// One to three numbers, and what comes before the release that they name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Version {
    numbers: [u64; 3],
    pre_release: Vec<Identifier>,
}

/// Part of a pre-release. Numbers come before texts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Identifier {
    Number(u64),
    Text(String),
}

impl Version {
    /// The version that a tag is, or holds.
    pub(super) fn of_tag(tag: &str) -> Option<Self> {
        Self::parse(tag).or_else(|| Self::parse(EMBEDDED.as_ref()?.find(tag)?.as_str()))
    }

    /// Reads `v1.2.3-rc.1+build`. The `v`, the second and the third number, the pre-release and the build may be
    /// missing, and numbers may begin with zeros.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let text = text.strip_prefix('v').unwrap_or(text);
        let (text, build) = text.split_once('+').unwrap_or((text, "0"));
        let (numbers, pre_release) = match text.split_once('-') {
            Some((numbers, rest)) => (numbers, Some(rest)),
            None => (text, None),
        };
        let mut read = [0; 3];
        let mut parts = numbers.split('.');
        for (place, part) in read.iter_mut().zip(&mut parts) {
            *place = number(part)?;
        }
        let well_formed = parts.next().is_none() && build.split('.').all(is_identifier);
        let pre_release = pre_release.map(|text| text.split('.').map(Identifier::parse).collect());
        let pre_release: Option<Vec<_>> = pre_release.unwrap_or(Some(Vec::new()));
        well_formed.then_some(Self { numbers: read, pre_release: pre_release? })
    }
}

fn number(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

fn is_identifier(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

impl Identifier {
    /// A number in a pre-release has no leading zero, so that equal numbers have equal texts.
    fn parse(text: &str) -> Option<Self> {
        if !is_identifier(text) {
            return None;
        }
        if !text.bytes().all(|byte| byte.is_ascii_digit()) {
            return Some(Self::Text(text.to_owned()));
        }
        (text == "0" || !text.starts_with('0')).then(|| text.parse().ok().map(Self::Number))?
    }
}

impl Ord for Version {
    fn cmp(&self, other: &Self) -> Ordering {
        // A release comes after all that leads to it.
        let released = |version: &Self| version.pre_release.is_empty();
        (self.numbers.cmp(&other.numbers))
            .then(released(self).cmp(&released(other)))
            .then_with(|| self.pre_release.cmp(&other.pre_release))
    }
}

impl PartialOrd for Version {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn versions_are_ordered_as_semantic_versioning_says() {
        let ascending = [
            "0.9",
            "v1.0.0-alpha",
            "1.0.0-alpha.1",
            "1.0.0-alpha.beta",
            "1.0.0-beta.2",
            "1.0.0-beta.11",
            "1.0.0-rc.1",
            "1",
            "v1.2.0",
            "1.9.0",
            "1.10.0",
            "1.25-alpine",
            "1.25",
            "2024.01.05",
            "20240105",
        ];
        let read: Vec<_> = ascending.iter().map(|text| Version::parse(text).unwrap()).collect();
        assert!(read.is_sorted_by(|one, next| one < next), "{read:?}");
        assert_eq!(Version::parse("1.0"), Version::parse("v01.0.0+build.7"));
    }

    #[test]
    fn what_is_no_version_is_none() {
        for text in [
            "",
            "v",
            "latest",
            "1.",
            ".1",
            "1.2.3.4",
            "1.2-",
            "1.2-01",
            "1.2-a..b",
            "1.2+",
            "1.2_3",
            "-1",
            "x1.2",
            "99999999999999999999",
        ] {
            assert_eq!(Version::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_version_is_found_inside_a_tag() {
        for (tag, version) in [
            ("x86_64-v17.5.0", Some("17.5.0")),
            ("release-1.2-rc.1", Some("1.2.0-rc.1")),
            ("1.2.3.4", Some("1.2.3")),
            ("bookworm-20240105", None),
            ("x86_64-latest", None),
            ("app-1.2-007", None),
        ] {
            assert_eq!(Version::of_tag(tag), version.and_then(Version::parse), "{tag}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_not(text in "\\PC{0,40}") {
            let _ = Version::of_tag(&text);
        }

        #[test]
        fn numbers_are_compared_as_numbers(a in any::<[u32; 3]>(), b in any::<[u32; 3]>()) {
            let version = |[major, minor, patch]: [u32; 3]| Version::of_tag(&format!("v{major}.{minor}.{patch}"));
            prop_assert_eq!(version(a).cmp(&version(b)), a.cmp(&b));
        }
    }
}
