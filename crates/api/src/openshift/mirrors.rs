//! What the mirror kinds share: how sources and mirrors are written, how many there may be, and what is refused.
//!
//! The patterns are those of the shipped kinds, to the letter. A pattern only says no; the rules beside it say what to
//! write instead. Lists and texts are bounded, so that the API server can afford to check every mirror.

use kube::{KubeSchema, core::Rule};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::conditions::Condition;
use crate::schema;

/// Sources in one object.
pub const MAX_SOURCES: usize = 1024;
/// Mirrors of one source.
pub const MAX_MIRRORS: usize = 24;
/// Characters in a source or a mirror.
pub const MAX_LOCATION_LENGTH: usize = 256;

macro_rules! location {
    () => {
        r"^((?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9])(?:(?:\.(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9]))+)?(?::[0-9]+)?)(?:(?:/[a-z0-9]+(?:(?:(?:[._]|__|[-]*)[a-z0-9]+)+)?)+)?$"
    };
}

/// What a mirror looks like: `host[:port][/path]`.
pub const MIRROR_PATTERN: &str = location!();
/// What a source looks like: a mirror, or `*.host` for every host below a domain.
pub const SOURCE_PATTERN: &str =
    concat!(r"^\*(?:\.(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9]))+$|", location!());

/// One source and the mirrors of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct RepositoryMirrors {
    /// Where images are asked from: `host[:port]`, `host[:port]/path`, or `*.host` for every host below a domain. Where
    /// several sources cover an image, the most specific one counts: a path before its registry, a host before its
    /// domain.
    #[schemars(schema_with = "source")]
    pub source: String,
    /// Where the images can be had instead, best first: `host[:port]` or `host[:port]/path`. The part of the image that
    /// is the source is replaced by the mirror. The source itself is tried last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "mirrors")]
    pub mirrors: Vec<String>,
}

/// One source, the mirrors of it, and whether the source may be contacted when all of them fail.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
#[x_kube(
    validation = never_needs_a_mirror(),
    validation = never_excludes_the_source(),
    validation = never_excludes_places_in_the_source(),
    validation = never_excludes_hosts_in_the_source()
)]
pub struct MirrorSet {
    /// Where images are asked from: `host[:port]`, `host[:port]/path`, or `*.host` for every host below a domain. Where
    /// several sources cover an image, the most specific one counts: a path before its registry, a host before its
    /// domain.
    #[schemars(schema_with = "source")]
    pub source: String,
    /// Where the images can be had instead, best first: `host[:port]` or `host[:port]/path`. The part of the image that
    /// is the source is replaced by the mirror.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "mirrors")]
    pub mirrors: Vec<String>,
    /// What happens when every mirror fails: `AllowContactingSource` (when left out) tries the source,
    /// `NeverContactSource` fails. Where objects differ about one source, `NeverContactSource` wins.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mirror_source_policy: Option<MirrorSourcePolicy>,
}

/// Whether the source is asked when every mirror has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum MirrorSourcePolicy {
    NeverContactSource,
    AllowContactingSource,
}

/// How far the policy has come. Conditions: `Accepted` (it is merged, or why not), `Applied` (how many nodes carry it)
/// and `Exact` (what the runtimes cannot express).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct MirrorPolicyStatus {
    /// Generation of the object that this status was found for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// What holds of this object, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::conditions::list")]
    pub conditions: Vec<Condition>,
}

fn source(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "string",
        "maxLength": MAX_LOCATION_LENGTH,
        "pattern": SOURCE_PATTERN,
        "x-kubernetes-validations": schema::rules([
            Rule::new(format!("self.matches(r'{SOURCE_PATTERN}')")).message(
                "source is not a place: write host[:port], host[:port]/path or *.host, without scheme, tag, digest, blanks and slash at the end, the path in lower case",
            ),
        ]),
    })
}

/// The whole pattern on every mirror of every source is more than the API server is ready to evaluate as a rule. The
/// rules name the usual mistakes, one traversal each; what is wrong in another way, the pattern refuses.
fn mirrors(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "maxItems": MAX_MIRRORS,
        "x-kubernetes-list-type": "set",
        "items": {
            "type": "string",
            "minLength": 1,
            "maxLength": MAX_LOCATION_LENGTH,
            "pattern": MIRROR_PATTERN,
            "x-kubernetes-validations": schema::rules([
                Rule::new("!self.contains('://')")
                    .message("mirror must not have a scheme: write mirror.example.com/team, not https://mirror.example.com/team"),
                Rule::new("!self.matches('[[@* ]')").message(
                    "mirror must not have a digest, a *, a blank or an IPv6 address: write host[:port] or host[:port]/path",
                ),
                Rule::new("self.contains('://') || !self.matches('/.*:')")
                    .message("mirror must not have a tag: write host[:port]/path, and nothing after it"),
                Rule::new("!self.matches('/.*[A-Z]')").message("mirror must have its path in lower case: only the host may have capitals"),
                Rule::new("self.contains('://') || !self.matches('//|/$')")
                    .message("mirror must not have an empty part in its path: remove the slash at the end, or the second of two slashes"),
            ]),
        },
    })
}

const NEVER: &str = "(has(self.mirrorSourcePolicy) && self.mirrorSourcePolicy == 'NeverContactSource')";

const INSIDE: &str = "a mirror lies inside the source, which NeverContactSource forbids to contact: use a mirror elsewhere, or set mirrorSourcePolicy to AllowContactingSource";

fn never_needs_a_mirror() -> Rule {
    Rule::new(format!("!{NEVER} || (has(self.mirrors) && self.mirrors.size() > 0)"))
        .field_path(".mirrors")
        .message("mirrors are missing: with NeverContactSource nothing is left to pull from; list a mirror, or remove mirrorSourcePolicy")
}

fn never_excludes_the_source() -> Rule {
    Rule::new(format!("!{NEVER} || !has(self.mirrors) || !self.mirrors.exists(m, m == self.source)"))
        .field_path(".mirrors")
        .message("mirrors contain the source, which NeverContactSource forbids to contact: remove it from mirrors, or set mirrorSourcePolicy to AllowContactingSource")
}

/// Runtimes look a mirror up again before they contact it, so one that lies inside the forbidden source is forbidden
/// too: below its path, or on another port of its host.
fn never_excludes_places_in_the_source() -> Rule {
    Rule::new(format!(
        "!{NEVER} || !has(self.mirrors) || !self.mirrors.exists(m, m.startsWith(self.source) \
         && m.size() > self.source.size() && m.charAt(self.source.size()) in ['/', ':'])"
    ))
    .field_path(".mirrors")
    .message(INSIDE)
}

/// The same for a source that is a whole domain: a host below it is inside.
fn never_excludes_hosts_in_the_source() -> Rule {
    Rule::new(format!(
        "!{NEVER} || !has(self.mirrors) || !self.source.startsWith('*') || ![self.source.substring(1)]\
         .exists(domain, self.mirrors.exists(m, m.split('/')[0].split(':')[0].endsWith(domain)))"
    ))
    .field_path(".mirrors")
    .message(INSIDE)
}
