//! Keeps the token in the webhook's path: every replica accepts what the Secret holds, and the leader changes it.
//!
//! With certificates of its own, the operator keeps tokens in their Secret, and [`super::Keeper`] calls [`PathWork`].
//! With certificates from files, the tokens have a Secret to themselves, and [`PathKeeper`] looks after that alone.

use std::sync::Arc;
use std::time::Duration;

use fairlead_plan::certificates::{
    LeafId, PathDecision, PathStep, PathView, Registration, Settings as Plan, TokenId, Tokens, decide_path,
};
use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::cluster::{Cluster, ClusterError, Configuration};
use super::token::Token;
use super::tokens::StoredTokens;
use super::turns::{self, HEARTBEAT, Turns};
use super::{Leads, MaterialError, Metrics, Paths, Resolver, Settings, secret};
use crate::platform::telemetry::Heartbeat;

/// What the leader saw of the webhook configuration.
pub(super) enum SeenConfiguration {
    Unknown,
    Absent,
    Found(Configuration),
}

#[derive(Debug, thiserror::Error)]
pub(super) enum PathError {
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    #[error(transparent)]
    Material(#[from] MaterialError),
}

/// Carries out decisions about the path. Remembers what this process has seen for how long.
pub(super) struct PathWork {
    pub(super) paths: Arc<Paths>,
    tokens: Option<(Tokens, Instant)>,
    registered: Option<(TokenId, Instant)>,
}

impl PathWork {
    pub(super) fn new() -> Self {
        Self { paths: Paths::new(Vec::new()), tokens: None, registered: None }
    }

    /// A new term waits anew.
    pub(super) fn forget(&mut self) {
        (self.tokens, self.registered) = (None, None);
    }

    /// Takes at most one step. `secret` is what was read, or an empty one to create. Returns how long to wait.
    pub(super) async fn lead(
        &mut self,
        cluster: &Cluster,
        plan: &Plan,
        leads: &Leads,
        (mut secret, seen, leaf): (Secret, &SeenConfiguration, Option<LeafId>),
    ) -> Result<Duration, PathError> {
        let mut tokens = StoredTokens::read(&secret);
        let view = PathView {
            seen_for: self.unchanged_for(tokens.facts()),
            registration: self.registration(&tokens, seen),
            tokens: tokens.facts(),
            leaf,
            accepted: self.paths.accepted().iter().map(Token::id).collect(),
        };
        let PathDecision { step, reason } = decide_path(&view, plan);
        let made_for = view.leaf;
        match step {
            PathStep::Wait { after } => return Ok(after),
            PathStep::Register => {
                if let (SeenConfiguration::Found(configuration), Some(token)) = (seen, &tokens.current)
                    && leads()
                {
                    cluster.register(configuration, token).await?;
                    tracing::info!(reason, "wrote the path of the webhook configuration");
                }
                return Ok(HEARTBEAT);
            }
            PathStep::Begin => {
                let current = Some(Token::generate()?);
                tokens = StoredTokens { current, made_for, ..StoredTokens::default() };
            }
            PathStep::Adopt { previous } => {
                tokens.current = registered_token(seen);
                let known = self.paths.accepted();
                tokens.previous = known.iter().find(|token| Some(token.id()) == previous).cloned();
            }
            PathStep::Stage => (tokens.next, tokens.made_for) = (Some(Token::generate()?), made_for),
            PathStep::Promote => {
                tokens.previous = tokens.current.take();
                tokens.current = tokens.next.take();
            }
            PathStep::Drop => tokens.previous = None,
        }
        tokens.write(&mut secret);
        if leads() {
            cluster.write_secret(&secret).await?;
            tracing::info!(reason, "changed the tokens of the webhook's path");
            self.paths.accept(tokens.accepted());
        }
        Ok(HEARTBEAT)
    }

    fn unchanged_for(&mut self, tokens: Tokens) -> Duration {
        match &self.tokens {
            Some((known, since)) if *known == tokens => since.elapsed(),
            _ => {
                self.tokens = Some((tokens, Instant::now()));
                Duration::ZERO
            }
        }
    }

