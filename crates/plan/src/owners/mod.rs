//! Which Pods keep the images that their controller wrote.
//!
//! Some operators compare the images of a Pod with their own specification and recreate the Pod when they differ. A
//! rewritten Pod of such an operator would be recreated for ever. Operators that are known to do so are named by the
//! API group of their objects ([`exemption`]); all others are found out by what they do ([`Recreations`]).

mod recreations;
#[cfg(test)]
mod tests;

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use thiserror::Error;

pub use self::recreations::{OwnerKey, Pause, Recreations};
use crate::pod_record::{Place, Record, Route};

/// API groups whose operators are known to recreate Pods with images other than their own.
pub const KNOWN_GROUPS: [&str; 2] = ["postgresql.cnpg.io", "asdb.aerospike.com"];

/// Groups of Kubernetes' own workloads: leaving one out would leave out nearly all Pods.
const WORKLOAD_GROUPS: [&str; 3] = ["", "apps", "batch"];

/// The controller of a Pod: the owner reference with `controller: true`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Controller<'a> {
    pub api_version: &'a str,
    pub kind: &'a str,
    pub name: &'a str,
    pub uid: &'a str,
}

impl Controller<'_> {
    /// The API group; empty for the core group.
    pub fn group(&self) -> &str {
        self.api_version.split_once('/').map_or("", |(group, _)| group)
    }
}

/// `Cluster.postgresql.cnpg.io/db`, as kubectl names objects.
impl fmt::Display for Controller<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind)?;
        if !self.group().is_empty() {
            write!(f, ".{}", self.group())?;
        }
        write!(f, "/{}", self.name)
    }
}

/// A named API group.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ApiGroup(String);

impl ApiGroup {
    /// The groups of [`KNOWN_GROUPS`].
    pub fn known() -> Vec<Self> {
        KNOWN_GROUPS.map(|group| Self(group.to_owned())).to_vec()
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ApiGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What is wrong with the name of a group, and what to write instead.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct GroupError(String);

impl FromStr for ApiGroup {
    type Err = GroupError;

    fn from_str(text: &str) -> Result<Self, GroupError> {
        let text = text.trim();
        if let Some((group, _)) = text.split_once('/') {
            return Err(GroupError(format!(
                "is `{text}`: write the API group without its version, `{group}`"
            )));
        }
        let is_label = |label: &str| {
            let ends = |text: &str| text.starts_with('-') || text.ends_with('-');
            let plain = |one: char| one.is_ascii_lowercase() || one.is_ascii_digit() || one == '-';
            !label.is_empty() && label.len() <= 63 && !ends(label) && label.chars().all(plain)
        };
        if text.len() > 253 || !text.split('.').all(is_label) {
            return Err(GroupError(format!(
                "is `{text}`, but must be an API group: the part of `apiVersion` before the slash, in lower case, \
                 such as `postgresql.cnpg.io`"
            )));
        }
        Ok(Self(text.to_owned()))
    }
}

/// Why the images of a Pod stay as they were written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exemption {
    pub why: String,
    /// End of the pause, where there is one.
    pub paused_until: Option<Timestamp>,
}

impl Exemption {
    /// What is recorded of an image.
    pub fn route(&self, image: &str) -> Route {
        let paused_until = self.paused_until.map(|until| until.to_string()).unwrap_or_default();
        Route { paused_until, ..Route::original(image, &self.why) }
    }
}

/// Whether the Pods of a controller are not rewritten. `paused_until` is what [`Recreations`] knows of it.
pub fn exemption(
    controller: &Controller<'_>,
    skipped: &[ApiGroup],
    paused_until: Option<Timestamp>,
) -> Option<Exemption> {
    if let Some(group) = skipped.iter().find(|group| group.as_str() == controller.group()) {
        let why =
            format!("Pods of {controller} are not rewritten: routing.skipOwners has its API group {group}");
        return Some(Exemption { why, paused_until: None });
    }
    let until = paused_until?;
    let why = format!(
        "rewriting is paused until {until} for Pods of {controller}: it replaced rewritten Pods more than \
         {MOST_REPLACEMENTS} times in ten minutes before they had started"
    );
    Some(Exemption { why, paused_until: Some(until) })
}

/// Replacements in [`WINDOW_SECONDS`] that are not yet taken for a loop.
pub const MOST_REPLACEMENTS: usize = 5;
/// The time in which replacements are counted.
pub const WINDOW_SECONDS: i64 = 10 * 60;
/// For how long rewriting stops.
pub const PAUSE_SECONDS: i64 = 60 * 60;

/// What the event on the controller says.
pub fn paused_message(controller: &Controller<'_>, until: Timestamp) -> String {
    let group = controller.group();
    let remedy = if WORKLOAD_GROUPS.contains(&group) {
        "leave its Pods out with skipLabels".to_owned()
    } else {
        format!("add {group} to routing.skipOwners")
    };
    format!(
        "Pods of {controller} whose images were rewritten were replaced more than {MOST_REPLACEMENTS} times in ten \
         minutes before they had started. Images of its Pods stay as they are written until {until}. If it compares \
         images with its own specification, {remedy} in the configuration of Fairlead"
    )
}

/// Whether some image of a Pod is another than the one that was asked for. `images` are those of the specification: an
/// entry of the record counts only while it is about the image that the Pod has.
pub fn is_rewritten<'a>(record: &str, images: impl IntoIterator<Item = (Place<'a>, &'a str)>) -> bool {
    let Some(record) = Record::parse(record) else { return false };
    images.into_iter().any(|(place, image)| {
        record.images.get(&place.key()).is_some_and(|route| route.used == image && route.is_rewritten())
    })
}

/// Until when rewriting is paused for the controller of the Pod, as the Pod's record says.
pub fn recorded_pause(record: &str) -> Option<Timestamp> {
    // Most records say nothing of the kind, and are not worth parsing.
    if !record.contains(PAUSED_UNTIL) {
        return None;
    }
    let record = Record::parse(record)?;
    record.images.values().find_map(|route| route.paused_until.parse().ok())
}

/// The field of the record.
const PAUSED_UNTIL: &str = "\"pausedUntil\"";
