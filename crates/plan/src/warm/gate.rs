//! The startup gate: a node that joins with the taint `fairlead.dev/warming` keeps it until its images are there.
//!
//! A node must not stay closed because of what can never be there, so only images that belong on it are waited for, and
//! those only until a deadline. That counts from the node's creation, which every lease holder knows: a node that
//! joined while none was there is opened by the next one.

use std::time::Duration;

use jiff::Timestamp;

use super::image::Stance;
use super::time::after;

/// Why a node is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Release {
    /// Every image that is waited for is there.
    Warm,
    /// It took too long.
    Deadline,
}

/// Whether a node is opened, by how it stands to the images with a gate. Otherwise, when it is at the latest.
pub(super) fn release<'a>(
    stances: impl IntoIterator<Item = Option<&'a Stance>>,
    created: Timestamp,
    deadline: Duration,
    now: Timestamp,
) -> Result<Release, Timestamp> {
    let latest = after(created, deadline);
    if stances.into_iter().all(is_settled) {
        Ok(Release::Warm)
    } else if latest <= now {
        Ok(Release::Deadline)
    } else {
        Err(latest)
    }
}

/// An image that is kept off by something that passes, a node that is not ready for instance, may still come. Of an
/// image that was not looked at yet nothing is known.
fn is_settled(stance: Option<&Stance>) -> bool {
    match stance {
        None => false,
        Some(Stance::Skipped(skip)) => skip.is_lasting(),
        Some(Stance::Target { holds, .. }) => *holds,
    }
}
