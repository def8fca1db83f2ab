//! Writing blobs.
//!
//! The usual way is two requests: one to open an upload, one that carries everything and closes it. Where a connection
//! breaks, the registry is asked how much it has, and the rest follows in chunks; registries that do not take everything
//! at once get chunks from the start.

use bytes::Bytes;
use fairlead_domain::digest::Digest;
use fairlead_domain::reference::Repository;
use hyper::header::{CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, HeaderValue, LOCATION, RANGE};
use hyper::{Method, StatusCode};
use tokio_util::task::TaskTracker;

use crate::auth::scope::{Right, Scope};
use crate::error::{Error, Problem};
use crate::repository::RepositoryClient;
use crate::request::context::Context;
use crate::request::response::ApiResponse;
use crate::request::{ApiRequest, CheckedLocation};
use crate::transport::http::Body;

/// What the registry has may still grow for a moment, after the connection that carried it is gone.
const MOST_CANCELLATIONS: u32 = 4;
const SMALLEST_CHUNK_HEADER: &str = "oci-chunk-min-length";

/// An upload that was opened and not closed yet.
#[derive(Debug)]
pub struct Upload {
    remote: RepositoryClient,
    location: CheckedLocation,
    /// Chunks other than the last must not be smaller, if the registry says so.
    smallest_chunk: Option<u64>,
    /// Bytes the registry has.
    offset: u64,
}

/// What came of asking a registry to take a blob from another of its repositories.
#[derive(Debug)]
pub enum Mount {
    /// It is there now; nothing needs to be sent.
    Done,
    /// The registry would not, and opened an upload instead.
    Refused(Box<Upload>),
}

impl RepositoryClient {
    /// Opens an upload.
    pub async fn begin_upload(&self, context: &Context) -> Result<Upload, Error> {
        // At worst an upload is left that nobody uses, which registries clean up.
        let outgoing = empty(ApiRequest::api(Method::POST, self.path("blobs/uploads/"))).harmless();
        let opened = async { self.opened(&self.call(&outgoing, context).await?) };
        opened.await.map_err(|problem| self.upload_failed("open an upload to", problem))
    }

    /// Asks for a blob to be taken from another repository of the same registry.
    pub async fn mount(&self, digest: &Digest, from: &Repository, context: &Context) -> Result<Mount, Error> {
        let mount = async {
            let query = url::form_urlencoded::Serializer::new(String::new())
                .append_pair("mount", &digest.to_string())
                .append_pair("from", from.path())
                .finish();
            let outgoing =
                empty(ApiRequest::api(Method::POST, self.path(&format!("blobs/uploads/?{query}"))))
                    .with_scope(Scope::repository(from.path(), Right::Pull))
                    .harmless();
            let answer = self.call(&outgoing, context).await?;
            match answer.status() {
                StatusCode::CREATED => Ok(Mount::Done),
                _ => self.opened(&answer).map(|upload| Mount::Refused(Box::new(upload))),
            }
        };
        mount.await.map_err(|problem| self.upload_failed("mount a blob into", problem))
    }

    fn opened(&self, answer: &ApiResponse) -> Result<Upload, Problem> {
        let smallest_chunk = answer.header(SMALLEST_CHUNK_HEADER).and_then(|text| text.trim().parse().ok());
        Ok(Upload { remote: self.clone(), location: self.location(answer)?, smallest_chunk, offset: 0 })
    }

    fn location(&self, answer: &ApiResponse) -> Result<CheckedLocation, Problem> {
        let location = answer
            .header(LOCATION.as_str())
            .ok_or_else(|| Problem::malformed("it does not say where the upload goes"))?;
        self.pointer(answer, location)
    }

    fn upload_failed(&self, attempt: &str, problem: Problem) -> Error {
        problem.during(format!("{attempt} {}", self.repository()))
    }
}

impl Upload {
    /// Bytes the registry has of this upload.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Where those are counted who give such uploads up.
    pub(crate) fn cancellations(&self) -> TaskTracker {
        self.remote.state.cancellations.clone()
    }

    /// The smallest size of a chunk that is not the last one.
    pub fn smallest_chunk(&self) -> Option<u64> {
        self.smallest_chunk
    }

    /// Sends everything at once and closes the upload. The body must be `size` bytes long.
    pub async fn put(&self, digest: &Digest, size: u64, body: Body, context: &Context) -> Result<(), Error> {
        self.put_with(digest, size, |outgoing| outgoing.with_stream(body), context).await
    }

    async fn put_with(
        &self,
        digest: &Digest,
        size: u64,
        fill: impl FnOnce(ApiRequest) -> ApiRequest,
        context: &Context,
    ) -> Result<(), Error> {
        let put = async {
            let mut outgoing = fill(ApiRequest::pointed(Method::PUT, self.closing(digest)));
            let headers = outgoing.headers_mut();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
            headers.insert(CONTENT_LENGTH, HeaderValue::from(size));
            let answer = self.remote.call(&outgoing, context).await?;
            drop(answer.into_permit(context).await);
            Ok(())
        };
        put.await.map_err(|problem| self.failed(digest, problem))
    }

