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
        let contains = |words: &[&str]| words.iter().any(|word| text.contains(word));
        if contains(&[
            "signaturevalidationfailed",
            "signature validation failed",
            "source image rejected",
            "rejected by policy",
            "a signature was required",
            // containerd quotes a plugin that decides what may be pulled, and what it says.
            "image verifier ",
        ]) {
            Self::Signature
        } else if contains(&["no space left on device", "disk quota exceeded"]) {
            Self::DiskFull
        } else if contains(&["pull qps exceeded"]) {
            Self::TooManyPulls
        } else if contains(&[
            "no match for platform",
            "no image found in image index for architecture",
            "no image found in manifest list for architecture",
            "no matching manifest for",
        ]) {
            Self::Platform
        } else if contains(&["invalidimagename", "invalid reference format", "couldn't parse image name"]) {
            Self::InvalidName
        } else if contains(&[
            "mismatched image rootfs",
            "failed to extract layer",
            "failed to unpack",
            "extraction snapshot",
            "wrong diff id",
        ]) {
            Self::Content
        } else if contains(&["imageref of image"]) {
            Self::Inspect
        } else if contains(&["unexpected commit digest", "unexpected commit size", "failed size validation"])
        {
            Self::Corrupt
        } else if contains(&["dial unix "]) {
            // The runtime of the node is away for a moment, whatever becomes of the registry.
            Self::Unknown
        } else if contains(&["registryunavailable", "registry is unavailable"])
            || contains(&SERVER_ERRORS)
            || has_status(&text, 500..=599)
        {
            Self::Unavailable
        } else if contains(&["too many requests", "toomanyrequests"]) || has_status(&text, 429..=429) {
            Self::RateLimited
        } else if contains(&["no such host", "name or service not known", "server misbehaving"]) {
            Self::NoSuchHost
        } else if contains(&["dial tcp: lookup ", "failure in name resolution"]) {
            Self::Resolver
        } else if contains(&["connection refused"]) {
            Self::ConnectionRefused
        } else if contains(&[
            "x509:",
            "tls: ",
            "certificate signed by",
            "verify certificate",
            "certificate has expired",
            "bad certificate",
            "server gave http response to https client",
        ]) {
            Self::Certificate
        } else if contains(&[
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
        ]) || has_status(&text, 401..=401)
            || has_status(&text, 403..=403)
        {
            Self::Denied
        } else if contains(&[
            "not found",
            "manifest unknown",
            "blob unknown",
            "name unknown",
            "not known to registry",
            "unknown to registry",
            "code = notfound",
        ]) || has_status(&text, 404..=404)
        {
            Self::NotFound
        } else if contains(&[
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
        ]) {
            Self::Network
        } else {
            Self::Unknown
        }
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

/// Whether what the kubelet says of a container is about what the container asks for now: its image, or one of the
/// image volumes that it mounts. After its image was changed, the kubelet repeats what it said of the one before until
/// it has tried again. The message tells, if it quotes an image. If it does not, the image in the status does.
pub fn is_about<'a>(
    mut wanted: impl Iterator<Item = &'a str> + Clone,
    status_image: &str,
    message: &str,
) -> bool {
    let same = |one: &str, other: &str| {
        let parsed = || Some(Reference::parse(one).ok()?.is_same_image(&Reference::parse(other).ok()?));
        one == other || parsed() == Some(true)
    };
    let mut quoted = message.split("image \"").skip(1).filter_map(|rest| rest.split_once('"')).peekable();
    if quoted.peek().is_some() {
        return quoted.any(|(quoted, _)| wanted.clone().any(|image| same(quoted, image)));
    }
    status_image.is_empty() || wanted.any(|image| same(status_image, image))
}

/// Whether a message names an image, as it is written or as runtimes write it.
fn names(message: &str, image: &str) -> bool {
    let normalised = Reference::parse(image).ok();
    contains_word(message, image)
        || normalised.is_some_and(|reference| contains_word(message, reference.as_str()))
}

