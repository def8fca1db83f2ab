//! The state of mirrors as a value: what the table shows and what programs read. Its JSON is documented and stays as it
//! is.

use std::collections::BTreeMap;

use fairlead_api::conditions::{ConditionStatus, types};
use fairlead_api::fairlead::CopyState;
use fairlead_api::kuik::AwaitedRegistry;
use fairlead_plan::mirroring::Forecast;
use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

use super::object::Object;
use super::rows::{CopyRow, Row};
use super::view::View;
use crate::readiness::Readiness;

/// Copies that came into place within this time tell how fast it goes.
const RECENT: SignedDuration = SignedDuration::from_secs(60);

/// Everything that was found.
#[derive(Debug, Default, PartialEq, Serialize)]
pub(crate) struct Report {
    pub(crate) objects: Vec<ObjectReport>,
    /// Whatever makes the report less than whole.
    pub(crate) warnings: Vec<String>,
}

/// One mirror object.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ObjectReport {
    pub(crate) kind: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) namespace: Option<String>,
    pub(crate) name: String,
    #[serde(skip)]
    pub(crate) title: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ready: Option<Readiness>,
    /// Whether an operator has looked at the object as it is now.
    pub(crate) observed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) deleting_since: Option<Timestamp>,
    pub(crate) known_from: KnownFrom,
    pub(crate) images: Images,
    pub(crate) copies: Counts,
    /// Copies that came into place within the last minute.
    pub(crate) copied_in_last_minute: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) oldest_waiting: Option<Timestamp>,
    /// Copies that wait and can be made now, and those of the last minute in the same registries: what an estimate
    /// rests on.
    #[serde(skip)]
    pub(crate) pace: Pace,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) waiting_for: Vec<AwaitedRegistry>,
    pub(crate) mirrors: Vec<PlaceReport>,
    /// Copies that cannot be made or removed.
    pub(crate) failing: Vec<CopyReport>,
    pub(crate) unused: Vec<UnusedReport>,
    /// Copies that clean-up does not remove.
    pub(crate) kept: Vec<KeptCopy>,
    /// What is wrong with the object itself.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) problems: Vec<String>,
}

/// What can be said about how long it takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pace {
    pub(crate) pending: u32,
    pub(crate) recent: u32,
}

/// Where the rows come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum KnownFrom {
    Ledgers,
    /// There are no ledgers, or they may not be seen: the object's own status, which names a hundred images at most.
    Status,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Images {
    pub(crate) in_use: u32,
    pub(crate) unused: u32,
}

/// Copies by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct Counts {
    pub(crate) total: u32,
    pub(crate) mirrored: u32,
    /// Still to be copied.
    pub(crate) pending: u32,
    pub(crate) failed: u32,
    pub(crate) refused: u32,
    pub(crate) deleting: u32,
}

/// One mirror.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PlaceReport {
    pub(crate) place: String,
    /// False: copies are still there, and the object no longer names the place.
    pub(crate) in_spec: bool,
    pub(crate) copies: Counts,
}

/// A copy that fails.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct CopyReport {
    pub(crate) image: String,
    pub(crate) destination: String,
    pub(crate) state: CopyState,
    /// None: it is not recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) since: Option<Timestamp>,
    pub(crate) error: String,
}

/// A copy that stays in its registry whatever happens to its image.
#[derive(Debug, PartialEq, Serialize)]
pub(crate) struct KeptCopy {
    pub(crate) image: String,
    pub(crate) destination: String,
    pub(crate) why: String,
}

/// An image that no Pod uses.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct UnusedReport {
    pub(crate) image: String,
    pub(crate) since: Timestamp,
    pub(crate) copies: Vec<UnusedCopy>,
}

#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct UnusedCopy {
    pub(crate) destination: String,
    /// When it may be removed. None: it is kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) goes_at: Option<Timestamp>,
    /// Why it is kept although its mirror is cleaned up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) kept: Option<String>,
}

impl Counts {
    fn add(&mut self, state: CopyState) {
        self.total += 1;
        *match state {
            CopyState::Pending => &mut self.pending,
            CopyState::Mirrored => &mut self.mirrored,
            CopyState::Failed => &mut self.failed,
            CopyState::Refused => &mut self.refused,
            CopyState::Deleting => &mut self.deleting,
        } += 1;
    }
}

