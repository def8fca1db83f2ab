//! Leader election on one shared record (a Lease), decided from what this process saw and its own clock.
//!
//! Several replicas run, one may act. The rules that keep it at one:
//!
//! - A record is held until its duration has passed *since this process first saw it in its present form*. Times
//!   written by others are compared for equality only, so clocks that disagree do no harm.
//! - A leader counts from the *start* of its last successful write. A replica that takes over has seen that write at
//!   that moment or later, and waits longer than the leader does.
//! - Every write names the version it replaces; of two writers one is refused.
//! - A process never assumes a term that it did not acquire itself, even when the record carries its name: names may
//!   be given twice by mistake, and a restarted process knows nothing of what its predecessor left in flight.

use std::time::Duration;

#[cfg(test)]
mod simulation;
#[cfg(test)]
mod tests;

/// A reading of this process's monotonic clock, counted from any fixed origin.
pub type Moment = Duration;

/// A mark that a writer leaves in the record. Its only use is to tell two writes apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp(pub i64);

/// How long things take. The defaults let a standby take over about 12 s after a leader was killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// The lease: no other replica acts for this long after the holder's last write was seen.
    pub lease: Duration,
    pub renew_every: Duration,
    /// A leader that has not renewed for this long stops. The distance to `lease` pays for clocks that run at
    /// slightly different speed and for finishing what was under way.
    pub renew_deadline: Duration,
    /// How often a standby looks, before jitter. A release is noticed within this time and a quarter.
    pub poll_every: Duration,
    /// Pause after a request that failed, before jitter.
    pub retry_after: Duration,
    /// Limit of a single request, so that one that hangs leaves time for another within `renew_deadline`.
    pub call_limit: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(10),
            renew_every: Duration::from_secs(2),
            renew_deadline: Duration::from_secs(8),
            poll_every: Duration::from_millis(1200),
            retry_after: Duration::from_millis(500),
            call_limit: Duration::from_secs(3),
        }
    }
}

/// What the shared record says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// A record without a holder, or with an empty one, is free.
    pub holder: Option<String>,
    pub acquired: Option<Stamp>,
    pub renewed: Option<Stamp>,
    /// Grows by one with every acquisition, and so numbers the terms.
    pub transitions: i32,
    /// What its holder promised; the own [`Timing::lease`] where it says nothing.
    pub duration: Option<Duration>,
}

impl Record {
    fn holder(&self) -> Option<&str> {
        self.holder.as_deref().filter(|holder| !holder.is_empty())
    }
}

/// A record as the API server keeps it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored {
    pub record: Record,
    pub version: String,
}

/// A record to be written in place of a known version, or created where `replaces` is `None`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    pub record: Record,
    pub replaces: Option<String>,
}

/// Why a leader stops being one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Loss {
    /// No renewal succeeded within [`Timing::renew_deadline`].
    OutOfTime,
    /// The record names another term, or no holder.
    Taken { by: Option<String> },
    /// The record was deleted.
    Vanished,
}

/// What to do next. `limit` bounds the request that carries it out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    Look { limit: Duration },
    Acquire { write: Write, limit: Duration },
    Renew { write: Write, limit: Duration },
    Wait { until: Moment },
    StepDown { loss: Loss },
}

/// One spell of leadership, told apart from every other by its number and by when it was acquired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Term {
    acquired: Option<Stamp>,
    transitions: i32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Standby,
    Leading { term: Term, renewed: Moment },
}

#[derive(Debug, Clone)]
struct Observation {
    stored: Option<Stored>,
    /// Until when the holder that was seen last may believe that it leads.
    held_until: Moment,
}

/// One process's view of the election: fed with what happened, asked what to do.
#[derive(Debug, Clone)]
pub struct Elector {
    identity: String,
    timing: Timing,
    role: Role,
    observation: Option<Observation>,
    /// The acquisition sent last and when it was begun. Its answer may be lost after it took effect.
    claim: Option<(Term, Moment)>,
    /// The version known here was refused, so it must be read again before the next write.
    outdated: bool,
    look_at: Moment,
    retry_at: Moment,
}