/// Whether a text stands in another, and not as a part of a longer reference.
fn contains_word(text: &str, word: &str) -> bool {
    let joins = |character: char| character.is_ascii_alphanumeric() || "._-/:@".contains(character);
    !word.is_empty()
        && text.match_indices(word).any(|(at, _)| {
            let before = text.get(..at).and_then(|before| before.chars().next_back());
            let after = text.get(at + word.len()..).unwrap_or_default();
            // A sentence goes on after a colon or a full stop, a reference does not have a blank there.
            let after = after.trim_start_matches([':', '.']);
            let ends = after.is_empty() || after.chars().next().is_some_and(|next| !joins(next));
            ends && before.is_none_or(|before| !joins(before) || before == '/')
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

const SERVER_ERRORS: [&str; 4] =
    ["500 internal server error", "502 bad gateway", "503 service", "504 gateway time"];

/// Whether such a status is quoted: `status from HEAD request to …: 503 Service Unavailable`, `status code from registry
/// 502`, `StatusCode: 404`, `HTTP 404 response`. Numbers within addresses and references do not stand by themselves.
fn has_status(text: &str, wanted: RangeInclusive<u16>) -> bool {
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
mod tests {
    use super::*;

    #[test]
    fn causes_are_read_from_what_runtimes_write() {
        use PullFailure as F;
        for (message, cause) in [
            (
                "rpc error: code = NotFound desc = failed to pull and unpack image \"r.io/a:1\": failed to resolve \
                 reference \"r.io/a:1\": r.io/a:1: not found",
                F::NotFound,
            ),
            ("reading manifest 9 in r.io/a: manifest unknown", F::NotFound),
            (
                "failed to pull and unpack image \"docker.io/library/x:1\": failed to resolve reference: pull access \
                 denied, repository does not exist or may require authorization: server message: insufficient_scope: \
                 authorization failed",
                F::Denied,
            ),
            (
                "failed to resolve reference: unexpected status from HEAD request to https://r.io/v2/a/manifests/1: \
                 401 Unauthorized",
                F::Denied,
            ),
            ("dial tcp 10.0.0.1:5000: connect: connection refused", F::ConnectionRefused),
            ("dial tcp: lookup r.io on 10.96.0.10:53: no such host", F::NoSuchHost),
            (
                "unexpected status from GET request to https://r.io/v2/a/blobs/x: 503 Service Unavailable",
                F::Unavailable,
            ),
            ("received unexpected HTTP status: 502 Bad Gateway", F::Unavailable),
            ("invalid status code from registry 503 (Service Unavailable)", F::Unavailable),
            (
                "unexpected status from HEAD request to https://r.io/v2/a/manifests/503: 521 <none>",
                F::Unavailable,
            ),
            (
                "unexpected status from GET request to https://r.io:500/v2/a/manifests/502: 404 Not Found",
                F::NotFound,
            ),
            ("dial tcp: lookup r.io on 10.96.0.10:53: read udp 10.0.0.9:53: i/o timeout", F::Resolver),
            ("dial tcp: lookup r.io on 127.0.0.53:53: read: connection refused", F::Resolver),
            ("Source image rejected: A signature was required, but no signature exists", F::Signature),
            ("Source image rejected: Running image docker://r.io/a:1 is rejected by policy.", F::Signature),
            (
                "image verifier bindir blocked pull of r.io/a:1 with digest sha256:1 for reason: verifier cosign \
                 rejected image (exit code 1): no signature: 404 not found",
                F::Signature,
            ),
            (
                "blocking pull of r.io/a:1 with digest sha256:1: image verifier bindir returned error: timed out",
                F::Signature,
            ),
            (
                "rpc error: code = Unavailable desc = connection error: desc = \"transport: Error while dialing: dial \
                 unix /run/containerd/containerd.sock: connect: connection refused\"",
                F::Unknown,
            ),
            ("no matching manifest for linux/arm64/v8 in the manifest list entries", F::Platform),
            ("failed to prepare extraction snapshot \"extract-1 sha256:2\": no such file", F::Content),
            ("imageRef of image \"r.io/a:1\" is not set", F::Inspect),
            (
                "429 Too Many Requests - Server message: toomanyrequests: You have reached your limit",
                F::RateLimited,
            ),
            (
                "tls: failed to verify certificate: x509: certificate signed by unknown authority",
                F::Certificate,
            ),
            ("http: server gave HTTP response to HTTPS client", F::Certificate),
            ("net/http: TLS handshake timeout", F::Network),
            ("pull QPS exceeded", F::TooManyPulls),
            ("failed to copy: write /var/lib/containerd/x: no space left on device", F::DiskFull),
            ("no match for platform in manifest: not found", F::Platform),
            ("mismatched image rootfs and manifest layers", F::Content),
            ("failed commit on ref \"layer-sha256:1\": unexpected commit digest sha256:2", F::Corrupt),
            ("Back-off pulling image \"r.io/a:1\"", F::Unknown),
            (
                "Back-off pulling image \"r.io/a:1\": ErrImagePull: dial tcp: connect: connection refused",
                F::ConnectionRefused,
            ),
            (
                "Back-off pulling image \"r.io/a:1\": SignatureValidationFailed: image pull failed",
                F::Signature,
            ),
            ("", F::Unknown),
        ] {
            for reason in ["ErrImagePull", "ImagePullBackOff"] {
                assert_eq!(F::classify(reason, message), Some(cause), "{message}");
            }
        }
    }

    /// Registries, and the library by which CRI-O and Podman pull.
    #[test]
    fn words_and_codes_of_registries_are_recognised() {
        use PullFailure as F;
        for (message, cause) in [
            ("pull image err: reading blob sha256:1: fetching blob: blob unknown to registry", F::NotFound),
            ("initializing source docker://r.io/a:1: blob unknown: blob unknown to registry", F::NotFound),
            (
                "initializing source docker://r.io/a:1: reading manifest 1 in r.io/a: name unknown: repository name \
                 not known to registry",
                F::NotFound,
            ),
            ("repository name not known to registry", F::NotFound),
            ("reading manifest 1 in r.io/a: StatusCode: 404, \"<html>no such page</html>\"", F::NotFound),
            ("fetching blob: invalid status code from registry 404 (Not Found)", F::NotFound),
            ("error parsing HTTP 404 response body: invalid character '<'", F::NotFound),
            (
                "failed to copy: httpReadSeeker: failed open: unexpected status code \
                 https://r.io/v2/a/blobs/sha256:1?ns=r.io: 404",
                F::NotFound,
            ),
            (
                r#"reading manifest 1 in r.io/a: StatusCode: 404, "{\"errors\":[{\"code\":\"MANIFEST_UNKNOWN\"}]}""#,
                F::NotFound,
            ),
            (r#"unexpected answer: {"errors":[{"code":"NAME_UNKNOWN","message":"x"}]}"#, F::NotFound),
            (
                "initializing source docker://r.io/a:1: unable to retrieve auth token: invalid username/password: \
                 unauthorized: incorrect username or password",
                F::Denied,
            ),
            ("unable to retrieve auth token: invalid username/password", F::Denied),
            ("reading manifest 1 in r.io/a: StatusCode: 401, \"\"", F::Denied),
            ("failed to resolve: unexpected status code [manifests 404]: 401", F::Denied),
            ("requesting bearer token: invalid status code from registry 403 (Forbidden)", F::Denied),
            (r#"unexpected answer: {"errors":[{"code":"DENIED","message":"x"}]}"#, F::Denied),
            (
                "initializing source docker://r.io/a:1: reading manifest 1 in r.io/a: too many requests to registry",
                F::RateLimited,
            ),
            ("reading manifest 1 in r.io/a: toomanyrequests", F::RateLimited),
            (
                r#"reading manifest 1 in r.io/a: StatusCode: 429, "{\"errors\":[{\"code\":\"TOOMANYREQUESTS\"}]}""#,
                F::RateLimited,
            ),
            ("unexpected status code [manifests 503]: 429", F::RateLimited),
            ("reading manifest 404 in r.io/a: StatusCode: 500, \"oops\"", F::Unavailable),
            ("failed commit on ref \"layer-sha256:1\": unexpected commit size 19, expected 15", F::Corrupt),
        ] {
            assert_eq!(F::classify("ErrImagePull", message), Some(cause), "{message}");
        }
    }

    #[test]
    fn words_in_the_name_of_an_image_are_no_causes() {
        use PullFailure as F;
        let names = [
            "r.io/certificate-manager:1",
            "r.io/x/timeout:unauthorized",
            "r.io/denied:toomanyrequests",
            "registryunavailable.io/a:1",
            "r.io:5000/status/500:503",
            "docker.io/library/signaturevalidationfailed:1",
        ];
        for name in names {
            let (repository, tag) = name.rsplit_once(':').unwrap();
            for (message, cause) in [
                (
                    format!(
                        "rpc error: code = NotFound desc = failed to pull and unpack image \"{name}\": failed to \
                         resolve reference \"{name}\": {name}: not found"
                    ),
                    F::NotFound,
                ),
                (
                    format!(
                        "initializing source docker://{name}: reading manifest {tag} in {repository}: manifest unknown"
                    ),
                    F::NotFound,
                ),
                (
                    format!(
                        "unexpected status from HEAD request to https://{repository}/manifests/{tag}: 401 Unauthorized"
                    ),
                    F::Denied,
                ),
                (format!("Head \"https://{repository}/manifests/{tag}\": dial tcp: i/o timeout"), F::Network),
                (format!("Back-off pulling image \"{name}\""), F::Unknown),
            ] {
                assert_eq!(F::classify("ErrImagePull", &message), Some(cause), "{message}");
            }
        }
    }

    #[test]
    fn reasons_that_name_their_cause_need_no_message() {
        use PullFailure as F;
        for (reason, cause) in [
            ("RegistryUnavailable", Some(F::Unavailable)),
            ("SignatureValidationFailed", Some(F::Signature)),
            ("ErrImageNeverPull", Some(F::NeverPull)),
            ("InvalidImageName", Some(F::InvalidName)),
            ("ImageInspectError", Some(F::Inspect)),
            ("ContainerCreating", None),
            ("CrashLoopBackOff", None),
            ("errimagepull", None),
        ] {
            assert_eq!(F::classify(reason, "no such host"), cause, "{reason}");
        }
    }

    /// The kubelet quotes one attempt for each set of credentials.
    #[test]
    fn what_another_image_cannot_fix_wins_among_several_attempts() {
        let message = "[failed to resolve: 401 Unauthorized, failed to copy: no space left on device]";
        let cause = PullFailure::classify("ErrImagePull", message);
        assert_eq!(cause, Some(PullFailure::DiskFull));
        assert!(!PullFailure::DiskFull.may_be_cured_elsewhere() && !PullFailure::DiskFull.is_definite());
    }

    #[test]
    fn a_failure_of_a_volume_is_told_from_one_of_the_container() {
        let volumes = [("model", "r.io/models/llm:3"), ("data", "busybox:1")];
        for (message, volume) in [
            (
                r#"Back-off pulling image "r.io/models/llm:3": ErrImagePull: connection refused"#,
                Some("model"),
            ),
            (r#"failed to pull and unpack image "docker.io/library/busybox:1": not found"#, Some("data")),
            (r#"Back-off pulling image "r.io/web:1""#, None),
            (r#"Back-off pulling image "r.io/models/llm:33""#, None),
            (r#"failed to resolve reference "r.io/models/llm:3": not found; "r.io/web:1""#, None),
            ("initializing source docker://r.io/models/llm:3: reading manifest", Some("model")),
            (r#"Failed to inspect image "": rpc error"#, None),
            ("", None),
        ] {
            assert_eq!(failed_volume(message, "r.io/web:1", volumes), volume, "{message}");
        }
        for (reason, message, ambiguous) in [
            ("ErrImagePull", "unable to retrieve auth token: invalid username/password", true),
            ("RegistryUnavailable", "image pull failed", true),
            ("ErrImagePull", r#"failed to pull image "r.io/web:1": not found"#, false),
            ("ErrImagePull", r#"failed to pull image "r.io/models/llm:3": not found"#, false),
            ("ErrImagePull", r#"failed to pull image "docker.io/library/busybox:1": not found"#, false),
            ("ImagePullBackOff", "", false),
            ("InvalidImageName", "couldn't parse image name", false),
        ] {
            assert_eq!(is_ambiguous(reason, message, "r.io/web:1", volumes), ambiguous, "{reason} {message}");
        }
        assert!(!is_ambiguous("ErrImagePull", "x", "r.io/web:1", []), "it can only be the container's");
        let same = [("model", "r.io/web:1")];
        assert!(!is_ambiguous("ErrImagePull", "x", "r.io/web:1", same), "either reading is right");
        assert_eq!(failed_volume(r#"Back-off pulling image "r.io/web:1""#, "r.io/web:1", same), None);
    }

    #[test]
    fn a_status_about_an_image_that_was_replaced_says_nothing() {
        let quoting = r#"failed to pull and unpack image "docker.io/library/nginx:1": not found"#;
        for (image, status_image, message, about) in [
            ("nginx:1", "nginx:1", quoting, true),
            ("nginx:1", "", quoting, true),
            // It ran with another image before this one failed.
            ("nginx:1", "m.io/nginx:0", quoting, true),
            // The kubelet has not tried the new image yet.
            ("m.io/nginx:1", "m.io/nginx:1", quoting, false),
            ("m.io/nginx:1", "nginx:1", quoting, false),
            ("nginx:1", "docker.io/library/nginx:1", "pull QPS exceeded", true),
            ("nginx:1", "", "pull QPS exceeded", true),
            ("m.io/nginx:1", "nginx:1", "pull QPS exceeded", false),
        ] {
            let wanted = [image].into_iter();
            assert_eq!(is_about(wanted, status_image, message), about, "{image}, {status_image}, {message}");
        }
        let volume = r#"Back-off pulling image "r.io/models/llm:3""#;
        assert!(is_about(["r.io/web:1", "r.io/models/llm:3"].into_iter(), "r.io/web:1", volume));
    }

    #[test]
    fn the_end_of_a_message_is_kept_whole_in_characters() {
        assert_eq!(end_of("short"), "short");
        let long = format!("{}é{}", "x".repeat(100), "y".repeat(KEPT_MESSAGE - 1));
        assert_eq!(end_of(&long), "y".repeat(KEPT_MESSAGE - 1));
        assert_eq!(end_of(&"z".repeat(2000)).len(), KEPT_MESSAGE);
    }
}
