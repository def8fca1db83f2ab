//! When to make, trust, swap and retire the webhook's certificates, so that no request is ever refused for them.
//!
//! API servers verify the webhook's leaf against a bundle of authorities that they learn with some delay, and replicas
//! serve a leaf that they learn with some delay too. A change of authority therefore takes three stages:
//!
//! 1. the new authority joins the bundle, while the old leaf is served;
//! 2. when the bundle was read back and has had time to reach every API server, a leaf of the new authority replaces
//!    the old one;
//! 3. when every replica has had time to serve the new leaf, the old authority leaves the bundle.
//!
//! A new leaf of the same authority needs no stages. The decision sees only what is in the cluster and how long this
//! process has seen it unchanged, so any replica can take over in the middle, and waiting never depends on clocks that
//! disagree. Validity is judged by the wall clock, so that a machine that slept does not outlive a certificate.

use std::collections::BTreeSet;
use std::time::Duration;

mod path;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;

pub use self::path::{LeafId, PathDecision, PathStep, PathView, Registration, TokenId, Tokens, decide_path};

/// A reading of the wall clock, as time since 1970.
pub type WallTime = Duration;

/// An authority lives this many times as long as a leaf, since replacing it is the longer procedure.
const AUTHORITY_LIVES: u32 = 10;

/// Shorter lives leave no room for the stages.
pub const SHORTEST_VALIDITY: Duration = Duration::from_secs(20);
/// Longer ones end after the year 9999, which certificates cannot express in time.
pub const LONGEST_VALIDITY: Duration = Duration::from_hours(10 * 365 * 24);

/// More authorities than this are never kept beside the own ones: they would be a mistake.
const MOST_KEPT: usize = 8;

/// The fingerprint of an authority's certificate.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AuthorityId(pub String);

/// The time in which a certificate is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    pub not_before: WallTime,
    pub not_after: WallTime,
}

impl Window {
    /// Replacement begins here, when a third of the life is left.
    pub fn due(&self) -> WallTime {
        self.not_before + self.not_after.saturating_sub(self.not_before) * 2 / 3
    }

    /// A certificate from the future comes from a clock that is wrong, here or there, and is replaced as well.
    fn is_due(&self, now: WallTime) -> bool {
        now >= self.due() || now < self.not_before
    }

    fn is_over(&self, now: WallTime) -> bool {
        now >= self.not_after
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Authority {
    pub id: AuthorityId,
    pub window: Window,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leaf {
    pub window: Window,
    pub names: BTreeSet<String>,
    /// The authority among those in the Secret whose signature this leaf carries.
    pub signed_by: Option<AuthorityId>,
}

/// What the Secret holds, as far as it can be read and used.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Kept {
    /// With its key.
    pub leaf: Option<Leaf>,
    /// The authority that signs leaves, with its key.
    pub issuer: Option<Authority>,
    /// The authority that will sign leaves next, with its key.
    pub staged: Option<Authority>,
    /// The authorities that API servers should trust.
    pub bundle: Vec<Authority>,
    /// The bundle holds something that is no certificate of an authority.
    pub bundle_is_damaged: bool,
    /// A person asked for a new authority and has not got one yet.
    pub rotation_requested: bool,
    /// The tokens in the webhook's path.
    pub tokens: Tokens,
}

/// What API servers have to trust.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trust {
    /// It could not be read.
    Unknown,
    /// There is no webhook configuration, so no API server calls.
    Absent,
    Held {
        /// Every authority found there.
        authorities: Vec<Authority>,
        /// How long this process has seen it equal to the bundle in the Secret; none if it differs.
        exact_for: Option<Duration>,
    },
}

/// Everything a decision is made from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct View {
    pub now: WallTime,
    pub secret: Option<Kept>,
    pub trust: Trust,
    /// How long this process has seen the leaf that is in the Secret.
    pub leaf_seen_for: Duration,
}

