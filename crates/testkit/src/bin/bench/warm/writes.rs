//! Pods that were created and written, by the API server's own audit log.

use std::collections::HashMap;

use fairlead_testkit::audit::AuditEvent;
use fairlead_testkit::cluster::KWOK_USER;

use super::load::Load;
use super::witness::Book;

/// Of the names of pull Pods.
const PREFIX: &str = "pull-";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Writes {
    /// Requests that write Pods or something under them, whether they succeeded or not: a conflict costs the API
    /// server as much.
    pub(crate) all: usize,
    pub(crate) refused: usize,
    /// How often each Pod was created.
    created: HashMap<String, usize>,
}

/// Writes of pull Pods in a namespace, other than those that stand for what kubelets write.
pub(crate) fn count(events: &[AuditEvent], namespace: &str) -> Writes {
    let mut writes = Writes::default();
    let writing = ["create", "update", "patch", "delete", "deletecollection"];
    let events = events.iter().filter(|event| {
        event.resource == "pods"
            && event.namespace == namespace
            && (event.name.starts_with(PREFIX) || event.verb == "deletecollection")
            && writing.contains(&event.verb.as_str())
            && event.user != KWOK_USER
    });
    for event in events {
        writes.all += 1;
        writes.refused += usize::from(event.code >= 400);
        if event.verb == "create" && event.subresource.is_empty() && event.code == 201 {
            *writes.created.entry(event.name.clone()).or_default() += 1;
        }
    }
    writes
}

/// How Pods differ from one for each node and image.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Deviation {
    /// Pods beyond the first.
    pub(crate) further: usize,
    /// Pairs of a node and an image without a Pod.
    pub(crate) without: usize,
    /// Pods that the watch did not see.
    pub(crate) unseen: usize,
}

impl Deviation {
    pub(crate) fn of(writes: &Writes, book: &Book, load: &Load) -> Self {
        let mut pulls: HashMap<(&str, &str), usize> = HashMap::new();
        for (name, (node, images)) in &book.pods {
            // The log does not tell of success where the operator was killed before it could hear of it.
            let times = writes.created.get(name).copied().unwrap_or(1);
            for image in images {
                *pulls.entry((node, image)).or_default() += times;
            }
        }
        let is_unseen = |(name, _): &(&String, &usize)| !book.pods.contains_key(*name);
        let unseen = writes.created.iter().filter(is_unseen).map(|(_, times)| times).sum();
        let further = pulls.values().map(|times| times - 1).sum();
        Self { further, without: load.pulls().saturating_sub(pulls.len()), unseen }
    }

    pub(crate) fn total(self) -> usize {
        self.further + self.without + self.unseen
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn event(user: &str, verb: &str, name: &str, code: u16) -> AuditEvent {
        AuditEvent {
            stage: "ResponseComplete".into(),
            user: user.into(),
            user_agent: String::new(),
            verb: verb.into(),
            api_group: String::new(),
            resource: "pods".into(),
            subresource: String::new(),
            namespace: "home".into(),
            name: format!("{PREFIX}{name}"),
            uri: String::new(),
            code,
            ..AuditEvent::default()
        }
    }

    #[test]
    fn writes_of_kubelets_do_not_count_and_second_pods_are_found() {
        let elsewhere = AuditEvent { namespace: "other".into(), ..event("us", "create", "a", 201) };
        let status = AuditEvent { subresource: "status".into(), ..event("us", "patch", "a", 200) };
        let events = [
            event("us", "create", "a", 201),
            event("us", "create", "a", 409),
            status,
            event(KWOK_USER, "patch", "a", 200),
            event("us", "delete", "a", 200),
            event("us", "watch", "", 200),
            AuditEvent { name: "other".into(), ..event("us", "create", "", 201) },
            event("us", "create", "b", 201),
            event("us", "create", "c", 201),
            event("us", "create", "d", 201),
            elsewhere,
        ];
        let writes = count(&events, "home");
        assert_eq!((writes.all, writes.refused), (7, 1));
        let pod = |name: &str, node: &str, images: &[&str]| {
            let images = images.iter().map(|image| (*image).to_owned()).collect();
            (format!("{PREFIX}{name}"), (node.to_owned(), images))
        };
        let pods = [pod("a", "n1", &["x", "y"]), pod("b", "n2", &["x"]), pod("c", "n2", &["x"])];
        let book = Book { pods: pods.into(), ..Book::default() };
        let load = Load { nodes: 2, images: 2, pull: Duration::ZERO, batch: false };
        let found = Deviation::of(&writes, &book, &load);
        assert_eq!(found, Deviation { further: 1, without: 1, unseen: 1 });
        assert_eq!(found.total(), 3);
    }
}
