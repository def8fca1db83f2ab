//! Pushing to a registry over its HTTP API. Deliberately plain: the product's own client is under test elsewhere.

use anyhow::{Context, Result, bail};
use reqwest::header::{CONTENT_TYPE, LOCATION};
use reqwest::{Method, RequestBuilder, Response, StatusCode};

use super::Image;
use super::content::Content;
use crate::registry::Endpoint;

impl Endpoint {
    /// Pushes an image under a tag and returns its digest.
    pub async fn push(&self, repository: &str, tag: &str, image: &Image) -> Result<String> {
        let client = self.http()?;
        for blob in image.blobs() {
            self.push_blob(&client, repository, blob).await?;
        }
        for manifest in image.manifests() {
            self.push_manifest(&client, repository, &manifest.digest(), manifest).await?;
        }
        self.push_manifest(&client, repository, tag, image.root()).await?;
        Ok(image.digest())
    }

    async fn push_blob(&self, client: &reqwest::Client, repository: &str, blob: &Content) -> Result<()> {
        let digest = blob.digest();
        let there =
            self.request(client, Method::HEAD, &format!("/v2/{repository}/blobs/{digest}")).send().await?;
        if there.status() == StatusCode::OK {
            return Ok(());
        }
        let upload = self.request(client, Method::POST, &format!("/v2/{repository}/blobs/uploads/"));
        let begun = expect(upload, StatusCode::ACCEPTED, "begin an upload").await?;
        let location = begun.headers().get(LOCATION).context("the upload has no location")?.to_str()?;
        let mut target = begun.url().join(location)?;
        target.query_pairs_mut().append_pair("digest", &digest);
        let put = self.authorize(client.put(target)).body(blob.bytes.clone());
        expect(put, StatusCode::CREATED, "upload a blob").await?;
        Ok(())
    }

    async fn push_manifest(
        &self,
        client: &reqwest::Client,
        repository: &str,
        reference: &str,
        manifest: &Content,
    ) -> Result<()> {
        let put = self
            .request(client, Method::PUT, &format!("/v2/{repository}/manifests/{reference}"))
            .header(CONTENT_TYPE, &manifest.media_type)
            .body(manifest.bytes.clone());
        expect(put, StatusCode::CREATED, "push a manifest").await?;
        Ok(())
    }
}

async fn expect(request: RequestBuilder, wanted: StatusCode, attempt: &str) -> Result<Response> {
    let response = request.send().await.with_context(|| format!("cannot {attempt}"))?;
    let (status, url) = (response.status(), response.url().clone());
    if status == wanted {
        return Ok(response);
    }
    bail!("cannot {attempt}: {url} answers {status}: {}", response.text().await.unwrap_or_default())
}
