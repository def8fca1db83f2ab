//! Admission warnings: lines that API servers deliver whole.
//!
//! An API server adds the warnings of all webhooks to the headers of one response. When they are longer than 4,096
//! characters together it cuts each to 256, and drops what follows. So lines and their sum stay below, a text that is
//! too long ends after a whole word, and the answers of locations, which are what a person can act on, are shortened
//! before any of them is left out.

use std::collections::BTreeSet;

use crate::routing::{LocationAnswer, RoutingFailure, clip};

/// Bytes of one line, the prefix included.
const LONGEST_LINE: usize = 240;

/// Bytes of all lines. Other webhooks have something to say as well.
const MOST_BYTES: usize = 3072;

/// Lines about other things than unavailable images; more would only push one another out of sight.
const MOST_REMARKS: usize = 8;

/// Room kept for saying how many answers were left out.
const REMAINDER: usize = 60;

/// Says where a warning comes from.
const PREFIX: &str = "fairlead: ";

/// What the author of a Pod should know.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Warnings {
    failures: Vec<(String, RoutingFailure)>,
    remarks: BTreeSet<String>,
}

impl Warnings {
    /// Says something once.
    pub fn add(&mut self, remark: String) {
        self.remarks.insert(remark);
    }

    /// Nothing that an image may come from is available. `name` is that of the container or volume.
    pub fn unavailable(&mut self, name: &str, failure: RoutingFailure) {
        self.failures.push((name.to_owned(), failure));
    }

    /// What was said beside failures, in full: for people who read it elsewhere.
    pub fn remarks(self) -> Vec<String> {
        self.remarks.into_iter().collect()
    }

    /// The lines to send.
    pub fn lines(self) -> Vec<String> {
        let remarks = self.remarks.iter().take(MOST_REMARKS).map(|remark| line(remark));
        let remarks: Vec<String> = remarks.collect();
        let taken: usize = remarks.iter().map(String::len).sum();
        let room = MOST_BYTES.saturating_sub(taken);
        let full = written(&self.failures, |answer| &answer.full);
        let mut lines = if size(&full) <= room {
            full
        } else {
            fitted(written(&self.failures, |answer| &answer.brief), room)
        };
        lines.extend(remarks);
        lines
    }
}

/// One line, cut where it is too long.
pub fn line(text: &str) -> String {
    clip(&format!("{PREFIX}{text}"), LONGEST_LINE)
}

/// The headline of each failure and the answers of its locations, on as few lines as hold them.
fn written(failures: &[(String, RoutingFailure)], form: fn(&LocationAnswer) -> &str) -> Vec<String> {
    let mut lines = Vec::new();
    for (name, failure) in failures {
        let mut current = format!("{PREFIX}{name}: {}", failure.headline);
        let mut separator = ": ";
        for answer in &failure.answers {
            let answer = form(answer);
            if current.len() + separator.len() + answer.len() > LONGEST_LINE {
                lines.push(clip(&current, LONGEST_LINE));
                current = format!("{PREFIX}{name}: {answer}");
            } else {
                current.extend([separator, answer]);
            }
            separator = "; ";
        }
        lines.push(clip(&current, LONGEST_LINE));
    }
    lines
}

/// The first lines that fit, and how many there are more.
fn fitted(mut lines: Vec<String>, room: usize) -> Vec<String> {
    let all = lines.len();
    while size(&lines) + REMAINDER > room && lines.pop().is_some() {}
    if lines.len() < all {
        lines.push(line(&format!("{} more lines about unavailable images", all - lines.len())));
    }
    lines
}

fn size(lines: &[String]) -> usize {
    lines.iter().map(String::len).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(count: usize, reason: &str) -> RoutingFailure {
        let answer = |number: usize| {
            let brief = format!("registry-{number}.example.com/team/app:1 is unreachable");
            LocationAnswer { full: format!("{brief}: {reason}"), brief }
        };
        RoutingFailure {
            headline: format!("none of {count} is available"),
            answers: (0..count).map(answer).collect(),
        }
    }

    fn lines(failure: RoutingFailure) -> Vec<String> {
        let mut warnings = Warnings::default();
        warnings.unavailable("web", failure);
        warnings.lines()
    }

    #[test]
    fn few_answers_stand_on_one_line() {
        assert_eq!(
            lines(failure(2, "connection refused")),
            [
                "fairlead: web: none of 2 is available: registry-0.example.com/team/app:1 is unreachable: connection refused; \
              registry-1.example.com/team/app:1 is unreachable: connection refused"
            ]
        );
    }

    #[test]
    fn every_location_keeps_its_answer() {
        let reason = "the registry did not answer within 1s, and neither did its neighbours; ".repeat(4);
        let found = lines(failure(5, &reason));
        for number in 0..5 {
            let answer = format!(
                "fairlead: web: registry-{number}.example.com/team/app:1 is unreachable: the registry did"
            );
            assert!(found.iter().any(|line| line.starts_with(&answer) && line.ends_with('…')), "{found:#?}");
        }
        assert_eq!(found[0], "fairlead: web: none of 5 is available");
        for line in &found {
            assert!(line.len() <= LONGEST_LINE, "{line}");
            let last = line.trim_end_matches('…').rsplit(' ').next().unwrap();
            assert!(
                reason.contains(&format!("{last} ")) || line.ends_with("available"),
                "a whole word: {line}"
            );
        }
    }

    #[test]
    fn many_answers_are_shortened_and_all_there() {
        let found = lines(failure(40, &"long words ".repeat(20)));
        assert!(size(&found) <= MOST_BYTES);
        for number in 0..40 {
            let answer = format!("registry-{number}.example.com/team/app:1 is unreachable");
            assert!(found.iter().any(|line| line.contains(&answer)), "{answer} in {found:#?}");
        }
    }

    #[test]
    fn what_is_too_much_is_counted() {
        let mut warnings = Warnings::default();
        for number in 0..40 {
            warnings.unavailable(&format!("c{number}"), failure(64, "x"));
            warnings.add(format!("remark {number}"));
        }
        let found = warnings.lines();
        assert!(size(&found) <= MOST_BYTES, "{}", size(&found));
        assert_eq!(found.iter().filter(|line| line.contains("remark")).count(), MOST_REMARKS);
        assert!(
            found.iter().any(|line| line.ends_with(" more lines about unavailable images")),
            "{found:#?}"
        );
    }

    #[test]
    fn nothing_to_say() {
        assert!(Warnings::default().lines().is_empty());
    }
}
