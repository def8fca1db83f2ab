//! Every example can be read by the types, and nothing in it is lost.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::repository;
use crate::crds;

/// Every document of every file below `directory`.
fn documents(directory: &Path, found: &mut Vec<(String, Value)>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            documents(&path, found);
        } else {
            let text = fs::read_to_string(&path).unwrap();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            assert!(text.starts_with("# "), "{name} does not say what it shows");
            let options = serde_saphyr::options! { strict_booleans: true };
            let read: Vec<Value> = serde_saphyr::from_multiple_with_options(&text, options).unwrap();
            found.extend(read.into_iter().map(|document| (name.clone(), document)));
        }
    }
}

#[test]
fn every_example_is_read_without_loss() {
    let kinds: Vec<_> = crds::kinds().iter().map(|kind| (kind, kind.crd())).collect();
    let mut examples = Vec::new();
    documents(&repository("examples"), &mut examples);
    let mut ours = 0;
    for (file, example) in examples {
        let group = example["apiVersion"]
            .as_str()
            .and_then(|version| version.split_once('/'))
            .map(|(group, _)| group);
        let known = kinds.iter().find(|(_, crd)| {
            Some(crd.spec.group.as_str()) == group && example["kind"] == crd.spec.names.kind.as_str()
        });
        if let Some((kind, _)) = known {
            ours += 1;
            let read = kind.round_trip(example.clone()).unwrap_or_else(|error| panic!("{file}: {error}"));
            assert_contains(&file, &read, &example);
        }
    }
    assert!(ours >= 5, "only {ours} examples of our kinds");
}

/// Reading may add defaults, and must keep everything else.
fn assert_contains(place: &str, read: &Value, written: &Value) {
    match (read, written) {
        (Value::Object(read), Value::Object(written)) => {
            for (key, value) in written {
                let kept = read.get(key).unwrap_or_else(|| panic!("{place}: {key} was lost"));
                assert_contains(&format!("{place}.{key}"), kept, value);
            }
        }
        (Value::Array(read), Value::Array(written)) => {
            assert_eq!(read.len(), written.len(), "{place}");
            for (at, (read, written)) in read.iter().zip(written).enumerate() {
                assert_contains(&format!("{place}[{at}]"), read, written);
            }
        }
        // Quantities may be written as numbers; they are kept as text.
        (Value::String(read), Value::Number(written)) => assert_eq!(*read, written.to_string(), "{place}"),
        _ => assert_eq!(read, written, "{place}"),
    }
}
