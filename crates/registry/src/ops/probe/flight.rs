//! Probes under way, shared by everybody who asks the same.
//!
//! "The same" means the same image, the same credentials in the same order, and the same way of asking: an answer never
//! reaches somebody with other credentials. Each probe runs by itself, not on behalf of a caller, and is forgotten when
//! it ends; remembering answers is for those who know how long they are good.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use fairlead_domain::keyring::{Credential, CredentialId};
use fairlead_domain::reference::{ImageKey, Reference};
use fairlead_domain::verdict::Verdict;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::{ProbeOptions, ask};
use crate::client::{Client, ClientState};
use crate::error::{Detail, Problem};
use crate::limits::rate::Class;
use crate::request::context::Context;

#[derive(Debug, Default)]
pub(crate) struct Flights {
    under_way: Mutex<HashMap<Key, Flight>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Key {
    image: ImageKey,
    credentials: Vec<CredentialId>,
    options: ProbeOptions,
}

#[derive(Clone, Debug)]
struct Flight {
    outcome: watch::Receiver<Option<Outcome>>,
    class: Arc<watch::Sender<Class>>,
    /// When the request at hand was sent; nothing while it waits in line.
    sent: watch::Receiver<Option<Instant>>,
    /// How long each of its requests may take.
    limit: Duration,
    deadline: Instant,
}

type Outcome = Result<Verdict, Problem>;

impl Flight {
    /// Waits for the outcome on behalf of one caller. `None`: it has no more time.
    async fn wait(&mut self, context: &Context) -> Option<Outcome> {
        let limit = context.answer_limit();
        let outcome = loop {
            let sent = *self.sent.borrow_and_update();
            context.tell(sent);
            // Whoever gives a request less time than it has waits no longer than for one of its own.
            let until = sent
                .filter(|_| limit < self.limit)
                .map_or(context.deadline, |sent| context.deadline.min(sent + limit));
            tokio::select! {
                biased;
                outcome = self.outcome.wait_for(Option::is_some) => break outcome.map(|outcome| outcome.clone()),
                Ok(()) = self.sent.changed() => {}
                () = sleep_until(until) => return None,
            }
        };
        // The last of it may have happened too quickly to be noticed.
        context.tell(*self.sent.borrow());
        outcome
            .unwrap_or_else(|_| Some(Err(Problem::Unreachable("the probe ended without an answer".into()))))
    }

    fn is_hastier_than(&self, context: &Context) -> bool {
        self.deadline < context.deadline || self.limit < context.answer_limit()
    }
}

impl Flights {
    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Flight>> {
        self.under_way.lock()
    }
}

/// Waits for the probe under way, or starts one.
pub(super) async fn join(
    client: &Client,
    reference: &Reference,
    credentials: &[Credential],
    options: ProbeOptions,
    context: &Context,
) -> Verdict {
    let asked = reference.pulled();
    let key =
        Key { image: asked.key(), credentials: credentials.iter().map(Credential::id).collect(), options };
    while !context.has_passed() {
        let mut flight = board(client, &key, &asked, credentials, context);
        match flight.wait(context).await {
            // It ended because its first caller had less time than this one: ask again in the time that is left.
            Some(Err(Problem::TimedOut(_))) if flight.is_hastier_than(context) => {}
            Some(outcome) => return outcome.unwrap_or_else(|problem| problem.verdict()),
            None => break,
        }
    }
    Problem::TimedOut(Detail::none()).verdict()
}

fn board(
    client: &Client,
    key: &Key,
    asked: &Reference,
    credentials: &[Credential],
    context: &Context,
) -> Flight {
    let mut under_way = client.state.flights.lock();
    if let Some(flight) = under_way.get(key) {
        if context.class() == Class::Admission {
            flight
                .class
                .send_if_modified(|class| std::mem::replace(class, Class::Admission) != Class::Admission);
        }
        return flight.clone();
    }
    let (class, urgency) = watch::channel(context.class());
    let (told, outcome) = watch::channel(None);
    let (sending, sent) = watch::channel(None);
    let (limit, deadline) = (context.answer_limit(), context.deadline);
    let flight = Flight { outcome, class: Arc::new(class), sent, limit, deadline };
    under_way.insert(key.clone(), flight.clone());
    let landing = Landing { state: Arc::clone(&client.state), key: key.clone() };
    let (client, asked, credentials) = (client.clone(), asked.clone(), Arc::from(credentials));
    let context = context.shared(urgency).telling_when_sent(sending);
    tokio::spawn(async move {
        let outcome = ask(&client, &asked, credentials, landing.key.options, &context).await;
        // Those who come from now on ask anew; those who wait are told.
        drop(landing);
        told.send_replace(Some(outcome));
    });
    flight
}

/// Takes a probe off the list of those under way, also when it ends by a panic.
struct Landing {
    state: Arc<ClientState>,
    key: Key,
}

impl Drop for Landing {
    fn drop(&mut self) {
        self.state.flights.lock().remove(&self.key);
    }
}
