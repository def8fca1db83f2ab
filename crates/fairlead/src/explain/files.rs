//! Manifests in files, as people keep them: several documents in a file, several files in a directory, lists as kubectl
//! prints them, and kinds that are none of our business between them.
//!
//! A document that cannot be read must not take the others along, so a file is taken apart first and each document is
//! read by itself.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::Value;

use super::report::Broken;

/// Policies of a large cluster take a few megabytes, its Pods some dozens.
const LONGEST_FILE: u64 = 64 * 1024 * 1024;

/// Keys, values, lists and maps of one document: as many as such a file has of them, at eight bytes each. The parser's
/// own limit ends at some hundred Pods.
const MOST_NODES: usize = 8 * 1024 * 1024;

/// One object, and where it stands.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Manifest {
    /// File and line, and the place in a list.
    pub(crate) place: String,
    pub(crate) object: Value,
}

/// What was found in files.
#[derive(Debug, Default)]
pub(crate) struct Manifests {
    pub(crate) objects: Vec<Manifest>,
    /// Documents that are not YAML, or nothing that Kubernetes knows as an object.
    pub(crate) broken: Vec<Broken>,
}

impl Manifests {
    /// Everything in a file, on standard input (`-`), or in the files with the usual endings in and below a directory.
    pub(crate) fn read(&mut self, path: &Path) -> Result<()> {
        for file in files(path)? {
            let name = name(&file);
            let text = text(&file).with_context(|| format!("cannot read {name}"))?;
            self.take(&name, &text);
        }
        Ok(())
    }

    fn take(&mut self, file: &str, text: &str) {
        for (line, document) in documents(text) {
            let place = |line: usize| format!("{file}:{line}");
            let options = serde_saphyr::options! {
                strict_booleans: true,
                with_snippet: false,
                // Only a few in a row are taken where they are kept.
                emit_comments: false,
                budget: serde_saphyr::budget! { max_nodes: MOST_NODES, max_events: 2 * MOST_NODES },
            };
            match serde_saphyr::from_str_with_options::<Value>(document, options) {
                Ok(Value::Null) => {}
                Ok(object) => self.add(&place(line + first_line(document)), object),
                Err(error) => {
                    let inside = error.location().map_or(0, |location| location.line());
                    let inside = usize::try_from(inside).unwrap_or_default().saturating_sub(1);
                    self.broken.push(Broken {
                        place: Some(place(line + inside)),
                        object: None,
                        field: None,
                        message: format!("this is not YAML: {}", without_place(&error.to_string())),
                    });
                }
            }
        }
    }

    fn add(&mut self, place: &str, mut object: Value) {
        let kind = object.get("kind").and_then(Value::as_str).and_then(|kind| kind.strip_suffix("List"));
        if let Some(of_items) = kind.map(str::to_owned)
            && let Some(Value::Array(items)) = object.get_mut("items").map(Value::take)
        {
            for (index, mut item) in items.into_iter().enumerate() {
                name_kind(&mut item, &of_items, object.get("apiVersion"));
                self.add(&format!("{place} items[{index}]"), item);
            }
            return;
        }
        let missing = ["apiVersion", "kind"].into_iter().find(|key| text_at(&object, &[key]).is_none());
        match missing {
            Some(field) => self.broken.push(Broken {
                place: Some(place.to_owned()),
                object: None,
                field: Some(field.to_owned()),
                message: "it is missing, so this is no Kubernetes object".to_owned(),
            }),
            None => self.objects.push(Manifest { place: place.to_owned(), object }),
        }
    }
}

/// Gives an item of a `PodList` and the like the kind and version that such lists name once for all.
fn name_kind(item: &mut Value, kind: &str, api_version: Option<&Value>) {
    if let (Value::Object(item), false) = (item, kind.is_empty()) {
        let found = item.entry("kind").or_insert_with(|| kind.into());
        if let (true, Some(version)) = (*found == kind, api_version) {
            item.entry("apiVersion").or_insert_with(|| version.clone());
        }
    }
}

/// A text inside an object.
pub(crate) fn text_at<'v>(object: &'v Value, path: &[&str]) -> Option<&'v str> {
    path.iter().try_fold(object, |value, key| value.get(key))?.as_str().filter(|text| !text.is_empty())
}

/// Kind and name, with the namespace where it has one.
pub(crate) fn title(object: &Value) -> String {
    let kind = text_at(object, &["kind"]).unwrap_or("object");
    let name = text_at(object, &["metadata", "name"])
        .or_else(|| text_at(object, &["metadata", "generateName"]))
        .unwrap_or("(no name)");
    match text_at(object, &["metadata", "namespace"]) {
        Some(namespace) => format!("{kind}/{namespace}/{name}"),
        None => format!("{kind}/{name}"),
    }
}

