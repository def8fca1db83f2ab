//! The floor: what it costs to send the same blobs from files, with nothing else around it. No copy can be faster by
//! much at the destination's end, since a client has to send them.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use bytes::BytesMut;
use clap::Args;
use fairlead_testkit::registry::Endpoint;
use futures::{StreamExt, TryStreamExt, stream};
use reqwest::header::{CONTENT_LENGTH, LOCATION};
use reqwest::{Body, Client, Method, StatusCode};
use tokio::fs::File;
use tokio::io::AsyncReadExt;

use super::content::Blob;

const AT_ONCE: usize = 8;
const PIECE: usize = 256 << 10;
const DEADLINE: Duration = Duration::from_mins(5);

#[derive(Args)]
pub(crate) struct Floor {
    /// Port of the registry, on this machine
    port: u16,
    repository: String,
    /// Files, each named by its hash
    directory: PathBuf,
}

impl Floor {
    pub(crate) async fn run(self) -> Result<()> {
        let mut blobs = Vec::new();
        for entry in std::fs::read_dir(&self.directory)? {
            blobs.push(Blob::found(entry?.path())?);
        }
        let endpoint = Endpoint::plain(self.port);
        tokio::time::timeout(DEADLINE, put_all(&endpoint, &self.repository, &blobs)).await?
    }
}

pub(super) async fn put_all(endpoint: &Endpoint, repository: &str, blobs: &[Blob]) -> Result<()> {
    let client = endpoint.http()?;
    let client = &client;
    stream::iter(blobs)
        .map(|blob| async move {
            put(endpoint, client, repository, blob).await.with_context(|| format!("sending {}", blob.digest))
        })
        .buffer_unordered(AT_ONCE)
        .try_collect()
        .await
}

async fn put(endpoint: &Endpoint, client: &Client, repository: &str, blob: &Blob) -> Result<()> {
    let uploads = format!("/v2/{repository}/blobs/uploads/");
    let opened = endpoint.request(client, Method::POST, &uploads).header(CONTENT_LENGTH, 0).send().await?;
    ensure!(opened.status() == StatusCode::ACCEPTED, "an upload is answered with {}", opened.status());
    let location = opened.headers().get(LOCATION).context("the upload has no location")?.to_str()?;
    let mut target = opened.url().join(location)?;
    target.query_pairs_mut().append_pair("digest", &blob.digest);
    let file = File::open(&blob.path).await?;
    let pieces = stream::try_unfold(file, |mut file| async move {
        let mut piece = BytesMut::with_capacity(PIECE);
        file.read_buf(&mut piece).await?;
        Ok::<_, std::io::Error>((!piece.is_empty()).then(|| (piece.freeze(), file)))
    });
    let put = client.put(target).header(CONTENT_LENGTH, blob.size).body(Body::wrap_stream(pieces));
    let status = put.send().await?.status();
    ensure!(status == StatusCode::CREATED, "a blob is answered with {status}");
    Ok(())
}
