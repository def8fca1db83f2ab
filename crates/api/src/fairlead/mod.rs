//! `fairlead.dev/v1alpha1`: what Fairlead itself has to remember. Written by the program, readable by everyone.

mod ledger;
mod node_report;
mod pin;
mod warm_ledger;

pub use ledger::{
    CopyState, ImageLedger, ImageLedgerSpec, ImageLedgerStatus, LedgerCopy, LedgerEntry, LedgerManner,
    LedgerOwner, LedgerProof, LedgerWatch, MAX_COPIES, MAX_PROOFS, MAX_WRITTEN,
};
pub use node_report::{
    MAX_REPORT_MESSAGE, MAX_REPORTED_SOURCES, NodeMirrorReport, NodeMirrorReportSpec, NodeMirrorReportStatus,
    ReportedSource,
};
pub use pin::{ImagePin, ImagePinSpec, ImagePinStatus, PinnedImage, PinnedWorkload};
pub use warm_ledger::{
    MAX_FAILURE_MESSAGE, MAX_WARMED_NODES, WarmLedger, WarmLedgerOwner, WarmLedgerSpec, WarmLedgerStatus,
    WarmedNode,
};

pub const GROUP: &str = "fairlead.dev";
