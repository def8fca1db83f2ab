//! Reading blobs: as streams, verified on the way, taken up again where a connection broke.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use fairlead_domain::digest::{Digest, Hasher};
use hyper::header::{CONTENT_RANGE, HeaderValue, RANGE};
use hyper::{Method, StatusCode};
use tokio::time::{Instant, sleep};

use crate::error::{Error, Problem};
use crate::manifest::Descriptor;
use crate::repository::RepositoryClient;
use crate::request::ApiRequest;
use crate::request::context::Context;
use crate::request::response::ApiResponse;
use crate::size_limits;

/// Distance of the places to which a reader can step back, near where it is: so close that a source whose answers break off
/// early gets further each time.
const CLOSE: u64 = 1024 * 1024;
/// How many are so close. Who takes a blob is seldom further behind than that.
const MOST_CLOSE: usize = 16;
/// Distance of those before: so far apart that they cost nothing, however long a blob is.
const FAR: u64 = 16 * 1024 * 1024;
/// How often a broken transfer is taken up again without having moved in between.
const MOST_IDLE_RESUMPTIONS: u32 = 3;
/// How much longer each of these waits than the one before; the first is made at once. A registry that broke off answers to
/// many is left alone for two seconds.
const IDLE_PAUSE: Duration = Duration::from_secs(1);
/// Said of a transfer that was cut short by the caller's deadline, not by a registry.
pub(crate) const UNDER_WAY: &str = "the blob was still on its way";

/// A blob on its way. The last piece is handed out only when the whole has the right digest, so whoever passes the
/// pieces on never completes something false.
#[derive(Debug)]
pub struct BlobReader {
    remote: RepositoryClient,
    descriptor: Descriptor,
    answer: Option<ApiResponse>,
    hasher: Option<Hasher>,
    /// Bytes handed out or about to be.
    offset: u64,
    /// Bytes of the current answer that were seen before.
    to_skip: u64,
    /// Bytes that are read again for their hash only, after a step back.
    hidden: u64,
    checkpoints: Checkpoints,
    idle_resumptions: u32,
}

/// Places from which to go on without reading everything again, in order.
#[derive(Debug, Default)]
struct Checkpoints(Vec<Checkpoint>);

/// The state of the hash at some offset.
#[derive(Debug)]
struct Checkpoint {
    offset: u64,
    hasher: Hasher,
}

impl Checkpoints {
    fn remember(&mut self, offset: u64, hasher: &Hasher) {
        if offset < self.offset_before(self.0.len()) + CLOSE {
            return;
        }
        self.0.push(Checkpoint { offset, hasher: hasher.clone() });
        // The one that is no longer among the close ones stays only if it is far from its predecessor.
        if let Some(position) = self.0.len().checked_sub(MOST_CLOSE + 1)
            && self.offset_before(position + 1) < self.offset_before(position) + FAR
        {
            self.0.remove(position);
        }
    }

    /// Goes back to the last one that is not beyond an offset.
    fn back_to(&mut self, offset: u64) -> Option<&Checkpoint> {
        self.0.retain(|checkpoint| checkpoint.offset <= offset);
        self.0.last()
    }

    /// Of the checkpoint before this position; a blob begins with one.
    fn offset_before(&self, position: usize) -> u64 {
        position
            .checked_sub(1)
            .and_then(|before| self.0.get(before))
            .map_or(0, |checkpoint| checkpoint.offset)
    }
}

impl RepositoryClient {
    /// The size of a blob, if it is there.
    pub async fn blob_size(&self, digest: &Digest, context: &Context) -> Result<Option<u64>, Error> {
        let outgoing = ApiRequest::api(Method::HEAD, self.path(&format!("blobs/{digest}")));
        match self.call(&outgoing, context).await {
            Ok(answer) => Ok(Some(answer.content_length().unwrap_or_default())),
            Err(Problem::NotFound(_)) => Ok(None),
            Err(problem) => Err(self.during("look for the blob", &(*digest).into(), problem)),
        }
    }

    /// Opens a blob for reading. Nothing is sent before the first piece is asked for.
    pub fn blob(&self, descriptor: &Descriptor) -> BlobReader {
        BlobReader {
            remote: self.clone(),
            descriptor: descriptor.clone(),
            answer: None,
            hasher: Some(descriptor.digest.algorithm().hasher()),
            offset: 0,
            to_skip: 0,
            hidden: 0,
            checkpoints: Checkpoints::default(),
            idle_resumptions: 0,
        }
    }

