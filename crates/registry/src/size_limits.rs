//! How much of a stranger's answer is read, and for how long.
//!
//! Everything that is held in memory as a whole has a bound here; blobs are streamed and bounded by the size their
//! descriptor states.

use std::time::Duration;

/// The distribution specification asks registries to accept manifests of at least 4 MiB, and the common ones refuse
/// larger ones. What cannot be pushed anywhere else need not be read.
pub(crate) const MANIFEST: usize = 4 * 1024 * 1024;
/// One page of tags. A registry that ignores the page size sends everything at once: 8 MiB hold 60,000 tags of the
/// longest kind, or half a million usual ones.
pub(crate) const TAGS_PAGE: usize = 8 * 1024 * 1024;
/// Tags asked for at once; registries that limit it allow at least this many.
pub(crate) const TAGS_PER_PAGE: usize = 1000;
/// Pages followed, of whatever kind, before a listing is taken to be endless.
pub(crate) const PAGES: usize = 1000;
/// Pages in a row with nothing new before a listing is taken to go round in circles. Registries that filter what they list
/// after they cut it into pages send some.
pub(crate) const BARREN_PAGES: usize = 20;
/// A token with the claims of a hundred repositories stays far below this.
pub(crate) const TOKEN_ANSWER: usize = 256 * 1024;
/// A token travels in a header; servers accept 8 to 64 KiB of them.
pub(crate) const TOKEN: usize = 32 * 1024;
/// Words of a registry about an error.
pub(crate) const ERROR_BODY: usize = 16 * 1024;
/// Image configurations are read only for their platform.
pub(crate) const CONFIG: usize = 8 * 1024 * 1024;
/// A transfer that has not moved for this long will not move again.
pub(crate) const STALL: Duration = Duration::from_secs(30);
/// From the headers of an answer to its end, where it is held as a whole. One that drips moves, and still never ends.
pub(crate) const READING: Duration = Duration::from_secs(30);
/// For the rest of an answer whose meaning is known already: the words of a refusal, or what accompanies a redirect. It is
/// worth reading for a better message and for the connection, but not worth waiting for.
pub(crate) const COURTESY: Duration = Duration::from_secs(1);
/// From sending a request for a token to holding it. Everybody who needs the same token waits for that request.
pub(crate) const TOKEN_TIME: Duration = Duration::from_secs(10);
/// Registries whose state is kept. More names than this in use at once are somebody playing with names.
pub(crate) const REGISTRIES: usize = 1024;
/// Servers that issue tokens for one registry. It names one, or one for each of its parts.
pub(crate) const TOKEN_SERVERS: usize = 16;
/// Blobs moving to or from one registry at once. Less than all that move at once, so that one registry that stands still
/// does not stop the copies between others. Each may have more than a mebibyte in buffers: over HTTP/2 a window of what
/// came and was not read yet.
pub(crate) const TRANSFERS: u32 = 3;
/// Up to this size a blob is read as a whole before it is sent. Nobody then waits at one registry for the other, so many
/// can be under way, which is what a copy of many small images needs most.
pub(crate) const HELD: usize = 128 * 1024;
