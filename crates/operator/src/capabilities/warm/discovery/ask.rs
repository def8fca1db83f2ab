//! Sends the queries of a policy. Every request has a time limit, and so has every query.

use std::sync::Arc;
use std::time::Duration;

use fairlead_plan::warm::discovery::{
    Answer, Discovery, Failure, FailureReason, Query, Question, Reading, TagList, TagQuery,
};
use fairlead_registry::http_client::{HttpClient, HttpError};
use fairlead_registry::transport::failure::NoConnection;
use fairlead_registry::{Class, Client, Context as CallContext, Error, Problem, Right, Tags};
use jiff::Timestamp;
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout};
use url::{Position, Url};

use super::DiscoverySetup;
use super::access::Access;
use crate::registries::verdicts;

/// For one request of a registry.
const REQUEST: Duration = Duration::from_secs(30);
/// For a query with all its requests.
const QUERY: Duration = Duration::from_mins(5);

/// What a query came to, and how long it took.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) answer: Result<Answer, Failure>,
    pub(super) took: Duration,
}

/// Sends the queries one after the other.
pub(super) async fn ask_all(setup: Arc<DiscoverySetup>, discovery: Arc<Discovery>) -> Vec<Asked> {
    let mut all = Vec::with_capacity(discovery.queries.len());
    for query in &discovery.queries {
        let begun = Instant::now();
        let answer = timeout(QUERY, ask(&setup, query)).await.unwrap_or_else(|_| {
            let message = format!("it took longer than {} minutes", QUERY.as_secs() / 60);
            Err(Failure::new(FailureReason::Timeout, message))
        });
        all.push(Asked { answer, took: begun.elapsed() });
    }
    all
}

async fn ask(setup: &DiscoverySetup, query: &Query) -> Result<Answer, Failure> {
    let access = Access::read(&setup.context, query.secret.as_deref()).await?;
    match (&query.question, query.read(Timestamp::now())) {
        (Question::Registry(tags), _) => list(setup, tags, &access).await,
        (_, Some(reading)) => read(reading, access).await,
        (_, None) => Ok(Answer::default()),
    }
}

async fn read(mut reading: Reading, access: Access) -> Result<Answer, Failure> {
    let Some(first) = reading.request() else { return Ok(reading.finish()) };
    let client = HttpClient::new(origin(&first), access.for_http()).map_err(|error| of_http(&error))?;
    while let Some(url) = reading.request() {
        let response = client.get(&url[Position::BeforePath..]).await.map_err(|error| of_http(&error))?;
        // Answers can have megabytes, and admission must not wait while they are read.
        let taken = spawn_blocking(move || {
            reading.take(response.status.as_u16(), &response.body)?;
            Ok(reading)
        });
        reading =
            taken.await.map_err(|error| Failure::new(FailureReason::SyncFailed, error.to_string()))??;
    }
    Ok(reading.finish())
}

fn origin(url: &Url) -> Url {
    let mut origin = url.clone();
    origin.set_path("/");
    origin.set_query(None);
    origin
}

async fn list(setup: &DiscoverySetup, query: &TagQuery, access: &Access) -> Result<Answer, Failure> {
    let context = &setup.context;
    let mut settings = verdicts::settings(&context.config);
    let plain_http = query.plain_http && !query.registry.is_loopback();
    let client = match access.for_registry(settings.of(&query.registry), plain_http) {
        None => context.registries.clone(),
        Some(own) => {
            settings.set(&query.registry, own);
            Client::new(settings)
        }
    };
    let mut lists = Vec::with_capacity(query.repositories.len());
    for repository in &query.repositories {
        let call = CallContext::new(Class::Background, Instant::now() + QUERY).answered_within(REQUEST);
        let listed = async {
            let remote = client.repository(repository, access.credentials(repository), Right::Pull)?;
            let Tags { tags, complete } = remote.tags_after(query.seek.as_deref(), query.most, &call).await?;
            let mut list = TagList { tags: tags.into_iter().collect(), complete, ..TagList::default() };
            list.made = setup.dates.of(&remote, query.to_be_dated(&list), &call).await;
            Ok(list)
        };
        lists.push(listed.await.map_err(|error: Error| of_registry(&error)));
    }
    query.answer(&lists, Timestamp::now())
}

fn of_http(error: &HttpError) -> Failure {
    let reason = match error {
        HttpError::Unreachable { cause, .. } => of_connection(*cause),
        HttpError::Settings { .. } | HttpError::Tls { .. } => FailureReason::TlsError,
        HttpError::TimedOut { .. } => FailureReason::Timeout,
        HttpError::TooLarge { .. } | HttpError::Malformed { .. } | HttpError::Redirect { .. } => {
            FailureReason::SyncFailed
        }
    };
    Failure::new(reason, error.to_string())
}

fn of_registry(error: &Error) -> Failure {
    let reason = match &error.problem {
        Problem::NotFound(_) => FailureReason::NotFound,
        Problem::Unauthorised(_) => FailureReason::Unauthorized,
        Problem::Forbidden(_) => FailureReason::Forbidden,
        Problem::TimedOut(_) => FailureReason::Timeout,
        Problem::Tls(_) | Problem::Misconfigured(_) => FailureReason::TlsError,
        Problem::Unreachable(outage) => {
            of_connection(NoConnection::of(outage.detail.as_str().unwrap_or_default()))
        }
        _ => FailureReason::SyncFailed,
    };
    Failure::new(reason, error.to_string())
}

fn of_connection(cause: NoConnection) -> FailureReason {
    match cause {
        NoConnection::UnknownName => FailureReason::DnsError,
        NoConnection::Refused => FailureReason::ConnectionRefused,
        NoConnection::Other => FailureReason::SyncFailed,
    }
}
