//! Uploads of blobs.
//!
//! Usually two requests: one opens the upload, one carries the whole blob and closes it. After a broken connection the
//! registry is asked how much it has, and the rest follows in chunks. Registries that do not accept a whole blob get
//! chunks from the start.

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

/// Attempts to cancel: what the registry has may still grow for a moment after the connection broke.
const MOST_CANCELLATIONS: u32 = 4;
const OCTETS: &str = "application/octet-stream";
const SMALLEST_CHUNK_HEADER: &str = "oci-chunk-min-length";

/// An open upload.
#[derive(Debug)]
pub struct Upload {
    remote: RepositoryClient,
    location: CheckedLocation,
    /// The smallest chunk that the registry accepts, except for the last.
    smallest_chunk: Option<u64>,
    /// Bytes that the registry has.
    offset: u64,
}

/// The result of a request to mount a blob from another repository.
#[derive(Debug)]
pub enum Mount {
    /// The blob is in the repository.
    Done,
    /// The registry opened an upload instead.
    Refused(Box<Upload>),
}

impl RepositoryClient {
    /// Opens an upload.
    pub async fn begin_upload(&self, context: &Context) -> Result<Upload, Error> {
        let request = empty(harmless(ApiRequest::api(Method::POST, self.path("blobs/uploads/"))));
        let opened = async { self.opened(&self.call(&request, context).await?) };
        opened.await.map_err(|problem| self.upload_failed("open an upload to", problem))
    }

    /// Mounts a blob from another repository of the same registry.
    pub async fn mount(&self, digest: &Digest, from: &Repository, context: &Context) -> Result<Mount, Error> {
        let mount = async {
            let query = url::form_urlencoded::Serializer::new(String::new())
                .append_pair("mount", &digest.to_string())
                .append_pair("from", from.path())
                .finish();
            let path = self.path(&format!("blobs/uploads/?{query}"));
            let mut request = empty(harmless(ApiRequest::api(Method::POST, path)));
            request.extra_scope = Some(Scope::repository(from.path(), Right::Pull));
            let response = self.call(&request, context).await?;
            match response.status() {
                StatusCode::CREATED => Ok(Mount::Done),
                _ => self.opened(&response).map(|upload| Mount::Refused(Box::new(upload))),
            }
        };
        mount.await.map_err(|problem| self.upload_failed("mount a blob into", problem))
    }

    fn opened(&self, response: &ApiResponse) -> Result<Upload, Problem> {
        let smallest_chunk = response.header(SMALLEST_CHUNK_HEADER).and_then(|text| text.trim().parse().ok());
        Ok(Upload { remote: self.clone(), location: self.location(response)?, smallest_chunk, offset: 0 })
    }

    fn location(&self, response: &ApiResponse) -> Result<CheckedLocation, Problem> {
        let location = response
            .header(LOCATION.as_str())
            .ok_or_else(|| Problem::malformed("it does not say where the upload goes"))?;
        self.checked(response, location)
    }

    fn upload_failed(&self, attempt: &str, problem: Problem) -> Error {
        problem.during(format!("{attempt} {}", self.repository()))
    }
}

impl Upload {
    /// Bytes that the registry has.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Tasks that cancel uploads.
    pub(crate) fn cancellations(&self) -> TaskTracker {
        self.remote.state.cancellations.clone()
    }

    /// The smallest chunk that the registry accepts, except for the last.
    pub fn smallest_chunk(&self) -> Option<u64> {
        self.smallest_chunk
    }

    /// Sends the whole blob and closes the upload. The body must be `size` bytes long.
    pub async fn put(&self, digest: &Digest, size: u64, body: Body, context: &Context) -> Result<(), Error> {
        self.put_with(digest, size, |request| request.with_stream(body), context).await
    }

    async fn put_with(
        &self,
        digest: &Digest,
        size: u64,
        fill: impl FnOnce(ApiRequest) -> ApiRequest,
        context: &Context,
    ) -> Result<(), Error> {
        let put = async {
            let mut request = fill(ApiRequest::location(Method::PUT, self.closing(digest)));
            request.headers.insert(CONTENT_TYPE, HeaderValue::from_static(OCTETS));
            request.headers.insert(CONTENT_LENGTH, HeaderValue::from(size));
            let response = self.remote.call(&request, context).await?;
            drop(response.into_permit(context).await);
            Ok(())
        };
        put.await.map_err(|problem| self.failed(digest, problem))
    }

