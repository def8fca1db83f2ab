//! How the warming kinds name images and other objects, and the rules that refuse a name no kubelet could pull.
//!
//! An image is given in three fields. What is pulled is `image@digest` when there is a digest, else `image:tag`, where
//! the tag is `latest` when it is left out. The rules accept exactly what gives a reference in that way, so a tag
//! inside `image` is refused only where a second tag would be appended to it.

use kube::KubeSchema;
use kube::core::Rule;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Longest texts that can be part of a reference; longer ones could never be pulled.
pub(super) const MAX_IMAGE_LENGTH: usize = 400;
pub(super) const MAX_TAG_LENGTH: usize = 264;
pub(super) const MAX_DIGEST_LENGTH: usize = 135;

const HAS_DIGEST: &str = "(has(self.digest) && self.digest != '')";

const HOST: &str = r"([a-zA-Z0-9]+(([.]|-+)[a-zA-Z0-9]+)*|\[[a-fA-F0-9]*:[a-fA-F0-9:]*\])(:[0-9]+)?";
const PATH_SEGMENT: &str = "[a-z0-9]+(([.]|__?|-+)[a-z0-9]+)*";
const TAG_AT_THE_END: &str = ":[^/]*$";
const TAG: &str = "[a-zA-Z0-9_][-a-zA-Z0-9_.]{0,127}";
const DIGEST: &str = "(sha256:[a-f0-9]{64}|sha384:[a-f0-9]{96}|sha512:[a-f0-9]{128})";

/// When the kubelet asks the registry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ImagePullPolicy {
    #[default]
    Always,
    IfNotPresent,
    Never,
}

/// Another object of the cluster, by name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
pub struct NameRef {
    /// Name of the object.
    #[schemars(schema_with = "crate::schema::object_name", length(min = 1))]
    pub name: String,
}

/// A Secret in the namespace where pull Pods run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[x_kube(validation = Rule::new("self.name != ''").field_path(".name").message("name is empty: name a Secret in the namespace where pull Pods run, or leave secretRef out"))]
pub struct SecretRef {
    /// Name of the Secret.
    #[serde(default)]
    #[schemars(length(max = 253))]
    pub name: String,
}

/// No scheme in front of the image.
pub(super) fn without_scheme() -> Rule {
    Rule::new("!self.image.contains('://')")
        .field_path(".image")
        .message("image must not have a scheme: write registry.example.com/team/app, not https://registry.example.com/team/app")
}

/// No digest inside the image.
pub(super) fn without_digest() -> Rule {
    Rule::new("!self.image.contains('@')")
        .field_path(".image")
        .message("image must not contain a digest: put what follows the @ into digest")
}

/// No tag inside the image, unless a digest makes it harmless.
pub(super) fn without_second_tag() -> Rule {
    Rule::new(format!("{HAS_DIGEST} || self.image.contains('@') || !self.image.matches('{TAG_AT_THE_END}')"))
        .field_path(".image")
        .message("image must not contain a tag: put what follows the last colon into tag")
}

/// What is left must be a repository.
pub(super) fn is_repository() -> Rule {
    Rule::new(format!(
        "self.image == '' || self.image.contains('://') || self.image.contains('@') || self.image.matches(r'{}')",
        repository()
    ))
    .field_path(".image")
    .message("image is not a repository: write host[:port]/path with the path in lower case and without blanks, such as docker.io/library/nginx")
}

fn repository() -> String {
    format!("^({HOST}/)?{PATH_SEGMENT}(/{PATH_SEGMENT})*(:{TAG})?$")
}

/// A tag counts only where there is no digest.
pub(super) fn is_tag() -> Rule {
    Rule::new(format!("{HAS_DIGEST} || !has(self.tag) || self.tag == '' || self.tag.matches('^{TAG}(@{DIGEST})?$')"))
        .field_path(".tag")
        .message("tag is not a tag: write letters, digits, _, . and -, at most 128 of them, not beginning with . or - and without the colon, such as 1.29-alpine")
}

/// The forms of digest that container runtimes know.
pub(super) fn is_digest() -> Rule {
    Rule::new(format!("!{HAS_DIGEST} || self.digest.matches('^{DIGEST}$')"))
        .field_path(".digest")
        .message("digest is not a digest: write sha256: followed by 64 hexadecimal digits in lower case (or sha384: and 96, sha512: and 128)")
}

#[cfg(test)]
mod tests {
    use fairlead_domain::reference::Reference;
    use proptest::prelude::*;
    use regex::Regex;

    use super::*;

    const SHA256: &str = "@sha256:4f2a6d0c5b1e8f93a7c4d2e1b0f9a8c7d6e5f4a3b2c1d0e9f8a7b6c5d4e3f2a1";

    /// The rules above, put together: what the API server lets through.
    fn accepted(image: &str, tag: &str, digest: &str) -> bool {
        let fits = |pattern: &str, text: &str| Regex::new(pattern).unwrap().is_match(text);
        !image.is_empty()
            && !image.contains('@')
            && fits(&repository(), image)
            && (!digest.is_empty() || !fits(TAG_AT_THE_END, image))
            && (!digest.is_empty() || tag.is_empty() || fits(&format!("^{TAG}(@{DIGEST})?$"), tag))
            && (digest.is_empty() || fits(&format!("^{DIGEST}$"), digest))
    }

    proptest! {
        /// What is let through can be pulled, and what can be pulled is let through.
        #[test]
        fn rules_agree_with_the_reference_that_is_made_of_the_fields(
            image in "(https?://)?(([a-zA-Z0-9.-]{1,5}|\\[[0-9a-f]{0,2}:[0-9a-f:]{1,3}\\])(:[0-9]{1,6})?/)?[a-zA-Z0-9._-]{0,5}(/[a-z0-9._-]{0,3}){0,2}(:[a-z.]{0,3})?",
            tag in "[a-zA-Z0-9_.-]{0,5}(:[a-z]|@sha256:00)?",
            digest in "(sha256:[0-9a-f]{3}([0-9a-f]{61})?|sha512:[0-9a-f]{128}|[a-z0-9:]{1,9})?",
            pinned in any::<bool>(),
        ) {
            let tag = if pinned { format!("{tag}{SHA256}") } else { tag };
            let reference = match (digest.as_str(), tag.as_str()) {
                ("", "") => format!("{image}:latest"),
                ("", tag) => format!("{image}:{tag}"),
                (digest, _) => format!("{image}@{digest}"),
            };
            let read = Reference::parse(&reference);
            prop_assert_eq!(accepted(&image, &tag, &digest), read.is_ok(), "{:?}: {:?}", reference, read);
        }
    }
}
