//! Rules about the workspace itself: which crate may use which, what may be linked into the program, under which
//! licences, how long a file may grow, and how wide a comment. They are tests, because a page of rules is not read
//! again.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// The direction of dependencies, lowest layer first. A crate may use only what stands beside it here.
const MAY_USE: &[(&str, &[&str])] = &[
    ("fairlead-domain", &[]),
    ("fairlead-api", &["fairlead-domain"]),
    ("fairlead-plan", &["fairlead-domain", "fairlead-api"]),
    ("fairlead-registry", &["fairlead-domain"]),
    ("fairlead-harbor", &["fairlead-domain", "fairlead-registry"]),
    ("fairlead-node", &["fairlead-domain", "fairlead-plan", "fairlead-registry"]),
    (
        "fairlead-operator",
        &[
            "fairlead-domain",
            "fairlead-api",
            "fairlead-plan",
            "fairlead-registry",
            "fairlead-harbor",
            "fairlead-node",
        ],
    ),
    (
        "fairlead-testkit",
        &["fairlead-domain", "fairlead-api", "fairlead-plan", "fairlead-registry", "fairlead-harbor"],
    ),
    (
        "fairlead",
        &[
            "fairlead-domain",
            "fairlead-api",
            "fairlead-plan",
            "fairlead-registry",
            "fairlead-harbor",
            "fairlead-node",
            "fairlead-operator",
        ],
    ),
];

/// What a crate must not link, directly or through others: purity is what makes planners testable.
const MUST_NOT_LINK: &[(&str, &[&str])] = &[
    ("fairlead-domain", &["kube", "kube-core", "kube-client", "k8s-openapi", "tokio", "reqwest", "hyper"]),
    ("fairlead-api", &["kube-client", "tokio", "reqwest", "hyper"]),
    ("fairlead-plan", &["kube-client", "kube-runtime", "tokio", "reqwest", "hyper"]),
    ("fairlead-registry", &["kube", "kube-core", "kube-client"]),
    ("fairlead-harbor", &["kube", "kube-core", "kube-client"]),
    ("fairlead", &["fairlead-testkit"]),
];

/// Never in the tree, in tests neither: a second TLS stack, C code that cannot be linked statically, or an abandoned
/// parser.
const BANNED: &[&str] =
    &["openssl-sys", "openssl", "native-tls", "aws-lc-sys", "aws-lc-rs", "serde_yaml", "serde_yml", "chrono"];

