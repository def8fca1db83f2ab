//! Small artifacts: one document of a known type under a tag, stored as an OCI image manifest with an empty
//! configuration. The image specification recommends this form, and older registries accept it.

use bytes::Bytes;
use fairlead_domain::digest::Digest;
use serde::Serialize;

use crate::error::{Error, Problem};
use crate::manifest::{Content, Descriptor, Manifest, OCI_MANIFEST, Selector};
use crate::repository::RepositoryClient;
use crate::request::context::Context;

const EMPTY_TYPE: &str = "application/vnd.oci.empty.v1+json";
const EMPTY: &[u8] = b"{}";

/// A document and the digest of its manifest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Artifact {
    pub digest: Digest,
    pub document: Bytes,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ArtifactManifest<'a> {
    schema_version: u8,
    media_type: &'a str,
    artifact_type: &'a str,
    config: Descriptor,
    layers: [Descriptor; 1],
}

impl RepositoryClient {
    /// Stores a document under a tag. Returns the digest of its manifest.
    pub async fn put_artifact(
        &self,
        selector: &Selector,
        media_type: &str,
        document: Bytes,
        context: &Context,
    ) -> Result<Digest, Error> {
        let empty = Bytes::from_static(EMPTY);
        let manifest = ArtifactManifest {
            schema_version: 2,
            media_type: OCI_MANIFEST,
            artifact_type: media_type,
            config: describe(EMPTY_TYPE, &empty),
            layers: [describe(media_type, &document)],
        };
        let bytes = serde_json::to_vec(&manifest)
            .map_err(|error| self.during("write", selector, Problem::malformed(error.to_string())))?;
        for blob in [empty, document] {
            self.put_blob(blob, context).await?;
        }
        let digest = Digest::sha256(&bytes);
        let manifest = Manifest { media_type: OCI_MANIFEST.to_owned(), digest, bytes: bytes.into() };
        self.put_manifest(selector, &manifest, context).await?;
        Ok(digest)
    }

    /// Reads a document of this media type of at most `limit` bytes.
    pub async fn artifact(
        &self,
        selector: &Selector,
        media_type: &str,
        limit: usize,
        context: &Context,
    ) -> Result<Artifact, Error> {
        let manifest = self.manifest(selector, context).await?;
        let document = async {
            let layers = match manifest.content().map_err(|error| error.problem)? {
                Content::Image(image) => image.layers,
                Content::Index(_) => Vec::new(),
            };
            match layers.as_slice() {
                [layer] if layer.media_type == media_type => self.small_blob(layer, limit, context).await,
                _ => Err(Problem::malformed(format!("it is not an artifact of type {media_type}"))),
            }
        };
        let document = document.await.map_err(|problem| self.during("read", selector, problem))?;
        Ok(Artifact { digest: manifest.digest, document })
    }

    async fn put_blob(&self, bytes: Bytes, context: &Context) -> Result<(), Error> {
        let digest = Digest::sha256(&bytes);
        if self.blob_size(&digest, context).await?.is_none() {
            self.begin_upload(context).await?.put_bytes(&digest, bytes, context).await?;
        }
        Ok(())
    }
}

fn describe(media_type: &str, content: &[u8]) -> Descriptor {
    Descriptor {
        media_type: media_type.to_owned(),
        digest: Digest::sha256(content),
        size: content.len() as u64,
        artifact_type: None,
        platform: None,
        annotations: None,
        urls: None,
    }
}
