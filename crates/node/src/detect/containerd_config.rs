//! What containerd's configuration says about `hosts.toml`, with the files that it imports.

use std::collections::{BTreeSet, VecDeque};
use std::fs;
use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};

use toml_edit::{DocumentMut, Item};

use super::{CONTAINERD, DetectError, is_seen};
use crate::runtime::{Runtime, RuntimeName, Version};

const IMAGES: &str = "io.containerd.cri.v1.images";
const CRI: &str = "io.containerd.grpc.v1.cri";
/// What containerd reads where `config_path` is empty, since 2.2.
const DEFAULT: &str = "/etc/containerd/certs.d:/etc/docker/certs.d";

/// The files, in the order in which later ones count before earlier ones.
pub(super) struct ContainerdConfig {
    files: Vec<DocumentMut>,
    runtime: Runtime,
}

impl ContainerdConfig {
    /// Reads the main file, if there is one, and its imports, as containerd does: level by level.
    pub(super) fn read(root: &Path, version: Option<Version>) -> Result<Self, DetectError> {
        let (mut files, mut seen) = (Vec::new(), BTreeSet::new());
        let mut pending = VecDeque::from([PathBuf::from(CONTAINERD)]);
        while let Some(path) = pending.pop_front() {
            if !seen.insert(path.clone()) {
                continue;
            }
            let file = root.join(&path);
            let unreadable = |message: String| DetectError::Unreadable { file: file.clone(), message };
            let text = match fs::read_to_string(&file) {
                Ok(text) => text,
                Err(error) if error.kind() == ErrorKind::NotFound && files.is_empty() => break,
                Err(error) => return Err(unreadable(error.to_string())),
            };
            let config: DocumentMut =
                text.parse().map_err(|error: toml_edit::TomlError| unreadable(error.to_string()))?;
            let imports = config.get("imports").and_then(Item::as_array).into_iter().flatten();
            for import in imports.filter_map(toml_edit::Value::as_str) {
                pending.extend(resolve(root, &path, import)?);
            }
            files.push(config);
        }
        Ok(Self { files, runtime: Runtime { name: RuntimeName::Containerd, version } })
    }

    /// The directories in which containerd looks for a registry, the first one first; otherwise why there are none.
    pub(super) fn roots(&self) -> Result<Vec<String>, &'static str> {
        let path = self.setting(&["registry", "config_path"]).and_then(Item::as_str);
        let default = Some(DEFAULT).filter(|_| self.runtime.reads_hosts_by_default() && !self.has_mirrors());
        let path = path.or(default).ok_or("containerd reads no hosts.toml")?;
        let roots: Vec<String> = path.split(':').filter(|one| !one.is_empty()).map(str::to_owned).collect();
        if roots.len() > 1 && !self.reads_lists() {
            return Err(
                "containerd 2.1 and later read no hosts.toml where config_path is a list, as it is by default",
            );
        }
        Ok(roots)
    }

    /// The table in which the path belongs, by the version of the configuration's form.
    pub(super) fn table(&self) -> &'static str {
        if self.is_current() {
            "[plugins.'io.containerd.cri.v1.images'.registry]"
        } else {
            "[plugins.'io.containerd.grpc.v1.cri'.registry]"
        }
    }

    /// Since 2.1, images are pulled by the transfer service, which takes the whole list for the name of one directory.
    /// Since 2.2, settings that this service does not know make containerd pull without it.
    fn reads_lists(&self) -> bool {
        let is_local = |key| self.setting(&[key]).and_then(Item::as_bool) == Some(true);
        let older = |key| self.setting(&["containerd", key]);
        let either = |key| self.setting(&[key]).or_else(|| older(key)).and_then(Item::as_bool);
        if !self.runtime.pulls_by_transfer() || is_local("use_local_image_pull") {
            return true;
        }
        let downloads = self.setting(&["max_concurrent_downloads"]).and_then(Item::as_integer);
        self.runtime.reads_hosts_by_default()
            && (either("discard_unpacked_layers") == Some(true)
                || either("disable_snapshot_annotations") == Some(false)
                || is_local("image_pull_with_sync_fs")
                || downloads.is_some_and(|count| count != 3)
                || ["configs", "auths"].iter().any(|key| self.has_table(key)))
    }

    fn has_mirrors(&self) -> bool {
        self.has_table("mirrors")
    }

    fn has_table(&self, key: &str) -> bool {
        let table = self.setting(&["registry", key]).and_then(Item::as_table_like);
        table.is_some_and(|table| !table.is_empty())
    }

    fn is_current(&self) -> bool {
        let version = self.files.iter().rev().find_map(|file| file.get("version")?.as_integer());
        version.is_some_and(|version| version >= 3)
    }

    /// A setting of the plugin for images. Before 2.0, the table of a later file replaces that of an earlier one;
    /// since then tables are merged, and an empty text does not count.
    fn setting(&self, keys: &[&str]) -> Option<&Item> {
        let find = |table: &Item| {
            keys.iter()
                .try_fold(table, |item, key| item.get(key))
                .is_some_and(|item| item.as_str() != Some(""))
        };
        let plugins: &[&str] = if self.is_current() { &[IMAGES] } else { &[CRI, IMAGES] };
        plugins.iter().find_map(|plugin| {
            let mut tables = self.files.iter().rev().filter_map(|file| file.get("plugins")?.get(plugin));
            let table = if self.runtime.replaces_imported_tables() {
                tables.next().filter(|table| find(table))
            } else {
                tables.find(|table| find(table))
            };
            keys.iter().try_fold(table?, |item, key| item.get(key))
        })
    }
}

/// The files that an import names, below the root. One that is not there stops containerd, so the agent lacks the
/// directory; of a pattern that only holds where the agent sees the directory anyway.
fn resolve(root: &Path, parent: &Path, import: &str) -> Result<Vec<PathBuf>, DetectError> {
    let path = match import.strip_prefix('/') {
        Some(below) => PathBuf::from(below),
        None => parent.parent().unwrap_or(Path::new("")).join(import),
    };
    let path: PathBuf = path.components().filter(|part| !matches!(part, Component::CurDir)).collect();
    if !import.contains('*') {
        return Ok(vec![path]);
    }
    let unseen = || DetectError::Unreadable {
        file: root.join(&path),
        message: format!("/{CONTAINERD} imports it; let the agent see that directory"),
    };
    let directory = path.parent().unwrap_or(Path::new(""));
    let pattern = path.file_name().and_then(|name| name.to_str()).ok_or_else(unseen)?;
    let entries = match fs::read_dir(root.join(directory)) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound && is_seen(root, directory) => {
            return Ok(Vec::new());
        }
        Err(_) => return Err(unseen()),
    };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| matches(pattern, name)).collect();
    names.sort();
    Ok(names.into_iter().map(|name| directory.join(name)).collect())
}

/// Whether a name is like a pattern with stars.
fn matches(pattern: &str, name: &str) -> bool {
    let Some((before, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(left) = name.strip_prefix(before) else { return false };
    let mut starts = left.char_indices().map(|(at, _)| at).chain([left.len()]);
    starts.any(|at| left.get(at..).is_some_and(|left| matches(rest, left)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_of_imports_match_names() {
        for (pattern, name, is_match) in [
            ("*.toml", "10-a.toml", true),
            ("*.toml", "10-a.toml.bak", false),
            ("10-*-b*", "10-a-b", true),
            ("a.toml", "b.toml", false),
        ] {
            assert_eq!(matches(pattern, name), is_match, "{pattern} {name}");
        }
    }
}
