//! How every watch stands, for readiness, metrics and people; and which capabilities follow from that.

use std::collections::BTreeMap;

use fairlead_plan::capability::{Capability, Standing};
use fairlead_plan::mirroring::{KindStanding, KnownKind};
use parking_lot::{Mutex, MutexGuard};

use super::Metrics;
use super::sink::Counts;
use crate::platform::api_error::{Class, Failure};

/// Whether the API server serves a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    Unknown,
    Absent,
    Served,
    /// No capability needs the kind, so it is not watched.
    Unneeded,
}

/// One watch.
#[derive(Debug, Clone)]
pub struct WatchRow {
    pub kind: &'static str,
    pub presence: Presence,
    /// All objects were listed at least once since the kind is served.
    pub synced: bool,
    /// As the kind was last seen: objects are not gone because their kind is not served.
    pub objects: usize,
    pub malformed: usize,
    /// What failed last and has not worked since.
    pub trouble: Option<Failure>,
}

impl WatchRow {
    /// A kind that is not served has nothing to wait for.
    pub fn ready(&self) -> bool {
        match self.presence {
            Presence::Unknown => false,
            Presence::Absent | Presence::Unneeded => true,
            Presence::Served => self.synced,
        }
    }

    /// Whether waiting would not be expected to change what is known of the kind.
    fn settled(&self) -> bool {
        self.ready() || self.trouble.is_some()
    }
}

#[derive(Debug, Default)]
struct BoardState {
    rows: BTreeMap<&'static str, WatchRow>,
    capabilities: BTreeMap<Capability, Standing>,
}

/// Where watches report.
#[derive(Debug)]
pub struct Board {
    state: Mutex<BoardState>,
    metrics: Metrics,
}

impl Board {
    pub(super) fn new(kinds: impl IntoIterator<Item = &'static str>, metrics: Metrics) -> Self {
        let rows = kinds
            .into_iter()
            .map(|kind| {
                let row = WatchRow {
                    kind,
                    presence: Presence::Unknown,
                    synced: false,
                    objects: 0,
                    malformed: 0,
                    trouble: None,
                };
                (kind, row)
            })
            .collect();
        Self { state: Mutex::new(BoardState { rows, capabilities: BTreeMap::new() }), metrics }
    }

    /// How every watch stands now, by name of the kind.
    pub fn rows(&self) -> Vec<WatchRow> {
        self.lock().rows.values().cloned().collect()
    }

    /// What is still to be listed of Pods and of these kinds, as far as they are served. Before that, what is not known
    /// must not be taken for something that is gone.
    pub fn awaits_pods_and(&self, kinds: &[&str]) -> Option<String> {
        let awaits_kind = |kind: &&&str| !self.lock().rows.get(**kind).is_some_and(WatchRow::ready);
        self.awaits_served(&["Pod"]).or_else(|| kinds.iter().find(awaits_kind).map(|kind| not_listed(kind)))
    }

    /// What is still to be listed of these kinds, all of which have to be served.
    pub fn awaits_served(&self, kinds: &[&str]) -> Option<String> {
        let listed = |kind: &str| self.known(kind, 0).standing == KindStanding::Listed;
        kinds.iter().find(|kind| !listed(kind)).map(|kind| not_listed(kind))
    }

