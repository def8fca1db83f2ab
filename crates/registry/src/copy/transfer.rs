//! Transfer of one blob from registry to registry.
//!
//! Usually one request carries the whole blob. When it breaks, the destination is asked how much it has and gets the
//! rest; when it refuses the size, it gets chunks. The source is read as fast as the destination accepts, so nothing is
//! buffered in between.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures::stream;
use tokio::sync::{Mutex, OwnedSemaphorePermit};
use tokio::time::{Instant, sleep};

use super::blob_index::BlobSender;
use super::retry::{MOST_FAILURES, Setbacks};
use super::{CopyError, Event, Job, Observer};
use crate::error::{Error, Problem};
use crate::limits::rate::Class;
use crate::manifest::Descriptor;
use crate::ops::blob::{BlobReader, UNDER_WAY};
use crate::ops::upload::Upload;
use crate::request::context::Context;
use crate::size_limits;
use crate::transport::http::Body;

/// Time for a registry to store a blob that it has received.
pub(super) const COMMIT: Duration = Duration::from_mins(5);
/// Time for cancelling an upload.
const CANCEL_TIME: Duration = Duration::from_secs(5);

/// How a blob is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UploadMode {
    /// In one request.
    Whole,
    /// In requests of at most this many bytes.
    Chunks(u64),
}

impl UploadMode {
    /// The next smaller mode, for destinations behind a proxy that limits the size of requests.
    fn smaller(self) -> Option<Self> {
        match self {
            Self::Whole => Some(Self::Chunks(16 << 20)),
            Self::Chunks(size) if size > 4 << 20 => Some(Self::Chunks(4 << 20)),
            Self::Chunks(size) if size > 512 << 10 => Some(Self::Chunks(512 << 10)),
            Self::Chunks(_) => None,
        }
    }

    fn length(self, left: u64, smallest: Option<u64>) -> u64 {
        match self {
            Self::Whole => left,
            Self::Chunks(size) => left.min(size.max(smallest.unwrap_or(0))),
        }
    }
}

/// What to do after the destination failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Recovery {
    /// Wait, ask how much it has and send the rest.
    Resume(Duration),
    /// Begin again in this mode.
    Restart(UploadMode),
    GiveUp,
}

fn recovery(
    problem: &Problem,
    mode: UploadMode,
    setbacks: Setbacks,
    jitter: f64,
    now: SystemTime,
) -> Recovery {
    if let Some(pause) = setbacks.pause(problem, jitter, now) {
        return Recovery::Resume(pause);
    }
    let again = setbacks.failures < MOST_FAILURES;
    match problem {
        // A token may have expired; asking for the state of the upload fetches another.
        Problem::Unauthorised(_) if setbacks.failures == 1 => Recovery::Resume(Duration::ZERO),
        Problem::NotFound(_) | Problem::Rejected { status: 416, .. } if again => Recovery::Restart(mode),
        Problem::Rejected { status: 413, .. } => mode.smaller().map_or(Recovery::GiveUp, Recovery::Restart),
        // Not every registry accepts a blob in one request; all accept chunks.
        Problem::Rejected { status: 400 | 405 | 411 | 501, .. } if mode == UploadMode::Whole => {
            mode.smaller().map_or(Recovery::GiveUp, Recovery::Restart)
        }
        _ => Recovery::GiveUp,
    }
}

pub(super) struct Transfer<'a> {
    job: &'a Job<'a>,
    blob: &'a Descriptor,
    source: Arc<Mutex<BlobSource>>,
    /// Pieces of the current request that the destination accepted; `u64::MAX` after the last.
    pieces: Arc<AtomicU64>,
    /// The number of the current request. A connection may still hold the body of an earlier one.
    current: Arc<AtomicU64>,
    _slots: Vec<OwnedSemaphorePermit>,
}

/// The source's side, which fills the bodies of requests.
struct BlobSource {
    reader: BlobReader,
    /// Bytes that did not fit into the last request.
    rest: Bytes,
    done: u64,
    fault: Option<Error>,
    context: Context,
    observer: Arc<dyn Observer>,
    blob: Descriptor,
    pieces: Arc<AtomicU64>,
    /// Shows the progress to waiting copies.
    sender: Arc<BlobSender>,
}

