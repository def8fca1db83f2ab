//! Reading of blobs as streams: verified on the way, resumed where a connection broke.

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

/// How often a broken transfer is resumed without progress in between.
const MOST_IDLE_RESUMPTIONS: u32 = 3;
/// How much longer each of these waits than the one before; the first does not wait.
const IDLE_PAUSE: Duration = Duration::from_secs(1);
/// A transfer that was cut short by the caller's deadline, not by a registry.
pub(crate) const UNDER_WAY: &str = "the blob was still on its way";

/// A blob being read. The last piece, or the end where the size is not known, is returned only if the whole has the
/// right digest, so a reader that passes the pieces on never completes a wrong blob.
#[derive(Debug)]
pub struct BlobReader {
    remote: RepositoryClient,
    descriptor: Descriptor,
    /// Whether the descriptor says how long the blob is. Otherwise it ends where the registry ends it.
    has_size: bool,
    response: Option<ApiResponse>,
    /// `None` once the digest was verified.
    hasher: Option<Hasher>,
    /// Bytes hashed so far.
    offset: u64,
    /// Bytes of the current response to skip, because they were hashed before.
    to_skip: u64,
    /// Bytes to hash without returning them again, after a rewind.
    hidden: u64,
    idle_resumptions: u32,
}

impl RepositoryClient {
    /// The size of a blob, `None` if it is not there.
    pub async fn blob_size(&self, digest: &Digest, context: &Context) -> Result<Option<u64>, Error> {
        let request = ApiRequest::api(Method::HEAD, self.path(&format!("blobs/{digest}")));
        match self.call(&request, context).await {
            Ok(response) => Ok(Some(response.content_length().unwrap_or_default())),
            Err(Problem::NotFound(_)) => Ok(None),
            Err(problem) => Err(self.during("look for the blob", &(*digest).into(), problem)),
        }
    }

    /// Opens a blob for reading. The first request is sent with the first read.
    pub fn blob(&self, descriptor: &Descriptor) -> BlobReader {
        BlobReader {
            remote: self.clone(),
            descriptor: descriptor.clone(),
            has_size: true,
            response: None,
            hasher: Some(descriptor.digest.algorithm().hasher()),
            offset: 0,
            to_skip: 0,
            hidden: 0,
            idle_resumptions: 0,
        }
    }

    /// Opens a blob whose size is not known: it is what the registry says when it begins to send, if it does say it.
    /// Registries and the storage behind them may answer HEAD otherwise than GET, so nothing is asked before.
    pub async fn open_blob(
        &self,
        digest: Digest,
        context: &Context,
    ) -> Result<(Option<u64>, BlobReader), Error> {
        let descriptor = Descriptor {
            media_type: String::new(),
            digest,
            size: 0,
            artifact_type: None,
            platform: None,
            annotations: None,
            urls: None,
        };
        let mut reader = self.blob(&descriptor);
        let opened = reader.open(context).await;
        let response = opened.map_err(|problem| self.during("read the blob", &digest.into(), problem))?;
        let size = response.content_length();
        (reader.descriptor.size, reader.has_size) = (size.unwrap_or_default(), size.is_some());
        reader.response = Some(response);
        Ok((size, reader))
    }

    /// Reads a blob of at most `limit` bytes into memory.
    pub(crate) async fn small_blob(
        &self,
        descriptor: &Descriptor,
        limit: usize,
        context: &Context,
    ) -> Result<Bytes, Problem> {
        if descriptor.size > limit as u64 {
            return Err(Problem::malformed(format!("{} is longer than {limit} bytes", descriptor.digest)));
        }
        let mut reader = self.blob(descriptor);
        let mut body = BytesMut::with_capacity(usize::try_from(descriptor.size).unwrap_or(limit));
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
        if self.hasher.is_none() {
            return Ok(None);
        }
        loop {
            let chunk = match self.piece(context).await {
                Ok(chunk) => chunk,
                Err(problem) if self.may_resume(&problem) => {
                    let pause = IDLE_PAUSE * self.idle_resumptions;
                    if !context.allows(pause) {
                        return Err(problem);
                    }
                    self.response = None;
                    self.idle_resumptions += 1;
                    sleep(pause).await;
                    continue;
                }
                Err(problem) => return Err(problem),
            };
            let size = self.has_size.then_some(self.descriptor.size);
            let Some(chunk) = chunk else {
                return match size.filter(|size| *size != self.offset) {
                    None => self.verify().map(|()| None),
                    Some(size) => {
                        let text = format!("it ended after {} of {size} bytes", self.offset);
                        Err(Problem::DigestMismatch(text.into()))
                    }
                };
            };
            let Some(chunk) = skipped(&mut self.to_skip, chunk) else { continue };
            self.offset += chunk.len() as u64;
            self.idle_resumptions = 0;
            if let Some(size) = size.filter(|size| self.offset > *size) {
                let text = format!("it is longer than the {size} bytes it should have");
                return Err(Problem::DigestMismatch(text.into()));
            }
            if let Some(hasher) = &mut self.hasher {
                hasher.update(&chunk);
            }
            if size == Some(self.offset) {
                self.verify()?;
            }
            if let Some(chunk) = skipped(&mut self.hidden, chunk) {
                return Ok(Some(chunk));
            }
        }
    }