impl Elector {
    pub fn new(identity: impl Into<String>, timing: Timing) -> Self {
        Self {
            identity: identity.into(),
            timing,
            role: Role::Standby,
            observation: None,
            claim: None,
            outdated: false,
            look_at: Moment::ZERO,
            retry_at: Moment::ZERO,
        }
    }

    /// Whether this process may act at `now`.
    pub fn leads(&self, now: Moment) -> bool {
        self.leads_until().is_some_and(|until| now < until)
    }

    /// The moment at which this process must have stopped acting unless it renews before; `None` for a standby.
    pub fn leads_until(&self) -> Option<Moment> {
        match self.role {
            Role::Standby => None,
            Role::Leading { renewed, .. } => Some(renewed + self.timing.renew_deadline),
        }
    }

    /// Number of the term that this process holds.
    pub fn term(&self) -> Option<i32> {
        match self.role {
            Role::Standby => None,
            Role::Leading { term, .. } => Some(term.transitions),
        }
    }

    /// The holder when the record was last read.
    pub fn holder(&self) -> Option<&str> {
        self.observation.as_ref()?.stored.as_ref()?.record.holder()
    }

    /// What to do at `now`. `stamp` marks the write that may follow.
    pub fn decide(&self, now: Moment, stamp: Stamp) -> Action {
        match self.role {
            Role::Leading { term, renewed } => self.decide_leading(term, renewed, now, stamp),
            Role::Standby => self.decide_standby(now, stamp),
        }
    }

    fn decide_leading(&self, term: Term, renewed: Moment, now: Moment, stamp: Stamp) -> Action {
        let deadline = renewed + self.timing.renew_deadline;
        if now >= deadline {
            return Action::StepDown { loss: Loss::OutOfTime };
        }
        let stored = self.observation.as_ref().and_then(|observation| observation.stored.as_ref());
        let Some(stored) = stored else {
            return Action::StepDown { loss: Loss::Vanished };
        };
        if !self.is_own(&stored.record, term) {
            let by = stored.record.holder().map(str::to_owned);
            return Action::StepDown { loss: Loss::Taken { by } };
        }
        let limit = self.timing.call_limit.min(deadline.saturating_sub(now));
        if self.outdated {
            let until = self.retry_at.min(deadline);
            return if now < until { Action::Wait { until } } else { Action::Look { limit } };
        }
        let due = self.retry_at.max(renewed + self.timing.renew_every);
        if now < due {
            return Action::Wait { until: due.min(deadline) };
        }
        let write = Write { record: self.own_record(term, stamp), replaces: Some(stored.version.clone()) };
        Action::Renew { write, limit }
    }

    fn decide_standby(&self, now: Moment, stamp: Stamp) -> Action {
        let limit = self.timing.call_limit;
        if now < self.retry_at {
            return Action::Wait { until: self.retry_at };
        }
        let Some(observation) = self.observation.as_ref().filter(|_| !self.outdated) else {
            return Action::Look { limit };
        };
        if now >= observation.held_until {
            let before = observation.stored.as_ref();
            let term = Term {
                acquired: Some(stamp),
                transitions: before.map_or(0, |stored| stored.record.transitions.saturating_add(1)),
            };
            let write = Write {
                record: self.own_record(term, stamp),
                replaces: before.map(|stored| stored.version.clone()),
            };
            return Action::Acquire { write, limit };
        }
        if now >= self.look_at {
            return Action::Look { limit };
        }
        Action::Wait { until: self.look_at.min(observation.held_until) }
    }

    /// The write that gives leadership back, so that a standby need not wait for the lease to end.
    pub fn release(&self, stamp: Stamp) -> Option<Write> {
        let Role::Leading { term, .. } = self.role else {
            return None;
        };
        let stored = self.observation.as_ref()?.stored.as_ref()?;
        self.is_own(&stored.record, term).then(|| Write {
            record: Record { holder: None, ..self.own_record(term, stamp) },
            replaces: Some(stored.version.clone()),
        })
    }

