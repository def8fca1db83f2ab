//! The real reader of `registries.conf`: skopeo names every place that it tried.

use std::path::Path;
use std::process::Command;

use fairlead_node::RuntimeName::Podman;

use super::*;

const SKOPEO: &str = "/usr/bin/skopeo";
const DIGEST: &str = "@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// What skopeo says when nothing answers anywhere.
fn inspect(config: &NodeConfig, image: &str) -> String {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("registries.conf");
    std::fs::write(&file, &rendered(config, Podman, None).files[0].content).unwrap();
    let output = Command::new(SKOPEO)
        .arg("--registries-conf")
        .arg(&file)
        .args(["inspect", "--no-tags", &format!("docker://{image}")])
        .env("HOME", directory.path())
        .output()
        .unwrap();
    assert!(!output.status.success());
    String::from_utf8(output.stderr).unwrap()
}

/// Ports of this machine on which nothing listens, so that every place is tried and fails.
#[test]
fn skopeo_reads_the_file_as_it_is_meant() {
    if !Path::new(SKOPEO).exists() {
        eprintln!("{SKOPEO} is not installed: the golden files are all there is");
        return;
    }
    let config = plan(
        vec![
            digest("127.0.0.1:2/team", &["127.0.0.1:3/d", "127.0.0.1:4/d"]),
            tag("127.0.0.1:2", &["127.0.0.1:5"]),
            digest_never("127.0.0.1:6", &["127.0.0.1:3"]),
            both("*.vendor.test", &["127.0.0.1:3/vendor"]),
        ],
        &[],
        &["127.0.0.1:4"],
    );
    let by_digest = inspect(&config, &format!("127.0.0.1:2/team/app{DIGEST}"));
    let tried = |text: &str, places: &[&str]| {
        let found: Vec<_> = places.iter().map(|place| text.find(&format!("[{place}")).is_some()).collect();
        found
    };
    assert_eq!(
        tried(&by_digest, &["127.0.0.1:3/d/app", "127.0.0.1:4/d/app", "127.0.0.1:5/"]),
        [true, true, false],
        "{by_digest}"
    );
    assert!(
        by_digest.contains("127.0.0.1:4 is blocked") || by_digest.contains("registry 127.0.0.1:4"),
        "{by_digest}"
    );
    let by_tag = inspect(&config, "127.0.0.1:2/team/app:1");
    assert_eq!(tried(&by_tag, &["127.0.0.1:3/", "127.0.0.1:5/team/app"]), [false, true], "{by_tag}");
    let closed = inspect(&config, "127.0.0.1:6/app:1");
    assert!(closed.contains("is blocked"), "{closed}");
    let closed = inspect(&config, &format!("127.0.0.1:6/app{DIGEST}"));
    assert_eq!(tried(&closed, &["127.0.0.1:3/app"]), [true], "{closed}");
    assert!(closed.contains("is blocked"), "{closed}");
}
