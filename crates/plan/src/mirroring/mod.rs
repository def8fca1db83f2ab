//! Mirroring: which copies of which images are to exist, who owns a destination, and when a copy goes.
//!
//! The registry is the truth about what exists, the ledger about what is ours. A round gathers who claims which
//! destination over all policy objects ([`DestinationOwners`]), says what brings each ledger in line with what Pods use
//! ([`reconcile`]), and reads off what is to be done ([`tasks`]). What came of it changes the ledger as well
//! ([`record`]). Each round works from what is there alone, so nothing depends on having seen a change happen. Changes
//! are values: the caller applies them ([`Ledger::apply`](crate::ledger::Ledger::apply)).

mod adopt;
mod claims;
mod destination_key;
mod finalize;
mod findings;
mod forecast;
mod jobs;
mod join;
mod listing;
mod loops;
mod object;
mod pause;
mod reconcile;
mod removal;
mod report;
mod sources;
mod targets;
mod tasks;
#[cfg(test)]
mod tests;
mod writes;

use std::time::Duration;

use fairlead_domain::reference::Reference;
use jiff::Timestamp;

use crate::ledger::{Copy, MOST_ERROR_CHARACTERS};

pub use self::adopt::adopt;
pub use self::claims::{Claimed, DestinationOwners, is_foreign};
pub use self::destination_key::{Slot, hold_tag, slot};
pub use self::finalize::{DeletedMirror, Finalization, GIVE_UP, finalization, wants_finalizer};
pub use self::findings::{
    Fault, Finding, Observed, Sighting, doubt, make_again, needed_digests, observe, record, source_moved,
};
pub use self::forecast::{Forecast, RecordedCopy};
pub use self::jobs::{Jobs, job_key, jobs, startable};
pub use self::join::share_sources;
pub use self::listing::kept_copies;
pub use self::loops::Loops;
pub use self::object::MirrorObject;
pub use self::pause::{KindStanding, KnownKind, waits_for};
pub use self::reconcile::{Inputs, Reconciled, RefusedCopy, reconcile};
pub use self::removal::{
    Candidate, OtherTags, Provenance, Veto, confirm, confirm_manifest, confirm_tags, may_delete,
};
pub use self::report::{MirrorReport, report};
pub use self::sources::{CopySource, SourceKind, copy_sources};
pub use self::tasks::{Blocked, Registry, Task, Work, registries_of, tasks};
pub use self::writes::{NextWrite, next_write};

/// A copy that was found in its place is not looked for again on the word of a probe.
pub const VERIFIED_FOR: Duration = Duration::from_mins(5);

/// So many failures in a row make an event of a copy.
pub const REPORTED_FAILURES: u32 = 2;

/// `unusedSince` that kube-image-keeper gives to images which the filter no longer lets pass.
const NO_LONGER_MATCHING: Timestamp = Timestamp::constant(-62_135_593_200, 0);

/// Ledgers keep whole seconds; a finer time would look like a change every time it is compared with what was kept.
fn whole_seconds(time: Timestamp) -> Timestamp {
    Timestamp::from_second(time.as_second()).unwrap_or(time)
}

/// A text as a ledger keeps it.
fn shortened(text: &str) -> Box<str> {
    let end = text.char_indices().nth(MOST_ERROR_CHARACTERS).map_or(text.len(), |(end, _)| end);
    text.get(..end).unwrap_or(text).into()
}

/// Whether two sources are one: an image without a tag is the one tagged `latest`, and a registry is the same in every
/// spelling of its host.
fn same_source(one: &Reference, other: &Reference) -> bool {
    one.is_same_image(other)
}

/// Whether a copy that is in place was made for another source, which is said where an error would be. Its own source
/// has no claim to the destination.
fn is_shared(copy: &Copy) -> bool {
    copy.state == fairlead_api::fairlead::CopyState::Mirrored && copy.last_error.is_some()
}
