//! What the program does without a cluster: prints, checks, and refuses what cannot work before it starts.

use std::fs;
use std::process::{Command, Output};

use fairlead_api::crds;

fn fairlead(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_fairlead"))
        .args(arguments)
        .env_clear()
        .output()
        .expect("the program was built with this test")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("plain text")
}

#[test]
fn every_definition_is_printed_or_those_of_one_group() {
    let all = fairlead(&["crds"]);
    assert!(all.status.success());
    let kinds = |output: &Output| text(&output.stdout).matches("\nkind: CustomResourceDefinition\n").count();
    assert_eq!(kinds(&all), crds::all().len());

    let one = fairlead(&["crds", "--group", "harbor-reef.nvidia.com"]);
    assert_eq!(kinds(&one), 1);
    let none = fairlead(&["crds", "--group", "example.com"]);
    assert!(!none.status.success());
    assert!(text(&none.stderr).contains("the groups are "), "{}", text(&none.stderr));
}

#[test]
fn a_configuration_is_checked() {
    let directory = tempfile::tempdir().expect("a directory");
    let good = directory.path().join("good.yaml");
    let bad = directory.path().join("bad.yaml");
    fs::write(&good, "mirroring:\n  workers: 4\n").expect("writing");
    fs::write(&bad, "mirroring:\n  worker: 4\n").expect("writing");

    let checked = fairlead(&["config", "check", &good.to_string_lossy()]);
    assert!(checked.status.success(), "{}", text(&checked.stderr));
    assert!(text(&checked.stdout).ends_with("good.yaml is valid\n"));

    let checked = fairlead(&["config", "check", &bad.to_string_lossy()]);
    assert_eq!(checked.status.code(), Some(1));
    let told = text(&checked.stderr);
    assert!(told.contains("line 2") && told.contains("workers"), "{told}");
}

#[test]
fn an_operator_that_cannot_work_says_why_and_does_not_start() {
    for (arguments, reason) in [
        (&["--config", "/does/not/exist.yaml"][..], "/does/not/exist.yaml"),
        (&["--kubeconfig", "/does/not/exist"][..], "cannot read kubeconfig /does/not/exist"),
        (&["--log-level", "loud,,=x"][..], "--log-level"),
        (&["--certificate-validity", "tomorrow"][..], "--certificate-validity"),
        (&[][..], "name one with --kubeconfig"),
    ] {
        let output = fairlead(&[&["operator"], arguments].concat());
        assert!(!output.status.success(), "{arguments:?}");
        assert!(text(&output.stderr).contains(reason), "{arguments:?}: {}", text(&output.stderr));
    }
}