    /// Goes back to an offset; the next piece begins there. What comes before it is read again for its hash.
    pub(crate) fn rewind(&mut self, offset: u64) {
        *self = Self { hidden: offset, has_size: self.has_size, ..self.remote.blob(&self.descriptor) };
    }

    async fn piece(&mut self, context: &Context) -> Result<Option<Bytes>, Problem> {
        let mut response = match self.response.take() {
            Some(response) => response,
            None => self.open(context).await?,
        };
        let until = context.deadline.min(Instant::now() + size_limits::STALL);
        let chunk = match response.chunk(until, "the blob").await {
            Err(Problem::TimedOut(_)) if context.has_passed() => Err(Problem::TimedOut(UNDER_WAY.into())),
            Err(Problem::TimedOut(_)) => Err(Problem::Unreachable("the transfer has stalled".into())),
            outcome => outcome,
        }?;
        if chunk.is_some() {
            self.response = Some(response);
        }
        Ok(chunk)
    }

    async fn open(&mut self, context: &Context) -> Result<ApiResponse, Problem> {
        let path = self.remote.path(&format!("blobs/{}", self.descriptor.digest));
        let mut request = ApiRequest::api(Method::GET, path);
        if self.offset > 0 {
            let range = HeaderValue::from_str(&format!("bytes={}-", self.offset))
                .map_err(|error| Problem::malformed(error.to_string()))?;
            request.headers.insert(RANGE, range);
        }
        let response = self.remote.call(&request, context).await?;
        let range = response.header(CONTENT_RANGE.as_str()).and_then(range_start);
        let start = range.filter(|_| response.status() == StatusCode::PARTIAL_CONTENT).unwrap_or(0);
        self.to_skip = self
            .offset
            .checked_sub(start)
            .ok_or_else(|| Problem::malformed("it sent another part of the blob than was asked for"))?;
        Ok(response)
    }

    fn may_resume(&self, problem: &Problem) -> bool {
        // Before the first byte the request was retried already.
        self.offset > 0
            && self.idle_resumptions < MOST_IDLE_RESUMPTIONS
            && matches!(problem, Problem::Unreachable(_))
    }

    fn verify(&mut self) -> Result<(), Problem> {
        match self.hasher.take().map(Hasher::finish) {
            Some(found) if found != self.descriptor.digest => {
                Err(Problem::DigestMismatch(format!("what came has the digest {found}").into()))
            }
            _ => Ok(()),
        }
    }
}

/// Takes up to `count` bytes off the front. `None` if nothing is left.
fn skipped(count: &mut u64, mut chunk: Bytes) -> Option<Bytes> {
    let skip = usize::try_from(*count).unwrap_or(usize::MAX).min(chunk.len());
    *count -= skip as u64;
    let rest = chunk.split_off(skip);
    (!rest.is_empty()).then_some(rest)
}

/// The start of a part: `bytes 1000-1999/5000`.
fn range_start(header: &str) -> Option<u64> {
    header.trim().strip_prefix("bytes")?.trim().split('-').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_of_a_part_is_read() {
        assert_eq!(range_start("bytes 1000-1999/5000"), Some(1000));
        assert_eq!(range_start("bytes 0-9/*"), Some(0));
        assert_eq!(range_start("bytes */5000"), None);
        assert_eq!(range_start("items 1-2"), None);
    }
}
