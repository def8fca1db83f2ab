//! A repository as one caller may use it: where it is, which credentials are tried, and what they are to be used for.
//!
//! Every operation is a method here, each in its own module. This module sends their requests, follows pointers and
//! repeats what may be repeated.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use fairlead_domain::keyring::Credential;
use fairlead_domain::reference::Repository;
use hyper::header::LOCATION;
use hyper::{Method, StatusCode};
use url::Url;

use crate::auth::Authorization;
use crate::auth::scope::{Right, Scope};
use crate::client::ClientState;
use crate::error::Problem;
use crate::registry::Registry;
use crate::request::context::Context;
use crate::request::response::ApiResponse;
use crate::request::send::{SendError, exchange, visit, with_retries};
use crate::request::{ApiRequest, CheckedLocation, RequestTarget};
use crate::transport::failure::Failure;
use crate::transport::redirect::{self, Target};

pub(crate) const UNDECIDED: usize = usize::MAX;

/// A repository with the credentials of one caller. Clones share what was found out about the credentials.
#[derive(Clone, Debug)]
pub struct RepositoryClient {
    pub(crate) state: Arc<ClientState>,
    pub(crate) registry: Arc<Registry>,
    repository: Repository,
    credentials: Arc<[Credential]>,
    pub(crate) chosen: Arc<Chosen>,
    pub(crate) scopes: Arc<[Scope]>,
}

/// The credentials that worked, by their position. Whoever may read need not be allowed to write.
#[derive(Debug)]
pub(crate) struct Chosen {
    pub(crate) reading: AtomicUsize,
    writing: AtomicUsize,
    /// None has to be shown for reading, and those that were did not do.
    pub(crate) nobody: AtomicBool,
}

impl Chosen {
    pub(crate) fn of(&self, method: &Method) -> &AtomicUsize {
        if matches!(*method, Method::GET | Method::HEAD) { &self.reading } else { &self.writing }
    }
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
        let undecided = || AtomicUsize::new(UNDECIDED);
        let nobody = AtomicBool::new(false);
        let chosen = Arc::new(Chosen { reading: undecided(), writing: undecided(), nobody });
        Self { state, registry, repository, credentials, chosen, scopes }
    }

    pub fn repository(&self) -> &Repository {
        &self.repository
    }

    pub(crate) fn credentials(&self) -> &[Credential] {
        &self.credentials
    }

    pub(crate) fn path(&self, rest: &str) -> String {
        format!("{}/{rest}", self.repository.path())
    }

    /// Judges an address found in an answer.
    pub(crate) fn pointer(&self, answer: &ApiResponse, location: &str) -> Result<CheckedLocation, Problem> {
        let base = self.registry.endpoint.base();
        let target = redirect::follow(base, answer.url(), location, answer.reach(), 0).map_err(|why| {
            Problem::malformed(format!("it points to an address that is not followed: {why}"))
        })?;
        Ok(CheckedLocation { target, reach: answer.reach() })
    }

    /// Sends a request again if it failed in a way that passes and sending it twice does no harm.
    pub(crate) async fn patiently(
        &self,
        outgoing: &ApiRequest,
        authorization: &Authorization,
        credential: Option<&Credential>,
        context: &Context,
    ) -> Result<ApiResponse, Problem> {
        let may_repeat = outgoing.may_be_retried();
        let passes_in = |outcome: &Result<ApiResponse, SendError>| match outcome {
            _ if !may_repeat => None,
            Ok(answer) => answer.passes_in(),
            Err(fault) => fault.passes_in(),
        };
        let attempt = || self.in_its_language(outgoing, authorization, credential, context);
        Ok(with_retries(context, passes_in, attempt).await?)
    }

    /// Sends a request with TLS, or without where that turns out not to be spoken and need not be.
    async fn in_its_language(
        &self,
        outgoing: &ApiRequest,
        authorization: &Authorization,
        credential: Option<&Credential>,
        context: &Context,
    ) -> Result<ApiResponse, SendError> {
        loop {
            let was_secure = self.registry.endpoint.base().scheme() == "https";
            match self.once(outgoing, authorization, credential, context).await {
                Err(fault) if fault.no_tls && was_secure && self.registry.endpoint.fall_back() => {}
                outcome => return outcome,
            }
        }
    }

    /// Sends a request once, and after it to wherever the registry points.
    async fn once(
        &self,
        outgoing: &ApiRequest,
        authorization: &Authorization,
        credential: Option<&Credential>,
        context: &Context,
    ) -> Result<ApiResponse, SendError> {
        let (mut target, mut reach) = match outgoing.target() {
            RequestTarget::Api(path) => (Target { url: self.registry.api(path)?, at_home: true }, None),
            RequestTarget::Pointed(pointer) => (pointer.target.clone(), pointer.reach),
        };
        let account = credential.map(Credential::id);
        let transport = &self.registry.transport;
        let mut permit = None;
        let mut hops = 0;
        loop {
            let request = outgoing.request(&target, authorization)?;
            let answer = if target.at_home {
                drop(permit.take());
                let trial = || self.registry.trial();
                let reuses = !context.wants_new_connections();
                let pool = if reuses { transport.home() } else { transport.unpooled() };
                exchange(&self.registry.server, pool, request, account, context, &trial).await?
            } else {
                transport.judge(&target.url, reach).await.map_err(Failure::Forbidden)?;
                let permit = match permit.take() {
                    Some(permit) => permit,
                    None => self.registry.server.enter(account, context).await?,
                };
                visit(transport.away(&target.url, reach), request, permit, context)
                    .await
                    .map_err(|fault| fault.of(&storage(&target.url)))?
            };
            if !is_redirect(answer.status()) || !matches!(*outgoing.method(), Method::GET | Method::HEAD) {
                return Ok(answer);
            }
            let location = answer.header(LOCATION.as_str()).filter(|location| !location.is_empty());
            let location =
                location.ok_or_else(|| Problem::malformed("it redirects without saying where to"))?;
            let base = self.registry.endpoint.base();
            target = redirect::follow(base, answer.url(), location, answer.reach(), hops)
                .map_err(|why| Problem::malformed(format!("its redirect is not followed: {why}")))?;
            reach = answer.reach();
            hops += 1;
            permit = Some(answer.into_permit(context).await);
        }
    }
}

/// How a place is called that the registry sends us to for what it was asked for.
pub(crate) fn storage(url: &Url) -> String {
    format!("its storage {}", url.host_str().unwrap_or_default())
}

fn is_redirect(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}
