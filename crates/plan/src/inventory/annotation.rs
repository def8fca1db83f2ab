//! The annotation that says which digests a Pod's image volumes have, where the kubelet does not say so.
//!
//! It is for readers: what the operator knows does not come from it, unless a registry confirms what it says. It is
//! written once, by admission or later, and goes when the kubelet reports the digests itself.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use fairlead_domain::backoff::Backoff;
use fairlead_domain::digest::Digest;
use fairlead_domain::reference::Reference;

/// Pauses between writes of the same annotation to one Pod: a write failed, or another client has changed it since.
const PAUSES: Backoff = Backoff::new(Duration::from_secs(30), Duration::from_hours(1));

/// What the annotation may take; a volume has a few hundred bytes. Volumes that do not fit are left out.
const MOST_BYTES: usize = 8 * 1024;

/// The annotation as it is found: name of the volume to `repository@digest`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VolumeDigests(BTreeMap<String, String>);

impl VolumeDigests {
    /// What cannot be read says nothing.
    pub fn read(text: &str) -> Self {
        let fits = text.len() <= MOST_BYTES;
        Self(fits.then(|| serde_json::from_str(text).ok()).flatten().unwrap_or_default())
    }

    /// The digest that it names for a volume, if it is one in the repository that the volume is of.
    pub fn of(&self, volume: &str, image: &Reference) -> Option<Digest> {
        let said = Reference::parse(self.0.get(volume)?).ok()?;
        said.digest().filter(|_| said.tag().is_none() && said.name() == image.name())
    }

    /// Takes up a volume, if there is room for it.
    fn insert(&mut self, volume: &str, image: String) {
        // Names and references need no escapes: two pairs of quotes, a colon and a comma.
        let length = |name: &str, image: &str| name.len() + image.len() + 6;
        let taken: usize = self.0.iter().map(|(name, image)| length(name, image)).sum();
        if taken + length(volume, &image) < MOST_BYTES {
            self.0.insert(volume.to_owned(), image);
        }
    }

    fn is_part_of(&self, whole: &Self) -> bool {
        !self.0.is_empty() && self.0.iter().all(|(volume, image)| whole.0.get(volume) == Some(image))
    }

    fn write(self) -> Option<String> {
        serde_json::to_string(&self.0).ok().filter(|text| text.len() <= MOST_BYTES)
    }
}

/// An image volume of a Pod, and what is known of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumeDigest<'a> {
    pub name: &'a str,
    /// As the specification has it.
    pub image: &'a str,
    /// The kubelet reports its digest.
    pub reported: bool,
    pub expected: Option<Digest>,
    /// A registry is still being asked.
    pub pending: bool,
}

/// What to do about the annotation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    Leave,
    Write(String),
    Remove,
}

/// Brings the annotation in line with what is known. While a registry is being asked it stays as it is, so that a Pod
/// is written to once; of an old Pod what is found out late is not added to what is there.
pub fn change(found: Option<&str>, volumes: &[VolumeDigest<'_>], is_old: bool) -> Change {
    if volumes.iter().any(|volume| volume.pending && !volume.reported) {
        return Change::Leave;
    }
    let mut wanted = VolumeDigests::default();
    for volume in volumes.iter().filter(|volume| !volume.reported) {
        if let (Some(digest), Ok(image)) = (volume.expected, Reference::parse(volume.image)) {
            wanted.insert(volume.name, format!("{}@{digest}", image.repository().as_str()));
        }
    }
    let read = found.map(VolumeDigests::read);
    match (read, wanted.0.is_empty()) {
        (None, true) => Change::Leave,
        (Some(_), true) => Change::Remove,
        (Some(found), false) if found == wanted || is_old && found.is_part_of(&wanted) => Change::Leave,
        (found, false) => match wanted.write() {
            Some(text) => Change::Write(text),
            None if found.is_some() => Change::Remove,
            None => Change::Leave,
        },
    }
}

/// The last write to each Pod. The same content is written again with back-off only.
#[derive(Debug, Clone, Default)]
pub struct WriteAttempts(HashMap<Arc<str>, Attempt>);

#[derive(Debug, Clone)]
struct Attempt {
    text: Option<String>,
    tries: u32,
    /// In seconds since 1970.
    next: i64,
}

impl WriteAttempts {
    /// When a Pod, known by its UID, may be told this, in seconds since 1970. None: now, and it counts as told.
    pub fn begin(&mut self, pod: &Arc<str>, text: Option<&str>, now: i64) -> Option<i64> {
        let before = self.0.get(pod).filter(|attempt| attempt.text.as_deref() == text);
        if let Some(attempt) = before.filter(|attempt| now < attempt.next) {
            return Some(attempt.next);
        }
        let tries = before.map_or(0, |attempt| attempt.tries);
        let pause = i64::try_from(PAUSES.plain(tries).as_secs()).unwrap_or(i64::MAX);
        let attempt = Attempt {
            text: text.map(str::to_owned),
            tries: tries.saturating_add(1),
            next: now.saturating_add(pause),
        };
        self.0.insert(Arc::clone(pod), attempt);
        None
    }

    /// Forgets Pods that are gone.
    pub fn keep(&mut self, present: &HashSet<Arc<str>>) {
        self.0.retain(|pod, _| present.contains(pod));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_is_told_again_with_growing_pauses_and_something_else_at_once() {
        let pod: Arc<str> = "u".into();
        let mut attempts = WriteAttempts::default();
        let told: Vec<_> = (0..=200).filter(|now| attempts.begin(&pod, Some("{}"), *now).is_none()).collect();
        assert_eq!(told, [0, 30, 90]);
        assert_eq!([201, 202].map(|now| attempts.begin(&pod, None, now)), [None, Some(231)]);
        assert_eq!(attempts.begin(&"another".into(), Some("{}"), 202), None);
        attempts.keep(&HashSet::new());
        assert_eq!(attempts.begin(&pod, None, 203), None);
    }
}
