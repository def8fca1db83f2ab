//! Carries out one task: a copy, a comparison or a removal.
//!
//! Nothing here decides whether it should be done; it finds credentials, talks to registries, and says what came of it.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use fairlead_domain::cause::Cause;
use fairlead_domain::digest::Digest;
use fairlead_domain::platform::PlatformFilter;
use fairlead_domain::reference::{Reference, Tag};
use fairlead_domain::verdict::Verdict;
use fairlead_plan::mirroring::{self, CopySource, Fault, Finding, OtherTags, SourceKind, Task, Veto, Work};
use fairlead_plan::routing::SecretName;
use fairlead_registry::copy::{
    BlobOutcome, Copied, Copier, CopyEndpoint, CopyError, CopyOptions, Event, Observer,
};
use fairlead_registry::manifest::{Resolved, Selector};
use fairlead_registry::{
    Class, Client, Context, Deleted, Error, ErrorClass, Problem, RepositoryClient, Right, TagUsage,
};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::credentials::{Access, Credentials, Reader};
use super::metrics::Metrics;
use crate::platform::config::Mirroring;
use crate::registries::verdicts::Verdicts;

/// The longest that one copy may take. One that stands still is given up much earlier.
const LONGEST_COPY: Duration = Duration::from_hours(2);
/// How long a copy waits for a registry that is away for a moment; after that others have their turn.
const PATIENCE: Duration = Duration::from_secs(3);
/// How often it is looked whether a registry is still there.
const LOOK: Duration = Duration::from_secs(1);
/// For questions and removals.
const LONGEST_REQUEST: Duration = Duration::from_mins(1);
/// How long a registry is left alone whose quota is used up, if it does not say for how long.
const QUOTA_PAUSE: Duration = Duration::from_mins(1);
/// Tags of one repository that are looked at before a manifest is deleted together with its tags.
const MOST_TAGS: usize = 200;

/// What is needed to carry out one task.
#[derive(Debug, Clone)]
pub(super) struct Order {
    pub(super) task: Task,
    /// Where the image may be read, in the order of attempts.
    pub(super) sources: Vec<CopySource>,
    /// On whose behalf sources are read.
    pub(super) reader: Reader,
    /// On whose account the destination is contacted, and with the Secret of which mirror.
    pub(super) destination_cause: Cause,
    pub(super) secret: Option<SecretName>,
    /// Digests in the same repository that other copies need.
    pub(super) needed: Vec<Digest>,
    /// Digests that were written to the destination according to the ledger.
    pub(super) written: Vec<Digest>,
    /// Tells when the destination is about to be written.
    pub(super) publishing: Publishing,
}

/// Which digest a copy is writing to its destination. The copy fills it in just before; it may be asked at any time.
#[derive(Debug, Clone, Default)]
pub(super) struct Publishing(Arc<OnceLock<Digest>>);

impl Publishing {
    pub(super) fn digest(&self) -> Option<Digest> {
        self.0.get().copied()
    }
}

/// Why a task failed.
#[derive(Debug)]
pub(super) struct Trouble {
    pub(super) error: String,
    /// A registry that wants to be left alone, and for how long.
    pub(super) pause: Option<(Arc<str>, Duration)>,
    pub(super) fault: Fault,
}

impl From<String> for Trouble {
    fn from(error: String) -> Self {
        Self { error, pause: None, fault: Fault::Destination }
    }
}

/// What all tasks share.
#[derive(Clone)]
pub(super) struct Executor {
    client: Client,
    copier: Copier,
    credentials: Credentials,
    verdicts: Verdicts,
    platforms: Arc<[PlatformFilter]>,
    referrers: bool,
    metrics: Metrics,
    /// Rings whenever a copy begins to write to its destination.
    published: Arc<Notify>,
}