impl<'a> Transfer<'a> {
    /// Waits for a slot at both registries and in the copier.
    pub(super) async fn new(job: &'a Job<'a>, blob: &'a Descriptor) -> Result<Self, CopyError> {
        let slots = job.slots().await?;
        let pieces = Arc::new(AtomicU64::new(0));
        let source = BlobSource {
            reader: job.source.blob(blob),
            rest: Bytes::new(),
            done: 0,
            fault: None,
            context: job.context.clone(),
            observer: Arc::clone(job.observer),
            blob: blob.clone(),
            pieces: Arc::clone(&pieces),
            sender: job.blob_state(blob).sender(),
        };
        source.sender.came(0);
        Ok(Self {
            job,
            blob,
            source: Arc::new(Mutex::new(source)),
            pieces,
            current: Arc::default(),
            _slots: slots,
        })
    }

    pub(super) async fn run(self, mut open: OpenUpload) -> Result<(), CopyError> {
        if open.0.is_none() {
            open.0 = Some(self.job.begin_upload().await?);
        }
        let (mut mode, mut setbacks, mut best) = (UploadMode::Whole, Setbacks::default(), 0);
        while let Some(upload) = &mut open.0 {
            let Err(error) = self.send(upload, mode).await else {
                open.0 = None;
                return Ok(());
            };
            let (jitter, now) = (fastrand::f64(), SystemTime::now());
            // If the source failed, the destination only saw that the body broke off.
            let fault = self.source.lock().await.fault.take();
            let (error, step) = if let Some(fault) = fault {
                setbacks.count(&fault.problem, self.job.context);
                let pause = setbacks.pause(&fault.problem, jitter, now);
                (CopyError::Source(fault), pause.map_or(Recovery::GiveUp, Recovery::Resume))
            } else {
                setbacks.count(&error.problem, self.job.context);
                let step = recovery(&error.problem, mode, setbacks, jitter, now);
                (CopyError::Destination(error), step)
            };
            match step {
                Recovery::GiveUp => return Err(error),
                Recovery::Resume(pause) if !self.job.context.allows(pause) => {
                    return Err(error);
                }
                Recovery::Resume(pause) => sleep(pause).await,
                Recovery::Restart(next) => {
                    mode = next;
                    open = OpenUpload(Some(self.job.begin_upload().await?));
                    self.rewind(0).await;
                    continue;
                }
            }
            let offset = self.catch_up(&mut open).await?;
            self.rewind(offset).await;
            if offset > best {
                (best, setbacks) = (offset, Setbacks::default());
            }
        }
        Ok(())
    }

    /// Asks the destination how much it has; an upload that it no longer knows starts again.
    async fn catch_up(&self, open: &mut OpenUpload) -> Result<u64, CopyError> {
        let mut setbacks = Setbacks::default();
        while let Some(upload) = &mut open.0 {
            match upload.catch_up(self.job.context).await {
                Ok(offset) if offset <= self.blob.size => return Ok(offset),
                // Waiting saves what it has.
                Err(error) if matches!(error.problem, Problem::RateLimited { .. }) => {
                    let waited = setbacks.wait_out(error, self.job.context).await;
                    waited.map_err(CopyError::Destination)?;
                }
                Err(error) if matches!(error.problem, Problem::Unreachable(_) | Problem::TimedOut(_)) => {
                    // The next request finds out whether it is back.
                    return Ok(upload.offset());
                }
                _ => break,
            }
        }
        *open = OpenUpload(Some(self.job.begin_upload().await?));
        Ok(0)
    }

    async fn rewind(&self, offset: u64) {
        let mut source = self.source.lock().await;
        self.current.fetch_add(1, Ordering::Relaxed);
        source.reader.rewind(offset);
        source.rest = Bytes::new();
        source.done = offset;
    }

