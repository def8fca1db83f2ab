//! One look at one image: with whose credentials, for how long, and what learns of the result.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use fairlead_domain::cause::Cause;
use fairlead_domain::duration::Duration as Limit;
use fairlead_domain::keyring::{Credential, CredentialId};
use fairlead_domain::reference::Reference;
use fairlead_domain::verdict::Verdict;
use fairlead_plan::availability::{self, Looked, Pace, Question, Wish};
use fairlead_plan::credentials::{self, Offered};
use fairlead_registry::{Class, Context as Call, ProbeMethod, ProbeOptions};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout_at};

use super::Seen;
use crate::context::Context;
use crate::platform::config::{CheckMethod, RegistryWatch};

/// How long a registry may take for an answer where the configuration sets no limit.
const UNTOLD_PATIENCE: Duration = Duration::from_secs(30);

/// Time in line behind those who are in more of a hurry, before a look gives up.
const IN_LINE: Duration = Duration::from_secs(30);

/// The mirror controller takes results at once; if it does not for so long, the image is looked at again.
const TELLING: Duration = Duration::from_secs(5);

/// A look that has not ended by then, with whatever it tries, is given up.
const LONGEST: Duration = Duration::from_mins(5);

/// What the registry said to each login in one look.
type Answers = Vec<((Vec<CredentialId>, Cause), Verdict)>;

#[derive(Clone)]
pub(super) struct Prober {
    context: Arc<Context>,
    seen: mpsc::Sender<Seen>,
    /// The inventory, which learns of every look.
    accounts: Option<mpsc::Sender<Seen>>,
    /// Those that compare what is found with something else.
    others: Vec<mpsc::Sender<Seen>>,
}

impl fmt::Debug for Prober {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Prober").field("monitoring", &self.context.config.monitoring).finish_non_exhaustive()
    }
}

impl Prober {
    pub(super) fn new(context: Arc<Context>, seen: mpsc::Sender<Seen>) -> Self {
        Self { context, seen, accounts: None, others: Vec::new() }
    }

    pub(super) fn accounting(self, seen: mpsc::Sender<Seen>) -> Self {
        Self { accounts: Some(seen), ..self }
    }

    pub(super) fn telling(mut self, seen: mpsc::Sender<Seen>) -> Self {
        self.others.push(seen);
        self
    }

    pub(super) fn pace(&self, host: &str) -> Pace {
        let rule = self.context.config.monitoring.for_registry(host);
        Pace { interval: rule.interval.as_std(), most: rule.max_per_interval }
    }

    /// Looks, and tells the inventory, and the mirrors if they want to know.
    pub(super) async fn look(&self, question: &Question) -> Looked {
        let given_up = || {
            let reason = "the look took too long and was given up".into();
            Looked::new(Verdict::Unreachable { reason }, None)
        };
        let until = Instant::now() + LONGEST;
        let mut answers = Answers::new();
        let mut first: Option<Looked> = None;
        let mut complete = !question.partial;
        for wish in &question.wishes {
            let asking = self.ask_in_turn(question, wish, &mut answers);
            let looked = timeout_at(until, asking).await.unwrap_or_else(|_| given_up());
            complete &= looked.complete;
            let (reference, principal) = (question.image.clone(), wish.principal.clone());
            let seen = Seen { reference, principal, verdict: looked.verdict.clone() };
            if let Some(accounts) = &self.accounts {
                // What does not fit is looked at again.
                drop(accounts.try_send(seen.clone()));
            }
            if wish.for_mirror {
                for other in &self.others {
                    drop(other.try_send(seen.clone()));
                }
                if self.seen.send_timeout(seen, TELLING).await.is_err() {
                    tracing::debug!(image = %question.image, "the queue of mirrors is full; looking again later");
                }
            }
            first.get_or_insert(looked);
        }
        Looked { complete, ..first.unwrap_or_else(given_up) }
    }

    /// Asks with one login after the other, until an answer settles it.
    async fn ask_in_turn(&self, question: &Question, wish: &Wish, answers: &mut Answers) -> Looked {
        let image = &question.image;
        let rule = self.context.config.monitoring.for_registry(image.host().as_str());
        let configuration = rule.fallback();
        let offered = Offered {
            mirror: wish.secret.as_ref(),
            holders: &wish.holders,
            upstreams: &[],
            configuration: configuration.as_ref(),
        };
        let attempts = credentials::attempts(&wish.principal, &offered, question.round);
        let logins = self.context.secrets.logins(attempts, &image.repository()).await;
        let mut told = Vec::new();
        for (attempt, credentials) in logins.matching {
            let verdict = self.answer(image, wish.cause, &credentials, &rule, answers).await;
            if availability::is_refusal(&verdict) {
                attempt.secrets.iter().for_each(|name| self.context.secrets.distrust(name));
            }
            told.push(verdict);
            if told.last().is_some_and(availability::settles) {
                break;
            }
        }
        match Looked::sum_up(told, logins.problem.clone()) {
            Some(looked) => looked,
            None => Looked::new(self.answer(image, wish.cause, &[], &rule, answers).await, logins.problem),
        }
    }

    /// What the registry says to a login; it is asked once in a look.
    async fn answer(
        &self,
        image: &Reference,
        cause: Cause,
        credentials: &[Credential],
        rule: &RegistryWatch,
        answers: &mut Answers,
    ) -> Verdict {
        let asked = (credentials.iter().map(Credential::id).collect(), cause);
        if let Some((_, verdict)) = answers.iter().find(|(known, _)| *known == asked) {
            return verdict.clone();
        }
        let verdict = self.ask(image, cause, credentials, rule).await;
        answers.push((asked, verdict.clone()));
        verdict
    }

    async fn ask(
        &self,
        image: &Reference,
        cause: Cause,
        credentials: &[Credential],
        rule: &RegistryWatch,
    ) -> Verdict {
        let answer = rule.timeout.as_ref().map_or(UNTOLD_PATIENCE, Limit::as_std);
        let method = match rule.method {
            CheckMethod::Head => ProbeMethod::Head,
            CheckMethod::Get => ProbeMethod::Get,
        };
        let options =
            ProbeOptions { method, check_digest: rule.resolve_digest, cause, ..ProbeOptions::default() };
        let (sent, told) = watch::channel(None);
        let call = Call::new(Class::Background, Instant::now() + IN_LINE + answer)
            .answered_within(answer)
            .telling_when_sent(sent);
        let verdict = self.context.registries.probe(image, credentials, options, &call).await;
        if !matches!(verdict, Verdict::Unreachable { .. }) {
            self.context.verdicts.caused_by(cause).learn(image, credentials, verdict.clone());
            return verdict;
        }
        // That a registry does not answer is known to its client, and through that to admission.
        let was_asked = told.borrow().is_some() || self.context.registries.is_down(&image.host()).is_some();
        availability::about_image(verdict, was_asked)
    }
}
