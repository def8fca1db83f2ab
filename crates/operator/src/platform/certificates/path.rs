//! Keeps the token in the webhook's path: every replica accepts what the Secret holds, and the leader changes it.
//!
//! With certificates of its own, the operator keeps tokens in their Secret, and [`super::Keeper`] calls [`PathWork`].
//! With certificates from files, the tokens have a Secret to themselves, and [`PathKeeper`] looks after that alone.

use std::{sync::Arc, time::Duration};

use fairlead_plan::certificates::{
    LeafId, PathDecision, PathStep, PathView, Registration, Settings as Plan, TokenId, Tokens, decide_path,
};
use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    Leads, MaterialError, Metrics, Paths, Resolver, Settings,
    cluster::{Cluster, ClusterError, Configuration},
    keeper::HEARTBEAT,
    secret,
    token::Token,
    tokens::StoredTokens,
};
use crate::platform::telemetry::Pulse;

/// What the leader saw of the webhook configuration.
pub(super) enum Seen {
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
        (mut secret, seen, leaf): (Secret, &Seen, Option<LeafId>),
    ) -> Result<Duration, PathError> {
        let mut tokens = StoredTokens::read(&secret);
        let view = PathView {
            seen_for: self.unchanged_for(tokens.facts()),
            registration: self.registration(&tokens, seen),
            tokens: tokens.facts(),
            leaf,
        };
        let PathDecision { step, reason } = decide_path(&view, plan);
        let made_for = view.leaf;
        match step {
            PathStep::Wait { after } => return Ok(after),
            PathStep::Register => {
                if let (Seen::Found(configuration), Some(token)) = (seen, &tokens.current)
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
            PathStep::Adopt => tokens.current = registered_token(seen),
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

    /// Compares what API servers are told with what they should be told, and remembers since when it is the same.
    fn registration(&mut self, tokens: &StoredTokens, seen: &Seen) -> Registration {
        let configuration = match seen {
            Seen::Unknown => return Registration::Unknown,
            Seen::Absent => return Registration::Absent,
            Seen::Found(configuration) => configuration,
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

fn registered_token(seen: &Seen) -> Option<Token> {
    match seen {
        Seen::Found(configuration) => configuration.token(),
        Seen::Unknown | Seen::Absent => None,
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
    pulse: Pulse,
    work: PathWork,
    complained: Option<String>,
}

impl PathKeeper {
    pub fn new(
        client: Client,
        settings: Settings,
        leads: Leads,
        resolver: Arc<Resolver>,
        metrics: Metrics,
        pulse: Pulse,
    ) -> Self {
        let cluster = Cluster::new(client, &settings);
        let work = PathWork::new();
        Self { cluster, settings, leads, resolver, metrics, pulse, work, complained: None }
    }

    /// The paths that the admission server answers on.
    pub fn paths(&self) -> Arc<Paths> {
        Arc::clone(&self.work.paths)
    }

    /// Keeps going until `shutdown`.
    pub async fn run(mut self, shutdown: CancellationToken) {
        while !shutdown.is_cancelled() {
            let leads = (self.leads)();
            let turn = async {
                let pause = self.turn(leads).await;
                self.rest(leads, pause).await;
            };
            if shutdown.run_until_cancelled(turn).await.is_none() {
                return;
            }
        }
    }

    /// One look and at most one step; returns how long to wait before the next.
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

    async fn look(&mut self, leads: bool) -> Result<Duration, PathError> {
        let found = self.cluster.secret().await?;
        let tokens = found.as_ref().map(StoredTokens::read).unwrap_or_default();
        self.work.paths.accept(tokens.accepted());
        if !leads {
            self.work.forget();
            return Ok(self.settings.plan.follow_path(&tokens.facts()));
        }
        let seen = self.cluster.configuration().await?.map_or(Seen::Absent, Seen::Found);
        let secret = found.unwrap_or_else(|| secret::blank_of_path(&self.settings));
        let sight = (secret, &seen, self.resolver.leaf());
        self.work.lead(&self.cluster, &self.settings.plan, &self.leads, sight).await
    }

    /// Waits with some jitter, but not beyond becoming or ceasing to be the leader.
    async fn rest(&self, led: bool, pause: Duration) {
        let end = Instant::now() + pause.mul_f64(1.0 + fastrand::f64() / 4.0);
        loop {
            self.pulse.beat();
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || (self.leads)() != led {
                return;
            }
            tokio::time::sleep(left.min(HEARTBEAT)).await;
        }
    }
}

impl std::fmt::Debug for PathKeeper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PathKeeper").field("settings", &self.settings).finish_non_exhaustive()
    }
}
