//! Reading request bodies within bounds of size, memory and time.

use axum::body::Body;
use axum::http::HeaderMap;
use axum::http::header::CONTENT_LENGTH;
use futures::StreamExt;
use tokio::sync::{Semaphore, SemaphorePermit};

/// A body, or as much of it as was taken.
pub(super) enum Received<'a> {
    /// The permit accounts for the memory.
    Whole(Vec<u8>, SemaphorePermit<'a>),
    TooLarge(Vec<u8>),
    Broken,
}

/// What is read of an oversized body besides its beginning, so that the caller gets to read the answer.
const DRAINED: usize = 64 * 1024 * 1024;

/// The beginning of an oversized body that is kept.
const PREFIX: usize = 16 * 1024;

pub(super) async fn receive<'a>(
    headers: &HeaderMap,
    body: Body,
    limit: usize,
    memory: &'a Semaphore,
) -> Received<'a> {
    let announced =
        headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<usize>().ok());
    let expected = announced.unwrap_or(limit).min(limit);
    // One KiB more than needed at most; a body without a length is counted as large as it may become.
    let Ok(permit) = memory.acquire_many(u32::try_from(expected / 1024 + 1).unwrap_or(u32::MAX)).await else {
        return Received::Broken;
    };
    let mut bytes = Vec::with_capacity(announced.unwrap_or(0).min(limit));
    let mut chunks = body.into_data_stream();
    while let Some(chunk) = chunks.next().await {
        let Ok(chunk) = chunk else { return Received::Broken };
        if bytes.len() + chunk.len() > limit {
            bytes.extend_from_slice(&chunk);
            bytes.truncate(PREFIX);
            bytes.shrink_to_fit();
            drop(permit);
            let mut drained = limit;
            while let Some(Ok(chunk)) = chunks.next().await {
                drained += chunk.len();
                if drained > DRAINED {
                    break;
                }
            }
            return Received::TooLarge(bytes);
        }
        bytes.extend_from_slice(&chunk);
    }
    Received::Whole(bytes, permit)
}
