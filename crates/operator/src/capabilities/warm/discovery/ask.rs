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
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, timeout_at};
use url::{Position, Url};

use super::DiscoverySetup;
use super::access::Access;
use crate::registries::verdicts;

/// For one request of a registry.
const REQUEST: Duration = Duration::from_secs(30);
/// For a query with all its requests.
const QUERY: Duration = Duration::from_mins(5);
/// Bytes of answers to one policy up to which several are asked for at the same time.
const LIGHT: usize = 8 << 20;
/// Most bytes of answers to all queries of one policy: two of the largest queries.
const HEAVIEST: usize = 112 << 20;
/// About what a tag takes.
const TAG_SIZE: usize = 256;

/// What a query came to, and how long it took.
#[derive(Debug)]
pub(super) struct Asked {
    pub(super) answer: Result<Answer, Failure>,
    pub(super) took: Duration,
}

/// What the queries of a policy came to.
#[derive(Debug)]
pub(super) struct AllAsked {
    pub(super) queries: Vec<Asked>,
    /// Kept while there are many answers.
    pub(super) turn: Option<OwnedSemaphorePermit>,
}

/// Sends the queries one after the other.
pub(super) async fn ask_all(setup: Arc<DiscoverySetup>, discovery: Arc<Discovery>) -> AllAsked {
    let mut queries = Vec::with_capacity(discovery.queries.len());
    let mut volume = Volume::new(&setup.heavy);
    for query in &discovery.queries {
        let begun = Instant::now();
        let answer = ask(&setup, query, &mut volume).await;
        let took = begun.elapsed().saturating_sub(std::mem::take(&mut volume.waited));
        queries.push(Asked { answer, took });
    }
    AllAsked { queries, turn: volume.turn }
}

/// How much one policy was answered. The largest answers of several policies would not fit in memory, so one policy
/// waits until another is done with its own.
struct Volume {
    bytes: usize,
    heavy: Arc<Semaphore>,
    turn: Option<OwnedSemaphorePermit>,
    /// For its turn, during the present query.
    waited: Duration,
}

impl Volume {
    fn new(heavy: &Arc<Semaphore>) -> Self {
        Self { bytes: 0, heavy: Arc::clone(heavy), turn: None, waited: Duration::ZERO }
    }

    async fn add(&mut self, bytes: usize) -> Result<(), Failure> {
        self.bytes = self.bytes.saturating_add(bytes);
        if self.bytes > HEAVIEST {
            let most = HEAVIEST >> 20;
            let message = format!("the answers to all queries have more than {most} MiB: use longer steps");
            return Err(Failure::new(FailureReason::SyncFailed, message));
        }
        if self.bytes > LIGHT && self.turn.is_none() {
            let begun = Instant::now();
            self.turn = Arc::clone(&self.heavy).acquire_owned().await.ok();
            self.waited += begun.elapsed();
        }
        Ok(())
    }
}

async fn ask(setup: &DiscoverySetup, query: &Query, volume: &mut Volume) -> Result<Answer, Failure> {
    let deadline = Instant::now() + QUERY;
    let access = Access::read(&setup.context, query.secret.as_deref());
    let access = timeout_at(deadline, access).await.map_err(|_| too_long())??;
    match (&query.question, query.read(Timestamp::now())) {
        (Question::Registry(tags), _) => {
            let answer = list(setup, tags, &access, deadline).await?;
            volume.add(answer.series.len() * TAG_SIZE).await?;
            Ok(answer)
        }
        (_, Some(reading)) => read(reading, access, deadline, volume).await,
        (_, None) => Ok(Answer::default()),
    }
}

fn too_long() -> Failure {
    let message = format!("it took longer than {} minutes", QUERY.as_secs() / 60);
    Failure::new(FailureReason::Timeout, message)
}

async fn read(
    mut reading: Reading,
    access: Access,
    deadline: Instant,
    volume: &mut Volume,
) -> Result<Answer, Failure> {
    let Some(first) = reading.request() else { return Ok(reading.finish()) };
    let client = HttpClient::new(origin(&first), access.for_http()).map_err(|error| of_http(&error))?;
    while let Some(url) = reading.request() {
        // Waiting for another policy takes nothing from this one's time.
        let response = timeout_at(deadline + volume.waited, client.get(&url[Position::BeforePath..])).await;
        let response = response.map_err(|_| too_long())?.map_err(|error| of_http(&error))?;
        volume.add(response.body.len()).await?;
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

/// Lists the tags of one repository after the other. Those that there is no time for are missing from the answer.
async fn list(
    setup: &DiscoverySetup,
    query: &TagQuery,
    access: &Access,
    deadline: Instant,
) -> Result<Answer, Failure> {
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
    let mut reading = query.read_lists(Timestamp::now());
    for repository in &query.repositories {
        if deadline <= Instant::now() {
            reading.take(repository, Err(too_long()));
            continue;
        }
        let call = CallContext::new(Class::Background, deadline).answered_within(REQUEST);
        let listed = async {
            let remote = client.repository(repository, access.credentials(repository), Right::Pull)?;
            let Tags { tags, complete } = remote.tags_after(query.seek.as_deref(), query.most, &call).await?;
            let mut list = TagList { tags: tags.into_iter().collect(), complete, ..TagList::default() };
            list.made = setup.dates.of(&remote, query.to_be_dated(&list), &call).await;
            Ok(list)
        };
        let listed = timeout_at(deadline, listed).await;
        let listed = listed.map(|listed| listed.map_err(|error: Error| of_registry(&error)));
        reading.take(repository, listed.unwrap_or_else(|_| Err(too_long())));
    }
    reading.finish()
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
