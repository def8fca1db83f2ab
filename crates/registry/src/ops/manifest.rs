//! Manifests: resolve, read, write.

use std::time::Duration;

use bytes::Bytes;
use fairlead_domain::digest::{Algorithm, Digest};
use fairlead_domain::json;
use fairlead_domain::platform::Platform;
use hyper::Method;
use hyper::header::{ACCEPT, CONTENT_TYPE, HeaderValue};

use crate::error::{Error, Problem};
use crate::limits::quota::Quota;
use crate::manifest::content::media_type_of;
use crate::manifest::{ACCEPT as ALL_KINDS, Image, Manifest, Resolved, Selector, is_manifest};
use crate::repository::RepositoryClient;
use crate::request::ApiRequest;
use crate::request::context::Context;
use crate::request::response::ApiResponse;
use crate::request::send::with_retries;
use crate::size_limits;

/// The header in which registries state the digest of what they send.
const DIGEST_HEADER: &str = "docker-content-digest";

/// The answer to a HEAD of a manifest. `resolved` is missing where the headers are incomplete.
#[derive(Clone, Debug)]
pub(crate) struct ManifestHead {
    pub(crate) resolved: Option<Resolved>,
    pub(crate) quota: Quota,
}

impl RepositoryClient {
    /// The digest, type and size of a manifest, by HEAD. Where its headers are incomplete, the manifest is read and
    /// hashed.
    pub async fn resolve(&self, selector: &Selector, context: &Context) -> Result<Resolved, Error> {
        let resolved = async {
            match self.head(selector, context).await {
                Ok(ManifestHead { resolved: Some(resolved), .. }) => return Ok(resolved),
                Ok(_) => {}
                Err(problem) if head_is_not_supported(&problem) => {}
                Err(problem) => return Err(problem),
            }
            let (manifest, _) = self.get(selector, context).await?;
            Ok(Resolved {
                digest: manifest.digest,
                size: manifest.bytes.len() as u64,
                media_type: manifest.media_type,
            })
        };
        resolved.await.map_err(|problem| self.during("look up", selector, problem))
    }

    /// Reads a manifest. Its digest is computed from the bytes, and equals the one it was requested by.
    pub async fn manifest(&self, selector: &Selector, context: &Context) -> Result<Manifest, Error> {
        let (manifest, _) =
            self.get(selector, context).await.map_err(|problem| self.during("read", selector, problem))?;
        Ok(manifest)
    }

    /// Writes a manifest under a tag or its digest.
    pub async fn put_manifest(
        &self,
        selector: &Selector,
        manifest: &Manifest,
        context: &Context,
    ) -> Result<(), Error> {
        let put = async {
            let path = self.path(&format!("manifests/{}", selector.as_str()));
            let mut request = ApiRequest::api(Method::PUT, path).with_bytes(manifest.bytes.clone());
            let kind = HeaderValue::from_str(&manifest.media_type)
                .map_err(|_| Problem::malformed("the manifest's media type is no text"))?;
            request.headers.insert(CONTENT_TYPE, kind);
            let response = self.call(&request, context).await?;
            match stated_digest(&response) {
                // A registry may hash with another algorithm.
                Some(stated)
                    if stated.algorithm() == manifest.digest.algorithm() && stated != manifest.digest =>
                {
                    Err(Problem::DigestMismatch(
                        format!("it stored {stated} instead of {}", manifest.digest).into(),
                    ))
                }
                _ => Ok(()),
            }
        };
        put.await.map_err(|problem| self.during("write", selector, problem))
    }

    pub(crate) async fn head(&self, selector: &Selector, context: &Context) -> Result<ManifestHead, Problem> {
        let response = self.call(&self.manifest_request(Method::HEAD, selector), context).await?;
        let quota = *response.quota();
        let media_type =
            response.header(CONTENT_TYPE.as_str()).and_then(|kind| kind.split(';').next()).map(str::trim);
        let digest =
            stated_digest(&response).filter(|stated| selector.digest().is_none_or(|asked| asked == *stated));
        let resolved = match (digest, media_type, response.content_length()) {
            (Some(digest), Some(media_type), Some(size)) if is_manifest(media_type) => {
                Some(Resolved { digest, media_type: media_type.to_owned(), size })
            }
            _ => None,
        };
        Ok(ManifestHead { resolved, quota })
    }

    pub(crate) async fn get(
        &self,
        selector: &Selector,
        context: &Context,
    ) -> Result<(Manifest, Quota), Problem> {
        let request = self.manifest_request(Method::GET, selector);
        let read = || async {
            let response = self.call(&request, context).await?;
            let quota = *response.quota();
            let header = response.header(CONTENT_TYPE.as_str()).map(str::to_owned);
            Ok((response.bytes("the manifest", size_limits::MANIFEST, context).await, header, quota))
        };
        // A body that broke off may be whole the next time. A request without an answer was retried already.
        let broke_off = |outcome: &Result<(Result<Bytes, Problem>, _, _), Problem>| match outcome {
            Ok((Err(Problem::Unreachable(_)), ..)) => Some(Duration::ZERO),
            _ => None,
        };
        let (bytes, header, quota) = with_retries(context, broke_off, read).await?;
        let bytes = bytes?;
        let digest = hashed(&bytes, selector)?;
        let media_type = media_type_of(header.as_deref(), &bytes)?;
        Ok((Manifest { media_type, digest, bytes }, quota))
    }

    fn manifest_request(&self, method: Method, selector: &Selector) -> ApiRequest {
        let mut request = ApiRequest::api(method, self.path(&format!("manifests/{}", selector.as_str())));
        request.headers.insert(ACCEPT, HeaderValue::from_static(ALL_KINDS));
        request
    }

    pub(crate) fn during(&self, attempt: &str, selector: &Selector, problem: Problem) -> Error {
        problem.during(format!("{attempt} {}{selector}", self.repository()))
    }

    pub(crate) async fn platform_of(&self, image: &Image, context: &Context) -> Result<Platform, Problem> {
        let bytes = self.small_blob(&image.config, size_limits::CONFIG, context).await?;
        json::from_slice(&bytes)
            .map_err(|error| Problem::malformed(format!("the image's configuration cannot be read: {error}")))
    }
}

/// Whether a failed HEAD says only that HEAD is not supported, so that GET may be.
pub(crate) fn head_is_not_supported(problem: &Problem) -> bool {
    matches!(problem, Problem::Rejected { status: 405 | 501, .. })
}

fn stated_digest(response: &ApiResponse) -> Option<Digest> {
    response.header(DIGEST_HEADER)?.trim().parse().ok()
}

fn hashed(bytes: &Bytes, selector: &Selector) -> Result<Digest, Problem> {
    let Some(asked) = selector.digest() else {
        return Ok(Algorithm::Sha256.digest(bytes));
    };
    let found = asked.algorithm().digest(bytes);
    if found == asked {
        return Ok(asked);
    }
    Err(Problem::DigestMismatch(format!("what came has the digest {found}").into()))
}
