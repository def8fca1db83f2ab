//! Is an image there? The question asked most, by admission, watch and people.

pub(crate) mod flight;

use std::sync::Arc;
use std::time::SystemTime;

use fairlead_domain::cause::Cause;
use fairlead_domain::digest::Digest;
use fairlead_domain::keyring::Credential;
use fairlead_domain::reference::Reference;
use fairlead_domain::verdict::Verdict;

use crate::auth::scope::Right;
use crate::client::Client;
use crate::error::Problem;
use crate::limits::quota::Quota;
use crate::manifest::Selector;
use crate::ops::manifest::head_is_not_supported;
use crate::repository::RepositoryClient;
use crate::request::context::Context;

/// How a probe asks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ProbeOptions {
    pub method: ProbeMethod,
    /// After a tag was found, ask for its digest as well: a caching proxy may know a tag whose image it no longer has.
    pub check_digest: bool,
    /// Ask over a new connection, so that the answer also proves that the registry accepts one.
    pub new_connection: bool,
    /// On whose account it asks. Probes of different causes are not shared.
    pub cause: Cause,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ProbeMethod {
    /// Headers only, which registries do not count as a pull. Where they make no sense, the manifest is read.
    #[default]
    Head,
    /// Reads the manifest, for registries whose HEAD is wrong.
    Get,
}

impl Client {
    /// Asks whether an image is there, for the holder of these credentials. Never fails: what prevents an answer is an
    /// answer too.
    ///
    /// Callers that ask the same at the same time share one request. It goes on when a caller gives up, so that nobody's
    /// haste spoils the answer for the others.
    pub async fn probe(
        &self,
        reference: &Reference,
        credentials: &[Credential],
        options: ProbeOptions,
        context: &Context,
    ) -> Verdict {
        flight::join(self, reference, credentials, options, context).await
    }
}

/// The outcome of one probe.
pub(crate) async fn ask(
    client: &Client,
    reference: &Reference,
    credentials: Arc<[Credential]>,
    options: ProbeOptions,
    context: &Context,
) -> Result<Verdict, Problem> {
    let remote = client
        .repository_for(options.cause, &reference.repository(), credentials, Right::Pull)
        .map_err(|error| error.problem)?;
    let fresh = options.new_connection.then(|| context.on_new_connections());
    let context = fresh.as_ref().unwrap_or(context);
    let selector = Selector::of(reference);
    let digest = remote.look(&selector, options.method, context).await?;
    if selector.digest().is_none() && options.check_digest {
        match remote.look_again(digest, options.method, context).await {
            Ok(()) => {}
            Err(Problem::NotFound(_)) => {
                let told = format!(
                    "the tag is there but its manifest {digest} is not; a proxy may serve an old tag"
                );
                return Err(Problem::NotFound(told.into()));
            }
            Err(problem) if options.method == ProbeMethod::Head && head_is_not_supported(&problem) => {}
            Err(problem) => return Err(problem),
        }
    }
    Ok(Verdict::Available { digest: Some(digest) })
}

impl RepositoryClient {
    /// Looks a manifest up and returns its digest.
    async fn look(
        &self,
        selector: &Selector,
        method: ProbeMethod,
        context: &Context,
    ) -> Result<Digest, Problem> {
        if method == ProbeMethod::Head {
            match self.head(selector, context).await {
                Ok(stated) => {
                    within_quota(&stated.quota)?;
                    if let Some(resolved) = stated.resolved {
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

    /// Looks the manifest up by the digest that its tag was found to have, in the same way.
    async fn look_again(
        &self,
        digest: Digest,
        method: ProbeMethod,
        context: &Context,
    ) -> Result<(), Problem> {
        if method == ProbeMethod::Head {
            let stated = self.head(&digest.into(), context).await?;
            within_quota(&stated.quota)?;
            // An answer that does not state this very digest may come from anything that answers everything.
            if stated.resolved.is_some() {
                return Ok(());
            }
        }
        let (_, quota) = self.get(&digest.into(), context).await?;
        within_quota(&quota)
    }
}

/// A registry that answers and says in the same breath that nothing is left would refuse the pull that follows.
fn within_quota(quota: &Quota) -> Result<(), Problem> {
    if quota.is_exhausted() {
        return Err(Problem::quota(quota, "its last answer said that no request is left", SystemTime::now()));
    }
    Ok(())
}
