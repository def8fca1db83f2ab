//! The limiter that every request to one registry passes.
//!
//! It keeps the rate, the number of connections and the registry's quota for all callers together. Admission is served
//! first and has connections of its own, so that no Pod waits for a long copy. Tenants take turns, and one tenant does
//! not get all connections, so that no namespace waits for another.

use std::collections::HashMap;
use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use fairlead_domain::keyring::CredentialId;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::quota::Hold;
use super::rate::{Class, Rate, TokenBucket};
use super::tenant_queue::{Tenant, TenantQueue};

/// Most accounts whose quota is remembered; beyond it those that end first are forgotten.
const MOST_ACCOUNTS: usize = 1024;

/// Rate and connections of one registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// `None` is unlimited.
    pub rate: Option<Rate>,
    pub connections: NonZeroU32,
}

impl Budget {
    /// Connections that background work may use; the others are reserved for admission.
    pub fn for_background(&self) -> u32 {
        let connections = self.connections.get();
        // A single connection cannot be reserved; admission is only served first then.
        if connections == 1 { 1 } else { connections - (connections / 4).max(1) }
    }

    /// Connections that one tenant may use; the others are for tenants that have none.
    pub fn for_one_tenant(&self) -> u32 {
        let connections = self.connections.get();
        connections - connections / 4
    }
}

/// The account whose quota a request uses. Registries count by account, or by address without one.
pub type Account = Option<CredentialId>;

/// Why a request may not be sent now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The quota of the account is used up, until `ends` where the registry said so. The hold may end earlier.
    Held { ends: Option<Instant> },
    /// The caller's deadline came first.
    TooLate,
}

/// Permission to send one request and to keep its connection until this is dropped.
pub struct Permit {
    /// `None` once the limiter itself has taken the permit back.
    limiter: Option<Arc<Limiter>>,
    tenant: Tenant,
}

pub struct Limiter {
    state: Mutex<LimiterState>,
}

struct LimiterState {
    bucket: Option<TokenBucket>,
    connections: u32,
    for_background: u32,
    for_one_tenant: u32,
    in_use: u32,
    /// Connections in use by tenants.
    held: HashMap<Arc<str>, u32>,
    waiting: [TenantQueue<Waiter>; 2],
    timer_set: bool,
    accounts: HashMap<Account, AccountQuota>,
}

struct Waiter {
    turn: oneshot::Sender<Permit>,
}

/// The quota of one account, as the registry stated it.
#[derive(Clone, Copy)]
struct AccountQuota {
    /// No request is sent before this.
    everyone: Instant,
    /// No background request is sent before this.
    background: Instant,
    /// When the quota is available again, as the registry stated it.
    ends: Option<Instant>,
    /// Refusals in a row, including this one.
    refusals: u32,
}

/// A hold on an account for one class of callers.
#[derive(Clone, Copy)]
struct QuotaHold {
    until: Instant,
    ends: Option<Instant>,
}

impl AccountQuota {
    fn until(&self, class: Class) -> Instant {
        match class {
            Class::Admission => self.everyone,
            Class::Background => self.everyone.max(self.background),
        }
    }

    fn hold(&self, class: Class, now: Instant) -> Option<QuotaHold> {
        let until = self.until(class);
        // A hold for background work alone keeps the rest of a quota for others; its end is our own choice.
        let ends = if self.everyone > now { self.ends } else { Some(until) };
        (until > now).then_some(QuotaHold { until, ends })
    }
}

