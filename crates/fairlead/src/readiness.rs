//! What an object's condition says, for people and for programs.

use fairlead_api::conditions::{Condition, ConditionStatus};
use jiff::Timestamp;
use serde::Serialize;

use crate::output::age;

/// A condition, `Ready` for instance.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Readiness {
    pub(crate) status: ConditionStatus,
    pub(crate) reason: String,
    pub(crate) message: String,
    pub(crate) since: Timestamp,
}

impl Readiness {
    pub(crate) fn of(condition: &Condition) -> Self {
        Self {
            status: condition.status,
            reason: condition.reason.clone(),
            message: condition.message.clone(),
            since: condition.last_transition_time.0,
        }
    }
}

/// The condition `Ready` in a few words, or why there is none. `observed`: an operator has looked at the object as it
/// is now.
pub(crate) fn words(
    ready: Option<&Readiness>,
    observed: bool,
    deleting_since: Option<Timestamp>,
    now: Timestamp,
) -> String {
    let mut words = match ready {
        None => "no operator has looked at it yet".to_owned(),
        Some(ready) => {
            let state = match ready.status {
                ConditionStatus::True => "ready",
                ConditionStatus::False => "not ready",
                ConditionStatus::Unknown => "not known",
            };
            let age = age(now, ready.since);
            format!("{state} for {age}, {}: {}", ready.reason, ready.message)
        }
    };
    if ready.is_some() && !observed {
        words.push_str("; not looked at since its last edit");
    }
    if let Some(since) = deleting_since {
        words = format!("being deleted for {}; {words}", age(now, since));
    }
    words
}