    /// Sends the whole blob from memory and closes the upload.
    pub async fn put_bytes(&self, digest: &Digest, bytes: Bytes, context: &Context) -> Result<(), Error> {
        let size = bytes.len() as u64;
        self.put_with(digest, size, |request| request.with_bytes(bytes), context).await
    }

    /// Sends the next chunk.
    pub async fn append(&mut self, chunk: Bytes, context: &Context) -> Result<(), Error> {
        let length = chunk.len() as u64;
        self.send_chunk(length, |request| request.with_bytes(chunk), context).await
    }

    /// Sends the next chunk of this length as a stream.
    pub async fn append_stream(&mut self, length: u64, body: Body, context: &Context) -> Result<(), Error> {
        self.send_chunk(length, |request| request.with_stream(body), context).await
    }

    async fn send_chunk(
        &mut self,
        length: u64,
        fill: impl FnOnce(ApiRequest) -> ApiRequest,
        context: &Context,
    ) -> Result<(), Error> {
        let Some(last) = length.checked_sub(1) else { return Ok(()) };
        let sent = async {
            let mut request = fill(ApiRequest::location(Method::PATCH, self.location.clone()));
            let range = format!("{}-{}", self.offset, self.offset + last);
            let headers = &mut request.headers;
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(OCTETS));
            headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
            headers.insert(
                CONTENT_RANGE,
                HeaderValue::from_str(&range).map_err(|error| Problem::malformed(error.to_string()))?,
            );
            self.remote.location(&self.remote.call(&request, context).await?)
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

    /// Asks the registry how much it has, and continues from there.
    pub async fn catch_up(&mut self, context: &Context) -> Result<u64, Error> {
        let asked = async {
            let request = ApiRequest::location(Method::GET, self.location.clone());
            let response = self.remote.call(&request, context).await?;
            let location = match response.header(LOCATION.as_str()) {
                Some(location) => self.remote.checked(&response, location)?,
                None => self.location.clone(),
            };
            Ok((location, response.header(RANGE.as_str()).map_or(0, received)))
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
        let request = empty(ApiRequest::location(Method::PUT, self.closing(digest)));
        match self.remote.call(&request, context).await {
            Ok(response) => {
                drop(response.into_permit(context).await);
                Ok(())
            }
            Err(problem) => Err(self.failed(digest, problem)),
        }
    }

    /// Cancels the upload, so that the registry need not keep it. Distribution wants to be told how much it has; after
    /// a request that broke off it is asked first. Its release 2 does not answer that and keeps the upload until it
    /// cleans up.
    pub async fn cancel(&mut self, context: &Context) -> Result<(), Error> {
        let mut attempts = 0;
        loop {
            let request = ApiRequest::location(Method::DELETE, self.location.clone());
            attempts += 1;
            match self.remote.call(&request, context).await {
                Ok(_) | Err(Problem::NotFound(_)) => return Ok(()),
                Err(Problem::Rejected { status: 416, .. }) if attempts < MOST_CANCELLATIONS => {
                    self.catch_up(context).await?;
                }
                Err(problem) => return Err(self.remote.upload_failed("give up an upload to", problem)),
            }
        }
    }

    fn closing(&self, digest: &Digest) -> CheckedLocation {
        let mut location = self.location.clone();
        location.target.url.query_pairs_mut().append_pair("digest", &digest.to_string());
        location
    }

    fn failed(&self, digest: &Digest, problem: Problem) -> Error {
        self.remote.during("write the blob", &(*digest).into(), problem)
    }
}

/// A request that states its empty body, which some registries insist on.
fn empty(mut request: ApiRequest) -> ApiRequest {
    request.headers.insert(CONTENT_LENGTH, HeaderValue::from(0));
    request
}

/// A request that may be repeated: at worst an unused upload is left, which registries clean up.
fn harmless(mut request: ApiRequest) -> ApiRequest {
    request.is_harmless = true;
    request
}

/// How many bytes a registry has: `0-99` is a hundred.
fn received(header: &str) -> u64 {
    let header = header.trim().trim_start_matches("bytes=");
    match header.split_once('-').and_then(|(_, last)| last.parse::<u64>().ok()) {
        // Registries write `0-0` for an empty upload. At worst a single byte is sent again.
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
