//! What the operator writes about mirrors, by the API server's own audit log.

use fairlead_testkit::audit::AuditEvent;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Writes {
    pub(crate) ledgers: usize,
    pub(crate) statuses: usize,
    /// Finalizers.
    pub(crate) objects: usize,
    pub(crate) events: usize,
}

impl Writes {
    /// Those that are bounded: of ledgers and statuses.
    pub(crate) fn of_progress(self) -> usize {
        self.ledgers + self.statuses
    }

    pub(crate) fn less(self, earlier: Self) -> Self {
        Self {
            ledgers: self.ledgers.saturating_sub(earlier.ledgers),
            statuses: self.statuses.saturating_sub(earlier.statuses),
            objects: self.objects.saturating_sub(earlier.objects),
            events: self.events.saturating_sub(earlier.events),
        }
    }
}

/// Requests of one user that write, whether they succeeded or not: a conflict costs the API server as much.
pub(crate) fn count(events: &[AuditEvent], user: &str) -> Writes {
    let mut writes = Writes::default();
    let writing = ["create", "update", "patch", "delete", "deletecollection"];
    for event in events.iter().filter(|event| event.user == user && writing.contains(&event.verb.as_str())) {
        let of = match (event.resource.as_str(), event.subresource.as_str()) {
            ("imageledgers", _) => &mut writes.ledgers,
            ("clusterimagesetmirrors", "status") => &mut writes.statuses,
            ("clusterimagesetmirrors", _) => &mut writes.objects,
            ("events", _) => &mut writes.events,
            _ => continue,
        };
        *of += 1;
    }
    writes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_writes_of_the_operator_count() {
        let event = |user: &str, verb: &str, resource: &str, subresource: &str| AuditEvent {
            stage: "ResponseComplete".into(),
            user: user.into(),
            user_agent: String::new(),
            verb: verb.into(),
            api_group: String::new(),
            resource: resource.into(),
            subresource: subresource.into(),
            namespace: String::new(),
            name: String::new(),
            uri: String::new(),
            code: 200,
            ..AuditEvent::default()
        };
        let events = [
            event("us", "create", "imageledgers", ""),
            event("us", "patch", "clusterimagesetmirrors", "status"),
            event("us", "patch", "clusterimagesetmirrors", ""),
            event("us", "list", "imageledgers", ""),
            event("them", "update", "imageledgers", ""),
            event("us", "patch", "leases", ""),
        ];
        let found = count(&events, "us");
        assert_eq!(found, Writes { ledgers: 1, statuses: 1, objects: 1, events: 0 });
        assert_eq!(found.less(Writes { ledgers: 1, ..Writes::default() }).of_progress(), 1);
    }
}
