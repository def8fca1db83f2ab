//! Images that nodes have removed again, to make room.
//!
//! Where a node has too little room for all its images, the kubelet's garbage collection and warming would undo each
//! other's work for ever. So the second removal within a day is followed by a pause, and further ones by longer ones.
//! They are counted in memory: a new lease holder begins anew.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use fairlead_domain::backoff::Backoff;
use fairlead_domain::reference::Reference;
use jiff::Timestamp;

use super::image::KnownNode;
use super::memory::Row;
use super::time::after;

/// A Node's list of images is up to half a minute older than its report, and its clock may differ by a minute: only a
/// list that is this much newer than a pull tells that the image is gone.
pub(super) const LIST_DELAY: Duration = Duration::from_mins(2);
const DAY: Duration = Duration::from_hours(24);
/// From the last pull to the next one. Kubelets look for images to remove every five minutes.
const PAUSES: Backoff = Backoff::new(Duration::from_mins(10), DAY);

/// Whether the node's image garbage collection has removed what was pulled: its list is complete, newer than the pull,
/// and does not have it.
pub(super) fn is_evicted(row: &Row, known: &KnownNode, reference: &Reference) -> bool {
    let newer = row.pulled_at.is_some_and(|at| known.reported_at >= after(at, LIST_DELAY));
    newer && !row.unlisted && known.node.lists_all_images() && !known.node.lists_image(reference)
}

/// How often each node, by UID, has removed the image within a day after it was pulled.
#[derive(Debug, Default)]
pub(super) struct Evictions(HashMap<Arc<str>, u32>);

impl Evictions {
    /// A node got the image again that it had removed.
    pub(super) fn note(&mut self, node: &Arc<str>, pulled_at: Option<Timestamp>, now: Timestamp) {
        let count = self.0.entry(Arc::clone(node)).or_default();
        let lasted = pulled_at.is_some_and(|at| after(at, DAY) <= now);
        *count = if lasted { 1 } else { count.saturating_add(1) };
    }

    /// When a node gets the image again that it has removed.
    pub(super) fn pull_at(&self, node: &str, pulled_at: Timestamp) -> Timestamp {
        let earlier = self.0.get(node).and_then(|count| count.checked_sub(1));
        earlier.map_or(pulled_at, |earlier| after(pulled_at, PAUSES.plain(earlier)))
    }

    pub(super) fn forget(&mut self, node: &str) {
        self.0.remove(node);
    }
}