    /// A blob that is small enough to be held.
    pub(crate) async fn small_blob(
        &self,
        descriptor: &Descriptor,
        bound: usize,
        context: &Context,
    ) -> Result<Bytes, Problem> {
        if descriptor.size > bound as u64 {
            return Err(Problem::malformed(format!("{} is longer than {bound} bytes", descriptor.digest)));
        }
        let mut reader = self.blob(descriptor);
        let mut body = BytesMut::with_capacity(usize::try_from(descriptor.size).unwrap_or(bound));
        while let Some(chunk) = reader.read(context).await? {
            body.extend_from_slice(&chunk);
        }
        Ok(body.freeze())
    }
}

impl BlobReader {
    /// The next piece, `None` at the end.
    pub async fn next(&mut self, context: &Context) -> Result<Option<Bytes>, Error> {
        let digest = self.descriptor.digest;
        self.read(context)
            .await
            .map_err(|problem| self.remote.during("read the blob", &digest.into(), problem))
    }

    async fn read(&mut self, context: &Context) -> Result<Option<Bytes>, Problem> {
        if self.offset == self.descriptor.size && self.hasher.is_none() {
            return Ok(None);
        }
        loop {
            let chunk = match self.piece(context).await {
                Ok(chunk) => chunk,
                Err(problem) if self.may_resume(&problem) => {
                    let pause = IDLE_PAUSE * self.idle_resumptions;
                    if !context.bears(pause) {
                        return Err(problem);
                    }
                    self.answer = None;
                    self.idle_resumptions += 1;
                    sleep(pause).await;
                    continue;
                }
                Err(problem) => return Err(problem),
            };
            let Some(chunk) = chunk else { return self.ended() };
            let Some(chunk) = self.unseen(chunk) else { continue };
            self.offset += chunk.len() as u64;
            self.idle_resumptions = 0;
            if self.offset > self.descriptor.size {
                let size = self.descriptor.size;
                return Err(Problem::DigestMismatch(
                    format!("it is longer than the {size} bytes it should have").into(),
                ));
            }
            if let Some(hasher) = &mut self.hasher {
                hasher.update(&chunk);
            }
            if self.offset == self.descriptor.size {
                self.verify()?;
            } else if let Some(hasher) = &self.hasher {
                self.checkpoints.remember(self.offset, hasher);
            }
            if let Some(chunk) = self.shown(chunk) {
                return Ok(Some(chunk));
            }
        }
    }

    /// Goes back to an offset that was passed already; the next piece begins there.
    pub(crate) fn rewind(&mut self, offset: u64) {
        self.answer = None;
        let (start, hasher) = match self.checkpoints.back_to(offset) {
            Some(checkpoint) => (checkpoint.offset, checkpoint.hasher.clone()),
            None => (0, self.descriptor.digest.algorithm().hasher()),
        };
        self.offset = start;
        self.hasher = Some(hasher);
        self.hidden = offset.saturating_sub(start);
        self.idle_resumptions = 0;
    }

    /// Takes off what the caller has had before a step back.
    fn shown(&mut self, mut chunk: Bytes) -> Option<Bytes> {
        let hidden = usize::try_from(self.hidden).unwrap_or(usize::MAX).min(chunk.len());
        self.hidden -= hidden as u64;
        let rest = chunk.split_off(hidden);
        (!rest.is_empty()).then_some(rest)
    }

    async fn piece(&mut self, context: &Context) -> Result<Option<Bytes>, Problem> {
        let mut answer = match self.answer.take() {
            Some(answer) => answer,
            None => self.open(context).await?,
        };
        let patience = context.deadline.min(Instant::now() + size_limits::STALL);
        let chunk = match answer.chunk(patience, "the blob").await {
            Err(Problem::TimedOut(_)) if context.has_passed() => Err(Problem::TimedOut(UNDER_WAY.into())),
            Err(Problem::TimedOut(_)) => Err(Problem::Unreachable("the transfer stands still".into())),
            outcome => outcome,
        }?;
        if chunk.is_some() {
            self.answer = Some(answer);
        }
        Ok(chunk)
    }

