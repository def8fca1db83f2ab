//! The door through which every request to one registry goes.
//!
//! It keeps the budget, the number of open connections and what the registry said about its quota, for all callers
//! together. Admission stands first in line and has connections of its own, so a long copy never keeps a Pod waiting.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    num::NonZeroU32,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use fairlead_domain::keyring::CredentialId;
use tokio::{
    sync::oneshot,
    time::{Instant, sleep_until, timeout_at},
};

use super::{
    pace::{Class, Pace, Rate},
    quota::Hold,
};

/// Most accounts whose quota is remembered; beyond it the ones that ended first are forgotten.
const MOST_ACCOUNTS: usize = 1024;

/// What one registry may be asked, and by how many at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// `None` leaves the pace to the registry.
    pub rate: Option<Rate>,
    pub connections: NonZeroU32,
}

impl Budget {
    /// Connections that background work may use; the others are admission's.
    pub fn for_background(&self) -> u32 {
        let connections = self.connections.get();
        // A single connection cannot be shared out; admission is then first in line and no more.
        if connections == 1 { 1 } else { connections - (connections / 4).max(1) }
    }
}

/// Whose quota a request uses: registries count by account, or by address where there is none.
pub type Account = Option<CredentialId>;

/// Why a request may not be sent now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The registry said that this account's quota is used up until then.
    Held { until: Instant },
    /// The turn would come after the caller's deadline.
    TooLate,
}

/// The right to send one request and to keep its connection until this is dropped.
pub struct Permit {
    /// Empty once the gate itself has taken the permit back.
    gate: Option<Arc<Gate>>,
}

pub struct Gate {
    state: Mutex<State>,
}

struct State {
    pace: Option<Pace>,
    connections: u32,
    for_background: u32,
    in_use: u32,
    waiting: [VecDeque<Waiter>; 2],
    timer_set: bool,
    accounts: HashMap<Account, Told>,
}

struct Waiter {
    turn: oneshot::Sender<Permit>,
}

/// What the registry told about one account.
#[derive(Clone, Copy)]
struct Told {
    everyone: Instant,
    background: Instant,
    refusals: u32,
}

impl Told {
    fn until(&self, class: Class) -> Instant {
        match class {
            Class::Admission => self.everyone,
            Class::Background => self.everyone.max(self.background),
        }
    }
}

impl Gate {
    pub fn new(budget: Budget, now: Instant) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State {
                pace: budget.rate.map(|rate| Pace::new(rate, now)),
                connections: budget.connections.get(),
                for_background: budget.for_background(),
                in_use: 0,
                waiting: [VecDeque::new(), VecDeque::new()],
                timer_set: false,
                accounts: HashMap::new(),
            }),
        })
    }

    /// Waits for a turn. Background work also waits for a quota to return if that happens in time; admission is told at
    /// once, since it has alternatives to look at.
    pub async fn enter(
        self: &Arc<Self>,
        class: Class,
        account: Account,
        deadline: Instant,
    ) -> Result<Permit, Refused> {
        while let Some(until) = self.held_until(class, account) {
            if class == Class::Admission || until >= deadline {
                return Err(Refused::Held { until });
            }
            sleep_until(until).await;
        }
        let turn = {
            let mut state = self.lock();
            let now = Instant::now();
            if state.nobody_before(class) && state.admit(class, now).is_ok() {
                return Ok(Permit { gate: Some(Arc::clone(self)) });
            }
            let (turn, coming) = oneshot::channel();
            state.queue(class).push_back(Waiter { turn });
            self.dispatch(&mut state, now);
            coming
        };
        if let Ok(Ok(permit)) = timeout_at(deadline, turn).await {
            return Ok(permit);
        }
        // Those who gave up leave the line, or it would grow for as long as nothing moves.
        self.lock().queue(class).retain(|waiter| !waiter.turn.is_closed());
        Err(Refused::TooLate)
    }

    /// When the hold on an account ends, if there is one.
    pub fn held_until(&self, class: Class, account: Account) -> Option<Instant> {
        let until = self.lock().accounts.get(&account)?.until(class);
        (until > Instant::now()).then_some(until)
    }

    /// How many refusals in a row the registry gave this account.
    pub fn refusals(&self, account: Account) -> u32 {
        self.lock().accounts.get(&account).map_or(0, |told| told.refusals)
    }

    /// Takes note of what an answer taught about an account's quota.
    pub fn learn(&self, account: Account, hold: Hold) {
        let mut state = self.lock();
        let now = Instant::now();
        if hold == Hold::default() {
            // The usual case, on every answer: nothing was ever told, nothing is to be told.
            if state.accounts.is_empty() {
                return;
            }
            // An answer that was let through ends a row of refusals, but not a hold somebody else was given meanwhile.
            if state.accounts.get(&account).is_some_and(|told| told.everyone <= now) {
                state.accounts.remove(&account);
            }
            return;
        }
        state.forget_if_full(now);
        let refusals = state.accounts.get(&account).map_or(0, |told| told.refusals);
        let after = |hold: Option<Duration>| hold.map_or(now, |hold| now + hold);
        state.accounts.insert(
            account,
            Told {
                everyone: after(hold.everyone),
                background: after(hold.background),
                refusals: if hold.everyone.is_some() { refusals.saturating_add(1) } else { 0 },
            },
        );
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is consistent between any two statements that could panic, so a poisoned lock is still good.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives turns to those in line, and sets a timer when only time keeps the first one back.
    fn dispatch(self: &Arc<Self>, state: &mut State, now: Instant) {
        for class in [Class::Admission, Class::Background] {
            while !state.queue(class).is_empty() {
                match state.admit(class, now) {
                    Ok(()) => {}
                    Err(Obstacle::Connections) => break,
                    Err(Obstacle::Pace(ready)) => {
                        self.set_timer(state, ready);
                        break;
                    }
                }
                let Some(waiter) = state.queue(class).pop_front() else {
                    break;
                };
                let permit = Permit { gate: Some(Arc::clone(self)) };
                if let Err(mut unclaimed) = waiter.turn.send(permit) {
                    // The caller is gone. Its permit must not come back here through `Drop`: the lock is held.
                    unclaimed.gate = None;
                    state.withdraw();
                }
            }
            if !state.queue(class).is_empty() {
                break;
            }
        }
    }

    fn set_timer(self: &Arc<Self>, state: &mut State, ready: Instant) {
        if std::mem::replace(&mut state.timer_set, true) {
            return;
        }
        let gate = Arc::clone(self);
        tokio::spawn(async move {
            sleep_until(ready).await;
            let mut state = gate.lock();
            state.timer_set = false;
            gate.dispatch(&mut state, Instant::now());
        });
    }

    fn release(self: &Arc<Self>) {
        let mut state = self.lock();
        state.in_use = state.in_use.saturating_sub(1);
        if !state.waiting.iter().all(VecDeque::is_empty) {
            self.dispatch(&mut state, Instant::now());
        }
    }
}