impl Report {
    pub(crate) fn of(view: &View, wanted: impl Fn(&Object) -> bool, now: Timestamp) -> Self {
        let objects = view.objects().filter(|object| wanted(object));
        let objects = objects.map(|object| ObjectReport::of(object, view.rows(object), now)).collect();
        Self { objects, warnings: view.broken_ledgers() }
    }

    pub(crate) fn is_troubled(&self) -> bool {
        self.objects.iter().any(ObjectReport::is_troubled)
    }

    /// Whether nothing happened between the two. That time goes by is nothing.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.warnings == other.warnings
            && self.objects.len() == other.objects.len()
            && self.objects.iter().zip(&other.objects).all(|(one, other)| one.is_same(other))
    }

    /// Leaves only what fails.
    pub(crate) fn only_failing(mut self) -> Self {
        self.objects.retain(ObjectReport::is_troubled);
        for object in &mut self.objects {
            object.unused.clear();
            object.kept.clear();
        }
        self
    }
}

impl ObjectReport {
    fn of(object: &Object, ledgers: Option<Vec<Row<'_>>>, now: Timestamp) -> Self {
        let (known_from, rows) = match ledgers {
            Some(rows) => (KnownFrom::Ledgers, rows),
            None => (KnownFrom::Status, object.status.matching_images.iter().map(Row::from).collect()),
        };
        let mut report = Self::empty(object, known_from);
        let mut gone = BTreeMap::new();
        for row in &rows {
            report.add(object, row, &mut gone, now);
        }
        report.mirrors.extend(gone.into_values());
        if known_from == KnownFrom::Status {
            report.correct_by(object);
        }
        report.failing.sort_by(|one, other| {
            (one.since, &one.destination, &one.image).cmp(&(other.since, &other.destination, &other.image))
        });
        report.unused.sort_by(|one, other| (one.goes(), &one.image).cmp(&(other.goes(), &other.image)));
        report
    }

    fn empty(object: &Object, known_from: KnownFrom) -> Self {
        let mut problems = object.problems.clone();
        let accepted = object.condition(types::ACCEPTED);
        problems.extend(
            accepted
                .filter(|condition| condition.status == ConditionStatus::False)
                .map(|condition| format!("{}: {}", condition.reason, condition.message)),
        );
        let mirrors = object.places.iter().map(|place| PlaceReport {
            place: place.text.clone(),
            in_spec: true,
            copies: Counts::default(),
        });
        Self {
            kind: object.kind.name(),
            namespace: object.namespace.clone(),
            name: object.name.clone(),
            title: object.to_string(),
            ready: object.condition(types::READY).map(Readiness::of),
            observed: object.status.observed_generation.is_some()
                && object.status.observed_generation == object.generation,
            deleting_since: object.deleting_since,
            known_from,
            images: Images::default(),
            copies: Counts::default(),
            copied_in_last_minute: 0,
            oldest_waiting: None,
            pace: Pace::default(),
            waiting_for: object.status.waiting_for.clone(),
            mirrors: mirrors.collect(),
            failing: Vec::new(),
            unused: Vec::new(),
            kept: Vec::new(),
            problems,
        }
    }

