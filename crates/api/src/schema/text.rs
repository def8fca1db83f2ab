//! Texts with a form: registries, paths, digests, names, regular expressions and selectors.
//!
//! Each is a schema for `#[schemars(schema_with = "…")]` on a `String` or `Option<String>`, with a rule that says how
//! to put a wrong value right.

use kube::core::Rule;
use schemars::{Schema, SchemaGenerator, json_schema};

use super::rules;

/// Names of most objects are at most this long.
pub const MAX_NAME_LENGTH: usize = 253;

/// No runtime accepts a repository name beyond 255 characters; a tag adds 129, and a digest at most 136.
const MAX_REFERENCE_LENGTH: usize = 255 + 129 + 136;

/// A digest of the content of an image, by any of the algorithms that registries know.
const DIGEST_PATTERN: &str = "^sha(256:[0-9a-f]{64}|384:[0-9a-f]{96}|512:[0-9a-f]{128})$";

/// First part of a reference: anything with a dot, a port, an upper-case letter or brackets, or `localhost`. Everything
/// else is read by container runtimes as an organisation on Docker Hub.
const HOST: &str = concat!(
    "(localhost(:[0-9]{1,5})?",
    "|[a-zA-Z0-9]([-a-zA-Z0-9]*[a-zA-Z0-9])?([.][a-zA-Z0-9]([-a-zA-Z0-9]*[a-zA-Z0-9])?)+(:[0-9]{1,5})?",
    "|[a-zA-Z0-9]([-a-zA-Z0-9]*[a-zA-Z0-9])?:[0-9]{1,5}",
    "|([a-z0-9][-a-z0-9]*)?[A-Z]([-a-zA-Z0-9]*[a-zA-Z0-9])?",
    r"|\[[0-9a-fA-F]*:[0-9a-fA-F:]*\](:[0-9]{1,5})?)",
);

const PATH_SEGMENT: &str = "[a-z0-9]+(([.]|_|__|-+)[a-z0-9]+)*";

/// One step of a path that is joined as file paths are: `.` stays, and `..` may only take back the step before it.
const PATH_STEP: &str = "([a-z0-9]+(([.]|_|__|-+)[a-z0-9]+)*(/+[.][.])?|[.])";

const LABEL_NAME: &str = "[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?";

const DNS_LABEL: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";

/// Host of a registry, possibly with a path below it.
pub fn registry(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string",
        "maxLength": 255,
        "x-kubernetes-validations": rules([
            Rule::new("!self.contains('://')")
                .message("registry is written without a scheme: registry.example.com, not https://registry.example.com"),
            Rule::new(format!("self.contains('://') || self.matches(r'^{HOST}(/+{PATH_STEP})*/*$')")).message(
                "registry must be a host with a dot or a port, optionally followed by a path: registry.example.com, registry:5000, [::1]:5000 or docker.io/team",
            ),
        ]),
    })
}

/// Path below a registry. Slashes at both ends make no difference; empty means none.
pub fn repository_path(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string",
        "maxLength": 255,
        "x-kubernetes-validations": rules([
            Rule::new(format!("self.matches('^/*({PATH_STEP}(/+{PATH_STEP})*)?/*$')")).message(
                "path must be made of lower-case repository names such as /team/mirror, without tag, digest or wildcard, and must not climb above the registry (leave it empty for none)",
            ),
        ]),
    })
}

/// Digest of an image's content. For the rule beside the pattern see [`image_reference`].
pub fn digest(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string",
        "maxLength": 135,
        "pattern": DIGEST_PATTERN,
        "x-kubernetes-validations": rules([
            Rule::new("self.startsWith('sha') && self.size() in [71, 103, 135] && self == self.lowerAscii()")
                .message("not a digest: write sha256: followed by 64 hexadecimal digits in lower case"),
        ]),
    })
}

/// Full reference of an image, host included.
///
/// The pattern is exact. The rule beside it gives the remedy for the usual mistakes; it is coarse, because the API
/// server reckons what a rule costs when every list is full, and a ledger has room for thousands of references.
pub fn image_reference(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string",
        "maxLength": MAX_REFERENCE_LENGTH,
        "pattern": format!(
            "^{HOST}(/{PATH_SEGMENT})+(:[A-Za-z0-9_][-A-Za-z0-9_.]{{0,127}})?(@[a-z0-9]+:[0-9a-f]{{32,128}})?$"
        ),
        "x-kubernetes-validations": rules([
            Rule::new("self.contains('/') && !self.contains('://')")
                .message("not a full image reference: write registry, repository and tag or digest, such as docker.io/library/nginx:1.29"),
        ]),
    })
}

/// Name of an object whose name is a DNS subdomain, such as a Secret.
pub fn object_name(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string",
        "maxLength": MAX_NAME_LENGTH,
        "x-kubernetes-validations": rules([
            Rule::new(format!("self.matches('^{DNS_LABEL}([.]{DNS_LABEL})*$')"))
                .message("not the name of an object: write lower-case letters, digits, - and ."),
        ]),
    })
}

/// Regular expression that is matched against a whole text. Comparing any text with it makes the API server compile it.
pub fn regular_expression(max_length: usize) -> Schema {
    json_schema!({
        "type": "string",
        "maxLength": max_length,
        "x-kubernetes-validations": rules([
            Rule::new("''.matches(self) in [true, false]")
                .message("not a regular expression: check brackets, and what *, + and ? repeat (RE2 syntax, no look-around)"),
        ]),
    })
}

