//! How much of an answer is read, and for how long.
//!
//! Everything that is held in memory as a whole has a limit here. Blobs are streamed, and limited by the size that
//! their descriptor states.

use std::time::Duration;

/// The distribution specification asks registries to accept manifests of at least 4 MiB, and the common ones refuse
/// larger ones.
pub(crate) const MANIFEST: usize = 4 * 1024 * 1024;
/// One page of tags. A registry that ignores the page size sends everything at once: 8 MiB hold 60,000 tags of the
/// greatest length, or half a million usual ones.
pub(crate) const TAGS_PAGE: usize = 8 * 1024 * 1024;
/// Tags requested per page; registries with a limit allow at least this many.
pub(crate) const TAGS_PER_PAGE: usize = 1000;
/// Pages followed before a listing counts as endless.
pub(crate) const PAGES: usize = 1000;
/// Pages in a row without a new entry before a listing counts as circular. Registries that filter after paging send
/// some.
pub(crate) const BARREN_PAGES: usize = 20;
/// A token with the claims of a hundred repositories stays far below this.
pub(crate) const TOKEN_ANSWER: usize = 256 * 1024;
/// A token travels in a header; servers accept 8 to 64 KiB of them.
pub(crate) const TOKEN: usize = 32 * 1024;
/// The body of an error.
pub(crate) const ERROR_BODY: usize = 16 * 1024;
/// Image configurations are read only for their platform.
pub(crate) const CONFIG: usize = 8 * 1024 * 1024;
/// A transfer without progress for this long has stalled.
pub(crate) const STALL: Duration = Duration::from_secs(30);
/// For reading a body that is held as a whole. A slow drip makes progress and still never ends.
pub(crate) const READ_TIME: Duration = Duration::from_secs(30);
/// For reading a body that only adds to a message, or is read so that the connection can be reused.
pub(crate) const DRAIN_TIME: Duration = Duration::from_secs(1);
/// From sending a request for a token to holding it. All callers that need the same token wait for it.
pub(crate) const TOKEN_TIME: Duration = Duration::from_secs(10);
/// Registries whose state is kept.
pub(crate) const REGISTRIES: usize = 1024;
/// Servers that issue tokens for one registry.
pub(crate) const TOKEN_SERVERS: usize = 16;
/// Concurrent blob transfers per registry: less than in total, so that one stalled registry does not stop copies
/// between others. Each may have more than a mebibyte in buffers, over HTTP/2 a window of unread bytes.
pub(crate) const TRANSFERS: u32 = 3;
/// Blobs up to this size are read as a whole before they are sent. Neither registry then waits for the other, so many
/// can be under way, which a copy of many small images needs most.
pub(crate) const HELD: usize = 128 * 1024;