    fn add(
        &mut self,
        object: &Object,
        row: &Row<'_>,
        gone: &mut BTreeMap<String, PlaceReport>,
        now: Timestamp,
    ) {
        match row.unused_since {
            None => self.images.in_use += 1,
            Some(since) => {
                self.images.unused += 1;
                self.unused.push(UnusedReport::of(object, row, since));
            }
        }
        // Of an unused image, and of an object that is going, only what is there counts: no more copies are
        // made.
        let is_wanted = row.unused_since.is_none() && object.deleting_since.is_none();
        let counts = |copy: &&CopyRow<'_>| {
            is_wanted || matches!(copy.state, CopyState::Mirrored | CopyState::Deleting)
        };
        for copy in row.copies.iter().filter(counts) {
            self.copies.add(copy.state);
            let place = match object.place_of(copy.destination) {
                Some(number) => self.mirrors.get_mut(number),
                None => Some(gone.entry(host(copy.destination).to_owned()).or_insert_with_key(|host| {
                    PlaceReport { place: host.clone(), in_spec: false, copies: Counts::default() }
                })),
            };
            if let Some(place) = place {
                place.copies.add(copy.state);
            }
            self.add_copy(row, copy, now);
        }
        for copy in &row.copies {
            let cleaned = copy.kept.is_some() || object.cleanup_of(copy.destination).enabled;
            if let Some(why) = copy.recorded().kept_for_good().filter(|_| cleaned) {
                let (image, destination) = (row.image.to_owned(), copy.destination.to_owned());
                self.kept.push(KeptCopy { image, destination, why: why.to_owned() });
            }
        }
    }

    /// Whether nothing is copied there, or from there, at the moment.
    fn is_awaited(&self, reference: &str) -> bool {
        let host = host(reference);
        self.waiting_for.iter().any(|awaited| awaited.registry.eq_ignore_ascii_case(host))
    }

    fn add_copy(&mut self, row: &Row<'_>, copy: &CopyRow<'_>, now: Timestamp) {
        let moves = !self.is_awaited(copy.destination) && !self.is_awaited(row.image);
        let fails = match copy.state {
            CopyState::Failed | CopyState::Refused => true,
            CopyState::Deleting => !copy.error.is_empty(),
            CopyState::Pending => {
                self.oldest_waiting = [self.oldest_waiting, copy.since].into_iter().flatten().min();
                self.pace.pending += u32::from(moves);
                false
            }
            CopyState::Mirrored => {
                let age = copy.since.map(|since| now.duration_since(since));
                if age.is_some_and(|age| age >= SignedDuration::ZERO && age < RECENT) {
                    self.copied_in_last_minute += 1;
                    self.pace.recent += u32::from(moves);
                }
                false
            }
        };
        if fails {
            self.failing.push(CopyReport {
                image: row.image.to_owned(),
                destination: copy.destination.to_owned(),
                state: copy.state,
                since: copy.since,
                error: copy.error.to_owned(),
            });
        }
    }

    /// A status counts everything and lists a part.
    fn correct_by(&mut self, object: &Object) {
        let status = &object.status;
        let Some(images) = status.image_count else { return };
        self.images.in_use = images.saturating_sub(self.images.unused);
        let places = u32::try_from(object.places.len()).unwrap_or(u32::MAX);
        let counts = &mut self.copies;
        counts.mirrored = status.mirrored_count.unwrap_or(counts.mirrored).max(counts.mirrored);
        counts.failed = status.failed_count.unwrap_or(counts.failed).max(counts.failed);
        let settled = counts.mirrored + counts.failed + counts.refused + counts.deleting;
        if object.deleting_since.is_some() {
            (counts.total, counts.pending) = (settled, 0);
        } else {
            counts.total = images.saturating_mul(places).max(counts.total);
            counts.pending = counts.total.saturating_sub(settled);
        }
        if usize::try_from(images).is_ok_and(|images| images > status.matching_images.len()) {
            // The part that is listed says nothing about each mirror.
            self.mirrors.clear();
        }
    }

    fn is_same(&self, other: &Self) -> bool {
        self.title == other.title
            && self.ready == other.ready
            && self.observed == other.observed
            && self.deleting_since == other.deleting_since
            && self.images == other.images
            && self.mirrors == other.mirrors
            && self.copies == other.copies
            && self.failing == other.failing
            && self.kept == other.kept
            && self.waiting_for == other.waiting_for
            && self.problems == other.problems
    }

    pub(crate) fn is_troubled(&self) -> bool {
        self.copies.failed + self.copies.refused > 0 || !self.failing.is_empty() || !self.problems.is_empty()
    }
}

impl UnusedReport {
    fn of(object: &Object, row: &Row<'_>, since: Timestamp) -> Self {
        let copies = row.copies.iter().map(|copy| {
            let cleanup = object.cleanup_of(copy.destination);
            let retention = cleanup.enabled.then(|| cleanup.retention.as_std());
            let (goes_at, kept) = match copy.recorded().forecast(since, retention, object.deleting_since) {
                Forecast::Deleted { at } => (Some(at), None),
                Forecast::Kept { why } => (None, Some(why.into_owned())),
                Forecast::Stays => (None, None),
            };
            UnusedCopy { destination: copy.destination.to_owned(), goes_at, kept }
        });
        Self { image: row.image.to_owned(), since, copies: copies.collect() }
    }

    /// When the first of its copies goes; those that are kept come last.
    fn goes(&self) -> Timestamp {
        self.copies.iter().filter_map(|copy| copy.goes_at).min().unwrap_or(Timestamp::MAX)
    }
}

fn host(reference: &str) -> &str {
    reference.split('/').next().unwrap_or(reference)
}

#[cfg(test)]
mod tests;
