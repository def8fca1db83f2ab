//! One look at one image: with whose credentials, for how long, and who is told.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use fairlead_domain::duration::Duration as Limit;
use fairlead_domain::keyring::Credential;
use fairlead_domain::reference::Reference;
use fairlead_domain::verdict::Verdict;
use fairlead_plan::routing::SecretName;
use fairlead_plan::usage::Holder;
use fairlead_plan::watching::Pace;
use fairlead_registry::{Class, Client as Registries, Context, ProbeMethod, ProbeOptions};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, timeout};

use super::Seen;
use crate::config::{CheckMethod, Monitoring, RegistryWatch};
use crate::secrets::{Keys, Secrets};
use crate::verdicts::Verdicts;

/// How long a registry may take for an answer where the configuration sets no limit.
const UNTOLD_PATIENCE: Duration = Duration::from_secs(30);

/// Time in line behind those who are in more of a hurry, before a look gives up.
const IN_LINE: Duration = Duration::from_secs(30);

/// Reading one Secret.
const READING: Duration = Duration::from_secs(10);

/// The mirror controller takes what it is told at once; if it does not for so long, the image is looked at again.
const TELLING: Duration = Duration::from_secs(5);

/// A look that has not ended by then, with whatever it tries, is given up.
const LONGEST: Duration = Duration::from_mins(5);

/// What is to be looked at, and who may.
#[derive(Debug)]
pub(super) struct Question {
    pub(super) image: Arc<Reference>,
    /// Tried before the Pods' own.
    pub(super) secret: Option<SecretName>,
    pub(super) holders: Vec<Holder>,
    /// Whether a mirror wants to know.
    pub(super) for_mirror: bool,
}

/// What a look found.
#[derive(Debug)]
pub(super) struct Looked {
    pub(super) verdict: Verdict,
    /// Of a Secret that might have opened the registry, had it been usable.
    pub(super) secret_problem: Option<String>,
}

pub(super) struct Looker {
    monitoring: Monitoring,
    registries: Registries,
    verdicts: Verdicts,
    secrets: Secrets,
    seen: mpsc::Sender<Seen>,
}

impl fmt::Debug for Looker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Looker").field("monitoring", &self.monitoring).finish_non_exhaustive()
    }
}

/// Credentials that were found, and where.
struct Attempt {
    names: Vec<SecretName>,
    credentials: Vec<Credential>,
}

impl Looker {
    pub(super) fn new(
        monitoring: Monitoring,
        registries: Registries,
        verdicts: Verdicts,
        secrets: Secrets,
        seen: mpsc::Sender<Seen>,
    ) -> Self {
        Self { monitoring, registries, verdicts, secrets, seen }
    }

    pub(super) fn pace(&self, host: &str) -> Pace {
        let rule = self.monitoring.for_registry(host);
        Pace { interval: rule.interval.as_std(), most: rule.max_per_interval }
    }

    /// Looks, and tells the mirrors if they want to know.
    pub(super) async fn look(&self, question: &Question) -> Looked {
        let looked = timeout(LONGEST, self.ask_in_turn(question)).await.unwrap_or_else(|_| Looked {
            verdict: Verdict::Unreachable { reason: "the look took too long and was given up".into() },
            secret_problem: None,
        });
        if question.for_mirror {
            let seen = Seen { reference: question.image.clone(), verdict: looked.verdict.clone() };
            if self.seen.send_timeout(seen, TELLING).await.is_err() {
                tracing::debug!(image = %question.image, "nobody took what a look at an image of a mirror found");
            }
        }
        looked
    }

