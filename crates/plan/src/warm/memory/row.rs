//! What is known of one node, and how it is stored.

use std::sync::Arc;

use fairlead_api::fairlead::{WarmLedgerSpec, WarmedNode};
use fairlead_domain::digest::Digest;
use jiff::Timestamp;

use super::Memory;

/// What is known of one node. There are as many as nodes times images, so what rows have in common is shared, and what
/// few of them have is apart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// The node's name.
    pub name: Arc<str>,
    /// Number of the last pull that ended.
    pub attempt: u32,
    /// What was pulled, or tried.
    pub reference: Arc<str>,
    pub digest: Option<Arc<Digest>>,
    /// When the node got this reference.
    pub pulled_at: Option<Timestamp>,
    /// Why it did not get it the last time.
    pub failed: Option<Box<Failed>>,
    /// The node's list of images lacks this one, and pulling it again did not change that.
    pub unlisted: bool,
}

/// Pulls of one node that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failed {
    /// Since the last pull that did not fail.
    pub times: u32,
    /// The last of them.
    pub at: Option<Timestamp>,
    pub reason: Option<Arc<str>>,
    pub message: Option<Arc<str>>,
}

impl Row {
    /// Pulls that failed since the last one that did not.
    pub fn failures(&self) -> u32 {
        self.failed.as_ref().map_or(0, |failed| failed.times)
    }

    /// When the last of them failed.
    pub fn failed_at(&self) -> Option<Timestamp> {
        self.failed.as_ref()?.at
    }

    /// As a piece has it whose rows have this reference and this digest unless they say otherwise.
    pub(super) fn write(&self, uid: &str, reference: &str, digest: Option<&Digest>) -> WarmedNode {
        let own = self.digest.as_deref().filter(|own| Some(*own) != digest);
        let failed = self.failed.as_deref();
        WarmedNode {
            uid: uid.to_owned(),
            name: self.name.to_string(),
            attempt: self.attempt,
            reference: (*self.reference != *reference).then(|| self.reference.to_string()),
            digest: own.map(ToString::to_string),
            pulled_at: self.pulled_at.map(Into::into),
            failures: self.failures(),
            failed_at: self.failed_at().map(Into::into),
            reason: failed.and_then(|failed| failed.reason.as_deref()).map(str::to_owned),
            message: failed.and_then(|failed| failed.message.as_deref()).map(str::to_owned),
            unlisted: self.unlisted,
        }
    }
}

impl Memory {
    pub(super) fn read(&mut self, ledger: &WarmLedgerSpec, node: &WarmedNode) -> Row {
        let pulled_at = node.pulled_at.as_ref().map(|time| time.0);
        let digest = node.digest.as_ref().or(ledger.digest.as_ref().filter(|_| pulled_at.is_some()));
        let digest = digest.and_then(|text| text.parse().ok());
        let failed = (node.failures > 0).then(|| Failed {
            times: node.failures,
            at: node.failed_at.as_ref().map(|time| time.0),
            reason: node.reason.as_deref().map(Into::into),
            message: node.message.as_deref().map(Into::into),
        });
        Row {
            name: node.name.as_str().into(),
            attempt: node.attempt,
            reference: self.share(node.reference.as_deref().unwrap_or(&ledger.reference)),
            digest: digest.map(|digest| self.share_digest(digest)),
            pulled_at,
            failed: failed.map(Box::new),
            unlisted: node.unlisted,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_takes_little_memory() {
        // Of 5,000 nodes and 20 images there are a hundred thousand.
        assert!(size_of::<Row>() <= 80, "{}", size_of::<Row>());
    }
}
