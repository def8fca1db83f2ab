//! Which images are looked at in their registries, when, and what that tells.
//!
//! An image may vanish while everything runs from what nodes have pulled, unnoticed until the next node needs it. So
//! images in use are looked at now and then, at the slow pace that registries bear: one registry at a time has one look
//! under way, each at its own pace, so that one that hangs holds up no other. What a look found is kept in the ledger
//! of the object that watches the image.

mod looks;
mod mirror_looks;
mod news;
mod question;
mod report;
#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;
mod track;
mod watched;

pub use self::looks::{Looks, Pace, RegistryAnswer};
pub use self::mirror_looks::{LookAccess, MirrorLook, MirrorLooks};
pub use self::news::{News, Noted, note};
pub use self::question::{
    Looked, MOST_PRINCIPALS, Question, Wish, about_image, is_refusal, question, settles,
};
pub use self::report::{WatchReport, refused, report};
pub use self::track::{Tracked, adopt, track};
pub use self::watched::Watched;
