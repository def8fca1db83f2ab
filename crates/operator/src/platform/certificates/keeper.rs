//! The loop that keeps the certificates: look, serve what is there, and, while leading, take the next step.

use std::sync::Arc;
use std::time::Duration;

use fairlead_plan::certificates::{AuthorityId, Decision, Stage, Step, Trust, View, WallTime, decide};
use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::authority::{KnownAuthority, fingerprint, read_bundle};
use super::cluster::{Cluster, ClusterError, Configuration};
use super::material::SigningAuthority;
use super::path::{PathError, PathWork, SeenConfiguration};
use super::resolver::wall_time;
use super::secret::{Change, Contents, Staging, blank};
use super::turns::{self, HEARTBEAT, Turns};
use super::{Clock, Leads, MaterialError, Metrics, Paths, Resolver, Settings};
use crate::platform::telemetry::Heartbeat;

/// Keeps the webhook's certificates in the cluster, and this replica's leaf up to date.
pub struct Keeper {
    cluster: Cluster,
    settings: Settings,
    leads: Leads,
    clock: Clock,
    resolver: Arc<Resolver>,
    metrics: Metrics,
    heartbeat: Heartbeat,
    memory: Memory,
    path: PathWork,
}

/// What this process has seen for how long. Forgotten with every end of leadership, so that a new term waits anew.
#[derive(Default)]
struct Memory {
    trusted: Option<(Vec<u8>, Instant)>,
    leaf: Option<(AuthorityId, Instant)>,
    /// The last thing said about each matter, so that it is said once.
    said: Option<String>,
    complained: Option<String>,
}

/// One look at the cluster.
struct Sight {
    secret: Option<Secret>,
    contents: Contents,
    configuration: SeenConfiguration,
    trust: Trust,
}