    /// Compares the registered path with the wanted one, and remembers since when they are the same.
    fn registration(&mut self, tokens: &StoredTokens, seen: &SeenConfiguration) -> Registration {
        let configuration = match seen {
            SeenConfiguration::Unknown => return Registration::Unknown,
            SeenConfiguration::Absent => return Registration::Absent,
            SeenConfiguration::Found(configuration) => configuration,
        };
        let exact = tokens.current.as_ref().filter(|token| configuration.calls_only(token)).map(Token::id);
        if self.registered.as_ref().map(|(known, _)| known) != exact.as_ref() {
            self.registered = exact.map(|token| (token, Instant::now()));
        }
        Registration::Held {
            token: registered_token(seen).as_ref().map(Token::id),
            exact_for: self.registered.as_ref().map(|(_, since)| since.elapsed()),
        }
    }
}

fn registered_token(seen: &SeenConfiguration) -> Option<Token> {
    match seen {
        SeenConfiguration::Found(configuration) => configuration.token(),
        SeenConfiguration::Unknown | SeenConfiguration::Absent => None,
    }
}

/// Keeps the path of a webhook whose certificate comes from elsewhere.
pub struct PathKeeper {
    cluster: Cluster,
    settings: Settings,
    leads: Leads,
    /// Tells which certificate is served.
    resolver: Arc<Resolver>,
    metrics: Metrics,
    heartbeat: Heartbeat,
    work: PathWork,
    complained: Option<String>,
}

impl Turns for PathKeeper {
    async fn turn(&mut self, leads: bool) -> Duration {
        match self.look(leads).await {
            Ok(pause) => {
                self.complained = None;
                pause
            }
            Err(PathError::Cluster(error)) if error.is_conflict() => {
                tracing::debug!(%error, "the Secret or the webhook configuration has changed; looking again");
                HEARTBEAT
            }
            Err(error) => {
                self.metrics.failed();
                let problem = error.to_string();
                if self.complained.as_ref() != Some(&problem) {
                    tracing::warn!(problem, "the webhook's path needs attention, trying again");
                    self.complained = Some(problem);
                }
                self.settings.plan.poll_busy
            }
        }
    }
}

impl PathKeeper {
    pub fn new(
        client: Client,
        settings: Settings,
        leads: Leads,
        resolver: Arc<Resolver>,
        metrics: Metrics,
        heartbeat: Heartbeat,
    ) -> Self {
        let cluster = Cluster::new(client, &settings);
        let work = PathWork::new();
        Self { cluster, settings, leads, resolver, metrics, heartbeat, work, complained: None }
    }

    /// The paths that the admission server answers on.
    pub fn paths(&self) -> Arc<Paths> {
        Arc::clone(&self.work.paths)
    }

    /// Keeps going until `shutdown`.
    pub async fn run(self, shutdown: CancellationToken) {
        let (leads, heartbeat) = (Arc::clone(&self.leads), self.heartbeat.clone());
        turns::run(self, leads, heartbeat, shutdown).await;
    }

    async fn look(&mut self, leads: bool) -> Result<Duration, PathError> {
        let found = self.cluster.secret().await?;
        let tokens = found.as_ref().map(StoredTokens::read).unwrap_or_default();
        self.work.paths.accept(tokens.accepted());
        if !leads {
            self.work.forget();
            return Ok(self.settings.plan.follow_path(&tokens.facts()));
        }
        let seen =
            self.cluster.configuration().await?.map_or(SeenConfiguration::Absent, SeenConfiguration::Found);
        let secret = found.unwrap_or_else(|| secret::blank_of_path(&self.settings));
        let sight = (secret, &seen, self.resolver.leaf());
        self.work.lead(&self.cluster, &self.settings.plan, &self.leads, sight).await
    }
}

impl std::fmt::Debug for PathKeeper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PathKeeper").field("settings", &self.settings).finish_non_exhaustive()
    }
}
