//! Which runtime a node has, where it reads its files, and what an administrator has to do first if it reads none.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use thiserror::Error;
use toml_edit::{ArrayOfTables, DocumentMut, Item};

use crate::DROP_IN;
use crate::files::ConfigDir;
use crate::runtime::{Runtime, RuntimeName, Version};

const CONTAINERD: &str = "etc/containerd/config.toml";
const CERTS: &str = "etc/containerd/certs.d";
const CRIO: &str = "etc/crio";
const REGISTRIES: &str = "etc/containers/registries.conf";
const DROP_INS: &str = "etc/containers/registries.conf.d";
/// Distributions that write the configuration of their containerd at every start.
const DISTRIBUTIONS: [(&str, &str); 2] = [
    ("k3s", "var/lib/rancher/k3s/agent/etc/containerd"),
    ("RKE2", "var/lib/rancher/rke2/agent/etc/containerd"),
];

/// Why there is no directory to write to.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum DetectError {
    #[error(
        "{distribution} writes {} itself: name it with --config-dir to have files written beside its own; registries \
         that registries.yaml names stay as they are", directory.display()
    )]
    Distribution { distribution: &'static str, directory: PathBuf },
    #[error(
        "containerd reads no hosts.toml: set config_path = \"/{CERTS}\" in {table} of {}, and restart containerd once",
        file.display()
    )]
    NoConfigPath { file: PathBuf, table: &'static str },
    #[error("cannot read {}: {message}", file.display())]
    Unreadable { file: PathBuf, message: String },
    #[error("there is neither containerd nor CRI-O below {}: mount the node's /etc there, or name the runtime and the \
             directory with --runtime and --config-dir", root.display())]
    Nothing { root: PathBuf },
    #[error(
        "both containerd and CRI-O are configured on this node: name the one that the kubelet uses with --runtime"
    )]
    Both,
}

/// Finds the directory that the runtime reads. `root` is where the file system of the node is mounted.
pub fn detect(
    root: &Path,
    name: Option<RuntimeName>,
    version: Option<Version>,
) -> Result<ConfigDir, DetectError> {
    let has_crio = root.join(CRIO).is_dir();
    let containerd = root.join(CONTAINERD);
    let distribution =
        DISTRIBUTIONS.iter().find(|(_, directory)| root.join(directory).join("config.toml").is_file());
    let has_containerd = containerd.is_file() || distribution.is_some();
    let runtime = match name {
        Some(name) => name,
        None if has_containerd && has_crio => return Err(DetectError::Both),
        None if has_containerd => RuntimeName::Containerd,
        None if has_crio => RuntimeName::Crio,
        None => return Err(DetectError::Nothing { root: root.to_owned() }),
    };
    if runtime != RuntimeName::Containerd {
        return Ok(ConfigDir { path: root.join(DROP_INS), runtime });
    }
    if let Some((distribution, directory)) = distribution {
        let directory = root.join(directory).join("certs.d");
        return Err(DetectError::Distribution { distribution, directory });
    }
    let unreadable = |message: String| DetectError::Unreadable { file: containerd.clone(), message };
    let text = match fs::read_to_string(&containerd) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
        Err(error) => return Err(unreadable(error.to_string())),
    };
    let config: DocumentMut =
        text.parse().map_err(|error: toml_edit::TomlError| unreadable(error.to_string()))?;
    let runtime = Runtime { name: RuntimeName::Containerd, version };
    match config_path(&config, &runtime) {
        Some(path) => Ok(ConfigDir { path: root.join(path.trim_start_matches('/')), runtime: runtime.name }),
        None => Err(DetectError::NoConfigPath { file: containerd, table: registry_table(&config) }),
    }
}

/// The first directory of `config_path`: containerd takes the first in which it finds a registry.
fn config_path(config: &DocumentMut, runtime: &Runtime) -> Option<String> {
    let plugins = ["io.containerd.cri.v1.images", "io.containerd.grpc.v1.cri"];
    let path = plugins
        .iter()
        .find_map(|plugin| config.get("plugins")?.get(plugin)?.get("registry")?.get("config_path")?.as_str());
    let first = path.and_then(|path| path.split(':').next()).filter(|path| !path.is_empty());
    first.map(str::to_owned).or_else(|| runtime.reads_hosts_by_default().then(|| format!("/{CERTS}")))
}

/// The table in which the path stands, by the version of the configuration's form.
fn registry_table(config: &DocumentMut) -> &'static str {
    match config.get("version").and_then(Item::as_integer) {
        Some(3..) => "[plugins.'io.containerd.cri.v1.images'.registry]",
        _ => "[plugins.'io.containerd.grpc.v1.cri'.registry]",
    }
}

/// The prefixes that other files of `registries.conf` have tables for. A drop-in replaces whole tables, so ours would
/// take away what an administrator wrote. A file that cannot be read stops CRI-O as well, and is reported.
pub fn foreign_prefixes(root: &Path) -> Result<BTreeSet<String>, DetectError> {
    let drop_ins =
        fs::read_dir(root.join(DROP_INS)).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_foreign = |path: &PathBuf| {
        path.extension().is_some_and(|extension| extension == "conf")
            && path.file_name().is_some_and(|name| name != DROP_IN)
    };
    let mut prefixes = BTreeSet::new();
    for file in [root.join(REGISTRIES)].into_iter().chain(drop_ins.filter(is_foreign)) {
        let Ok(text) = fs::read_to_string(&file) else { continue };
        let read = prefixes_of(&text).map_err(|message| DetectError::Unreadable { file, message })?;
        prefixes.extend(read);
    }
    Ok(prefixes)
}