#[derive(Debug, thiserror::Error)]
enum StepError {
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    #[error(transparent)]
    Material(#[from] MaterialError),
    #[error("the {0} that was decided on is not there any more")]
    Gone(&'static str),
}

impl From<PathError> for StepError {
    fn from(error: PathError) -> Self {
        match error {
            PathError::Cluster(error) => Self::Cluster(error),
            PathError::Material(error) => Self::Material(error),
        }
    }
}

impl Turns for Keeper {
    async fn turn(&mut self, leads: bool) -> Duration {
        if !leads {
            self.memory.trusted = None;
            self.memory.leaf = None;
            self.path.forget();
        }
        let sight = match self.look(leads).await {
            Ok(sight) => sight,
            Err(error) => {
                self.complain(&error.to_string());
                return self.settings.plan.poll_busy;
            }
        };
        let kept = sight.secret.is_some().then_some(&sight.contents.kept);
        self.serve(&sight.contents);
        self.metrics.stage(Stage::of(kept));
        if !leads {
            self.memory.complained = None;
            return self.settings.plan.follow(kept);
        }
        let view = View {
            now: self.now(),
            secret: kept.cloned(),
            trust: sight.trust.clone(),
            leaf_seen_for: self.memory.leaf.as_ref().map_or(Duration::ZERO, |(_, since)| since.elapsed()),
        };
        let decision = decide(&view, &self.settings.plan);
        if let Step::Wait { after } = decision.step {
            if matches!(sight.trust, Trust::Held { .. }) {
                self.memory.complained = None;
            }
            self.say(decision.reason);
            let path = self.lead_path(sight).await;
            return self.pause(path).min(after);
        }
        // Not at once: another controller that undoes the step would make a busy loop of it.
        let acted = self.act(sight, decision).await.map(|()| HEARTBEAT);
        self.pause(acted)
    }

    fn refresh(&self) {
        self.resolver.refresh(self.now());
    }
}

impl Keeper {
    pub fn new(
        client: Client,
        settings: Settings,
        leads: Leads,
        clock: Clock,
        metrics: Metrics,
        heartbeat: Heartbeat,
    ) -> Self {
        let cluster = Cluster::new(client, &settings);
        let resolver = Resolver::new();
        let (memory, path) = (Memory::default(), PathWork::new());
        Self { cluster, settings, leads, clock, resolver, metrics, heartbeat, memory, path }
    }

    /// The paths that the admission server answers on.
    pub fn paths(&self) -> Arc<Paths> {
        Arc::clone(&self.path.paths)
    }

    /// Where the admission server gets its leaf.
    pub fn resolver(&self) -> Arc<Resolver> {
        Arc::clone(&self.resolver)
    }

    /// Whether there is a leaf to serve.
    pub fn ready(&self) -> watch::Receiver<bool> {
        self.resolver.ready()
    }

    /// Keeps going until `shutdown`.
    pub async fn run(self, shutdown: CancellationToken) {
        let (leads, heartbeat) = (Arc::clone(&self.leads), self.heartbeat.clone());
        turns::run(self, leads, heartbeat, shutdown).await;
    }

    /// The next step about the path, once there is none about certificates.
    async fn lead_path(&mut self, sight: Sight) -> Result<Duration, StepError> {
        let secret = sight.secret.unwrap_or_else(|| blank(&self.settings));
        let sight = (secret, &sight.configuration, self.resolver.leaf());
        Ok(self.path.lead(&self.cluster, &self.settings.plan, &self.leads, sight).await?)
    }

    /// How long to wait after a step.
    fn pause(&mut self, outcome: Result<Duration, StepError>) -> Duration {
        match outcome {
            Ok(pause) => pause,
            Err(StepError::Cluster(error)) if error.is_conflict() => {
                tracing::debug!(%error, "another writer was faster, looking again");
                HEARTBEAT
            }
            Err(error) => {
                self.complain(&error.to_string());
                self.settings.plan.poll_busy
            }
        }
    }

    async fn look(&mut self, leads: bool) -> Result<Sight, ClusterError> {
        let secret = self.cluster.secret().await?;
        let contents = secret.as_ref().map(Contents::read).unwrap_or_default();
        if !leads {
            return Ok(Sight {
                secret,
                contents,
                configuration: SeenConfiguration::Unknown,
                trust: Trust::Unknown,
            });
        }
        let (configuration, trust) = match self.cluster.configuration().await {
            Ok(Some(configuration)) => {
                let trust = self.judge(&contents, &configuration);
                (SeenConfiguration::Found(configuration), trust)
            }
            Ok(None) => {
                let object = self.cluster.configuration_text();
                self.complain(&format!(
                    "there is no {object} with a webhook of ours, so no Pod is asked about; its CA bundle and its \
                     path are filled in as soon as it appears"
                ));
                self.memory.trusted = None;
                (SeenConfiguration::Absent, Trust::Absent)
            }
            Err(error) => {
                self.complain(&error.to_string());
                self.memory.trusted = None;
                (SeenConfiguration::Unknown, Trust::Unknown)
            }
        };
        self.remember_leaf(&contents);
        Ok(Sight { secret, contents, configuration, trust })
    }

    /// Compares the registered CA bundle with the wanted one, and remembers since when they are the same.
    fn judge(&mut self, contents: &Contents, configuration: &Configuration) -> Trust {
        let exact = configuration.bundles().all(|bundle| *bundle == contents.bundle_text);
        if exact {
            if self.memory.trusted.as_ref().is_none_or(|(bundle, _)| *bundle != contents.bundle_text) {
                self.memory.trusted = Some((contents.bundle_text.clone(), Instant::now()));
            }
        } else {
            self.memory.trusted = None;
        }
        Trust::Held {
            authorities: trusted_by(configuration).map(|authority| authority.facts).collect(),
            exact_for: self.memory.trusted.as_ref().map(|(_, since)| since.elapsed()),
        }
    }

    fn remember_leaf(&mut self, contents: &Contents) {
        let leaf = contents.leaf.as_ref().and_then(|leaf| leaf.certificate()).map(fingerprint);
        if self.memory.leaf.as_ref().map(|(known, _)| known) != leaf.as_ref() {
            self.memory.leaf = leaf.map(|leaf| (leaf, Instant::now()));
        }
    }

    /// Takes over the leaf and the tokens of the Secret. Where there are none, those at hand go on being served.
    fn serve(&self, contents: &Contents) {
        self.path.paths.accept(contents.tokens.accepted());
        if let Some(leaf) = &contents.leaf {
            if self.resolver.install(leaf) {
                tracing::info!(valid_until = %text(leaf.window.not_after), "serving a new certificate");
            }
            self.metrics.serves(leaf.window.not_after);
        }
        if let Some(issuer) = &contents.kept.issuer {
            self.metrics.authority(issuer.window.not_after);
        }
        self.resolver.refresh(self.now());
    }

    async fn act(&mut self, sight: Sight, decision: Decision) -> Result<(), StepError> {
        let Sight { secret, contents, configuration, .. } = sight;
        let plan = &self.settings.plan;
        let now = self.now();
        let mut made = (false, false);
        let change = match &decision.step {
            Step::Wait { .. } => return Ok(()),
            Step::Trust => {
                let SeenConfiguration::Found(configuration) = configuration else {
                    return Err(StepError::Gone("webhook configuration"));
                };
                if (self.leads)() {
                    self.cluster.trust(&configuration, &contents.bundle_text).await?;
                    tracing::info!(
                        reason = decision.reason,
                        "wrote the CA bundle of the webhook configuration"
                    );
                }
                return Ok(());
            }
            Step::Begin => {
                let authority = SigningAuthority::make(plan.authority_window(now))?;
                let leaf =
                    authority.sign(&plan.names, plan.leaf_window(now, &authority.known.facts.window))?;
                made = (true, true);
                Change {
                    leaf: Some(leaf),
                    bundle: Some(vec![authority.known.clone()]),
                    issuer: Some(authority),
                    staged: Staging::Clear,
                }
            }
            Step::Stage { keep } => {
                let authority = SigningAuthority::make(plan.authority_window(now))?;
                let trusted: Vec<_> = match &configuration {
                    SeenConfiguration::Found(configuration) => trusted_by(configuration).collect(),
                    SeenConfiguration::Unknown | SeenConfiguration::Absent => Vec::new(),
                };
                let mut bundle = contents.authorities(keep, &trusted);
                bundle.push(authority.known.clone());
                made = (true, false);
                Change { staged: Staging::Put(authority), bundle: Some(bundle), ..Change::default() }
            }
            Step::Bundle { keep } => {
                Change { bundle: Some(contents.authorities(keep, &[])), ..Change::default() }
            }
            Step::Swap => {
                let staged = contents.staged.ok_or(StepError::Gone("staged authority"))?;
                let leaf = staged.sign(&plan.names, plan.leaf_window(now, &staged.known.facts.window))?;
                made = (false, true);
                Change { leaf: Some(leaf), issuer: Some(staged), staged: Staging::Clear, bundle: None }
            }
            Step::Renew => {
                let issuer = contents.issuer.ok_or(StepError::Gone("authority"))?;
                let leaf = issuer.sign(&plan.names, plan.leaf_window(now, &issuer.known.facts.window))?;
                made = (false, true);
                Change { leaf: Some(leaf), ..Change::default() }
            }
        };
        let mut secret = secret.unwrap_or_else(|| blank(&self.settings));
        change.apply(&mut secret);
        if !(self.leads)() {
            return Ok(());
        }
        self.cluster.write_secret(&secret).await?;
        tracing::info!(
            step = name(&decision.step),
            reason = decision.reason,
            "changed the webhook's certificates"
        );
        if made.0 {
            self.metrics.made_authority();
        }
        if made.1 {
            self.metrics.made_leaf();
        }
        Ok(())
    }

    fn now(&self) -> WallTime {
        wall_time((self.clock)())
    }

    fn say(&mut self, reason: &str) {
        if self.memory.said.as_deref() != Some(reason) {
            tracing::debug!(reason, "certificates");
            self.memory.said = Some(reason.to_owned());
        }
    }

    fn complain(&mut self, problem: &str) {
        self.metrics.failed();
        if self.memory.complained.as_deref() != Some(problem) {
            tracing::warn!(problem, "the webhook's certificates need attention, trying again");
            self.memory.complained = Some(problem.to_owned());
        }
    }
}

/// Every authority that API servers trust for some webhook of ours.
fn trusted_by(configuration: &Configuration) -> impl Iterator<Item = KnownAuthority> {
    configuration.bundles().flat_map(read_bundle)
}

fn name(step: &Step) -> &'static str {
    match step {
        Step::Begin => "begin",
        Step::Stage { .. } => "stage",
        Step::Bundle { .. } => "bundle",
        Step::Trust => "trust",
        Step::Swap => "swap",
        Step::Renew => "renew",
        Step::Wait { .. } => "wait",
    }
}

/// A time for people.
pub(super) fn text(time: WallTime) -> String {
    i64::try_from(time.as_secs())
        .ok()
        .and_then(|seconds| jiff::Timestamp::from_second(seconds).ok())
        .map_or_else(|| "the end of time".to_owned(), |time| time.to_string())
}

impl std::fmt::Debug for Keeper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keeper").field("settings", &self.settings).finish_non_exhaustive()
    }
}