impl Limiter {
    pub fn new(budget: Budget, now: Instant) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(LimiterState {
                bucket: budget.rate.map(|rate| TokenBucket::new(rate, now)),
                connections: budget.connections.get(),
                for_background: budget.for_background(),
                for_one_tenant: budget.for_one_tenant(),
                in_use: 0,
                held: HashMap::new(),
                waiting: [TenantQueue::default(), TenantQueue::default()],
                timer_set: false,
                accounts: HashMap::new(),
            }),
        })
    }

    /// Waits for a turn. Background work also waits for a quota, within its deadline and `patience`; admission is
    /// refused at once, because it has alternatives.
    pub async fn enter(
        self: &Arc<Self>,
        class: Class,
        tenant: &Tenant,
        account: Account,
        deadline: Instant,
        patience: Option<Duration>,
    ) -> Result<Permit, Refused> {
        loop {
            while let Some(QuotaHold { until, ends }) = self.hold(class, account) {
                let pause = until.saturating_duration_since(Instant::now());
                let waits = class == Class::Background
                    && until < deadline
                    && patience.is_none_or(|patience| pause <= patience);
                if !waits {
                    return Err(Refused::Held { ends });
                }
                sleep_until(until).await;
            }
            let permit = self.turn(class, tenant, deadline).await?;
            // The registry may have refused others meanwhile.
            if self.hold(class, account).is_none() {
                return Ok(permit);
            }
            permit.unused();
        }
    }

    /// Waits in the queue, regardless of quotas.
    pub async fn turn(
        self: &Arc<Self>,
        class: Class,
        tenant: &Tenant,
        deadline: Instant,
    ) -> Result<Permit, Refused> {
        let turn = {
            let mut state = self.lock();
            let now = Instant::now();
            if state.is_first(class) && state.may_use(tenant) && state.admit(class, tenant, now).is_ok() {
                return Ok(Permit { limiter: Some(Arc::clone(self)), tenant: tenant.clone() });
            }
            let (turn, coming) = oneshot::channel();
            state.queue(class).push(tenant, Waiter { turn });
            self.dispatch(&mut state, now);
            coming
        };
        if let Ok(Ok(permit)) = timeout_at(deadline, turn).await {
            return Ok(permit);
        }
        // Callers that gave up are removed, or the queue would grow while nothing moves.
        self.lock().queue(class).retain(|waiter| !waiter.turn.is_closed());
        Err(Refused::TooLate)
    }

    /// Until when the registry refuses requests of an account, as it said itself.
    pub fn held_until(&self, account: Account, now: Instant) -> Option<Instant> {
        self.lock().accounts.get(&account).map(|quota| quota.everyone).filter(|until| *until > now)
    }

    fn hold(&self, class: Class, account: Account) -> Option<QuotaHold> {
        self.lock().accounts.get(&account)?.hold(class, Instant::now())
    }

    /// Records what an answer says about an account's quota, given the number of refusals in a row before it. `None`:
    /// it says nothing.
    pub fn learn(&self, account: Account, taught: impl FnOnce(u32) -> Option<Hold>) {
        let mut state = self.lock();
        let now = Instant::now();
        let former = state.accounts.get(&account).copied();
        // No request is sent during a hold, so this answer was under way when the refusal came. It does not end the
        // hold, and if it is a refusal itself, it counts as the same one.
        let in_force = former.filter(|quota| quota.everyone > now);
        let refusals = match (former, in_force) {
            (_, Some(quota)) => quota.refusals.saturating_sub(1),
            (Some(quota), None) => quota.refusals,
            (None, None) => 0,
        };
        let taught = taught(refusals);
        let Some(hold) = taught.filter(|hold| *hold != Hold::default()) else {
            // Blobs, tokens and challenges are not counted, so most answers say nothing. The hold on background work
            // then stays.
            let is_over = |quota: AccountQuota| taught.is_some() || quota.background <= now;
            if in_force.is_none() && former.is_some_and(is_over) {
                state.accounts.remove(&account);
            }
            return;
        };
        let after = |pause: Option<Duration>| pause.map_or(now, |pause| now + pause);
        let mut quota = AccountQuota {
            everyone: after(hold.everyone),
            background: after(hold.background),
            ends: hold.ends.map(|rest| now + rest),
            refusals: if hold.everyone.is_some() { refusals.saturating_add(1) } else { 0 },
        };
        if let Some(longer) = in_force.filter(|former| former.everyone >= quota.everyone) {
            quota = AccountQuota { background: quota.background, ..longer };
        }
        state.forget_if_full(now);
        state.accounts.insert(account, quota);
    }

    fn lock(&self) -> MutexGuard<'_, LimiterState> {
        self.state.lock()
    }

    /// Serves the queue, and sets a timer if only the rate holds the first request back.
    fn dispatch(self: &Arc<Self>, state: &mut LimiterState, now: Instant) {
        for class in [Class::Admission, Class::Background] {
            while let Some(tenant) = state.next(class) {
                match state.admit(class, &tenant, now) {
                    Ok(()) => {}
                    Err(Obstacle::Connections) => break,
                    Err(Obstacle::TokenBucket(ready)) => {
                        self.set_timer(state, ready);
                        break;
                    }
                }
                let Some(waiter) = state.queue(class).serve(&tenant) else {
                    break;
                };
                let permit = Permit { limiter: Some(Arc::clone(self)), tenant };
                if let Err(mut unclaimed) = waiter.turn.send(permit) {
                    // The caller is gone. Its permit must not be dropped normally, because the lock is held.
                    unclaimed.limiter = None;
                    state.withdraw(&unclaimed.tenant);
                }
            }
            if !state.queue(class).is_empty() {
                break;
            }
        }
    }

    fn set_timer(self: &Arc<Self>, state: &mut LimiterState, ready: Instant) {
        if std::mem::replace(&mut state.timer_set, true) {
            return;
        }
        let limiter = Arc::clone(self);
        tokio::spawn(async move {
            sleep_until(ready).await;
            let mut state = limiter.lock();
            state.timer_set = false;
            limiter.dispatch(&mut state, Instant::now());
        });
    }

    fn release(self: &Arc<Self>, tenant: &Tenant) {
        let mut state = self.lock();
        state.give_back(tenant);
        if !state.waiting.iter().all(TenantQueue::is_empty) {
            self.dispatch(&mut state, Instant::now());
        }
    }
}

