//! The image of the Containerfile, around the static program.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use fairlead_operator::platform::install::NAME;
use fairlead_testkit::images::{Image, ImageBuilder};

use crate::yaml::repository;

const TARGET: &str = "x86_64-unknown-linux-musl";

/// What the Containerfile describes, made without the tools that usually read it.
pub fn image() -> Result<Image> {
    let file = Containerfile::read()?;
    let program = static_program()?;
    let mut builder = ImageBuilder::new().executable(&file.destination, &program)?.user(&file.user);
    for (name, value) in &file.labels {
        builder = builder.label(name, value);
    }
    let entrypoint = file.entrypoint.iter().map(String::as_str).collect::<Vec<_>>();
    builder.entrypoint(&entrypoint).build()
}

fn static_program() -> Result<PathBuf> {
    let status = Command::new("make").arg("static").current_dir(repository()).status()?;
    ensure!(
        status.success(),
        "building the static program failed, as said above; it needs `rustup target add {TARGET}` and Debian's musl-tools"
    );
    let profile =
        Path::new(env!("CARGO_BIN_EXE_fairlead")).parent().context("the program has no directory")?;
    let target = profile.parent().context("the profile has no directory")?;
    Ok(target.join(TARGET).join("debug").join(NAME))
}

/// The instructions of the Containerfile.
struct Containerfile {
    destination: String,
    user: String,
    entrypoint: Vec<String>,
    labels: BTreeMap<String, String>,
}

impl Containerfile {
    fn read() -> Result<Self> {
        let text = std::fs::read_to_string(repository().join("Containerfile"))?;
        let text = text.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>().join("\n");
        let mut file = Self {
            destination: String::new(),
            user: String::new(),
            entrypoint: Vec::new(),
            labels: BTreeMap::new(),
        };
        for line in text.replace("\\\n", " ").lines().map(str::trim).filter(|line| !line.is_empty()) {
            let (instruction, rest) = line.split_once(' ').context("an instruction without arguments")?;
            match instruction {
                "FROM" => ensure!(rest == "scratch", "there is no base image to be had: {line}"),
                "ARG" => {}
                "COPY" => {
                    let destination = rest.split(' ').next_back().context("no destination")?;
                    destination.clone_into(&mut file.destination);
                }
                "USER" => rest.clone_into(&mut file.user),
                "ENTRYPOINT" => file.entrypoint = serde_json::from_str(rest)?,
                "LABEL" => file.labels = labels(rest)?,
                _ => bail!("this test does not understand {line:?}: teach it"),
            }
        }
        Ok(file)
    }
}

fn labels(text: &str) -> Result<BTreeMap<String, String>> {
    let mut labels = BTreeMap::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let (name, after) = rest.split_once("=\"").context("a label is not NAME=\"VALUE\"")?;
        let (value, after) = after.split_once('"').context("a label has no end")?;
        labels.insert(name.to_owned(), value.to_owned());
        rest = after.trim_start();
    }
    Ok(labels)
}
