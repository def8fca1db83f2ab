//! What the event about internal errors says: how many there were since the last one, and the most frequent of them.

use std::cmp::Reverse;
use std::collections::BTreeMap;

/// Different errors that are counted apart; more are counted together.
const MOST_KINDS: usize = 16;
/// Of these so many are written out, the most frequent first.
const MOST_WRITTEN: usize = 3;
const LONGEST_TEXT: usize = 250;

/// Errors since the last event.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ErrorTally {
    count: u64,
    kinds: BTreeMap<String, u64>,
}

impl ErrorTally {
    pub fn count(&self) -> u64 {
        self.count
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Counts an error. Errors of the same text are one kind.
    pub fn add(&mut self, text: &str) {
        self.add_times(text, 1);
    }

    /// Counts the errors of another tally, whose event could not be written.
    pub fn add_all(&mut self, other: &Self) {
        self.count += other.count.saturating_sub(other.kinds.values().sum());
        for (text, times) in &other.kinds {
            self.add_times(text, *times);
        }
    }

    fn add_times(&mut self, text: &str, times: u64) {
        let text = text.get(..text.floor_char_boundary(LONGEST_TEXT)).unwrap_or_default();
        self.count += times;
        if let Some(count) = self.kinds.get_mut(text) {
            *count += times;
        } else if self.kinds.len() < MOST_KINDS {
            self.kinds.insert(text.to_owned(), times);
        }
    }

    pub fn message(&self) -> String {
        let mut kinds: Vec<_> = self.kinds.iter().collect();
        kinds.sort_by_key(|(_, count)| Reverse(**count));
        let written: Vec<_> =
            kinds.iter().take(MOST_WRITTEN).map(|(text, count)| format!("{text} ({count})")).collect();
        format!(
            "{} internal errors since the last report; Pods were admitted unchanged. {}. See the operator's log",
            self.count,
            written.join("; ")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_counted_by_kind_and_the_most_frequent_comes_first() {
        let mut tally = ErrorTally::default();
        for (text, times) in
            [("panic in the handler", 2), ("no answer in time", 5), ("odd request", 1), ("rare", 1)]
        {
            for _ in 0..times {
                tally.add(text);
            }
        }
        assert_eq!(
            tally.message(),
            "9 internal errors since the last report; Pods were admitted unchanged. no answer in time (5); \
             panic in the handler (2); odd request (1). See the operator's log"
        );
        let mut next = ErrorTally::default();
        next.add("odd request");
        next.add_all(&tally);
        assert_eq!(next.count(), 10);
        assert!(next.message().contains("odd request (2)"), "{}", next.message());
    }

    #[test]
    fn the_message_stays_within_what_an_event_takes() {
        let mut tally = ErrorTally::default();
        for number in 0..1000 {
            tally.add(&format!("{number} {}", "ä".repeat(500)));
        }
        assert_eq!((tally.count(), tally.kinds.len()), (1000, MOST_KINDS));
        assert!(tally.message().len() <= 1024, "{}", tally.message().len());
        let mut again = ErrorTally::default();
        again.add_all(&tally);
        assert_eq!(again, tally, "those beyond the kinds are counted as well");
    }
}
