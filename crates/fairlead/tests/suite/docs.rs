//! Every YAML example of the documentation is tried: objects on the real API server, configuration by the program's own
//! parser, values by the real helm. A fence says which it holds: `yaml`, `yaml config` or `yaml values`; on the page
//! about the configuration file, plain `yaml` is configuration.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use fairlead_operator::platform::config::Config;
use fairlead_testkit::Cluster;
use serde_json::json;

use crate::yaml::{documents, fairlead, repository};
use crate::{chart, kubectl};

const CONFIGURATION_PAGE: &str = "docs/configuration.md";

/// One fenced block, with the place to name when it is wrong.
struct Example {
    place: String,
    kind: String,
    text: String,
}

impl Example {
    fn holds_objects(&self) -> bool {
        self.kind == "yaml" && !self.place.starts_with(CONFIGURATION_PAGE)
    }
}

#[tokio::test]
async fn every_yaml_example_of_the_documentation_is_accepted() {
    let examples = examples().unwrap();
    assert!(!examples.is_empty(), "no example found: is the documentation read at all?");
    let cluster = kubectl::shared_with_definitions().await.unwrap();
    // All objects at once, which is quicker, and one example after the other if something is wrong with them.
    let objects = examples.iter().filter(|example| example.holds_objects());
    let objects: Vec<&str> = objects.map(|example| example.text.as_str()).collect();
    let together = apply(cluster, &objects.join("\n---\n")).await.is_ok();
    let mut wrong = Vec::new();
    for example in examples.iter().filter(|example| !(together && example.holds_objects())) {
        if let Err(error) = try_out(cluster, example).await {
            wrong.push(format!("{}: {error:#}", example.place));
        }
    }
    assert!(wrong.is_empty(), "examples that do not work:\n{}", wrong.join("\n"));
}

#[test]
fn every_test_that_the_page_about_security_names_is_there() {
    let page = std::fs::read_to_string(repository().join("docs/security.md")).unwrap();
    let named = page.split('`').filter(|text| text.contains(".rs"));
    let missing = named.filter(|text| {
        let (file, test) = text.split_once(": ").unwrap_or((text, ""));
        let source = std::fs::read_to_string(repository().join("crates").join(file)).unwrap_or_default();
        !source.contains(&format!("fn {test}"))
    });
    assert_eq!(missing.collect::<Vec<_>>(), Vec::<&str>::new());
}

/// The command of the first minute prints what the page shows.
#[test]
fn the_first_command_of_the_readme_prints_what_the_readme_shows() {
    let page = std::fs::read_to_string(repository().join("README.md")).unwrap();
    let (_, shown) = page.split_once("$ cargo run --quiet -- ").unwrap();
    let (command, shown) = shown.split_once('\n').unwrap();
    let (shown, _) = shown.split_once("```").unwrap();
    let policies = repository().join("examples/image-routing").display().to_string();
    let arguments = command.replace("examples/image-routing", &policies);
    let arguments: Vec<&str> = arguments.split_whitespace().collect();
    let printed = fairlead(&arguments).unwrap();
    assert_eq!(printed.trim(), shown.trim());
}

async fn try_out(cluster: &Cluster, example: &Example) -> Result<()> {
    match example.kind.as_str() {
        "yaml" if example.holds_objects() => apply(cluster, &example.text).await,
        "yaml" | "yaml config" => Config::parse(&example.text).map(drop).map_err(Into::into),
        "yaml values" => {
            let values = documents(&example.text)?.pop().context("no values")?;
            let objects = chart::template(&values)?;
            let config = objects.iter().find_map(|object| object["data"]["config.yaml"].as_str());
            config.map_or(Ok(()), |text| Config::parse(text).map(drop).map_err(Into::into))
        }
        other => bail!("the fence says {other:?}: use `yaml`, `yaml config` or `yaml values`"),
    }
}

/// As a reader would apply it, but for the last step: the API server checks everything and stores nothing.
async fn apply(cluster: &Cluster, text: &str) -> Result<()> {
    let objects = documents(text)?;
    let namespaces =
        objects.iter().filter_map(|object| object["metadata"]["namespace"].as_str()).collect::<BTreeSet<_>>();
    let manifest = |name| json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } });
    let namespaces = namespaces.into_iter().map(manifest).collect::<Vec<_>>();
    if !namespaces.is_empty() {
        kubectl::apply(cluster, &namespaces, &[]).await?;
    }
    kubectl::apply(cluster, &objects, &["--dry-run=server", "--validate=strict", "--force-conflicts"]).await
}

fn examples() -> Result<Vec<Example>> {
    let mut pages = vec![repository().join("README.md")];
    pages_below(&repository().join("docs"), &mut pages)?;
    let mut examples = Vec::new();
    for page in pages.iter().filter(|page| page.exists()) {
        let text = std::fs::read_to_string(page)?;
        let name = page.strip_prefix(repository())?.display().to_string();
        examples.extend(fenced(&name, &text));
    }
    Ok(examples)
}

fn pages_below(directory: &Path, pages: &mut Vec<PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            pages_below(&path, pages)?;
        } else if path.extension().is_some_and(|extension| extension == "md") {
            pages.push(path);
        }
    }
    Ok(())
}

/// The blocks whose fence begins with `yaml`. A fence inside a list is indented, and so is its text.
fn fenced(page: &str, text: &str) -> Vec<Example> {
    let mut examples = Vec::new();
    let mut open: Option<(usize, Example)> = None;
    for (number, line) in text.lines().enumerate() {
        let indent = line.len() - line.trim_start().len();
        match (&mut open, line.trim().strip_prefix("```")) {
            (Some(_), Some("")) => examples.extend(open.take().map(|(_, example)| example)),
            (Some((indent, example)), None) => {
                example.text.push_str(line.get(*indent..).unwrap_or_default());
                example.text.push('\n');
            }
            (None, Some(info)) if !info.is_empty() => {
                let place = format!("{page}:{}", number + 1);
                open = Some((indent, Example { place, kind: info.trim().to_owned(), text: String::new() }));
            }
            _ => {}
        }
    }
    examples
        .retain(|example| example.kind.split(' ').next().is_some_and(|word| word == "yaml" || word == "yml"));
    examples
}

#[test]
fn a_block_is_found_with_its_kind_and_without_the_indentation_of_its_list() {
    let page = "- x\n  ```yaml config\n  a:\n    b: 1\n  ```\n```sh\nls\n```\n```yaml\nc: 2\n```\n";
    let found = fenced("page.md", page);
    assert_eq!(found.len(), 2);
    assert_eq!((found[0].kind.as_str(), found[0].text.as_str()), ("yaml config", "a:\n  b: 1\n"));
    assert_eq!(found[0].place, "page.md:2");
    assert_eq!((found[1].kind.as_str(), found[1].text.as_str()), ("yaml", "c: 2\n"));
}