/// How long things live and how long they are given to spread. All follow from the validity of a leaf, so that tests
/// can run a whole life in a minute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    pub names: BTreeSet<String>,
    pub validity: Duration,
    /// Time in which a changed bundle reaches every API server. They watch it, so it takes well below a second.
    pub settle: Duration,
    /// Time in which a changed leaf reaches every replica that API servers can still reach. Replicas ask every
    /// half minute at most; one that is cut off for longer than this is on a node that the cluster has given up.
    pub drain: Duration,
    /// Time between looks while something is under way.
    pub poll_busy: Duration,
    /// Time between looks of the leader, who also mends the bundle when it is overwritten.
    pub poll_leader: Duration,
    /// Time between looks of the others.
    pub poll_calm: Duration,
    /// Certificates begin to be valid this long ago, for clocks that are behind.
    pub backdate: Duration,
}

/// Why a validity cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ValidityError {
    pub given: Duration,
}

impl std::fmt::Display for ValidityError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "a certificate validity of {}s cannot be used: choose one from {}s to {}h",
            self.given.as_secs(),
            SHORTEST_VALIDITY.as_secs(),
            LONGEST_VALIDITY.as_secs() / 3600
        )
    }
}

impl std::error::Error for ValidityError {}

impl Settings {
    pub fn new(validity: Duration, names: BTreeSet<String>) -> Result<Self, ValidityError> {
        if !(SHORTEST_VALIDITY..=LONGEST_VALIDITY).contains(&validity) {
            return Err(ValidityError { given: validity });
        }
        let at_most = |limit: Duration, part: u32| limit.min(validity / part);
        Ok(Self {
            names,
            validity,
            settle: at_most(Duration::from_secs(3), 20),
            drain: at_most(Duration::from_mins(10), 6),
            poll_busy: at_most(Duration::from_secs(5), 40),
            poll_leader: at_most(Duration::from_secs(5), 20),
            poll_calm: at_most(Duration::from_secs(30), 20),
            backdate: at_most(Duration::from_hours(1), 4),
        })
    }

    /// The window of an authority made now.
    pub fn authority_window(&self, now: WallTime) -> Window {
        Window {
            not_before: now.saturating_sub(self.backdate),
            not_after: now + self.validity * AUTHORITY_LIVES,
        }
    }

    /// The window of a leaf made now; it never outlives its issuer.
    pub fn leaf_window(&self, now: WallTime, issuer: &Window) -> Window {
        Window {
            not_before: now.saturating_sub(self.backdate).max(issuer.not_before),
            not_after: (now + self.validity).min(issuer.not_after),
        }
    }

    /// How long a replica that does not lead waits before it looks at the Secret again.
    pub fn follow(&self, secret: Option<&Kept>) -> Duration {
        let settled = secret.is_some_and(|kept| kept.tokens.is_settled());
        if settled && Stage::of(secret) == Stage::Settled { self.poll_calm } else { self.poll_busy }
    }

    /// The same for a replica whose certificate comes from elsewhere.
    pub fn follow_path(&self, tokens: &Tokens) -> Duration {
        if tokens.is_settled() { self.poll_calm } else { self.poll_busy }
    }
}

/// How far a change of authority has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// There is nothing to serve.
    Missing,
    /// A new authority is made known.
    Staged,
    /// The new leaf is served, the old authority is still trusted.
    Retiring,
    Settled,
}

impl Stage {
    pub fn of(secret: Option<&Kept>) -> Self {
        match secret {
            Some(Kept { staged: Some(_), .. }) => Self::Staged,
            Some(Kept { leaf: Some(_), issuer: Some(_), bundle, .. }) => {
                if bundle.len() > 1 {
                    Self::Retiring
                } else {
                    Self::Settled
                }
            }
            _ => Self::Missing,
        }
    }
}

