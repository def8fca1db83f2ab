//! Container images made on the spot: nothing is pulled from outside, and every byte of them is known to the test.
//!
//! Layers are uncompressed tar: runtimes and registries treat them like any other, and the digests are the same on
//! every machine.

mod content;
mod presets;
mod push;

use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

pub use content::{Content, media_type};
pub use presets::{
    artifact, empty, holding, index, multi_platform, pause, program, program_with_libraries, succeed,
};

/// A manifest or index with everything it refers to.
#[derive(Clone, Debug)]
pub struct Image {
    root: Content,
    /// Manifests an index refers to.
    manifests: Vec<Content>,
    /// Layers and configurations.
    blobs: Vec<Content>,
}

impl Image {
    /// Digest of the manifest or index.
    pub fn digest(&self) -> String {
        self.root.digest()
    }

    pub fn root(&self) -> &Content {
        &self.root
    }

    pub fn manifests(&self) -> &[Content] {
        &self.manifests
    }

    pub fn blobs(&self) -> &[Content] {
        &self.blobs
    }
}

/// Builds an image of one platform.
#[derive(Clone, Debug)]
pub struct ImageBuilder {
    architecture: String,
    layers: Vec<Content>,
    config: Value,
    created: Option<String>,
}

impl Default for ImageBuilder {
    fn default() -> Self {
        let architecture = native_architecture().to_owned();
        Self { architecture, layers: Vec::new(), config: json!({}), created: None }
    }
}

impl ImageBuilder {
    pub fn new() -> Self {
        Self::default()
    }

    /// The platform it claims to be for; this machine's unless said.
    #[must_use]
    pub fn architecture(mut self, architecture: &str) -> Self {
        architecture.clone_into(&mut self.architecture);
        self
    }

    /// A layer with one executable file.
    pub fn executable(self, path_in_image: &str, file: &Path) -> Result<Self> {
        let bytes = std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?;
        self.file(path_in_image, &bytes, 0o755)
    }

    /// A layer with one file.
    pub fn file(mut self, path_in_image: &str, bytes: &[u8], mode: u32) -> Result<Self> {
        self.layers.push(content::layer(path_in_image, bytes, mode)?);
        Ok(self)
    }

    #[must_use]
    pub fn entrypoint(mut self, command: &[&str]) -> Self {
        self.set("Entrypoint", json!(command));
        self
    }

    /// Runs as this user, a number.
    #[must_use]
    pub fn user(mut self, user: &str) -> Self {
        self.set("User", json!(user));
        self
    }

    /// A label; also the way to have images that differ in nothing but their digest.
    #[must_use]
    pub fn label(mut self, name: &str, value: &str) -> Self {
        let mut labels = self.config.get("Labels").cloned().unwrap_or_else(|| json!({}));
        if let Some(labels) = labels.as_object_mut() {
            labels.insert(name.to_owned(), json!(value));
        }
        self.set("Labels", labels);
        self
    }

    /// When it says that it was made, as RFC 3339 has it.
    #[must_use]
    pub fn created(mut self, at: &str) -> Self {
        self.created = Some(at.to_owned());
        self
    }

    fn set(&mut self, field: &str, value: Value) {
        if let Some(config) = self.config.as_object_mut() {
            config.insert(field.to_owned(), value);
        }
    }

    pub fn build(self) -> Result<Image> {
        let diff_ids: Vec<String> = self.layers.iter().map(Content::digest).collect();
        let mut config = json!({
            "architecture": self.architecture,
            "os": "linux",
            "config": self.config,
            "rootfs": {"type": "layers", "diff_ids": diff_ids},
        });
        if let (Some(created), Some(config)) = (self.created, config.as_object_mut()) {
            config.insert("created".to_owned(), json!(created));
        }
        let config = Content::json(media_type::CONFIG, &config)?;
        let layers: Vec<Value> = self.layers.iter().map(Content::descriptor).collect();
        let root = Content::json(
            media_type::MANIFEST,
            &json!({
                "schemaVersion": 2,
                "mediaType": media_type::MANIFEST,
                "config": config.descriptor(),
                "layers": layers,
            }),
        )?;
        let mut blobs = self.layers;
        blobs.push(config);
        Ok(Image { root, manifests: Vec::new(), blobs })
    }
}

/// This machine's architecture, as images name it.
pub fn native_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_image_has_the_same_digest_and_a_label_changes_it() -> Result<()> {
        let build = |label: &str| {
            let builder = ImageBuilder::new().architecture("amd64").file("/data/one", b"1", 0o644)?;
            builder.label("which", label).build()
        };
        assert_eq!(build("a")?.digest(), build("a")?.digest());
        assert_ne!(build("a")?.digest(), build("b")?.digest());
        assert_eq!(build("a")?.blobs()[0].digest(), build("b")?.blobs()[0].digest());
        Ok(())
    }
}
