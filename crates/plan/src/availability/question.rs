//! One look at one image: on whose behalf, with which logins, and what their answers come to.

use std::collections::BTreeMap;

use fairlead_domain::cause::Cause;
use fairlead_domain::reference::Reference;
use fairlead_domain::verdict::Verdict;

use super::mirror_looks::{LookAccess, MirrorLooks};
use crate::credentials::Principal;
use crate::routing::SecretName;
use crate::usage::Holder;

/// Principals on whose behalf one image is looked at in one go; the others have their turn at the next looks.
pub const MOST_PRINCIPALS: usize = 8;

/// What is to be looked at, and on whose behalf.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Question {
    pub image: Reference,
    /// Cluster-scoped objects first.
    pub wishes: Vec<Wish>,
    /// Earlier looks that could not try everything.
    pub round: u32,
    /// Others have their turn at the next look.
    pub partial: bool,
}

/// What one principal may look with. No other principal learns the answers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wish {
    pub principal: Principal,
    /// Tried before the Pods' own.
    pub secret: Option<SecretName>,
    pub holders: Vec<Holder>,
    pub cause: Cause,
    /// Whether a mirror wants to know.
    pub for_mirror: bool,
}

/// What a verdict says about the image. That a registry does not answer counts against the image only if the registry
/// was asked, or is known to be down.
pub fn about_image(verdict: Verdict, was_asked: bool) -> Verdict {
    match verdict {
        Verdict::Unreachable { .. } if !was_asked => Verdict::Unknown { reason: verdict.reason().into() },
        verdict => verdict,
    }
}

/// Who is to look at an image, and how. `watchers` are the users of the image as each object sees them that watches it,
/// `cause` is on whose account these look.
pub fn question<'a>(
    image: &Reference,
    cause: Cause,
    watchers: impl IntoIterator<Item = &'a [Holder]>,
    mirrors: &MirrorLooks,
    round: u32,
) -> Question {
    let mut wishes: BTreeMap<Principal, Wish> = BTreeMap::new();
    for holders in watchers {
        join(&mut wishes, &Principal::Cluster, cause, holders);
    }
    for look in mirrors.of(image) {
        let LookAccess { principal, secret, cause } = &*look.access;
        let wish = join(&mut wishes, principal, *cause, &look.holders);
        wish.secret = wish.secret.take().or_else(|| secret.clone());
        wish.for_mirror = true;
    }
    let mut wishes: Vec<Wish> = wishes.into_values().collect();
    for wish in &mut wishes {
        wish.holders.sort();
        wish.holders.dedup_by(|one, other| {
            (&one.namespace, &one.pull_secrets) == (&other.namespace, &other.pull_secrets)
        });
    }
    // Cluster-scoped objects come first and are never left out.
    let first = wishes.iter().take_while(|wish| wish.principal == Principal::Cluster).count();
    let partial = wishes.len() > MOST_PRINCIPALS;
    if partial && let Some(others) = wishes.get_mut(first..) {
        let start = usize::try_from(round).unwrap_or_default().wrapping_mul(MOST_PRINCIPALS - 1);
        others.rotate_left(start % others.len());
        wishes.truncate(MOST_PRINCIPALS);
    }
    Question { image: image.clone(), wishes, round, partial }
}

/// The wish of a principal with one more reason for it.
fn join<'w>(
    wishes: &'w mut BTreeMap<Principal, Wish>,
    principal: &Principal,
    cause: Cause,
    holders: &[Holder],
) -> &'w mut Wish {
    let wish = wishes.entry(principal.clone()).or_insert_with(|| Wish {
        principal: principal.clone(),
        secret: None,
        holders: Vec::new(),
        cause,
        for_mirror: false,
    });
    wish.holders.extend_from_slice(holders);
    // One reason that an administrator answers for is enough.
    wish.cause = wish.cause.min(cause);
    wish
}

/// What a look found, on behalf of one principal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Looked {
    pub verdict: Verdict,
    /// Of a Secret that might have opened the registry, had it been usable.
    pub secret_problem: Option<String>,
    /// Every principal was told that the image is there: no login is left that might be told otherwise.
    pub complete: bool,
}

impl Looked {
    pub fn new(verdict: Verdict, secret_problem: Option<String>) -> Self {
        let complete = matches!(verdict, Verdict::Available { .. });
        Self { verdict, secret_problem, complete }
    }

    /// What the answers to logins come to, in the order in which these were tried; `None` without any. Registries hide
    /// what they have from those who may not see it, so an image is missing only if no login gets to see it. A login
    /// that gets this answer needs no other Secret to know it.
    pub fn sum_up(answers: Vec<Verdict>, secret_problem: Option<String>) -> Option<Self> {
        let is_missing = |verdict: &Verdict| matches!(verdict, Verdict::NotFound { .. });
        let missing = answers.iter().rposition(is_missing);
        let at = answers.iter().position(settles).or(missing).unwrap_or_default();
        let verdict = answers.into_iter().nth(at)?;
        Some(Self::new(verdict, secret_problem.filter(|_| missing.is_none())))
    }
}

/// Whether no other login has to be tried after this answer.
pub fn settles(verdict: &Verdict) -> bool {
    !is_refusal(verdict) && !matches!(verdict, Verdict::NotFound { .. })
}

/// Whether a registry did not accept a login, which may have been replaced since it was read.
pub fn is_refusal(verdict: &Verdict) -> bool {
    matches!(verdict, Verdict::Unauthorised { .. } | Verdict::Forbidden { .. })
}