/// The one thing to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Make an authority and a leaf of it, and write both.
    Begin,
    /// Make an authority, stage it, and trust it beside those in `keep`.
    Stage { keep: Vec<AuthorityId> },
    /// Write the bundle anew with exactly these authorities.
    Bundle { keep: Vec<AuthorityId> },
    /// Write the bundle into the webhook configuration.
    Trust,
    /// Make a leaf of the staged authority, which becomes the issuer.
    Swap,
    /// Make a leaf of the issuer.
    Renew,
    /// Look again after this time.
    Wait { after: Duration },
}

/// A step with the reason for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decision {
    pub step: Step,
    pub reason: &'static str,
}

impl Decision {
    const fn new(step: Step, reason: &'static str) -> Self {
        Self { step, reason }
    }
}

/// What the replica that leads should do.
pub fn decide(view: &View, settings: &Settings) -> Decision {
    let Some(kept) = &view.secret else {
        return start(view, &Kept::default(), "there is no Secret yet");
    };
    if kept.issuer.is_none() && kept.staged.is_none() {
        return start(view, kept, "the Secret holds no authority that could sign");
    }
    if let Some(decision) = mend_bundle(view, kept) {
        return decision;
    }
    if matches!(view.trust, Trust::Held { exact_for: None, .. }) {
        return Decision::new(Step::Trust, "the webhook configuration trusts something else than the bundle");
    }
    if let Some(staged) = &kept.staged {
        return finish_staged(view, kept, staged, settings);
    }
    kept.issuer.as_ref().map_or_else(
        || wait(settings.poll_busy, "there is no authority"),
        |issuer| keep_issuer(view, kept, issuer, settings),
    )
}

/// Begins anew, without taking away what may still be in use: replicas may go on serving a leaf that is no longer in
/// the Secret, and the webhook configuration tells by which authorities.
fn start(view: &View, kept: &Kept, reason: &'static str) -> Decision {
    let trusted: &[Authority] = match &view.trust {
        Trust::Held { authorities, .. } => authorities,
        Trust::Unknown | Trust::Absent => &[],
    };
    let keep = living(kept.bundle.iter().chain(trusted), view.now);
    let nothing_in_use =
        keep.is_empty() && kept.leaf.as_ref().is_none_or(|leaf| leaf.window.is_over(view.now));
    if nothing_in_use {
        Decision::new(Step::Begin, reason)
    } else {
        Decision::new(Step::Stage { keep }, reason)
    }
}

/// The bundle must hold the authorities that are in use, and nothing that cannot be read.
fn mend_bundle(view: &View, kept: &Kept) -> Option<Decision> {
    let own = || kept.issuer.iter().chain(&kept.staged);
    let lacks_own = own().any(|own| !kept.bundle.iter().any(|held| held.id == own.id));
    (lacks_own || kept.bundle_is_damaged).then(|| {
        let keep = ids(own().chain(kept.bundle.iter().filter(|held| !held.window.is_over(view.now))));
        Decision::new(Step::Bundle { keep }, "the bundle in the Secret was damaged")
    })
}

fn finish_staged(view: &View, kept: &Kept, staged: &Authority, settings: &Settings) -> Decision {
    if staged.window.is_due(view.now) {
        let keep = living(kept.bundle.iter().filter(|held| held.id != staged.id), view.now);
        return Decision::new(Step::Stage { keep }, "the staged authority has become old before it was used");
    }
    match left_to_settle(view, kept, settings) {
        None => Decision::new(Step::Swap, "every API server trusts the new authority"),
        Some(left) => {
            wait(left.min(settings.poll_busy), "the new authority is on its way to every API server")
        }
    }
}

