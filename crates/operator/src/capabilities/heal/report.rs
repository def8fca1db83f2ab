//! What is said about Pods that are healed, and about those that are not: in the log, and in one event each.

use fairlead_api::names::fairlead::ROUTES;
use fairlead_api::names::reef::{PATCHED, PATCHED_CONTAINERS};
use fairlead_plan::heal::evict::NotEvicted;
use fairlead_plan::heal::{
    Choice, FailingContainer, FailingPod, FailingVolume, Malformed, Note, Repair, Unpatchable, Written,
};
use fairlead_plan::pod_record::Record;
use jiff::{SignedDuration, Timestamp};

use crate::cluster::state::{PodEntry, Pods};
use crate::controller::events::{About, EventQueue, Notice};
use crate::platform::api_error::Failure;

/// Repairs that are older are no news any more.
const NEWS: SignedDuration = SignedDuration::from_mins(10);

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
    events.tell(healed_at(pod, &repair.at, message));
}

/// The time in `harbor-reef/patched` makes it the same event, whichever leader reports it.
fn healed_at(pod: &PodEntry, at: &str, message: String) -> Notice {
    Notice { key: at.to_owned(), ..notice(pod, false, "Healed", message) }
}

/// Repairs of the last minutes in the scope of healing, to be reported again, from what is written on Pods: events are
/// sent more slowly than Pods are patched, and the leader that made the repairs may have ended before it could. What
/// was reported already is the same event.
pub(super) fn recalled(pods: &Pods, is_in_scope: impl Fn(&PodEntry) -> bool, now: Timestamp) -> Vec<Notice> {
    let is_recent = |pod: &PodEntry| {
        let at = pod.annotation(PATCHED).and_then(|at| at.parse::<Timestamp>().ok());
        at.is_some_and(|at| now.duration_since(at).abs() < NEWS)
    };
    let mut repairs = Vec::new();
    for pod in pods.select(|pod| is_in_scope(pod) && is_recent(pod)) {
        let text = |key| pod.annotation(key).map(|text| &**text);
        let written = Written {
            routes: text(ROUTES),
            patched_containers: text(PATCHED_CONTAINERS),
            ..Written::default()
        };
        let (record, patched) = (written.record(), written.patched_containers());
        let given: Vec<_> = (pod.containers.iter())
            .filter(|one| patched.iter().any(|name| *name == *one.name))
            .map(|one| match record.as_ref().and_then(|record| record.images.get(&one.place().key())) {
                Some(route) => format!("{}: {} ({})", one.name, one.image, route.why),
                None => format!("{}: {}", one.name, one.image),
            })
            .collect();
        if let Some(at) = text(PATCHED).filter(|_| !given.is_empty()) {
            repairs.push(healed_at(&pod, at, given.join("; ")));
        }
    }
    repairs
}

/// The API server does not take a repair.
pub(super) fn refused(pod: &PodEntry, repair: &Repair, failure: &Failure) -> Notice {
    let moves: Vec<_> = repair.moves.iter().map(|one| format!("{}: {}", one.container, one.to)).collect();
    let message =
        format!("the API server refuses to give the Pod {}; it is tried again: {failure}", moves.join("; "));
    Notice { key: format!("refused {}", failure.class.name()), ..notice(pod, true, "NotHealed", message) }
}

/// What to say of a Pod for which nothing can be done, now or at all. A Pod of which no policy and no annotation speaks
/// is not ours to comment on.
pub(super) fn hopeless(
    pod: &PodEntry,
    failing: &FailingPod<'_>,
    record: Option<&Record>,
    choices: &[(usize, Choice)],
) -> Option<Notice> {
    let (mut said, mut kinds) = (Vec::new(), Vec::new());
    for (position, choice) in choices {
        let Some(container) = failing.containers.get(*position) else { continue };
        let route = failing.route(record, &container.place, container.image);
        let route = route.filter(|route| !route.alternatives.is_empty() || route.is_healed());
        let (kind, why) = match choice {
            Choice::GiveUp { .. } if route.is_some() => ("tried", "every place was tried"),
            Choice::GiveUp { patched: true, .. } => (
                "patched",
                "it was given another image already, which a Pod that was not admitted here is once",
            ),
            Choice::Wait { why, .. } => ("waits", why.as_str()),
            Choice::GiveUp { .. } | Choice::Give { .. } | Choice::GiveOriginal(_) => continue,
        };
        said.push(format!("{}: {why}", container.name()));
        kinds.push(format!("{} {kind}", container.name()));
    }
    let message = format!("no other image can be pulled: {}", said.join("; "));
    // Answers of registries change from one look to the next; one event is enough for each kind of news.
    (!said.is_empty()).then(|| Notice { key: kinds.join("; "), ..notice(pod, true, "NotHealed", message) })
}