    async fn open(&mut self, context: &Context) -> Result<ApiResponse, Problem> {
        let path = self.remote.path(&format!("blobs/{}", self.descriptor.digest));
        let mut outgoing = ApiRequest::api(Method::GET, path);
        if self.offset > 0 {
            let range = HeaderValue::from_str(&format!("bytes={}-", self.offset))
                .map_err(|error| Problem::malformed(error.to_string()))?;
            outgoing.headers_mut().insert(RANGE, range);
        }
        let answer = self.remote.call(&outgoing, context).await?;
        let begins = match (answer.status(), answer.header(CONTENT_RANGE.as_str()).and_then(range_start)) {
            (StatusCode::PARTIAL_CONTENT, Some(start)) => start,
            _ => 0,
        };
        self.to_skip = self
            .offset
            .checked_sub(begins)
            .ok_or_else(|| Problem::malformed("it sent another part of the blob than was asked for"))?;
        Ok(answer)
    }

    /// Takes off what was seen before the connection broke.
    fn unseen(&mut self, mut chunk: Bytes) -> Option<Bytes> {
        let seen = usize::try_from(self.to_skip).unwrap_or(usize::MAX).min(chunk.len());
        self.to_skip -= seen as u64;
        let rest = chunk.split_off(seen);
        (!rest.is_empty()).then_some(rest)
    }

    fn may_resume(&self, problem: &Problem) -> bool {
        // Before the first byte the request was already repeated as often as is sensible.
        self.offset > 0
            && self.idle_resumptions < MOST_IDLE_RESUMPTIONS
            && matches!(problem, Problem::Unreachable(_))
    }

    /// The body ended; that is the end of the blob only if nothing is missing.
    fn ended(&mut self) -> Result<Option<Bytes>, Problem> {
        if self.offset == self.descriptor.size {
            self.verify()?;
            return Ok(None);
        }
        let (offset, size) = (self.offset, self.descriptor.size);
        Err(Problem::DigestMismatch(format!("it ended after {offset} of {size} bytes").into()))
    }

    fn verify(&mut self) -> Result<(), Problem> {
        let Some(hasher) = self.hasher.take() else {
            return Ok(());
        };
        let found = hasher.finish();
        if found == self.descriptor.digest {
            return Ok(());
        }
        Err(Problem::DigestMismatch(format!("what came has the digest {found}").into()))
    }
}

/// Where a part begins: `bytes 1000-1999/5000`.
fn range_start(header: &str) -> Option<u64> {
    header.trim().strip_prefix("bytes")?.trim().split('-').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use fairlead_domain::digest::Algorithm;

    use super::*;

    #[test]
    fn a_step_back_is_short_and_costs_little_room() {
        let (mut checkpoints, mut hasher) = (Checkpoints::default(), Algorithm::Sha256.hasher());
        let pieces = 1000;
        for position in 1..=pieces {
            // Which piece it is stands for what is in it.
            hasher.update(&u64::to_be_bytes(position));
            checkpoints.remember(position * 300_000, &hasher);
        }
        assert!(checkpoints.0.len() <= MOST_CLOSE + 300_000_000 / usize::try_from(FAR).unwrap());
        for (back, longest) in [(0, CLOSE), (8 << 20, CLOSE), (200_000_000, FAR), (250_000_000, FAR)] {
            let target = pieces * 300_000 - back;
            let found = checkpoints.back_to(target).unwrap();
            let distance = target - found.offset;
            assert!(distance < longest + CLOSE + 600_000, "{back}: {distance}");
            let before: Vec<u8> = (1..=found.offset / 300_000).flat_map(u64::to_be_bytes).collect();
            assert_eq!(found.hasher.clone().finish(), Digest::sha256(&before));
        }
        assert!(checkpoints.back_to(10).is_none(), "the beginning needs none");
    }

    #[test]
    fn the_start_of_a_part_is_read() {
        assert_eq!(range_start("bytes 1000-1999/5000"), Some(1000));
        assert_eq!(range_start("bytes 0-9/*"), Some(0));
        assert_eq!(range_start("bytes */5000"), None);
        assert_eq!(range_start("items 1-2"), None);
    }
}