/// Label selector in its text form. Empty selects nothing and is accepted.
pub fn selector(max_length: usize) -> Schema {
    let blank = "[[:space:]]*";
    let key = format!("([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?{LABEL_NAME}");
    let values = format!("({LABEL_NAME})?({blank},{blank}({LABEL_NAME})?)*");
    let comparison = [
        format!("{blank}(=|==|!=){blank}({LABEL_NAME})?"),
        format!("{blank}[<>]{blank}[0-9]{{1,18}}"),
        format!("[[:space:]]+(in|notin){blank}[(]{blank}{values}{blank}[)]"),
    ]
    .join("|");
    let requirement = format!("(!{blank}{key}|{key}({comparison})?)");
    json_schema!({
        "type": "string",
        "maxLength": max_length,
        "x-kubernetes-validations": rules([
            Rule::new(format!(
                "self.matches('^({blank}{requirement}{blank}(,|$))*{blank}$') && !self.matches(',{blank}$')"
            ))
            .message("not a selector: write key, !key, key=value, key!=value, key in (a,b) or key notin (a,b), joined by commas; values have at most 63 letters, digits, -, _ and ."),
        ]),
    })
}

#[cfg(test)]
mod tests {
    //! The API server and the program read the same texts: what one accepts, the other must understand.

    use std::sync::LazyLock;

    use fairlead_domain::digest::Digest;
    use fairlead_domain::reference::{Location, Reference};
    use fairlead_domain::selector::Selector;
    use proptest::prelude::*;
    use regex::Regex;

    use super::*;

    /// What a schema asks of a text, as far as it is a matter of regular expressions and length.
    struct Form {
        fits: Vec<Regex>,
        does_not_fit: Vec<Regex>,
        max_length: u64,
    }

    impl Form {
        fn of(schema: &Schema) -> Self {
            let schema = schema.as_value();
            let call = Regex::new(r"(!?)self[.]matches[(]r?'([^']+)'[)]").unwrap();
            let mut form = Self {
                fits: Vec::new(),
                does_not_fit: Vec::new(),
                max_length: schema["maxLength"].as_u64().unwrap(),
            };
            for rule in schema["x-kubernetes-validations"].as_array().unwrap() {
                for found in call.captures_iter(rule["rule"].as_str().unwrap()) {
                    let list = if found[1].is_empty() { &mut form.fits } else { &mut form.does_not_fit };
                    list.push(Regex::new(&found[2]).unwrap());
                }
            }
            form.fits.extend(schema["pattern"].as_str().map(|pattern| Regex::new(pattern).unwrap()));
            assert!(!form.fits.is_empty(), "no regular expression in {schema}");
            form
        }

        fn accepts(&self, text: &str) -> bool {
            self.fits.iter().all(|regex| regex.is_match(text))
                && !self.does_not_fit.iter().any(|regex| regex.is_match(text))
                && text.len() as u64 <= self.max_length
        }
    }

    static SELECTOR: LazyLock<Form> = LazyLock::new(|| Form::of(&selector(512)));
    static REGISTRY: LazyLock<Form> = LazyLock::new(|| Form::of(&registry(&mut SchemaGenerator::default())));
    static PATH: LazyLock<Form> =
        LazyLock::new(|| Form::of(&repository_path(&mut SchemaGenerator::default())));
    static REFERENCE: LazyLock<Form> =
        LazyLock::new(|| Form::of(&image_reference(&mut SchemaGenerator::default())));
    static DIGEST: LazyLock<Form> = LazyLock::new(|| Form::of(&digest(&mut SchemaGenerator::default())));

    proptest! {
        #[test]
        fn selectors(text in "([ab][b-]?|n/a|in|notin|[ =!<>(),]|==|!=|7|[ ]in[ ]?[(]|[)]){0,9}") {
            let read = Selector::parse(&text);
            prop_assert_eq!(SELECTOR.accepts(&text), read.is_ok(), "{:?}", read);
        }

        #[test]
        fn places(
            host in "(localhost|[a-zA-Z0-9-]{1,6}([.][a-z0-9-]{1,6})?|\\[[0-9a-f:]{2,9}\\])(:[0-9]{1,6})?(/[a-z./_-]{0,9})?",
            path in "[/a-z0-9._-]{0,12}",
        ) {
            if REGISTRY.accepts(&host) && PATH.accepts(&path) {
                let read = Location::new(&host, &path);
                prop_assert!(read.is_ok(), "{:?}", read);
            }
        }

        #[test]
        fn references(
            text in "(localhost|[a-zA-Z0-9-]{1,6}([.][a-z0-9-]{1,6})?|\\[::1\\])(:[0-9]{1,5})?(/[a-z0-9._-]{0,7}){0,3}(:[a-zA-Z0-9_.-]{1,9})?",
        ) {
            if REFERENCE.accepts(&text) {
                let read = Reference::parse(&text);
                prop_assert!(read.is_ok(), "{:?}", read);
            }
        }

        #[test]
        fn digests(text in "(sha256|sha384|sha512|md5):[0-9a-fA-F]{1,3}([0-9a-f]{61}|[0-9a-f]{93}|[0-9a-f]{125})") {
            let read = text.parse::<Digest>();
            prop_assert_eq!(DIGEST.accepts(&text), read.is_ok(), "{:?}", read);
        }
    }
}
