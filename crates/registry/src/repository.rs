//! A repository with the credentials of one caller.
//!
//! Every operation is a method of [`RepositoryClient`], defined in [`crate::ops`]. This module sends their requests,
//! follows redirects and retries.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use fairlead_domain::keyring::Credential;
use fairlead_domain::reference::Repository;
use hyper::StatusCode;
use hyper::header::LOCATION;
use url::Url;

use crate::auth::Authorization;
use crate::auth::scope::{Right, Scope};
use crate::client::ClientState;
use crate::error::Problem;
use crate::registry::Registry;
use crate::request::context::Context;
use crate::request::response::ApiResponse;
use crate::request::send::{SendError, send_elsewhere, send_limited, with_retries};
use crate::request::{ApiRequest, CheckedLocation, RequestTarget};
use crate::transport::failure::Failure;
use crate::transport::redirect::{self, Target};

/// No credential has worked yet.
pub(crate) const UNDECIDED: usize = usize::MAX;

/// A repository with the credentials of one caller. Clones share what was learnt about the credentials.
#[derive(Clone, Debug)]
pub struct RepositoryClient {
    pub(crate) state: Arc<ClientState>,
    pub(crate) registry: Arc<Registry>,
    repository: Repository,
    credentials: Arc<[Credential]>,
    pub(crate) working: Arc<WorkingCredentials>,
    pub(crate) scopes: Arc<[Scope]>,
}

/// The credentials that worked, by position. One that may read need not be allowed to write.
#[derive(Debug)]
pub(crate) struct WorkingCredentials {
    pub(crate) reading: AtomicUsize,
    pub(crate) writing: AtomicUsize,
    /// Reading works without credentials, and did not with them.
    pub(crate) anonymous: AtomicBool,
}

impl RepositoryClient {
    pub(crate) fn new(
        state: Arc<ClientState>,
        registry: Arc<Registry>,
        repository: Repository,
        credentials: Arc<[Credential]>,
        right: Right,
    ) -> Self {
        let scopes = Arc::new([Scope::repository(repository.path(), right)]);
        let working = Arc::new(WorkingCredentials {
            reading: AtomicUsize::new(UNDECIDED),
            writing: AtomicUsize::new(UNDECIDED),
            anonymous: AtomicBool::new(false),
        });
        Self { state, registry, repository, credentials, working, scopes }
    }

    pub fn repository(&self) -> &Repository {
        &self.repository
    }

    /// The address of the registry, with the scheme that it turned out to speak.
    pub fn address(&self) -> &Url {
        self.registry.endpoint.base()
    }

    /// Whether the registry has asked for credentials so far, of any caller.
    pub fn wants_login(&self) -> bool {
        self.registry.challenges(|challenges| challenges.scheme().is_some())
    }

    pub(crate) fn credentials(&self) -> &[Credential] {
        &self.credentials
    }

    pub(crate) fn path(&self, rest: &str) -> String {
        format!("{}/{rest}", self.repository.path())
    }

    /// Checks an address found in an answer.
    pub(crate) fn checked(&self, response: &ApiResponse, location: &str) -> Result<CheckedLocation, Problem> {
        let base = self.registry.endpoint.base();
        let target =
            redirect::follow(base, response.url(), location, response.reach(), 0).map_err(|why| {
                Problem::malformed(format!("it points to an address that is not followed: {why}"))
            })?;
        Ok(CheckedLocation { target, reach: response.reach() })
    }

    /// Sends a request, and again after a transient failure if that does no harm.
    pub(crate) async fn send_retrying(
        &self,
        request: &ApiRequest,
        authorization: &Authorization,
        credential: Option<&Credential>,
        context: &Context,
    ) -> Result<ApiResponse, Problem> {
        let may_be_retried = request.may_be_retried();
        let retry_after = |outcome: &Result<ApiResponse, SendError>| match outcome {
            _ if !may_be_retried => None,
            Ok(response) => response.retry_after(),
            Err(error) => error.retry_after(),
        };
        let attempt = || self.send_in_either_scheme(request, authorization, credential, context);
        Ok(with_retries(context, retry_after, attempt).await?)
    }

    /// Sends a request over TLS, or over plain HTTP where the registry does not speak TLS and need not.
    async fn send_in_either_scheme(
        &self,
        request: &ApiRequest,
        authorization: &Authorization,
        credential: Option<&Credential>,
        context: &Context,
    ) -> Result<ApiResponse, SendError> {
        loop {
            let was_secure = self.registry.endpoint.base().scheme() == "https";
            match self.send_following(request, authorization, credential, context).await {
                Err(error) if error.no_tls && was_secure && self.registry.endpoint.fall_back() => {}
                outcome => return outcome,
            }
        }
    }

    /// Sends a request and follows redirects.
    async fn send_following(
        &self,
        request: &ApiRequest,
        authorization: &Authorization,
        credential: Option<&Credential>,
        context: &Context,
    ) -> Result<ApiResponse, SendError> {
        let (mut target, mut reach) = match &request.target {
            RequestTarget::Api(path) => (Target { url: self.registry.api(path)?, at_home: true }, None),
            RequestTarget::Location(location) => (location.target.clone(), location.reach),
        };
        let account = credential.map(Credential::id);
        let Registry { transport, server, trial, endpoint, settings, .. } = &*self.registry;
        let mut permit = None;
        let mut hops = 0;
        loop {
            let mut built = request.build(&target, authorization)?;
            let response = if target.at_home {
                built.headers.extend(settings.headers.clone());
                drop(permit.take());
                let pool =
                    if context.wants_new_connections() { transport.unpooled() } else { transport.home() };
                send_limited(server, pool, built, account, context, trial).await?
            } else {
                transport.judge(&target.url, reach).await.map_err(Failure::Forbidden)?;
                let permit = match permit.take() {
                    Some(permit) => permit,
                    None => server.enter(account, context).await?,
                };
                send_elsewhere(transport.away(&target.url, reach), built, permit, context)
                    .await
                    .map_err(|error| error.of(&storage(&target.url)))?
            };
            if !is_redirect(response.status()) || !request.is_read() {
                return Ok(response);
            }
            let location = response.header(LOCATION.as_str()).filter(|location| !location.is_empty());
            let location =
                location.ok_or_else(|| Problem::malformed("it redirects without saying where to"))?;
            reach = response.reach();
            target = redirect::follow(endpoint.base(), response.url(), location, reach, hops)
                .map_err(|why| Problem::malformed(format!("its redirect is not followed: {why}")))?;
            hops += 1;
            permit = Some(response.into_permit(context).await);
        }
    }
}

/// The name of another host in messages.
pub(crate) fn storage(url: &Url) -> String {
    format!("its storage {}", url.host_str().unwrap_or_default())
}

fn is_redirect(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}
