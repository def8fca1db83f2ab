//! What is copied: blobs in files, and the images made of them.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use fairlead_testkit::images::media_type;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

const LAYER: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
/// Begins like a compressed file, or skopeo would compress it first, and the others would not.
const BEGINNING: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff];
const STEP: usize = 1 << 20;

/// A blob in a file that is named by its hash.
#[derive(Clone, Debug)]
pub(crate) struct Blob {
    pub(crate) path: PathBuf,
    pub(crate) digest: String,
    pub(crate) size: u64,
    media_type: &'static str,
}

/// An image of which only the manifest is held in memory.
#[derive(Clone, Debug)]
pub(crate) struct Image {
    pub(crate) blobs: Vec<Blob>,
    pub(crate) manifest: Vec<u8>,
    pub(crate) digest: String,
}

impl Blob {
    /// A layer that cannot be compressed, the same for the same seed.
    pub(crate) fn layer(directory: &Path, seed: u64, size: u64) -> Result<Self> {
        let unnamed = directory.join(format!(".layer-{seed}"));
        let (mut file, mut hash) = (BufWriter::new(File::create(&unnamed)?), Sha256::new());
        let mut random = fastrand::Rng::with_seed(seed);
        let (mut step, mut left) = (vec![0; STEP], size);
        while left > 0 {
            random.fill(&mut step);
            if left == size {
                for (byte, beginning) in step.iter_mut().zip(BEGINNING) {
                    *byte = beginning;
                }
            }
            let length = usize::try_from(left).unwrap_or(STEP).min(STEP);
            let piece = step.get(..length).unwrap_or_default();
            hash.update(piece);
            file.write_all(piece)?;
            left -= length as u64;
        }
        file.flush()?;
        let hex = hex(&hash.finalize());
        let path = directory.join(&hex);
        std::fs::rename(unnamed, &path)?;
        Ok(Self { path, digest: format!("sha256:{hex}"), size, media_type: LAYER })
    }

    fn config(directory: &Path, value: &Value) -> Result<Self> {
        let bytes = serde_json::to_vec(value)?;
        let hex = hex(&Sha256::digest(&bytes));
        let path = directory.join(&hex);
        std::fs::write(&path, &bytes)?;
        let size = u64::try_from(bytes.len())?;
        Ok(Self { path, digest: format!("sha256:{hex}"), size, media_type: media_type::CONFIG })
    }

    /// A file as [`Self::layer`] left it.
    pub(crate) fn found(path: PathBuf) -> Result<Self> {
        let name = path.file_name().and_then(|name| name.to_str()).context("a file without a name")?;
        let (digest, size) = (format!("sha256:{name}"), path.metadata()?.len());
        Ok(Self { path, digest, size, media_type: LAYER })
    }

    fn descriptor(&self) -> Value {
        json!({"mediaType": self.media_type, "digest": self.digest, "size": self.size})
    }
}

impl Image {
    /// An image of these layers. `name` makes its configuration differ from others'.
    pub(crate) fn of(directory: &Path, name: &str, layers: Vec<Blob>) -> Result<Self> {
        let diff_ids: Vec<&str> = layers.iter().map(|layer| layer.digest.as_str()).collect();
        let config = Blob::config(
            directory,
            &json!({
                "architecture": "amd64", "os": "linux", "config": {"Labels": {"name": name}},
                "rootfs": {"type": "layers", "diff_ids": diff_ids},
            }),
        )?;
        let manifest = serde_json::to_vec(&json!({
            "schemaVersion": 2,
            "mediaType": media_type::MANIFEST,
            "config": config.descriptor(),
            "layers": layers.iter().map(Blob::descriptor).collect::<Vec<_>>(),
        }))?;
        let digest = format!("sha256:{}", hex(&Sha256::digest(&manifest)));
        let mut blobs = layers;
        blobs.push(config);
        Ok(Self { blobs, manifest, digest })
    }
}

fn hex(hash: &[u8]) -> String {
    hash.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}
