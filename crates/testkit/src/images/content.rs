//! Bytes with a media type and a digest: what registries store.

use anyhow::Result;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

pub mod media_type {
    pub const INDEX: &str = "application/vnd.oci.image.index.v1+json";
    pub const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
    pub const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
    pub const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
    pub const EMPTY: &str = "application/vnd.oci.empty.v1+json";
}

#[derive(Clone, Debug)]
pub struct Content {
    pub media_type: String,
    pub bytes: Vec<u8>,
}

impl Content {
    pub fn new(media_type: &str, bytes: Vec<u8>) -> Self {
        Self { media_type: media_type.to_owned(), bytes }
    }

    pub(super) fn json(media_type: &str, value: &Value) -> Result<Self> {
        Ok(Self::new(media_type, serde_json::to_vec(value)?))
    }

    pub fn digest(&self) -> String {
        let hash = Sha256::digest(&self.bytes);
        hash.iter().fold("sha256:".to_owned(), |text, byte| text + &format!("{byte:02x}"))
    }

    /// How a manifest refers to it.
    pub fn descriptor(&self) -> Value {
        json!({"mediaType": self.media_type, "digest": self.digest(), "size": self.bytes.len()})
    }
}

/// A layer with one file, the same bytes on every machine and at any time.
pub(super) fn layer(path: &str, bytes: &[u8], mode: u32) -> Result<Content> {
    let mut archive = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_ustar();
    header.set_size(u64::try_from(bytes.len())?);
    header.set_mode(mode);
    header.set_mtime(0);
    header.set_uid(0);
    header.set_gid(0);
    archive.append_data(&mut header, path.trim_start_matches('/'), bytes)?;
    Ok(Content::new(media_type::LAYER, archive.into_inner()?))
}