fn prefixes_of(text: &str) -> Result<BTreeSet<String>, String> {
    let config: DocumentMut = text.parse().map_err(|error: toml_edit::TomlError| error.to_string())?;
    let tables = config.get("registry").and_then(Item::as_array_of_tables).map(ArrayOfTables::iter);
    let text =
        |item: Option<&Item>| item.and_then(Item::as_str).filter(|text| !text.is_empty()).map(str::to_owned);
    Ok(tables
        .into_iter()
        .flatten()
        .filter_map(|table| text(table.get("prefix")).or_else(|| text(table.get("location"))))
        .collect())
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    /// A node with these files.
    fn node(files: &[(&str, &str)]) -> TempDir {
        let directory = TempDir::new().unwrap();
        for (path, content) in files {
            let path = directory.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        directory
    }

    fn found(
        files: &[(&str, &str)],
        name: Option<RuntimeName>,
        version: Option<&str>,
    ) -> Result<String, String> {
        let node = node(files);
        let version = version.map(|text| text.parse().unwrap());
        let found = detect(node.path(), name, version);
        let below = |path: &Path| path.strip_prefix(node.path()).unwrap().display().to_string();
        found
            .map(|found| format!("{} {}", found.runtime, below(&found.path)))
            .map_err(|error| error.to_string().replace(&format!("{}/", node.path().display()), "/"))
    }

    const CONTAINERD_3: &str =
        "version = 3\n[plugins.'io.containerd.cri.v1.images'.registry]\nconfig_path = '/etc/certs:/b'\n";

    #[test]
    fn containerd_is_found_with_the_first_directory_that_it_reads() {
        let containerd = |text| found(&[(CONTAINERD, text)], None, Some("2.1.0"));
        assert_eq!(containerd(CONTAINERD_3), Ok("containerd etc/certs".to_owned()));
        let old = "version = 2\n[plugins.'io.containerd.grpc.v1.cri'.registry]\nconfig_path = '/etc/containerd/certs.d'\n";
        assert_eq!(containerd(old), Ok("containerd etc/containerd/certs.d".to_owned()));
        let since = found(&[(CONTAINERD, "version = 3\n")], None, Some("2.2.0"));
        assert_eq!(since, Ok("containerd etc/containerd/certs.d".to_owned()), "its default since 2.2");
    }

    #[test]
    fn what_an_administrator_has_to_do_is_said() {
        for (text, table) in
            [("version = 3\n", "io.containerd.cri.v1.images"), ("", "io.containerd.grpc.v1.cri")]
        {
            assert_eq!(
                found(&[(CONTAINERD, text)], None, Some("2.1.4")),
                Err(format!(
                    "containerd reads no hosts.toml: set config_path = \"/etc/containerd/certs.d\" in \
                     [plugins.'{table}'.registry] of /etc/containerd/config.toml, and restart containerd once"
                ))
            );
        }
        let k3s =
            found(&[("var/lib/rancher/k3s/agent/etc/containerd/config.toml", CONTAINERD_3)], None, None);
        assert_eq!(
            k3s,
            Err("k3s writes /var/lib/rancher/k3s/agent/etc/containerd/certs.d itself: name it with --config-dir to \
                 have files written beside its own; registries that registries.yaml names stay as they are"
                .to_owned())
        );
        assert!(
            found(&[], None, None).unwrap_err().starts_with("there is neither containerd nor CRI-O below ")
        );
        let broken = found(&[(CONTAINERD, "version = ")], None, None).unwrap_err();
        assert!(broken.starts_with("cannot read /etc/containerd/config.toml: "), "{broken}");
    }

    #[test]
    fn a_node_with_both_runtimes_is_asked_about() {
        let both = [(CONTAINERD, CONTAINERD_3), ("etc/crio/crio.conf", "")];
        assert!(found(&both, None, None).unwrap_err().contains("with --runtime"));
        let crio = Ok("CRI-O etc/containers/registries.conf.d".to_owned());
        assert_eq!(found(&both, Some(RuntimeName::Crio), None), crio);
        assert_eq!(found(&both[1..], None, None), crio);
    }

    #[test]
    fn prefixes_of_other_files_are_found_and_ours_are_not() {
        let node = node(&[
            (
                REGISTRIES,
                "[[registry]]\nlocation = 'a.test'\n[[registry]]\nprefix = 'b.test/x'\nlocation = 'c.test'\n",
            ),
            ("etc/containers/registries.conf.d/10-admin.conf", "[[registry]]\nprefix = '*.d.test'\n"),
            ("etc/containers/registries.conf.d/50-fairlead.conf", "[[registry]]\nlocation = 'ours.test'\n"),
            ("etc/containers/registries.conf.d/.50-fairlead.conf.new", "[[registry]]\nlocation = 'torn"),
        ]);
        let prefixes: Vec<String> = foreign_prefixes(node.path()).unwrap().into_iter().collect();
        assert_eq!(prefixes, ["*.d.test", "a.test", "b.test/x"]);
        fs::write(node.path().join(REGISTRIES), "[[registry]").unwrap();
        assert!(foreign_prefixes(node.path()).is_err());
    }
}
