//! The registry that everything is copied from, and what is in it.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use fairlead_testkit::images::media_type;
use fairlead_testkit::registry::{Endpoint, Registry, RegistryConfig};
use futures::{StreamExt, TryStreamExt, stream};
use reqwest::header::CONTENT_TYPE;
use reqwest::{Client, Method, StatusCode};

use super::content::{Blob, Image};
use super::floor;

/// Small images.
pub(crate) const IMAGES: usize = 200;
const SMALL_LAYER: u64 = 16 << 10;
const SHARED_LAYERS: u64 = 3;
const LAYERS: u64 = 5;
/// Images of the sizes that many have.
const ORDINARY: u64 = 60;
const ORDINARY_LAYERS: [u64; 5] = [130_000, 130_000, 130_000, 900_000, 2_000_000];
/// Where all small images are tags of one repository.
pub(crate) const ONE: &str = "one";
/// Where each has a repository of its own.
pub(crate) const MANY: &str = "many";

pub(crate) struct Source {
    registry: Registry,
}

/// A large image, and the directory with its blobs.
pub(crate) struct Large {
    pub(crate) repository: &'static str,
    pub(crate) image: Image,
    pub(crate) directory: PathBuf,
}

/// The small images, each with its name, and the directory with all their blobs.
pub(crate) struct Small {
    pub(crate) images: Vec<(String, Image)>,
    pub(crate) directory: PathBuf,
}

impl Source {
    pub(crate) async fn start() -> Result<Self> {
        Ok(Self { registry: Registry::start(RegistryConfig::new()).await? })
    }

    pub(crate) fn registry(&self) -> &Registry {
        &self.registry
    }

    fn endpoint(&self) -> &Endpoint {
        self.registry.endpoint()
    }

    /// Makes an image of random layers, and holds it under the tag `1`.
    pub(crate) async fn large(&self, repository: &'static str, layers: u64, size: u64) -> Result<Large> {
        let directory = self.directory(repository)?;
        let blobs = directory.clone();
        let image = tokio::task::spawn_blocking(move || {
            let layers = (0..layers).map(|number| Blob::layer(&blobs, size + number, size));
            Image::of(&blobs, repository, layers.collect::<Result<_>>()?)
        });
        let image = image.await??;
        floor::put_all(self.endpoint(), repository, &image.blobs).await?;
        put_manifest(self.endpoint(), &self.endpoint().http()?, repository, "1", &image).await?;
        Ok(Large { repository, image, directory })
    }

    /// Makes the small images, and holds them in one repository and in many.
    pub(crate) async fn small(&self) -> Result<Small> {
        let directory = self.directory("small")?;
        let blobs = directory.clone();
        let images = tokio::task::spawn_blocking(move || small_images(&blobs)).await??;
        let client = self.endpoint().http()?;
        let client = &client;
        let mut blobs: Vec<Blob> = images.iter().flat_map(|(_, image)| image.blobs.clone()).collect();
        blobs.sort_by(|one, other| one.digest.cmp(&other.digest));
        blobs.dedup_by(|one, other| one.digest == other.digest);
        floor::put_all(self.endpoint(), ONE, &blobs).await?;
        stream::iter(&images)
            .map(|(name, image)| async move {
                put_manifest(self.endpoint(), client, ONE, name, image).await?;
                let own = format!("{MANY}/{name}");
                for blob in &image.blobs {
                    mount(self.endpoint(), client, &own, &blob.digest).await?;
                }
                put_manifest(self.endpoint(), client, &own, "1", image).await
            })
            .buffer_unordered(8)
            .try_collect::<()>()
            .await?;
        Ok(Small { images, directory })
    }

    /// Makes ordinary images that share nothing, each in a repository of its own.
    pub(crate) async fn ordinary(&self) -> Result<Small> {
        let directory = self.directory("ordinary")?;
        let blobs = directory.clone();
        let images = tokio::task::spawn_blocking(move || ordinary_images(&blobs)).await??;
        let client = self.endpoint().http()?;
        for (name, image) in &images {
            let own = format!("{MANY}/{name}");
            floor::put_all(self.endpoint(), &own, &image.blobs).await?;
            put_manifest(self.endpoint(), &client, &own, "1", image).await?;
        }
        Ok(Small { images, directory })
    }

    /// Under the registry's own directory, which is removed however this program ends.
    fn directory(&self, name: &str) -> Result<PathBuf> {
        let directory = self.registry.directory().join("blobs").join(name);
        std::fs::create_dir_all(&directory).with_context(|| directory.display().to_string())?;
        Ok(directory)
    }
}

fn small_images(directory: &Path) -> Result<Vec<(String, Image)>> {
    let layer = |seed| Blob::layer(directory, seed, SMALL_LAYER);
    let shared: Vec<Blob> = (0..SHARED_LAYERS).map(layer).collect::<Result<_>>()?;
    let mut images = Vec::with_capacity(IMAGES);
    for number in 0..IMAGES as u64 {
        let name = format!("app-{number:03}");
        let mut layers = shared.clone();
        for own in SHARED_LAYERS..LAYERS {
            layers.push(layer(1000 + number * LAYERS + own)?);
        }
        let image = Image::of(directory, &name, layers)?;
        images.push((name, image));
    }
    Ok(images)
}

fn ordinary_images(directory: &Path) -> Result<Vec<(String, Image)>> {
    let image = |number: u64| {
        let layer =
            |(place, size): (u64, u64)| Blob::layer(directory, 100_000 + number * LAYERS + place, size);
        let name = format!("ordinary-{number:03}");
        let image =
            Image::of(directory, &name, (0..).zip(ORDINARY_LAYERS).map(layer).collect::<Result<_>>()?)?;
        Ok((name, image))
    };
    (0..ORDINARY).map(image).collect()
}

async fn mount(endpoint: &Endpoint, client: &Client, repository: &str, digest: &str) -> Result<()> {
    let path = format!("/v2/{repository}/blobs/uploads/?mount={digest}&from={ONE}");
    let status = endpoint.request(client, Method::POST, &path).send().await?.status();
    ensure!(status == StatusCode::CREATED, "a mount is answered with {status}");
    Ok(())
}

async fn put_manifest(
    endpoint: &Endpoint,
    client: &Client,
    repository: &str,
    tag: &str,
    image: &Image,
) -> Result<()> {
    let status = endpoint
        .request(client, Method::PUT, &format!("/v2/{repository}/manifests/{tag}"))
        .header(CONTENT_TYPE, media_type::MANIFEST)
        .body(image.manifest.clone())
        .send()
        .await?
        .status();
    ensure!(status == StatusCode::CREATED, "a manifest is answered with {status}");
    Ok(())
}
