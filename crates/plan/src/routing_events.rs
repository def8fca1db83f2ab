//! Which Kubernetes events a Pod gets for what admission did to its images.
//!
//! At admission a Pod has no UID and perhaps no name, so events come later, from the record on the Pod. Every event has
//! a name that follows from what it is about: a replica that emits it a second time, after a restart or another leader,
//! finds that it exists.

use crate::pod_record::{BY_ORIGINAL, Place, Record, Route};

/// Events are for Pods that were created just now. An event lives an hour in the API server, so a Pod that is younger
/// than this cannot have lost one that it was given already.
const RECENT_SECONDS: i64 = 5 * 60;

/// What the API server takes as the text of an event.
const LONGEST_MESSAGE: usize = 1024;

/// What it takes as a name.
const LONGEST_NAME: usize = 253;

/// Each part of a message that comes from outside gets at most this much of it.
const LONGEST_PART: usize = 300;

/// What an event says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum EventKind {
    ImageRewritten,
    NoAlternativeAvailable,
}

impl EventKind {
    pub const ALL: [Self; 2] = [Self::ImageRewritten, Self::NoAlternativeAvailable];

    /// The word by which people and programs know the event.
    pub fn reason(self) -> &'static str {
        match self {
            Self::ImageRewritten => "ImageRewritten",
            Self::NoAlternativeAvailable => "NoAlternativeAvailable",
        }
    }

    /// Whether it is a warning.
    pub fn is_warning(self) -> bool {
        self == Self::NoAlternativeAvailable
    }

    fn part_of_name(self) -> &'static str {
        match self {
            Self::ImageRewritten => "rewritten",
            Self::NoAlternativeAvailable => "unavailable",
        }
    }
}

/// A Pod with a record, as the watch sees it.
#[derive(Debug, Clone)]
pub struct Pod<'a> {
    pub name: &'a str,
    pub uid: &'a str,
    pub record: &'a str,
    /// The images of its specification as they are now.
    pub images: Vec<(Place<'a>, &'a str)>,
}

/// One event to emit on the Pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The same for the same Pod, image and kind.
    pub name: String,
    pub kind: EventKind,
    /// The part of the Pod that it is about, as the kubelet writes it: `spec.containers{web}`.
    pub field: String,
    pub message: String,
}

/// Whether a Pod is young enough for events; both times in seconds since 1970. Clocks differ: one from the future is
/// young.
pub fn is_recent(created: i64, now: i64) -> bool {
    now.saturating_sub(created) < RECENT_SECONDS
}

/// The events of a Pod, in the order of its images. An entry of the record counts only while the Pod uses the image
/// that it names, since every author of a Pod may write annotations.
pub fn events(pod: &Pod<'_>) -> Vec<Event> {
    let Some(record) = Record::parse(pod.record) else {
        return Vec::new();
    };
    let mut events = Vec::new();
    for (place, image) in &pod.images {
        let Some(route) = record.images.get(&place.key()).filter(|route| route.used == *image) else {
            continue;
        };
        // What healing did is reported by healing.
        let rewritten = route.by != BY_ORIGINAL && route.is_rewritten() && !route.is_healed();
        for kind in EventKind::ALL {
            let applies = match kind {
                EventKind::ImageRewritten => rewritten,
                EventKind::NoAlternativeAvailable => route.unavailable,
            };
            if applies {
                events.push(Event {
                    name: name(pod, place, kind),
                    kind,
                    field: field(place),
                    message: message(kind, place, route),
                });
            }
        }
    }
    events
}

/// Names of Pods may be as long as names of events; then the first part gives way. The UID keeps them apart.
fn name(pod: &Pod<'_>, place: &Place<'_>, kind: EventKind) -> String {
    let what = match place {
        Place::Container(name) | Place::Init(name) | Place::Ephemeral(name) => (*name).to_owned(),
        Place::Volume(name) => format!("volume.{name}"),
    };
    let rest = format!(".{}.{what}.{}", pod.uid, kind.part_of_name());
    let room = LONGEST_NAME.saturating_sub(rest.len());
    let first = &pod.name[..pod.name.floor_char_boundary(room)];
    let first = first.trim_end_matches(|end: char| !end.is_ascii_alphanumeric());
    format!("{first}{rest}")
}

fn field(place: &Place<'_>) -> String {
    match place {
        Place::Container(name) => format!("spec.containers{{{name}}}"),
        Place::Init(name) => format!("spec.initContainers{{{name}}}"),
        Place::Ephemeral(name) => format!("spec.ephemeralContainers{{{name}}}"),
        Place::Volume(name) => format!("spec.volumes{{{name}}}"),
    }
}

fn message(kind: EventKind, place: &Place<'_>, route: &Route) -> String {
    let subject = match place {
        Place::Container(name) => format!("container {name}"),
        Place::Init(name) => format!("init container {name}"),
        Place::Ephemeral(name) => format!("ephemeral container {name}"),
        Place::Volume(name) => format!("image volume {name}"),
    };
    let asked = shortened(&route.asked, LONGEST_PART);
    let used = shortened(&route.used, LONGEST_PART);
    let text = match kind {
        EventKind::ImageRewritten => {
            let by = shortened(&route.by, LONGEST_PART);
            format!("{subject} uses {used} instead of {asked}, by {by}")
        }
        EventKind::NoAlternativeAvailable if route.is_rewritten() => {
            format!("{subject}: no place that holds {asked} answered; it uses {used} all the same")
        }
        EventKind::NoAlternativeAvailable => {
            format!("{subject}: no place that holds {asked} answered; it is left as it is")
        }
    };
    let text = if route.why.is_empty() { text } else { format!("{text}: {}", route.why) };
    shortened(&text, LONGEST_MESSAGE).into_owned()
}

/// At most `limit` bytes of a text, with a sign that there was more.
fn shortened(text: &str, limit: usize) -> std::borrow::Cow<'_, str> {
    const MORE: &str = "…";
    if text.len() <= limit {
        return text.into();
    }
    let end = text.floor_char_boundary(limit.saturating_sub(MORE.len()));
    format!("{}{MORE}", &text[..end]).into()
}

#[cfg(test)]
mod tests;
