//! Why a kubelet could not pull an image, read from the reason and the message of a waiting container.
//!
//! The kubelet passes on what the runtime wrote, and runtimes pass on what a registry wrote, so the cause has to be
//! recognised by its words. Names of images and addresses are left out before, because any word may be a part of one.
//! Causes that another image cannot fix are recognised first: a message may quote several attempts, and a full disk
//! stays full whatever the other attempts met.

use std::fmt;
use std::ops::RangeInclusive;

use fairlead_domain::reference::Reference;
use serde::{Deserialize, Serialize};

/// The part of a message that is kept: the cause is at its end.
pub const KEPT_MESSAGE: usize = 512;

/// Why a pull failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PullFailure {
    /// The registry has no such image.
    NotFound,
    /// The registry refused the credentials, or wants some.
    Denied,
    ConnectionRefused,
    /// The name of the registry cannot be resolved.
    NoSuchHost,
    /// The node cannot ask for the address of the registry at the moment.
    Resolver,
    /// The registry answered with a status of 500 or more, or the runtime calls it unavailable.
    Unavailable,
    /// The registry asks for fewer requests.
    RateLimited,
    /// The certificate of the registry is not trusted.
    Certificate,
    /// Connections break off or take too long.
    Network,
    /// The kubelet's own limit of pulls per second: not a failure, the kubelet tries again.
    TooManyPulls,
    DiskFull,
    /// The image has no variant for the node's platform.
    Platform,
    /// A signature is missing or wrong.
    Signature,
    /// What the registry sent is not what the manifest promises.
    Corrupt,
    /// The content of the image cannot be unpacked.
    Content,
    /// The image may not be pulled, and the node does not have it.
    NeverPull,
    /// The text is not an image reference.
    InvalidName,
    /// The runtime cannot say whether it has the image.
    Inspect,
    /// The message does not tell.
    Unknown,
}

impl PullFailure {
    /// The failure that a waiting container reports. None: it waits for something else.
    pub fn classify(reason: &str, message: &str) -> Option<Self> {
        match reason {
            "ErrImagePull" | "ImagePullBackOff" => Some(Self::of_message(message)),
            "RegistryUnavailable" => Some(Self::Unavailable),
            "SignatureValidationFailed" => Some(Self::Signature),
            "ErrImageNeverPull" => Some(Self::NeverPull),
            "InvalidImageName" => Some(Self::InvalidName),
            "ImageInspectError" => Some(Self::Inspect),
            _ => None,
        }
    }

    fn of_message(message: &str) -> Self {
        let text = without_names(message);
        let is_told = |(_, words, statuses): &&Signs| {
            words.iter().any(|word| text.contains(word))
                || statuses.iter().any(|range| has_status(&text, range))
        };
        SIGNS.iter().find(is_told).map_or(Self::Unknown, |(failure, ..)| *failure)
    }

    /// Whether one observation is enough: the next attempt at the same place would meet the same.
    pub fn is_definite(self) -> bool {
        matches!(
            self,
            Self::NotFound | Self::Denied | Self::ConnectionRefused | Self::NoSuchHost | Self::Unavailable
        )
    }

    /// Whether the same image from another place may be pulled. A signature that does not verify is never worked
    /// around.
    pub fn may_be_cured_elsewhere(self) -> bool {
        match self {
            Self::NotFound
            | Self::Denied
            | Self::ConnectionRefused
            | Self::NoSuchHost
            | Self::Resolver
            | Self::Unavailable
            | Self::RateLimited
            | Self::Certificate
            | Self::Network
            | Self::Corrupt
            | Self::Unknown => true,
            Self::TooManyPulls
            | Self::DiskFull
            | Self::Platform
            | Self::Signature
            | Self::Content
            | Self::NeverPull
            | Self::InvalidName
            | Self::Inspect => false,
        }
    }
}

impl PullFailure {
    /// Whether the registry itself may be the reason, and not this image in it.
    pub fn is_of_registry(self) -> bool {
        matches!(self, Self::ConnectionRefused | Self::Unavailable | Self::RateLimited | Self::Network)
    }

