//! When the kubelet pulls an image, as far as routing cares.

use fairlead_domain::reference::{DEFAULT_TAG, Reference};

/// How pull policies bear on routing; from the operator's configuration.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Rules {
    /// Route images with `Never` as well.
    pub rewrite_on_never: bool,
    /// Let `Always` images follow priorities, rather than asking for the original first.
    pub honor_priorities_on_always: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PullPolicy {
    Always,
    IfNotPresent,
    Never,
}

impl PullPolicy {
    /// The policy in force: as written, else the API server's default, which is `Always` for `latest` and for an image
    /// without tag and digest. A text that the API server will refuse anyway counts as not written.
    pub fn effective(written: Option<&str>, image: &Reference) -> Self {
        match written {
            Some("Always") => Self::Always,
            Some("IfNotPresent") => Self::IfNotPresent,
            Some("Never") => Self::Never,
            _ => match image.tag() {
                Some(DEFAULT_TAG) => Self::Always,
                None if image.digest().is_none() => Self::Always,
                _ => Self::IfNotPresent,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_those_of_the_api_server() {
        let digest = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        let effective = |written, image: &str| PullPolicy::effective(written, &image.parse().unwrap());
        for (image, default) in [
            ("nginx", PullPolicy::Always),
            ("nginx:latest", PullPolicy::Always),
            ("nginx:1.29", PullPolicy::IfNotPresent),
            (&format!("nginx@{digest}"), PullPolicy::IfNotPresent),
            (&format!("nginx:1@{digest}"), PullPolicy::IfNotPresent),
            (&format!("nginx:latest@{digest}"), PullPolicy::Always),
        ] {
            for unwritten in [None, Some(""), Some("Sometimes")] {
                assert_eq!(effective(unwritten, image), default, "{image} {unwritten:?}");
            }
            assert_eq!(effective(Some("Always"), image), PullPolicy::Always);
            assert_eq!(effective(Some("IfNotPresent"), image), PullPolicy::IfNotPresent);
            assert_eq!(effective(Some("Never"), image), PullPolicy::Never);
        }
    }
}