impl Executor {
    pub(super) fn new(
        client: Client,
        credentials: Credentials,
        verdicts: Verdicts,
        mirroring: &Mirroring,
        metrics: &Metrics,
    ) -> Self {
        Self {
            copier: Copier::new(&client),
            client,
            credentials,
            verdicts,
            platforms: mirroring.platforms.clone().unwrap_or_default().into(),
            referrers: mirroring.referrers,
            metrics: metrics.clone(),
            published: Arc::default(),
        }
    }

    /// Rings whenever a copy begins to write to its destination.
    pub(super) fn published(&self) -> Arc<Notify> {
        Arc::clone(&self.published)
    }

    fn observer(&self, publishing: &Publishing) -> Arc<dyn Observer> {
        let (metrics, published) = (self.metrics.clone(), Arc::clone(&self.published));
        let publishing = publishing.clone();
        Arc::new(move |event: &Event| match event {
            Event::BlobDone { size, outcome: BlobOutcome::Sent, .. } => metrics.sent(*size),
            Event::Publishing { digest } => {
                publishing.0.get_or_init(|| *digest);
                published.notify_one();
            }
            _ => {}
        })
    }

    pub(super) async fn carry_out(self, order: Order) -> Result<Finding, Trouble> {
        match order.task.work {
            Work::Copy => self.copy(&order).await,
            Work::Compare => self.compare(&order).await,
            Work::Identify => self.identify(&order).await,
            Work::Delete => self.remove(&order).await,
        }
    }

    async fn copy(&self, order: &Order) -> Result<Finding, Trouble> {
        let Task { source: original, destination, .. } = &order.task;
        let to = self.open_destination(order).await?;
        let mut unreadable = None;
        for source in &order.sources {
            let from = self.open_source(source, order).await;
            match self.copy_from(source, &from, &to, order).await {
                Ok(copied) => {
                    if source.kind != SourceKind::Original {
                        tracing::info!(
                            image = %original, from = %source.reference, to = %destination,
                            "copied from another place, since the original cannot be read"
                        );
                    }
                    return Ok(self.copied(&to, &copied));
                }
                Err(error @ CopyError::Source(_)) => {
                    let trouble = self.trouble(&error, order, &from, &to);
                    // What is wrong with the original is reported.
                    if source.kind == SourceKind::Original {
                        unreadable = Some(trouble);
                    }
                }
                Err(error) => return Err(self.trouble(&error, order, &from, &to)),
            }
        }
        Err(unreadable.unwrap_or_else(|| {
            let error = format!("the registry of {original} is down, and no other place has the image");
            Trouble { fault: Fault::Source, ..Trouble::from(error) }
        }))
    }

    async fn open_source(&self, source: &CopySource, order: &Order) -> Access {
        let CopySource { reference, cause, mirror, upstreams, .. } = source;
        self.credentials.to_read(reference, *cause, &order.reader, mirror.as_ref(), upstreams).await
    }

    async fn open_destination(&self, order: &Order) -> Result<Access, Trouble> {
        let Order { task, destination_cause, secret, .. } = order;
        let access = self.credentials.to_write(&task.destination, *destination_cause, secret.as_ref());
        Ok(access.await?)
    }

    async fn copy_from(
        &self,
        source: &CopySource,
        from: &Access,
        to: &Access,
        order: &Order,
    ) -> Result<Copied, CopyError> {
        let destination = &order.task.destination;
        let pinned = destination.digest();
        let options = CopyOptions {
            platforms: if source.chooses_platforms(destination) {
                self.platforms.to_vec()
            } else {
                Vec::new()
            },
            referrers: self.referrers,
            hold: pinned.map(|digest| mirroring::hold_tag(&digest)),
            follow_source: true,
        };
        let context =
            Context::new(Class::Background, Instant::now() + LONGEST_COPY).waiting_at_most(PATIENCE);
        let mut to = to.place.clone();
        if pinned.is_some() {
            // What the tag names elsewhere may be something else; the digest alone says what is wanted.
            to.reference = to.reference.without_tag();
        }
        let observer = self.observer(&order.publishing);
        let copying = self.copier.copy(&from.place, &to, &options, &observer, &context);
        tokio::select! {
            done = copying => done,
            down = self.goes_down(&from.place) => Err(CopyError::Source(down)),
            down = self.goes_down(&to) => Err(CopyError::Destination(down)),
        }
    }