/// What cannot be pulled, and why no patch can change that.
fn about(container: &FailingContainer<'_>) -> (String, &'static str) {
    let (name, failure) = (container.name(), container.failure);
    match &container.volume {
        Some(FailingVolume { name: volume, image }) => (
            format!("image volume {volume} of container {name} ({image}) cannot be pulled: {failure}"),
            "The image of a volume cannot be changed",
        ),
        None => (
            format!("the image of container {name} ({}) cannot be pulled: {failure}", container.image),
            "Other places need pull secrets that the Pod lacks and cannot be given",
        ),
    }
}

pub(super) fn not_evicted(pod: &PodEntry, container: &FailingContainer<'_>, why: &NotEvicted) -> Notice {
    let (about, reason) = about(container);
    let message = format!("{about}. {reason}: {}", why.advice());
    Notice {
        key: format!("not evicted {} {}", container.name(), why.advice()),
        ..notice(pod, true, "NotHealed", message)
    }
}

pub(super) fn evicted(events: &EventQueue, pod: &PodEntry, container: &FailingContainer<'_>) {
    let (about, reason) = about(container);
    tracing::info!(pod = %pod.key, about, "a Pod was evicted, so that its replacement is routed");
    let message = format!("{about}. {reason}, so the Pod was evicted: its replacement is routed elsewhere");
    events.tell(notice(pod, false, "Evicted", message));
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::capabilities::heal::observe::view;
    use crate::cluster::state::{Key, PodListing};

    #[test]
    fn recent_repairs_within_the_scope_are_reported_again() {
        let pods = Pods::default();
        let mut listing = PodListing::new(pods.clone());
        let now = Timestamp::from_second(1_800_000_000).expect("a time");
        for (namespace, name, age) in [("shop", "new", 60), ("shop", "old", 600), ("other", "new", 60)] {
            let at = (now - SignedDuration::from_secs(age)).to_string();
            let annotations = json!({PATCHED: at, PATCHED_CONTAINERS: r#"["app"]"#});
            let pod = json!({
                "metadata": {"namespace": namespace, "name": name, "uid": name, "annotations": annotations},
                "spec": {"containers": [{"name": "app", "image": "b.io/app:1"}]},
            });
            listing.applied(&serde_json::from_str(&pod.to_string()).expect("a Pod"));
        }
        let told = |repairs: Vec<Notice>| -> Vec<String> {
            let place =
                |one: Notice| format!("{}/{}", one.about.namespace.unwrap_or_default(), one.about.name);
            let mut told: Vec<_> = repairs.into_iter().map(place).collect();
            told.sort();
            told
        };
        let shop = |pod: &PodEntry| &*pod.key.namespace == "shop";
        assert_eq!(told(recalled(&pods, shop, now)), ["shop/new"]);
        assert_eq!(told(recalled(&pods, |_| true, now)), ["other/new", "shop/new"]);
    }

    #[test]
    fn the_same_news_has_one_key_however_it_is_put() {
        let pods = Pods::default();
        let waiting = json!({"waiting": {"reason": "ErrImagePull", "message": "\"a.io/app:1\": not found"}});
        let pod = json!({
            "metadata": {"namespace": "shop", "name": "web", "uid": "u"},
            "spec": {"containers": [{"name": "app", "image": "a.io/app:1"}]},
            "status": {"containerStatuses": [{"name": "app", "image": "a.io/app:1", "state": waiting}]},
        });
        PodListing::new(pods.clone()).applied(&serde_json::from_value(pod).expect("a Pod"));
        let pod = pods.get(&Key { namespace: "shop".into(), name: "web".into() }).expect("it is known");
        let failing = view(&pod);
        let told = |choice| hopeless(&pod, &failing, None, &[(0, choice)]);
        let waits = |why: &str| told(Choice::Wait { why: why.to_owned(), locked: 0 }).expect("it is told");
        let (one, other) = (waits("no answer within 1.2s"), waits("no answer within 1.3s"));
        assert_eq!(one.key, other.key);
        assert_ne!(one.message, other.message);
        let patched = told(Choice::GiveUp { locked: 0, patched: true }).expect("it is told");
        assert_ne!(patched.key, one.key, "that is other news");
        assert_eq!(told(Choice::GiveUp { locked: 0, patched: false }), None, "no policy speaks of the Pod");
    }
}