    /// Whether the location is to blame for it, and not the node, the credentials or the image itself. A cause that the
    /// message does not tell may be any of these.
    pub fn is_of_location(self) -> bool {
        match self {
            Self::NotFound
            | Self::ConnectionRefused
            | Self::Unavailable
            | Self::RateLimited
            | Self::Certificate
            | Self::Network
            | Self::Corrupt => true,
            Self::Denied
            | Self::NoSuchHost
            | Self::Resolver
            | Self::TooManyPulls
            | Self::DiskFull
            | Self::Platform
            | Self::Signature
            | Self::Content
            | Self::NeverPull
            | Self::InvalidName
            | Self::Inspect
            | Self::Unknown => false,
        }
    }
}

/// In the words of a person who has to do something about it.
impl fmt::Display for PullFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NotFound => "image not found",
            Self::Denied => "access denied: check imagePullSecrets",
            Self::ConnectionRefused => "the registry refuses connections",
            Self::NoSuchHost => "the name of the registry cannot be resolved",
            Self::Resolver => "the node could not look up the address of the registry",
            Self::Unavailable => "the registry is unavailable",
            Self::RateLimited => "the registry asks for fewer pulls",
            Self::Certificate => "the certificate of the registry is not trusted",
            Self::Network => "the connection to the registry failed",
            Self::TooManyPulls => "the kubelet limits its pulls",
            Self::DiskFull => "the disk of the node is full",
            Self::Platform => "the image has no variant for the node",
            Self::Signature => "the signature of the image does not verify",
            Self::Corrupt => "the registry sends broken content",
            Self::Content => "the image cannot be unpacked",
            Self::NeverPull => "the node does not have the image, and imagePullPolicy is Never",
            Self::InvalidName => "the image has an invalid name",
            Self::Inspect => "the runtime cannot say whether it has the image",
            Self::Unknown => "the pull failed",
        })
    }
}

/// The image volume that a message is about: the one that it names, if it does not name the image of the container.
/// The kubelet reports the failure of a volume on each container that mounts it.
pub fn failed_volume<'a>(
    message: &str,
    image: &str,
    volumes: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Option<&'a str> {
    // The same text in both places: then either reading is right, and the image can be patched.
    let volume =
        volumes.into_iter().find(|(_, reference)| *reference != image && names(message, reference))?;
    (!names(message, image)).then_some(volume.0)
}

/// Whether a failure may be of the container's image or of an image volume, because the message names neither. Its next
/// state tells: a kubelet that waits before it tries again quotes the image.
pub fn is_ambiguous<'a>(
    reason: &str,
    message: &str,
    image: &str,
    volumes: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> bool {
    let mut others = volumes.into_iter().map(|(_, reference)| reference).filter(|other| *other != image);
    matches!(reason, "ErrImagePull" | "RegistryUnavailable")
        && !names(message, image)
        && others
            .next()
            .is_some_and(|first| std::iter::once(first).chain(others).all(|other| !names(message, other)))
}

/// What a kubelet's message about a container is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attribution {
    /// It names what the container asks for now: its image, or one of the image volumes that it mounts.
    Named,
    /// It names none of that, and the image in the status is the one that the container asks for now.
    Presumed,
    /// An image that the container does not ask for any more.
    Former,
}

/// After the image of a container was changed, the kubelet repeats what it said of the one before until it has tried
/// again. The message tells, if it quotes or names an image. If it does not, the image in the status does; but that
/// changes before the message, as soon as the kubelet knows of the new image.
pub fn attribution<'a>(
    mut wanted: impl Iterator<Item = &'a str> + Clone,
    status_image: &str,
    message: &str,
) -> Attribution {
    let same = |one: &str, other: &str| {
        let parsed = || Some(Reference::parse(one).ok()?.is_same_image(&Reference::parse(other).ok()?));
        one == other || parsed() == Some(true)
    };
    let mut quoted = message.split("image \"").skip(1).filter_map(|rest| rest.split_once('"')).peekable();
    if quoted.peek().is_some() {
        let is_named = quoted.any(|(quoted, _)| wanted.clone().any(|image| same(quoted, image)));
        return if is_named { Attribution::Named } else { Attribution::Former };
    }
    if wanted.clone().any(|image| names(message, image)) {
        Attribution::Named
    } else if status_image.is_empty() || wanted.any(|image| same(status_image, image)) {
        Attribution::Presumed
    } else {
        Attribution::Former
    }
}

