//! `fairlead.dev/v1alpha1`: what Fairlead itself has to remember. Written by the program, readable by everyone.

mod ledger;
mod pin;

pub use ledger::{
    CopyState, ImageLedger, ImageLedgerSpec, ImageLedgerStatus, LedgerCopy, LedgerEntry, LedgerManner,
    LedgerOwner, LedgerProof, LedgerWatch, MAX_COPIES, MAX_PROOFS, MAX_WRITTEN,
};
pub use pin::{ImagePin, ImagePinSpec, ImagePinStatus, PinnedImage, PinnedWorkload};

pub const GROUP: &str = "fairlead.dev";