    /// What is known of a kind. `ledgers` are stored ledgers whose owners are of that kind.
    pub(crate) fn known<'a>(&self, kind: &'a str, ledgers: usize) -> KnownKind<'a> {
        let state = self.lock();
        let row = state.rows.get(kind);
        let standing = match row.map(|row| (row.presence, row.synced)) {
            Some((Presence::Served, true)) => KindStanding::Listed,
            Some((Presence::Absent | Presence::Unneeded, _)) => KindStanding::Absent,
            Some((Presence::Served | Presence::Unknown, _)) | None => KindStanding::Listing,
        };
        let objects = row.map_or(0, |row| row.objects + row.malformed).max(ledgers);
        KnownKind { kind, standing, objects, needed: false }
    }

    /// Capabilities that could be judged so far.
    pub fn capabilities(&self) -> Vec<(Capability, Standing)> {
        self.lock()
            .capabilities
            .iter()
            .map(|(capability, standing)| (*capability, standing.clone()))
            .collect()
    }

    pub(super) fn absent(&self, kind: &'static str) {
        self.metrics.forget_counts(kind);
        let before = self.update(kind, |row| {
            row.synced = false;
            row.trouble = None;
            std::mem::replace(&mut row.presence, Presence::Absent)
        });
        if before.is_some_and(|before| before != Presence::Absent) {
            tracing::debug!(kind, "the cluster does not serve this kind; it is looked for again and again");
        }
    }

    pub(super) fn unneeded(&self, kind: &'static str) {
        self.metrics.forget_counts(kind);
        self.update(kind, |row| {
            (row.presence, row.synced, row.objects, row.malformed) = (Presence::Unneeded, false, 0, 0);
            row.trouble = None;
        });
    }

    pub(super) fn served(&self, kind: &'static str) {
        let before = self.update(kind, |row| std::mem::replace(&mut row.presence, Presence::Served));
        if before == Some(Presence::Absent) {
            tracing::info!(kind, "the cluster serves this kind now");
        }
    }

    pub(super) fn listed(&self, kind: &'static str) {
        self.metrics.listed(kind);
        self.update(kind, |row| row.synced = true);
    }

    pub(super) fn counted(&self, kind: &'static str, counts: Counts) {
        self.metrics.set_counts(kind, counts.objects, counts.malformed);
        if let Some(images) = counts.images {
            self.metrics.set_images(images);
        }
        self.update(kind, |row| {
            (row.objects, row.malformed) = (counts.objects, counts.malformed);
        });
    }

    /// Takes note of a failure. One that is like the last of its kind is logged once only, and an API server
    /// that cannot be reached is logged once for all kinds.
    pub(super) fn failed(&self, kind: &'static str, failure: &Failure) {
        self.metrics.failed(kind, failure.class);
        let shared = self.shared_outage(kind);
        let before = self.update(kind, |row| row.trouble.replace(failure.clone()).map(|before| before.class));
        let reason = failure.class.name();
        match failure.class {
            class if before.flatten() == Some(class) => {
                tracing::debug!(kind, reason, error = %failure, "watch failed again");
            }
            Class::Unavailable if shared => {
                tracing::debug!(kind, reason, error = %failure, "watch failed as well");
            }
            Class::Expired => tracing::info!(kind, reason, error = %failure, "listing again from the start"),
            Class::Denied => tracing::error!(
                kind, reason, error = %failure,
                "not allowed to watch this kind; grant list and watch on it; trying again"
            ),
            _ => tracing::warn!(kind, reason, error = %failure, "watch failed; trying again"),
        }
    }

    pub(super) fn recovered(&self, kind: &'static str) {
        let before = self.update(kind, |row| row.trouble.take()).flatten().map(|failure| failure.class);
        match before {
            None | Some(Class::Expired) => {}
            Some(Class::Unavailable) if self.shared_outage(kind) => {
                tracing::debug!(kind, "watch works again, others do not yet");
            }
            Some(_) => tracing::info!(kind, "watch works again"),
        }
    }

    /// Whether other watches, too, cannot reach the API server.
    fn shared_outage(&self, kind: &'static str) -> bool {
        let unreachable =
            |row: &WatchRow| row.trouble.as_ref().is_some_and(|trouble| trouble.class == Class::Unavailable);
        self.lock().rows.values().any(|row| row.kind != kind && unreachable(row))
    }

    fn update<T>(&self, kind: &'static str, change: impl FnOnce(&mut WatchRow) -> T) -> Option<T> {
        let mut state = self.lock();
        let result = change(state.rows.get_mut(kind)?);
        self.judge(&mut state);
        Some(result)
    }

    fn judge(&self, state: &mut BoardState) {
        let BoardState { rows, capabilities } = state;
        let row = |kind: &str| rows.get(kind);
        for capability in Capability::ALL {
            let standing = capability.standing(|kind| row(kind).is_some_and(|row| row.synced));
            let on = standing == Standing::On;
            // Nothing is said to be off while a list that may turn it on is under way.
            if matches!(standing, Standing::Off { .. })
                && !capability.kinds().all(|kind| row(kind).is_none_or(WatchRow::settled))
            {
                continue;
            }
            if capabilities.get(&capability) == Some(&standing) {
                continue;
            }
            self.metrics.set_capability(capability, on);
            tracing::info!(capability = capability.name(), on, "capability {standing}");
            capabilities.insert(capability, standing);
        }
    }

    fn lock(&self) -> MutexGuard<'_, BoardState> {
        self.state.lock()
    }
}

fn not_listed(kind: &str) -> String {
    format!("{kind} objects are not listed yet")
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [&str; 3] = ["Pod", "ClusterImageSetAvailability", "CachedImage"];

    fn board() -> Board {
        Board::new(KINDS, Metrics::default())
    }

    fn standing(board: &Board, wanted: Capability) -> Option<Standing> {
        board
            .capabilities()
            .into_iter()
            .find(|(capability, _)| *capability == wanted)
            .map(|(_, standing)| standing)
    }

    fn ready(board: &Board) -> Vec<bool> {
        board.rows().iter().map(WatchRow::ready).collect()
    }

    #[test]
    fn readiness_waits_for_what_is_served_and_not_for_what_is_absent() {
        let board = board();
        assert_eq!(ready(&board), [false, false, false]);
        board.absent("CachedImage");
        board.served("ClusterImageSetAvailability");
        assert_eq!(ready(&board), [true, false, false]);
        board.listed("ClusterImageSetAvailability");
        assert_eq!(ready(&board), [true, true, false]);
    }

    #[test]
    fn a_capability_is_judged_when_its_kinds_are_settled() {
        let (board, kind) = (board(), "ClusterImageSetAvailability");
        assert_eq!(standing(&board, Capability::Watch), None);
        board.absent(kind);
        assert!(matches!(standing(&board, Capability::Watch), Some(Standing::Off { .. })));
        board.served(kind);
        board.listed(kind);
        assert_eq!(standing(&board, Capability::Watch), Some(Standing::On));
        board.absent(kind);
        assert!(matches!(standing(&board, Capability::Watch), Some(Standing::Off { .. })));
    }

    #[test]
    fn trouble_is_shown_until_it_is_over_and_does_not_undo_what_was_listed() {
        let board = board();
        board.served("Pod");
        board.listed("Pod");
        board.failed("Pod", &Failure::timed_out(std::time::Duration::from_secs(1)));
        let row = board.rows().into_iter().find(|row| row.kind == "Pod").expect("a row per kind");
        assert!(row.ready() && row.trouble.is_some());
        board.recovered("Pod");
        assert!(board.rows().iter().all(|row| row.trouble.is_none()));
    }
}
