//! The images tests ask for most.

use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::content::{Content, media_type};
use super::{Image, ImageBuilder};
use crate::assets::{Assets, Group};

impl ImageBuilder {
    /// Waits for a signal: a Pod that keeps running.
    pub fn pause() -> Result<Self> {
        Self::around("pause")
    }

    /// Succeeds at once.
    pub fn succeed() -> Result<Self> {
        Self::around("true")
    }

    fn around(program: &str) -> Result<Self> {
        let file = Assets::build(&[Group::Programs])?.program(program)?;
        let path = format!("/{program}");
        Ok(Self::new().executable(&path, &file)?.entrypoint(&[&path]))
    }
}

/// Waits for a signal: a Pod that keeps running. It is the node's sandbox image, too, and a runtime knows one image by
/// one digest whatever its names; a test that looks at digests labels its own ([`ImageBuilder::pause`]).
pub fn pause() -> Result<Image> {
    ImageBuilder::pause()?.build()
}

/// Holds `/true`, which succeeds at once.
pub fn succeed() -> Result<Image> {
    ImageBuilder::succeed()?.build()
}

/// A statically linked program of this machine, run as the entry point.
pub fn program(file: &Path, path_in_image: &str) -> Result<Image> {
    ImageBuilder::new().executable(path_in_image, file)?.entrypoint(&[path_in_image]).build()
}

/// A program of this machine with the shared libraries that it is linked to.
pub fn program_with_libraries(file: &Path, path_in_image: &str) -> Result<Image> {
    let output = Command::new("ldd").arg(file).output().context("cannot run ldd")?;
    let mut builder = ImageBuilder::new().executable(path_in_image, file)?.entrypoint(&[path_in_image]);
    // `NAME => PATH (ADDRESS)`, or `PATH (ADDRESS)` for the loader; what the kernel provides has no path.
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    for library in text.split_whitespace().filter(|word| word.starts_with('/')) {
        builder = builder.executable(library, Path::new(library))?;
    }
    builder.build()
}

/// Holds a file and no program at all: it can be pulled and mounted as a volume, not run.
pub fn empty() -> Result<Image> {
    ImageBuilder::new().file("/content.txt", b"no program in here\n", 0o644)?.build()
}

/// Holds a text, and so is unlike all images that hold another.
pub fn holding(text: &str) -> Result<Image> {
    ImageBuilder::new().file("/content", text.as_bytes(), 0o644)?.build()
}

/// An index over a small file for each of several architectures.
pub fn multi_platform(architectures: &[&str]) -> Result<Image> {
    let mut platforms = Vec::new();
    for architecture in architectures {
        let builder = ImageBuilder::new().architecture(architecture);
        platforms
            .push((*architecture, builder.file("/architecture", architecture.as_bytes(), 0o644)?.build()?));
    }
    index(platforms)
}

/// An index over given images, each for one architecture.
pub fn index(platforms: Vec<(&str, Image)>) -> Result<Image> {
    let mut entries: Vec<Value> = Vec::new();
    let mut manifests = Vec::new();
    let mut blobs = Vec::new();
    for (architecture, image) in platforms {
        let mut entry = image.root.descriptor();
        let fields = entry.as_object_mut().context("a descriptor is an object")?;
        fields.insert("platform".to_owned(), json!({"architecture": architecture, "os": "linux"}));
        entries.push(entry);
        manifests.push(image.root);
        blobs.extend(image.blobs);
    }
    let root = Content::json(
        media_type::INDEX,
        &json!({"schemaVersion": 2, "mediaType": media_type::INDEX, "manifests": entries}),
    )?;
    Ok(Image { root, manifests, blobs })
}

/// Something in a registry that is no image: one blob of the given type.
pub fn artifact(artifact_type: &str, bytes: &[u8]) -> Result<Image> {
    let config = Content::new(media_type::EMPTY, b"{}".to_vec());
    let blob = Content::new("application/octet-stream", bytes.to_vec());
    let root = Content::json(
        media_type::MANIFEST,
        &json!({
            "schemaVersion": 2,
            "mediaType": media_type::MANIFEST,
            "artifactType": artifact_type,
            "config": config.descriptor(),
            "layers": [blob.descriptor()],
        }),
    )?;
    Ok(Image { root, manifests: Vec::new(), blobs: vec![config, blob] })
}