/// What keeps an object from being what its kind says: the field, and what is wrong with it.
pub(crate) struct Mismatch {
    pub(crate) field: String,
    pub(crate) message: String,
}

/// Reads an object as what its kind says it is.
pub(crate) fn typed<'v, T: Deserialize<'v>>(object: &'v Value) -> Result<T, Mismatch> {
    serde_path_to_error::deserialize(object)
        .map_err(|error| Mismatch { field: error.path().to_string(), message: error.inner().to_string() })
}

fn files(path: &Path) -> Result<Vec<PathBuf>> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut found = Vec::new();
    let mut directories = vec![path.to_owned()];
    while let Some(directory) = directories.pop() {
        let context = || format!("cannot read the directory {}", directory.display());
        for entry in std::fs::read_dir(&directory).with_context(context)? {
            let entry = entry.with_context(context)?;
            let path = entry.path();
            // A link to a directory may lead in circles. A mounted ConfigMap has links to the files of one version, and
            // directories with the versions.
            let is_version = entry.file_name().to_string_lossy().starts_with("..");
            if path.is_dir() {
                if !path.is_symlink() && !is_version {
                    directories.push(path);
                }
            } else if path
                .extension()
                .is_some_and(|ending| ["yaml", "yml", "json"].iter().any(|one| ending == *one))
            {
                found.push(path);
            }
        }
    }
    ensure!(!found.is_empty(), "{} holds no files that end in .yaml, .yml or .json", path.display());
    found.sort();
    Ok(found)
}

pub(crate) fn name(file: &Path) -> String {
    if file == Path::new("-") { "standard input".to_owned() } else { file.display().to_string() }
}

pub(crate) fn text(file: &Path) -> Result<String> {
    let mut text = String::new();
    let source: Box<dyn Read> =
        if file == Path::new("-") { Box::new(io::stdin().lock()) } else { Box::new(File::open(file)?) };
    let length = source.take(LONGEST_FILE + 1).read_to_string(&mut text)?;
    ensure!(
        length as u64 <= LONGEST_FILE,
        "it has more than {LONGEST_FILE} bytes, so it is hardly a manifest"
    );
    Ok(text)
}

/// The documents of a stream, each with the number of its first line. Inside a document nothing can begin a line with
/// three hyphens and a space, not even a text.
fn documents(text: &str) -> Vec<(usize, &str)> {
    let mut documents = Vec::new();
    let (mut start, mut first, mut offset) = (0, 1, 0);
    for (line, number) in text.split_inclusive('\n').zip(1..) {
        let begins = line
            .strip_prefix("---")
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(char::is_whitespace));
        let before = || text.get(start..offset).unwrap_or_default();
        if begins && !is_directive(before()) {
            documents.push((first, before()));
            (start, first) = (offset, number);
        }
        offset += line.len();
    }
    documents.push((first, text.get(start..).unwrap_or_default()));
    documents
}

/// Directives belong to the document after them.
fn is_directive(text: &str) -> bool {
    text.contains('%') && text.lines().all(|line| line.trim().is_empty() || line.starts_with(['#', '%']))
}

/// How many lines of comments and emptiness come before the object itself.
fn first_line(document: &str) -> usize {
    let is_nothing = |line: &&str| {
        let line = line.trim();
        let line = line.strip_prefix("---").unwrap_or(line).trim_start();
        line.is_empty() || line.starts_with(['#', '%'])
    };
    document.lines().take_while(is_nothing).count()
}

