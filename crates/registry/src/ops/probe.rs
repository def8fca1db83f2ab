//! Probes: whether an image can be pulled.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fairlead_domain::cause::Cause;
use fairlead_domain::digest::Digest;
use fairlead_domain::keyring::{Credential, CredentialId};
use fairlead_domain::reference::{ImageKey, Reference};
use fairlead_domain::verdict::Verdict;
use futures::FutureExt as _;
use futures::future::{BoxFuture, Shared};
use parking_lot::Mutex;
use tokio::time::{Instant, timeout_at};

use super::manifest::head_is_not_supported;
use crate::auth::scope::Right;
use crate::client::{Client, ClientState};
use crate::error::{Detail, Problem};
use crate::limits::quota::Quota;
use crate::limits::rate::Class;
use crate::manifest::Selector;
use crate::repository::RepositoryClient;
use crate::request::context::Context;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ProbeOptions {
    pub method: ProbeMethod,
    /// After a tag was found, request its digest as well: a caching proxy may list a tag whose image it no longer has.
    pub check_digest: bool,
    /// Use a new connection, so that the answer also proves that the registry accepts one.
    pub new_connection: bool,
    pub cause: Cause,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ProbeMethod {
    /// Headers only, which registries do not count as a pull. Where they are incomplete, the manifest is read.
    #[default]
    Head,
    /// Reads the manifest, for registries whose HEAD is wrong.
    Get,
}

/// Probes under way, with their deadlines: single-flight by image, credentials, options and class. A result never
/// reaches a caller with other credentials, and an urgent caller never waits for a probe that gives way to others.
pub(crate) type ProbesUnderWay = Mutex<HashMap<ProbeKey, (Instant, Probe)>>;

type Probe = Shared<BoxFuture<'static, Verdict>>;

/// A caller does not join a probe whose deadline is earlier than its own by more than this.
const DEADLINE_SLACK: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ProbeKey {
    image: ImageKey,
    credentials: Vec<CredentialId>,
    options: ProbeOptions,
    class: Class,
}

impl Client {
    /// Whether an image can be pulled with these credentials. Never fails: what prevents an answer is a verdict too.
    ///
    /// Concurrent callers with the same question share one probe, which continues when they give up. One that may be
    /// withdrawn is shared with none.
    pub async fn probe(
        &self,
        reference: &Reference,
        credentials: &[Credential],
        options: ProbeOptions,
        context: &Context,
    ) -> Verdict {
        let image = reference.pulled();
        let key = ProbeKey {
            image: image.key(),
            credentials: credentials.iter().map(Credential::id).collect(),
            options,
            class: context.class(),
        };
        let probe = {
            let mut under_way = self.state.probes.lock();
            match under_way.get(&key) {
                Some((deadline, probe)) if *deadline + DEADLINE_SLACK >= context.deadline => probe.clone(),
                _ => {
                    let probe = self.start_probe(image, credentials, key.clone(), context.clone());
                    if !context.may_be_withdrawn() {
                        under_way.insert(key, (context.deadline, probe.clone()));
                    }
                    probe
                }
            }
        };
        timeout_at(context.deadline, probe)
            .await
            .unwrap_or_else(|_| Problem::TimedOut(Detail::none()).verdict())
    }

    fn start_probe(
        &self,
        image: Reference,
        credentials: &[Credential],
        key: ProbeKey,
        context: Context,
    ) -> Probe {
        let (client, credentials) = (self.clone(), Arc::from(credentials));
        let end = ProbeEnd { state: Arc::clone(&self.state), key, deadline: context.deadline };
        let probe = tokio::spawn(async move {
            let verdict = run(&client, &image, credentials, end.key.options, &context).await;
            drop(end);
            verdict.unwrap_or_else(|problem| problem.verdict())
        });
        let ended = || Problem::Unreachable("the probe ended without an answer".into()).verdict();
        async move { probe.await.unwrap_or_else(|_| ended()) }.boxed().shared()
    }
}

/// Removes a probe from those under way, also if it panics.
struct ProbeEnd {
    state: Arc<ClientState>,
    key: ProbeKey,
    deadline: Instant,
}

impl Drop for ProbeEnd {
    fn drop(&mut self) {
        let mut under_way = self.state.probes.lock();
        // A caller with more time may have started another one.
        if under_way.get(&self.key).is_some_and(|(deadline, _)| *deadline == self.deadline) {
            under_way.remove(&self.key);
        }
    }
}

async fn run(
    client: &Client,
    image: &Reference,
    credentials: Arc<[Credential]>,
    options: ProbeOptions,
    context: &Context,
) -> Result<Verdict, Problem> {
    let remote = client
        .repository_for(options.cause, &image.repository(), credentials, Right::Pull)
        .map_err(|error| error.problem)?;
    let fresh = options.new_connection.then(|| context.on_new_connections());
    let context = fresh.as_ref().unwrap_or(context);
    let selector = Selector::of(image);
    let digest = remote.probe_manifest(&selector, options.method, context).await?;
    if selector.digest().is_none() && options.check_digest {
        match remote.probe_digest(digest, options.method, context).await {
            Ok(()) => {}
            Err(Problem::NotFound(_)) => {
                let reason = format!(
                    "the tag is there but its manifest {digest} is not; a proxy may serve an old tag"
                );
                return Err(Problem::NotFound(reason.into()));
            }
            Err(problem) if options.method == ProbeMethod::Head && head_is_not_supported(&problem) => {}
            Err(problem) => return Err(problem),
        }
    }
    Ok(Verdict::Available { digest: Some(digest) })
}

impl RepositoryClient {
    async fn probe_manifest(
        &self,
        selector: &Selector,
        method: ProbeMethod,
        context: &Context,
    ) -> Result<Digest, Problem> {
        if method == ProbeMethod::Head {
            match self.head(selector, context).await {
                Ok(head) => {
                    within_quota(&head.quota)?;
                    if let Some(resolved) = head.resolved {
                        return Ok(resolved.digest);
                    }
                }
                Err(problem) if head_is_not_supported(&problem) => {}
                Err(problem) => return Err(problem),
            }
        }
        let (manifest, quota) = self.get(selector, context).await?;
        within_quota(&quota)?;
        Ok(manifest.digest)
    }

    /// Requests the manifest by the digest of its tag, with the same method.
    async fn probe_digest(
        &self,
        digest: Digest,
        method: ProbeMethod,
        context: &Context,
    ) -> Result<(), Problem> {
        if method == ProbeMethod::Head {
            let head = self.head(&digest.into(), context).await?;
            within_quota(&head.quota)?;
            // An answer without this very digest may come from a server that answers everything.
            if head.resolved.is_some() {
                return Ok(());
            }
        }
        let (_, quota) = self.get(&digest.into(), context).await?;
        within_quota(&quota)
    }
}

/// A registry that answers and states that nothing is left of its quota would refuse the pull that follows.
fn within_quota(quota: &Quota) -> Result<(), Problem> {
    if quota.is_exhausted() {
        return Err(Problem::quota(quota, "its last answer said that no request is left", SystemTime::now()));
    }
    Ok(())
}
