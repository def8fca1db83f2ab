//! Reads the Secrets that policies name again and again, since nothing tells when one changes. Tenants take turns: one
//! that names thousands of Secrets makes its own rounds longer, and no others.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use fairlead_plan::routing::{SecretName, SecretUse};
use fairlead_plan::tenant::{Tenant, round_robin};
use futures::{StreamExt, stream};
use tokio::time::{Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use super::Secrets;

/// A rotation is noticed within this time.
const EVERY: Duration = Duration::from_mins(1);

/// How soon a Secret that a policy begins to name is looked at.
const LOOK: Duration = Duration::from_secs(2);

/// Between the starts of two requests.
const PACE: Duration = Duration::from_millis(20);
const AT_ONCE: usize = 4;

/// Reads of one round: as many as fit before it is time to see what policies name by then.
const MOST_OF_A_ROUND: usize = 100;

impl Secrets {
    /// Keeps the Secrets that policies name fresh, and tells what is wrong with them, until `shutdown`.
    pub async fn run(self, named: impl Fn() -> Vec<SecretUse> + Send, shutdown: CancellationToken) {
        let mut ticks = tokio::time::interval(LOOK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut rounds = Rounds::default();
        loop {
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return,
                _ = ticks.tick() => {}
            }
            let round = rounds.go(&self, named());
            if shutdown.run_until_cancelled(round).await.is_none() {
                return;
            }
        }
    }
}

#[derive(Debug, Default)]
struct Rounds {
    /// When to read each next, and what was wrong with it.
    seen: HashMap<SecretName, (Instant, Option<String>)>,
}

impl Rounds {
    async fn go(&mut self, secrets: &Secrets, named: Vec<SecretUse>) {
        let mut by_name: BTreeMap<SecretName, Vec<_>> = BTreeMap::new();
        for SecretUse { secret, by } in named {
            by_name.entry(secret).or_default().push(by);
        }
        self.seen.retain(|name, _| by_name.contains_key(name));
        let now = Instant::now();
        for name in by_name.keys() {
            self.seen.entry(name.clone()).or_insert((now, None));
        }
        let due = by_name.iter().filter_map(|(name, policies)| {
            let (next, _) = self.seen.get(name).filter(|(next, _)| *next <= now)?;
            // One that cluster-scoped objects name is theirs.
            let tenant = policies.iter().map(|policy| Tenant::from(&**policy)).min()?;
            Some((tenant, (*next, name.clone())))
        });
        let due = round_robin(due, MOST_OF_A_ROUND);
        let reading = stream::iter(due)
            .then(|(_, name)| async move {
                tokio::time::sleep(PACE).await;
                name
            })
            .map(|name| async move {
                let read = secrets.refresh(&name).await;
                (name, read.problem())
            });
        let mut reading = std::pin::pin!(reading.buffer_unordered(AT_ONCE));
        while let Some((name, problem)) = reading.next().await {
            // Never later than promised, and not all at the same time.
            let next = Instant::now() + EVERY.mul_f64(0.8 + 0.15 * fastrand::f64());
            self.seen.insert(name, (next, problem));
        }
        let troubled = by_name.iter().filter_map(|(name, policies)| {
            let (_, problem) = self.seen.get(name)?;
            Some((name, policies, problem.as_deref()?))
        });
        let told = troubled.flat_map(|(name, policies, problem)| {
            policies.iter().map(move |policy| (policy.clone(), format!("Secret {name} {problem}")))
        });
        secrets.problems().replace_reading(told);
        let policies = by_name.values().flatten();
        secrets.problems().keep_copying(policies);
    }
}
