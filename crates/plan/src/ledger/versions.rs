//! Whether a stored shard is still as it was written, by the versions that the API server gives.

use std::time::Duration;

/// A shard that was written appears in the watch within this time, or is not there.
const LATE: Duration = Duration::from_secs(3);

/// What another writer has done to a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Foreign {
    /// Nothing: the watch shows it as it was written.
    Nothing,
    /// It has been changed, and has this version now.
    Changed(u64),
    Deleted,
    /// That cannot be told yet: the watch may be late.
    Unknown,
}

/// Compares the version that was last written with the one that the watch shows. `seen`: the watch has shown the shard
/// as it was written before. `unseen_for` is the time since a write that the watch has not shown.
pub fn foreign_write(
    written: Option<u64>,
    shown: Option<u64>,
    seen: bool,
    unseen_for: Option<Duration>,
) -> Foreign {
    match (written, shown) {
        // Versions are numbers that grow, as the API server's own caches rely on.
        (Some(written), Some(shown)) if shown > written => Foreign::Changed(shown),
        (Some(written), Some(shown)) if shown == written => Foreign::Nothing,
        (Some(_), None) if seen => Foreign::Deleted,
        (Some(_), None) if unseen_for.is_none_or(|unseen_for| unseen_for >= LATE) => Foreign::Deleted,
        // What was never written has no version, and the watch may show an older one for a moment.
        _ => Foreign::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_watch_cannot_still_bring_is_foreign() {
        let moment = Some(Duration::from_secs(1));
        for (written, shown, seen, unseen_for, expected) in [
            (Some(7), Some(7), false, moment, Foreign::Nothing),
            (Some(7), Some(9), true, None, Foreign::Changed(9)),
            (Some(7), Some(5), false, moment, Foreign::Unknown),
            (Some(7), None, true, None, Foreign::Deleted),
            (Some(7), None, false, moment, Foreign::Unknown),
            (Some(7), None, false, Some(LATE), Foreign::Deleted),
            (Some(7), None, false, None, Foreign::Deleted),
            (None, None, false, None, Foreign::Unknown),
        ] {
            let found = foreign_write(written, shown, seen, unseen_for);
            assert_eq!(found, expected, "{written:?} {shown:?} {seen} {unseen_for:?}");
        }
    }
}