    /// Sends everything at once from memory and closes the upload.
    pub async fn put_bytes(&self, digest: &Digest, bytes: Bytes, context: &Context) -> Result<(), Error> {
        let size = bytes.len() as u64;
        self.put_with(digest, size, |outgoing| outgoing.with_bytes(bytes), context).await
    }

    /// Sends the next chunk.
    pub async fn append(&mut self, chunk: Bytes, context: &Context) -> Result<(), Error> {
        let length = chunk.len() as u64;
        self.send_chunk(length, |outgoing| outgoing.with_bytes(chunk), context).await
    }

    /// Sends the next chunk, of this length, as it comes.
    pub async fn append_stream(&mut self, length: u64, body: Body, context: &Context) -> Result<(), Error> {
        self.send_chunk(length, |outgoing| outgoing.with_stream(body), context).await
    }

    async fn send_chunk(
        &mut self,
        length: u64,
        fill: impl FnOnce(ApiRequest) -> ApiRequest,
        context: &Context,
    ) -> Result<(), Error> {
        let Some(last) = length.checked_sub(1) else { return Ok(()) };
        let sent = async {
            let mut outgoing = fill(ApiRequest::pointed(Method::PATCH, self.location.clone()));
            let range = format!("{}-{}", self.offset, self.offset + last);
            let headers = outgoing.headers_mut();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
            headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
            headers.insert(
                CONTENT_RANGE,
                HeaderValue::from_str(&range).map_err(|error| Problem::malformed(error.to_string()))?,
            );
            self.remote.location(&self.remote.call(&outgoing, context).await?)
        };
        match sent.await {
            Ok(location) => {
                self.location = location;
                self.offset += length;
                Ok(())
            }
            Err(problem) => Err(self.remote.upload_failed("send a chunk to", problem)),
        }
    }

    /// Asks the registry how much it has, and goes on from there.
    pub async fn catch_up(&mut self, context: &Context) -> Result<u64, Error> {
        let asked = async {
            let answer =
                self.remote.call(&ApiRequest::pointed(Method::GET, self.location.clone()), context).await?;
            let location = match answer.header(LOCATION.as_str()) {
                Some(location) => self.remote.pointer(&answer, location)?,
                None => self.location.clone(),
            };
            Ok((location, answer.header(RANGE.as_str()).map_or(0, received)))
        };
        let (location, offset) = asked
            .await
            .map_err(|problem| self.remote.upload_failed("ask for the state of an upload to", problem))?;
        self.location = location;
        self.offset = offset;
        Ok(offset)
    }

    /// Closes an upload that was sent in chunks.
    pub async fn finish(&self, digest: &Digest, context: &Context) -> Result<(), Error> {
        let outgoing = empty(ApiRequest::pointed(Method::PUT, self.closing(digest)));
        match self.remote.call(&outgoing, context).await {
            Ok(answer) => {
                drop(answer.into_permit(context).await);
                Ok(())
            }
            Err(problem) => Err(self.failed(digest, problem)),
        }
    }

    /// Gives the upload up, so that the registry need not keep what it has of it. Distribution wants to be told how much
    /// that is, which is not known of a request that was broken off: then it is asked first. Its release 2 does not tell
    /// either and keeps the upload until it cleans up.
    pub async fn cancel(&mut self, context: &Context) -> Result<(), Error> {
        let mut attempts = 0;
        loop {
            let outgoing = ApiRequest::pointed(Method::DELETE, self.location.clone());
            attempts += 1;
            match self.remote.call(&outgoing, context).await {
                Ok(_) | Err(Problem::NotFound(_)) => return Ok(()),
                Err(Problem::Rejected { status: 416, .. }) if attempts < MOST_CANCELLATIONS => {
                    self.catch_up(context).await?;
                }
                Err(problem) => return Err(self.remote.upload_failed("give up an upload to", problem)),
            }
        }
    }

    fn closing(&self, digest: &Digest) -> CheckedLocation {
        let mut pointer = self.location.clone();
        pointer.target.url.query_pairs_mut().append_pair("digest", &digest.to_string());
        pointer
    }

    fn failed(&self, digest: &Digest, problem: Problem) -> Error {
        self.remote.during("write the blob", &(*digest).into(), problem)
    }
}

/// A request that is known to have no body. Some registries insist on being told.
fn empty(mut outgoing: ApiRequest) -> ApiRequest {
    outgoing.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(0));
    outgoing
}

/// How many bytes a registry has: `0-99` are a hundred.
fn received(header: &str) -> u64 {
    let header = header.trim().trim_start_matches("bytes=");
    match header.split_once('-').and_then(|(_, last)| last.parse::<u64>().ok()) {
        // Registries write `0-0` for an upload without content. A single byte is sent again at worst.
        None | Some(0) => 0,
        Some(last) => last.saturating_add(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_registry_has_is_read() {
        for (header, expected) in [("0-99", 100), ("bytes=0-99", 100), ("0-0", 0), ("", 0), ("x-y", 0)] {
            assert_eq!(received(header), expected, "{header}");
        }
    }
}
