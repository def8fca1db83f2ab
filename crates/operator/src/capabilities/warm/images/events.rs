//! Events about images, summed up: pulls on a thousand nodes make a few events, not thousands.

use std::collections::BTreeMap;
use std::sync::Arc;

use fairlead_api::drop;
use fairlead_plan::warm::{Event, EventKind};
use jiff::{SignedDuration, Timestamp};

use crate::controller::events::{About, EventQueue, Notice};

/// One event sums up what happens to an image within this time.
const SPAN: SignedDuration = SignedDuration::from_secs(5);
/// Nodes that an event names.
const MOST_NODES: usize = 10;
/// Seconds after which an event with the same nodes and the same text is created again.
const REPEAT: i64 = 600;

/// Image, reason, and what failures have in common: their messages have ports and numbers of requests.
type Topic = (Arc<str>, &'static str, String);

#[derive(Debug, Default)]
pub(super) struct News {
    topics: BTreeMap<Topic, Story>,
    since: Option<Timestamp>,
}

#[derive(Debug)]
struct Story {
    /// Of the image.
    name: Arc<str>,
    nodes: Vec<Arc<str>>,
    /// What the first of them says.
    text: String,
}

impl News {
    pub(super) fn add(&mut self, event: Event) {
        let Event { image, name, node, kind } = event;
        let (reason, common, text) = match kind {
            EventKind::Started => ("PullStarted", String::new(), String::new()),
            EventKind::Succeeded { .. } => ("PullSucceeded", String::new(), String::new()),
            EventKind::Failed(failure) => {
                let cause = failure.message.split(": ").next().unwrap_or_default();
                let text = format!("{}: {}", failure.reason, failure.message);
                ("PullFailed", format!("{}: {cause}", failure.reason), text)
            }
        };
        let story = self.topics.entry((image, reason, common));
        story.or_insert_with(|| Story { name, nodes: Vec::new(), text }).nodes.push(node);
    }

    /// When there is something to tell.
    pub(super) fn next(&self) -> Option<Timestamp> {
        self.since.and_then(|since| since.checked_add(SPAN).ok())
    }

    /// Tells what has waited long enough.
    pub(super) fn tell(&mut self, queue: &EventQueue, now: Timestamp) {
        if self.topics.is_empty() {
            return;
        }
        let since = *self.since.get_or_insert(now);
        if now.duration_since(since) < SPAN {
            return;
        }
        self.since = None;
        for (topic, story) in std::mem::take(&mut self.topics) {
            queue.tell(notice(topic, story, now));
        }
    }
}

fn notice((uid, reason, common): Topic, story: Story, now: Timestamp) -> Notice {
    let Story { name, mut nodes, text } = story;
    nodes.sort_unstable();
    let (count, named) = (nodes.len(), nodes.iter().take(MOST_NODES));
    let list = named.map(|node| &**node).collect::<Vec<_>>().join(", ");
    let list = match count.checked_sub(MOST_NODES) {
        None | Some(0) => list,
        Some(more) => format!("{list} and {more} more"),
    };
    let what = match reason {
        "PullStarted" => "pulling onto",
        "PullSucceeded" => "pulled onto",
        _ => "could not be pulled onto",
    };
    let separator = if text.is_empty() { "" } else { ": " };
    Notice {
        about: About {
            api_version: drop::API_VERSION.to_owned(),
            kind: "CachedImage".to_owned(),
            namespace: None,
            name: name.to_string(),
            uid: uid.to_string(),
        },
        warning: reason == "PullFailed",
        reason,
        message: format!("{what} {list}{separator}{text}"),
        key: format!("{list} {common} {}", now.as_second() / REPEAT),
    }
}

#[cfg(test)]
mod tests {
    use fairlead_plan::warm::pod_state::Failure;

    use super::*;

    #[test]
    fn many_nodes_make_one_event() {
        let now = Timestamp::from_second(1_800_000_000).expect("a time");
        let mut news = News::default();
        for number in 10..32 {
            let message = format!("no connection: read tcp 10.0.0.1:{number}: reset by peer");
            let kind = EventKind::Failed(Failure::new("ErrImagePull", message));
            let (image, name, node) = ("u".into(), "web".into(), format!("n{number}").into());
            news.add(Event { image, name, node, kind });
        }
        assert_eq!(news.topics.len(), 1);
        let (topic, story) = news.topics.pop_first().expect("a topic");
        let notice = notice(topic, story, now);
        assert_eq!(
            notice.message,
            "could not be pulled onto n10, n11, n12, n13, n14, n15, n16, n17, n18, n19 and 12 more: ErrImagePull: \
             no connection: read tcp 10.0.0.1:10: reset by peer"
        );
        assert!(notice.warning);
    }
}
