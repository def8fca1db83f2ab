//! Reading YAML the way Kubernetes does, and running the program under test for what it prints.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// Set to write generated files again instead of comparing them.
const BLESS: &str = "FAIRLEAD_BLESS";

/// The documents of a stream, empty ones left out.
pub fn documents(text: &str) -> Result<Vec<Value>> {
    let options = serde_saphyr::options! { strict_booleans: true };
    let documents = serde_saphyr::from_multiple_with_options::<Value>(text, options)?;
    Ok(documents.into_iter().filter(|document| !document.is_null()).collect())
}

pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Standard output of `fairlead ARGS`.
pub fn fairlead(args: &[&str]) -> Result<String> {
    let output = Command::new(env!("CARGO_BIN_EXE_fairlead"))
        .args(args)
        .output()
        .context("running fairlead failed")?;
    ensure!(
        output.status.success(),
        "fairlead {} ended with {}: {}",
        args.join(" "),
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8(output.stdout)?)
}

/// Compares a committed file with what it is generated from.
pub fn assert_generated(path: &str, expected: &str) {
    let file = repository().join(path);
    if std::env::var_os(BLESS).is_some() {
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, expected).unwrap();
        return;
    }
    let found = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(
        found == expected,
        "{path} is not what its source says: run `make bless` and look at the difference"
    );
}

/// `Kind/name`, to tell objects apart in messages.
pub fn title(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or("?").to_owned();
    format!("{}/{}", text(&object["kind"]), text(&object["metadata"]["name"]))
}