const LICENCES: &[&str] = &[
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MIT-0",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

const LONGEST_USUAL_FILE: usize = 500;

/// Characters of a line with a comment. rustfmt leaves those as they are.
const WIDEST_COMMENT: usize = 120;

struct Metadata {
    packages: BTreeMap<String, Value>,
    /// Package id to the ids it links in a normal (not build, not test) way.
    links: BTreeMap<String, Vec<String>>,
    members: BTreeSet<String>,
}

impl Metadata {
    fn read() -> Self {
        let output = Command::new(env!("CARGO"))
            .args([
                "metadata",
                "--format-version",
                "1",
                "--locked",
                "--filter-platform",
                "x86_64-unknown-linux-gnu",
            ])
            .current_dir(root())
            .output()
            .expect("cargo metadata runs");
        assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
        let json: Value = serde_json::from_slice(&output.stdout).expect("cargo metadata prints JSON");
        let text = |value: &Value| value.as_str().expect("a string").to_owned();
        let packages = json["packages"]
            .as_array()
            .unwrap()
            .iter()
            .map(|package| (text(&package["id"]), package.clone()))
            .collect();
        let links = json["resolve"]["nodes"]
            .as_array()
            .unwrap()
            .iter()
            .map(|node| {
                let normal = node["deps"].as_array().unwrap().iter().filter(|dependency| {
                    dependency["dep_kinds"].as_array().unwrap().iter().any(|kind| kind["kind"].is_null())
                });
                (text(&node["id"]), normal.map(|dependency| text(&dependency["pkg"])).collect())
            })
            .collect();
        let members = json["workspace_members"].as_array().unwrap().iter().map(text).collect();
        Self { packages, links, members }
    }

    fn name(&self, id: &str) -> &str {
        self.packages[id]["name"].as_str().unwrap()
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace root exists")
}

#[test]
fn dependencies_point_one_way() {
    let metadata = Metadata::read();
    let names: BTreeSet<&str> = metadata.members.iter().map(|id| metadata.name(id)).collect();
    for member in &metadata.members {
        let name = metadata.name(member);
        let (_, allowed) = MAY_USE
            .iter()
            .find(|(crate_name, _)| *crate_name == name)
            .unwrap_or_else(|| panic!("{name} is new: say in MAY_USE which crates it may use"));
        for dependency in metadata.links[member].iter().map(|id| metadata.name(id)) {
            assert!(
                !names.contains(dependency) || allowed.contains(&dependency),
                "{name} uses {dependency}; allowed are {allowed:?}"
            );
        }
    }
}

#[test]
fn pure_crates_link_no_runtime() {
    for (name, forbidden) in MUST_NOT_LINK {
        if !root().join("crates").join(name.trim_start_matches("fairlead-")).exists() {
            continue;
        }
        let linked = linked_by(name);
        let found: Vec<_> = forbidden.iter().filter(|dependency| linked.contains(**dependency)).collect();
        assert!(found.is_empty(), "{name} links {found:?}; `cargo tree -p {name} -i NAME` shows why");
    }
}

/// Everything a crate links when it is built by itself. The workspace's metadata cannot tell: there the features that
/// one member asks for seem to be those of all.
fn linked_by(name: &str) -> BTreeSet<String> {
    let output = Command::new(env!("CARGO"))
        .args([
            "tree",
            "--package",
            name,
            "--edges",
            "normal",
            "--prefix",
            "none",
            "--format",
            "{p}",
            "--locked",
        ])
        .current_dir(root())
        .output()
        .expect("cargo tree runs");
    assert!(output.status.success(), "cargo tree: {}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8(output.stdout).expect("cargo tree prints text");
    lines.lines().filter_map(|line| line.split_whitespace().next().map(str::to_owned)).collect()
}

#[test]
fn make_test_names_every_program_with_tests() {
    let metadata = Metadata::read();
    for member in &metadata.members {
        let name = metadata.name(member);
        let targets = metadata.packages[member]["targets"].as_array().unwrap();
        for target in targets.iter().filter(|target| target["kind"][0] == "test") {
            let known = if name == "fairlead" { "program" } else { "suite" };
            assert_eq!(target["name"], known, "{name}: a test with another name is not run by the Makefile");
        }
    }
}

#[test]
fn nothing_banned_is_in_the_tree() {
    let metadata = Metadata::read();
    let found: Vec<_> =
        metadata.packages.keys().map(|id| metadata.name(id)).filter(|name| BANNED.contains(name)).collect();
    assert!(
        found.is_empty(),
        "banned crates are in the tree: {found:?}; `cargo tree -i NAME` shows who brings them"
    );
}

#[test]
fn every_licence_is_permissive() {
    let metadata = Metadata::read();
    let mut refused = Vec::new();
    for package in metadata.packages.values() {
        let expression = package["license"].as_str().unwrap_or("no licence given");
        if !permitted(expression) {
            refused.push(format!("{} {}: {expression}", package["name"], package["version"]));
        }
    }
    assert!(refused.is_empty(), "licences that are not on the list:\n{}", refused.join("\n"));
}

/// Whether an SPDX expression can be satisfied from [`LICENCES`]. Old manifests separate alternatives by a slash.
fn permitted(expression: &str) -> bool {
    let expression = expression.replace('/', " OR ").replace(['(', ')'], " ");
    // `A AND (B OR C)` loses its brackets here; every part is then demanded of AND first, which is the stricter reading
    // for the licences we accept, because each alternative is checked on its own.
    expression.split(" AND ").all(|all_of| {
        all_of.split(" OR ").any(|one_of| {
            let licence = one_of.trim().split(" WITH ").next().unwrap_or_default().trim();
            LICENCES.contains(&licence)
        })
    })
}

#[test]
fn licence_expressions_are_read_right() {
    for accepted in [
        "MIT",
        "MIT OR GPL-3.0",
        "MIT/Apache-2.0",
        "Apache-2.0 WITH LLVM-exception",
        "MIT AND (ISC OR GPL-2.0)",
    ] {
        assert!(permitted(accepted), "{accepted}");
    }
    for refused in ["GPL-3.0", "MIT AND GPL-3.0", "AGPL-3.0 OR SSPL-1.0", "no licence given"] {
        assert!(!permitted(refused), "{refused}");
    }
}

#[test]
fn nine_in_ten_files_are_short() {
    let files = rust_files(&root().join("crates"));
    let mut lengths: Vec<(usize, PathBuf)> =
        files.into_iter().map(|(path, text)| (text.lines().count(), path)).collect();
    lengths.sort();
    let long: Vec<_> = lengths.iter().filter(|(lines, _)| *lines > LONGEST_USUAL_FILE).collect();
    assert!(
        long.len() * 10 <= lengths.len(),
        "{} of {} files have over {LONGEST_USUAL_FILE} lines; split them by concern: {long:?}",
        long.len(),
        lengths.len()
    );
}

#[test]
fn comments_are_narrow() {
    let mut wide = Vec::new();
    for (path, text) in rust_files(&root().join("crates")) {
        let lines = (1..).zip(text.lines());
        let comments = lines.filter(|(_, line)| line.trim_start().starts_with("//"));
        let found = comments.filter(|(_, line)| line.chars().count() > WIDEST_COMMENT);
        wide.extend(found.map(|(number, _)| format!("{}:{number}", path.display())));
    }
    assert!(wide.is_empty(), "comments over {WIDEST_COMMENT} columns, to be wrapped: {wide:#?}");
}

/// Tables, examples and paths of tests cannot be wrapped.
#[test]
fn pages_are_narrow() {
    let mut wide = Vec::new();
    for directory in [root(), root().join("docs")] {
        for entry in std::fs::read_dir(&directory).expect("the directory is readable").flatten() {
            let path = entry.path();
            if path.extension().is_none_or(|extension| extension != "md") {
                continue;
            }
            let text = std::fs::read_to_string(&path).expect("a page is text");
            let mut is_example = false;
            for (number, line) in (1..).zip(text.lines()) {
                is_example ^= line.trim_start().starts_with("```");
                let is_path = line.trim().strip_prefix('`').is_some_and(|line| line.ends_with('`'));
                let is_whole = is_example || line.starts_with('|') || is_path;
                if !is_whole && line.chars().count() > WIDEST_COMMENT {
                    wide.push(format!("{}:{number}", path.display()));
                }
            }
        }
    }
    assert!(wide.is_empty(), "lines over {WIDEST_COMMENT} columns, to be wrapped: {wide:#?}");
}

/// Paths and texts.
fn rust_files(directory: &Path) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).expect("the directory is readable").flatten() {
        let path = entry.path();
        if path.is_dir() && path.file_name().is_some_and(|name| name != "target") {
            found.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(&path).expect("a source file is text");
            found.push((path, text));
        }
    }
    found
}
