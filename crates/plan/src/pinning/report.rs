//! Whether the Pods of a revision run what is pinned, and when a pin is of no more use.

use fairlead_api::conditions::{Finding, reasons, types};
use fairlead_api::fairlead::ImagePinSpec;
use fairlead_domain::reference::Reference;

use super::{needs_digest, pin_key, revision_names};

/// A pin is older than this before it goes: its first Pod may not be stored yet.
pub const GRACE_SECONDS: i64 = 10 * 60;

/// Pods that a message names.
const MOST_NAMED: usize = 3;

/// A Pod of the revision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodImages<'a> {
    pub name: &'a str,
    pub images: Vec<PodImage<'a>>,
}

/// One image of a Pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PodImage<'a> {
    pub asked: &'a str,
    /// As the specification has it now.
    pub used: &'a str,
    pub pull_policy: Option<&'a str>,
}

/// Whether every Pod of the revision runs what is pinned. A runtime pulls nothing else for a reference with a digest,
/// so what the specification says counts.
pub fn report(pin: &ImagePinSpec, pods: &[PodImages<'_>]) -> Finding {
    let mut differing: Vec<&str> = pods
        .iter()
        .filter(|pod| pod.images.iter().any(|image| differs(pin, image)))
        .map(|pod| pod.name)
        .collect();
    if differing.is_empty() {
        let message = match (pin.images.len(), pods.len()) {
            (images, 0) => format!("{} pinned; the revision has no Pod", counted(images, "image")),
            (images, pods) => {
                let run = if pods == 1 { "runs" } else { "run" };
                format!("{} pinned; {} {run} what is pinned", counted(images, "image"), counted(pods, "Pod"))
            }
        };
        return Finding::new(types::READY, true, reasons::READY, message);
    }
    differing.sort_unstable();
    let named = differing.iter().take(MOST_NAMED).copied().collect::<Vec<_>>().join(", ");
    let more = differing.len().saturating_sub(MOST_NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let message = format!(
        "{} of {} were admitted without the pinned digests: {named}{more}; delete them to have them replaced",
        differing.len(),
        counted(pods.len(), "Pod"),
    );
    Finding::new(types::READY, false, reasons::DEGRADED, message)
}

/// Whether an image is one that is pinned, and is not held to that digest. Admission leaves an image that is never
/// pulled as it is, although another container may have it pinned.
fn differs(pin: &ImagePinSpec, image: &PodImage<'_>) -> bool {
    let asked = Reference::parse(image.asked).ok();
    let Some(asked) = asked.filter(|asked| needs_digest(asked, image.pull_policy)) else { return false };
    let key = pin_key(&asked);
    let Some(pinned) = pin.images.iter().find(|image| image.asked == key.as_str()) else { return false };
    let runs = Reference::parse(image.used).ok().and_then(|used| used.digest());
    runs.is_none_or(|digest| digest.to_string() != pinned.digest)
}

fn counted(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

/// What becomes of a pin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// It is used, or its owner's deletion will take it along.
    Stays,
    /// It goes if there is no `ControllerRevision` of these names.
    GoesWithout([String; 2]),
    /// Its owner was deleted and left it behind.
    Goes,
}

/// Whether a pin can go. Both times in seconds since 1970; `pods` is how many Pods the revision has, and `is_owned`
/// whether an object owns the pin.
pub fn fate(pin: &ImagePinSpec, is_owned: bool, created: i64, pods: usize, grace: i64, now: i64) -> Fate {
    let young = now.saturating_sub(created) < grace;
    match revision_names(&pin.workload, &pin.revision) {
        _ if pods > 0 || young => Fate::Stays,
        _ if !is_owned => Fate::Goes,
        Some(names) => Fate::GoesWithout(names),
        None => Fate::Stays,
    }
}
