//! What kubelets report, in the forms that runtimes have it, and junk.

use fairlead_domain::digest::Digest;
use fairlead_domain::platform::Platform;
use proptest::prelude::*;

use super::super::{Content, PlatformManifest, Reported, State, compare};
use super::{digest, multi_arch, platform};

const HEX: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

fn read(text: &str) -> Option<Reported> {
    Reported::parse(text)
}

#[test]
fn every_form_has_its_class() {
    let sha256: Digest = format!("sha256:{HEX}").parse().expect("a digest");
    let sha512: Digest = format!("sha512:{HEX}{HEX}").parse().expect("a digest");
    for (text, repository, digest) in [
        (format!("registry.example/a/b@sha256:{HEX}"), "registry.example/a/b", sha256),
        (format!("registry.example:5000/a/b:v1@sha256:{HEX}"), "registry.example:5000/a/b", sha256),
        (format!("nginx@sha256:{HEX}"), "docker.io/library/nginx", sha256),
        (format!("docker-pullable://nginx@sha256:{HEX}"), "docker.io/library/nginx", sha256),
        (format!("containerd://docker-pullable://nginx@sha256:{HEX}"), "docker.io/library/nginx", sha256),
        (format!(" quay.io/x@sha512:{HEX}{HEX}\n"), "quay.io/x", sha512),
    ] {
        let Some(Reported::Manifest { repository: Some(found), digest: of }) = read(&text) else {
            panic!("{text}: {:?}", read(&text))
        };
        assert_eq!((found.as_str(), of), (repository, digest), "{text}");
    }
    for text in [
        format!("sha256:{HEX}"),
        HEX.to_owned(),
        format!("docker://sha256:{HEX}"),
        format!("docker-pullable://{HEX}"),
    ] {
        assert_eq!(read(&text), Some(Reported::Id(sha256)), "{text}");
    }
    assert_eq!(read(&format!("sha512:{HEX}{HEX}")), Some(Reported::Id(sha512)));
    assert_eq!(read(&format!("{HEX}{HEX}")), Some(Reported::Id(sha512)));
    // Docker has images without a name.
    let nameless = read(&format!("<none>@sha256:{HEX}")).expect("a report");
    assert_eq!(nameless, Reported::Manifest { repository: None, digest: sha256 });
}

/// What each runtime has its kubelet say of an image volume, in `volumeStatus.image.imageRef`: today's code takes the
/// image ID of the runtime, what is proposed takes what the runtime tells of the mount. All of it is compared with the
/// index that a registry names.
#[test]
fn every_runtime_is_understood_when_it_reports_an_image_volume() {
    let mut contents = multi_arch("llm");
    let (artifact, config) = (digest("artifact"), digest("config of the artifact"));
    contents.learn(
        artifact,
        Content::index([PlatformManifest {
            platform: Platform::default(),
            digest: digest("artifact/manifest"),
        }]),
    );
    contents.learn(digest("artifact/manifest"), Content::image(config));
    let repository = "registry.example:5000/models/llm";
    for on in ["amd64", "arm64"] {
        let (manifest, config) = (digest(&format!("llm/{on}")), digest(&format!("llm/{on}/config")));
        for (runtime, image_ref) in [
            ("containerd 2.1 and later: image ID", config.to_string()),
            ("containerd as proposed: image ID of the mount", format!("sha256:{}", config.hex())),
            ("CRI-O 1.33 and later: image ID", config.hex()),
            (
                "CRI-O as proposed: repository digest of what was pulled",
                format!("{repository}@{}", digest("llm")),
            ),
            ("CRI-O as proposed: repository digest of the platform", format!("{repository}@{manifest}")),
            ("CRI-O as proposed: of another repository", format!("a.example/other@{manifest}")),
            ("CRI-O as proposed: with a tag", format!("{repository}:v1@{manifest}")),
            (
                "cri-dockerd, which mounts no image volumes yet",
                format!("docker-pullable://{repository}@{}", digest("llm")),
            ),
            ("cri-dockerd, by image ID", format!("docker://{config}")),
        ] {
            let reported = read(&image_ref).expect("a report");
            let found = compare(&digest("llm"), &reported, Some(&platform(on)), &contents);
            assert_eq!(found.state, State::Matching, "{runtime} on {on}: {image_ref}: {}", found.reason);
            let other = compare(&artifact, &reported, Some(&platform(on)), &contents);
            assert_ne!(other.state, State::Matching, "{runtime} on {on}: {image_ref}");
        }
    }
    for (runtime, image_ref) in [
        ("CRI-O: artifacts by their manifest", digest("artifact/manifest").hex()),
        ("CRI-O as proposed: canonical name", format!("{repository}@{}", digest("artifact/manifest"))),
    ] {
        let reported = read(&image_ref).expect("a report");
        let found = compare(&artifact, &reported, Some(&platform("amd64")), &contents);
        assert_eq!(found.state, State::Matching, "{runtime}: {image_ref}: {}", found.reason);
    }
}

#[test]
fn junk_is_junk_and_nothing_is_nothing() {
    for text in ["", " ", "\n"] {
        assert_eq!(read(text), None);
    }
    let long = "a".repeat(256);
    let far_too_long = format!("{}@sha256:{HEX}", "a/".repeat(4096));
    for text in [
        "nginx:1",
        "sha256:",
        "sha256:0123",
        "@",
        "://",
        "a@b@c",
        &HEX[1..],
        &HEX.to_uppercase(),
        &format!("sha256:{}", HEX.to_uppercase()),
        &format!("md5:{HEX}"),
        &format!("blake3:{HEX}"),
        "\u{0}\u{feff}",
        &long,
        &far_too_long,
    ] {
        assert_eq!(read(text), Some(Reported::Unreadable), "{text}");
    }
    // As long as the API server lets a kubelet write.
    let name = format!("r.example/{}", "a".repeat(256 - 10 - 8 - HEX.len()));
    let longest = format!("{name}@sha256:{HEX}");
    assert_eq!(longest.len(), 256);
    assert!(matches!(read(&longest), Some(Reported::Manifest { repository: Some(_), .. })));
}

proptest! {
    #[test]
    fn no_text_is_too_odd(text in "\\PC{0,300}") {
        prop_assert_eq!(read(&text).is_none(), text.trim().is_empty());
    }
}
