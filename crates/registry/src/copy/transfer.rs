//! One blob on its way from registry to registry.
//!
//! The usual case is one request that carries the whole blob. When it breaks, the destination is asked how much it has and
//! gets the rest; when it refuses so much at once, it gets chunks. The source is read as fast as the destination takes
//! it, so nothing piles up in between.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use futures::stream;
use tokio::sync::{Mutex, OwnedSemaphorePermit};
use tokio::time::{Instant, sleep};

use super::blob_index::Turn;
use super::retry::{MOST_FAILURES, Setbacks, with_retries};
use super::{CopyError, Event, Job, Observer};
use crate::error::{Error, Problem};
use crate::limits::rate::Class;
use crate::manifest::Descriptor;
use crate::ops::blob::{BlobReader, UNDER_WAY};
use crate::ops::upload::Upload;
use crate::request::context::Context;
use crate::size_limits;
use crate::transport::http::Body;

/// A registry may take its time to store a blob that it has received.
pub(super) const COMMIT: Duration = Duration::from_mins(5);
/// Time for telling a registry that an upload is given up.
const FAREWELL: Duration = Duration::from_secs(5);

/// How a blob is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Everything in one request.
    Whole,
    /// In requests of at most so many bytes.
    Chunks(u64),
}

impl Way {
    /// The next smaller way, for destinations behind something that limits the size of requests.
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
    /// Wait for a while, ask how much it has and send the rest.
    Resume(Duration),
    /// Begin again in this way.
    Restart(Way),
    GiveUp,
}

fn recovery(problem: &Problem, way: Way, setbacks: Setbacks, jitter: f64, now: SystemTime) -> Recovery {
    if let Some(pause) = setbacks.pause(problem, jitter, now) {
        return Recovery::Resume(pause);
    }
    let again = setbacks.failures < MOST_FAILURES;
    match problem {
        // A token may have ended in mid-transfer; the question how far it got fetches another.
        Problem::Unauthorised(_) if setbacks.failures == 1 => Recovery::Resume(Duration::ZERO),
        Problem::NotFound(_) | Problem::Rejected { status: 416, .. } if again => Recovery::Restart(way),
        Problem::Rejected { status: 413, .. } => way.smaller().map_or(Recovery::GiveUp, Recovery::Restart),
        // Not every registry takes a blob in one request; all take chunks.
        Problem::Rejected { status: 400 | 405 | 411 | 501, .. } if way == Way::Whole => {
            way.smaller().map_or(Recovery::GiveUp, Recovery::Restart)
        }
        _ => Recovery::GiveUp,
    }
}

pub(super) struct Transfer<'a> {
    job: &'a Job<'a>,
    blob: &'a Descriptor,
    tap: Arc<Mutex<Tap>>,
    /// Pieces that the destination took of the current request.
    pieces: Arc<AtomicU64>,
    /// The number of the current request. A connection may keep the body of one that was given up for a while.
    current: Arc<AtomicU64>,
    _slots: Vec<OwnedSemaphorePermit>,
}

/// The source's side, from which the bodies of requests are filled.
struct Tap {
    reader: BlobReader,
    /// What was read and did not fit into the last request.
    rest: Bytes,
    done: u64,
    fault: Option<Error>,
    context: Context,
    observer: Arc<dyn Observer>,
    blob: Descriptor,
    pieces: Arc<AtomicU64>,
    /// Those who wait for the blob see from it how that fares.
    turn: Arc<Turn>,
}

impl<'a> Transfer<'a> {
    /// Waits until both registries and the copier have room for a transfer.
    pub(super) async fn new(job: &'a Job<'a>, blob: &'a Descriptor) -> Result<Self, CopyError> {
        let slots = job.slots().await?;
        let pieces = Arc::new(AtomicU64::new(0));
        let tap = Tap {
            reader: job.source.blob(blob),
            rest: Bytes::new(),
            done: 0,
            fault: None,
            context: job.context.clone(),
            observer: Arc::clone(job.observer),
            blob: blob.clone(),
            pieces: Arc::clone(&pieces),
            turn: job.turn(blob),
        };
        tap.turn.came(0);
        Ok(Self { job, blob, tap: Arc::new(Mutex::new(tap)), pieces, current: Arc::default(), _slots: slots })
    }

