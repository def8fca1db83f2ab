//! What is said about Pods that are healed, and about those that are not: in the log, and in one event each.

use fairlead_plan::heal::evict::NotEvicted;
use fairlead_plan::heal::{
    Choice, FailingContainer, FailingPod, FailingVolume, Malformed, Note, Repair, Unpatchable,
};
use fairlead_plan::pod_record::Record;

use crate::cluster::state::PodEntry;
use crate::controller::events::{About, EventQueue, Notice};

fn notice(pod: &PodEntry, warning: bool, reason: &'static str, message: String) -> Notice {
    Notice { about: About::pod(pod), warning, reason, key: message.clone(), message }
}

/// Reports what was noticed about a Pod.
pub(super) fn note(events: &EventQueue, pod: &PodEntry, failing: &FailingPod<'_>, note: &Note) {
    match note {
        Note::Detected { containers } => {
            let named = containers.iter().filter_map(|position| failing.containers.get(*position));
            let images: Vec<_> =
                named.map(|one| format!("{}={} ({})", one.name(), one.image, one.failure)).collect();
            tracing::info!(pod = %pod.key, containers = images.join(", "), "images of a Pod cannot be pulled");
        }
        Note::LeftAlone { container, why } => {
            let Some(container) = failing.containers.get(*container) else { return };
            let why = match why {
                Unpatchable::Cause(failure) => failure.to_string(),
                Unpatchable::Ephemeral => {
                    "the image of an ephemeral container cannot be changed: add another one under a new name"
                        .to_owned()
                }
                // Whether the Pod is evicted is decided later, and then reported.
                Unpatchable::Volume => return,
            };
            let name = container.name();
            let image = &container.image;
            tracing::info!(pod = %pod.key, container = name, %image, why, "a container is left alone");
            let message = format!("container {name} is left alone, another image would not help: {why}");
            events.tell(notice(pod, true, "NotHealed", message));
        }
        Note::Malformed(Malformed { annotation, error }) => {
            tracing::warn!(pod = %pod.key, annotation, error, "an annotation cannot be read");
            let message = format!("annotation {annotation} is not used: {error}");
            events.tell(notice(pod, true, "MalformedAnnotation", message));
        }
    }
}

/// Reports a repair.
pub(super) fn healed(events: &EventQueue, pod: &PodEntry, repair: &Repair) {
    let moves: Vec<_> = repair
        .moves
        .iter()
        .map(|one| format!("{}: {} instead of {} ({})", one.container, one.to, one.from, one.why))
        .collect();
    let message = moves.join("; ");
    tracing::info!(pod = %pod.key, containers = message, "a Pod was given images that can be pulled");
    events.tell(notice(pod, false, "Healed", message));
}

/// What to say of a Pod that was admitted here and for which nothing is left to do.
pub(super) fn hopeless(
    pod: &PodEntry,
    failing: &FailingPod<'_>,
    record: Option<&Record>,
    choices: &[(usize, Choice)],
) -> Option<Notice> {
    let said: Vec<_> = choices
        .iter()
        .filter_map(|(position, choice)| {
            let container = failing.containers.get(*position)?;
            let route = failing.route(record, &container.place, container.image)?;
            match choice {
                Choice::GiveUp if route.alternatives.is_empty() && !route.is_healed() => None,
                Choice::GiveUp => Some(format!("{}: every place was tried", container.name())),
                Choice::Wait { why } => Some(format!("{}: {why}", container.name())),
                Choice::Give { .. } | Choice::GiveOriginal(_) => None,
            }
        })
        .collect();
    let message = format!("no other image can be pulled: {}", said.join("; "));
    // Answers of registries change from one look to the next; one event is enough.
    let key = String::from("no other image");
    (!said.is_empty()).then(|| Notice { key, ..notice(pod, true, "NotHealed", message) })
}

fn about_volume(container: &FailingContainer<'_>, volume: &FailingVolume<'_>) -> String {
    let FailingVolume { name, image } = volume;
    format!(
        "image volume {name} of container {} ({image}) cannot be pulled: {}",
        container.name(),
        container.failure
    )
}

pub(super) fn not_evicted(
    pod: &PodEntry,
    container: &FailingContainer<'_>,
    volume: &FailingVolume<'_>,
    why: &NotEvicted,
) -> Notice {
    let about = about_volume(container, volume);
    notice(
        pod,
        true,
        "NotHealed",
        format!("{about}. The image of a volume cannot be changed: {}", why.advice()),
    )
}

pub(super) fn evicted(
    events: &EventQueue,
    pod: &PodEntry,
    container: &FailingContainer<'_>,
    volume: &FailingVolume<'_>,
) {
    let about = about_volume(container, volume);
    tracing::info!(pod = %pod.key, about, "a Pod was evicted, so that its replacement is routed");
    events.tell(notice(
        pod,
        false,
        "Evicted",
        format!("{about}. The Pod was evicted: its replacement is routed elsewhere"),
    ));
}
