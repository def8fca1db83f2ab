//! Usage lists: how clusters that share a mirror keep each other's copies from being cleaned up.
//!
//! Each operator stores one small artifact per mirror, tagged with the identity of its cluster. It holds hashes of the
//! names that the cluster uses, so that it reveals no image names to others who may read the mirror. A list can only
//! ever prevent a deletion.

mod document;
mod foreign;
mod standing;
#[cfg(test)]
mod tests;

use fairlead_domain::digest::Digest;
use fairlead_domain::reference::Reference;
use jiff::{SignedDuration, Timestamp};

pub use self::document::{DocumentError, UsageList};
pub use self::foreign::{ForeignLists, ForeignMirrors, Reading, SeenCluster, StaleList, Withheld};
pub use self::standing::{Facts, ListStanding, standing};
use crate::mirroring::hold_tag;

/// Below the path of a mirror, the repository that holds the lists.
pub const REPOSITORY: &str = "fairlead-usage";
pub const MEDIA_TYPE: &str = "application/vnd.fairlead.usage.v1+json";
/// A list of 200,000 names. Reading more than that from a registry is refused.
pub const MAX_BYTES: usize = 16 * 1024 * 1024;
/// Clusters that may share one mirror. A repository with more tags counts as unreadable.
pub const MAX_CLUSTERS: usize = 200;

/// A changed list is written at most this often.
const SHORTEST_INTERVAL: SignedDuration = SignedDuration::from_mins(1);
/// An unchanged list is written again after this time, so that readers can tell a live cluster from a dead one.
const LONGEST_INTERVAL: SignedDuration = SignedDuration::from_hours(1);

/// After an attempt to store or read lists that failed. One that the registry refused is repeated with the next list.
pub const RETRY: SignedDuration = SignedDuration::from_secs(30);

/// The hash by which lists name a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NameHash([u8; 32]);

impl NameHash {
    /// Of `repository:tag`. The host is left out, because clusters may reach one registry by different names.
    pub fn of(copy: &Reference) -> Self {
        let tag = match copy.digest() {
            Some(digest) => hold_tag(&digest).to_string(),
            None => copy.tag().unwrap_or("latest").to_owned(),
        };
        let digest = Digest::sha256(format!("{}:{tag}", copy.path()).as_bytes());
        let mut bytes = [0; 32];
        bytes.iter_mut().zip(digest.as_bytes()).for_each(|(to, from)| *to = *from);
        Self(bytes)
    }
}

/// The list that this cluster stored last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Published {
    pub at: Timestamp,
    pub names: Digest,
}

/// When the list is to be stored, given the fingerprint of the names that are in use now.
pub fn publish_at(last: Option<&Published>, names: &Digest, now: Timestamp) -> Timestamp {
    let Some(last) = last else { return now };
    let interval = if last.names == *names { LONGEST_INTERVAL } else { SHORTEST_INTERVAL };
    // After a step back of the clock the last time may lie ahead.
    last.at.min(now).checked_add(interval).unwrap_or(now)
}
