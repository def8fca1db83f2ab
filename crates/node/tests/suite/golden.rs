//! Whole files. `FAIRLEAD_BLESS=1 cargo test -p fairlead-node` writes them again.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use fairlead_node::File;
use fairlead_node::RuntimeName::{Containerd, Crio};
use fairlead_node::files::{ConfigDir, RealDisk};
use fairlead_plan::node_config::NodeConfig;
use tempfile::TempDir;

use super::*;

/// Files and reports as one text.
fn text(rendered: &Rendered) -> String {
    let mut text = String::new();
    for file in &rendered.files {
        writeln!(text, "=== {}\n{}", file.path, file.content).unwrap();
    }
    for one in &rendered.inexact {
        writeln!(text, "not exact: {}: {}", one.source, one.message).unwrap();
    }
    for one in &rendered.notes {
        writeln!(text, "note: {}: {}", one.source, one.message).unwrap();
    }
    text
}

fn check(name: &str, config: &NodeConfig, runtime: RuntimeName, version: Option<&str>) {
    check_rendered(name, &rendered(config, runtime, version));
}

fn check_rendered(name: &str, rendered: &Rendered) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    let text = text(rendered);
    if std::env::var_os("FAIRLEAD_BLESS").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(text, expected, "{}", path.display());
}

/// Nested, closed, insecure and blocked places, and domains.
fn repositories() -> NodeConfig {
    plan(
        vec![
            digest("hub.test/team", &["m.test/team", "n.test:5000/team"]),
            tag("hub.test", &["t.test"]),
            both("q.test/libpod", &["m.test/libpod"]),
            digest_never("shut.test/base", &["m.test/base"]),
            digest("*.vendor.test", &["m.test/vendor"]),
        ],
        &["hub.test/team/dev", "n.test:5000"],
        &["blk.test"],
    )
}

/// What is about whole registries.
fn registries() -> NodeConfig {
    plan(
        vec![
            both("docker.io", &["m.test/hub", "n.test:5000"]),
            digest_never("shut.test:5000", &["m.test/shut", "n.test:5000", "blk.test"]),
            digest("digest.test", &["m.test"]),
            tag_never("tag.test", &["m.test"]),
        ],
        &["n.test:5000", "ins.test"],
        &["blk.test"],
    )
}

#[test]
fn repositories_for_crio() {
    check("repositories.crio.txt", &repositories(), Crio, None);
}

#[test]
fn repositories_for_an_old_crio() {
    check("repositories.crio-1.24.txt", &repositories(), Crio, Some("1.24.6"));
}

#[test]
fn repositories_for_containerd() {
    check("repositories.containerd.txt", &repositories(), Containerd, None);
}

#[test]
fn registries_for_containerd() {
    check("registries.containerd.txt", &registries(), Containerd, Some("1.7.24"));
}

/// Files that lead to a router: `hub.test` is open, and what is insecure in it is not expressed; `shut.test` is closed
/// in part; `ins.test` needs no router; the domain is open, and then closed.
#[test]
fn files_for_a_router() {
    check_rendered("repositories.routed.txt", &routed(&repositories()));
    let closed = plan(vec![tag_never("*.vendor.test", &["m.test/vendor"])], &["ins.test"], &[]);
    check_rendered("domain.routed.txt", &routed(&closed));
    assert_eq!(routed(&NodeConfig::default()), Rendered::default());
}

/// The files of a text like those above.
fn files(name: &str) -> Vec<File> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    let text = std::fs::read_to_string(path).unwrap();
    let file = |text: &str| {
        let (path, content) = text.split_once('\n').unwrap();
        File { path: path.to_owned(), content: content.strip_suffix('\n').unwrap().to_owned() }
    };
    text.split("=== ").skip(1).map(file).collect()
}

/// What a runtime reads below a directory; hidden files are for agents.
fn read(root: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(root).unwrap() {
        let path = entry.unwrap().path();
        let path = if path.is_dir() { path.join("hosts.toml") } else { path };
        let name = path.strip_prefix(root).unwrap().display().to_string();
        if !name.starts_with('.') {
            found.insert(name, std::fs::read_to_string(path).unwrap());
        }
    }
    found
}

/// The first version that led to a router wrote `earlier.*.txt` for the same policies. A file is an agent's by its
/// first line, whichever version wrote it: that is all that upgrades, downgrades and removal stand on.
#[test]
fn files_of_another_version_are_taken_over_in_both_directions_and_removed() {
    for (earlier, now, runtime) in [
        ("earlier.routed.txt", routed(&repositories()), Containerd),
        ("earlier.crio.txt", rendered(&repositories(), Crio, None), Crio),
    ] {
        let root = TempDir::new().unwrap();
        let directory = ConfigDir::new(root.path().to_owned(), runtime);
        let content = |files: &[File]| -> BTreeMap<String, String> {
            files.iter().map(|file| (file.path.clone(), file.content.clone())).collect()
        };
        let (earlier, now) = (files(earlier), now.files);
        assert_ne!(content(&earlier), content(&now));
        for file in &earlier {
            let path = root.path().join(&file.path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, &file.content).unwrap();
        }
        for files in [&now, &earlier, &now] {
            let applied = directory.apply(files, &mut RealDisk).unwrap();
            assert!(applied.foreign.is_empty() && applied.has_changes(), "{applied:?}");
            assert_eq!(read(root.path()), content(files));
        }
        directory.remove(&mut RealDisk).unwrap();
        assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
    }
}

#[test]
fn no_policies_make_no_files() {
    for runtime in [Crio, Containerd] {
        assert_eq!(rendered(&NodeConfig::default(), runtime, None), Rendered::default());
    }
}