/// Whether a message names an image, as it is written or as runtimes write it: with `latest` where there is no tag, and
/// without the tag where there is a digest.
fn names(message: &str, image: &str) -> bool {
    let Ok(reference) = Reference::parse(image) else { return contains_word(message, image) };
    let pulled = reference.pulled();
    let untagged =
        (reference.tag() == Some("latest") && reference.digest().is_none()).then(|| reference.name());
    let written = [image, reference.as_str(), pulled.as_str()];
    written.into_iter().chain(untagged).any(|written| contains_word(message, written))
}

/// Whether a text stands in another, and not as a part of a longer reference.
fn contains_word(text: &str, word: &str) -> bool {
    let joins = |character: char| character.is_ascii_alphanumeric() || "._-/:@".contains(character);
    !word.is_empty()
        && text.match_indices(word).any(|(at, _)| {
            let before = text.get(..at).unwrap_or_default();
            // A transport stands before a reference as `docker://`, a host or a path with one slash.
            let begins = before.ends_with("//") || !before.chars().next_back().is_some_and(joins);
            let after = text.get(at + word.len()..).unwrap_or_default();
            // A sentence goes on after a colon or a full stop, a reference does not have a blank there.
            let after = after.trim_start_matches([':', '.']);
            let ends = after.is_empty() || after.chars().next().is_some_and(|next| !joins(next));
            begins && ends
        })
}

/// The end of a message, at most [`KEPT_MESSAGE`] bytes.
pub fn end_of(message: &str) -> &str {
    let start = message.len().saturating_sub(KEPT_MESSAGE);
    let start = (start..=message.len()).find(|at| message.is_char_boundary(*at)).unwrap_or(message.len());
    message.get(start..).unwrap_or_default()
}

/// A message in small letters without what it quotes as one word, and without references, tags and addresses.
fn without_names(message: &str) -> String {
    let parts = message.split('"').enumerate();
    // What stands between two quotation marks is every second part.
    let kept = parts
        .filter(|(at, part)| at % 2 == 0 || part.contains(char::is_whitespace) || error_code(part).is_some());
    let is_name = |word: &str| {
        let host = word.split_once('/').map(|(host, _)| host);
        host.is_some_and(|host| host.contains(['.', ':']) || host == "localhost")
    };
    let mut text = String::with_capacity(message.len());
    for (_, part) in kept {
        let words: Vec<_> = part.split_whitespace().collect();
        // A tag stands by itself in `reading manifest latest in r.io/a` and in `[manifests latest]`.
        let is_tag = |at: usize| {
            let before = at.checked_sub(1).and_then(|before| words.get(before)).copied();
            match before {
                Some("manifest") => words.get(at + 1) == Some(&"in"),
                before => matches!(before, Some("[manifests" | "[blobs")),
            }
        };
        for (at, word) in words.iter().enumerate() {
            if is_name(word) || is_tag(at) {
                continue;
            }
            text.push_str(&error_code(word).unwrap_or_else(|| word.to_ascii_lowercase()));
            text.push(' ');
        }
    }
    text
}

/// A code of a registry's JSON answer, in the words of its text: `MANIFEST_UNKNOWN` as `manifest unknown:`.
fn error_code(word: &str) -> Option<String> {
    let code = word.trim_matches(|character: char| !character.is_ascii_alphanumeric());
    let is_code = code.len() >= 6 && code.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_');
    is_code.then(|| format!("{}:", code.to_ascii_lowercase().replace('_', " ")))
}

/// What words of a message and which statuses of HTTP show.
type Signs = (PullFailure, &'static [&'static str], &'static [RangeInclusive<u16>]);

