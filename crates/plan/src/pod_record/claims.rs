//! What the annotations of an incoming Pod claim about where its images come from.
//!
//! A Pod may come by this way a second time: the webhook is called again after others have changed the Pod, a backup is
//! restored, a Pod that kuik rewrote is copied. Its image is then the alternative that was chosen, and only the
//! annotation knows what was asked for. The claim alone proves nothing; [`crate::admission`] believes it if the
//! policies, asked about the claimed original, offer the image that the Pod names.

use std::collections::BTreeMap;

use super::{BY_ORIGINAL, MOST_BYTES, Place, PodAnnotations, Record};

/// The images that a Pod asked for, as its annotations record them; each is read only if it is there.
#[derive(Debug, Default)]
pub struct RecordedOriginals {
    routes: Option<Record>,
    originals: BTreeMap<String, String>,
}

impl RecordedOriginals {
    pub fn read(found: &PodAnnotations<'_>) -> Self {
        Self {
            routes: found.routes.and_then(Record::parse),
            originals: found.originals.and_then(read_map).unwrap_or_default(),
        }
    }

    /// What is claimed to have been asked for in place of the image that the Pod names, if it is something else.
    pub fn asked(&self, place: &Place<'_>, image: &str) -> Option<&str> {
        let ours = self.routes.as_ref().and_then(|record| record.images.get(&place.key()));
        let asked = match ours {
            // A record about another image says nothing about this one.
            Some(route) if route.used != image => return None,
            Some(route) => (route.by != BY_ORIGINAL || route.is_pinned_original()).then_some(&route.asked)?,
            None => self.originals.get(&place.kuik_key())?,
        };
        (asked != image).then_some(asked.as_str())
    }
}

/// A JSON object of texts, of a plausible size.
pub(super) fn read_map(text: &str) -> Option<BTreeMap<String, String>> {
    (text.len() <= MOST_BYTES).then(|| serde_json::from_str(text).ok())?
}
