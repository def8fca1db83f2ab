//! The documentation of the configuration file says what the program does.

use std::path::Path;

use fairlead_operator::platform::config::{Config, reference};

const BEGIN: &str = "<!-- reference: begin -->\n";
const END: &str = "<!-- reference: end -->";

fn document() -> (std::path::PathBuf, String) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/configuration.md");
    let text = std::fs::read_to_string(&path).expect("docs/configuration.md");
    (path, text)
}

/// The table of all keys is made from their declaration. `FAIRLEAD_BLESS=1` writes it.
#[test]
fn the_generated_reference_is_up_to_date() {
    let (path, text) = document();
    let (before, rest) = text.split_once(BEGIN).expect("the mark where the reference begins");
    let (found, after) = rest.split_once(END).expect("the mark where the reference ends");
    let wanted = reference();
    if std::env::var_os("FAIRLEAD_BLESS").is_some() {
        std::fs::write(&path, format!("{before}{BEGIN}{wanted}{END}{after}"))
            .expect("docs/configuration.md is writable");
    } else {
        assert_eq!(found, wanted, "run this test with FAIRLEAD_BLESS=1 to write the table");
    }
}

#[test]
fn every_example_is_valid() {
    let (_, text) = document();
    let examples: Vec<_> =
        text.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
    assert!(examples.len() >= 2, "the page shows examples");
    for example in examples {
        if let Err(errors) = Config::parse(example) {
            panic!("{example}\n{errors}");
        }
    }
}
