//! A ledger summed up, for `kubectl get`.

use fairlead_api::conditions::{Condition, ConditionStatus, reasons, types};
use fairlead_api::fairlead::{CopyState, ImageLedgerStatus, LedgerCopy, LedgerEntry};
use fairlead_api::kuik::Availability;

/// The status that goes with these entries. It follows from them alone, so that writing the same entries again changes
/// nothing.
pub fn sum_up(entries: &[LedgerEntry]) -> ImageLedgerStatus {
    let copies = || entries.iter().flat_map(|entry| &entry.mirrors);
    let mirrored = copies().filter(|copy| copy.state == CopyState::Mirrored).count();
    let failing = |copy: &&LedgerCopy| matches!(copy.state, CopyState::Failed | CopyState::Refused);
    let unavailable = |entry: &&LedgerEntry| {
        entry
            .watch
            .as_ref()
            .is_some_and(|watch| !matches!(watch.status, Availability::Available | Availability::Scheduled))
    };
    let failed = copies().filter(failing).count() + entries.iter().filter(unavailable).count();
    let is_watched = entries.iter().any(|entry| entry.watch.is_some());
    ImageLedgerStatus {
        image_count: Some(count(entries.len())),
        mirrored_count: (!is_watched).then(|| count(mirrored)),
        failed_count: Some(count(failed)),
        conditions: if is_watched { Vec::new() } else { ready(entries).into_iter().collect() },
    }
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// Ready since the last copy came into place; not ready since the first that is not in place.
fn ready(entries: &[LedgerEntry]) -> Option<Condition> {
    let copies = || entries.iter().flat_map(|entry| entry.mirrors.iter().map(move |copy| (entry, copy)));
    let away = || copies().filter(|(_, copy)| copy.state != CopyState::Mirrored);
    let failing = copies().find(|(_, copy)| matches!(copy.state, CopyState::Failed | CopyState::Refused));
    let total = copies().count();
    let (status, reason, message, since) = match (away().count(), failing) {
        (0, _) => (
            ConditionStatus::True,
            reasons::READY,
            format!("{total} copies are in place"),
            copies().map(|(_, copy)| &copy.since).max().cloned(),
        ),
        (away_count, failing) => {
            let (reason, message) = match failing {
                Some((entry, copy)) => {
                    let reason =
                        if copy.state == CopyState::Refused { reasons::CONFLICT } else { reasons::DEGRADED };
                    let why = copy.last_error.as_deref().unwrap_or_default();
                    (reason, format!("{} cannot be copied to {}: {why}", entry.source, copy.destination))
                }
                None => (reasons::PROGRESSING, format!("{away_count} of {total} copies are under way")),
            };
            (ConditionStatus::False, reason, message, away().map(|(_, copy)| &copy.since).min().cloned())
        }
    };
    Some(Condition {
        type_: types::READY.to_owned(),
        status,
        observed_generation: None,
        // Without a single copy there is nothing to be ready.
        last_transition_time: since?,
        reason: reason.to_owned(),
        message,
    })
}

#[cfg(test)]
mod tests {
    use fairlead_api::fairlead::LedgerWatch;
    use serde_json::{Value, json};

    use super::*;

    fn entries(entries: &Value) -> Vec<LedgerEntry> {
        serde_json::from_value(entries.clone()).expect("entries")
    }

    fn copy(state: &str, since: u8) -> Value {
        let digest = format!("sha256:{}", "0".repeat(64));
        json!({
            "destination": format!("m.io/{since}:1"), "state": state, "since": format!("2026-01-01T00:00:{since:02}Z"),
            "digest": digest, "lastError": "denied",
        })
    }

    fn seen(entries: &[LedgerEntry]) -> (Option<u32>, Option<u32>, Option<u32>, String) {
        let status = sum_up(entries);
        let ready = status.conditions.iter().map(|ready| {
            format!("{:?} {} {} {}", ready.status, ready.reason, ready.last_transition_time.0, ready.message)
        });
        (status.image_count, status.mirrored_count, status.failed_count, ready.collect())
    }

    #[test]
    fn ready_when_every_copy_is_in_place() {
        let all = entries(&json!([
            { "source": "a.io/a:1", "mirrors": [copy("Mirrored", 3), copy("Mirrored", 9)] },
            { "source": "a.io/b:1", "mirrors": [copy("Mirrored", 5)] },
        ]));
        let ready = "True Ready 2026-01-01T00:00:09Z 3 copies are in place";
        assert_eq!(seen(&all), (Some(2), Some(3), Some(0), ready.to_owned()));
    }

    #[test]
    fn what_is_missing_is_named() {
        let under_way = json!({ "source": "a.io/a:1", "mirrors": [copy("Mirrored", 3), copy("Pending", 9)] });
        let ready = "False Progressing 2026-01-01T00:00:09Z 1 of 2 copies are under way";
        assert_eq!(seen(&entries(&json!([under_way]))), (Some(1), Some(1), Some(0), ready.to_owned()));

        let refused = json!({ "source": "a.io/b:1", "mirrors": [copy("Refused", 7)] });
        let ready = "False Conflict 2026-01-01T00:00:07Z a.io/b:1 cannot be copied to m.io/7:1: denied";
        assert_eq!(
            seen(&entries(&json!([under_way, refused]))),
            (Some(2), Some(1), Some(1), ready.to_owned())
        );
    }

    #[test]
    fn watched_images_are_counted() {
        let watched = |status: Availability| LedgerEntry {
            watch: Some(LedgerWatch { status, ..LedgerWatch::default() }),
            ..entries(&json!([{ "source": "a.io/a:1" }])).remove(0)
        };
        let all = [Availability::Available, Availability::Scheduled, Availability::NotFound].map(watched);
        assert_eq!(seen(&all), (Some(3), None, Some(1), String::new()));
        assert_eq!(seen(&[]), (Some(0), Some(0), Some(0), String::new()), "an empty ledger");
    }
}
