//! When to make, register and drop the token in the webhook's path, so that API servers are always answered and
//! nothing else is.
//!
//! API servers call the path in the webhook configuration, which they learn with some delay. Replicas answer on the
//! tokens in the Secret, which they read with some delay too. A change of token therefore takes three stages:
//!
//! 1. the new token is stored beside the current one, and every replica accepts both;
//! 2. when every replica has had time to read it, it becomes the current one and is registered in the webhook
//!    configuration, while the former one is still accepted;
//! 3. when the registration was read back and has had time to reach every API server, the former one is dropped.
//!
//! A token is replaced whenever the certificate is. As with certificates, the decision depends only on what is in the
//! cluster and on how long this process has seen it unchanged.

use std::time::Duration;

use super::{Settings, at_least_a_moment};

/// Tells tokens apart without disclosing them.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TokenId(pub String);

/// The fingerprint of the certificate that is served.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct LeafId(pub String);

/// The tokens in the Secret. Replicas accept each of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tokens {
    /// The one that belongs into the webhook configuration.
    pub current: Option<TokenId>,
    /// The one that is registered next.
    pub next: Option<TokenId>,
    /// The one that was registered before.
    pub previous: Option<TokenId>,
    /// The certificate that was served when the newest token was made.
    pub made_for: Option<LeafId>,
}

impl Tokens {
    /// Whether there is a token and no change is under way.
    pub fn is_settled(&self) -> bool {
        self.current.is_some() && self.next.is_none() && self.previous.is_none()
    }
}

/// What API servers call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Registration {
    /// It could not be read.
    Unknown,
    /// There is no webhook configuration, so no API server calls.
    Absent,
    Held {
        /// The token in the registered path, if the path has the form of ours.
        token: Option<TokenId>,
        /// How long this process has seen the current token registered for every webhook; none if it is not.
        exact_for: Option<Duration>,
    },
}

/// Everything a decision about the path is made from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathView {
    pub tokens: Tokens,
    /// How long this process has seen these tokens in the Secret.
    pub seen_for: Duration,
    /// The certificate that is served now.
    pub leaf: Option<LeafId>,
    pub registration: Registration,
    /// The tokens that this replica accepts: those that it read last, also when the Secret has lost them.
    pub accepted: Vec<TokenId>,
}

/// The one thing to do next about the path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PathStep {
    /// Make a token and store it as the current one.
    Begin,
    /// Store the registered token as the current one. A token that was accepted beside it stays accepted as the
    /// previous one: it may have been registered a moment ago, and API servers may still use it.
    Adopt { previous: Option<TokenId> },
    /// Make a token and store it as the next one.
    Stage,
    /// Make the next token the current one, and the current one the previous.
    Promote,
    /// Write the current token into the webhook configuration.
    Register,
    /// Remove the previous token from the Secret.
    Drop,
    /// Look again after this time.
    Wait { after: Duration },
}

/// A step with the reason for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PathDecision {
    pub step: PathStep,
    pub reason: &'static str,
}

impl PathDecision {
    fn new(step: PathStep, reason: &'static str) -> Self {
        Self { step, reason }
    }

    fn wait(after: Duration, reason: &'static str) -> Self {
        Self::new(PathStep::Wait { after: at_least_a_moment(after) }, reason)
    }
}