    /// Ends when the registry of an image is found to be down. One that accepts requests and stays silent would
    /// otherwise keep a worker for as long as a transfer may stand still.
    async fn goes_down(&self, place: &CopyEndpoint) -> Error {
        let host = place.reference.host();
        loop {
            tokio::time::sleep(LOOK).await;
            let Some(health) = self.client.health(&host) else { continue };
            let is_proven = health.proof_age(Instant::now()).is_some_and(|age| age < PATIENCE);
            if !is_proven && let Some(check) = self.client.check(&host, place.cause, PATIENCE) {
                check.ended(PATIENCE, Instant::now() + LONGEST_REQUEST).await;
            }
            if let Some(down) = health.down() {
                let attempt = format!("copy from or to {host}").into();
                return Error { attempt, problem: Problem::Unreachable(down.reason().into()) };
            }
        }
    }

    fn copied(&self, to: &Access, copied: &Copied) -> Finding {
        let Copied { digest, source_digest, changed, .. } = *copied;
        let CopyEndpoint { reference, credentials, cause } = &to.place;
        let verdict = Verdict::Available { digest: Some(digest) };
        self.verdicts.caused_by(*cause).learn(reference, credentials, verdict);
        Finding::Copied { digest, source_digest, written: changed }
    }

    /// Whether a source that does not own the destination has the same image.
    async fn compare(&self, order: &Order) -> Result<Finding, Trouble> {
        let Some(source) = order.sources.first() else { return Ok(Finding::CompareFailed) };
        let from = self.open_source(source, order).await;
        let context = Context::new(Class::Background, Instant::now() + LONGEST_REQUEST);
        let resolving = async {
            let remote = self.open(&from, Right::Pull)?;
            remote.resolve(&Selector::of(&source.reference), &context).await
        };
        let digest = resolving.await.map_err(|error| self.refusal(&error, &from))?.digest;
        Ok(Finding::Compared { digest, source_digest: digest })
    }

    async fn remove(&self, order: &Order) -> Result<Finding, Trouble> {
        let at = self.open_destination(order).await?;
        let context = Context::new(Class::Background, Instant::now() + LONGEST_REQUEST);
        let removed =
            self.remove_tag(&at, order, &context).await.map_err(|error| self.refusal(&error, &at))?;
        if removed == Finding::Deleted {
            let gone = Verdict::NotFound { reason: "the copy was removed, since nothing used it".into() };
            let CopyEndpoint { reference, credentials, cause } = &at.place;
            self.verdicts.caused_by(*cause).learn(reference, credentials, gone);
        }
        Ok(removed)
    }

    /// Deletes the tag that holds a copy, if it still holds what we wrote. Between the look and the deletion another
    /// writer may write to it all the same: registries delete by name without a condition.
    async fn remove_tag(&self, at: &Access, order: &Order, context: &Context) -> Result<Finding, Error> {
        let destination = &order.task.destination;
        let kept =
            |veto: Veto, foreign| Ok(Finding::Kept { why: format!("{destination} stays: {veto}"), foreign });
        let remote = self.open(at, Right::Delete)?;
        let Some(tag) = tag_of(destination) else { return Ok(Finding::Deleted) };
        let Some(digest) = found(remote.resolve(&Selector::from(&tag), context).await)? else {
            return Ok(Finding::Deleted);
        };
        if let Err(veto) = mirroring::confirm(&order.written, digest) {
            return kept(veto, Some(digest));
        }
        match remote.delete_tag(&tag, context).await? {
            Deleted::Tag | Deleted::Digest(_) | Deleted::Nothing => return Ok(Finding::Deleted),
            Deleted::Unsupported => {}
        }
        // This registry deletes manifests only, with every tag that names them.
        if let Err(veto) = mirroring::confirm_manifest(&order.needed, digest) {
            return kept(veto, None);
        }
        let usage = remote.tag_usage(digest, &tag, MOST_TAGS, context).await?;
        let others = match &usage {
            TagUsage::Unused => OtherTags::None,
            TagUsage::UsedBy(other) => OtherTags::Found(other.as_str()),
            TagUsage::Unknown => OtherTags::Unknown,
        };
        if let Err(veto) = mirroring::confirm_tags(others) {
            return kept(veto, None);
        }
        remote.delete_digest(digest, context).await?;
        Ok(Finding::Deleted)
    }