/// The first row of which something is found counts.
const SIGNS: &[Signs] = &[
    // containerd quotes a plugin that decides what may be pulled, and what it says: "image verifier".
    (
        PullFailure::Signature,
        &[
            "signaturevalidationfailed",
            "signature validation failed",
            "source image rejected",
            "rejected by policy",
            "a signature was required",
            "signature verification",
            "verify signature",
            "verifying signature",
            "no matching signature",
            "image verifier ",
        ],
        &[],
    ),
    (
        PullFailure::DiskFull,
        &["no space left on device", "not enough space on the disk", "disk quota exceeded"],
        &[],
    ),
    (PullFailure::TooManyPulls, &["pull qps exceeded"], &[]),
    (
        PullFailure::Platform,
        &[
            "no match for platform",
            "no image found in image index for architecture",
            "no image found in manifest list for architecture",
            "no matching manifest for",
            "cannot be used on this platform",
        ],
        &[],
    ),
    (
        PullFailure::InvalidName,
        &["invalidimagename", "invalid reference format", "couldn't parse image name"],
        &[],
    ),
    (
        PullFailure::Content,
        &[
            "mismatched image rootfs",
            "failed to extract layer",
            "failed to unpack",
            "extraction snapshot",
            "wrong diff id",
        ],
        &[],
    ),
    (PullFailure::Inspect, &["imageref of image"], &[]),
    (
        PullFailure::Corrupt,
        &["unexpected commit digest", "unexpected commit size", "failed size validation"],
        &[],
    ),
    // The runtime of the node is away for a moment, whatever becomes of the registry.
    (PullFailure::Unknown, &["dial unix "], &[]),
    (
        PullFailure::Unavailable,
        &[
            "registryunavailable",
            "registry is unavailable",
            "internal server error",
            "bad gateway",
            "503 service",
            "service unavailable",
            "gateway timeout",
            "gateway time-out",
        ],
        &[500..=599],
    ),
    (PullFailure::RateLimited, &["too many requests", "toomanyrequests"], &[429..=429]),
    (PullFailure::NoSuchHost, &["no such host", "name or service not known", "server misbehaving"], &[]),
    (PullFailure::Resolver, &["dial tcp: lookup ", "failure in name resolution"], &[]),
    (PullFailure::ConnectionRefused, &["connection refused", "actively refused it"], &[]),
    (
        PullFailure::Certificate,
        &[
            "x509:",
            "tls: ",
            "certificate signed by",
            "verify certificate",
            "certificate has expired",
            "bad certificate",
            "server gave http response to https client",
        ],
        &[],
    ),
    // A file of the node, and no registry that says `denied: `.
    (PullFailure::Unknown, &["permission denied: "], &[]),
    (
        PullFailure::Denied,
        &[
            "401 unauthorized",
            "403 forbidden",
            "unauthorized: ",
            "unauthorized to access",
            "access denied",
            "denied: ",
            "access to the resource is denied",
            "authentication required",
            "authorization failed",
            "insufficient_scope",
            "no basic auth credentials",
            "invalid username/password",
        ],
        &[401..=401, 403..=403],
    ),
    (
        PullFailure::NotFound,
        &[
            "not found",
            "manifest unknown",
            "blob unknown",
            "name unknown",
            "not known to registry",
            "unknown to registry",
            "code = notfound",
        ],
        &[404..=404],
    ),
    (
        PullFailure::Network,
        &[
            "i/o timeout",
            "handshake timeout",
            "timeout exceeded",
            "timeout awaiting",
            "timed out",
            "deadline exceeded",
            "connection reset",
            "network is unreachable",
            "no route to host",
            "broken pipe",
            "unexpected eof",
        ],
        &[],
    ),
];

/// Whether such a status is quoted: `status from HEAD request to …: 503 Service Unavailable`, `HTTP 404 response`,
/// `status code from registry 502`, `StatusCode: 404`. Numbers within addresses and references do not stand by
/// themselves.
fn has_status(text: &str, wanted: &RangeInclusive<u16>) -> bool {
    let is_wanted = |word: &str| {
        let code = word.trim_matches(|character: char| !character.is_ascii_alphanumeric());
        code.len() == 3
            && code.bytes().all(|byte| byte.is_ascii_digit())
            && code.parse().is_ok_and(|code| wanted.contains(&code))
    };
    let after = text.find("status").and_then(|at| text.get(at..)).unwrap_or_default();
    let of_http = text.match_indices("http ").filter_map(|(at, http)| text.get(at + http.len()..));
    let mut of_http = of_http.filter_map(|rest| rest.split_ascii_whitespace().next());
    after.split_ascii_whitespace().any(is_wanted) || of_http.any(is_wanted)
}

#[cfg(test)]
mod tests;