    /// Sends what the destination does not have yet, and closes the upload.
    async fn send(&self, upload: &mut Upload, mode: UploadMode) -> Result<(), Error> {
        let (digest, size, context) = (&self.blob.digest, self.blob.size, self.job.sending);
        if mode == UploadMode::Whole && upload.offset() == 0 {
            return self.watched(upload.put(digest, size, self.body(size), context)).await;
        }
        while upload.offset() < size {
            let length = mode.length(size - upload.offset(), upload.smallest_chunk());
            self.watched(upload.append_stream(length, self.body(length), context)).await?;
        }
        self.watched(upload.finish(digest, context)).await
    }

    /// Ends a request that stalls. One that moved until the deadline says so.
    async fn watched(&self, request: impl Future<Output = Result<(), Error>>) -> Result<(), Error> {
        self.pieces.store(0, Ordering::Relaxed);
        tokio::pin!(request);
        let mut seen = 0;
        loop {
            let moving = seen > 0 && seen != u64::MAX;
            let pieces = || self.pieces.load(Ordering::Relaxed);
            tokio::select! {
                done = &mut request => return done.map_err(|error| match error.problem {
                    Problem::TimedOut(_) if (1..u64::MAX).contains(&pieces()) && self.job.context.has_passed() => {
                        Error { problem: Problem::TimedOut(UNDER_WAY.into()), ..error }
                    }
                    _ => error,
                }),
                () = sleep(if moving { size_limits::STALL } else { COMMIT }) => {}
            }
            let now = pieces();
            if now == seen {
                let problem = Problem::Unreachable("the transfer has stalled".into());
                return Err(self.job.destination.during("write the blob", &self.blob.digest.into(), problem));
            }
            seen = now;
        }
    }

    /// The next `length` bytes of the source as the body of a request.
    fn body(&self, length: u64) -> Body {
        let own = self.current.fetch_add(1, Ordering::Relaxed) + 1;
        let (source, current) = (Arc::clone(&self.source), Arc::clone(&self.current));
        Body::stream(stream::unfold(length, move |left| {
            let (source, current) = (Arc::clone(&source), Arc::clone(&current));
            async move {
                if left == 0 {
                    return None;
                }
                let mut source = source.lock().await;
                if current.load(Ordering::Relaxed) != own {
                    return Some((Err(io::Error::other("the request was given up")), 0));
                }
                match source.piece(left).await {
                    Ok(piece) => {
                        let left = left.saturating_sub(piece.len() as u64);
                        if left == 0 {
                            source.pieces.store(u64::MAX, Ordering::Relaxed);
                        }
                        Some((Ok(piece), left))
                    }
                    Err(error) => Some((Err(error), 0)),
                }
            }
        }))
    }
}

impl BlobSource {
    /// The next piece, of at most `most` bytes. An error of the source is kept for later, because the destination only
    /// sees that the body broke off.
    async fn piece(&mut self, most: u64) -> Result<Bytes, io::Error> {
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        if self.rest.is_empty() {
            match self.reader.next(&self.context).await {
                Ok(Some(piece)) => self.rest = piece,
                Ok(None) => return Err(io::Error::other("the source ended too early")),
                Err(error) => {
                    self.fault = Some(error);
                    return Err(io::Error::other("the source failed"));
                }
            }
        }
        let piece = self.rest.split_to(most.min(self.rest.len()));
        self.done += piece.len() as u64;
        self.sender.came(piece.len() as u64);
        if self.done == self.blob.size {
            self.sender.is_complete();
        }
        self.pieces.fetch_add(1, Ordering::Relaxed);
        self.observer.observe(&Event::BlobMoved {
            digest: self.blob.digest,
            done: self.done,
            size: self.blob.size,
        });
        Ok(piece)
    }
}

/// An upload that is cancelled when it is dropped before it was closed.
pub(super) struct OpenUpload(pub(super) Option<Upload>);

impl Drop for OpenUpload {
    fn drop(&mut self) {
        self.cancel();
    }
}