fn keep_issuer(view: &View, kept: &Kept, issuer: &Authority, settings: &Settings) -> Decision {
    let others = kept.bundle.iter().filter(|held| held.id != issuer.id);
    let alone = others.clone().next().is_none();
    let stage = |reason| Decision::new(Step::Stage { keep: living(kept.bundle.iter(), view.now) }, reason);
    if issuer.window.is_due(view.now) {
        return stage("two thirds of the authority's life are over");
    }
    // One change at a time: a second request waits until the first is through.
    if kept.rotation_requested && alone {
        return stage("a rotation was asked for");
    }
    if let Some(reason) = why_renew(view, kept, issuer, settings) {
        // A leaf of the same authority is trusted wherever the present one is.
        let same_authority =
            kept.leaf.as_ref().is_some_and(|leaf| leaf.signed_by.as_ref() == Some(&issuer.id));
        return match left_to_settle(view, kept, settings) {
            Some(left) if !same_authority => {
                wait(left.min(settings.poll_busy), "the authority is on its way to every API server")
            }
            _ => Decision::new(Step::Renew, reason),
        };
    }
    if !alone {
        let all_over = others.clone().all(|other| other.window.is_over(view.now));
        let left = settings.drain.saturating_sub(view.leaf_seen_for);
        return if all_over || left.is_zero() {
            Decision::new(
                Step::Bundle { keep: vec![issuer.id.clone()] },
                "no replica serves a leaf of the old authority",
            )
        } else {
            wait(left.min(settings.poll_busy), "replicas may still serve a leaf of the old authority")
        };
    }
    let next_due = kept.leaf.iter().map(|leaf| leaf.window.due()).chain([issuer.window.due()]).min();
    let until_due = next_due.unwrap_or_default().saturating_sub(view.now);
    wait(until_due.min(settings.poll_leader), "all is well")
}

fn why_renew(view: &View, kept: &Kept, issuer: &Authority, settings: &Settings) -> Option<&'static str> {
    let Some(leaf) = &kept.leaf else {
        return Some("the Secret holds no usable leaf");
    };
    let length = leaf.window.not_after.saturating_sub(leaf.window.not_before);
    if leaf.signed_by.as_ref() != Some(&issuer.id) {
        Some("the leaf is not of the authority in use")
    } else if leaf.names != settings.names {
        Some("the names of the webhook have changed")
    } else if leaf.window.is_due(view.now) {
        Some("two thirds of the leaf's life are over")
    } else if length > (settings.validity + settings.backdate) * 5 / 4 {
        Some("the leaf lives longer than the validity that is set")
    } else {
        None
    }
}

/// How long the bundle still needs to reach every API server; none if it has, or if waiting would not help.
fn left_to_settle(view: &View, kept: &Kept, settings: &Settings) -> Option<Duration> {
    let broken_anyway = kept.leaf.as_ref().is_some_and(|leaf| leaf.window.is_over(view.now));
    let left = match &view.trust {
        _ if broken_anyway => Duration::ZERO,
        Trust::Absent => Duration::ZERO,
        Trust::Held { exact_for: Some(seen), .. } => settings.settle.saturating_sub(*seen),
        Trust::Held { exact_for: None, .. } | Trust::Unknown => settings.settle,
    };
    (!left.is_zero()).then_some(left)
}

fn wait(after: Duration, reason: &'static str) -> Decision {
    Decision::new(Step::Wait { after: at_least_a_moment(after) }, reason)
}

/// Never in a tight loop, however the clock and the limits fall.
fn at_least_a_moment(after: Duration) -> Duration {
    after.max(Duration::from_millis(50))
}

fn living<'a>(authorities: impl Iterator<Item = &'a Authority>, now: WallTime) -> Vec<AuthorityId> {
    let mut keep = ids(authorities.filter(|authority| !authority.window.is_over(now)));
    keep.truncate(MOST_KEPT);
    keep
}

/// Each once, in the order of their first mention.
fn ids<'a>(authorities: impl Iterator<Item = &'a Authority>) -> Vec<AuthorityId> {
    let mut seen = BTreeSet::new();
    authorities.map(|authority| authority.id.clone()).filter(|id| seen.insert(id.clone())).collect()
}