/// The parser's own words about the place count from the beginning of the document, which would only confuse.
fn without_place(message: &str) -> &str {
    let message = message.lines().next().unwrap_or_default();
    message.split(" at line ").next().unwrap_or(message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Manifests {
        let mut manifests = Manifests::default();
        manifests.take("f.yaml", text);
        manifests
    }

    fn titles(manifests: &Manifests) -> Vec<(String, &str)> {
        manifests.objects.iter().map(|one| (title(&one.object), one.place.as_str())).collect()
    }

    #[test]
    fn documents_have_their_lines() {
        let text = "# first\napiVersion: v1\nkind: A\nmetadata: {name: a}\n---\n\n--- # third\n# really\napiVersion: v1\nkind: B\nmetadata:\n  name: b\n  namespace: n\n";
        let read = read(text);
        assert_eq!(titles(&read), [("A/a".to_owned(), "f.yaml:2"), ("B/n/b".to_owned(), "f.yaml:9")]);
        assert!(read.broken.is_empty());
    }

    #[test]
    fn a_broken_document_is_named_with_its_line_and_stays_alone() {
        let read = read(
            "apiVersion: v1\nkind: A\n---\na: [1\nb: 2\n---\nkind: C\n---\n- 1\n---\napiVersion: v1\nkind: D\n",
        );
        assert_eq!(read.objects.len(), 2);
        let places: Vec<_> = read.broken.iter().map(|one| one.place.as_deref().unwrap()).collect();
        assert!(places[0] == "f.yaml:4" || places[0] == "f.yaml:5", "{places:?}");
        assert_eq!(places[1..], ["f.yaml:7", "f.yaml:9"]);
        assert!(read.broken[0].message.starts_with("this is not YAML: "), "{}", read.broken[0].message);
        assert!(!read.broken[0].message.contains("line"), "{}", read.broken[0].message);
        assert_eq!(read.broken[1].field.as_deref(), Some("apiVersion"));
    }

    #[test]
    fn lists_are_unpacked() {
        let read = read(
            r#"{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"}},{"kind":"Pod"}]}"#,
        );
        assert_eq!(titles(&read), [("Pod/a".to_owned(), "f.yaml:1 items[0]")]);
        assert_eq!(read.broken[0].place.as_deref(), Some("f.yaml:1 items[1]"));
    }

    #[test]
    fn comments_may_be_long() {
        let comment = "# an example\n".repeat(200);
        let read = read(&format!("apiVersion: v1\nkind: A\nmetadata:\n{comment}  name: a\n"));
        assert_eq!((read.objects.len(), read.broken.len()), (1, 0));
    }

    #[test]
    fn all_pods_of_a_large_cluster_are_read() {
        let pods = vec![r#"{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"}}"#; 100_000].join(",");
        let read = read(&format!(r#"{{"apiVersion":"v1","kind":"List","items":[{pods}]}}"#));
        let broken: Vec<_> = read.broken.iter().map(|one| &one.message).collect();
        assert_eq!((read.objects.len(), broken), (100_000, vec![]));
    }

    #[test]
    fn items_of_a_typed_list_have_its_kind_and_version() {
        let read = read(
            r#"{"apiVersion":"v1","kind":"PodList","items":[{"metadata":{"name":"a"}},{"kind":"Node","metadata":{"name":"b"}},{"kind":"Pod","apiVersion":"v2","metadata":{"name":"c"}},5]}"#,
        );
        assert_eq!(
            titles(&read),
            [("Pod/a".to_owned(), "f.yaml:1 items[0]"), ("Pod/c".to_owned(), "f.yaml:1 items[2]")]
        );
        let versions: Vec<_> = read.objects.iter().map(|one| one.object["apiVersion"].clone()).collect();
        assert_eq!(versions, ["v1", "v2"]);
        let broken: Vec<_> = read.broken.iter().filter_map(|one| one.place.as_deref()).collect();
        assert_eq!(
            broken,
            ["f.yaml:1 items[1]", "f.yaml:1 items[3]"],
            "a Node is of another version, perhaps"
        );
    }

    #[test]
    fn documents_are_read_as_editors_and_tools_write_them() {
        let one = "apiVersion: v1\nkind: A\nmetadata:\n  name: a\n";
        for text in [
            one.replace('\n', "\r\n"),
            format!("\u{feff}{one}"),
            format!("# words\n%YAML 1.2\n---\n{one}---\n"),
            format!("---\n{one}...\n"),
            format!("{one}---\r\n"),
            "--- {apiVersion: v1, kind: A, metadata: {name: a}}\n".to_owned(),
        ] {
            let read = read(&text);
            let names: Vec<String> = read.objects.iter().map(|one| title(&one.object)).collect();
            assert_eq!(
                (names.as_slice(), read.broken.len()),
                (&["A/a".to_owned()][..], 0),
                "{text:?}: {:?}",
                read.broken
            );
        }
    }

    /// Files of a mounted `ConfigMap` are links, by way of a link to the directory with the present version.
    #[test]
    fn a_mounted_config_map_is_read_once() {
        let mounted = tempfile::tempdir().unwrap();
        let at = |name: &str| mounted.path().join(name);
        for (version, name) in [("..2026_01", "old"), ("..2026_02", "new")] {
            std::fs::create_dir(at(version)).unwrap();
            std::fs::write(
                at(version).join("a.yaml"),
                format!("apiVersion: v1\nkind: A\nmetadata: {{name: {name}}}\n"),
            )
            .unwrap();
        }
        std::os::unix::fs::symlink("..2026_02", at("..data")).unwrap();
        std::os::unix::fs::symlink("..data/a.yaml", at("a.yaml")).unwrap();
        let mut read = Manifests::default();
        read.read(mounted.path()).unwrap();
        let names: Vec<String> = read.objects.iter().map(|one| title(&one.object)).collect();
        assert_eq!(names, ["A/new"]);
    }

    #[test]
    fn nothing_is_nothing() {
        for text in ["", "\n", "---\n---\n", "# only words\n"] {
            let read = read(text);
            assert!(read.objects.is_empty() && read.broken.is_empty(), "{text:?}");
        }
    }
}