enum Obstacle {
    Connections,
    Pace(Instant),
}

impl State {
    fn queue(&mut self, class: Class) -> &mut VecDeque<Waiter> {
        let [admission, background] = &mut self.waiting;
        match class {
            Class::Admission => admission,
            Class::Background => background,
        }
    }

    fn nobody_before(&self, class: Class) -> bool {
        let [admission, background] = &self.waiting;
        admission.is_empty() && (class == Class::Admission || background.is_empty())
    }

    fn admit(&mut self, class: Class, now: Instant) -> Result<(), Obstacle> {
        let usable = match class {
            Class::Admission => self.connections,
            Class::Background => self.for_background,
        };
        if self.in_use >= usable {
            return Err(Obstacle::Connections);
        }
        if let Some(pace) = &mut self.pace {
            pace.take(class, now).map_err(Obstacle::Pace)?;
        }
        self.in_use += 1;
        Ok(())
    }

    fn withdraw(&mut self) {
        self.in_use = self.in_use.saturating_sub(1);
        if let Some(pace) = &mut self.pace {
            pace.give_back();
        }
    }

    fn forget_if_full(&mut self, now: Instant) {
        if self.accounts.len() < MOST_ACCOUNTS {
            return;
        }
        self.accounts.retain(|_, told| told.until(Class::Background) > now);
        while self.accounts.len() >= MOST_ACCOUNTS {
            let first = self.accounts.iter().min_by_key(|(_, told)| told.until(Class::Background));
            let Some(account) = first.map(|(account, _)| *account) else {
                return;
            };
            self.accounts.remove(&account);
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(gate) = self.gate.take() {
            gate.release();
        }
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Permit").finish_non_exhaustive()
    }
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANYONE: Account = None;

    fn gate(per_second: Option<u32>, burst: u32, connections: u32) -> Arc<Gate> {
        let number = |value| NonZeroU32::new(value).unwrap();
        let rate = per_second.map(|rate| Rate::per_second(f64::from(rate), number(burst)));
        Gate::new(Budget { rate, connections: number(connections) }, Instant::now())
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(1)
    }

    fn hold(everyone: Option<u64>, background: Option<u64>) -> Hold {
        Hold { everyone: everyone.map(Duration::from_secs), background: background.map(Duration::from_secs) }
    }

    fn account(number: u32) -> CredentialId {
        crate::tests::credential(&format!("user-{number}")).id()
    }

    async fn settle() {
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn requests_are_spread_over_time() {
        let gate = gate(Some(10), 2, 8);
        let start = Instant::now();
        for _ in 0..12 {
            gate.enter(Class::Admission, ANYONE, start + Duration::from_mins(1)).await.unwrap();
        }
        assert_eq!((Instant::now() - start).as_millis() / 100, 10, "two at once, then one every 100 ms");
    }

    #[tokio::test(start_paused = true)]
    async fn admission_overtakes_what_was_waiting() {
        let gate = gate(Some(1), 1, 8);
        gate.enter(Class::Admission, ANYONE, soon()).await.unwrap();
        let (order, mut seen) = tokio::sync::mpsc::unbounded_channel();
        for (name, class) in
            [("copy", Class::Background), ("watch", Class::Background), ("pod", Class::Admission)]
        {
            let (gate, order) = (Arc::clone(&gate), order.clone());
            tokio::spawn(async move {
                gate.enter(class, ANYONE, Instant::now() + Duration::from_mins(1)).await.unwrap();
                order.send(name).unwrap();
            });
            settle().await;
        }
        drop(order);
        let mut names = Vec::new();
        while let Some(name) = seen.recv().await {
            names.push(name);
        }
        assert_eq!(names, ["pod", "copy", "watch"]);
    }

    #[tokio::test(start_paused = true)]
    async fn copies_leave_connections_to_admission() {
        let gate = gate(None, 1, 4);
        let mut held = Vec::new();
        for _ in 0..3 {
            held.push(gate.enter(Class::Background, ANYONE, soon()).await.unwrap());
        }
        assert_eq!(gate.enter(Class::Background, ANYONE, soon()).await.unwrap_err(), Refused::TooLate);
        let admission = gate.enter(Class::Admission, ANYONE, soon()).await.unwrap();
        assert_eq!(gate.enter(Class::Admission, ANYONE, soon()).await.unwrap_err(), Refused::TooLate);
        drop(admission);
        gate.enter(Class::Admission, ANYONE, soon()).await.unwrap();
        held.pop();
        gate.enter(Class::Background, ANYONE, soon()).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_gives_up_costs_nothing() {
        let gate = gate(Some(1), 1, 1);
        let first = gate.enter(Class::Admission, ANYONE, soon()).await.unwrap();
        let patient = Arc::clone(&gate);
        let abandoned = tokio::spawn(async move { patient.enter(Class::Admission, ANYONE, soon()).await });
        settle().await;
        abandoned.abort();
        settle().await;
        drop(first);
        let start = Instant::now();
        gate.enter(Class::Admission, ANYONE, soon() + Duration::from_secs(1)).await.unwrap();
        assert!(Instant::now() - start <= Duration::from_millis(1001));
        assert!(gate.lock().waiting.iter().all(VecDeque::is_empty));
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_account_is_held_and_the_others_are_not() {
        let gate = gate(None, 1, 4);
        let (refused, other) = (Some(account(1)), Some(account(2)));
        gate.learn(refused, hold(Some(30), Some(30)));
        let until = Instant::now() + Duration::from_secs(30);
        assert_eq!(gate.enter(Class::Admission, refused, soon()).await.unwrap_err(), Refused::Held { until });
        assert_eq!(
            gate.enter(Class::Background, refused, soon()).await.unwrap_err(),
            Refused::Held { until }
        );
        gate.enter(Class::Admission, other, soon()).await.unwrap();
        let patient = Instant::now() + Duration::from_mins(1);
        gate.enter(Class::Background, refused, patient).await.unwrap();
        assert!(Instant::now() >= until, "background work waits for the quota when it has the time");
    }

    #[tokio::test(start_paused = true)]
    async fn a_low_quota_holds_background_only() {
        let gate = gate(None, 1, 4);
        gate.learn(ANYONE, hold(None, Some(60)));
        gate.enter(Class::Admission, ANYONE, soon()).await.unwrap();
        assert!(matches!(gate.enter(Class::Background, ANYONE, soon()).await, Err(Refused::Held { .. })));
        gate.learn(ANYONE, Hold::default());
        gate.enter(Class::Background, ANYONE, soon()).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn refusals_in_a_row_are_counted_until_an_answer() {
        let gate = gate(None, 1, 4);
        gate.learn(ANYONE, hold(Some(5), Some(5)));
        gate.learn(ANYONE, hold(Some(10), Some(10)));
        assert_eq!(gate.refusals(ANYONE), 2);
        tokio::time::advance(Duration::from_secs(11)).await;
        gate.learn(ANYONE, Hold::default());
        assert_eq!(gate.refusals(ANYONE), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn accounts_are_bounded() {
        let gate = gate(None, 1, 4);
        for number in 0..5_000 {
            gate.learn(Some(account(number)), hold(Some(60), Some(60)));
        }
        assert!(gate.lock().accounts.len() <= MOST_ACCOUNTS);
    }
}