    /// Takes note that `write` is being sent; `now` is the moment before it leaves.
    pub fn sending(&mut self, write: &Write, now: Moment) {
        if self.role == Role::Standby {
            self.claim = Some((Term::of(&write.record), now));
        }
    }

    /// The record was read; `now` is the moment after the answer came. `chance` in 0..1 spreads the standbys.
    pub fn saw(&mut self, stored: Option<Stored>, now: Moment, chance: f64) {
        self.observe(stored, now);
        self.look_at = now + jittered(self.timing.poll_every, chance);
        self.retry_at = now;
        // The answer to our acquisition was lost, yet it took effect: the term began when it was sent.
        if self.role == Role::Standby
            && let Some((term, begun)) = self.claim
            && let Some(stored) =
                self.observation.as_ref().and_then(|observation| observation.stored.as_ref())
            && self.is_own(&stored.record, term)
        {
            self.role = Role::Leading { term, renewed: begun };
            self.claim = None;
        }
    }

    /// A write succeeded that was begun at `begun`; `stored` is the API server's answer, which came at `now`.
    pub fn wrote(&mut self, stored: Stored, begun: Moment, now: Moment) {
        self.role = Role::Leading { term: Term::of(&stored.record), renewed: begun };
        self.claim = None;
        self.observe(Some(stored), now);
        self.retry_at = now;
    }

    /// A write was refused because the record is not what it was when it was read.
    pub fn refused(&mut self, now: Moment) {
        self.outdated = true;
        self.retry_at = now;
    }

    /// A request failed or was not answered in time.
    pub fn failed(&mut self, now: Moment, chance: f64) {
        self.retry_at = now + jittered(self.timing.retry_after, chance);
        if self.role == Role::Standby {
            self.outdated = true;
        }
    }

    /// Leadership has ended, by [`Action::StepDown`] or because it was released.
    pub fn step_down(&mut self) {
        self.role = Role::Standby;
        self.claim = None;
        // The promise that a deleted record still made was our own, and it ends here.
        if let Some(observation) =
            self.observation.as_mut().filter(|observation| observation.stored.is_none())
        {
            observation.held_until = Moment::ZERO;
        }
    }

    fn observe(&mut self, stored: Option<Stored>, now: Moment) {
        self.outdated = false;
        let before = self.observation.take();
        let known = before.as_ref().and_then(|before| before.stored.as_ref()).map(|stored| &stored.record);
        let held_until = match (&stored, before.as_ref()) {
            // Deleted under its holder, who may not know yet: the promise that was seen still counts.
            (None, Some(before)) => before.held_until,
            (None, None) => now,
            (Some(stored), Some(before)) if known == Some(&stored.record) => before.held_until,
            (Some(stored), _) => match stored.record.holder() {
                None => now,
                Some(_) => now + stored.record.duration.unwrap_or(self.timing.lease),
            },
        };
        self.observation = Some(Observation { stored, held_until });
    }

    fn is_own(&self, record: &Record, term: Term) -> bool {
        record.holder() == Some(self.identity.as_str()) && Term::of(record) == term
    }

    fn own_record(&self, term: Term, stamp: Stamp) -> Record {
        Record {
            holder: Some(self.identity.clone()),
            acquired: term.acquired,
            renewed: Some(stamp),
            transitions: term.transitions,
            duration: Some(self.timing.lease),
        }
    }
}

impl Term {
    fn of(record: &Record) -> Self {
        Self { acquired: record.acquired, transitions: record.transitions }
    }
}

/// Between three and five quarters of `length`.
fn jittered(length: Duration, chance: f64) -> Duration {
    length.mul_f64(0.75 + 0.5 * chance.clamp(0.0, 1.0))
}