    pub(super) async fn run(self, mut open: OpenUpload) -> Result<(), CopyError> {
        if open.0.is_none() {
            open.0 = Some(self.begin().await?);
        }
        let (mut way, mut setbacks, mut best) = (Way::Whole, Setbacks::default(), 0);
        while let Some(upload) = &mut open.0 {
            let Err(error) = self.send(upload, way).await else {
                open.0 = None;
                return Ok(());
            };
            let (jitter, now) = (fastrand::f64(), SystemTime::now());
            // If the source failed, the destination saw only that the body broke off.
            let fault = self.tap.lock().await.fault.take();
            let (error, step) = if let Some(fault) = fault {
                setbacks.count(&fault.problem, self.job.context);
                let pause = setbacks.pause(&fault.problem, jitter, now);
                (CopyError::Source(fault), pause.map_or(Recovery::GiveUp, Recovery::Resume))
            } else {
                setbacks.count(&error.problem, self.job.context);
                let step = recovery(&error.problem, way, setbacks, jitter, now);
                (CopyError::Destination(error), step)
            };
            match step {
                Recovery::GiveUp => return Err(error),
                Recovery::Resume(pause) if !self.job.context.bears(pause) => {
                    return Err(error);
                }
                Recovery::Resume(pause) => sleep(pause).await,
                Recovery::Restart(next) => {
                    way = next;
                    open = OpenUpload(Some(self.begin().await?));
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

    async fn begin(&self) -> Result<Upload, CopyError> {
        with_retries(self.job.context, || self.job.destination.begin_upload(self.job.context))
            .await
            .map_err(CopyError::Destination)
    }

    /// Asks the destination how much it has; an upload that it no longer knows begins anew.
    async fn catch_up(&self, open: &mut OpenUpload) -> Result<u64, CopyError> {
        let mut setbacks = Setbacks::default();
        while let Some(upload) = &mut open.0 {
            match upload.catch_up(self.job.context).await {
                Ok(offset) if offset <= self.blob.size => return Ok(offset),
                // What it has is worth waiting for.
                Err(error) if matches!(error.problem, Problem::RateLimited { .. }) => {
                    let waited = setbacks.wait_out(error, self.job.context).await;
                    waited.map_err(CopyError::Destination)?;
                }
                Err(error) if matches!(error.problem, Problem::Unreachable(_) | Problem::TimedOut(_)) => {
                    // Sending again will find out whether it is still away.
                    return Ok(upload.offset());
                }
                _ => break,
            }
        }
        *open = OpenUpload(Some(self.begin().await?));
        Ok(0)
    }

    async fn rewind(&self, offset: u64) {
        let mut tap = self.tap.lock().await;
        self.current.fetch_add(1, Ordering::Relaxed);
        tap.reader.rewind(offset);
        tap.rest = Bytes::new();
        tap.done = offset;
    }

    /// Sends what the destination does not have yet, and closes the upload.
    async fn send(&self, upload: &mut Upload, way: Way) -> Result<(), Error> {
        let (digest, size, context) = (&self.blob.digest, self.blob.size, self.job.sending);
        if way == Way::Whole && upload.offset() == 0 {
            return self.watched(upload.put(digest, size, self.body(size), context)).await;
        }
        while upload.offset() < size {
            let length = way.length(size - upload.offset(), upload.smallest_chunk());
            self.watched(upload.append_stream(length, self.body(length), context)).await?;
        }
        self.watched(upload.finish(digest, context)).await
    }

    /// Gives a request up when it has begun to move and then stands still. One that moved until the deadline says so.
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
                let problem = Problem::Unreachable("the transfer stands still".into());
                return Err(self.job.destination.during("write the blob", &self.blob.digest.into(), problem));
            }
            seen = now;
        }
    }

    /// The next `length` bytes of the source as the body of a request.
    fn body(&self, length: u64) -> Body {
        let own = self.current.fetch_add(1, Ordering::Relaxed) + 1;
        let (tap, current) = (Arc::clone(&self.tap), Arc::clone(&self.current));
        Body::stream(stream::unfold(length, move |left| {
            let (tap, current) = (Arc::clone(&tap), Arc::clone(&current));
            async move {
                if left == 0 {
                    return None;
                }
                let mut tap = tap.lock().await;
                if current.load(Ordering::Relaxed) != own {
                    return Some((Err(io::Error::other("the request was given up")), 0));
                }
                match tap.piece(left).await {
                    Ok(piece) => {
                        let left = left.saturating_sub(piece.len() as u64);
                        if left == 0 {
                            tap.pieces.store(u64::MAX, Ordering::Relaxed);
                        }
                        Some((Ok(piece), left))
                    }
                    Err(error) => Some((Err(error), 0)),
                }
            }
        }))
    }
}

impl Tap {
    /// The next piece, of at most `most` bytes. What goes wrong at the source is kept for the one who asks later: the
    /// destination's side sees only that the body broke off.
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
        self.turn.came(piece.len() as u64);
        if self.done == self.blob.size {
            self.turn.is_complete();
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

/// An upload that is given up unless it was closed, also when the copy itself is given up.
pub(super) struct OpenUpload(pub(super) Option<Upload>);

impl Drop for OpenUpload {
    fn drop(&mut self) {
        self.give_up();
    }
}

impl OpenUpload {
    /// Tells the registry, without waiting for that as [`Copier::cancellations_sent`](super::Copier::cancellations_sent) does.
    pub(super) fn give_up(&mut self) {
        if let (Some(mut upload), Ok(runtime)) = (self.0.take(), tokio::runtime::Handle::try_current()) {
            let cancellations = upload.cancellations();
            let cancellations_sent = async move {
                let context =
                    Context::new(Class::Background, Instant::now() + FAREWELL).through_open_circuit();
                // A registry that is full or failing opened the circuit, and needs the room most. It forgets the upload by
                // itself in time, so this is not tried again.
                drop(upload.cancel(&context).await);
            };
            cancellations.spawn_on(cancellations_sent, &runtime);
        }
    }
}

impl Job<'_> {
    /// Places for one transfer at both registries and in the copier. They are taken in a fixed order, both at once where
    /// both are the same registry, so that transfers cannot wait for each other in a circle.
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
        let chunks = Way::Chunks(16 << 20);
        for (problem, way, failures, expected) in [
            (&unreachable, Way::Whole, 1, Recovery::Resume(Duration::from_millis(500))),
            (&unreachable, Way::Whole, MOST_FAILURES, Recovery::GiveUp),
            (&Problem::NotFound(Detail::none()), chunks, 1, Recovery::Restart(chunks)),
            (&Problem::Unauthorised(Detail::none()), chunks, 1, Recovery::Resume(Duration::ZERO)),
            (&Problem::Unauthorised(Detail::none()), chunks, 2, Recovery::GiveUp),
            (&rejected(413), Way::Whole, 1, Recovery::Restart(chunks)),
            (&rejected(413), chunks, 2, Recovery::Restart(Way::Chunks(4 << 20))),
            (&rejected(413), Way::Chunks(512 << 10), 2, Recovery::GiveUp),
            (&rejected(405), Way::Whole, 1, Recovery::Restart(chunks)),
            (&rejected(405), chunks, 1, Recovery::GiveUp),
            (&Problem::Forbidden(Detail::none()), Way::Whole, 1, Recovery::GiveUp),
        ] {
            let setbacks = Setbacks { failures, ..Setbacks::default() };
            let found = recovery(problem, way, setbacks, 1.0, std::time::UNIX_EPOCH);
            assert_eq!(found, expected, "{problem} {way:?} {failures}");
        }
    }

    #[test]
    fn chunks_are_as_large_as_both_sides_allow() {
        assert_eq!(Way::Whole.length(100, Some(10)), 100);
        assert_eq!(Way::Chunks(30).length(100, None), 30);
        assert_eq!(Way::Chunks(30).length(100, Some(50)), 50);
        assert_eq!(Way::Chunks(30).length(20, Some(50)), 20, "the last one may be smaller");
    }
}
