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
        ("failed to copy: open /var/lib/containerd/x/data: permission denied: unknown", F::Unknown),
        (
            "failed to authorize: failed to fetch oauth token: denied: Permission \"artifactregistry.read\" denied \
             on resource \"projects/p\" (or it may not exist)",
            F::Denied,
        ),
        ("no matching manifest for linux/arm64/v8 in the manifest list entries", F::Platform),
        ("failed to prepare extraction snapshot \"extract-1 sha256:2\": no such file", F::Content),
        ("imageRef of image \"r.io/a:1\" is not set", F::Inspect),
        (
            "429 Too Many Requests - Server message: toomanyrequests: You have reached your limit",
            F::RateLimited,
        ),
        ("tls: failed to verify certificate: x509: certificate signed by unknown authority", F::Certificate),
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
        ("Back-off pulling image \"r.io/a:1\": SignatureValidationFailed: image pull failed", F::Signature),
        ("", F::Unknown),
    ] {
        for reason in ["ErrImagePull", "ImagePullBackOff"] {
            assert_eq!(F::classify(reason, message), Some(cause), "{message}");
        }
    }
}

/// Docker by cri-dockerd, Windows, and verifiers of other makes.
#[test]
fn other_runtimes_and_verifiers_have_words_of_their_own() {
    use PullFailure as F;
    for (message, cause) in [
        ("image operating system \"windows\" cannot be used on this platform", F::Platform),
        ("Error response from daemon: no matching manifest for windows/amd64 10.0.20348", F::Platform),
        ("write C:\\ProgramData\\x: There is not enough space on the disk.", F::DiskFull),
        (
            "dial tcp 10.0.0.1:443: connectex: No connection could be made because the target machine actively \
             refused it.",
            F::ConnectionRefused,
        ),
        ("Error response from daemon: Get \"https://r.io/v2/\": Service Unavailable", F::Unavailable),
        ("unknown: Internal Server Error", F::Unavailable),
        ("signature verification failed for r.io/a:1: not found", F::Signature),
        ("failed to verify signature: no matching signatures", F::Signature),
        ("verifying signatures of r.io/a:1: 404 not found", F::Signature),
        ("503 Service Temporarily Unavailable", F::Unavailable),
        ("GET https://s3.example.com/x: 403 Forbidden: SignatureDoesNotMatch", F::Denied),
        ("x509: certificate has an invalid signature", F::Certificate),
    ] {
        assert_eq!(F::classify("ErrImagePull", message), Some(cause), "{message}");
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
        (r#"Back-off pulling image "r.io/models/llm:3": ErrImagePull: connection refused"#, Some("model")),
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
    // Runtimes say `latest` where there is no tag, and leave the tag out where there is a digest.
    let digest = format!("sha256:{}", "a".repeat(64));
    let pinned = format!("r.io/web:1@{digest}");
    for (image, named) in [
        ("r.io/web", "r.io/web:latest".to_owned()),
        ("web", "docker.io/library/web:latest".to_owned()),
        ("r.io/web:latest", "r.io/web".to_owned()),
        (&pinned, format!("r.io/web@{digest}")),
    ] {
        let message = format!("failed to pull and unpack image \"{named}\": not found");
        assert_eq!(failed_volume(&message, image, volumes), None, "{message}");
        assert!(!is_ambiguous("ErrImagePull", &message, image, volumes), "{message}");
        assert_eq!(failed_volume(&message, "r.io/app:1", [("model", image)]), Some("model"), "{message}");
        assert_eq!(attribution([image].into_iter(), "", &message), Attribution::Named, "{message}");
        let other = format!("docker://{named}-other: not found");
        assert!(is_ambiguous("ErrImagePull", &other, image, volumes), "{other}");
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
fn a_message_is_about_what_it_names_or_else_what_the_status_has() {
    use Attribution::{Former, Named, Presumed};
    let quoting = r#"failed to pull and unpack image "docker.io/library/nginx:1": not found"#;
    for (image, status_image, message, about) in [
        ("nginx:1", "nginx:1", quoting, Named),
        ("nginx:1", "", quoting, Named),
        // It ran with another image before this one failed.
        ("nginx:1", "m.io/nginx:0", quoting, Named),
        // The kubelet has not tried the new image yet.
        ("m.io/nginx:1", "m.io/nginx:1", quoting, Former),
        ("m.io/nginx:1", "nginx:1", quoting, Former),
        ("nginx:1", "docker.io/library/nginx:1", "pull QPS exceeded", Presumed),
        ("nginx:1", "", "pull QPS exceeded", Presumed),
        ("m.io/nginx:1", "nginx:1", "pull QPS exceeded", Former),
        ("nginx:1", "nginx:1", "initializing source docker://nginx:1: no such host", Named),
        ("m.io/nginx:1", "m.io/nginx:1", "initializing source docker://nginx:1: no such host", Presumed),
        ("r.io/a:1", "r.io/a:1", "initializing source docker://m.io/r.io/a:1: no such host", Presumed),
        ("r.io/a:1", "r.io/a:1", "image pull failed for r.io/a:1 because the registry is unavailable", Named),
    ] {
        let wanted = [image].into_iter();
        assert_eq!(attribution(wanted, status_image, message), about, "{image}, {status_image}, {message}");
    }
    let volume = r#"Back-off pulling image "r.io/models/llm:3""#;
    let both = ["r.io/web:1", "r.io/models/llm:3"].into_iter();
    assert_eq!(attribution(both, "r.io/web:1", volume), Named);
}

#[test]
fn the_end_of_a_message_is_kept_whole_in_characters() {
    assert_eq!(end_of("short"), "short");
    let long = format!("{}é{}", "x".repeat(100), "y".repeat(KEPT_MESSAGE - 1));
    assert_eq!(end_of(&long), "y".repeat(KEPT_MESSAGE - 1));
    assert_eq!(end_of(&"z".repeat(2000)).len(), KEPT_MESSAGE);
}