    /// What is under the name of a copy.
    async fn identify(&self, order: &Order) -> Result<Finding, Trouble> {
        let at = self.open_destination(order).await?;
        let context = Context::new(Class::Background, Instant::now() + LONGEST_REQUEST);
        let Some(tag) = tag_of(&order.task.destination) else {
            return Ok(Finding::Identified { digest: None });
        };
        let resolving = async {
            let remote = self.open(&at, Right::Pull)?;
            found(remote.resolve(&Selector::from(&tag), &context).await)
        };
        let digest = resolving.await.map_err(|error| self.refusal(&error, &at))?;
        Ok(Finding::Identified { digest })
    }

    fn open(&self, access: &Access, right: Right) -> Result<RepositoryClient, Error> {
        let CopyEndpoint { reference, credentials, cause } = &access.place;
        self.client.repository_for(*cause, &reference.repository(), Arc::clone(credentials), right)
    }

    fn trouble(&self, error: &CopyError, order: &Order, from: &Access, to: &Access) -> Trouble {
        let (cause, access, fault) = match error {
            CopyError::Source(cause) => (cause, from, Fault::Source),
            CopyError::Destination(cause) => (cause, to, destination_fault(cause, &order.publishing)),
            _ => return Trouble { fault: Fault::Source, ..Trouble::from(error.to_string()) },
        };
        Trouble { error: error.to_string(), fault, ..self.refusal(cause, access) }
    }

    fn refusal(&self, error: &Error, access: &Access) -> Trouble {
        if error.class() == ErrorClass::Denied {
            self.credentials.distrust(access);
        }
        let pause = match &error.problem {
            Problem::RateLimited { until, .. } => {
                let left = until.and_then(|until| until.duration_since(SystemTime::now()).ok());
                Some((access.place.reference.host().key().to_shared(), left.unwrap_or(QUOTA_PAUSE)))
            }
            _ => None,
        };
        Trouble { error: error.to_string(), pause, fault: Fault::Destination }
    }
}

/// The tag that holds a copy.
fn tag_of(copy: &Reference) -> Option<Tag> {
    match copy.digest() {
        Some(digest) => Some(mirroring::hold_tag(&digest)),
        None => Tag::parse(copy.tag().unwrap_or("latest")).ok(),
    }
}

/// What a name stands for; `None` if there is nothing.
fn found(resolved: Result<Resolved, Error>) -> Result<Option<Digest>, Error> {
    match resolved {
        Ok(resolved) => Ok(Some(resolved.digest)),
        Err(Error { problem: Problem::NotFound(_), .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// A registry that says no has written nothing; one that does not answer may have.
fn destination_fault(cause: &Error, publishing: &Publishing) -> Fault {
    let refused = match &cause.problem {
        Problem::Rejected { status, .. } => *status < 500,
        Problem::NotFound(_)
        | Problem::Unauthorised(_)
        | Problem::Forbidden(_)
        | Problem::RateLimited { .. } => true,
        _ => false,
    };
    publishing.digest().filter(|_| refused).map_or(Fault::Destination, Fault::Refused)
}
