//! Platforms of images, and the platforms a configuration asks for.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The platform an image was built for, as an index or an image configuration states it.
///
/// What is missing, also as `null`, is empty: nothing can be expected of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize)]
pub struct Platform {
    pub os: String,
    pub architecture: String,
    /// Such as `v8` of `arm64`; often left out.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub variant: String,
}

crate::json_object!(Platform { "os" => os, "architecture" => architecture, "variant" => variant });

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        if self.variant.is_empty() { Ok(()) } else { write!(f, "/{}", self.variant) }
    }
}

/// A platform that is wanted. An empty field asks for nothing in particular.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct PlatformFilter {
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub os: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub architecture: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub variant: String,
}

impl PlatformFilter {
    /// Every field that is set must be equal: `variant: v8` does not match an `arm64` image that states no variant.
    pub fn matches(&self, platform: &Platform) -> bool {
        [
            (&self.os, &platform.os),
            (&self.architecture, &platform.architecture),
            (&self.variant, &platform.variant),
        ]
        .into_iter()
        .all(|(wanted, found)| wanted.is_empty() || wanted == found)
    }
}

/// The text is not `os/architecture[/variant]` or `architecture`.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "platform {0:?}: write it as os/architecture, os/architecture/variant or architecture, for example linux/arm64"
)]
pub struct PlatformError(String);

impl FromStr for PlatformFilter {
    type Err = PlatformError;

    fn from_str(text: &str) -> Result<Self, PlatformError> {
        let parts: Vec<&str> = text.split('/').collect();
        let (os, architecture, variant) = match *parts.as_slice() {
            [architecture] => ("", architecture, None),
            [os, architecture] => (os, architecture, None),
            [os, architecture, variant] => (os, architecture, Some(variant)),
            _ => return Err(PlatformError(text.to_owned())),
        };
        let word = |part: &str| {
            let inside = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
            !part.is_empty() && part.chars().all(inside)
        };
        let given = if parts.len() == 1 { word(architecture) } else { word(os) && word(architecture) };
        if !given || !variant.is_none_or(word) {
            return Err(PlatformError(text.to_owned()));
        }
        Ok(Self {
            os: os.to_owned(),
            architecture: architecture.to_owned(),
            variant: variant.unwrap_or_default().to_owned(),
        })
    }
}

impl fmt::Display for PlatformFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [&self.os, &self.architecture, &self.variant];
        let mut separator = "";
        for part in parts.into_iter().filter(|part| !part.is_empty()) {
            write!(f, "{separator}{part}")?;
            separator = "/";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn platform(os: &str, architecture: &str, variant: &str) -> Platform {
        Platform { os: os.to_owned(), architecture: architecture.to_owned(), variant: variant.to_owned() }
    }

    #[test]
    fn set_fields_must_be_equal() {
        for (filter, found, expected) in [
            ("amd64", platform("linux", "amd64", ""), true),
            ("amd64", platform("windows", "amd64", ""), true),
            ("linux/amd64", platform("windows", "amd64", ""), false),
            ("linux/arm64", platform("linux", "arm64", "v8"), true),
            ("linux/arm64/v8", platform("linux", "arm64", "v8"), true),
            ("linux/arm64/v8", platform("linux", "arm64", ""), false),
            ("linux/arm/v7", platform("linux", "arm", "v6"), false),
        ] {
            assert_eq!(
                filter.parse::<PlatformFilter>().unwrap().matches(&found),
                expected,
                "{filter} on {found}"
            );
        }
        assert!(PlatformFilter::default().matches(&platform("", "", "")));
    }

    #[test]
    fn what_is_null_or_missing_is_empty() {
        for (text, expected) in [
            (r#"{"os":"linux","architecture":"amd64","variant":null}"#, platform("linux", "amd64", "")),
            (r#"{"os":null,"architecture":"arm","variant":"v7","os.version":7}"#, platform("", "arm", "v7")),
            (r#"{"OS":"linux"}"#, platform("linux", "", "")),
            ("{}", Platform::default()),
        ] {
            assert_eq!(serde_json::from_str::<Platform>(text).unwrap(), expected, "{text}");
        }
        assert!(serde_json::from_str::<Platform>(r#"{"os":5}"#).is_err());
    }

    #[test]
    fn text_in_and_out() {
        for text in ["amd64", "linux/amd64", "linux/arm/v7"] {
            assert_eq!(text.parse::<PlatformFilter>().unwrap().to_string(), text);
        }
        for text in ["", "/", "linux/", "/amd64", "linux/arm/v7/x", "linux/arm/", "a b"] {
            assert!(text.parse::<PlatformFilter>().is_err(), "{text}");
        }
        assert_eq!(platform("linux", "arm", "v7").to_string(), "linux/arm/v7");
    }
}
