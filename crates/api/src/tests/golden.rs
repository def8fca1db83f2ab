//! The committed definitions are the generated ones.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use super::repository;
use crate::crds;

const REWRITE: &str = "FAIRLEAD_BLESS";

#[test]
fn generated_definitions_are_up_to_date() {
    let generated =
        crds::all().iter().map(|crd| (crds::file_name(crd), crds::to_yaml(crd).unwrap())).collect();
    assert_committed("deploy/crds", &generated);
}

/// Asserts that a directory of the repository holds exactly these files, by name, with these texts.
pub(super) fn assert_committed(directory: &str, generated: &BTreeMap<String, String>) {
    let path = repository(directory);
    let names = || {
        let entries = fs::read_dir(&path).into_iter().flatten();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap())
    };
    if std::env::var_os(REWRITE).is_some_and(|value| value == "1") {
        fs::create_dir_all(&path).unwrap();
        for stale in names().filter(|name| !generated.contains_key(name)) {
            fs::remove_file(path.join(stale)).unwrap();
        }
        for (name, text) in generated {
            fs::write(path.join(name), text).unwrap();
        }
    }
    let committed: BTreeMap<_, _> =
        names().map(|name| (name.clone(), fs::read_to_string(path.join(name)).unwrap())).collect();
    let differing: BTreeSet<_> = generated
        .keys()
        .chain(committed.keys())
        .filter(|name| generated.get(*name) != committed.get(*name))
        .collect();
    assert!(
        differing.is_empty(),
        "{directory} differs from the types in {differing:?}: run make bless, and commit"
    );
}

#[test]
fn yaml_says_what_the_definition_says() {
    for crd in crds::all() {
        let text = crds::to_yaml(&crd).unwrap();
        let options = serde_saphyr::options! { strict_booleans: true };
        let read = serde_saphyr::from_str_with_options(&text, options).unwrap();
        assert_eq!(crd, read, "{}", crds::file_name(&crd));
        assert!(!text.contains(": 0.0"), "whole numbers have no fraction");
    }
}