    /// Asks with the credentials of one holder after the other until one gets to see the image. Registries hide what they
    /// have from those who may not see it, so only what all of them are told counts as missing.
    async fn ask_in_turn(&self, question: &Question) -> Looked {
        let rule = self.monitoring.for_registry(question.image.host().as_str());
        let mut secret_problem = None;
        let mut worst: Option<Verdict> = None;
        let mut tried: Vec<Vec<_>> = Vec::new();
        for names in sources(question, &rule) {
            let attempt = self.attempt(&question.image, names, &mut secret_problem).await;
            let identity: Vec<_> = attempt.credentials.iter().map(Credential::id).collect();
            if identity.is_empty() || tried.contains(&identity) {
                continue;
            }
            tried.push(identity);
            let verdict = self.ask(&question.image, &attempt.credentials, &rule).await;
            match &verdict {
                Verdict::NotFound { .. } => {
                    // Whoever logs in and is told so needs nobody else's Secret to know it.
                    secret_problem = None;
                    worst = Some(verdict);
                }
                Verdict::Unauthorised { .. } | Verdict::Forbidden { .. } => {
                    for name in &attempt.names {
                        self.secrets.distrust(name);
                    }
                    worst.get_or_insert(verdict);
                }
                _ => return Looked { verdict, secret_problem },
            }
        }
        let verdict = match worst {
            Some(verdict) => verdict,
            None => self.ask(&question.image, &[], &rule).await,
        };
        Looked { verdict, secret_problem }
    }

    /// What the Secrets hold for the image. Of those that cannot be used the first is remembered as the problem.
    async fn attempt(
        &self,
        image: &Reference,
        names: Vec<SecretName>,
        problem: &mut Option<String>,
    ) -> Attempt {
        let mut keys = Vec::with_capacity(names.len());
        for name in &names {
            let read = self.secrets.read(name, Instant::now() + READING).await;
            match (read.keys(), read.problem()) {
                (Some(found), _) => keys.push(found.clone()),
                (None, Some(why)) => {
                    problem.get_or_insert_with(|| format!("Secret {name} {why}"));
                }
                (None, None) => {}
            }
        }
        let credentials = Keys::lookup(keys.iter().map(Arc::as_ref), &image.repository());
        Attempt { names, credentials }
    }

    async fn ask(&self, image: &Reference, credentials: &[Credential], rule: &RegistryWatch) -> Verdict {
        let answer = rule.timeout.as_ref().map_or(UNTOLD_PATIENCE, Limit::as_std);
        let method = match rule.method {
            CheckMethod::Head => ProbeMethod::Head,
            CheckMethod::Get => ProbeMethod::Get,
        };
        let options = ProbeOptions { method, check_digest: rule.resolve_digest, ..ProbeOptions::default() };
        let (sent, told) = watch::channel(None);
        let context = Context::new(Class::Background, Instant::now() + IN_LINE + answer)
            .answered_within(answer)
            .telling_when_sent(sent);
        let verdict = self.registries.probe(image, credentials, options, &context).await;
        if !matches!(verdict, Verdict::Unreachable { .. }) {
            self.verdicts.learn(image, credentials, verdict.clone());
            return verdict;
        }
        // That a registry does not answer is known to its client, and through that to admission. Here it counts against
        // the image only if the registry was asked, or is known to be down.
        let asked = told.borrow().is_some() || self.registries.is_down(&image.host()).is_some();
        if asked { verdict } else { Verdict::Unknown { reason: verdict.reason().into() } }
    }
}

/// The Secrets to try, those of one holder at a time.
fn sources(question: &Question, rule: &RegistryWatch) -> Vec<Vec<SecretName>> {
    let own = question.secret.iter().map(|name| vec![name.clone()]);
    let holders = question.holders.iter().filter(|holder| !holder.pull_secrets.is_empty()).map(|holder| {
        let named = |name: &Arc<str>| SecretName { namespace: holder.namespace.clone(), name: name.clone() };
        holder.pull_secrets.iter().map(named).collect()
    });
    let fallback = rule.fallback_credential_secret.iter().map(|secret| {
        vec![SecretName { namespace: secret.namespace.as_str().into(), name: secret.name.as_str().into() }]
    });
    own.chain(holders).chain(fallback).collect()
}
