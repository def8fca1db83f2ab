//! From what registries said to the reference that a container gets.

use std::sync::Arc;

use fairlead_domain::verdict::Verdict;

use super::alternatives::{Alternative, Alternatives, UNTOUCHED};
use super::text::{clipped, list};

/// Bytes of a reference and of an answer in a sentence.
const REFERENCE_LIMIT: usize = 90;
const ANSWER_LIMIT: usize = 70;

/// What to do with an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// A verdict is missing that could change the choice.
    Wait,
    /// Take this entry of the list; it may be the original itself.
    Use { index: usize, why: String },
    /// Leave the image as it was written.
    Keep { why: String },
}

/// Nothing that was asked can be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RoutingFailure {
    pub headline: String,
    pub answers: Vec<LocationAnswer>,
}

/// What one location answered, in two lengths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LocationAnswer {
    /// The reference and the kind of answer.
    pub brief: String,
    /// The same with the registry's own words.
    pub full: String,
}

/// What a verdict means in its place. Nodes may hold credentials that we do not, so an original that asks for some,
/// where none of ours matched, is unknown rather than unavailable. So is an original at an address that is off limits:
/// a node may well reach it.
pub fn judge(
    is_original: bool,
    verdict: Verdict,
    had_credentials: bool,
    trust_node_credentials: bool,
) -> Verdict {
    match verdict {
        Verdict::Unauthorised { reason } if trust_node_credentials && !had_credentials && is_original => {
            let reason = format!("{reason}; no credential of ours matches, nodes may hold one");
            Verdict::Unknown { reason: Arc::from(reason) }
        }
        Verdict::OffLimits { reason } if is_original => Verdict::Unknown { reason },
        verdict => verdict,
    }
}

impl Alternatives {
    /// The first in order that is usable, as soon as everything before it is known not to be. Verdicts stand in the
    /// order of the list and are judged already.
    pub fn decide(&self, verdicts: &[Option<Verdict>]) -> Decision {
        if !self.needs_probe() {
            return Decision::Keep { why: self.why_untouched() };
        }
        let mut failed = Vec::new();
        for (index, alternative) in self.list.iter().enumerate() {
            match verdicts.get(index) {
                Some(Some(verdict)) if verdict.is_usable() => {
                    return Decision::Use { index, why: self.why_used(&failed, verdict) };
                }
                Some(Some(verdict)) => failed.push((alternative, verdict)),
                _ => return Decision::Wait,
            }
        }
        let mut why = self.headline(failed.len()) + ": ";
        list(&mut why, failed.iter().map(failure), 0);
        match self.discarded_by {
            Some(_) => Decision::Use { index: 0, why },
            None => Decision::Keep { why },
        }
    }

    /// What nothing usable among so many places means, without their answers.
    fn headline(&self, count: usize) -> String {
        let mut text = String::new();
        if let Some(policy) = &self.discarded_by {
            text.extend([&*clipped(policy, REFERENCE_LIMIT), " discards the original and "]);
        }
        match count {
            1 => text.push_str("the only alternative is not available"),
            count => text.extend(["none of ", &count.to_string(), " is available"]),
        }
        text
    }

    /// What every place answered, in order, where none is usable.
    pub fn failure(&self, verdicts: &[Option<Verdict>]) -> RoutingFailure {
        let answered = self.list.iter().zip(verdicts).filter_map(|(place, verdict)| {
            let verdict = verdict.as_ref()?;
            Some(LocationAnswer {
                brief: format!("{} is {}", place.reference, verdict.kind()),
                full: format!("{} is {verdict}", place.reference),
            })
        });
        RoutingFailure { headline: self.headline(self.list.len()), answers: answered.collect() }
    }

    fn why_untouched(&self) -> String {
        match (&self.discarded_by, self.list.as_slice()) {
            (Some(policy), []) => format!(
                "{} discards the original and no alternative is left",
                clipped(policy, REFERENCE_LIMIT)
            ),
            _ if !self.routed => UNTOUCHED.to_owned(),
            _ => match &self.unproven {
                Some(told) => told.clone(),
                None => "no policy offers an alternative".to_owned(),
            },
        }
    }

    fn why_used(&self, failed: &[(&Alternative, &Verdict)], verdict: &Verdict) -> String {
        let of = self.list.len();
        let good = match verdict {
            Verdict::Unknown { reason } => format!("usable ({})", clipped(reason, ANSWER_LIMIT)),
            _ => "available".to_owned(),
        };
        if failed.is_empty() {
            return match (of, &self.discarded_by) {
                (1, Some(policy)) => {
                    format!("{} discards the original; {good}", clipped(policy, REFERENCE_LIMIT))
                }
                _ => format!("{good}, first of {of}"),
            };
        }
        let end = format!("; first {good} of {of}");
        let mut why = String::new();
        list(&mut why, failed.iter().map(failure), end.len());
        why.push_str(&end);
        why
    }
}

/// `docker.io/library/nginx:1 is not-found: …`
fn failure((alternative, verdict): &(&Alternative, &Verdict)) -> String {
    format!("{} is {}", clipped(&alternative.reference, REFERENCE_LIMIT), clipped(verdict, ANSWER_LIMIT))
}
