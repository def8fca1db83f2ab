//! What an object that watches images says about them in its status.

use fairlead_api::conditions::{ConditionStatus, Finding, reasons, types};
use fairlead_api::kuik::{Availability, ClusterImageSetAvailabilityStatus, MonitoredImage};
use fairlead_domain::reference::Reference;

use super::track::status;
use crate::ledger::{Entry, Ledger};
use crate::routing::PolicyError;

/// Images that a status lists; all of them are in the ledgers.
const LISTED: usize = 100;

/// Counts, the first images, and whether all is well.
#[derive(Debug, Clone, PartialEq)]
pub struct WatchReport {
    /// Without generation and conditions, which depend on what is stored.
    pub status: ClusterImageSetAvailabilityStatus,
    pub ready: Finding,
}

/// Sums a ledger up. Images that are not available come first, those in use before the others.
pub fn report(ledger: &Ledger) -> WatchReport {
    let mut images: Vec<(&Reference, &Entry)> = ledger.iter().collect();
    let count = |wanted: fn(Availability) -> bool| {
        let number = images.iter().filter(|(_, entry)| wanted(status(entry))).count();
        u32::try_from(number).unwrap_or(u32::MAX)
    };
    let tally = Tally {
        all: count(|_| true),
        available: count(|status| status == Availability::Available),
        unseen: count(|status| status == Availability::Scheduled),
    };
    // The ledger is in order of names, and a stable sort keeps that among equals.
    images.sort_by_key(|(_, entry)| rank(entry));
    let ready = ready(tally, &images);
    let listed = images.into_iter().take(LISTED).map(|(image, entry)| monitored(image, entry)).collect();
    let status = ClusterImageSetAvailabilityStatus {
        image_count: Some(tally.all),
        available_count: Some(tally.available),
        unavailable_count: Some(tally.unavailable()),
        images: listed,
        ..ClusterImageSetAvailabilityStatus::default()
    };
    WatchReport { status, ready }
}

/// The status of an invalid object, which watches nothing new.
pub fn refused(error: &PolicyError) -> Finding {
    let reason = if error.is_filter() { reasons::INVALID_FILTER } else { reasons::INVALID_SPEC };
    let message =
        format!("not in force until this is corrected; what was watched before is still watched: {error}");
    Finding::new(types::READY, false, reason, message)
}

#[derive(Clone, Copy)]
struct Tally {
    all: u32,
    available: u32,
    unseen: u32,
}

impl Tally {
    fn unavailable(self) -> u32 {
        self.all.saturating_sub(self.available).saturating_sub(self.unseen)
    }
}

fn rank(entry: &Entry) -> u8 {
    match (status(entry), entry.unused_since) {
        (Availability::NotFound, None) => 0,
        (Availability::Available, _) => 4,
        (Availability::Scheduled, _) => 3,
        (_, None) => 1,
        (_, Some(_)) => 2,
    }
}

fn ready(tally: Tally, worst_first: &[(&Reference, &Entry)]) -> Finding {
    let finding = |status: ConditionStatus, reason: &str, message: String| {
        Finding::new(types::READY, status, reason, message)
    };
    let are = |count: u32| if count == 1 { "is" } else { "are" };
    let Tally { all, unseen, .. } = tally;
    match (tally.unavailable(), worst_first.first()) {
        (_, None) => finding(
            ConditionStatus::True,
            reasons::READY,
            "no image is watched: no Pod uses one that the filter takes".to_owned(),
        ),
        (0, _) if unseen > 0 => finding(
            ConditionStatus::Unknown,
            reasons::PROGRESSING,
            format!(
                "{unseen} of {all} images {} still to be looked at for the first time; all others are available",
                are(unseen)
            ),
        ),
        (0, _) => {
            let message = match all {
                1 => "1 image, available at the last look".to_owned(),
                all => format!("{all} images, all available at the last look"),
            };
            finding(ConditionStatus::True, reasons::READY, message)
        }
        (unavailable, Some((image, entry))) => {
            let error = entry.watch.as_ref().and_then(|watch| watch.last_error.as_deref());
            let message = format!(
                "{unavailable} of {all} images {} not available: {image} {}{}{}",
                are(unavailable),
                meaning(status(entry)),
                error.map(|error| format!(" ({error})")).unwrap_or_default(),
                if unavailable > 1 { format!("; and {} more", unavailable - 1) } else { String::new() },
            );
            finding(ConditionStatus::False, reason(status(entry)), message)
        }
    }
}

/// The worst that was found, as one word.
fn reason(status: Availability) -> &'static str {
    match status {
        Availability::NotFound => "ImageNotFound",
        Availability::Unreachable => "RegistryUnreachable",
        Availability::InvalidAuth => "AccessDenied",
        Availability::UnavailableSecret => reasons::SECRET_UNAVAILABLE,
        Availability::QuotaExceeded => "QuotaExceeded",
        Availability::Scheduled | Availability::Available => reasons::READY,
    }
}

fn meaning(status: Availability) -> &'static str {
    match status {
        Availability::NotFound => "is not in its registry: push it again, or let Pods use another image",
        Availability::Unreachable => "cannot be asked for, because its registry does not answer as it should",
        Availability::InvalidAuth => {
            "is not given out to the credentials of the Pods that use it: correct their pull secrets, or name a \
             fallbackCredentialSecret for the registry"
        }
        Availability::UnavailableSecret => "needs a Secret that cannot be used",
        Availability::QuotaExceeded => {
            "is not given out for now, because the quota of its registry is used up"
        }
        Availability::Scheduled | Availability::Available => "was not looked at",
    }
}

fn monitored(image: &Reference, entry: &Entry) -> MonitoredImage {
    let watch = entry.watch.as_ref();
    let error = watch.and_then(|watch| watch.last_error.as_deref());
    MonitoredImage {
        image: image.as_str().to_owned(),
        status: status(entry),
        unused_since: entry.unused_since.map(Into::into),
        last_error: error.unwrap_or_default().to_owned(),
        last_monitor: watch.and_then(|watch| watch.last_monitor).map(Into::into),
        original: watch.is_some_and(|watch| watch.original),
    }
}