enum Obstacle {
    Connections,
    TokenBucket(Instant),
}

impl LimiterState {
    fn queue(&mut self, class: Class) -> &mut TenantQueue<Waiter> {
        let [admission, background] = &mut self.waiting;
        match class {
            Class::Admission => admission,
            Class::Background => background,
        }
    }

    fn is_first(&self, class: Class) -> bool {
        let [admission, background] = &self.waiting;
        admission.is_empty() && (class == Class::Admission || background.is_empty())
    }

    /// Whether a tenant may use one more connection.
    fn may_use(&self, tenant: &Tenant) -> bool {
        let held = tenant.name().and_then(|name| self.held.get(name)).copied().unwrap_or_default();
        held == 0 || self.in_use < self.for_one_tenant
    }

    /// The next tenant.
    fn next(&self, class: Class) -> Option<Tenant> {
        let [admission, background] = &self.waiting;
        let line = match class {
            Class::Admission => admission,
            Class::Background => background,
        };
        line.next(|tenant| self.may_use(tenant))
    }

    fn admit(&mut self, class: Class, tenant: &Tenant, now: Instant) -> Result<(), Obstacle> {
        let usable = match class {
            Class::Admission => self.connections,
            Class::Background => self.for_background,
        };
        if self.in_use >= usable {
            return Err(Obstacle::Connections);
        }
        if let Some(bucket) = &mut self.bucket {
            bucket.take(class, now).map_err(Obstacle::TokenBucket)?;
        }
        self.in_use += 1;
        if let Some(name) = tenant.name() {
            *self.held.entry(Arc::clone(name)).or_default() += 1;
        }
        Ok(())
    }

    fn give_back(&mut self, tenant: &Tenant) {
        self.in_use = self.in_use.saturating_sub(1);
        if let Some(name) = tenant.name()
            && let Some(held) = self.held.get_mut(name)
        {
            *held = held.saturating_sub(1);
            if *held == 0 {
                self.held.remove(name);
            }
        }
    }

    fn withdraw(&mut self, tenant: &Tenant) {
        self.give_back(tenant);
        if let Some(bucket) = &mut self.bucket {
            bucket.give_back();
        }
    }

    fn forget_if_full(&mut self, now: Instant) {
        if self.accounts.len() < MOST_ACCOUNTS {
            return;
        }
        self.accounts.retain(|_, quota| quota.until(Class::Background) > now);
        while self.accounts.len() >= MOST_ACCOUNTS {
            let first = self.accounts.iter().min_by_key(|(_, quota)| quota.until(Class::Background));
            let Some(account) = first.map(|(account, _)| *account) else {
                return;
            };
            self.accounts.remove(&account);
        }
    }
}

impl Permit {
    /// Returns the permit together with its request in the rate.
    fn unused(self) {
        if let Some(limiter) = &self.limiter
            && let Some(bucket) = &mut limiter.lock().bucket
        {
            bucket.give_back();
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(limiter) = self.limiter.take() {
            limiter.release(&self.tenant);
        }
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").finish_non_exhaustive()
    }
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