/// What the replica that leads should do about the path.
pub fn decide_path(view: &PathView, settings: &Settings) -> PathDecision {
    let tokens = &view.tokens;
    let registered_for = match &view.registration {
        // Without a look at the configuration a new token could lock out API servers that use another one.
        Registration::Unknown => {
            return PathDecision::wait(settings.poll_busy, "the webhook configuration could not be read");
        }
        Registration::Held { token: Some(token), .. } if tokens.current.is_none() => {
            let mut beside =
                view.accepted.iter().filter(|one| *one != token && Some(*one) != tokens.next.as_ref());
            let previous = tokens.previous.clone().or_else(|| beside.next().cloned());
            let step = PathStep::Adopt { previous };
            return PathDecision::new(step, "API servers use a token that the Secret has lost");
        }
        _ if tokens.current.is_none() && view.leaf.is_none() => {
            return PathDecision::wait(settings.poll_busy, "there is no certificate yet");
        }
        _ if tokens.current.is_none() => {
            return PathDecision::new(PathStep::Begin, "the Secret holds no token");
        }
        Registration::Held { exact_for: None, .. } => {
            return PathDecision::new(PathStep::Register, "the webhook configuration names another path");
        }
        Registration::Held { exact_for: Some(seen), .. } => *seen,
        Registration::Absent => Duration::MAX,
    };
    let left_of = |seen: Duration| settings.drain.saturating_sub(seen);
    if tokens.next.is_some() {
        let left = left_of(view.seen_for);
        return if left.is_zero() {
            PathDecision::new(PathStep::Promote, "every replica accepts the new token")
        } else {
            PathDecision::wait(left.min(settings.poll_busy), "the new token is on its way to every replica")
        };
    }
    if tokens.previous.is_some() {
        let left = left_of(registered_for);
        return if left.is_zero() {
            PathDecision::new(PathStep::Drop, "every API server uses the new token")
        } else {
            PathDecision::wait(left.min(settings.poll_busy), "API servers may still use the previous token")
        };
    }
    if view.leaf.is_some() && tokens.made_for != view.leaf {
        return PathDecision::new(PathStep::Stage, "the certificate has changed since the token was made");
    }
    PathDecision::wait(settings.poll_leader, "all is well")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn settings() -> Settings {
        Settings::new(Duration::from_hours(2160), BTreeSet::new()).unwrap()
    }

    fn token(name: &str) -> TokenId {
        TokenId(name.to_owned())
    }

    fn leaf(name: &str) -> LeafId {
        LeafId(name.to_owned())
    }

    fn settled() -> Tokens {
        Tokens { current: Some(token("a")), made_for: Some(leaf("one")), ..Tokens::default() }
    }

    fn registered(name: &str, minutes: Option<u64>) -> Registration {
        Registration::Held { token: Some(token(name)), exact_for: minutes.map(Duration::from_mins) }
    }

    fn view(tokens: Tokens, seen_minutes: u64, registration: Registration) -> PathView {
        PathView {
            tokens,
            seen_for: Duration::from_mins(seen_minutes),
            leaf: Some(leaf("one")),
            registration,
            accepted: vec![token("a"), token("b")],
        }
    }

    #[test]
    fn each_situation_has_its_step() {
        let elsewhere = || Registration::Held { token: None, exact_for: None };
        let staged = || Tokens { next: Some(token("b")), ..settled() };
        let retiring = || Tokens { previous: Some(token("z")), ..settled() };
        let cases = [
            ("all is well", view(settled(), 60, registered("a", Some(60))), None),
            ("first start", view(Tokens::default(), 0, elsewhere()), Some(PathStep::Begin)),
            (
                "first start without a configuration",
                view(Tokens::default(), 0, Registration::Absent),
                Some(PathStep::Begin),
            ),
            (
                "first start without a certificate: nothing could be served yet",
                PathView { leaf: None, ..view(Tokens::default(), 0, elsewhere()) },
                None,
            ),
            (
                "the configuration cannot be read: a token in use is not replaced blindly",
                view(Tokens::default(), 0, Registration::Unknown),
                None,
            ),
            (
                "the Secret was lost: a token that was accepted beside the registered one may still be in use",
                view(Tokens::default(), 0, registered("a", None)),
                Some(PathStep::Adopt { previous: Some(token("b")) }),
            ),
            (
                "only the current token was lost",
                view(Tokens { current: None, ..staged() }, 0, registered("a", None)),
                Some(PathStep::Adopt { previous: None }),
            ),
            (
                "the path was overwritten",
                view(settled(), 60, registered("x", None)),
                Some(PathStep::Register),
            ),
            ("the path was removed", view(settled(), 60, elsewhere()), Some(PathStep::Register)),
            (
                "another certificate",
                PathView { leaf: Some(leaf("two")), ..view(settled(), 60, registered("a", Some(60))) },
                Some(PathStep::Stage),
            ),
            (
                "no certificate yet",
                PathView { leaf: None, ..view(settled(), 60, registered("a", Some(60))) },
                None,
            ),
            ("replicas have not read the new token yet", view(staged(), 9, registered("a", Some(60))), None),
            ("all have", view(staged(), 10, registered("a", Some(60))), Some(PathStep::Promote)),
            (
                "the path was overwritten while a token was staged",
                view(staged(), 10, registered("x", None)),
                Some(PathStep::Register),
            ),
            ("API servers may use the old token", view(retiring(), 60, registered("a", Some(9))), None),
            ("none does", view(retiring(), 60, registered("a", Some(10))), Some(PathStep::Drop)),
            (
                "no configuration, so no API server uses the old token",
                view(retiring(), 60, Registration::Absent),
                Some(PathStep::Drop),
            ),
        ];
        for (what, view, expected) in cases {
            let decision = decide_path(&view, &settings());
            match expected {
                Some(step) => assert_eq!(decision.step, step, "{what}: {}", decision.reason),
                None => assert!(matches!(decision.step, PathStep::Wait { .. }), "{what}: {decision:?}"),
            }
            assert!(!decision.reason.is_empty());
        }
    }

    #[test]
    fn waiting_is_never_a_tight_loop() {
        let staged = Tokens { next: Some(token("b")), ..settled() };
        let almost = Duration::from_mins(10).saturating_sub(Duration::from_nanos(1));
        let view = PathView { seen_for: almost, ..view(staged, 0, registered("a", Some(60))) };
        let PathStep::Wait { after } = decide_path(&view, &settings()).step else { panic!("not yet") };
        assert!(after >= Duration::from_millis(50), "{after:?}");
    }
}
