//! What a mirror object reports about the lists in its mirrors.

use fairlead_domain::reference::Location;
use jiff::{SignedDuration, Timestamp};

use super::{ForeignLists, SeenCluster};

/// What is known of the lists in one mirror.
#[derive(Debug, Clone, Copy)]
pub struct Facts<'a> {
    pub place: &'a Location,
    pub foreign: &'a ForeignLists,
    pub published: bool,
    /// Why the registry does not store the list of this cluster.
    pub refused: Option<&'a str>,
    /// Why the lists of other clusters could not be read.
    pub unread: Option<&'a str>,
}

/// The lists in all mirrors of an object, taken together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListStanding {
    /// Every mirror holds the list of this cluster.
    pub listed: bool,
    /// What is wrong, for people.
    pub problems: Vec<String>,
    /// The clusters that share a mirror, with the mirror.
    pub shared_with: Vec<(String, SeenCluster)>,
}

pub fn standing<'a>(
    mirrors: impl Iterator<Item = Facts<'a>>,
    max_age: Option<SignedDuration>,
    now: Timestamp,
) -> ListStanding {
    let mut standing = ListStanding { listed: true, ..ListStanding::default() };
    for facts in mirrors {
        let Facts { place, foreign, published, refused, unread } = facts;
        standing.listed &= published;
        if let Some(why) = refused {
            standing.problems.push(format!(
                "{place} does not store usage lists, so other clusters that share it cannot tell what this one uses, \
                 and clean-up does not know what they use: {why}"
            ));
        }
        if let Some(why) = unread {
            standing.problems.push(format!(
                "the usage lists in {place} cannot be read, and nothing is cleaned up there until they can: {why}"
            ));
        }
        for stale in foreign.stale(max_age, now) {
            let (cluster, updated) = (&stale.cluster, stale.updated);
            let effect = if stale.ignored { "it is ignored" } else { "what it names is kept" };
            standing.problems.push(format!(
                "the usage list of cluster {cluster} in {place} was last written {updated}, and {effect}: if that \
                 cluster is gone, delete its tag {cluster} there"
            ));
        }
        standing.shared_with.extend(foreign.seen().map(|seen| (place.to_string(), seen)));
    }
    standing
}