impl OpenUpload {
    /// Cancels the upload in the background; see [`Copier::cancellations_sent`](super::Copier::cancellations_sent).
    pub(super) fn cancel(&mut self) {
        if let (Some(mut upload), Ok(runtime)) = (self.0.take(), tokio::runtime::Handle::try_current()) {
            let cancellations = upload.cancellations();
            let cancellation = async move {
                let context =
                    Context::new(Class::Background, Instant::now() + CANCEL_TIME).ignoring_open_circuit();
                // Sent although the circuit may be open: a full registry needs the room most. Not retried, because
                // registries remove uploads after a while.
                drop(upload.cancel(&context).await);
            };
            cancellations.spawn_on(cancellation, &runtime);
        }
    }
}

impl Job<'_> {
    /// Slots for one transfer at both registries and in the copier, taken in a fixed order to avoid deadlocks, and both
    /// at once if source and destination are the same registry.
    async fn slots(&self) -> Result<Vec<OwnedSemaphorePermit>, CopyError> {
        let (source, destination) = (&self.source.registry, &self.destination.registry);
        let mut needed = vec![(self.source.repository().host().key(), source, 1)];
        if Arc::ptr_eq(&source.transfers, &destination.transfers) {
            needed = vec![(self.source.repository().host().key(), source, 2)];
        } else {
            needed.push((self.destination.repository().host().key(), destination, 1));
        }
        needed.sort_by(|one, other| one.0.cmp(&other.0));
        let closed = || {
            let problem =
                Problem::Misconfigured("maxConnections is too small to copy within one registry".into());
            CopyError::Destination(problem.during(format!("copy to {}", self.destination.repository())))
        };
        let mut slots = Vec::with_capacity(3);
        for (_, registry, count) in needed {
            if registry.transfer_capacity < count {
                return Err(closed());
            }
            let slot =
                Arc::clone(&registry.transfers).acquire_many_owned(count).await.map_err(|_| closed())?;
            slots.push(slot);
        }
        slots.push(Arc::clone(&self.copier.transfers).acquire_owned().await.map_err(|_| closed())?);
        Ok(slots)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Detail, Outage};

    fn rejected(status: u16) -> Problem {
        Problem::Rejected { status, detail: Detail::none() }
    }

    #[test]
    fn failures_are_answered_by_what_may_help() {
        let unreachable = Problem::Unreachable(Outage::default());
        let chunks = UploadMode::Chunks(16 << 20);
        for (problem, mode, failures, expected) in [
            (&unreachable, UploadMode::Whole, 1, Recovery::Resume(Duration::from_millis(500))),
            (&unreachable, UploadMode::Whole, MOST_FAILURES, Recovery::GiveUp),
            (&Problem::NotFound(Detail::none()), chunks, 1, Recovery::Restart(chunks)),
            (&Problem::Unauthorised(Detail::none()), chunks, 1, Recovery::Resume(Duration::ZERO)),
            (&Problem::Unauthorised(Detail::none()), chunks, 2, Recovery::GiveUp),
            (&rejected(413), UploadMode::Whole, 1, Recovery::Restart(chunks)),
            (&rejected(413), chunks, 2, Recovery::Restart(UploadMode::Chunks(4 << 20))),
            (&rejected(413), UploadMode::Chunks(512 << 10), 2, Recovery::GiveUp),
            (&rejected(405), UploadMode::Whole, 1, Recovery::Restart(chunks)),
            (&rejected(405), chunks, 1, Recovery::GiveUp),
            (&Problem::Forbidden(Detail::none()), UploadMode::Whole, 1, Recovery::GiveUp),
        ] {
            let setbacks = Setbacks { failures, ..Setbacks::default() };
            let found = recovery(problem, mode, setbacks, 1.0, std::time::UNIX_EPOCH);
            assert_eq!(found, expected, "{problem} {mode:?} {failures}");
        }
    }

    #[test]
    fn chunks_are_as_large_as_both_sides_allow() {
        assert_eq!(UploadMode::Whole.length(100, Some(10)), 100);
        assert_eq!(UploadMode::Chunks(30).length(100, None), 30);
        assert_eq!(UploadMode::Chunks(30).length(100, Some(50)), 50);
        assert_eq!(UploadMode::Chunks(30).length(20, Some(50)), 20, "the last one may be smaller");
    }
}
