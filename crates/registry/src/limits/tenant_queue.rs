//! The queue of requests in front of one registry, round robin between tenants.

use std::collections::VecDeque;
use std::sync::Arc;

/// The namespace of the Pod that a request is for. Requests without one share one place in the queue.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tenant(Option<Arc<str>>);

impl Tenant {
    pub fn namespace(name: &str) -> Self {
        Self(Some(name.into()))
    }

    pub fn name(&self) -> Option<&Arc<str>> {
        self.0.as_ref()
    }
}

/// One queue for each tenant, the next tenant first. A tenant that was served goes to the end.
#[derive(Debug)]
pub struct TenantQueue<W> {
    tenants: VecDeque<(Tenant, VecDeque<W>)>,
}

impl<W> Default for TenantQueue<W> {
    fn default() -> Self {
        Self { tenants: VecDeque::new() }
    }
}

impl<W> TenantQueue<W> {
    pub fn is_empty(&self) -> bool {
        self.tenants.is_empty()
    }

    pub fn push(&mut self, tenant: &Tenant, waiter: W) {
        match self.tenants.iter_mut().find(|(known, _)| known == tenant) {
            Some((_, waiting)) => waiting.push_back(waiter),
            None => self.tenants.push_back((tenant.clone(), VecDeque::from([waiter]))),
        }
    }

    /// The next tenant among those that may be served.
    pub fn next(&self, may: impl Fn(&Tenant) -> bool) -> Option<Tenant> {
        self.tenants.iter().map(|(tenant, _)| tenant).find(|tenant| may(tenant)).cloned()
    }

    /// Takes the first waiter of a tenant, which then goes to the end.
    pub fn serve(&mut self, tenant: &Tenant) -> Option<W> {
        let place = self.tenants.iter().position(|(known, _)| known == tenant)?;
        let (tenant, mut waiting) = self.tenants.remove(place)?;
        let waiter = waiting.pop_front();
        if !waiting.is_empty() {
            self.tenants.push_back((tenant, waiting));
        }
        waiter
    }

    pub fn retain(&mut self, keep: impl Fn(&W) -> bool) {
        for (_, waiting) in &mut self.tenants {
            waiting.retain(&keep);
        }
        self.tenants.retain(|(_, waiting)| !waiting.is_empty());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenant(name: &str) -> Tenant {
        Tenant::namespace(name)
    }

    #[test]
    fn tenants_take_turns() {
        let mut line = TenantQueue::default();
        for number in 0..4 {
            line.push(&tenant("crowd"), number);
        }
        line.push(&tenant("shop"), 10);
        line.push(&Tenant::default(), 20);
        line.push(&tenant("shop"), 11);
        let order: Vec<u8> = std::iter::from_fn(|| {
            let next = line.next(|_| true)?;
            line.serve(&next)
        })
        .collect();
        assert_eq!(order, [0, 10, 20, 1, 11, 2, 3]);
        assert!(line.is_empty());
    }

    #[test]
    fn a_tenant_that_may_not_be_served_keeps_its_place() {
        let mut line = TenantQueue::default();
        line.push(&tenant("full"), 0);
        line.push(&tenant("other"), 1);
        let next = line.next(|one| *one != tenant("full"));
        assert_eq!(line.serve(&next.unwrap()), Some(1));
        assert_eq!(line.next(|one| *one != tenant("full")), None);
        assert_eq!(line.next(|_| true), Some(tenant("full")));
        line.retain(|_| false);
        assert!(line.is_empty());
    }
}
